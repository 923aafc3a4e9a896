"""Floating IP addresses that can be reserved; for administrators."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from tenureclient.addresses import FloatingIP
from tenureclient.inventory import Inventory, Kind
from tenureclient.transport import Transport
from tenureclient.wire import JsonObject

SORT_KEYS = ("id", "floating_ip_address")
_KIND = Kind(
    path="floatingips",
    one="floatingip",
    many="floatingips",
    noun="floating IP",
    name="floating_ip_address",
    read=FloatingIP.from_wire,
)


class FloatingIPs(Inventory[FloatingIP]):
    """The addresses that were given to the reservation service."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, _KIND)

    def create(self, network_id: str, address: str, *, region: str | None = None) -> FloatingIP:
        """Make an address of an external network reservable.

        It lies in a subnet of the network, outside of its allocation pools, and nobody uses it. Without a
        ``region`` it is of the home region.
        """
        body: JsonObject = {"floating_network_id": network_id, "floating_ip_address": address}
        return self._register(body, region)

    def list(
        self,
        *,
        floating_ip_address: str | None = None,
        floating_network_id: str | None = None,
        region: str | None = None,
        reservable: bool | None = None,
        sort_key: str = "id",
        descending: bool = False,
    ) -> Iterator[FloatingIP]:
        """Yield the addresses that fit; further pages are fetched as they are needed."""
        return self._list(
            {
                "floating_ip_address": floating_ip_address,
                "floating_network_id": floating_network_id,
                "region": region,
            },
            reservable=reservable,
            sort_key=sort_key,
            descending=descending,
        )

    def _named(self, name: str) -> Iterator[FloatingIP]:
        """Yield those with this address; what is none is an id only."""
        try:
            address = str(ipaddress.ip_address(name))
        except ValueError:
            return iter(())
        return super()._named(address)
