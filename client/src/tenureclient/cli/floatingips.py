"""floatingip list, show, create, delete, disable, enable, reallocate"""

from __future__ import annotations

import argparse
import ipaddress

from tenureclient.addresses import FloatingIP
from tenureclient.cli.command import ReservationLister, ReservationShowOne
from tenureclient.cli.inventory import (
    DeleteCommand,
    DisableCommand,
    EnableCommand,
    OfFloatingIPs,
    ReallocateCommand,
    add_only_region,
    add_region,
    add_reservable,
)
from tenureclient.cli.render import Shown, Table

_LISTED = ("id", "floating_ip_address", "floating_network_id")
_SORTABLE = (*_LISTED, "subnet_id")


class ListFloatingIPs(ReservationLister):
    """List the floating IPs that can be reserved.

    With -c any field of a floating IP can be asked for.
    """

    examples = (
        ("--network 5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001", "those of one network"),
        ("--not-reservable -c floating_ip_address -c disabled_reason", "which are closed, and why"),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--sort-by",
            metavar="<floatingip_column>",
            choices=_SORTABLE,
            default="id",
            help=f"Field to sort by: {', '.join(_SORTABLE)} (default: id)",
        )
        parser.add_argument("--network", metavar="NETWORK_ID", help="Only those of this network")
        add_reservable(parser, "floating IPs", "closed")
        add_only_region(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        floatingips = sorted(
            self.client().floatingips.list(
                floating_network_id=parsed_args.network,
                reservable=parsed_args.reservable,
                region=parsed_args.region,
            ),
            key=lambda floatingip: (_sort_value(floatingip, parsed_args.sort_by), floatingip.id),
        )
        return self.table(floatingips, _LISTED, parsed_args)


class ShowFloatingIP(OfFloatingIPs, ReservationShowOne):
    """Show a floating IP: its network, and whether it can be reserved."""

    examples = (("203.0.113.20", "by address"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.add_resource_argument(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        floatingip = self.client().floatingips.find(parsed_args.resource)
        return self.shown(floatingip)


class CreateFloatingIP(ReservationShowOne):
    """Make an address of an external network reservable.

    The address must lie in a subnet of the network and outside its allocation pools (Neutron gives the
    addresses inside to anyone). It must be unused, and not be the gateway.
    """

    examples = (("5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001 203.0.113.20", "one address"),)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("network", metavar="NETWORK_ID", help="Id of the external network")
        parser.add_argument("address", metavar="FLOATING_IP_ADDRESS", help="Address in that network")
        add_region(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        made = self.client().floatingips.create(parsed_args.network, parsed_args.address, region=parsed_args.region)
        return self.shown(made)


class DeleteFloatingIP(OfFloatingIPs, DeleteCommand):
    """Take floating IPs out of the reservation service. No lease may need them any more."""

    examples = (("203.0.113.20", "one address"),)


class DisableFloatingIP(OfFloatingIPs, DisableCommand):
    """Close a floating IP to new reservations.

    Existing reservations keep it; the list shows them. You are asked before it is done.
    """

    examples = (
        ("203.0.113.20 --reason 'on a block list'", "and be asked before it is done"),
        ("203.0.113.20 --dry-run", "see who has it"),
    )


class EnableFloatingIP(OfFloatingIPs, EnableCommand):
    """Open a floating IP to reservations again."""

    examples = (("203.0.113.20", "and be asked before it is done"),)


class ReallocateFloatingIP(OfFloatingIPs, ReallocateCommand):
    """Give the reservations of a floating IP another one, as far as there are any.

    Reservations that have started keep it, unless --running is given. The list shows what happens to each
    reservation. You are asked before it is done. To keep the address free, disable it first.
    """

    lost = "connections"
    examples = (
        ("203.0.113.20 --dry-run", "see who would get which other one"),
        ("203.0.113.20 --lease bio-42 --yes", "of one lease, without being asked"),
    )


def _sort_value(floatingip: FloatingIP, field: str) -> tuple[int, int, str]:
    """Return a value that sorts addresses as addresses, and other fields as texts."""
    text: str = getattr(floatingip, field)
    if field != "floating_ip_address":
        return 0, 0, text
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return 0, 0, text
    return address.version, int(address), text
