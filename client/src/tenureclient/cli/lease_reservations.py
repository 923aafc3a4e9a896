"""lease reservation list, add, drop"""

from __future__ import annotations

import argparse

from osc_lib import exceptions

from tenureclient.cli.alternatives import AddAlternatives
from tenureclient.cli.command import ReservationLister, ReservationShowOne
from tenureclient.cli.lease_options import (
    DRY_RUN,
    LEASE,
    NO_FIELDS,
    OfLease,
    OfLeaseAsRead,
    refuse_wait,
    wait_for,
    wait_options,
)
from tenureclient.cli.render import Shown, Table
from tenureclient.cli.reservation_options import NEEDED, RESERVATION_OPTIONS, read_reservations, types_help
from tenureclient.client import Client
from tenureclient.errors import NotEnoughResources
from tenureclient.leases import ACTIVE, SETTLED
from tenureclient.models import DryRun, Lease
from tenureclient.options import Option


class ListReservations(OfLease, ReservationLister):
    """List the reservations of a lease, with what is needed to use them.

    flavor_id is the flavor with which to boot the instances of a reservation, once the lease has started.
    server_group_id is their server group, if the reservation has an affinity rule. Servers on reserved hosts
    are booted with the reservation's id as a hint:

      openstack server create --flavor FLAVOR_ID --hint group=SERVER_GROUP_ID ...
      openstack server create --hint reservation=RESERVATION_ID ...
    """

    examples = (
        ("bio-42", "what it has"),
        ("bio-42 -f value -c flavor_id", "for 'openstack server create --flavor'"),
        ("bio-42 -f json -c id -c parameters", "with all parameters of each"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        lease = self.client().leases.find(parsed_args.lease)
        shown = ("id", "resource_type", "status", "flavor_id", "server_group_id")
        return self.table(lease.reservations, shown, parsed_args)


class AddReservation(OfLeaseAsRead, ReservationShowOne):
    """Book one more reservation in a lease, for the rest of its time.

    The other reservations stay as they are. If resources are not free, the answer says why, and nothing
    changes. In a running lease, the reservation is ready when the lease is ACTIVE again.
    """

    examples = (
        ("bio-42 --hosts 1", "one more host"),
        (
            "bio-42 --floating-ips 2 --network 5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001 --wait -f value -c id",
            "two addresses, waiting until they are there; prints the reservation's id",
        ),
    )

    notes = types_help()
    formatters_last = True
    arguments = (
        LEASE,
        *RESERVATION_OPTIONS,
        DRY_RUN,
        *wait_options("until the lease has a lasting status again"),
    )

    def check(self, parsed_args: argparse.Namespace) -> None:
        refuse_wait(parsed_args)
        requests = read_reservations(parsed_args)
        if len(requests) != 1:
            raise exceptions.CommandError(f"Say one thing to add, with {NEEDED}; here are {len(requests)}.")

    def change(self, client: Client, lease: Lease, parsed_args: argparse.Namespace) -> Shown:
        """Add to the lease as it was read, so that it is known which reservation is new."""
        [request] = read_reservations(parsed_args)
        try:
            changed = client.leases.add_reservation(lease.id, request, if_match=lease.etag, dry_run=parsed_args.dry_run)
        except NotEnoughResources as error:
            raise AddAlternatives(self, parsed_args, [request.resource_type], None).refusal(error) from error
        if isinstance(changed, DryRun):
            return self.shown(changed)
        before = {reservation.id for reservation in lease.reservations}
        added = next(reservation.id for reservation in changed.reservations if reservation.id not in before)
        if parsed_args.wait:
            changed = wait_for(client, lease.id, parsed_args, SETTLED if lease.status == "PENDING" else ACTIVE)
        return self.shown(next(reservation for reservation in changed.reservations if reservation.id == added))


class DropReservation(OfLease, ReservationShowOne):
    """Give one reservation of a lease back; the others stay."""

    examples = (("bio-42 708732fc-f222-4437-acc2-3b9d36539b4c", "as shown by 'lease reservation list'"),)

    arguments = (DRY_RUN, LEASE, Option(field="reservation", metavar="RESERVATION", help="Id of the reservation"))

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        client = self.client()
        lease = client.leases.find(parsed_args.lease)
        if parsed_args.reservation not in {reservation.id for reservation in lease.reservations}:
            ids = ", ".join(reservation.id for reservation in lease.reservations) or "none"
            raise exceptions.CommandError(
                f"Lease {lease.name} has no reservation '{parsed_args.reservation}'; it has: {ids}"
            )
        dropped = client.leases.drop_reservation(lease.id, parsed_args.reservation, dry_run=parsed_args.dry_run)
        if isinstance(dropped, DryRun):
            return self.shown(dropped)
        self.output.write(f"Dropped reservation: {parsed_args.reservation}\n")
        return NO_FIELDS
