"""What all commands have in common: the client, the clock, help with examples, readable errors."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from io import TextIOWrapper
from typing import Any, ClassVar, TextIO, TypeVar

from cliff import display
from osc_lib import exceptions
from osc_lib.command import command

from tenureclient.cli.arguments import add_arguments
from tenureclient.cli.printable import printable
from tenureclient.cli.render import Shown, Table, fields, row_of, table
from tenureclient.cli.report import describe
from tenureclient.client import Client
from tenureclient.conditions import UnreadableCondition
from tenureclient.documents import Document
from tenureclient.errors import TenureError
from tenureclient.moments import Moment, UnreadableDuration, UnreadableMoment, parse_moment
from tenureclient.options import Argument, Option, options_of
from tenureclient.osc import make_client
from tenureclient.reservation_type import UnreadableReservation

F = TypeVar("F")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The clock, the sleep function and the zone for the commands. A zone of None is that of this machine."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], None] = time.sleep
    zone: tzinfo | None = None


class ReservationCommand(command.Command):
    """A command of the reservation service.

    ``examples`` are pairs: the arguments of a command line, and its purpose. ``notes`` come last in the help.
    """

    examples: ClassVar[tuple[tuple[str, str], ...]] = ()
    notes: ClassVar[str] = ""
    #: Whether output options come last in the help, where users of long ones look for them.
    formatters_last: ClassVar[bool] = False
    #: The parser of the command line.
    _parser: argparse.ArgumentParser | None = None

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = self._parser = super().get_parser(prog_name)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter  # the examples keep their lines
        parser.allow_abbrev = False  # --for must never be read as --format
        lines = [f"  {purpose}:\n    {prog_name} {arguments}" for arguments, purpose in self.examples]
        texts = ["\n".join(["examples:", *lines]) if lines else "", parser.epilog or "", self.notes]
        parser.epilog = "\n\n".join(text for text in texts if text)
        add_arguments(parser, self.arguments)
        if self.formatters_last:
            parser._action_groups.sort(key=lambda group: "formatter" in (group.title or ""))
        return parser

    @property
    def arguments(self) -> Iterable[Argument]:
        """The arguments of the command, in the order of its help."""
        return ()

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

    def given(self, options: Iterable[Option], parsed_args: argparse.Namespace) -> dict[str, Any]:
        """Return the value of each of these options by the name of its field; None if it is not given."""
        return {option.name: self._value(option, getattr(parsed_args, option.name)) for option in options}

    def fields_given(self, fields: type[F], parsed_args: argparse.Namespace) -> F:
        """Return those fields of a ``TypedDict`` that have an argument; a field is None if it is not given."""
        return fields(**self.given(options_of(fields).values(), parsed_args))

    def _value(self, option: Option, value: Any) -> Any:
        if option.gather is not None:
            return option.gather(value) if value else None
        return self.instant(value, option.names) if option.date and value is not None else value

    def moment(self, text: str, option: str, *, zone: tzinfo | None, after: Moment | None = None) -> Moment:
        """Read a date of the command line; an error names the option.

        ``after`` is the date that it follows, such as the start; see ``parse_moment``.
        """
        begin = after if isinstance(after, datetime) else None
        try:
            return parse_moment(text, now=self.surroundings.now(), zone=zone, after=begin)
        except (UnreadableMoment, UnreadableDuration) as error:
            raise exceptions.CommandError(f"{option}: {error}") from error

    def date(self, text: str | None, option: str) -> Moment | None:
        """Read a date like ``moment``, in the zone of the surroundings; None if it is not given."""
        return None if text is None else self.moment(text, option, zone=self.zone)

    def instant(self, text: str, option: str, *, after: Moment | None = None) -> datetime:
        """Read a date like ``moment``, in the zone of the surroundings; "now" is the present moment."""
        return self.present(self.moment(text, option, zone=self.zone, after=after))

    def present(self, moment: Moment | None) -> datetime:
        """Return a moment as a date; that of None and of "now" is the present one."""
        return moment if isinstance(moment, datetime) else self.surroundings.now()


def _refuse_empty(action: argparse.Action, value: object) -> None:
    """Raise ``CommandError`` if the value of an argument is empty, as an unset variable of a shell is.

    An empty text names nothing. Arguments that are empty by default may be empty.
    """
    if action.default != "" and "" in (value if isinstance(value, list) else [value]):
        name = "/".join(action.option_strings) or action.metavar or action.dest
        raise exceptions.CommandError(f"{name}: an empty text names nothing. Is a variable of the shell unset?")


#: Whose data a command shows.
PROJECT = Option("--project", "PROJECT", help="Of this project, an id or a name (for administrators)")
#: Output formats for programs; values are printed unchanged.
_FOR_PROGRAMS = frozenset({"json", "yaml"})


class PrintingCommand(ReservationCommand, display.DisplayCommandBase[Any]):
    """A command whose output has a format, unless it prints lines of text and has no columns."""

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        if not column_names:
            return 0
        shown = data if parsed_args.formatter in _FOR_PROGRAMS else _printable(data)
        # The base class of a list, or of a single thing, comes after this one.
        code: int = super().produce_output(parsed_args, column_names, shown)  # type: ignore[safe-super]
        return code


class ReservationLister(PrintingCommand, command.Lister):
    """A command that prints a table."""

    def table(self, documents: Iterable[Document], shown: Sequence[str], parsed_args: argparse.Namespace) -> Table:
        """Return a table of documents with the columns ``shown``, or with those that the user names."""
        return table((row_of(document, self.zone) for document in documents), shown, parsed_args.columns)


class ReservationShowOne(PrintingCommand, command.ShowOne):
    """A command that prints the fields of one resource."""

    def shown(self, document: Document) -> Shown:
        return fields(row_of(document, self.zone))


def _printable(data: object) -> object:
    """Return a cell, a row, or several rows, whose texts can be printed."""
    if isinstance(data, list | tuple):
        return tuple(map(_printable, data))
    return printable(data) if isinstance(data, str) else data


class ErrorCollector:
    """Runs a function for several names, and collects the errors."""

    def __init__(self) -> None:
        self._failed: dict[str, str] = {}

    def run_for(self, names: Iterable[str], work: Callable[[str], T]) -> Mapping[str, T]:
        """Call ``work`` for each name without an earlier error; return the results by name."""
        done: dict[str, T] = {}
        for name in names:
            try:
                done[name] = work(name)
            except TenureError as error:
                self._failed[name] = describe(error)
        return done

    def raise_collected(self, count: int, problem: str) -> None:
        """Raise ``CommandError`` if any of ``count`` names failed; ``problem`` completes "2 of 3 ..."."""
        lines = list(self._failed.values())
        if count > 1:
            named = [f"{name}: {reason}" for name, reason in self._failed.items()]
            lines = [f"{len(named)} of {count} {problem}:", *named]
        if self._failed:
            raise exceptions.CommandError("\n".join(lines))
