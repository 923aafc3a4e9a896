"""What the tests of the store write: hosts, leases and their parts, with as little as possible said of each."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import text

from tenure.domain.allocation import Allocation, Demand
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.lease import (
    AllocationState,
    Event,
    EventStatus,
    EventType,
    Lease,
    LeaseStatus,
    Reservation,
    ReservationStatus,
)
from tenure.domain.period import Period
from tenure.domain.requirement import Expression
from tenure.domain.resource import DiscoveredResource
from tenure.store.database import Database, Transaction
from tests.support.world import HOST, NOW

HOUR = timedelta(hours=1)
EVERY = Expression()
PLANNED, HELD, RELEASED = AllocationState.PLANNED, AllocationState.HELD, AllocationState.RELEASED


class Undone(Exception):
    """Raised in a transaction to roll it back."""


def new_id() -> str:
    return str(uuid.uuid4())


def hours(start: float, end: float) -> Period:
    """A period that begins and ends so many hours from now."""
    return Period(NOW + start * HOUR, NOW + end * HOUR)


def demand(
    minimum: int = 1, maximum: int | None = None, expression: Expression = EVERY, *, exclusive: bool = True
) -> Demand:
    return Demand(
        HOST, "hosts", minimum, maximum or minimum, expression, Capacity({WHOLE: 1}), exclusive, parameter="min"
    )


def add_hosts(
    db: Database,
    count: int,
    properties: Sequence[Mapping[str, str]] = (),
    *,
    facts: Mapping[str, object] | None = None,
    resource_type: str = HOST,
    first: int = 1,
    capacity: Capacity = Capacity({WHOLE: 1}),  # noqa: B008  # it is immutable
) -> list[int]:
    """So many hosts; the ids, in the order of their external ids ``1``, ``2``, …"""
    found = [
        DiscoveredResource(resource_type, str(number), f"host-{number}", capacity, facts or {})
        for number in range(first, first + count)
    ]
    own = [dict(own_properties) for own_properties in properties] + [{}] * (count - len(properties))

    def add(tx: Transaction) -> list[int]:
        tx.resources.add_many(found, own, now=NOW)
        ids = [tx.resources.by_external_id(resource_type, resource.external_id) for resource in found]
        return [resource.id for resource in ids if resource is not None]

    return db.write(add)


def close(tx: Transaction, resource_id: int) -> None:
    """Let a resource take no reservations any more."""
    tx.resources.change(tx.resources.by_ids([resource_id])[resource_id], now=NOW, enabled=False)


def new_lease(
    start: float = 1,
    end: float = 2,
    *,
    reservations: int = 1,
    status: LeaseStatus = LeaseStatus.PENDING,
    name: str = "lease",
    project: str = "demo",
    user: str = "demo-user",
    created_at: datetime = NOW,
    lease_id: str | None = None,
    parameters: Mapping[str, object] | None = None,
) -> Lease:
    """A lease that begins and ends so many hours from now, with its start and end events."""
    period = hours(start, end)
    lease_id = lease_id or new_id()
    return Lease(
        id=lease_id,
        name=name,
        project_id=project,
        user_id=user,
        starts_at=period.start,
        ends_at=period.end,
        status=status,
        status_reason=None,
        degraded=False,
        version=1,
        reservations=tuple(
            Reservation(
                new_id(), lease_id, HOST, ReservationStatus.PENDING, parameters or {"min": 1}, False, False, created_at
            )
            for _ in range(reservations)
        ),
        events=tuple(
            Event(new_id(), lease_id, event_type, due_at, EventStatus.UNDONE, 0, created_at)
            for event_type, due_at in ((EventType.START, period.start), (EventType.END, period.end))
        ),
        created_at=created_at,
    )


def add_lease(
    db: Database, *resource_ids: int, start: float = 1, end: float = 2, state: AllocationState = PLANNED, **values
) -> Lease:
    """Add a lease with one reservation of these resources."""
    lease = new_lease(start, end, **values)

    def add(tx: Transaction) -> Lease:
        tx.leases.add(lease)
        tx.events.add(lease.events)
        tx.allocations.add(
            lease.reservations[0].id, dict.fromkeys(resource_ids, 1), hours(start, end), demand(), state=state
        )
        return lease

    return db.write(add)


def allocations_of(db: Database, *leases: Lease) -> list[Allocation]:
    with db.read() as tx:
        return tx.allocations.of_reservations(
            [reservation.id for lease in leases for reservation in lease.reservations]
        )


def execute(db: Database, statement: str, **values: object) -> int:
    """Change rows behind the store's back; how many."""
    with db.engine.begin() as connection:
        return connection.execute(text(statement), values).rowcount
