"""Arguments of the command line, declared beside the fields that they set."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, get_args, get_type_hints


@dataclass(frozen=True, slots=True)
class Option:
    """An argument that gives the value of a field.

    ``names`` are those of an option, separated by blanks; a positional argument has none. ``read`` reads a text, and
    raises ``ValueError`` with the reason if it cannot. A ``date`` is read in the zone of the command. A ``flag`` is
    True if it is given; a ``rule`` sets this value, and excludes its opposite; an ``action`` takes no value. With
    ``gather`` the option may be repeated: the value is what this function makes of the list of all values. ``count``
    is the number of values, as argparse knows it.
    """

    names: str = ""
    metavar: str | tuple[str, ...] | None = None
    read: Callable[[str], object] | None = None
    choices: Sequence[str] | None = None
    date: bool = False
    flag: bool = False
    rule: bool | None = None
    action: type[argparse.Action] | None = None
    gather: Callable[[list[Any]], object] | None = None
    count: int | str | None = None
    default: object = None
    field: str = ""
    help: str = ""

    @property
    def name(self) -> str:
        """The name of the field: that of the first option, unless it is another."""
        return self.field or self.names.split()[0].removeprefix("--").replace("-", "_")


class OneOf:
    """Options of which only one may be given."""

    def __init__(self, *options: Option, required: bool = False) -> None:
        self.options = options
        self.required = required


class Group:
    """Arguments under a heading of the help."""

    def __init__(self, heading: str, *arguments: Option | OneOf) -> None:
        self.heading = heading
        self.arguments = arguments


Argument: TypeAlias = Option | OneOf | Group


def every_option(arguments: Iterable[Argument]) -> Iterator[Option]:
    """Yield the options among these arguments, and those of their groups."""
    for argument in arguments:
        match argument:
            case Option():
                yield argument
            case OneOf():
                yield from argument.options
            case Group():
                yield from every_option(argument.arguments)


def options_of(fields: type[Any]) -> Mapping[str, Option]:
    """Return the options with which fields of a ``TypedDict`` are annotated, by the names of the fields."""
    hints = get_type_hints(fields, include_extras=True)
    return {
        name: replace(option, field=name)
        for name, hint in hints.items()
        for option in get_args(hint)[1:]
        if isinstance(option, Option)
    }
