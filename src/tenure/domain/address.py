"""Addresses of external networks."""

from __future__ import annotations

import uuid
from ipaddress import ip_address

#: What the ids of addresses are made from.
_NAMESPACE = uuid.UUID("6d4f7c0e-2f0b-5f0e-9b0f-6a0f1e6a7c11")


def address_id(network_id: str, address: str) -> str:
    """The id of an address in an external network: the same wherever it is asked for.

    Raises ``ValueError`` for what is no address.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{network_id}/{ip_address(address)}"))
