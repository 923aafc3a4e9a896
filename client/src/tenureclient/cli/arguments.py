"""Arguments of the command line, made of the declarations beside the fields that they set."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from tenureclient.cli.command import ReservationCommand, reading
from tenureclient.options import Option, options_of

F = TypeVar("F")


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


def add_arguments(parser: argparse._ActionsContainer, arguments: Mapping[str, Option] | Iterable[Option]) -> None:
    """Add an argument for each of these fields; its value has the name of the field."""
    named = arguments.items() if isinstance(arguments, Mapping) else [(option.name, option) for option in arguments]
    for name, option in named:
        settings: dict[str, Any] = {"help": option.help, **({"dest": name} if option.names else {})}
        if option.flag:
            settings["action"] = "store_true"
        elif option.rule is not None:
            settings |= {"action": _Rule, "nargs": 0, "const": option.rule}
        else:
            settings |= {"metavar": option.metavar, "choices": option.choices}
        if option.read is not None:
            settings["type"] = reading(option.read)
        if option.gather is not None:
            settings |= {"action": "append", "default": []}
        parser.add_argument(*(option.names.split() or [name]), **settings)


def given(
    command: ReservationCommand, arguments: Mapping[str, Option], parsed_args: argparse.Namespace
) -> dict[str, Any]:
    """Return the value of each of these fields; None if it is not given."""
    return {name: _value(command, option, getattr(parsed_args, name)) for name, option in arguments.items()}


def add_fields(parser: argparse._ActionsContainer, fields: type[Any]) -> None:
    """Add an argument for each field of a ``TypedDict`` that has one."""
    add_arguments(parser, options_of(fields))


def fields_given(command: ReservationCommand, fields: type[F], parsed_args: argparse.Namespace) -> F:
    """Return those fields of a ``TypedDict`` that have an argument; a field is None if it is not given."""
    return fields(**given(command, options_of(fields), parsed_args))


def _value(command: ReservationCommand, option: Option, value: Any) -> Any:
    if option.gather is not None:
        return option.gather(value) if value else None
    if option.date and value is not None:
        return command.instant(value, option.names)
    return value
