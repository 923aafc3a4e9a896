"""The options of a command line as words of another one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from datetime import timedelta

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


def with_amount(parsed_args: argparse.Namespace, amount: int, position: int = 0) -> argparse.Namespace:
    """Return the options with another amount of the reservation at this position.

    Raises ``Inexpressible`` if it cannot have this amount.
    """
    options, slot = _slot(parsed_args, position)
    if isinstance(slot, int):
        request = options.reservation[slot]
        names = {"min", "max", "amount"} & set(request.parameters)
        if not names and amount != 1:
            raise Inexpressible
        options.reservation[slot] = _with(request, dict.fromkeys(names, amount))
    elif not slot.with_amount(options, amount):
        raise Inexpressible
    return options


def with_condition(parsed_args: argparse.Namespace, condition: str, position: int) -> argparse.Namespace:
    """Return the options with another condition on the resources of the reservation at this position.

    Raises ``Inexpressible`` if no option gives it one.
    """
    options, slot = _slot(parsed_args, position)
    if isinstance(slot, int):
        options.reservation[slot] = _with(options.reservation[slot], {"resource_properties": condition})
    elif slot.takes_conditions(options):
        options.conditions = conditions_from_json(condition)
    else:
        raise Inexpressible
    return options


def with_amount_of_change(parsed_args: argparse.Namespace, amount: int, position: int) -> argparse.Namespace:
    """Return the options of ``lease set`` with another amount in the change at this position.

    Raises ``Inexpressible`` if the change has no amount.
    """
    names = _names_of_amount(_change(parsed_args, position))
    if not names:
        raise Inexpressible
    return _with_change(parsed_args, position, dict.fromkeys(names, amount))


def with_condition_of_change(parsed_args: argparse.Namespace, condition: str, position: int) -> argparse.Namespace:
    """Return the options of ``lease set`` with another condition in the change at this position."""
    return _with_change(parsed_args, position, {"resource_properties": condition})


def _names_of_amount(change: ReservationChange) -> Sequence[str]:
    """Return the parameters that give a changed reservation its number of units; none if it keeps it."""
    if {"min", "max"} & set(change.parameters):
        return ("min", "max")
    return ("amount",) if "amount" in change.parameters else ()


def _change(parsed_args: argparse.Namespace, position: int) -> ReservationChange:
    changes: Sequence[ReservationChange] = parsed_args.reservation
    if not 0 <= position < len(changes):
        raise Inexpressible
    return changes[position]


def _with_change(parsed_args: argparse.Namespace, position: int, parameters: JsonObject) -> argparse.Namespace:
    change = _change(parsed_args, position)
    options = argparse.Namespace(**vars(parsed_args))
    options.reservation = list(parsed_args.reservation)
    options.reservation[position] = ReservationChange(change.id, {**change.parameters, **parameters})
    return options


def _slot(parsed_args: argparse.Namespace, position: int) -> tuple[argparse.Namespace, ReservationType | int]:
    """Return a copy of the options, and the type of the reservation at this position, which has options of its own.

    A number is the position of a reservation in full words. The order is that of ``read_reservations``.
    """
    options = argparse.Namespace(**vars(parsed_args))
    options.reservation = list(parsed_args.reservation)
    requested = [
        reservation_type for reservation_type in RESERVATION_TYPES.values() if reservation_type.is_requested(options)
    ]
    slots = [*requested, *range(len(options.reservation))]
    if not 0 <= position < len(slots):
        raise Inexpressible
    return options, slots[position]


def _with(request: ReservationRequest, parameters: JsonObject) -> ReservationRequest:
    return ReservationRequest(request.resource_type, {**request.parameters, **parameters})


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
