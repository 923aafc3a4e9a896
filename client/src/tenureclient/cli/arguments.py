"""Arguments of the command line, made of their declarations."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from tenureclient.moments import parse_length
from tenureclient.options import Argument, Group, OneOf, Option

T = TypeVar("T")


def sort_option(column: str, choices: Sequence[str], usual: str, shown: str) -> Option:
    """Return the option by which a list is sorted; ``shown`` are the fields as its help names them."""
    help_text = f"Field to sort by: {shown}"
    return Option("--sort-by", f"<{column}_column>", choices=choices, default=usual, help=help_text)


def start_option(help_text: str) -> Option:
    return Option("--from", "DATE", field="start", help=help_text)


def end_option(help_text: str) -> Option:
    return Option("--to", "DATE", field="end", help=help_text)


def length_option(help_text: str, usual: timedelta | None = None) -> Option:
    return Option("--for", "DURATION", parse_length, field="length", default=usual, help=help_text)


class _Rule(argparse.Action):
    """Sets a rule; another one for the same value is an error."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) not in (None, self.const):
            raise argparse.ArgumentError(self, "not allowed with the opposite")
        setattr(namespace, self.dest, self.const)


def add_arguments(parser: argparse._ActionsContainer, arguments: Iterable[Argument]) -> None:
    """Add these arguments; the value of each has the name of its field."""
    for argument in arguments:
        match argument:
            case OneOf():
                add_arguments(parser.add_mutually_exclusive_group(required=argument.required), argument.options)
            case Group():
                add_arguments(parser.add_argument_group(argument.heading), argument.arguments)
            case Option():
                _add_option(parser, argument)


def _add_option(parser: argparse._ActionsContainer, option: Option) -> None:
    settings: dict[str, Any] = {"help": option.help, "default": option.default}
    if option.names:
        settings["dest"] = option.name
    if option.flag:
        settings |= {"action": "store_true", "default": False}
    elif option.rule is not None:
        settings |= {"action": _Rule, "nargs": 0, "const": option.rule}
    elif option.action is not None:
        settings |= {"action": option.action, "nargs": 0}
    else:
        settings |= {"metavar": option.metavar, "choices": option.choices, "nargs": option.count}
    if option.read is not None:
        settings["type"] = int if option.read is int else _reading(option.read)
    if option.gather is not None:
        settings |= {"action": "append", "default": []}
    parser.add_argument(*(option.names.split() or [option.name]), **settings)


def _reading(read: Callable[[str], T]) -> Callable[[str], T]:
    """Turn a reader into an argparse type. argparse shows the text of its own errors only."""

    def typed(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return typed
