"""Addresses of external networks."""

from __future__ import annotations

import uuid
from ipaddress import ip_address, ip_network

#: What the ids of addresses are made from.
_NAMESPACE = uuid.UUID("6d4f7c0e-2f0b-5f0e-9b0f-6a0f1e6a7c11")


def address_id(network_id: str, address: str) -> str:
    """The id of an address in an external network: the same wherever it is asked for.

    Raises ``ValueError`` for what is no address.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{network_id}/{ip_address(address)}"))


def lies_in(address: str, subnet: str) -> bool:
    """Whether the address is one that something in the subnet can have.

    In version 4 that is neither the subnet's own, nor the last one, by which all in it are meant. Raises
    ``ValueError`` for what is no address and no subnet.
    """
    asked, network = ip_address(address), ip_network(subnet, strict=False)
    if asked not in network:
        return False
    if network.version == 4 and asked == network.network_address:
        return False
    return network.version != 4 or network.prefixlen >= 31 or asked != network.broadcast_address
