"""Leases that servers get of themselves: how they are known, and how they give way to what somebody books."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from tenure.domain.lease import EventType, Lease, LeaseStatus
from tenure.domain.reason import Reason
from tenure.services.context import ENDED, tell
from tenure.services.undoing import unmake
from tenure.store.database import Database, Transaction

#: The ids of default leases follow from those of the servers, so that each server gets one, once.
_NAMESPACE: Final = uuid.UUID("3b0c1f0a-5f0e-4f6e-9c57-0a4e5d2c7b11")
_SUBJECT: Final = "server "
#: How many are asked for at a time.
_AT_ONCE: Final = 500


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
    unmake(tx, lease, Reason("The server has another lease now."), now=now)
    # The server bears the marks of this one until it gets those of the other: nothing is to be done with it for them.
    tx.leases.change_reservations([holder], now=now, effects={})
    tell(tx, "lease.delete", lease, now=now)


class DefaultLeaseBook:
    """What the ledger knows of servers: which have a lease of themselves, and which are of somebody's reservation."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def running(self, server_ids: Collection[str]) -> list[Lease]:
        """The leases that these servers have of themselves, and that are not over."""
        found: list[Lease] = []
        for some in _in_turn([default_lease_id(one) for one in server_ids]):
            with self._db.read() as tx:
                found += tx.leases.by_ids(some)
        return [one for one in found if one.status not in ENDED]

    def reserved(self, marks: Mapping[str, tuple[str, str]]) -> set[str]:
        """Those of the servers that are what they say.

        ``marks`` are a server's project and the reservation that it names, by its id. The reservation is one of that
        project which is not over, or was held and may still be looked for.
        """
        known: set[tuple[str, str]] = set()
        for some in _in_turn(sorted({reservation_id for _, reservation_id in marks.values()})):
            with self._db.read() as tx:
                named = tx.leases.reservations_by_ids(some).values()
                found = tx.leases.by_ids({one.lease_id for one in named}, deleted=True)
            for lease in found:
                if lease.status not in ENDED or lease.event(EventType.HOLD) is not None:
                    known.update((lease.project_id, one.id) for one in lease.reservations)
        return {server_id for server_id, mark in marks.items() if mark in known}


def _in_turn(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[first : first + _AT_ONCE] for first in range(0, len(ids), _AT_ONCE))
