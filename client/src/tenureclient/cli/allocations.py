"""allocation list, show"""

from __future__ import annotations

import argparse

from tenureclient.cli.arguments import sort_option
from tenureclient.cli.command import ReservationLister, ReservationShowOne
from tenureclient.cli.render import Shown, Table
from tenureclient.options import Option
from tenureclient.resources import INVENTORIES

#: The arguments that both commands have.
_SELECTION = (
    Option(field="resource_type", choices=list(INVENTORIES), help="Type of the resources"),
    Option("--reservation-id", "RESERVATION_ID", help="Only of this reservation"),
    Option("--lease-id", "LEASE_ID", help="Only of this lease"),
)


class ListAllocations(ReservationLister):
    """List what each resource of a type is reserved for."""

    examples = (
        ("host", "all hosts"),
        ("floatingip", "all floating IPs"),
        ("volumepool", "all volume pools"),
        ("host --lease-id e9d72175-b5cc-4e1f-9ca2-e0317e7bc44f", "the hosts of one lease"),
    )

    arguments = (*_SELECTION, sort_option("allocation", ("resource_id",), "resource_id", "resource_id"))

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        allocations = self.client().allocations.list(**self.given(_SELECTION, parsed_args))
        ordered = sorted(allocations, key=lambda allocation: allocation.resource_id)
        return self.table(ordered, ("resource_id", "reservations"), parsed_args)


class ShowAllocation(ReservationShowOne):
    """Show what one resource is reserved for."""

    examples = (("host compute-1", "by name"), ("floatingip 203.0.113.20", "by address"))

    arguments = (*_SELECTION, Option(field="resource", metavar="RESOURCE", help="Name, address or id of the resource"))

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        client = self.client()
        resource_id = client.inventory(INVENTORIES[parsed_args.resource_type]).find(parsed_args.resource).id
        return self.shown(client.allocations.get(resource_id, **self.given(_SELECTION, parsed_args)))
