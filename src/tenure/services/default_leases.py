"""Leases that servers get of themselves: how they are known, and how they give way to what somebody books."""

from __future__ import annotations

import uuid
from typing import Final

from tenure.domain.lease import LeaseStatus
from tenure.services.context import tell
from tenure.services.undoing import unmake
from tenure.store.database import Transaction

#: The ids of default leases follow from those of the servers, so that each server gets one, once.
_NAMESPACE: Final = uuid.UUID("3b0c1f0a-5f0e-4f6e-9c57-0a4e5d2c7b11")
_SUBJECT: Final = "server "


def default_lease_id(server_id: str) -> str:
    """The id of the lease that a server gets which was booted without one."""
    return str(uuid.uuid5(_NAMESPACE, server_id))


def give_way(tx: Transaction, subject: str, reservation_id: str) -> None:
    """End the default lease of a server that somebody reserves; nothing is done with the server for that."""
    holder = tx.leases.bound(subject)
    if holder is None or holder == reservation_id or not subject.startswith(_SUBJECT):
        return
    lease = tx.leases.get(default_lease_id(subject.removeprefix(_SUBJECT)))
    if lease is None or lease.status is not LeaseStatus.ACTIVE or holder not in {one.id for one in lease.reservations}:
        return
    now = tx.now()
    tx.events.change([one.id for one in lease.events], now=now, claim_token=None)
    unmake(tx, lease, "The server has another lease now.", now=now)
    # The server bears the marks of this one until it gets those of the other: nothing is to be done with it for them.
    tx.leases.change_reservations([holder], now=now, effects={})
    tell(tx, "lease.delete", lease, now=now)
