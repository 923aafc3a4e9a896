"""The options of a command line as words of another one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tenureclient.cli.arguments import add_arguments
from tenureclient.cli.command import ReservationCommand
from tenureclient.cli.reservation_options import DESCRIBING, RESERVATION_OPTIONS
from tenureclient.conditions import conditions_from_json
from tenureclient.moments import format_duration
from tenureclient.reservation_request import ReservationChange, ReservationRequest
from tenureclient.reservation_text import format_reservation, format_reservation_change
from tenureclient.reservation_type import ReservationType
from tenureclient.resources import RESERVATION_TYPES
from tenureclient.wire import JsonObject

#: The first word of all our commands in ``openstack``.
_PREFIX = "reservation"


class Inexpressible(ValueError):
    """The options of the command line cannot say this."""


def first_words(command: ReservationCommand, *names: str) -> list[str]:
    """Return the first words of the command with these names, in the shell in which this command runs."""
    shell: str = getattr(command.app, "NAME", "tenure")
    prefix = [_PREFIX] if (command.cmd_name or "").split()[:1] == [_PREFIX] else []
    return [shell, *prefix, *names]


def words_of_reservations(parsed_args: argparse.Namespace) -> list[str]:
    """Return the options and values, as on a command line, that describe the same reservations."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser, RESERVATION_OPTIONS)
    return words_of_options(parser._actions, parsed_args)


def words_of_other_options(parser: argparse.ArgumentParser, parsed_args: argparse.Namespace) -> list[str]:
    """Return the options and values of a command, in the order of its help, that describe no reservations."""
    actions = [action for group in parser._action_groups for action in group._group_actions]
    others = [action for action in actions if action.option_strings and action.dest not in DESCRIBING]
    return words_of_options(others, parsed_args)


def words_of_options(actions: Iterable[argparse.Action], parsed_args: argparse.Namespace) -> list[str]:
    """Return those of the options that do not have their default, with their values."""
    words: list[str] = []
    for action in actions:
        given = getattr(parsed_args, action.dest, action.default)
        if given == action.default:
            continue
        option = action.option_strings[0]
        if action.nargs == 0:  # a flag
            words += [option] if given == action.const else []
            continue
        for value in given if isinstance(given, list) else [given]:
            values = map(_word, value) if isinstance(value, list) else [_word(value)]
            words += [option, *values]
    return words


def with_amount(parsed_args: argparse.Namespace, amount: int, position: int) -> argparse.Namespace:
    """Return the options with another amount of the reservation at this position.

    Raises ``Inexpressible`` if it cannot have this amount.
    """
    options, slot = _slot(parsed_args, position)
    if isinstance(slot, int):
        names = {"min", "max", "amount"} & set(options.reservation[slot].parameters)
        if not names and amount != 1:
            raise Inexpressible
        _change(options.reservation, slot, dict.fromkeys(names, amount))
    elif not slot.with_amount(options, amount):
        raise Inexpressible
    return options


def with_condition(parsed_args: argparse.Namespace, condition: str, position: int) -> argparse.Namespace:
    """Return the options with another condition on the resources of the reservation at this position.

    Raises ``Inexpressible`` if no option gives it one.
    """
    options, slot = _slot(parsed_args, position)
    if isinstance(slot, int):
        _change(options.reservation, slot, {"resource_properties": condition})
    elif slot.takes_conditions(options):
        options.conditions = conditions_from_json(condition)
    else:
        raise Inexpressible
    return options


def with_amount_of_change(parsed_args: argparse.Namespace, amount: int, position: int) -> argparse.Namespace:
    """Return the options of ``lease set`` with another amount in the change at this position.

    Raises ``Inexpressible`` if the change has no amount: the reservation keeps its number of units then.
    """
    options = _copied(parsed_args)
    _change(options.reservation, position, {})
    given = set(options.reservation[position].parameters)
    names = {"min", "max"} if {"min", "max"} & given else {"amount"} & given
    if not names:
        raise Inexpressible
    _change(options.reservation, position, dict.fromkeys(names, amount))
    return options


def with_condition_of_change(parsed_args: argparse.Namespace, condition: str, position: int) -> argparse.Namespace:
    """Return the options of ``lease set`` with another condition in the change at this position."""
    options = _copied(parsed_args)
    _change(options.reservation, position, {"resource_properties": condition})
    return options


def _copied(parsed_args: argparse.Namespace) -> argparse.Namespace:
    """Return a copy of the options whose reservations can be replaced."""
    return argparse.Namespace(**{**vars(parsed_args), "reservation": list(parsed_args.reservation)})


def _change(requests: list[Any], position: int, parameters: JsonObject) -> None:
    """Give other parameters to the request at this position. Raises ``Inexpressible`` if there is none."""
    if not 0 <= position < len(requests):
        raise Inexpressible
    requests[position] = replace(requests[position], parameters={**requests[position].parameters, **parameters})


def _slot(parsed_args: argparse.Namespace, position: int) -> tuple[argparse.Namespace, ReservationType | int]:
    """Return a copy of the options, and the type of the reservation at this position, which has options of its own.

    A number is the position of a reservation in full words. The order is that of ``read_reservations``.
    """
    options = _copied(parsed_args)
    requested = [
        reservation_type for reservation_type in RESERVATION_TYPES.values() if reservation_type.is_requested(options)
    ]
    slots = [*requested, *range(len(options.reservation))]
    if not 0 <= position < len(slots):
        raise Inexpressible
    return options, slots[position]


def _word(value: object) -> str:
    """Return the value of an option as it is written."""
    match value:
        case timedelta():
            return format_duration(value)
        case (int(least), int(most)):
            return str(least) if least == most else f"{least}-{most}"
        case (str(key), str(spec)):
            return f"{key}={spec}"
        case ReservationRequest():
            return format_reservation(value)
        case ReservationChange():
            return format_reservation_change(value)
    return str(value)
