"""Undoing what the cloud has refused: a change of a running lease, or a whole new lease."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from tenure.domain.actor import ENGINE
from tenure.domain.lease import (
    Action,
    AllocationState,
    EventType,
    Lease,
    LeaseStatus,
    ReservationStatus,
)
from tenure.domain.period import ENDLESS
from tenure.domain.reason import Reason
from tenure.services.context import Rules
from tenure.services.events.late_starts import START_FAILED
from tenure.services.events.payloads import PreparePayload
from tenure.services.leases.provisional import search_for_remains
from tenure.services.notifications.commitments import notify_ended
from tenure.services.notifications.records import apply, notify
from tenure.store.database import Transaction


def unmake(tx: Transaction, lease: Lease, reason: Reason, *, now: datetime) -> None:
    """Remove a lease because the cloud refuses what clients must see of it, or because it was not confirmed.

    The reconciler takes back its remains in the cloud.
    """
    _release_plan(tx, lease, ReservationStatus.DELETED, now)
    lease = apply(tx, lease, Action.DELETE, actor=ENGINE, now=now, reason=reason)
    apply(tx, lease, Action.DELETED, actor=ENGINE, now=now, keep_reason=True)


def give_up(tx: Transaction, lease: Lease, reason: Reason, *, now: datetime) -> None:
    """Set a promised lease to ERROR because the cloud refuses what clients must see of it.

    It releases all its resources; it stays, with the reason, and others are notified. The reconciler takes back its
    remains.
    """
    reason += " The room is given back, and so is what was made for the lease."
    _release_plan(tx, lease, ReservationStatus.ERROR, now)
    apply(tx, lease, Action.FAIL, actor=ENGINE, now=now, reason=reason)
    failed = tx.leases.get(lease.id)
    if failed is not None:
        notify(tx, "lease.create", failed, now=now, status_reason=reason.text)
        notify(tx, START_FAILED, failed, now=now, status_reason=reason.text)


def fail_waiting(tx: Transaction, lease: Lease, reason: Reason, *, now: datetime) -> None:
    """Set a waiting lease to ERROR: it holds nothing, and is taken off the waiting list."""
    tx.events.change([event.id for event in lease.events], now=now, ready_at=None)
    failed = apply(tx, lease, Action.FAIL, actor=ENGINE, now=now, reason=reason)
    notify(tx, "lease.wait", failed, now=now, status_reason=reason.text)


def promise(tx: Transaction, lease_id: str) -> Lease | None:
    """Return the lease, and if it is still being prepared, record that its owner knows of it.

    The owner must be notified of whatever happens to it from now on.
    """
    lease = tx.leases.get(lease_id, deleted=True, lock=True)
    if lease is not None and lease.status is LeaseStatus.CREATING:
        for stored in tx.events.of_lease(lease_id):
            if stored.event.event_type is EventType.PREPARE:
                payload = replace(PreparePayload.of(stored), promised=True)
                tx.events.change([stored.event.id], now=tx.now(), payload=payload.to_json())
    return lease


def is_promised(tx: Transaction, event_id: str) -> bool:
    """Whether the owner knows of the lease that the event prepares."""
    return PreparePayload.of(tx.events.get(event_id)).promised


def _release_plan(tx: Transaction, lease: Lease, status: ReservationStatus, now: datetime) -> None:
    """Release the plan of a lease that was never ready, and cancel its events."""
    ids = [reservation.id for reservation in lease.reservations]
    notify_ended(tx, lease, now=now)
    tx.allocations.remove_planned(ids)
    tx.leases.change_reservations(ids, now=now, status=status.value, subject=None)
    tx.events.change([stored.event.id for stored in tx.events.of_lease(lease.id)], now=now, ready_at=None)
    search_for_remains(tx, lease.id, now=now)


def end_with_the_lease(
    tx: Transaction, lease: Lease, rules: Rules, *, without: Collection[int] = (), ending: Collection[int] = ()
) -> None:
    """Shorten the pinned allocations of the lease to its end, except those in ``without``.

    Kept volumes go on after the lease, unless they are among those that are ``ending``. No allocation becomes longer:
    the time after it may be promised to another lease.
    """
    until = lease.ends_at + rules.cleaning_time
    pinned = [
        allocation.id
        for allocation in tx.allocations.of_reservations([reservation.id for reservation in lease.reservations])
        if allocation.state is AllocationState.HELD
        and allocation.id not in without
        and allocation.period.start < until
        and (allocation.period.end != ENDLESS or allocation.id in ending)
    ]
    tx.allocations.shorten(pinned, until)
