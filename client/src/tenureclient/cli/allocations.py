"""allocation list, show"""

from __future__ import annotations

import argparse

from tenureclient.cli.command import ReservationCommand, ReservationLister, ReservationShowOne
from tenureclient.cli.render import Shown, Table
from tenureclient.resources import INVENTORIES


class _AllocationOptions(ReservationCommand):
    """The arguments that both commands have."""

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments_to(parser)
        parser.add_argument("resource_type", choices=list(INVENTORIES), help="Type of the resources")
        parser.add_argument("--reservation-id", metavar="RESERVATION_ID", help="Only of this reservation")
        parser.add_argument("--lease-id", metavar="LEASE_ID", help="Only of this lease")


class ListAllocations(_AllocationOptions, ReservationLister):
    """List what each resource of a type is reserved for."""

    examples = (
        ("host", "all hosts"),
        ("floatingip", "all floating IPs"),
        ("volumepool", "all volume pools"),
        ("host --lease-id e9d72175-b5cc-4e1f-9ca2-e0317e7bc44f", "the hosts of one lease"),
    )

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments_to(parser)
        parser.add_argument(
            "--sort-by",
            metavar="<allocation_column>",
            choices=("resource_id",),
            default="resource_id",
            help="Field to sort by: resource_id",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        allocations = self.client().allocations.list(
            resource_type=parsed_args.resource_type,
            lease_id=parsed_args.lease_id,
            reservation_id=parsed_args.reservation_id,
        )
        ordered = sorted(allocations, key=lambda allocation: allocation.resource_id)
        return self.table(ordered, ("resource_id", "reservations"), parsed_args)


class ShowAllocation(_AllocationOptions, ReservationShowOne):
    """Show what one resource is reserved for."""

    examples = (("host compute-1", "by name"), ("floatingip 203.0.113.20", "by address"))

    def add_arguments_to(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments_to(parser)
        parser.add_argument("resource", metavar="RESOURCE", help="Name, address or id of the resource")

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        client = self.client()
        allocation = client.allocations.get(
            client.inventory(INVENTORIES[parsed_args.resource_type]).find(parsed_args.resource).id,
            resource_type=parsed_args.resource_type,
            lease_id=parsed_args.lease_id,
            reservation_id=parsed_args.reservation_id,
        )
        return self.shown(allocation)
