"""lease create"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime, timedelta

from osc_lib import exceptions

from tenureclient.cli.command import ReservationShowOne, reading
from tenureclient.cli.lease_options import BLAZAR_DATE, add_wait_options, read_date, read_instant, wait_for
from tenureclient.cli.render import fields, lease_row
from tenureclient.conditions import CONDITION_FORMS, conditions_to_json
from tenureclient.moments import DURATION_FORMS, MOMENT_FORMS, NOW, Moment, parse_duration
from tenureclient.reservation_request import ReservationRequest
from tenureclient.reservation_text import parse_count, parse_reservation

_DEFAULT_LENGTH = timedelta(hours=24)


class CreateLease(ReservationShowOne):
    """Reserve resources for a stretch of time.

    Books everything that the options name, or nothing. When it is not free, the answer says how many
    resources there are, how many match, and how many of those are free.
    """

    examples = (
        ("bio-42 --hosts 2 --for 3d", "two hosts, from now, for three days"),
        (
            "bio-42 --hosts 2-4 --with 'vcpus>=8' --with gpu=v100 --start 'friday 14:00' --for 8h --wait",
            "two to four hosts with properties, waiting for the start",
        ),
        (
            "bio-42 --start-date '2027-03-01 09:30' --end-date '2027-03-02 09:30' --reservation"
            ' \'resource_type=physical:host,min=1,max=1,resource_properties=[">=", "$vcpus", "8"]\'',
            "as with python-blazarclient",
        ),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="LEASE", help="Name for the lease")
        _add_dates(parser)
        _add_reservations(parser)
        add_wait_options(parser, "until the lease is ACTIVE")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[object]]:
        reservations = _reservations(parsed_args)
        start = read_date(self, parsed_args, "start", "start_date") or NOW
        end = self._end(parsed_args, start)
        before_end = read_instant(self, parsed_args, "before_end", "before_end_date")
        if parsed_args.event:
            self.log.warning("--event has no effect: a lease has the events that its dates make.")
        client = self.client()
        lease = client.leases.create(
            parsed_args.name, start=start, end=end, before_end=before_end, reservations=reservations
        )
        if parsed_args.wait:
            lease = wait_for(client, lease.id, parsed_args)
        return fields(lease_row(lease, self.surroundings.zone))

    def _end(self, parsed_args: argparse.Namespace, start: Moment) -> datetime:
        end = read_instant(self, parsed_args, "end", "end_date")
        if end is not None:
            return end
        length: timedelta = parsed_args.length or _DEFAULT_LENGTH
        now = self.surroundings.now().replace(microsecond=0)
        try:
            return (start if isinstance(start, datetime) else now) + length
        except OverflowError:
            raise exceptions.CommandError("--for: the end is too far away.") from None


def _add_dates(parser: argparse.ArgumentParser) -> None:
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--start", metavar="DATE", help=f"Start, in local time: {MOMENT_FORMS} (default: now)")
    start.add_argument("--start-date", metavar="DATE", help=f"The same, but {BLAZAR_DATE}")
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "--for",
        dest="length",
        metavar="DURATION",
        type=reading(parse_duration),
        help=f"Length: {DURATION_FORMS} (default: 24h)",
    )
    end.add_argument("--end", metavar="DATE", help="End, written like the start; +2h counts from now")
    end.add_argument("--end-date", metavar="DATE", help=f"The same, but {BLAZAR_DATE}")
    before_end = parser.add_mutually_exclusive_group()
    before_end.add_argument(
        "--before-end",
        metavar="DATE",
        help="When to warn of the end, or make a snapshot (default: as the cloud decides)",
    )
    before_end.add_argument("--before-end-date", metavar="DATE", help=f"The same, but {BLAZAR_DATE}")


def _add_reservations(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hosts",
        metavar="COUNT",
        type=reading(parse_count),
        help="Reserve whole hosts: 2, or 2-4 for at least 2 and up to 4",
    )
    parser.add_argument(
        "--with",
        dest="conditions",
        metavar="CONDITION",
        action="append",
        default=[],
        help=f"What each of the hosts must have: {CONDITION_FORMS} (may be repeated; all must hold)",
    )
    parser.add_argument(
        "--reservation",
        metavar="KEY=VALUE[,KEY=VALUE...]",
        type=reading(parse_reservation),
        action="append",
        default=[],
        help="A reservation of any resource type, such as resource_type=physical:host,min=1,max=2; commas in"
        " brackets or quotes belong to the value (may be repeated)",
    )
    parser.add_argument(
        "--event",
        metavar="KEY=VALUE[,KEY=VALUE...]",
        action="append",
        default=[],
        help="Taken from old scripts, without effect",
    )


def _reservations(parsed_args: argparse.Namespace) -> list[ReservationRequest]:
    reservations: list[ReservationRequest] = list(parsed_args.reservation)
    conditions_to_json(parsed_args.conditions)
    if parsed_args.hosts is not None:
        least, most = parsed_args.hosts
        reservations.insert(0, ReservationRequest.hosts(least, most, conditions=parsed_args.conditions))
    elif parsed_args.conditions:
        raise exceptions.CommandError("--with: say how many hosts with --hosts.")
    if not reservations:
        raise exceptions.CommandError("Say what to reserve, with --hosts or --reservation.")
    return reservations
