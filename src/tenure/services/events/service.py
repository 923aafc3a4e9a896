"""The use cases of the engine: claim due events, and record the outcome of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from zlib import crc32

from tenure.domain.actor import ENGINE
from tenure.domain.errors import InvalidState
from tenure.domain.lease import (
    Action,
    AllocationState,
    EventStatus,
    EventType,
    Lease,
    LeaseStatus,
    ReservationStatus,
)
from tenure.domain.reason import Reason
from tenure.drivers.contract import SLOWEST_BOOT, Order, Progress
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules, apply, columns_of, new_id, notify, write_history
from tenure.services.events.before_end import (
    given_up_reservations,
    has_failed,
    is_awaited,
    is_retried,
    notify_before_end,
    pending_actions,
    record_finished,
    start_waiting,
)
from tenure.services.events.orders import leftover_orders, orders_of
from tenure.services.events.payloads import MendPayload, StartPayload, UpdatePayload, payload_of
from tenure.services.events.user_events import due_events, notify_event
from tenure.services.leases.undoing import (
    end_with_the_lease,
    give_up,
    is_promised,
    undo_update,
    unmake,
    update_undone,
)
from tenure.services.planning.demands import demand_of
from tenure.services.planning.planner import Planner, Stuck
from tenure.services.resources.cleaning import release
from tenure.services.resources.healing import flag, lacking
from tenure.store.database import Database, Transaction
from tenure.store.events import StoredEvent

#: The cloud resources that clients see, such as the id of an aggregate, by reservation id.
Effects = Mapping[str, Mapping[str, object]]

#: The events that run the actions before the end.
_RUN_ACTIONS = frozenset({EventType.BEFORE_END, EventType.END})
#: Claiming these events changes nothing on the lease that its owner sees.
_INVISIBLE = frozenset({EventType.MEND, EventType.NOTIFY})
_TO_COME = frozenset({EventStatus.UNDONE, EventStatus.IN_PROGRESS})
_ACTIONS: Mapping[EventType, Action] = {EventType.START: Action.START, EventType.END: Action.END}


@dataclass(frozen=True, slots=True)
class Work:
    """A claimed event, with everything needed to carry it out."""

    event_id: str
    token: str
    event_type: EventType
    due_at: datetime
    attempts: int
    lease: Lease
    orders: tuple[Order, ...]
    #: The actions before the end that are still to be run, by reservation id.
    actions: Mapping[str, str] = field(default_factory=dict)
    #: The reservations whose action was given up at an earlier attempt.
    unsaved: frozenset[str] = frozenset()
    #: Whether to wait for actions that are not done.
    waits: bool = True
    #: Whether to retry actions that fail.
    retries: bool = True
    #: The reservations that an update drops, or those that it had added when it is undone.
    dropped: frozenset[str] = frozenset()
    #: Whether the update was refused, and the cloud is restored to the lease before it.
    undoing: bool = False
    #: The allocations that are replaced, by reservation id.
    replaced: Mapping[str, Collection[int]] = field(default_factory=dict)
    #: The reservations that differ in the cloud from the ledger.
    drifted: frozenset[str] = frozenset()


class EventService:
    """Claims events and records their outcome, each in one transaction; the engine acts between them."""

    def __init__(self, db: Database, types: ResourceTypes, rules: Rules) -> None:
        self._db = db
        self._types = types
        self._rules = rules

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

    def claim(self, event_id: str) -> Work | None:
        """Claim a due event; return None if it is not claimable any more.

        Claiming a start pins the plan: from here on the lease owns its resources.
        """

        def work(tx: Transaction) -> Work | None:
            now = tx.now()
            stored = tx.events.get(event_id)
            lease = tx.leases.get(stored.event.lease_id, deleted=True, lock=True) if stored else None
            if stored is None or lease is None or not tx.events.is_claimable(event_id, now):
                return None
            if stored.event.event_type is EventType.START and not self._can_start(tx, stored, lease, now):
                return None
            return self._take_claim(tx, stored, lease, now)

        return self._db.write(work)

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

        def expire(tx: Transaction) -> int:
            now = tx.now()
            return tx.events.expire_late(
                now, claims_after=now + self._rules.claim_time, delays_after=now + self._rules.max_delay
            )

        return self._db.write(expire)

    def claimed(self, event_id: str, token: str) -> Work | None:
        """Return the work of an event that was claimed when it was written, or None if the claim is lost."""
        with self._db.read() as tx:
            stored = tx.events.get(event_id)
            lease = tx.leases.get(stored.event.lease_id) if stored else None
            if stored is None or lease is None or stored.claim_token != token:
                return None
            return self._work(tx, stored, lease, token, attempts=stored.event.attempts)

    def give_back(self, event_id: str, token: str) -> None:
        """Release the claim of an event that was written as claimed, so that another worker takes it at once."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            tx.events.finish(event_id, token=token, now=now, status=EventStatus.UNDONE.value, ready_at=now, attempts=0)

        self._db.write(record)

    def renew(self, work: Work) -> bool:
        """Renew a claim while acting; return False if it is lost, and the worker must stop."""

        def extend(tx: Transaction) -> bool:
            until = tx.now() + self._rules.claim_time
            return tx.events.renew(work.event_id, token=work.token, until=until)

        return self._db.write(extend)

    def record_prepared(self, work: Work, effects: Effects) -> None:
        """Record that the cloud resources which clients must see of a new lease exist."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            if not self._finish_event(tx, work, now):
                return
            tx.leases.add_effects(effects, now=now)
            lease = self._lease(tx, work)
            # The lease is confirmed and complete: from now on it is not provisional any more.
            tx.events.discard([event.id for event in lease.events if event.event_type is EventType.HOLD])
            if lease.status is LeaseStatus.CREATING:
                apply(tx, lease, Action.PREPARED, actor=ENGINE, now=now)
                notify(tx, "lease.create", self._lease(tx, work), now=now)

        self._db.write(record)

    def record_started(self, work: Work, effects: Effects) -> None:
        """Record that the owner has the lease's resources."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            if not self._finish_event(tx, work, now):
                return
            tx.leases.add_effects(effects, now=now)
            lease = self._lease(tx, work)
            ids = [order.reservation_id for order in work.orders]
            tx.leases.change_reservations(ids, now=now, status=ReservationStatus.ACTIVE.value)
            if lease.status is LeaseStatus.STARTING:
                apply(tx, lease, Action.STARTED, actor=ENGINE, now=now)
                notify(tx, "lease.event.start_lease", self._lease(tx, work), now=now)

        self._db.write(record)

    def record_updated(self, work: Work, effects: Effects) -> None:
        """Record that the cloud matches the changed lease."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            outcome = EventStatus.ERROR if work.undoing else EventStatus.DONE
            if not self._finish_event(tx, work, now, outcome=outcome):
                return
            tx.leases.add_effects(effects, now=now)
            lease = self._lease(tx, work)
            if work.undoing:
                update_undone(tx, work.event_id, lease, now=now)
                return
            stored = tx.events.get(work.event_id)
            payload = UpdatePayload.of(stored)
            tx.leases.change_reservations(payload.new, now=now, status=ReservationStatus.ACTIVE.value)
            if work.dropped:
                release(tx, self._types, self._rules, work.dropped, now=now)
                tx.leases.change_reservations(work.dropped, now=now, status=ReservationStatus.DELETED.value)
            for reservation_id, allocation_ids in work.replaced.items():
                release(tx, self._types, self._rules, [reservation_id], now=now, only=allocation_ids)
                tx.leases.change_reservations([reservation_id], now=now, resources_changed=True)
            if lease.status is LeaseStatus.UPDATING:
                # An earlier end has waited for this, and so has the removal of kept volumes that are not wanted any
                # more.
                end_with_the_lease(tx, lease, self._rules, ending=payload.ending)
                if work.replaced:
                    lease = flag(tx, lease, lacking(tx, self._types, lease, lease.reason), now=now)
                apply(tx, lease, Action.UPDATED, actor=ENGINE, now=now, keep_reason=lease.degraded)
                topic = "lease.resources_changed" if work.replaced else "lease.update"
                notify(tx, topic, self._lease(tx, work), now=now)

        self._db.write(record)

    def record_mended(self, work: Work, effects: Effects) -> bool:
        """Record that the cloud matches the ledger again; return False if the claim was lost.

        No notification is sent: the lease has not changed. The event is deleted.
        """

        def record(tx: Transaction) -> bool:
            kept = tx.events.remove(work.event_id, token=work.token)
            if kept:
                tx.leases.add_effects(effects, now=tx.now())
            return kept

        return self._db.write(record)

    def record_action_finished(self, work: Work, reservation_id: str, reason: Reason | None = None) -> None:
        """Record that a reservation's action before the end is finished, or given up for this ``reason``.

        Records nothing if the claim is lost.
        """

        def record(tx: Transaction) -> None:
            now = tx.now()
            stored = tx.events.get(work.event_id)
            if stored is None or stored.claim_token != work.token:
                return
            actions = {reservation_id: work.actions[reservation_id]}
            record_finished(tx, self._lease(tx, work), actions, now=now, failed=reason is not None)
            if reason is not None:
                self._show_reason(tx, work, reason, now)

        self._db.write(record)

    def record_actions_before_end(self, work: Work) -> None:
        """Record that all actions before the end are finished or given up."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            outcome = EventStatus.ERROR if has_failed(tx, work.lease) else EventStatus.DONE
            if self._finish_event(tx, work, now, outcome=outcome):
                notify(tx, "lease.event.before_end_lease", self._lease(tx, work), now=now)

        self._db.write(record)

    def record_notified(self, work: Work) -> None:
        """Record that an event of the owner has come, and notify others."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            if self._finish_event(tx, work, now):
                lease = self._lease(tx, work)
                notify_event(tx, lease, next(event for event in lease.events if event.id == work.event_id), now=now)

        self._db.write(record)

    def record_expired(self, work: Work) -> None:
        """Record the end of a provisional lease that was not confirmed in time; no notification is sent.

        If the lease has failed or is deleted, the event was a search for its remains: search again once the slowest
        boot must be over, then delete the event.
        """

        def record(tx: Transaction) -> None:
            now = tx.now()
            if not _is_search_for_remains(work.event_type, work.lease):
                if self._finish_event(tx, work, now):
                    unmake(tx, self._lease(tx, work), Reason("It was not confirmed in time."), now=now)
            elif (last_at := work.due_at + SLOWEST_BOOT) > now:
                self._search_later(tx, work, last_at, now)
            else:
                tx.events.remove(work.event_id, token=work.token)

        self._db.write(record)

    def record_released(self, work: Work, reservation_ids: Collection[str]) -> None:
        """Record that some reservations of an ending lease are released, while others are not yet."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            stored = tx.events.get(work.event_id)
            if stored is not None and stored.claim_token == work.token:
                self._give_back(tx, self._lease(tx, work), reservation_ids, now)

        self._db.write(record)

    def record_ended(self, work: Work) -> None:
        """Record that the lease has ended; its resources are free from now on."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            if not self._finish_event(tx, work, now):
                return
            lease = self._lease(tx, work)
            failed = self._give_back(tx, lease, [reservation.id for reservation in lease.reservations], now)
            if lease.status is LeaseStatus.DELETING:
                lease = apply(tx, lease, Action.DELETED, actor=ENGINE, now=now)
                notify(tx, "lease.delete", lease, now=now)
            elif lease.status in {LeaseStatus.TERMINATING, LeaseStatus.ERROR}:
                action = Action.FAIL if failed else Action.ENDED
                apply(tx, lease, action, actor=ENGINE, now=now, keep_reason=True)
                notify(tx, "lease.event.end_lease", self._lease(tx, work), now=now)

        self._db.write(record)

    def postpone(self, work: Work, progress: Progress) -> None:
        """Release the claim because the cloud is not ready yet; this counts neither as a failure nor as an attempt."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            again_at = now + progress.look_again_after
            if _is_search_for_remains(work.event_type, work.lease):
                self._search_later(tx, work, again_at, now)
                return
            finished = tx.events.finish(
                work.event_id,
                token=work.token,
                now=now,
                status=EventStatus.UNDONE.value,
                ready_at=again_at,
                attempts=max(0, work.attempts - 1),
            )
            if finished and progress.told is not None:
                self._show_reason(tx, work, progress.told.cut(), now)

        self._db.write(record)

    def record_failed(self, work: Work, reason: Reason, *, final: bool) -> None:
        """Record a failed attempt; ``final`` if another attempt cannot succeed.

        An end is retried without limit, at growing intervals, and the lease says why it takes so long. Other events are
        given up after too many attempts or a final error. A start that is given up ends the lease in ERROR and takes
        everything back, but not before a good part of the lease has passed. An update is undone, which is retried
        without limit, too. An action before the end is skipped.
        """

        def record(tx: Transaction) -> None:
            now = tx.now()
            exhausted = final or self._is_tried_enough(work, now)
            if work.event_type is EventType.PREPARE and work.lease.event(EventType.HOLD) is not None:
                exhausted = final  # the owner has confirmed the lease, and may have been notified that it exists
            if work.event_type is EventType.MEND:
                self._mend_later(tx, work, now, exhausted=exhausted)
            elif _is_search_for_remains(work.event_type, work.lease):
                if final and work.due_at + SLOWEST_BOOT <= now:
                    # no attempt can succeed, and nothing more can appear
                    tx.events.remove(work.event_id, token=work.token)
                else:
                    again_at = now + self._rules.delay_after(work.attempts)
                    self._search_later(tx, work, again_at, now, attempts=work.attempts)
            elif work.event_type is EventType.END or work.undoing or not exhausted:
                self._try_later(tx, work, reason, now, exhausted=exhausted)
            elif self._finish_event(tx, work, now, outcome=EventStatus.ERROR):
                self._give_up(tx, work, reason, now)

        self._db.write(record)

    def _is_tried_enough(self, work: Work, now: datetime) -> bool:
        """Whether the failed event is given up; a start not before a good part of the lease has passed."""
        if work.attempts < self._rules.max_attempts:
            return False
        lease = work.lease
        return work.event_type is not EventType.START or now >= self._rules.give_up_start_at(
            lease.starts_at, lease.ends_at
        )

    def move_off(self, work: Work, resources: Collection[str]) -> bool:
        """Replace these resources, named by external id, and retry at once.

        Returns False, and records nothing, if there are no other resources.
        """
        if work.event_type is EventType.MEND:
            return False  # the resources of a running lease do not move here: healing replaces them

        def record(tx: Transaction) -> bool:
            now = tx.now()
            stored = tx.events.get(work.event_id)
            if stored is None or stored.claim_token != work.token:
                return True  # another worker has claimed the event
            payload = payload_of(stored)
            # All occupied resources since the last delay: otherwise the plan would alternate between two of them.
            met = {*payload.occupied, *self._pinned_ids(tx, work, resources)}
            moved = self._move_allocations(
                tx, self._lease(tx, work), now, states={AllocationState.HELD}, resource_ids=met
            )
            payload = replace(payload, occupied=tuple(sorted(met)) if moved else ())
            tx.events.change([work.event_id], now=now, payload=payload.to_json() or None)
            return bool(moved) and tx.events.finish(
                work.event_id,
                token=work.token,
                now=now,
                status=EventStatus.UNDONE.value,
                ready_at=now,
                attempts=max(0, work.attempts - 1),
            )

        return self._db.write(record)

    def move_off_unreturned(self, event_id: str) -> bool:
        """Plan a due start on other resources if an earlier lease has not released its own.

        Returns whether the start can go on; this is also true if there is room beside the other allocations.
        """

        def work(tx: Transaction) -> bool:
            now = tx.now()
            stored = tx.events.get(event_id)
            lease = tx.leases.get(stored.event.lease_id, lock=True) if stored else None
            if lease is None or lease.status is not LeaseStatus.PENDING:
                return False
            ids = tx.allocations.predecessors([reservation.id for reservation in lease.reservations], now=now)
            return not ids or bool(
                self._move_allocations(tx, lease, now, states={AllocationState.PLANNED}, resource_ids=ids)
            )

        return self._db.write(work)

    # --- inside

    def _can_start(self, tx: Transaction, stored: StoredEvent, lease: Lease, now: datetime) -> bool:
        """Pin the lease's plan; return False if its resources are not released, or not clean."""
        clean_at = StartPayload.of(stored).not_before
        if clean_at is not None and clean_at > now:
            tx.events.change([stored.event.id], now=now, ready_at=clean_at)
            return False
        return self._pin(tx, lease, now)

    def _pin(self, tx: Transaction, lease: Lease, now: datetime) -> bool:
        """Pin the lease's plan; return False if an earlier lease has not released a resource."""
        ids = [reservation.id for reservation in lease.reservations]
        tx.hold({kind.inventory for kind in self._types})
        allocations, versions = tx.allocations.with_versions(ids)
        if tx.allocations.predecessors(ids, now=now):
            return False
        if any(allocation.state is AllocationState.PLANNED for allocation in allocations):
            tx.resources.raise_versions(versions)
            tx.allocations.pin(ids)
        return True

    def _take_claim(self, tx: Transaction, stored: StoredEvent, lease: Lease, now: datetime) -> Work:
        event = stored.event
        token = new_id()
        action = _ACTIONS.get(event.event_type)
        if action is None:
            unseen = event.event_type in _INVISIBLE or _is_search_for_remains(event.event_type, lease)
            tx.leases.change(lease, now=lease.updated_at if unseen else now)
        else:
            reason = None
            if event.event_type is EventType.END:
                reason = self._cancel_others(tx, lease, event.id, now)
            apply(tx, lease, action, actor=ENGINE, now=now, reason=reason, keep_reason=True)
        attempts = tx.events.claim(stored, token=token, until=now + self._rules.claim_time, now=now)
        claimed = self._lease_of(tx, lease.id)
        if event.event_type in _RUN_ACTIONS:
            self._notify_before_end(tx, lease, claimed, event.event_type, now)
        return self._work(tx, stored, claimed, token, attempts=attempts)

    def _notify_before_end(
        self, tx: Transaction, before: Lease, lease: Lease, event_type: EventType, now: datetime
    ) -> None:
        """Send the notifications that are due before the end; ``before`` is the lease as it was before the claim."""
        notify_before_end(tx, self._types, lease, now=now)
        if event_type is not EventType.END:
            return
        notice = before.event(EventType.BEFORE_END)
        runs = before.status in {LeaseStatus.ACTIVE, LeaseStatus.UPDATING}
        if runs and notice is not None and notice.status in _TO_COME and notice.due_at <= now:
            notify(tx, "lease.event.before_end_lease", lease, now=now)  # the end runs the actions that are left
        if pending_actions(tx, self._types, lease, at_the_end=True):
            start_waiting(tx, lease, now=now)
        if lease.status is not LeaseStatus.DELETING:
            for event in due_events(before, now):  # the end has cancelled the coming events
                notify_event(tx, lease, event, now=now)

    def _give_back(self, tx: Transaction, lease: Lease, reservation_ids: Collection[str], now: datetime) -> bool:
        """Release the resources of these reservations; return whether the lease had failed to start."""
        release(tx, self._types, self._rules, reservation_ids, now=now)
        tx.allocations.remove_planned(reservation_ids)
        failed = any(
            event.event_type is EventType.START and event.status is EventStatus.ERROR for event in lease.events
        )
        status = ReservationStatus.ERROR if failed else ReservationStatus.DELETED
        ids = [
            reservation.id
            for reservation in lease.reservations
            if reservation.id in reservation_ids and reservation.status is not ReservationStatus.DELETED
        ]
        tx.leases.change_reservations(ids, now=now, status=status.value, subject=None)
        return failed

    def _cancel_others(self, tx: Transaction, lease: Lease, event_id: str, now: datetime) -> Reason | None:
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

    def _work(self, tx: Transaction, stored: StoredEvent, lease: Lease, token: str, *, attempts: int) -> Work:
        payload = payload_of(stored)
        update = payload if isinstance(payload, UpdatePayload) else UpdatePayload()
        undoing = update.undoing
        without = update.added_ids if undoing else update.replaced_ids
        ends = stored.event.event_type is EventType.END
        near = stored.event.event_type in _RUN_ACTIONS
        actions = pending_actions(tx, self._types, lease, at_the_end=ends) if near else {}
        at_the_end = bool(actions) and ends
        orders: Iterable[Order] = orders_of(tx, [lease], pinned_only=ends, without=without)
        if stored.event.event_type is EventType.HOLD:
            over = lease.reservations if _is_search_for_remains(EventType.HOLD, lease) else ()
            orders = leftover_orders(tx, [reservation.id for reservation in over])
        elif undoing:
            orders = (replace(order, withdrawn=update.refused.get(order.reservation_id, {})) for order in orders)
        return Work(
            event_id=stored.event.id,
            token=token,
            event_type=stored.event.event_type,
            due_at=stored.event.due_at,
            attempts=attempts,
            lease=lease,
            orders=tuple(orders),
            actions=actions,
            unsaved=given_up_reservations(tx, lease) if ends else frozenset(),
            waits=not at_the_end or is_awaited(tx, lease, self._rules, now=tx.now()),
            retries=not at_the_end or is_retried(lease, self._rules, attempts=attempts),
            dropped=frozenset(update.new if undoing else update.dropped),
            undoing=undoing,
            replaced={} if undoing else update.replaced,
            drifted=frozenset(payload.drifted if isinstance(payload, MendPayload) else ()),
        )

    def _finish_event(
        self, tx: Transaction, work: Work, now: datetime, *, outcome: EventStatus = EventStatus.DONE
    ) -> bool:
        """Release the claim for good; return False if it is lost and nothing may be recorded."""
        return tx.events.finish(work.event_id, token=work.token, now=now, status=outcome.value, ready_at=None)

    def _try_later(self, tx: Transaction, work: Work, reason: Reason, now: datetime, *, exhausted: bool) -> None:
        again_at = now + self._rules.delay_after(work.attempts)
        if not tx.events.finish(
            work.event_id, token=work.token, now=now, status=EventStatus.UNDONE.value, ready_at=again_at
        ):
            return
        lease = self._lease(tx, work)
        if exhausted and lease.status is LeaseStatus.TERMINATING:
            apply(tx, lease, Action.FAIL, actor=ENGINE, now=now, reason=reason)
        else:
            self._show_reason(tx, work, reason, now)

    def _search_later(self, tx: Transaction, work: Work, then: datetime, now: datetime, *, attempts: int = 0) -> None:
        """Search later for remains of an ended lease; nothing is shown on the lease."""
        undone = EventStatus.UNDONE.value
        tx.events.finish(work.event_id, token=work.token, now=now, status=undone, ready_at=then, attempts=attempts)

    def _mend_later(self, tx: Transaction, work: Work, now: datetime, *, exhausted: bool) -> None:
        """Retry later. If attempts are exhausted, delete the event: the next drift pass finds the difference again."""
        if exhausted:
            tx.events.remove(work.event_id, token=work.token)
            return
        again_at = now + self._rules.delay_after(work.attempts)
        tx.events.finish(work.event_id, token=work.token, now=now, status=EventStatus.UNDONE.value, ready_at=again_at)

    def _give_up(self, tx: Transaction, work: Work, reason: Reason, now: datetime) -> None:
        lease = self._lease(tx, work)
        if work.event_type is EventType.START and lease.status is LeaseStatus.STARTING:
            ids = [
                reservation.id
                for reservation in lease.reservations
                if reservation.status is not ReservationStatus.DELETED
            ]
            tx.leases.change_reservations(ids, now=now, status=ReservationStatus.ERROR.value)
            apply(tx, lease, Action.FAIL, actor=ENGINE, now=now, reason=reason)
            end = lease.event(EventType.END)
            if end is not None:  # takes back at once what was started
                tx.events.change([end.id], now=now, ready_at=now)
        elif work.event_type is EventType.PREPARE and lease.status is LeaseStatus.CREATING:
            undo = give_up if is_promised(tx, work.event_id) else unmake
            undo(tx, lease, reason, now=now)
        elif work.event_type is EventType.UPDATE and lease.status is LeaseStatus.UPDATING:
            undo_update(tx, work.event_id, lease, self._rules, reason, now=now)
        else:
            self._show_reason(tx, work, reason, now)

    def _show_reason(self, tx: Transaction, work: Work, reason: Reason, now: datetime) -> None:
        """Show a reason on the lease without changing its status."""
        lease = self._lease(tx, work)
        if lease.reason != reason:
            tx.leases.change(lease, now=now, **columns_of(reason))
            write_history(
                tx, lease.id, work.event_type.value, lease.status, lease.status, actor=ENGINE, now=now, reason=reason
            )

    def _move_allocations(
        self,
        tx: Transaction,
        lease: Lease,
        now: datetime,
        *,
        states: Collection[AllocationState],
        resource_ids: Collection[int],
    ) -> Mapping[int, int]:
        """Move the lease's allocations on these resources to others; all of them or none.

        Returns the new resource id by old one, empty if nothing was moved. Nothing moves to any of the given resources.
        """
        planner = Planner(tx, self._types, now=now, turn=crc32(lease.id.encode()), notice=self._rules.preemption_notice)
        moved: dict[int, int] = {}
        with suppress(Stuck), tx.session.begin_nested():
            for reservation in lease.reservations:
                allocations, versions = tx.allocations.with_versions([reservation.id])
                planner.touch(versions)
                demand = demand_of(self._types, reservation)
                for allocation in allocations:
                    if allocation.state not in states or allocation.resource_id not in resource_ids:
                        continue
                    other = planner.relocate(allocation, demand, without=resource_ids)
                    if other is None:
                        moved.clear()
                        raise Stuck
                    moved[allocation.resource_id] = other
        if moved:
            tx.leases.change(lease, now=now)
        return moved

    def _pinned_ids(self, tx: Transaction, work: Work, external_ids: Collection[str]) -> list[int]:
        """Return the ids of the lease's pinned resources that have these external ids."""
        allocations = tx.allocations.of_reservations([order.reservation_id for order in work.orders])
        pinned = tx.resources.by_ids(
            allocation.resource_id for allocation in allocations if allocation.state is AllocationState.HELD
        )
        return [resource_id for resource_id, resource in pinned.items() if resource.external_id in external_ids]

    def _lease(self, tx: Transaction, work: Work) -> Lease:
        return self._lease_of(tx, work.lease.id)

    def _lease_of(self, tx: Transaction, lease_id: str) -> Lease:
        lease = tx.leases.get(lease_id, deleted=True, lock=True)
        if lease is None:
            raise InvalidState(f"The lease {lease_id} has vanished.")
        return lease


def _is_search_for_remains(event_type: EventType, lease: Lease) -> bool:
    """Whether the event searches for remains of a provisional lease that failed or was deleted."""
    return event_type is EventType.HOLD and lease.status in {LeaseStatus.DELETED, LeaseStatus.ERROR}
