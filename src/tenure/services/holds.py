"""Leases that are booked for a while, until somebody confirms that they are wanted."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from tenure.domain.errors import Conflict, InvalidParameter
from tenure.domain.lease import Event, EventStatus, EventType, Lease
from tenure.domain.request import ReservationChange
from tenure.services.context import new_id
from tenure.store.database import Transaction


def new_hold(lease_id: str, hold_for: timedelta | None, ends_at: datetime, now: datetime) -> tuple[Event, ...]:
    """The event that unmakes a new lease unless it is confirmed, at its end at the latest; none without a hold."""
    if hold_for is None:
        return ()
    due_at = min(now + hold_for, ends_at)
    return (Event(new_id(), lease_id, EventType.HOLD, due_at, EventStatus.UNDONE, 0, now),)


def look_after(tx: Transaction, lease_id: str, *, now: datetime) -> None:
    """Have it looked for what was made in the time of a hold that came to nothing, whoever is away meanwhile.

    At once, and when nothing can come any more. Only where the lease was held, and never ready.
    """
    holds = [one.event.id for one in tx.events.of_lease(lease_id) if one.event.event_type is EventType.HOLD]
    undone = EventStatus.UNDONE.value
    tx.events.change(holds, now=now, ready_at=now, status=undone, attempts=0, claim_token=None)


def check_confirmed(lease: Lease, changes: Iterable[ReservationChange]) -> None:
    """Nothing, where a lease that is not held is what a confirmation with these changes would make of it.

    So that to confirm twice is as good as once. Raises ``Conflict`` where it is something else.
    """
    known = {one.id: one for one in lease.reservations}
    for place, asked in enumerate(changes):
        reservation = known.get(asked.reservation_id)
        if reservation is None:
            raise InvalidParameter(
                f"Please enter valid reservation IDs. Invalid reservation IDs are: {asked.reservation_id}",
                field=f"reservations[{place}].id",
            )
        shown = {**reservation.parameters, **reservation.effects}
        for name, value in asked.parameters.items():
            if name not in shown or shown[name] != value:
                raise Conflict(
                    "The lease is confirmed already, with something else.", field=f"reservations[{place}].{name}"
                )
