"""Pools of volumes."""

from __future__ import annotations

import uuid

#: What the ids of pools are made from.
_NAMESPACE = uuid.UUID("6d4f7c0e-2f0b-5f0e-9b0f-6a0f1e6a7c12")


def pool_id(name: str) -> str:
    """The id of a pool that the cloud knows by a name such as ``host@backend#pool``: the same wherever it is asked."""
    return str(uuid.uuid5(_NAMESPACE, name))
