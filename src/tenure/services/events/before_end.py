"""Actions before the end of a reservation: which are pending, and which are finished.

They run at the lease's ``before_end_lease`` event. Those that are still pending when the lease ends run then, before
anything of the reservation is deleted. The payload of the end event, which every lease has, records the finished ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from tenure.domain.errors import InvalidState
from tenure.domain.lease import Event, EventStatus, EventType, Lease, LeaseStatus, ReservationStatus
from tenure.domain.reason import Reason
from tenure.resources.contract import LAST_SNAPSHOT, NOTIFY, SNAPSHOT, ResourceTypes
from tenure.services.context import Rules, new_id
from tenure.services.events.payloads import ActionsBefore, BeforeEndPayload, EndPayload, NoticeBefore
from tenure.services.notifications.records import notify
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent

#: The notification before a reservation's end, if it was asked for.
TOPIC = "lease.reservation.before_end"
#: The notification that actions which have run will run again, under Blazar's name.
ARMED_AGAIN = "lease.event.before_end_lease.stop"

_DELETION = frozenset({LeaseStatus.DELETING, LeaseStatus.DELETED})


def pending_actions(tx: Transaction, types: ResourceTypes, lease: Lease, *, at_the_end: bool) -> dict[str, str]:
    """Return the pending actions by reservation id: none for reservations that never ran or are being deleted.

    Actions that only run at the end itself are included only if ``at_the_end``. Then a snapshot is pending even if it
    was taken before: servers that were booted since have no image.
    """
    if lease.status in _DELETION:
        return {}
    actions = {
        reservation.id: action
        for reservation in lease.reservations
        if reservation.status is ReservationStatus.ACTIVE
        and (action := types[reservation.resource_type].before_end(reservation.parameters)) is not None
        and (at_the_end or action != LAST_SNAPSHOT)
    }
    payload = EndPayload.of(_end_of(tx, lease)) if actions else EndPayload()
    saved = {*payload.failed, *payload.saved_at_end}
    return {
        reservation_id: action
        for reservation_id, action in actions.items()
        if payload.finished.get(reservation_id) != action
        or (at_the_end and action == SNAPSHOT and reservation_id not in saved)
    }


def record_finished(
    tx: Transaction,
    lease: Lease,
    actions: Mapping[str, str],
    *,
    now: datetime,
    failed: bool = False,
    at_the_end: bool = False,
) -> None:
    """Record that these actions, by reservation id, are finished, or with ``failed`` that they are given up.

    With ``at_the_end``, they have run at the end itself, and not before it.
    """
    end = _end_of(tx, lease)
    payload = EndPayload.of(end)
    payload = replace(payload, finished={**payload.finished, **actions})
    if at_the_end:
        payload = replace(payload, saved_at_end=tuple(sorted({*payload.saved_at_end, *actions})))
    if failed:
        payload = replace(payload, failed=tuple(sorted({*payload.failed, *actions})))
    tx.events.change([end.event.id], now=now, payload=payload.to_json())


def add_notice(tx: Transaction, lease: Lease, due_at: datetime, *, now: datetime) -> NoticeBefore:
    """Add the event before the end to a lease that has none; return what ``restore_notice`` needs to undo that."""
    event = Event(new_id(), lease.id, EventType.BEFORE_END, due_at, EventStatus.UNDONE, 0, now)
    tx.events.add([event])
    return NoticeBefore(event_id=event.id)


def move_notice(
    tx: Transaction, stored: StoredEvent, lease: Lease, due_at: datetime, payload: BeforeEndPayload, *, now: datetime
) -> NoticeBefore | None:
    """Move the event before the end; return what ``restore_notice`` needs to undo that, or None if it stays.

    If it has begun, and is later now, all actions are armed again. An event that has begun is not moved to an earlier
    time.
    """
    event = stored.event
    if not may_move(stored, due_at):
        return None
    has_begun = not _is_open(stored) or event.due_at <= now
    before = NoticeBefore(
        event_id=event.id,
        due_at=event.due_at,
        status=EventStatus.UNDONE if event.status is EventStatus.IN_PROGRESS else event.status,
        distance=BeforeEndPayload.of(stored).distance,
        actions=_arm_again(tx, lease, now=now) if has_begun and due_at > event.due_at else None,
    )
    tx.events.change(
        [event.id],
        now=now,
        due_at=due_at,
        ready_at=due_at,
        attempts=0,
        status=EventStatus.UNDONE.value,
        claim_token=None,  # a worker that still runs it for the earlier end loses its claim
        payload=payload.to_json() or None,
    )
    return before


def may_move(stored: StoredEvent, due_at: datetime) -> bool:
    """Whether the event before the end moves to a time: if it has begun, to a later one only."""
    return due_at > stored.event.due_at or (due_at < stored.event.due_at and _is_open(stored))


def _is_open(stored: StoredEvent) -> bool:
    return stored.event.status is EventStatus.UNDONE and stored.claim_token is None


def restore_notice(tx: Transaction, lease: Lease, before: NoticeBefore, *, now: datetime) -> None:
    """Restore the event before the end, and what was recorded of its actions; what has run since stays recorded."""
    stored = tx.events.get(before.event_id)
    if stored is None or stored.event.status is not EventStatus.UNDONE or stored.claim_token is not None:
        return
    if before.due_at is None:
        tx.events.discard([before.event_id])
        return
    if stored.event.attempts and before.actions is not None:  # a part of the actions may have run again
        tx.events.change([before.event_id], now=now, due_at=before.due_at, ready_at=before.due_at)
        return
    tx.events.change(
        [before.event_id],
        now=now,
        due_at=before.due_at,
        ready_at=None if before.had_run else before.due_at,
        status=before.status.value,
        payload=replace(BeforeEndPayload.of(stored), distance=before.distance).to_json() or None,
    )
    if before.actions is not None:
        end = _end_of(tx, lease)
        actions = before.actions
        payload = replace(
            EndPayload.of(end),
            finished=actions.finished,
            failed=actions.failed,
            outcome=actions.outcome,
            outcome_detail=actions.outcome_detail,
            repetition=actions.repetition,
        )
        tx.events.change([end.event.id], now=now, payload=payload.to_json())


def notify_armed_again(tx: Transaction, lease: Lease, before: NoticeBefore | None, *, now: datetime) -> None:
    """Notify others if actions before the end that had run will run again."""
    if before is not None and before.had_run:
        notify(tx, ARMED_AGAIN, lease, now=now)


def _arm_again(tx: Transaction, lease: Lease, *, now: datetime) -> ActionsBefore:
    """Record that all actions are still to be run; return what was recorded before."""
    end = _end_of(tx, lease)
    payload = EndPayload.of(end)
    before = ActionsBefore(
        finished=payload.finished,
        failed=payload.failed,
        outcome=payload.outcome,
        outcome_detail=payload.outcome_detail,
        repetition=payload.repetition,
    )
    payload = replace(payload, finished={}, failed=(), outcome=None, outcome_detail=None)
    payload = replace(payload, repetition=payload.repetition + 1)
    tx.events.change([end.event.id], now=now, payload=payload.to_json())
    return before


def record_outcome(tx: Transaction, lease: Lease, reason: Reason, *, now: datetime) -> None:
    """Record the reason that the lease shows once it has ended."""
    end = _end_of(tx, lease)
    payload = replace(EndPayload.of(end), outcome=reason.text, outcome_detail=reason.detail)
    tx.events.change([end.event.id], now=now, payload=payload.to_json())


def outcome_of(tx: Transaction, lease: Lease) -> Reason | None:
    """Return the reason that the lease shows once it has ended, if there is one."""
    payload = EndPayload.of(_end_of(tx, lease))
    return None if payload.outcome is None else Reason(payload.outcome, payload.outcome_detail)


def repetition_of(tx: Transaction, lease: Lease) -> int:
    """Return how often the actions were armed again."""
    return EndPayload.of(_end_of(tx, lease)).repetition


def notice_after(
    stored: StoredEvent,
    lease: Lease,
    rules: Rules,
    starts_at: datetime,
    ends_at: datetime,
    notice_at: datetime | None,
) -> tuple[datetime, BeforeEndPayload]:
    """Return when the event before the end is due, and its payload, if the lease is changed to these dates.

    Without ``notice_at`` the event keeps its distance from the end. In a lease that is too short for this distance it
    is due at the start.
    """
    payload = BeforeEndPayload.of(stored)
    if notice_at is not None:
        return notice_at, replace(payload, distance=None)
    distance = payload.distance
    if distance is None:
        distance = lease.ends_at - stored.event.due_at
        if stored.event.due_at == lease.starts_at:  # no owner sets it to the start
            distance = max(distance, rules.notice_before_end)
    due_at = ends_at - distance
    is_too_short = due_at < starts_at
    return max(starts_at, due_at), replace(payload, distance=distance if is_too_short else None)


def given_up_reservations(tx: Transaction, lease: Lease) -> frozenset[str]:
    """Return the reservations with an action that was given up."""
    end = next((stored for stored in tx.events.of_lease(lease.id) if stored.event.event_type is EventType.END), None)
    return frozenset(EndPayload.of(end).failed)


def has_failed(tx: Transaction, lease: Lease) -> bool:
    """Whether an action was given up."""
    return bool(EndPayload.of(_end_of(tx, lease)).failed)


def notify_before_end(tx: Transaction, types: ResourceTypes, lease: Lease, *, now: datetime) -> None:
    """Notify others once of each reservation that asked for a notification before its end."""
    requested = {
        reservation_id: action
        for reservation_id, action in pending_actions(tx, types, lease, at_the_end=False).items()
        if action == NOTIFY
    }
    for reservation_id in requested:
        notify(tx, TOPIC, lease, now=now, reservation_id=reservation_id)
    if requested:
        record_finished(tx, lease, requested, now=now)


def start_waiting(tx: Transaction, lease: Lease, *, now: datetime) -> None:
    """Record since when the end waits for pending actions; an earlier record stays."""
    end = _end_of(tx, lease)
    payload = EndPayload.of(end)
    if payload.awaiting_since is None:
        tx.events.change([end.event.id], now=now, payload=replace(payload, awaiting_since=now).to_json())


def is_awaited(tx: Transaction, lease: Lease, rules: Rules, *, now: datetime) -> bool:
    """Whether the end still waits for a pending action."""
    since = EndPayload.of(_end_of(tx, lease)).awaiting_since
    return since is None or now < since + rules.before_end_patience


def is_retried(lease: Lease, rules: Rules, *, attempts: int) -> bool:
    """Whether an action that fails at the end is retried: not if the event before the end has already given it up."""
    event = lease.event(EventType.BEFORE_END)
    return attempts < rules.max_attempts and (event is None or event.status is not EventStatus.ERROR)


def _end_of(tx: Transaction, lease: Lease) -> StoredEvent:
    for stored in tx.events.of_lease(lease.id):
        if stored.event.event_type is EventType.END:
            return stored
    raise InvalidState(f"The lease {lease.id} has no end.")
