"""Changes of a running lease that the cloud has to follow, and undoing those that it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from tenure.domain.actor import ENGINE
from tenure.domain.lease import Action, AllocationState, EventStatus, Lease, LeaseStatus, ReservationStatus
from tenure.domain.reason import Reason
from tenure.drivers.contract import Command, Progress
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.services.events.before_end import notify_armed_again, restore_notice
from tenure.services.events.commands import commands_of
from tenure.services.events.payloads import UpdatePayload
from tenure.services.events.user_events import restore_events
from tenure.services.execution.handler import Attempt, Handler, Work, lease_of
from tenure.services.execution.handlers.calls import end_all, start_all
from tenure.services.leases.undoing import end_with_the_lease
from tenure.services.notifications.commitments import notify_updated
from tenure.services.notifications.records import apply, columns_of, notify, write_history
from tenure.services.resources.cleaning import Cleaner
from tenure.services.resources.healing import flag, lacking
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent


class UpdateHandler(Handler[UpdatePayload]):
    """Makes the cloud match the changed lease. A change that the cloud refuses is undone."""

    def __init__(self, types: ResourceTypes, rules: Rules, cleaner: Cleaner) -> None:
        super().__init__(types, rules)
        self._cleaner = cleaner

    def commands(self, tx: Transaction, stored: StoredEvent, lease: Lease) -> Iterable[Command]:
        return commands_of(tx, [lease], pinned_only=False, without=UpdatePayload.of(stored).replaced_ids)

    def act(self, attempt: Attempt[UpdatePayload]) -> Progress:
        work = attempt.work
        progress = end_all(attempt, _commands_in(work, work.payload.dropped)).combined()
        return start_all(attempt, _commands_not_in(work, work.payload.dropped)) if progress.done else progress

    def done(self, tx: Transaction, work: Work[UpdatePayload], lease: Lease, now: datetime) -> None:
        change = work.payload
        tx.leases.change_reservations(change.new, now=now, status=ReservationStatus.ACTIVE.value)
        if change.dropped:
            self._cleaner.release(tx, change.dropped, now=now)
            tx.leases.change_reservations(change.dropped, now=now, status=ReservationStatus.DELETED.value)
        for reservation_id, allocation_ids in change.replaced.items():
            self._cleaner.release(tx, [reservation_id], now=now, only=allocation_ids)
            tx.leases.change_reservations([reservation_id], now=now, resources_changed=True)
        if lease.status is not LeaseStatus.UPDATING:
            return
        # An earlier end has waited for this, and so has the removal of kept volumes that are not wanted any more.
        end_with_the_lease(tx, lease, self._rules, ending=change.ending)
        if change.replaced:
            lease = flag(tx, lease, lacking(tx, self._types, lease, lease.reason), now=now)
        apply(tx, lease, Action.UPDATED, actor=ENGINE, now=now, keep_reason=lease.degraded)
        topic = "lease.resources_changed" if change.replaced else "lease.update"
        changed = lease_of(tx, lease.id)
        notify(tx, topic, changed, now=now)
        notify_armed_again(tx, changed, change.notice, now=now)

    def give_up(self, tx: Transaction, work: Work[UpdatePayload], lease: Lease, reason: Reason, now: datetime) -> bool:
        """Restore the lease to what it was before the update; then the cloud has to follow once more.

        Allocations that the update had added stay with the lease until the cloud has taken them back.
        """
        if lease.status is not LeaseStatus.UPDATING:
            return super().give_up(tx, work, lease, reason, now)
        change = UpdatePayload.of(tx.events.get(work.event_id))
        refused = {
            reservation.id: reservation.parameters
            for reservation in lease.reservations
            if reservation.id in change.parameters
        }
        for reservation_id, parameters in change.parameters.items():
            tx.leases.change_reservations([reservation_id], now=now, parameters=parameters)
        tx.leases.change_reservations(change.bound, now=now, subject=None)
        values: dict[str, object] = {**columns_of(reason)}
        if before := change.before:
            values.update(before.details(), starts_at=before.starts_at, ends_at=before.ends_at)
            previous_lease = replace(lease, ends_at=before.ends_at)
            end_with_the_lease(tx, previous_lease, self._rules, without=change.added_ids, ending=change.lasting)
        if change.events is not None:
            restore_events(tx, lease.id, change.events, now)
        if change.notice is not None:
            restore_notice(tx, lease, change.notice, now=now)
        for moved_id, due_at in change.due.items():
            event = tx.events.get(moved_id)
            if event is not None and event.event.status is EventStatus.UNDONE and event.claim_token is None:
                tx.events.change([moved_id], now=now, due_at=due_at, ready_at=due_at)
        tx.leases.change(lease, now=now, **values)
        write_history(
            tx, lease.id, "undo", LeaseStatus.UPDATING, LeaseStatus.UPDATING, actor=ENGINE, now=now, reason=reason
        )
        tx.events.change(
            [work.event_id],
            now=now,
            payload=replace(change, undoing=True, refused=refused).to_json(),
            status=EventStatus.UNDONE.value,
            ready_at=now,
            attempts=0,
        )
        return True


class UndoHandler(Handler[UpdatePayload]):
    """Makes the cloud match the lease as it was before a change that the cloud has refused. Retried without limit."""

    def commands(self, tx: Transaction, stored: StoredEvent, lease: Lease) -> Iterable[Command]:
        change = UpdatePayload.of(stored)
        for command in commands_of(tx, [lease], pinned_only=False, without=change.added_ids):
            yield replace(command, withdrawn=change.refused.get(command.reservation_id, {}))

    def act(self, attempt: Attempt[UpdatePayload]) -> Progress:
        work = attempt.work
        progress = end_all(attempt, _commands_in(work, work.payload.new)).combined()
        if not progress.done:
            return progress
        return start_all(attempt, _commands_not_in(work, work.payload.new), waits_for_removal=True)

    def outcome(self, tx: Transaction, work: Work[UpdatePayload]) -> EventStatus:
        return EventStatus.ERROR

    def done(self, tx: Transaction, work: Work[UpdatePayload], lease: Lease, now: datetime) -> None:
        """Release the allocations that the refused update had added: the cloud has taken them back."""
        change = work.payload
        tx.leases.change_reservations(change.new, now=now, status=ReservationStatus.DELETED.value)
        allocations = tx.allocations.of_reservations([reservation.id for reservation in lease.reservations])
        tx.allocations.remove(
            [
                allocation.id
                for allocation in allocations
                if allocation.id in change.added_ids and allocation.state is AllocationState.HELD
            ]
        )
        if lease.status is LeaseStatus.UPDATING:
            apply(tx, lease, Action.UPDATED, actor=ENGINE, now=now, keep_reason=True)
        notify_updated(tx, lease.id, now=now)  # for services that were notified of the change meanwhile

    def fail(self, tx: Transaction, work: Work[UpdatePayload], reason: Reason, now: datetime, *, final: bool) -> bool:
        self.retry(tx, work, reason, now)
        return False


def _commands_in(work: Work[UpdatePayload], reservation_ids: Iterable[str]) -> list[Command]:
    return [command for command in work.commands if command.reservation_id in reservation_ids]


def _commands_not_in(work: Work[UpdatePayload], reservation_ids: Iterable[str]) -> list[Command]:
    return [command for command in work.commands if command.reservation_id not in reservation_ids]
