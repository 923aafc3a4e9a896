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
    document_key="floatingip",
    list_key="floatingips",
    noun="floating IP",
    name="floating_ip_address",
    read=FloatingIP.from_wire,
)


class FloatingIPs(Inventory[FloatingIP]):
    """The floating IPs that are registered with the reservation service."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, _KIND)

    def create(self, network_id: str, address: str, *, region: str | None = None) -> FloatingIP:
        """Make an address of an external network reservable.

        The address must lie in a subnet of the network, outside its allocation pools, and be unused. Without
        a ``region``, the address belongs to the home region.
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
        """Yield the matching addresses; further pages are fetched as needed."""
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
        """Yield the resources with this address. A text that is no address can only be an id."""
        try:
            address = str(ipaddress.ip_address(name))
        except ValueError:
            return iter(())
        return super()._named(address)
