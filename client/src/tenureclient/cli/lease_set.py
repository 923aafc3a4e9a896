"""lease set"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from datetime import UTC, datetime, timedelta, tzinfo

from osc_lib import exceptions

from tenureclient.cli.alternatives import ChangeAlternatives, Dates
from tenureclient.cli.arguments import length_option
from tenureclient.cli.command import ReservationShowOne
from tenureclient.cli.lease_options import (
    DRY_RUN,
    LEASE,
    NO_FIELDS,
    NOTIFY,
    DatedCommand,
    OfLeaseAsRead,
    date_options,
    refuse_wait,
    wait_for,
    wait_options,
)
from tenureclient.cli.printable import printable
from tenureclient.cli.render import Shown
from tenureclient.client import Client
from tenureclient.errors import NotEnoughResources
from tenureclient.leases import ACTIVE, SETTLED
from tenureclient.models import DryRun, Event, Lease, LeaseChange
from tenureclient.moments import NOW, Moment, format_moment, parse_length
from tenureclient.options import OneOf, Option, options_of
from tenureclient.reservation_request import OwnEvent
from tenureclient.reservation_text import parse_reservation_change
from tenureclient.sent import Arguments

_PROLONGABLE = frozenset({"PENDING", "ACTIVE"})
_ENDED = frozenset({"TERMINATED"})
#: The status of an event before its time.
_TO_COME = "UNDONE"


class SetLease(OfLeaseAsRead, DatedCommand, ReservationShowOne):
    """Change a lease: its name, its dates or its reservations.

    --start moves the whole lease: it keeps its length, unless its end or its length is given as well. The
    other options for dates move one of them only.
    """

    examples = (
        ("bio-42 --prolong-for 12h", "twelve hours longer"),
        ("bio-42 --end now --wait", "end it early"),
        ("bio-42 --start 'monday 09:00' --end 'friday 18:00'", "other dates"),
        ("bio-42 --reservation id=708732fc-f222-4437-acc2-3b9d36539b4c,min=2,max=4", "more hosts"),
        ("web --reservation id=708732fc-f222-4437-acc2-3b9d36539b4c,amount=6", "more instances"),
        ("bio-42 --prolong-for 12h --dry-run", "whether it can be longer, and what that takes"),
        ("bio-42 --notify 'friday 12:00' 'save your results'", "a notification on Friday"),
    )

    arguments = (
        DRY_RUN,
        LEASE,
        *options_of(LeaseChange).values(),
        OneOf(
            Option("--prolong-for --prolong_for", "DURATION", parse_length, help="Move the end back"),
            Option("--reduce-by", "DURATION", parse_length, help="Move the end forward"),
            length_option("New length, from the start of the lease"),
            *date_options("end", "New end, in local time; 'now' ends the lease"),
        ),
        OneOf(
            Option("--defer-by", "DURATION", parse_length, help="Start later"),
            Option("--advance-by", "DURATION", parse_length, help="Start earlier"),
            *date_options(
                "start",
                "New start, in local time; the lease keeps its length",
                "New start; the end stays; ",
            ),
        ),
        OneOf(*date_options("before-end", "New time of the warning before the end")),
        Option(
            "--reservation",
            "KEY=VALUE[,KEY=VALUE...]",
            parse_reservation_change,
            gather=list,
            help="A change of a reservation: id=... and what changes (may be repeated)",
        ),
        NOTIFY,
        Option(
            "--drop-notify",
            "EVENT_ID",
            gather=list,
            help="Remove an event made by --notify; its id is shown by 'lease show -f json' (may be repeated)",
        ),
        *wait_options("until the lease has a lasting status again"),
    )

    def check(self, parsed_args: argparse.Namespace) -> None:
        refuse_wait(parsed_args)
        for name in ("start", "end"):
            self.read_date(parsed_args, name)

    def change(self, client: Client, lease: Lease, parsed_args: argparse.Namespace) -> Shown:
        start = self.read_date(parsed_args, "start")
        start = start or _moved(lease.start_date, parsed_args.defer_by, parsed_args.advance_by)
        begin = start or lease.start_date
        end = self.read_date(parsed_args, "end", after=begin)
        before_end = self.read_instant(parsed_args, "before_end", after=begin)
        end = end or _moved(lease.end_date, parsed_args.prolong_for, parsed_args.reduce_by)
        if end is None:
            end = self._end_by_length(lease, parsed_args, begin)
        events = self._events(lease, parsed_args, begin, end or lease.end_date)
        fields = self.fields_given(LeaseChange, parsed_args)
        fields |= {
            "start": start,
            "end": end,
            "before_end": before_end,
            "reservations": parsed_args.reservation,
            "events": events,
        }
        if not Arguments(LeaseChange, fields).given:
            raise exceptions.CommandError("Nothing to change: give a name, a date or a reservation.")
        try:
            changed = client.leases.update(lease.id, if_match=lease.etag, dry_run=parsed_args.dry_run, **fields)
        except NotEnoughResources as error:
            notified = tuple(self.read_notify(parsed_args, after=begin))
            dates = Dates(self.date_of(begin), self.date_of(end or lease.end_date), before_end, notified)
            raise ChangeAlternatives(self, self.get_parser(""), parsed_args, lease, dates).refusal(error) from error
        if isinstance(changed, DryRun):
            return self.shown(changed)
        if parsed_args.wait:
            wait_for(client, lease.id, parsed_args, _awaited_statuses(lease, start, end))
        self.output.write(f"Updated lease: {printable(parsed_args.lease)}\n")
        if start is not None or end is not None:
            zone = self.zone
            begins, ends = (format_moment(date, zone) for date in (changed.start_date, changed.end_date))
            self.output.write(f"  now from {begins} to {ends}\n")
        return NO_FIELDS

    def _end_by_length(self, lease: Lease, parsed_args: argparse.Namespace, begin: Moment) -> datetime | None:
        """Return the end if the length is given, or kept by a moved start; None if the end stays."""
        length: timedelta | None = parsed_args.length
        if length is None and parsed_args.start is not None:
            length = lease.end_date - lease.start_date
        if length is None:
            return None
        try:
            return self.date_of(begin) + length
        except OverflowError:
            raise exceptions.CommandError("The new end is too far away.") from None

    def _events(
        self, lease: Lease, parsed_args: argparse.Namespace, begin: Moment, end: Moment
    ) -> list[OwnEvent] | None:
        """Return all events that send a notification, as they shall be; None if they do not change.

        ``begin`` and ``end`` are the dates of the lease after the change.
        """
        if not (parsed_args.notify or parsed_args.drop_notify):
            return None
        there = {
            event.id: OwnEvent(_time_within(event, event.time, begin, end), event.message, event.id)
            for event in lease.events
            if event.message is not None and event.time is not None
        }
        for event_id in parsed_args.drop_notify:
            if there.pop(event_id, None) is None:
                ids = ", ".join(there) or "none"
                raise exceptions.CommandError(
                    f"--drop-notify: lease {lease.name} has no such event '{event_id}'; it has: {ids}"
                )
        return [*there.values(), *self.read_notify(parsed_args, after=begin)]


class ProlongLease(OfLeaseAsRead, ReservationShowOne):
    """Move the end of a lease back."""

    examples = (
        ("bio-42 --by 12h", "twelve hours longer"),
        ("'server web-1' --by 30d", "a server for another month"),
        ("bio-42 --max", "until the next reservation of its resources"),
    )

    arguments = (
        DRY_RUN,
        LEASE,
        OneOf(
            Option("--by", "DURATION", parse_length, help="For how much longer, such as 12h or 30d"),
            Option(
                "--max",
                flag=True,
                help="For as long as the lease can keep its resources while nothing else changes",
            ),
            required=True,
        ),
    )

    def change(self, client: Client, lease: Lease, parsed_args: argparse.Namespace) -> Shown:
        zone = self.zone
        if parsed_args.max:
            end: datetime | None = _latest_end(client.leases.look_ahead(lease.id), zone)
        else:
            end = _moved(lease.end_date, parsed_args.by, None)
        try:
            changed = client.leases.update(lease.id, end=end, if_match=lease.etag, dry_run=parsed_args.dry_run)
        except NotEnoughResources as error:
            parser = SetLease(self.app, self.app_args, self.cmd_name).get_parser("")
            defaults = {action.dest: action.default for action in parser._actions}
            options = argparse.Namespace(**{**defaults, **vars(parsed_args)})
            dates = Dates(lease.start_date, end or lease.end_date, None, ())
            raise ChangeAlternatives(self, parser, options, lease, dates).refusal(error) from error
        if isinstance(changed, DryRun):
            return self.shown(changed)
        until = f", until {format_moment(changed.end_date, zone)}" if parsed_args.max else ""
        self.output.write(f"Prolonged lease: {parsed_args.lease}{until}\n")
        return NO_FIELDS


def _latest_end(lease: Lease, zone: tzinfo | None) -> datetime:
    """Return until when a lease can be prolonged; raise ``CommandError`` if it cannot, or without a limit."""
    if lease.may_end_at is None and lease.status not in _PROLONGABLE:
        raise exceptions.CommandError(
            f"--max: lease {lease.name} is {lease.status}; only a lease that is PENDING or ACTIVE can be prolonged."
        )
    if lease.may_end_at is None:
        raise exceptions.CommandError(
            f"--max: nothing limits the end of lease {lease.name}. Say how much longer it shall last with"
            " --by, such as --by 12h, or give its end with 'lease set --end DATE'."
        )
    if lease.may_end_at <= lease.end_date:
        raise exceptions.CommandError(
            f"--max: lease {lease.name} cannot keep its resources beyond its end,"
            f" {format_moment(lease.end_date, zone)}. More may be possible if the plans of other leases move:"
            " try --by with --dry-run."
        )
    return lease.may_end_at


def _moved(date: datetime, later: timedelta | None, earlier: timedelta | None) -> datetime | None:
    by = later or (-earlier if earlier else None)
    try:
        return None if by is None else (date + by).astimezone(UTC)
    except OverflowError:
        raise exceptions.CommandError("The new date is too far away.") from None


def _time_within(event: Event, time: datetime, begin: Moment, end: Moment) -> datetime:
    """Return the time of an event after a change of dates: an event to come stays within the lease.

    The server moves events in this way itself, unless a change lists them.
    """
    if event.status != _TO_COME:
        return time
    time = max(time, begin) if isinstance(begin, datetime) else time
    return min(time, end) if isinstance(end, datetime) else time


def _awaited_statuses(lease: Lease, start: Moment | None, end: Moment | None) -> Collection[str]:
    """Return the statuses to wait for: the result of a start or an end now, else any lasting status."""
    if end == NOW:
        return _ENDED
    if start == NOW and lease.status == "PENDING":
        return ACTIVE
    return SETTLED
