"""The options of a command line as words of another one."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import timedelta

from tenureclient.cli.arguments import add_arguments
from tenureclient.cli.command import ReservationCommand
from tenureclient.cli.reservation_options import DESCRIBING, RESERVATION_OPTIONS
from tenureclient.moments import format_duration
from tenureclient.reservation_request import ReservationChange, ReservationRequest
from tenureclient.reservation_text import format_reservation, format_reservation_change

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
