"""find, find longest, find most"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from osc_lib import exceptions

from tenureclient.cli.alternatives import with_amount
from tenureclient.cli.arguments import end_option, length_option, start_option
from tenureclient.cli.command import PrintingCommand, ReservationLister, ReservationShowOne
from tenureclient.cli.lease_create import DEFAULT_LENGTH
from tenureclient.cli.printable import printable
from tenureclient.cli.render import Row, Shown, Table, fields, row_of, table
from tenureclient.cli.reservation_options import RESERVATION_OPTIONS, read_some_reservations, types_help
from tenureclient.cli.reservation_words import Inexpressible, first_words, words_of_reservations
from tenureclient.cli.window_options import WINDOW_OPTIONS, later, read_window
from tenureclient.moments import DURATION_FORMS, MOMENT_FORMS, format_duration
from tenureclient.options import Argument, OneOf, Option
from tenureclient.reservation_type import parse_amount
from tenureclient.wire import rfc3339

#: A start this soon may be in the past when a command that names it is typed.
_SOON = timedelta(minutes=2)
_COMMAND = "command"
_OPTIONS: tuple[Argument, ...] = (
    Option("--name", "LEASE", default="NAME", help="Name for the lease in the printed command"),
    *RESERVATION_OPTIONS,
)
_FROM = start_option(f"Start of the lease: {MOMENT_FORMS} (default: the next full minute)")


class _Find(PrintingCommand):
    """A search for leases that would fit. It prints the command that books what it has found."""

    notes = types_help()
    formatters_last = True
    _commands: Sequence[str] = ()

    def booking(
        self, parsed_args: argparse.Namespace, start: datetime, end: datetime | None, length: timedelta | None
    ) -> str:
        """Return the command that books a lease from start to end.

        For people, a lease that could start soon is booked from the moment on at which the command is typed.
        """
        words = [*first_words(self, "lease", "create"), parsed_args.name, *words_of_reservations(parsed_args)]
        is_soon = start <= self.surroundings.now() + _SOON
        if not (is_soon and self.prints_commands_apart(parsed_args)):
            words += ["--start", rfc3339(start)]
        elif length is not None:
            return shlex.join([*words, "--for", format_duration(length)])
        return shlex.join(words if end is None else [*words, "--end", rfc3339(end)])

    def warn_unless(self, is_complete: bool) -> None:
        if not is_complete:
            self.log.warning("The server had no time to try everything; there may be something better.")

    def prints_commands_apart(self, parsed_args: argparse.Namespace) -> bool:
        """Whether the commands follow the output, as lines that can be copied."""
        return bool(parsed_args.formatter == "table" and not parsed_args.columns)

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        """Print what was found, and the commands below a table."""
        code: int = super().produce_output(parsed_args, column_names, data)
        lines = [printable(command) for command in self._commands]
        if lines:
            self.output.write("\n".join(["", "To book:", *lines, ""]))
        return code


class FindPeriods(_Find, ReservationLister):
    """Find the first periods in which a lease fits.

    The options that say what is reserved are those of 'lease create'. Nothing is booked: an offer holds until
    another request takes the resources. left_over is, for each reservation, how many more would fit besides.
    Below the table are the commands that book the periods; other output formats have them in a column.
    """

    examples = (
        ("--hosts 4 --with gpu=a100 --for 3d --within 2w", "the next three days for four hosts"),
        (
            "--instances 8 --vcpus 4 --ram 8g --for 8h --on mon,wed --between 08:00-10:00 --limit 5",
            "eight hours from the morning of a Monday or a Wednesday",
        ),
        ("--hosts 1 --for 2h --earliest 'friday 14:00' -f value -c command", "a command for a script"),
    )

    arguments = (
        length_option(f"Length of the lease: {DURATION_FORMS} (default: 24h)", DEFAULT_LENGTH),
        *WINDOW_OPTIONS,
        Option("--limit", "COUNT", parse_amount, help="At most this many periods (default: 3)"),
        *_OPTIONS,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        reservations = read_some_reservations(parsed_args)
        window = read_window(self, parsed_args, parsed_args.length)
        found = self.client().offers.first(reservations, window, limit=parsed_args.limit)
        self.warn_unless(found.is_complete)
        if not found.offers:
            why = f" {found.reason}" if found.reason else ""
            self.log.warning(f"No period was found in which the lease would fit.{why}")
        rows = [
            {
                **row_of(offer, self.zone),
                _COMMAND: self.booking(parsed_args, offer.start_date, offer.end_date, parsed_args.length),
            }
            for offer in found.offers
        ]
        shown: tuple[str, ...] = ("start_date", "end_date", "left_over")
        if self.prints_commands_apart(parsed_args):
            self._commands = [str(row[_COMMAND]) for row in rows]
        else:
            shown = (*shown, _COMMAND)
        return table(rows, shown, parsed_args.columns)


class _FindOne(_Find, ReservationShowOne):
    """A search with a single answer."""

    def fields_of(self, parsed_args: argparse.Namespace, row: Row) -> Shown:
        """Return the fields to print; the command apart from them if it follows a table."""
        command = row[_COMMAND]
        hidden = {"is_complete", "reason"}
        if self.prints_commands_apart(parsed_args):
            hidden.add(_COMMAND)
            self._commands = [] if command is None else [str(command)]
        return fields({name: value for name, value in row.items() if name not in hidden})


class FindLongest(_FindOne):
    """Find the longest lease from a start.

    The options that say what is reserved are those of 'lease create'. Nothing is booked. If nothing limits
    the length, there is no end. If the lease does not fit at all, the answer says why, as that of 'lease
    create'.
    """

    examples = (
        ("--hosts 4 --with gpu=a100", "how long four hosts are free from now on"),
        ("--hosts 4 --from 'monday 09:00'", "from another start"),
    )

    arguments = (_FROM, *_OPTIONS)

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        reservations = read_some_reservations(parsed_args)
        start = self.date(parsed_args.start, "--from")
        found = self.client().offers.longest(reservations, start=start)
        self.warn_unless(found.is_complete)
        end = found.end_date
        row = {
            **row_of(found, self.zone),
            "length": None if end is None else format_duration(end - found.start_date),
            _COMMAND: None if end is None else self.booking(parsed_args, found.start_date, end, None),
        }
        return self.fields_of(parsed_args, row)


class FindMost(_FindOne):
    """Find the largest amount of a reservation that fits in a period.

    The options that say what is reserved are those of 'lease create', for one reservation; its own count has
    no effect. Nothing is booked. availability_zones is the amount that fits in each zone alone.
    """

    examples = (
        ("--hosts 1 --with gpu=a100 --for 3d", "how many hosts are free for the next three days"),
        (
            "--instances 1 --vcpus 4 --ram 8g --from 'monday 09:00' --to 'friday 18:00'",
            "how many instances of a size, in a certain period",
        ),
    )

    arguments = (
        _FROM,
        OneOf(
            end_option("End of the lease, written like its start"),
            length_option(f"Length of the lease instead: {DURATION_FORMS}"),
            required=True,
        ),
        *_OPTIONS,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        reservations = read_some_reservations(parsed_args)
        if len(reservations) != 1:
            raise exceptions.CommandError(f"Say one thing to reserve; here are {len(reservations)}.")
        start = self.date(parsed_args.start, "--from")
        if parsed_args.end is not None:
            end = self.instant(parsed_args.end, "--to", after=start)
        else:
            end = later(self.present(start), parsed_args.length, "--for")
        found = self.client().offers.largest(reservations[0], start=start, end=end)
        self.warn_unless(found.is_complete)
        if not found.amount and found.reason:
            self.log.warning(f"No amount fits. {found.reason}")
        command = None
        if found.amount:
            with suppress(Inexpressible):
                options = with_amount(parsed_args, found.amount, 0)
                command = self.booking(options, found.start_date, found.end_date, None)
        return self.fields_of(parsed_args, {**row_of(found, self.zone), _COMMAND: command})
