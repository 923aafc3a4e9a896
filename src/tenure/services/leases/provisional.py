"""Provisional leases: those that must be confirmed within a given time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from tenure.domain.errors import Conflict, InvalidParameter
from tenure.domain.lease import Event, EventStatus, EventType, Lease
from tenure.domain.request import ReservationChange
from tenure.services.context import new_id
from tenure.store.database import Transaction


def confirmation_deadline(
    lease_id: str, hold_for: timedelta | None, ends_at: datetime, now: datetime
) -> tuple[Event, ...]:
    """Return the event that removes a new lease unless it is confirmed, at its end date at the latest.

    Empty for a lease that need not be confirmed.
    """
    if hold_for is None:
        return ()
    due_at = min(now + hold_for, ends_at)
    return (Event(new_id(), lease_id, EventType.HOLD, due_at, EventStatus.UNDONE, 0, now),)


def search_for_remains(tx: Transaction, lease_id: str, *, now: datetime) -> None:
    """Search for cloud resources of a provisional lease that failed or was removed: now, and after the slowest boot.

    Only for leases that were never confirmed and complete.
    """
    deadlines = [
        stored.event.id for stored in tx.events.of_lease(lease_id) if stored.event.event_type is EventType.HOLD
    ]
    undone = EventStatus.UNDONE.value
    tx.events.change(deadlines, now=now, ready_at=now, status=undone, attempts=0, claim_token=None)


def check_confirmed(lease: Lease, changes: Iterable[ReservationChange]) -> None:
    """Raise ``Conflict`` unless the lease already equals this confirmation: confirming twice is allowed."""
    known = {reservation.id: reservation for reservation in lease.reservations}
    for position, change in enumerate(changes):
        reservation = known.get(change.reservation_id)
        if reservation is None:
            raise InvalidParameter(
                f"Please enter valid reservation IDs. Invalid reservation IDs are: {change.reservation_id}",
                field=f"reservations[{position}].id",
            )
        shown = {**reservation.parameters, **reservation.effects}
        for name, value in change.parameters.items():
            if name not in shown or shown[name] != value:
                raise Conflict(
                    "The lease is confirmed already, with something else.", field=f"reservations[{position}].{name}"
                )
