"""Options that several lease commands have."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from osc_lib import exceptions

from tenureclient.cli.command import ReservationCommand
from tenureclient.cli.progress import ProgressDisplay
from tenureclient.cli.render import DataColumn, Row, Shown, plain, row_of
from tenureclient.client import Client
from tenureclient.errors import PreconditionFailed, WaitTimedOut
from tenureclient.leases import ACTIVE
from tenureclient.models import DryRun, Lease
from tenureclient.moments import Moment, parse_duration
from tenureclient.options import Argument, Option
from tenureclient.reservation_request import OwnEvent
from tenureclient.wire import Version

#: How often a command tries a change that others anticipate.
_ATTEMPTS = 10

BLAZAR_DATE = "a date without a zone is UTC, as in python-blazarclient"

#: What ``take_action`` returns if there is nothing to print in the output format: only a dry run has fields.
NO_FIELDS: Shown = ((), ())

LEASE = Option(field="lease", metavar="LEASE", help="Name or id of the lease")
DRY_RUN = Option(
    "--dry-run",
    flag=True,
    help="Change nothing; print the lease as it would be, its cost, and the limits of the project",
)
WAIT_TIMEOUT = Option(
    "--wait-timeout",
    "DURATION",
    parse_duration,
    help="How long to wait at most, such as 30m (default: without end)",
)
NOTIFY = Option(
    "--notify",
    ("DATE", "MESSAGE"),
    gather=list,
    count=2,
    help="A moment of the lease, written like the start, at which the service sends this message to all"
    " who listen to its notifications (may be repeated)",
)


def wait_options(awaited: str) -> tuple[Option, Option]:
    """Return the options of a command that may wait for something, which the help names."""
    return Option("--wait", flag=True, help=f"Wait {awaited}; the progress goes to stderr"), WAIT_TIMEOUT


def date_options(name: str, ours: str, theirs: str = "The same, but ") -> tuple[Option, Option]:
    """Return our option for a date, in local time, and python-blazarclient's for the same date, with their help."""
    return Option(f"--{name}", "DATE", help=ours), Option(f"--{name}-date", "DATE", help=f"{theirs}{BLAZAR_DATE}")


class OfLease(ReservationCommand):
    """A command for one lease, named by its first argument."""

    arguments: Iterable[Argument] = (LEASE,)


class OfLeaseAsRead(OfLease):
    """A command that changes a lease as it was read, such as to a later end.

    The change is made with the ``etag`` of the lease: if another client has changed the lease meanwhile, it is computed
    anew.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        """Change the lease, and return what is to be shown. Raises ``CommandError`` after many attempts."""
        self.check(parsed_args)
        client = self.client()
        lease = client.leases.find(parsed_args.lease)
        for _ in range(_ATTEMPTS):
            if lease.etag is None and client.version is not Version.V1_0:  # it is from a list
                lease = client.leases.get(lease.id)
            try:
                return self.change(client, lease, parsed_args)
            except PreconditionFailed:
                lease = client.leases.get(lease.id)
        raise exceptions.CommandError(
            f"Others have changed lease {lease.name} {_ATTEMPTS} times while this change was made; try again."
        )

    def check(self, parsed_args: argparse.Namespace) -> None:
        """Raise ``CommandError`` for unreadable arguments, before the first request."""

    def change(self, client: Client, lease: Lease, parsed_args: argparse.Namespace) -> Shown:
        """Change the lease as it was read. Raises ``PreconditionFailed`` if it has changed since."""
        raise NotImplementedError


class DatedCommand(ReservationCommand):
    """A command with options for the dates of a lease: ours, and those of python-blazarclient."""

    def read_notify(self, parsed_args: argparse.Namespace, *, after: Moment | None = None) -> list[OwnEvent]:
        """Return the events at which a notification is sent, for a lease that starts at ``after``."""
        moments = [
            (self.moment(date, "--notify", zone=self.zone, after=after), message)
            for date, message in parsed_args.notify
        ]
        return [OwnEvent(_instant(moment, "notify"), message) for moment, message in moments]

    def read_date(self, parsed_args: argparse.Namespace, name: str, *, after: Moment | None = None) -> Moment | None:
        """Return the date of our option ``name``, or of python-blazarclient's option for the same date.

        Without a zone, our option is a local date and the other is in UTC. ``after`` is the date that it follows,
        such as the start: a day of the week or a time of day means the next one from then on.
        """
        for dest, zone in ((name, self.zone), (f"{name}_date", UTC)):
            text = getattr(parsed_args, dest)
            if text is not None:
                return self.moment(text, "--" + dest.replace("_", "-"), zone=zone, after=after)
        return None

    def read_instant(
        self, parsed_args: argparse.Namespace, name: str, *, after: Moment | None = None
    ) -> datetime | None:
        """Return a date like ``read_date``, but refuse the word "now"."""
        moment = self.read_date(parsed_args, name, after=after)
        return None if moment is None else _instant(moment, name)

    def date_of(self, moment: Moment) -> datetime:
        """Return a moment as a date; the present one is in whole seconds, as the server's."""
        return moment if isinstance(moment, datetime) else self.present(moment).replace(microsecond=0)


def _instant(moment: Moment, option: str) -> datetime:
    if isinstance(moment, datetime):
        return moment
    raise exceptions.CommandError(f"--{option.replace('_', '-')}: 'now' is not possible here.")


def wait_for(
    client: Client, lease_id: str, parsed_args: argparse.Namespace, statuses: Collection[str] = ACTIVE
) -> Lease:
    """Wait, with a progress display on stderr. Errors of the wait also name the lease, which still exists."""
    timeout: timedelta | None = parsed_args.wait_timeout
    with ProgressDisplay(sys.stderr) as display:
        try:
            return client.leases.wait(lease_id, statuses, timeout=timeout, on_progress=display)
        except WaitTimedOut as error:
            lease = client.leases.get(lease_id)
            raise WaitTimedOut(
                f"{error.message}\n  The lease is there and goes on without being waited for:"
                f" {lease.name}, {lease.id}, {lease.status}"
            ) from error


def refuse_wait(parsed_args: argparse.Namespace) -> None:
    """Raise ``CommandError`` if a dry run is to be waited for."""
    if parsed_args.dry_run and parsed_args.wait:
        raise exceptions.CommandError("--dry-run: it changes nothing; --wait waits for nothing.")


@row_of.register
def _dry_run_row(dry_run: DryRun, zone: tzinfo | None) -> Row:
    """Return the fields that are printed: those of the lease, then cost and limits."""
    return {
        **row_of(dry_run.lease, zone),
        "cost": DataColumn(plain(dry_run.cost), _cost_lines(dry_run)),
        "limits": DataColumn(plain(dry_run.limits), _limit_lines(dry_run)),
        "unasked_filters": DataColumn(list(dry_run.unasked_filters), dry_run.unasked_filters),
    }


def _cost_lines(dry_run: DryRun) -> Iterator[str]:
    for cost in dry_run.cost:
        is_changed = cost.hours_before not in (0, cost.hours)
        before = f" ({cost.hours_before} without the change)" if is_changed else ""
        yield f"{cost.name}: {cost.amount} at a time, {cost.hours} hours{before}"


def _limit_lines(dry_run: DryRun) -> Iterator[str]:
    """Yield the usage that would change, and the limits of the resources that the lease has."""
    names = {cost.name for cost in dry_run.cost}
    for limit in dry_run.limits:
        is_of_lease = limit.name.removeprefix("hours_of_") in names
        if limit.used == limit.would_use and (limit.limit < 0 or not is_of_lease):
            continue
        most = "no limit" if limit.limit < 0 else f"of {limit.limit}"
        yield f"{limit.name}: {limit.used} used, would be {limit.would_use} ({most})"
