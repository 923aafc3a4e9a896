"""Pools of volumes."""

from __future__ import annotations

import uuid

#: The namespace of pool ids.
_NAMESPACE = uuid.UUID("6d4f7c0e-2f0b-5f0e-9b0f-6a0f1e6a7c12")


def pool_id(name: str) -> str:
    """Return the id of a pool with a name such as ``host@backend#pool``. The same pool always has the same id."""
    return str(uuid.uuid5(_NAMESPACE, name))
