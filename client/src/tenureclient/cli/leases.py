"""lease list, show, delete, history, confirm, wait"""

from __future__ import annotations

import argparse
import sys
from itertools import islice

from tenureclient.cli.arguments import sort_option
from tenureclient.cli.command import ErrorCollector, ReservationCommand, ReservationLister, ReservationShowOne
from tenureclient.cli.lease_options import LEASE, WAIT_TIMEOUT, OfLease, wait_for, wait_options
from tenureclient.cli.printable import printable
from tenureclient.cli.progress import ProgressDisplay
from tenureclient.cli.render import Shown, Table, row_of, table
from tenureclient.models import SORT_KEYS, Lease, LeaseFilter
from tenureclient.options import Option, options_of

#: The statuses that one can wait for.
_STATUSES = (
    "WAITING",
    "CREATING",
    "PENDING",
    "STARTING",
    "ACTIVE",
    "UPDATING",
    "TERMINATING",
    "TERMINATED",
    "DELETING",
    "ERROR",
)
_LISTED = ("id", "name", "start_date", "end_date", "status")


def _status(text: str) -> str:
    """Return the status in capital letters. Raises ``ValueError`` for anything else."""
    status = text.upper()
    if status not in _STATUSES:
        raise ValueError(f"'{text}' is no status of a lease; there are {', '.join(_STATUSES)}.")
    return status


class ListLeases(ReservationLister):
    """List the leases of the project; for an administrator those of all projects.

    With -c any field of a lease can be asked for.
    """

    examples = (
        ("--status ACTIVE", "what is running"),
        ("--ends-after now --sort-by start_date -f json", "what has not ended, as JSON"),
        ("-c name -c status_reason --status ERROR", "what failed, and why"),
    )

    arguments = (
        sort_option("lease", ("id", *SORT_KEYS), "name", "id, name, start_date, end_date, created_at (default: name)"),
        *options_of(LeaseFilter).values(),
        Option("--limit", "COUNT", int, help="Not more than this many"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        by_id = parsed_args.sort_by == "id"
        filters = self.fields_given(LeaseFilter, parsed_args)
        matching = self.client().leases.list(sort_key="created_at" if by_id else parsed_args.sort_by, **filters)
        if by_id:
            matching = iter(sorted(matching, key=lambda lease: lease.id))
        every = dict.fromkeys(name for name in Lease.readers if name != "etag")  # also those that have their default
        rows = ({**every, **row_of(lease, self.zone)} for lease in islice(matching, parsed_args.limit))
        return table(rows, _LISTED, parsed_args.columns)


class ShowLease(OfLease, ReservationShowOne):
    """Show a lease with its reservations and events.

    may_end_at is until when it can be prolonged while nothing else changes. It is left out if nothing limits
    it, if the lease is neither PENDING nor ACTIVE, and if the server does not know API 1.3. waiting is what a
    lease on the waiting list waits for.
    """

    examples = (("bio-42", "by name"), ("bio-42 -f json -c status -c end_date", "some fields as JSON"))

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        leases = self.client().leases
        lease = leases.find(parsed_args.lease)
        return self.shown(lease if lease.id == parsed_args.lease else leases.get(lease.id))


class DeleteLease(ReservationCommand):
    """End leases and take them off the list. What runs on their resources is removed.

    Deletes as many of them as possible. The command names the others and ends with an error.
    """

    examples = (("bio-42", "one lease"), ("bio-42 bio-43 --wait", "several, waiting until they are gone"))

    arguments = (
        Option(field="leases", metavar="LEASE", count="+", help="Name or id of a lease"),
        *wait_options("until the leases are gone"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        client = self.client()
        collector = ErrorCollector()

        def delete(name: str) -> str:
            lease_id = client.leases.find(name).id
            client.leases.delete(lease_id)
            return lease_id

        ids = collector.run_for(dict.fromkeys(parsed_args.leases), delete)

        def see_gone(name: str) -> None:
            if parsed_args.wait:
                with ProgressDisplay(sys.stderr, name) as display:
                    client.leases.wait_deleted(ids[name], timeout=parsed_args.wait_timeout, on_progress=display)
            self.output.write(f"Deleted lease: {printable(name)}\n")

        collector.run_for(ids, see_gone)
        collector.raise_collected(len(parsed_args.leases), "leases were not deleted")


class ListLeaseHistory(OfLease, ReservationLister):
    """List what happened to a lease: who did what, when and why."""

    examples = (("bio-42", "the whole history, oldest first"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        client = self.client()
        history = client.leases.history(client.leases.find(parsed_args.lease).id)
        shown = ("at", "actor", "action", "from_status", "to_status", "reason")
        return self.table(history, shown, parsed_args)


class ConfirmLease(OfLease, ReservationShowOne):
    """Keep a lease that was made with --hold. Afterwards it is a lease like any other."""

    examples = (("708732fc-f222-4437-acc2-3b9d36539b4c", "by the id that 'lease create --hold' has shown"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        client = self.client()
        lease = client.leases.confirm(client.leases.find(parsed_args.lease).id)
        return self.shown(lease)


class WaitLease(OfLease, ReservationShowOne):
    """Wait until a lease has a status, and show the lease.

    Ends with an error if the lease can no longer reach the status.
    """

    examples = (("bio-42 --until ACTIVE --wait-timeout 2h", "until it has started"),)

    arguments = (
        LEASE,
        Option(
            "--until",
            "STATUS",
            _status,
            gather=list,
            help="The status to wait for (default: ACTIVE; may be repeated, any of them ends the wait)",
        ),
        WAIT_TIMEOUT,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        client = self.client()
        statuses = set(parsed_args.until or ["ACTIVE"])
        lease = wait_for(client, client.leases.find(parsed_args.lease).id, parsed_args, statuses)
        return self.shown(lease)
