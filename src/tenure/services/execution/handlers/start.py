"""The start of a lease."""

from __future__ import annotations

from datetime import datetime

from tenure.domain.actor import ENGINE
from tenure.domain.lease import Action, AllocationState, EventType, Lease, LeaseStatus, ReservationStatus
from tenure.domain.reason import Reason
from tenure.drivers.contract import Progress
from tenure.services.boots import forget_boot
from tenure.services.events.before_end import record_outcome
from tenure.services.events.late_starts import START_FAILED, notify_late
from tenure.services.events.payloads import StartPayload
from tenure.services.execution.handler import Attempt, Handler, Work, lease_of
from tenure.services.execution.handlers.calls import start_all
from tenure.services.notifications.records import apply, notify
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent


class StartHandler(Handler[StartPayload]):
    """Gives the owner the lease's resources.

    Claiming a start pins the plan: from here on the lease owns its resources. A start that is given up ends the lease
    in ERROR and takes everything back, but not before a good part of the lease has passed.
    """

    def may_begin(self, tx: Transaction, stored: StoredEvent, lease: Lease, now: datetime) -> bool:
        """Pin the lease's plan; return False if its resources are not released, or not clean."""
        clean_at = StartPayload.of(stored).not_before
        if clean_at is not None and clean_at > now:
            tx.events.change([stored.event.id], now=now, ready_at=clean_at)
            return False
        return self._pin(tx, lease, now)

    def begin(self, tx: Transaction, stored: StoredEvent, lease: Lease, now: datetime) -> Lease:
        apply(tx, lease, Action.START, actor=ENGINE, now=now, keep_reason=True)
        return lease_of(tx, lease.id)

    def act(self, attempt: Attempt[StartPayload]) -> Progress:
        return start_all(attempt, attempt.work.commands, needs_all=True)

    def done(self, tx: Transaction, work: Work[StartPayload], lease: Lease, now: datetime) -> None:
        ids = [command.reservation_id for command in work.commands]
        tx.leases.change_reservations(ids, now=now, status=ReservationStatus.ACTIVE.value)
        if lease.status is LeaseStatus.STARTING:
            apply(tx, lease, Action.STARTED, actor=ENGINE, now=now)
            forget_boot(tx, lease)
            notify(tx, "lease.event.start_lease", lease_of(tx, lease.id), now=now)

    def is_tried_enough(self, work: Work[StartPayload], now: datetime) -> bool:
        """Not before a good part of the lease has passed."""
        lease = work.lease
        return super().is_tried_enough(work, now) and now >= self._rules.give_up_start_at(
            lease.starts_at, lease.ends_at
        )

    def retry(self, tx: Transaction, work: Work[StartPayload], reason: Reason, now: datetime) -> None:
        super().retry(tx, work, reason, now)
        notify_late(tx, work.event_id, lease_of(tx, work.lease.id), now=now)

    def give_up(self, tx: Transaction, work: Work[StartPayload], lease: Lease, reason: Reason, now: datetime) -> bool:
        if lease.status is not LeaseStatus.STARTING:
            return super().give_up(tx, work, lease, reason, now)
        ids = [
            reservation.id for reservation in lease.reservations if reservation.status is not ReservationStatus.DELETED
        ]
        tx.leases.change_reservations(ids, now=now, status=ReservationStatus.ERROR.value)
        apply(tx, lease, Action.FAIL, actor=ENGINE, now=now, reason=reason)
        failed = lease_of(tx, lease.id)
        record_outcome(tx, failed, reason, now=now)
        notify(tx, START_FAILED, failed, now=now)
        end = lease.event(EventType.END)
        if end is not None:  # takes back at once what was started
            tx.events.change([end.id], now=now, ready_at=now)
        return False

    def _pin(self, tx: Transaction, lease: Lease, now: datetime) -> bool:
        """Pin the lease's plan; return False if an earlier lease has not released a resource."""
        ids = [reservation.id for reservation in lease.reservations]
        tx.lock_contended({resource_type.inventory for resource_type in self._types})
        allocations, versions = tx.allocations.with_versions(ids)
        if tx.allocations.predecessors(ids, now=now):
            return False
        if any(allocation.state is AllocationState.PLANNED for allocation in allocations):
            tx.resources.raise_versions(versions)
            tx.allocations.pin(ids)
        return True
