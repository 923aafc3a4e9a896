"""The end of a lease, the actions before it, and the notices that come with both."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from tenure.domain.actor import ENGINE
from tenure.domain.lease import Action, EventStatus, EventType, Lease, LeaseStatus, ReservationStatus
from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudError, Command, Progress
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.services.events.before_end import (
    given_up_reservations,
    has_failed,
    is_awaited,
    is_retried,
    notify_before_end,
    outcome_of,
    pending_actions,
    record_outcome,
    repetition_of,
    start_waiting,
)
from tenure.services.events.commands import commands_of
from tenure.services.events.late_starts import START_FAILED
from tenure.services.events.payloads import EndPayload, Payload
from tenure.services.events.user_events import due_events, notify_event
from tenure.services.execution.handler import Actions, Attempt, Handler, Work, lease_of, put_off, show_reason
from tenure.services.execution.handlers.calls import Calls, end_all, run_action
from tenure.services.notifications.records import apply, notify
from tenure.services.resources.cleaning import Cleaner
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent

_TO_COME = frozenset({EventStatus.UNDONE, EventStatus.IN_PROGRESS})


class BeforeEndHandler(Handler[Payload]):
    """Runs the actions before the end. An action that fails too often is skipped."""

    def begin(self, tx: Transaction, stored: StoredEvent, lease: Lease, now: datetime) -> Lease:
        claimed = super().begin(tx, stored, lease, now)
        notify_before_end(tx, self._types, claimed, now=now)
        return claimed

    def actions(self, tx: Transaction, stored: StoredEvent, lease: Lease) -> Actions:
        pending = pending_actions(tx, self._types, lease, at_the_end=False)
        return Actions(pending, repetition=repetition_of(tx, lease))

    def act(self, attempt: Attempt[Payload]) -> Progress:
        calls = Calls()
        for command in attempt.work.commands:
            try:
                calls.add(command.reservation_id, run_action(attempt, command, attempt.work.actions, set()))
            except CloudError as error:
                calls.errors.append(error)
        return calls.combined()

    def outcome(self, tx: Transaction, work: Work[Payload]) -> EventStatus:
        return EventStatus.ERROR if has_failed(tx, work.lease) else EventStatus.DONE

    def done(self, tx: Transaction, work: Work[Payload], lease: Lease, now: datetime) -> None:
        notify(tx, "lease.event.before_end_lease", lease, now=now)


class EndHandler(Handler[EndPayload]):
    """Takes the resources back, each as soon as it can be, and frees them for other leases.

    Actions before the end that are left run first. An end is retried without limit, at growing intervals, and the lease
    says why it takes so long.
    """

    def __init__(self, types: ResourceTypes, rules: Rules, cleaner: Cleaner) -> None:
        super().__init__(types, rules)
        self._cleaner = cleaner

    def begin(self, tx: Transaction, stored: StoredEvent, lease: Lease, now: datetime) -> Lease:
        reason = _cancel_others(tx, lease, stored.event.id, now)
        apply(tx, lease, Action.END, actor=ENGINE, now=now, reason=reason, keep_reason=True)
        claimed = lease_of(tx, lease.id)
        if reason is not None:
            record_outcome(tx, claimed, reason, now=now)
            notify(tx, START_FAILED, claimed, now=now)
        notify_before_end(tx, self._types, claimed, now=now)
        notice = lease.event(EventType.BEFORE_END)
        runs = lease.status in {LeaseStatus.ACTIVE, LeaseStatus.UPDATING}
        if runs and notice is not None and notice.status in _TO_COME and notice.due_at <= now:
            notify(tx, "lease.event.before_end_lease", claimed, now=now)  # the end runs the actions that are left
        if pending_actions(tx, self._types, claimed, at_the_end=True):
            start_waiting(tx, claimed, now=now)
        if claimed.status is not LeaseStatus.DELETING:
            for event in due_events(lease, now):  # the end has cancelled the coming events
                notify_event(tx, claimed, event, now=now)
        return claimed

    def commands(self, tx: Transaction, stored: StoredEvent, lease: Lease) -> Iterable[Command]:
        return commands_of(tx, [lease], pinned_only=True)

    def actions(self, tx: Transaction, stored: StoredEvent, lease: Lease) -> Actions:
        pending = pending_actions(tx, self._types, lease, at_the_end=True)
        return Actions(
            pending,
            given_up=given_up_reservations(tx, lease),
            waits=not pending or is_awaited(tx, lease, self._rules, now=tx.now()),
            retries=not pending or is_retried(lease, self._rules, attempts=stored.event.attempts),
            repetition=repetition_of(tx, lease),
        )

    def act(self, attempt: Attempt[EndPayload]) -> Progress:
        calls = end_all(attempt, attempt.work.commands, attempt.work.actions)
        if calls.is_partly_done:  # other leases get each released resource at once
            attempt.claims.write(attempt.work, self._give_back, calls.done)
            attempt.wake()
        return calls.combined()

    def done(self, tx: Transaction, work: Work[EndPayload], lease: Lease, now: datetime) -> None:
        self._give_back(tx, lease, now, [reservation.id for reservation in lease.reservations])
        if lease.status is LeaseStatus.DELETING:
            lease = apply(tx, lease, Action.DELETED, actor=ENGINE, now=now)
            notify(tx, "lease.delete", lease, now=now)
        elif lease.status in {LeaseStatus.TERMINATING, LeaseStatus.ERROR}:
            action = Action.FAIL if _has_failed_to_start(lease) else Action.ENDED
            # What the end has waited for is over. A failed start of an earlier release has recorded no outcome.
            outcome, keep = outcome_of(tx, lease), action is Action.FAIL
            apply(tx, lease, action, actor=ENGINE, now=now, reason=outcome, keep_reason=keep)
            notify(tx, "lease.event.end_lease", lease_of(tx, lease.id), now=now)

    def fail(self, tx: Transaction, work: Work[EndPayload], reason: Reason, now: datetime, *, final: bool) -> bool:
        if not put_off(tx, work, now + self._rules.delay_after(work.attempts), now):
            return False
        lease = lease_of(tx, work.lease.id)
        if (final or self.is_tried_enough(work, now)) and lease.status is LeaseStatus.TERMINATING:
            apply(tx, lease, Action.FAIL, actor=ENGINE, now=now, reason=reason)
        else:
            show_reason(tx, work, reason, now)
        return False

    def _give_back(self, tx: Transaction, lease: Lease, now: datetime, reservation_ids: Collection[str]) -> None:
        """Release the resources of these reservations."""
        self._cleaner.release(tx, reservation_ids, now=now)
        tx.allocations.remove_planned(reservation_ids)
        status = ReservationStatus.ERROR if _has_failed_to_start(lease) else ReservationStatus.DELETED
        ids = [
            reservation.id
            for reservation in lease.reservations
            if reservation.id in reservation_ids and reservation.status is not ReservationStatus.DELETED
        ]
        tx.leases.change_reservations(ids, now=now, status=status.value, subject=None)


def _has_failed_to_start(lease: Lease) -> bool:
    start = lease.event(EventType.START)
    return start is not None and start.status is EventStatus.ERROR


def _cancel_others(tx: Transaction, lease: Lease, event_id: str, now: datetime) -> Reason | None:
    """Cancel all other events of an ending lease; return a reason if it was never started."""
    reason = None
    for stored in tx.events.of_lease(lease.id):
        if stored.event.id == event_id or stored.ready_at is None:
            continue
        tx.events.change([stored.event.id], now=now, ready_at=None, claim_token=None, status="DONE")
        if stored.event.event_type is EventType.START and lease.status is not LeaseStatus.DELETING:
            reason = Reason("The start was missed: the lease had ended before it could be started.")
            if lease.reason is not None:
                reason = lease.reason.after(f"{reason} The last attempt: ")
    return reason
