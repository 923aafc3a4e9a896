"""Undoing what the cloud has refused: a change of a running lease, or a whole lease that was being made."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from tenure.domain.actor import ENGINE
from tenure.domain.lease import (
    Action,
    AllocationState,
    EventStatus,
    EventType,
    Lease,
    LeaseStatus,
    ReservationStatus,
)
from tenure.domain.period import ENDLESS
from tenure.domain.reason import Reason
from tenure.services.commitments import tell_changed, tell_end
from tenure.services.context import Rules, apply, columns_of, remember, tell
from tenure.services.holds import look_after
from tenure.services.user_events import restore_events
from tenure.store.database import Transaction


def unmake(tx: Transaction, lease: Lease, reason: Reason, *, now: datetime) -> None:
    """Have no lease, where the cloud refuses what clients must see of it, or nobody has confirmed it.

    The repair takes back what is there.
    """
    _empty(tx, lease, ReservationStatus.DELETED, now)
    lease = apply(tx, lease, Action.DELETE, actor=ENGINE, now=now, reason=reason)
    apply(tx, lease, Action.DELETED, actor=ENGINE, now=now, keep_reason=True)


def give_up(tx: Transaction, lease: Lease, reason: Reason, *, now: datetime) -> None:
    """Have a lease fail that was promised to its owner, and of which the cloud refuses what clients must see.

    It holds nothing any more; it stays, with the reason, and others are told. The repair takes back what is there.
    """
    reason += " The room is given back, and so is what was made for the lease."
    _empty(tx, lease, ReservationStatus.ERROR, now)
    apply(tx, lease, Action.FAIL, actor=ENGINE, now=now, reason=reason)
    failed = tx.leases.get(lease.id)
    if failed is not None:
        tell(tx, "lease.create", failed, now=now, status_reason=reason.text)


def promise(tx: Transaction, lease_id: str) -> Lease | None:
    """The lease, kept in mind as one that its owner knows of, where it is still being made.

    What becomes of it from now on he must be told.
    """
    lease = tx.leases.get(lease_id, deleted=True, lock=True)
    if lease is not None and lease.status is LeaseStatus.CREATING:
        making = [one for one in tx.events.of_lease(lease_id) if one.event.event_type is EventType.PREPARE]
        for one in making:
            payload = {**(one.payload or {}), "promised": True}
            tx.events.change([one.event.id], now=tx.now(), payload=payload)
    return lease


def is_promised(tx: Transaction, event_id: str) -> bool:
    """Whether the owner of the lease that the event makes has been told that it is there."""
    return bool(_payload_of(tx, event_id).get("promised"))


def _empty(tx: Transaction, lease: Lease, status: ReservationStatus, now: datetime) -> None:
    """Give back what was planned for a lease that was never ready, and have nothing come of it."""
    ids = [one.id for one in lease.reservations]
    tell_end(tx, lease, now=now)
    tx.allocations.remove_planned(ids)
    tx.leases.change_reservations(ids, now=now, status=status.value, subject=None)
    tx.events.change([one.event.id for one in tx.events.of_lease(lease.id)], now=now, ready_at=None)
    look_after(tx, lease.id, now=now)


def undo_update(tx: Transaction, event_id: str, lease: Lease, rules: Rules, reason: Reason, *, now: datetime) -> None:
    """Make the lease what it was before the update of that event; then the cloud has to follow once more.

    What the update had added stays the lease's until the cloud has it back.
    """
    payload = dict(_payload_of(tx, event_id))
    refused = {one.id: one.parameters for one in lease.reservations if one.id in payload.get("parameters", {})}
    for reservation_id, parameters in payload.get("parameters", {}).items():
        tx.leases.change_reservations([reservation_id], now=now, parameters=parameters)
    tx.leases.change_reservations(payload.get("bound", ()), now=now, subject=None)
    values: dict[str, object] = {**columns_of(reason)}
    if before := payload.get("before"):
        ends_at = datetime.fromisoformat(before["ends_at"])
        values.update(name=before["name"], starts_at=datetime.fromisoformat(before["starts_at"]), ends_at=ends_at)
        before_it = replace(lease, ends_at=ends_at)
        end_with_the_lease(tx, before_it, rules, without=ids_in(payload, "added"), ending=payload.get("lasting", ()))
    if "events" in payload:
        restore_events(tx, lease.id, payload["events"], now)
    for moved_id, due in payload.get("due", {}).items():
        event = tx.events.get(moved_id)
        if event is not None and event.event.status is EventStatus.UNDONE and event.claim_token is None:
            due_at = datetime.fromisoformat(due)
            tx.events.change([moved_id], now=now, due_at=due_at, ready_at=due_at)
    tx.leases.change(lease, now=now, **values)
    remember(tx, lease.id, "undo", LeaseStatus.UPDATING, LeaseStatus.UPDATING, actor=ENGINE, now=now, reason=reason)
    tx.events.change(
        [event_id],
        now=now,
        payload={**payload, "undoing": True, "refused": refused},
        status=EventStatus.UNDONE.value,
        ready_at=now,
        attempts=0,
    )


def update_undone(tx: Transaction, event_id: str, lease: Lease, *, now: datetime) -> None:
    """Give back what an update that was refused had added: the cloud has it no more."""
    payload = _payload_of(tx, event_id)
    tx.leases.change_reservations(payload.get("new", ()), now=now, status=ReservationStatus.DELETED.value)
    added = ids_in(payload, "added")
    allocations = tx.allocations.of_reservations([one.id for one in lease.reservations])
    tx.allocations.remove([one.id for one in allocations if one.id in added and one.state is AllocationState.HELD])
    if lease.status is LeaseStatus.UPDATING:
        apply(tx, lease, Action.UPDATED, actor=ENGINE, now=now, keep_reason=True)
    tell_changed(tx, lease.id, now=now)  # who was told of it meanwhile


def end_with_the_lease(
    tx: Transaction, lease: Lease, rules: Rules, *, without: Collection[int] = (), ending: Collection[int] = ()
) -> None:
    """Have what the lease holds beyond its end end with it, but for the allocations in ``without``.

    What takes its room after the lease goes on doing so, unless it is among those that are ``ending``.
    Nothing is held for longer than before: what comes after may be promised to another lease already.
    """
    until = lease.ends_at + rules.cleaning_time
    held = [
        one.id
        for one in tx.allocations.of_reservations([one.id for one in lease.reservations])
        if one.state is AllocationState.HELD
        and one.id not in without
        and one.period.start < until
        and (one.period.end != ENDLESS or one.id in ending)
    ]
    tx.allocations.shorten(held, until)


def ids_in(payload: Mapping[str, Any], name: str) -> frozenset[int]:
    """The allocations that the payload of an update names so, of all reservations."""
    return frozenset(number for ids in payload.get(name, {}).values() for number in ids)


def _payload_of(tx: Transaction, event_id: str) -> Mapping[str, Any]:
    stored = tx.events.get(event_id)
    return (stored.payload if stored else None) or {}
