"""Addresses of external networks."""

from __future__ import annotations

import uuid
from ipaddress import ip_address, ip_network

#: The namespace of address ids.
_NAMESPACE = uuid.UUID("6d4f7c0e-2f0b-5f0e-9b0f-6a0f1e6a7c11")


def address_id(network_id: str, address: str) -> str:
    """Return the id of an address in an external network. The same address always has the same id.

    Raises ``ValueError`` if ``address`` is not an address.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{network_id}/{ip_address(address)}"))


def sort_name(name: str) -> str:
    """Return a name in a form whose order as text is that of addresses; names that are no addresses stay."""
    try:
        address = ip_address(name)
    except ValueError:
        return name
    return f"{address.version}:{address.packed.hex()}"


def lies_in(address: str, subnet: str) -> bool:
    """Whether a port in the subnet can have the address.

    In IPv4 a port cannot have the network address or the broadcast address. Raises ``ValueError`` if an
    argument is not an address or not a subnet.
    """
    ip, network = ip_address(address), ip_network(subnet, strict=False)
    if ip not in network:
        return False
    if network.version == 4 and ip == network.network_address:
        return False
    return network.version != 4 or network.prefixlen >= 31 or ip != network.broadcast_address
