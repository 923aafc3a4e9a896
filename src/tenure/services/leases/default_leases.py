"""Default leases: leases of servers that were booted without one, and how they give way to other leases."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from tenure.domain.lease import EventType, Lease, LeaseStatus
from tenure.domain.reason import Reason
from tenure.services.boots import is_to_be_made
from tenure.services.context import ENDED
from tenure.services.leases.undoing import unmake
from tenure.services.notifications.records import notify
from tenure.store.database import Database, Transaction

#: The id of a default lease is derived from the server's id, so that each server gets only one.
_NAMESPACE: Final = uuid.UUID("3b0c1f0a-5f0e-4f6e-9c57-0a4e5d2c7b11")
_SUBJECT: Final = "server "
#: How many ids are queried at a time.
_AT_ONCE: Final = 500


def default_lease_id(server_id: str) -> str:
    """Return the id of the default lease of a server."""
    return str(uuid.uuid5(_NAMESPACE, server_id))


def that_gives_way(tx: Transaction, subject: str, holder: str) -> Lease | None:
    """Return the default lease to which the reservation ``holder`` of a server belongs, if it is one that runs."""
    if not subject.startswith(_SUBJECT):
        return None
    lease = tx.leases.get(default_lease_id(subject.removeprefix(_SUBJECT)))
    if lease is None or lease.status is not LeaseStatus.ACTIVE:
        return None
    return lease if holder in {reservation.id for reservation in lease.reservations} else None


def give_way(tx: Transaction, subject: str, reservation_id: str) -> None:
    """End the default lease of a server that another lease reserves; the server itself is not changed."""
    holder = tx.leases.bound(subject)
    if holder is None or holder == reservation_id:
        return
    lease = that_gives_way(tx, subject, holder)
    if lease is None:
        return
    now = tx.now()
    tx.events.change([event.id for event in lease.events], now=now, claim_token=None)
    unmake(tx, lease, Reason("The server has another lease now."), now=now)
    # The server keeps the marks of the default lease until it gets those of the other: they must not be removed.
    tx.leases.change_reservations([holder], now=now, effects={})
    notify(tx, "lease.delete", lease, now=now)


class DefaultLeaseBook:
    """Queries for servers: which have a default lease, and which belong to a reservation."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def running(self, server_ids: Collection[str]) -> list[Lease]:
        """Return the default leases of these servers that have not ended."""
        found: list[Lease] = []
        for batch in _batches([default_lease_id(server_id) for server_id in server_ids]):
            with self._db.read() as tx:
                found += tx.leases.by_ids(batch)
        return [lease for lease in found if lease.status not in ENDED]

    def given(self, server_ids: Collection[str]) -> set[str]:
        """Return those of these servers that have or had a default lease."""
        servers = {default_lease_id(server_id): server_id for server_id in server_ids}
        found: set[str] = set()
        for batch in _batches(sorted(servers)):
            with self._db.read() as tx:
                found |= tx.leases.known_ids(batch)
        return {servers[lease_id] for lease_id in found}

    def reserved(self, marks: Mapping[str, tuple[str, str]]) -> set[str]:
        """Return the servers whose mark is true.

        ``marks`` maps a server's id to its project and the reservation that it names. The mark is true if the
        reservation is of that project and has this server, or one that is not known yet.
        """
        owners: dict[str, tuple[str, str | None]] = {}
        for batch in _batches(sorted({reservation_id for _, reservation_id in marks.values()})):
            with self._db.read() as tx:
                named = tx.leases.reservations_by_ids(batch).values()
                found = tx.leases.by_ids({reservation.lease_id for reservation in named}, deleted=True)
                now = tx.now()
            for lease in found:
                servers = _servers_of(lease, now)
                owners.update((name, (lease.project_id, server_id)) for name, server_id in servers.items())
        return {
            server_id
            for server_id, (project_id, reservation_id) in marks.items()
            if owners.get(reservation_id) in {(project_id, server_id), (project_id, None)}
        }


def _servers_of(lease: Lease, now: datetime) -> Mapping[str, str | None]:
    """Return the servers of the lease's reservations; None for a server that is being booted and not known yet.

    A provisional reservation may have such a server as long as its remains are searched for, even if it has ended.
    """
    is_held = lease.event(EventType.HOLD) is not None
    if lease.status in ENDED and not is_held:
        return {}
    servers: dict[str, str | None] = {}
    for reservation in lease.reservations:
        named = reservation.parameters.get("server_id") or reservation.effects.get("server_id")
        if named is not None:
            servers[reservation.id] = str(named)
        elif is_held or (is_to_be_made(reservation) and lease.starts_at <= now):
            servers[reservation.id] = None
    return servers


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[first : first + _AT_ONCE] for first in range(0, len(ids), _AT_ONCE))
