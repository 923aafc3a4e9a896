"""Arguments of the command line, declared beside the fields that they set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints


@dataclass(frozen=True, slots=True)
class Option:
    """An argument that gives the value of a field.

    ``names`` are those of an option, separated by blanks; a positional argument has none. ``read`` reads a text, and
    raises ``ValueError`` with the reason if it cannot. A ``date`` is read in the zone of the command. A ``flag`` is
    True if it is given; a ``rule`` sets this value, and excludes its opposite. With ``gather`` the option may be
    repeated: the value is what this function makes of the list of all values.
    """

    names: str = ""
    metavar: str | None = None
    read: Callable[[str], object] | None = None
    choices: Sequence[str] | None = None
    date: bool = False
    flag: bool = False
    rule: bool | None = None
    gather: Callable[[list[Any]], object] | None = None
    field: str = ""
    help: str = ""

    @property
    def name(self) -> str:
        """The name of the field: that of the first option, unless it is another."""
        return self.field or self.names.split()[0].removeprefix("--").replace("-", "_")


def options_of(fields: type[Any]) -> Mapping[str, Option]:
    """Return the options with which fields of a ``TypedDict`` are annotated, by the names of the fields."""
    hints = get_type_hints(fields, include_extras=True)
    return {name: option for name, hint in hints.items() for option in get_args(hint)[1:] if isinstance(option, Option)}
