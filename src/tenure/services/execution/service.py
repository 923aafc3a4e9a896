"""The use cases of the engine: claim due events, and record the outcome of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zlib import crc32

from tenure.domain.actor import ENGINE
from tenure.domain.lease import AllocationState, EventStatus, EventType, Lease, LeaseStatus
from tenure.domain.reason import Reason
from tenure.drivers.contract import Progress
from tenure.planning.changes import changes_of
from tenure.planning.moving import relocate
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules, new_id
from tenure.services.events.late_starts import LATE_AFTER, notify_late
from tenure.services.events.payloads import UpdatePayload, payload_of
from tenure.services.execution.handler import Claims, Effects, Handler, Work, lease_of, put_off
from tenure.services.execution.handlers.end import BeforeEndHandler, EndHandler
from tenure.services.execution.handlers.expiry import ExpiryHandler, SearchHandler
from tenure.services.execution.handlers.notify import NotifyHandler
from tenure.services.execution.handlers.prepare import PrepareHandler
from tenure.services.execution.handlers.reconcile import ReconcileHandler
from tenure.services.execution.handlers.start import StartHandler
from tenure.services.execution.handlers.update import UndoHandler, UpdateHandler
from tenure.services.execution.handlers.wait import WaitHandler
from tenure.services.notifications.records import columns_of, write_history
from tenure.services.planning.demands import demand_of
from tenure.services.planning.planning import Planning, check_same
from tenure.services.resources.cleaning import Cleaner
from tenure.store.database import Database, Transaction
from tenure.store.events import StoredEvent

#: Why a start waits for an earlier lease.
_NOT_GIVEN_BACK = Reason("What the lease is to have was not given back in time.")


class EventService:
    """Claims events and records their outcome, each in one transaction; the engine acts between them."""

    def __init__(
        self,
        db: Database,
        types: ResourceTypes,
        rules: Rules,
        planning: Planning,
        *,
        on_reconciled: Callable[[str], None],
    ) -> None:
        """``on_reconciled`` is called with the type of each reservation that was reconciled."""
        self._db = db
        self._types = types
        self._rules = rules
        self._planning = planning
        self.claims = Claims(db, rules.claim_time)
        cleaner = Cleaner(types, rules, planning)
        self._handlers: Mapping[EventType, Handler[Any]] = {
            EventType.PREPARE: PrepareHandler(types, rules),
            EventType.START: StartHandler(types, rules),
            EventType.UPDATE: UpdateHandler(types, rules, cleaner),
            EventType.RECONCILE: ReconcileHandler(types, rules, on_reconciled),
            EventType.NOTIFY: NotifyHandler(types, rules),
            EventType.BEFORE_END: BeforeEndHandler(types, rules),
            EventType.END: EndHandler(types, rules, cleaner),
            EventType.HOLD: ExpiryHandler(types, rules),
            EventType.WAIT: WaitHandler(types, rules),
        }
        #: What becomes of a refused update, and of a provisional lease that was removed.
        self._undo = UndoHandler(types, rules)
        self._search = SearchHandler(types, rules)

    def ready(self, limit: int, *, starts: bool) -> list[str]:
        """Return the ids of claimable events, either starts or all others, longest ready first."""
        with self._db.read() as tx:
            return tx.events.ready(tx.now(), limit, starts=starts)

    def unattended(self) -> timedelta:
        """Return for how long the oldest claimable event has been ready; zero if there is none."""
        with self._db.read() as tx:
            now = tx.now()
            oldest = tx.events.oldest_ready_at(now)
            return max(now - oldest, timedelta(0)) if oldest else timedelta(0)

    def waiting(self, limit: int) -> list[str]:
        """Return the ids of due starts that wait for resources which an earlier lease has not released."""
        with self._db.read() as tx:
            return tx.events.waiting(tx.now(), limit)

    def ready_in(self) -> timedelta | None:
        """Return the time until the next event becomes ready, or None if there is none.

        By the clock of the database, which may differ from the clock of this process.
        """
        with self._db.read() as tx:
            now = tx.now()
            upcoming = tx.events.next_ready_at(now)
            return upcoming - now if upcoming is not None else None

    def claim(self, event_id: str) -> Work[Any] | None:
        """Claim a due event; return None if it is not claimable any more."""
        return self._db.write(self._claim, event_id)

    def _claim(self, tx: Transaction, event_id: str) -> Work[Any] | None:
        now = tx.now()
        stored = tx.events.get(event_id)
        lease = tx.leases.get(stored.event.lease_id, deleted=True, lock=True) if stored else None
        if stored is None or lease is None or not tx.events.is_claimable(event_id, now):
            return None
        handler = self._handler(stored, lease)
        if not handler.may_begin(tx, stored, lease, now):
            return None
        token = new_id()
        attempts = tx.events.claim(stored, token=token, until=now + self._rules.claim_time, now=now)
        return self._work(tx, handler, stored, handler.begin(tx, stored, lease, now), token, attempts)

    def take_over(self) -> int:
        """Expire all claims at once; return their number.

        For a process that knows it is the only manager: the events claimed by its predecessor need not wait.
        """
        return self._db.write(lambda tx: tx.events.expire_claims(tx.now()))

    def now(self) -> datetime:
        """Return the time of the database, by which events become due."""
        with self._db.read() as tx:
            return tx.now()

    def expire_late_claims(self) -> int:
        """Make ready now the events that wait for longer than any claim or delay lasts; return their number.

        For a manager that has noticed that the clock was set back.
        """
        return self._db.write(_expire_late_claims, self._rules)

    def cut_released(self) -> int:
        """End what is released and lasts longer than the cleaning time from now; return the number of allocations.

        For a manager that has noticed that the clock was set back: they were released by the earlier clock.
        """
        return self._db.write(lambda tx: tx.allocations.cut_released(tx.now() + self._rules.cleaning_time))

    def claimed(self, event_id: str, token: str) -> Work[Any] | None:
        """Return the work of an event that was claimed when it was written, or None if the claim is lost."""
        with self._db.read() as tx:
            stored = tx.events.get(event_id)
            lease = tx.leases.get(stored.event.lease_id) if stored else None
            if stored is None or lease is None or stored.claim_token != token:
                return None
            return self._work(tx, self._handler(stored, lease), stored, lease, token, stored.event.attempts)

    def give_back(self, event_id: str, token: str) -> None:
        """Release the claim of an event that was written as claimed, so that another worker takes it at once."""
        self._db.write(_give_back, event_id, token)

    def record(self, work: Work[Any], effects: Effects) -> None:
        """Record that the cloud matches; nothing if the claim is lost."""
        if self._db.write(lambda tx: work.handler.record(tx, work, effects, tx.now())):
            work.handler.after_record(work)

    def postpone(self, work: Work[Any], progress: Progress) -> None:
        """Release the claim because the cloud is not ready yet; this counts neither as a failure nor as an attempt."""
        self._db.write(lambda tx: work.handler.postpone(tx, work, progress, tx.now()))

    def record_failed(self, work: Work[Any], reason: Reason, *, final: bool) -> bool:
        """Record a failed attempt, ``final`` if another attempt cannot succeed; return whether to try again at once."""
        return self._db.write(lambda tx: work.handler.fail(tx, work, reason, tx.now(), final=final))

    def move_off(self, work: Work[Any], resources: Collection[str]) -> bool:
        """Replace these resources, named by external id, and retry at once.

        Returns False, and records nothing, if there are no other resources.
        """
        return work.handler.replaces and self._db.write(self._move_off, work, resources)

    def _move_off(self, tx: Transaction, work: Work[Any], resources: Collection[str]) -> bool:
        now = tx.now()
        stored = tx.events.get(work.event_id)
        if stored is None or stored.claim_token != work.token:
            return True  # another worker has claimed the event
        payload = payload_of(stored)
        # All occupied resources since the last delay: otherwise the plan would alternate between two of them.
        met = {*payload.occupied, *self._pinned_ids(tx, work, resources)}
        lease = lease_of(tx, work.lease.id)
        moved = self._move_allocations(tx, lease, now, states={AllocationState.HELD}, resource_ids=met)
        payload = replace(payload, occupied=tuple(sorted(met)) if moved else ())
        tx.events.change([work.event_id], now=now, payload=payload.to_json() or None)
        return moved and put_off(tx, work, now, now, attempts=max(0, work.attempts - 1))

    def move_off_unreturned(self, event_id: str) -> bool:
        """Plan a due start on other resources if an earlier lease has not released its own.

        Returns whether the start can go on; this is also true if there is room beside the other allocations.
        """
        return self._db.write(self._move_off_unreturned, event_id)

    def _move_off_unreturned(self, tx: Transaction, event_id: str) -> bool:
        now = tx.now()
        stored = tx.events.get(event_id)
        lease = tx.leases.get(stored.event.lease_id, lock=True) if stored else None
        if lease is None or lease.status is not LeaseStatus.PENDING:
            return False
        ids = tx.allocations.predecessors([reservation.id for reservation in lease.reservations], now=now)
        if not ids or self._move_allocations(tx, lease, now, states={AllocationState.PLANNED}, resource_ids=ids):
            return True
        _report_waiting(tx, event_id, lease, now)
        return False

    # --- inside

    def _handler(self, stored: StoredEvent, lease: Lease) -> Handler[Any]:
        event_type = stored.event.event_type
        if event_type is EventType.HOLD and lease.status in {LeaseStatus.DELETED, LeaseStatus.ERROR}:
            return self._search
        if event_type is EventType.UPDATE and UpdatePayload.of(stored).undoing:
            return self._undo
        return self._handlers[event_type]

    def _work(
        self, tx: Transaction, handler: Handler[Any], stored: StoredEvent, lease: Lease, token: str, attempts: int
    ) -> Work[Any]:
        event = replace(stored.event, attempts=attempts)
        stored = replace(stored, event=event)
        return Work(
            handler=handler,
            event_id=event.id,
            token=token,
            event_type=event.event_type,
            due_at=event.due_at,
            attempts=attempts,
            lease=lease,
            commands=tuple(handler.commands(tx, stored, lease)),
            payload=payload_of(stored),
            actions=handler.actions(tx, stored, lease),
        )

    def _move_allocations(
        self,
        tx: Transaction,
        lease: Lease,
        now: datetime,
        *,
        states: Collection[AllocationState],
        resource_ids: Collection[int],
    ) -> bool:
        """Move the lease's allocations on these resources to others; all of them or none. Return whether any moved.

        Nothing moves to any of the given resources.
        """
        before = after = self._planning.snapshot()
        terms = self._planning.terms(before, (), now=now, seed=crc32(lease.id.encode()))
        for reservation in lease.reservations:
            demand = demand_of(self._types, reservation)
            allocations, _ = tx.allocations.with_versions([reservation.id])
            check_same(before, allocations)
            for allocation in allocations:
                is_asked_for = allocation.state in states and allocation.resource_id in resource_ids
                if is_asked_for and after.has(allocation):  # others of its reservation may have taken it along
                    relocated = relocate(after, allocation, demand, terms, without=resource_ids)
                    if relocated is None:
                        return False
                    after = relocated
        changes = changes_of(before, after)
        if changes:
            tx.raise_versions(changes.versions)
            tx.allocations.apply(changes, now=now)
            tx.leases.change(lease, now=now)
        return bool(changes)

    def _pinned_ids(self, tx: Transaction, work: Work[Any], external_ids: Collection[str]) -> list[int]:
        """Return the ids of the lease's pinned resources that have these external ids."""
        allocations = tx.allocations.of_reservations([command.reservation_id for command in work.commands])
        pinned = tx.resources.by_ids(
            allocation.resource_id for allocation in allocations if allocation.state is AllocationState.HELD
        )
        return [resource_id for resource_id, resource in pinned.items() if resource.external_id in external_ids]


def _expire_late_claims(tx: Transaction, rules: Rules) -> int:
    now = tx.now()
    return tx.events.expire_late(now, claims_after=now + rules.claim_time, delays_after=now + rules.max_delay)


def _give_back(tx: Transaction, event_id: str, token: str) -> None:
    now = tx.now()
    tx.events.finish(event_id, token=token, now=now, status=EventStatus.UNDONE.value, ready_at=now, attempts=0)


def _report_waiting(tx: Transaction, event_id: str, lease: Lease, now: datetime) -> None:
    """Show once that a start waits for what an earlier lease has, and notify others."""
    if now < lease.starts_at + LATE_AFTER:
        return
    if lease.reason is None:
        tx.leases.change(lease, now=now, **columns_of(_NOT_GIVEN_BACK))
        write_history(tx, lease.id, "wait", lease.status, lease.status, actor=ENGINE, now=now, reason=_NOT_GIVEN_BACK)
        lease = lease_of(tx, lease.id)
    notify_late(tx, event_id, lease, now=now)
