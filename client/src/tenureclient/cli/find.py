"""find, find longest, find most"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from osc_lib import exceptions

from tenureclient.cli.command import ReservationCommand, ReservationLister, ReservationShowOne, reading
from tenureclient.cli.lease_create import DEFAULT_LENGTH
from tenureclient.cli.printable import printable
from tenureclient.cli.render import DataColumn, MomentColumn, Row, Shown, Table, fields, pairs_column, table
from tenureclient.cli.reservation_options import add_reservation_options, read_some_reservations
from tenureclient.cli.reservation_words import Inexpressible, first_words, with_amount, words_of_reservations
from tenureclient.cli.window_options import add_window_options, later, read_window
from tenureclient.moments import DURATION_FORMS, MOMENT_FORMS, Moment, format_duration, parse_length
from tenureclient.offers import Offer
from tenureclient.reservation_type import parse_amount
from tenureclient.wire import rfc3339

#: A start this soon may be in the past when a command that names it is typed.
_SOON = timedelta(minutes=2)
_COMMAND = "command"


class _Find(ReservationCommand):
    """A search for leases that would fit. It prints the command that books what it has found."""

    _commands: Sequence[str] = ()

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments_to(parser)
        self.add_dates(parser)
        parser.add_argument("--name", metavar="LEASE", default="NAME", help="Name for the lease in the printed command")
        add_reservation_options(parser)

    def add_dates(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that say when."""
        raise NotImplementedError

    def date(self, text: str | None, option: str, *, after: Moment | None = None) -> Moment | None:
        """Read a date of the command line; None if it is not given."""
        if text is None:
            return None
        begin = after if isinstance(after, datetime) else None
        return self.moment(text, option, zone=self.zone, after=begin)

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

    def write_commands(self, commands: Iterable[str]) -> None:
        """Write the commands below a table."""
        lines = [printable(command) for command in commands]
        if lines:
            self.output.write("\n".join(["", "To book:", *lines, ""]))


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

    def add_dates(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--for",
            dest="length",
            metavar="DURATION",
            type=reading(parse_length),
            default=DEFAULT_LENGTH,
            help=f"Length of the lease: {DURATION_FORMS} (default: 24h)",
        )
        add_window_options(parser)
        parser.add_argument(
            "--limit", metavar="COUNT", type=reading(parse_amount), help="At most this many periods (default: 3)"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        reservations = read_some_reservations(parsed_args)
        window = read_window(self, parsed_args, parsed_args.length)
        found = self.client().offers.first(reservations, window, limit=parsed_args.limit)
        self.warn_unless(found.is_complete)
        if not found.offers:
            why = f" {found.reason}" if found.reason else ""
            self.log.warning(f"No period was found in which the lease would fit.{why}")
        zone = self.zone

        def row(offer: Offer) -> Row:
            return {
                "start_date": MomentColumn(offer.start_date, zone),
                "end_date": MomentColumn(offer.end_date, zone),
                "left_over": DataColumn(list(offer.left_over), [", ".join(map(str, offer.left_over))]),
                _COMMAND: self.booking(parsed_args, offer.start_date, offer.end_date, parsed_args.length),
            }

        shown: tuple[str, ...] = ("start_date", "end_date", "left_over")
        if self.prints_commands_apart(parsed_args):
            self._commands = [str(row(offer)[_COMMAND]) for offer in found.offers]
        else:
            shown = (*shown, _COMMAND)
        return table(map(row, found.offers), shown, parsed_args.columns)

    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[object]]
    ) -> int:
        code = super().produce_output(parsed_args, column_names, data)
        self.write_commands(self._commands)
        return code


class _FindOne(_Find, ReservationShowOne):
    """A search with a single answer."""

    def fields_of(self, parsed_args: argparse.Namespace, row: Row) -> Shown:
        """Return the fields to print; the command apart from them if it follows a table."""
        command = row[_COMMAND]
        if not self.prints_commands_apart(parsed_args):
            return fields(row)
        self._commands = [] if command is None else [str(command)]
        return fields({name: value for name, value in row.items() if name != _COMMAND})

    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Sequence[object]
    ) -> int:
        code = super().produce_output(parsed_args, column_names, data)
        self.write_commands(self._commands)
        return code


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

    def add_dates(self, parser: argparse.ArgumentParser) -> None:
        _add_from(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        reservations = read_some_reservations(parsed_args)
        start = self.date(parsed_args.start, "--from")
        found = self.client().offers.longest(reservations, start=start)
        self.warn_unless(found.is_complete)
        zone, end = self.zone, found.end_date
        row: dict[str, object] = {
            "start_date": MomentColumn(found.start_date, zone),
            "end_date": None if end is None else MomentColumn(end, zone),
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

    def add_dates(self, parser: argparse.ArgumentParser) -> None:
        _add_from(parser)
        end = parser.add_mutually_exclusive_group(required=True)
        end.add_argument("--to", dest="end", metavar="DATE", help="End of the lease, written like its start")
        end.add_argument(
            "--for",
            dest="length",
            metavar="DURATION",
            type=reading(parse_length),
            help=f"Length of the lease instead: {DURATION_FORMS}",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        reservations = read_some_reservations(parsed_args)
        if len(reservations) != 1:
            raise exceptions.CommandError(f"Say one thing to reserve; here are {len(reservations)}.")
        start = self.date(parsed_args.start, "--from")
        end = self._end(parsed_args, start if isinstance(start, datetime) else None)
        found = self.client().offers.largest(reservations[0], start=start, end=end)
        self.warn_unless(found.is_complete)
        if not found.amount and found.reason:
            self.log.warning(f"No amount fits. {found.reason}")
        zone = self.zone
        row: dict[str, object] = {
            "start_date": MomentColumn(found.start_date, zone),
            "end_date": MomentColumn(found.end_date, zone),
            "amount": found.amount,
            "availability_zones": pairs_column(found.availability_zones),
            _COMMAND: None,
        }
        if found.amount:
            with suppress(Inexpressible):
                options = with_amount(parsed_args, found.amount)
                row[_COMMAND] = self.booking(options, found.start_date, found.end_date, None)
        return self.fields_of(parsed_args, row)

    def _end(self, parsed_args: argparse.Namespace, start: datetime | None) -> datetime:
        if parsed_args.end is not None:
            return self.instant(parsed_args.end, "--to", after=start)
        return later(start or self.surroundings.now(), parsed_args.length, "--for")


def _add_from(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="start",
        metavar="DATE",
        help=f"Start of the lease: {MOMENT_FORMS} (default: the next full minute)",
    )
