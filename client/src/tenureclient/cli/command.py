"""What all commands have in common: the client, the clock, help with examples, readable errors."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from io import TextIOWrapper
from typing import ClassVar, TextIO, TypeVar

from osc_lib import exceptions
from osc_lib.command import command

from tenureclient.cli.printable import printable
from tenureclient.cli.render import Shown, Table, fields, row_of, table
from tenureclient.cli.report import describe
from tenureclient.client import Client
from tenureclient.conditions import UnreadableCondition
from tenureclient.documents import Document
from tenureclient.errors import TenureError
from tenureclient.moments import Moment, UnreadableDuration, UnreadableMoment, parse_moment
from tenureclient.osc import make_client
from tenureclient.reservation_type import UnreadableReservation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The clock, the sleep function and the zone for the commands. A zone of None is that of this machine."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], None] = time.sleep
    zone: tzinfo | None = None


class ReservationCommand(command.Command):
    """A command of the reservation service.

    ``examples`` are pairs: the arguments of a command line, and its purpose.
    """

    examples: ClassVar[tuple[tuple[str, str], ...]] = ()
    #: The parser of the command line.
    _parser: argparse.ArgumentParser | None = None

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self._parser = super().get_parser(prog_name)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter  # the examples keep their lines
        parser.allow_abbrev = False  # --for must never be read as --format
        lines = [f"  {purpose}:\n    {prog_name} {arguments}" for arguments, purpose in self.examples]
        parts = ["\n".join(["examples:", *lines]) if lines else "", parser.epilog or ""]
        parser.epilog = "\n\n".join(part for part in parts if part)
        self.add_arguments_to(parser)
        return parser

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command to its parser."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # a name that it cannot show must not end the output
                stream.reconfigure(errors="backslashreplace")
        for options in (*getattr(parsed_args, "choices", ()), parsed_args):
            for action in () if self._parser is None else self._parser._actions:
                _refuse_empty(action, getattr(options, action.dest, None))
        try:
            return super().run(parsed_args)
        except TenureError as error:
            raise exceptions.CommandError(describe(error)) from error
        except (UnreadableCondition, UnreadableDuration, UnreadableReservation) as error:
            raise exceptions.CommandError(str(error)) from error

    @property
    def surroundings(self) -> Surroundings:
        """The surroundings that a test gave to the application, or the real ones."""
        given = getattr(self.app, "surroundings", None)
        return given if isinstance(given, Surroundings) else Surroundings()

    @property
    def zone(self) -> tzinfo | None:
        """The zone in which dates are read and shown; None is that of this machine."""
        return self.surroundings.zone

    @property
    def output(self) -> TextIO:
        stream: TextIO = self.app.stdout
        return stream

    def client(self) -> Client:
        return make_client(self.app.client_manager, clock=self.surroundings.now, sleep=self.surroundings.sleep)

    def moment(self, text: str, option: str, *, zone: tzinfo | None, after: datetime | None = None) -> Moment:
        """Read a date of the command line; an error names the option. ``after``: see ``parse_moment``."""
        try:
            return parse_moment(text, now=self.surroundings.now(), zone=zone, after=after)
        except (UnreadableMoment, UnreadableDuration) as error:
            raise exceptions.CommandError(f"{option}: {error}") from error

    def instant(self, text: str, option: str, *, after: datetime | None = None) -> datetime:
        """Read a date like ``moment``, in the zone of the surroundings; "now" is the present moment."""
        moment = self.moment(text, option, zone=self.surroundings.zone, after=after)
        return moment if isinstance(moment, datetime) else self.surroundings.now()


def _refuse_empty(action: argparse.Action, value: object) -> None:
    """Raise ``CommandError`` if the value of an argument is empty, as an unset variable of a shell is.

    An empty text names nothing. Arguments that are empty by default may be empty.
    """
    if action.default != "" and "" in (value if isinstance(value, list) else [value]):
        name = "/".join(action.option_strings) or action.metavar or action.dest
        raise exceptions.CommandError(f"{name}: an empty text names nothing. Is a variable of the shell unset?")


#: Output formats for programs; values are printed unchanged.
_FOR_PROGRAMS = frozenset({"json", "yaml"})


class ReservationLister(ReservationCommand, command.Lister):
    """A command that prints a table."""

    def table(self, things: Iterable[Document], shown: Sequence[str], parsed_args: argparse.Namespace) -> Table:
        """Return a table of documents with the columns ``shown``, or with those that the user names."""
        return table((row_of(thing, self.zone) for thing in things), shown, parsed_args.columns)

    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[object]]
    ) -> int:
        shown = data if parsed_args.formatter in _FOR_PROGRAMS else (_printable(row) for row in data)
        code: int = super().produce_output(parsed_args, column_names, shown)
        return code


class ReservationShowOne(ReservationCommand, command.ShowOne):
    """A command that prints the fields of one resource."""

    def shown(self, thing: Document) -> Shown:
        return fields(row_of(thing, self.zone))

    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Sequence[object]
    ) -> int:
        shown = data if parsed_args.formatter in _FOR_PROGRAMS else _printable(data)
        code: int = super().produce_output(parsed_args, column_names, shown)
        return code


def _printable(row: Iterable[object]) -> tuple[object, ...]:
    return tuple(printable(cell) if isinstance(cell, str) else cell for cell in row)


def reading(read: Callable[[str], T]) -> Callable[[str], T]:
    """Turn a reader into an argparse type. argparse shows the text of its own errors only."""

    def typed(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return typed
