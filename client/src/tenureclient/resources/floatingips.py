"""Floating IP addresses."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Unpack

from tenureclient.documents import Document, LooseText, SetFlag, document
from tenureclient.inventory import Help, Inventory, Resource, ResourceQuery, ResourceType
from tenureclient.options import Option
from tenureclient.reservation_request import ReservationRequest
from tenureclient.reservation_type import ReservationType, UnreadableReservation, parse_amount
from tenureclient.wire import Feature, JsonValue


@document("a floating IP", kw_only=True)
class FloatingIP(Resource):
    """An address of an external network that can be reserved."""

    id: str
    floating_ip_address: str
    floating_network_id: LooseText
    subnet_id: LooseText
    reservable: SetFlag


@document("a floating IP of a lease", kw_only=True)
class LeaseFloatingIP(Document):
    """An address of a lease, as its owner sees it. ``status`` is ``planned``, ``held`` or ``released``."""

    id: str
    floating_ip_address: str
    status: LooseText
    floating_network_id: LooseText
    subnet_id: LooseText
    reservation_id: str
    start_date: datetime
    end_date: datetime


class FloatingIPQuery(ResourceQuery, total=False):
    """Which floating IPs to list."""

    floating_ip_address: str | None
    floating_network_id: Annotated[
        str | None, Option("--network", metavar="NETWORK_ID", help="Only those of this network")
    ]


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


class FloatingIPReservations(ReservationType):
    name = "virtual:floatingip"
    position = 30
    short = "floatingip"
    units = ("floating IP", "floating IPs")
    parameters = ('network_id=ID [amount=COUNT] [required_floatingips=["ADDRESS", ...]]',)
    before_end = ("none", "notify", "default")  # addresses have no snapshots
    heading = "floating IPs"
    requesting = ("floating_ips", "addresses")
    options = (
        Option(
            "--floating-ips",
            "COUNT",
            parse_amount,
            help="Reserve this many addresses (default: as many as there are --address)",
        ),
        Option("--network", "NETWORK_ID", help="Id of the addresses' external network"),
        Option(
            "--address",
            "ADDRESS",
            gather=list,
            field="addresses",
            help="An address that must be among them (may be repeated)",
        ),
    )

    def requests(self, given: argparse.Namespace) -> Iterator[ReservationRequest]:
        amount, addresses = given.floating_ips, given.addresses
        if amount is None and not addresses:
            self.refuse_details(given)
            return
        if given.network is None:
            raise UnreadableReservation("--floating-ips: say of which network, with --network.")
        if amount is not None and amount < len(addresses):
            raise UnreadableReservation(f"--floating-ips: {amount} is less than there are --address.")
        yield ReservationRequest.floatingips(given.network, amount, addresses=addresses)

    def with_amount(self, given: argparse.Namespace, amount: int) -> bool:
        return amount >= len(given.addresses) and super().with_amount(given, amount)

    def complete(self, values: dict[str, JsonValue], text: str) -> None:
        required = values.get("required_floatingips")
        values.setdefault("amount", max(1, len(required)) if isinstance(required, list) else 1)


class FloatingIPs(Inventory[FloatingIP, LeaseFloatingIP]):
    """The floating IPs that are registered with the reservation service."""

    resource_type = ResourceType(
        resource=FloatingIP,
        of_lease=LeaseFloatingIP,
        path="floatingips",
        document_key="floatingip",
        list_key="floatingips",
        name="floating_ip_address",
        noun="floating IP",
        feature_of_allocations=Feature("who has which floating IP"),
        short="floatingip",
        words="floatingip",
        metavar="FLOATINGIP",
        position=30,
        name_or_id="Address or id",
        some="floating IPs",
        lost="connections",
        listed=("id", "floating_ip_address", "floating_network_id"),
        listed_of_lease=("id", "floating_ip_address", "status", "floating_network_id", "reservation_id"),
        sortable=("id", "floating_ip_address", "floating_network_id", "subnet_id"),
        sorted_by="id",
        sort_value=_sort_value,
        query=FloatingIPQuery,
        registration=(
            Option(field="floating_network_id", metavar="NETWORK_ID", help="Id of the external network"),
            Option(field="floating_ip_address", metavar="FLOATING_IP_ADDRESS", help="Address in that network"),
        ),
        help={
            "list": Help(
                """List the floating IPs that can be reserved.

                With -c any field of a floating IP can be asked for.
                """,
                (
                    ("--network 5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001", "those of one network"),
                    ("--not-reservable -c floating_ip_address -c disabled_reason", "which are closed, and why"),
                ),
            ),
            "show": Help(
                "Show a floating IP: its network, and whether it can be reserved.", (("203.0.113.20", "by address"),)
            ),
            "create": Help(
                """Make an address of an external network reservable.

                The address must lie in a subnet of the network and outside its allocation pools (Neutron gives the
                addresses inside to anyone). It must be unused, and not be the gateway.
                """,
                (("5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001 203.0.113.20", "one address"),),
            ),
            "delete": Help(
                "Take floating IPs out of the reservation service. No lease may need them any more.",
                (("203.0.113.20", "one address"),),
            ),
            "disable": Help(
                """Close a floating IP to new reservations.

                Existing reservations keep it; the list shows them. You are asked before it is done.
                """,
                (
                    ("203.0.113.20 --reason 'on a block list'", "and be asked before it is done"),
                    ("203.0.113.20 --dry-run", "see who has it"),
                ),
            ),
            "enable": Help(
                "Open a floating IP to reservations again.", (("203.0.113.20", "and be asked before it is done"),)
            ),
            "reallocate": Help(
                """Give the reservations of a floating IP another one, as far as there are any.

                Reservations that have started keep it, unless --running is given. The list shows what happens to
                each reservation. You are asked before it is done. To keep the address free, disable it first.
                """,
                (
                    ("203.0.113.20 --dry-run", "see who would get which other one"),
                    ("203.0.113.20 --lease bio-42 --yes", "of one lease, without being asked"),
                ),
            ),
            "of lease": Help(
                """List the floating IPs of a lease: planned, held or released.

                Once the lease has started, they are floating IPs of the project, and are used like any other:

                  openstack server add floating ip SERVER ADDRESS
                """,
                (("bio-42", "its addresses"), ("bio-42 -f value -c floating_ip_address", "the addresses only")),
            ),
        },
    )

    def create(self, network_id: str, address: str, *, region: str | None = None) -> FloatingIP:
        """Make an address of an external network reservable.

        The address must lie in a subnet of the network, outside its allocation pools, and be unused. Without
        a ``region``, the address belongs to the home region.
        """
        return self.register({"floating_network_id": network_id, "floating_ip_address": address, "region": region})

    def list(self, **query: Unpack[FloatingIPQuery]) -> Iterator[FloatingIP]:
        """Yield the matching addresses; further pages are fetched as needed."""
        return self.matching(query)

    def _named(self, name: str) -> Iterator[FloatingIP]:
        """Yield the resources with this address. A text that is no address can only be an id."""
        try:
            address = str(ipaddress.ip_address(name))
        except ValueError:
            return iter(())
        return super()._named(address)
