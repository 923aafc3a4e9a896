"""Events: claiming what is due, and recording what came of it. The engine's use cases."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
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
from tenure.domain.resource import Registration
from tenure.drivers.contract import SLOWEST_BOOT, Order, Progress, ResourceRef
from tenure.resources.contract import ResourceTypes
from tenure.services.before_end import (
    begin_to_wait,
    given_up,
    has_failed,
    is_awaited,
    is_retried,
    outstanding,
    settle,
    tell_of_the_end,
)
from tenure.services.cleaning import cleaned_at, release
from tenure.services.context import Rules, apply, columns_of, new_id, remember, tell
from tenure.services.demands import demand_of
from tenure.services.healing import flag, lacking, want_mended
from tenure.services.orders import kept_orders, leftover_orders, orders_of, planned_orders
from tenure.services.planning import Planner, Stuck
from tenure.services.undoing import (
    end_with_the_lease,
    give_up,
    ids_in,
    is_promised,
    undo_update,
    unmake,
    update_undone,
)
from tenure.services.user_events import due_events, tell_event
from tenure.store.database import Database, Transaction
from tenure.store.events import StoredEvent

#: How many leases are read at a time where all of them are wanted.
_AT_ONCE = 500

#: What the cloud has made that clients are told of, by reservation.
Made = Mapping[str, Mapping[str, object]]

#: The events at which what is to be done before the end is done.
_NEAR_THE_END = frozenset({EventType.BEFORE_END, EventType.END})
#: The events whose claim changes nothing of the lease that anybody sees.
_UNSEEN = frozenset({EventType.MEND, EventType.NOTIFY})
_TO_COME = frozenset({EventStatus.UNDONE, EventStatus.IN_PROGRESS})
_ACTIONS: Mapping[EventType, Action] = {EventType.START: Action.START, EventType.END: Action.END}


@dataclass(frozen=True, slots=True)
class Work:
    """A claimed event, with all that is needed to carry it out."""

    event_id: str
    token: str
    event_type: EventType
    due_at: datetime
    attempts: int
    lease: Lease
    orders: tuple[Order, ...]
    #: What the cloud is still to do before the end, by reservation.
    actions: Mapping[str, str] = field(default_factory=dict)
    #: The reservations of which that was given up at an earlier attempt.
    unsaved: frozenset[str] = frozenset()
    #: Whether what of it is not done is waited for.
    waits: bool = True
    #: Whether what of it fails is tried again.
    retries: bool = True
    #: The reservations that an update gives back, or that it had added and that is undone.
    dropped: frozenset[str] = frozenset()
    #: Whether an update was refused, and the cloud is being made to match the lease as it was before.
    undoing: bool = False
    #: The allocations that others take the place of, by reservation.
    replaced: Mapping[str, Collection[int]] = field(default_factory=dict)
    #: The reservations that were found not to be in the cloud as they should.
    drifted: frozenset[str] = frozenset()


class EventService:
    """Claims and records. Everything it does is one transaction; the acting is between them."""

    def __init__(self, db: Database, types: ResourceTypes, rules: Rules) -> None:
        self._db = db
        self._types = types
        self._rules = rules

    def ready(self, limit: int, *, starts: bool) -> list[str]:
        """The ids of events that can be claimed now, only starts or only others, the longest ready first."""
        with self._db.read() as tx:
            return tx.events.ready(tx.now(), limit, starts=starts)

    def unattended(self) -> timedelta:
        """For how long that has been due which can be claimed and was not; zero where there is nothing."""
        with self._db.read() as tx:
            now = tx.now()
            oldest = tx.events.oldest_ready_at(now)
            return max(now - oldest, timedelta(0)) if oldest else timedelta(0)

    def waiting(self, limit: int) -> list[str]:
        """The ids of starts that are due and wait for resources that are not given back."""
        with self._db.read() as tx:
            return tx.events.waiting(tx.now(), limit)

    def ready_in(self) -> timedelta | None:
        """How long it takes until the next event becomes ready, None when there is none.

        By the clock of the database, which the clock of this process may differ from.
        """
        with self._db.read() as tx:
            now = tx.now()
            upcoming = tx.events.next_ready_at(now)
            return upcoming - now if upcoming is not None else None

    def claim(self, event_id: str) -> Work | None:
        """Take a due event, None when it is not to be had any more.

        The claim of a start pins the plan: from here on the resources are the lease's.
        """

        def work(tx: Transaction) -> Work | None:
            now = tx.now()
            stored = tx.events.get(event_id)
            lease = tx.leases.get(stored.event.lease_id, deleted=True, lock=True) if stored else None
            if stored is None or lease is None or not tx.events.is_claimable(event_id, now):
                return None
            if stored.event.event_type is EventType.START and not self._can_start(tx, stored, lease, now):
                return None
            return self._take(tx, stored, lease, now)

        return self._db.write(work)

    def take_over(self) -> int:
        """Expire all claims at once; how many there were.

        For a process that knows that it is the only manager: the events its predecessor had claimed need not wait.
        """
        return self._db.write(lambda tx: tx.events.expire_claims(tx.now()))

    def now(self) -> datetime:
        """The time by which events become due: that of the database."""
        with self._db.read() as tx:
            return tx.now()

    def expire_late_claims(self) -> int:
        """Have taken up now what waits for longer than any claim or delay lasts; how many events.

        For who has seen that the clock was set back.
        """

        def expire(tx: Transaction) -> int:
            now = tx.now()
            return tx.events.expire_late(
                now, claims_after=now + self._rules.claim_time, delays_after=now + self._rules.max_delay
            )

        return self._db.write(expire)

    def claimed(self, event_id: str, token: str) -> Work | None:
        """The work of an event that was claimed when it was written, None when the claim is lost."""
        with self._db.read() as tx:
            stored = tx.events.get(event_id)
            lease = tx.leases.get(stored.event.lease_id) if stored else None
            if stored is None or lease is None or stored.claim_token != token:
                return None
            return self._work(tx, stored, lease, token, attempts=stored.event.attempts)

    def give_back(self, event_id: str, token: str) -> None:
        """Let another worker take an event at once that was claimed when it was written."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            tx.events.finish(event_id, token=token, now=now, status=EventStatus.UNDONE.value, ready_at=now, attempts=0)

        self._db.write(record)

    def renew(self, work: Work) -> bool:
        """Keep a claim while acting; False when it is lost, and the worker must stop."""

        def extend(tx: Transaction) -> bool:
            until = tx.now() + self._rules.claim_time
            return tx.events.renew(work.event_id, token=work.token, until=until)

        return self._db.write(extend)

    def prepared(self, work: Work, effects: Made) -> None:
        """Record that what clients must see of a new lease is there."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            if not self._done(tx, work, now):
                return
            tx.leases.add_effects(effects, now=now)
            lease = self._lease(tx, work)
            # From now on it is as if the lease had never been held.
            tx.events.discard([one.id for one in lease.events if one.event_type is EventType.HOLD])
            if lease.status is LeaseStatus.CREATING:
                apply(tx, lease, Action.PREPARED, actor=ENGINE, now=now)
                tell(tx, "lease.create", self._lease(tx, work), now=now)

        self._db.write(record)

    def started(self, work: Work, effects: Made) -> None:
        """Record that a lease's resources are its owner's."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            if not self._done(tx, work, now):
                return
            tx.leases.add_effects(effects, now=now)
            lease = self._lease(tx, work)
            ids = [order.reservation_id for order in work.orders]
            tx.leases.change_reservations(ids, now=now, status=ReservationStatus.ACTIVE.value)
            if lease.status is LeaseStatus.STARTING:
                apply(tx, lease, Action.STARTED, actor=ENGINE, now=now)
                tell(tx, "lease.event.start_lease", self._lease(tx, work), now=now)

        self._db.write(record)

    def updated(self, work: Work, effects: Made) -> None:
        """Record that the cloud follows a change of a running lease."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            outcome = EventStatus.ERROR if work.undoing else EventStatus.DONE
            if not self._done(tx, work, now, outcome=outcome):
                return
            tx.leases.add_effects(effects, now=now)
            lease = self._lease(tx, work)
            if work.undoing:
                update_undone(tx, work.event_id, lease, now=now)
                return
            stored = tx.events.get(work.event_id)
            payload = (stored.payload if stored else None) or {}
            tx.leases.change_reservations(payload.get("new", ()), now=now, status=ReservationStatus.ACTIVE.value)
            if work.dropped:
                release(tx, self._types, self._rules, work.dropped, now=now)
                tx.leases.change_reservations(work.dropped, now=now, status=ReservationStatus.DELETED.value)
            for reservation_id, allocation_ids in work.replaced.items():
                release(tx, self._types, self._rules, [reservation_id], now=now, only=allocation_ids)
                tx.leases.change_reservations([reservation_id], now=now, resources_changed=True)
            if lease.status is LeaseStatus.UPDATING:
                # An earlier end has waited for this, and so has what is not to be kept any more.
                end_with_the_lease(tx, lease, self._rules, ending=payload.get("ending", ()))
                if work.replaced:
                    lease = flag(tx, lease, lacking(tx, self._types, lease, lease.reason), now=now)
                apply(tx, lease, Action.UPDATED, actor=ENGINE, now=now, keep_reason=lease.degraded)
                topic = "lease.resources_changed" if work.replaced else "lease.update"
                tell(tx, topic, self._lease(tx, work), now=now)

        self._db.write(record)

    def mended(self, work: Work, effects: Made) -> bool:
        """Record that the cloud is as the ledger says once more; False when the claim was lost.

        Nobody is told: the lease has not changed, and the event is forgotten.
        """

        def record(tx: Transaction) -> bool:
            kept = tx.events.remove(work.event_id, token=work.token)
            if kept:
                tx.leases.add_effects(effects, now=tx.now())
            return kept

        return self._db.write(record)

    def settled(self, work: Work, reservation_id: str, reason: Reason | None = None) -> None:
        """Record that what was to be done before a reservation's end is done, or for what ``reason`` it is given up.

        Nothing is recorded where the claim is lost.
        """

        def record(tx: Transaction) -> None:
            now = tx.now()
            stored = tx.events.get(work.event_id)
            if stored is None or stored.claim_token != work.token:
                return
            actions = {reservation_id: work.actions[reservation_id]}
            settle(tx, self._lease(tx, work), actions, now=now, failed=reason is not None)
            if reason is not None:
                self._say(tx, work, reason, now)

        self._db.write(record)

    def noticed(self, work: Work) -> None:
        """Record that what was to be done before the end is done, or given up."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            outcome = EventStatus.ERROR if has_failed(tx, work.lease) else EventStatus.DONE
            if self._done(tx, work, now, outcome=outcome):
                tell(tx, "lease.event.before_end_lease", self._lease(tx, work), now=now)

        self._db.write(record)

    def told(self, work: Work) -> None:
        """Record that an event of the owner's has come: others are told."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            if self._done(tx, work, now):
                lease = self._lease(tx, work)
                tell_event(tx, lease, next(one for one in lease.events if one.id == work.event_id), now=now)

        self._db.write(record)

    def expired(self, work: Work) -> None:
        """Record that nobody has confirmed a lease in time: what was booked is free, and nobody is told.

        Or that nothing is there any more of one that came to nothing; which is looked at again when no more can come.
        """

        def record(tx: Transaction) -> None:
            now = tx.now()
            if not _is_looked_after(work.event_type, work.lease):
                if self._done(tx, work, now):
                    unmake(tx, self._lease(tx, work), Reason("It was not confirmed in time."), now=now)
            elif (last_at := work.due_at + SLOWEST_BOOT) > now:
                self._look_then(tx, work, last_at, now)
            else:
                tx.events.remove(work.event_id, token=work.token)

        self._db.write(record)

    def given_back(self, work: Work, reservation_ids: Collection[str]) -> None:
        """Record that some reservations of a lease that ends are given back, while others are not yet."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            stored = tx.events.get(work.event_id)
            if stored is not None and stored.claim_token == work.token:
                self._give_back(tx, self._lease(tx, work), reservation_ids, now)

        self._db.write(record)

    def ended(self, work: Work) -> None:
        """Record that everything is given back; the resources are free from now on."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            if not self._done(tx, work, now):
                return
            lease = self._lease(tx, work)
            failed = self._give_back(tx, lease, [reservation.id for reservation in lease.reservations], now)
            if lease.status is LeaseStatus.DELETING:
                lease = apply(tx, lease, Action.DELETED, actor=ENGINE, now=now)
                tell(tx, "lease.delete", lease, now=now)
            elif lease.status in {LeaseStatus.TERMINATING, LeaseStatus.ERROR}:
                action = Action.FAIL if failed else Action.ENDED
                apply(tx, lease, action, actor=ENGINE, now=now, keep_reason=True)
                tell(tx, "lease.event.end_lease", self._lease(tx, work), now=now)

        self._db.write(record)

    def look_again(self, work: Work, progress: Progress) -> None:
        """Give a claim back because the cloud is not ready yet: not a failure, and no attempt."""

        def record(tx: Transaction) -> None:
            now = tx.now()
            again_at = now + progress.look_again_after
            if _is_looked_after(work.event_type, work.lease):
                self._look_then(tx, work, again_at, now)
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
                self._say(tx, work, progress.told.cut(), now)

        self._db.write(record)

    def failed(self, work: Work, reason: Reason, *, final: bool) -> None:
        """Record a failed attempt; ``final`` when trying again is of no use.

        An end is tried for as long as it takes, at growing intervals; the lease says why it lasts. What else has failed
        too often, or for good, is over: a start, of which a good part of the lease may be lost first, ends the lease in
        ERROR and gives everything back, an update is undone (for as long as that takes, too), and what was to be done
        before the end is left undone.
        """

        def record(tx: Transaction) -> None:
            now = tx.now()
            exhausted = final or self._is_tried_enough(work, now)
            if work.event_type is EventType.PREPARE and work.lease.event(EventType.HOLD) is not None:
                exhausted = final  # who has confirmed the lease may have been told that it is there
            if work.event_type is EventType.MEND:
                self._mend_later(tx, work, now, exhausted=exhausted)
            elif _is_looked_after(work.event_type, work.lease):
                if final and work.due_at + SLOWEST_BOOT <= now:
                    tx.events.remove(work.event_id, token=work.token)  # of no use, and no more can come
                else:
                    again_at = now + self._rules.delay_after(work.attempts)
                    self._look_then(tx, work, again_at, now, attempts=work.attempts)
            elif work.event_type is EventType.END or work.undoing or not exhausted:
                self._try_later(tx, work, reason, now, exhausted=exhausted)
            elif self._done(tx, work, now, outcome=EventStatus.ERROR):
                self._give_up(tx, work, reason, now)

        self._db.write(record)

    def _is_tried_enough(self, work: Work, now: datetime) -> bool:
        """Whether what failed is given up; a start also not before a good part of the lease has passed."""
        if work.attempts < self._rules.max_attempts:
            return False
        lease = work.lease
        return work.event_type is not EventType.START or now >= self._rules.give_up_start_at(
            lease.starts_at, lease.ends_at
        )

    def move_off(self, work: Work, resources: Collection[str]) -> bool:
        """Have other resources take the place of these, named by external id, and the attempt be made again at once.

        False, with nothing recorded, where there are no others.
        """
        if work.event_type is EventType.MEND:
            return False  # what a running lease has moves for nobody

        def record(tx: Transaction) -> bool:
            now = tx.now()
            stored = tx.events.get(work.event_id)
            if stored is None or stored.claim_token != work.token:
                return True  # somebody else is at it by now
            payload = dict(stored.payload or {})
            # Met at any attempt since the last delay: without this memory two occupied ones would be tried in turn.
            met = {*payload.pop("occupied", ()), *self._held_ids(tx, work, resources)}
            moved = self._move(tx, self._lease(tx, work), now, states={AllocationState.HELD}, resource_ids=met)
            if moved:
                payload["occupied"] = sorted(met)
            tx.events.change([work.event_id], now=now, payload=payload or None)
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
        """Plan a start that is due on other resources, where those before have not given theirs back.

        Whether the start need not wait any more; where there is room beside what others have, it need not either.
        """

        def work(tx: Transaction) -> bool:
            now = tx.now()
            stored = tx.events.get(event_id)
            lease = tx.leases.get(stored.event.lease_id, lock=True) if stored else None
            if lease is None or lease.status is not LeaseStatus.PENDING:
                return False
            ids = tx.allocations.predecessors([one.id for one in lease.reservations], now=now)
            return not ids or bool(self._move(tx, lease, now, states={AllocationState.PLANNED}, resource_ids=ids))

        return self._db.write(work)

    def planned(self, lease_id: str) -> tuple[Order, ...]:
        """What a lease that waits for its start is planned to have, as a driver sees it."""
        with self._db.read() as tx:
            lease = tx.leases.get(lease_id)
            return tuple(planned_orders(tx, lease)) if lease else ()

    def leftovers(self, reservation_ids: Collection[str]) -> list[Order]:
        """Return the reservations, which are over, as a driver takes them back; unknown ones are left out."""
        with self._db.read() as tx:
            return list(leftover_orders(tx, reservation_ids))

    def orders(self, lease_id: str) -> tuple[Order, ...]:
        """What a lease has now, as a driver sees it."""
        with self._db.read() as tx:
            lease = tx.leases.get(lease_id)
            return tuple(orders_of(tx, [lease], held_only=False)) if lease else ()

    def kept(self, inventory: str) -> list[Order]:
        """The reservations that are over, and of which something is kept on resources of that type."""
        with self._db.read() as tx:
            return list(kept_orders(tx, {one.reservation_id for one in tx.allocations.kept(inventory)}))

    def let_go(self, inventory: str, remaining: Mapping[str, int], *, of: Collection[str]) -> int:
        """Give back the room of what is not kept any more of these reservations; of how many units.

        ``remaining`` is how many there still are, by reservation.
        """

        def work(tx: Transaction) -> int:
            allocations = [one for one in tx.allocations.kept(inventory) if one.reservation_id in of]
            left = {number: remaining.get(number, 0) for number in of}
            gone = {}
            for one in allocations:
                there = min(one.units, left[one.reservation_id])
                left[one.reservation_id] -= there
                if there < one.units:
                    gone[one] = there
            resources = tx.resources.by_ids({one.resource_id for one in gone})
            tx.resources.raise_versions({number: one.version for number, one in resources.items()})
            now = tx.now()
            for one, there in gone.items():
                tx.allocations.let_go(one, there, now=now)
            return sum(one.units - there for one, there in gone.items())

        return self._db.write(work)

    def running(self, inventory: str, *, region: str | None = None) -> Iterator[Order]:
        """The orders of everything that runs and holds resources of that type, in a region or all.

        Read in several goes; what holds none is not even read.
        """
        kinds = {kind.name for kind in self._types if kind.inventory == inventory}
        with self._db.read() as tx:
            ids = tx.leases.holding_ids(kinds)
        for first in range(0, len(ids), _AT_ONCE):
            with self._db.read() as tx:
                found = tx.leases.by_ids(ids[first : first + _AT_ONCE])
                active = [lease for lease in found if lease.status is LeaseStatus.ACTIVE]
                orders = list(orders_of(tx, active, held_only=False))
            yield from (order for order in orders if order.resource_type in kinds and region in {None, order.region})

    def unheld(self, inventory: str, *, region: str | None = None) -> list[ResourceRef]:
        """The registered resources of that type that nobody holds, in a region or in all."""
        with self._db.read() as tx:
            return [ResourceRef(*found) for found in tx.resources.unheld(inventory, region=region)]

    def is_registered(self, inventory: str, resource: ResourceRef) -> bool:
        with self._db.read() as tx:
            found = tx.resources.by_external_id(inventory, resource.external_id)
        return found is not None and found.registration is Registration.REGISTERED

    def mend(self, reservation_ids: Collection[str]) -> set[str]:
        """Have the cloud made to match the running leases of these reservations again.

        Those for which that will be done; not those of leases that do not run any more, or are being mended already.
        """
        leases: dict[str, list[str]] = {}
        if reservation_ids:
            with self._db.read() as tx:
                for one in tx.leases.reservations_by_ids(reservation_ids).values():
                    leases.setdefault(one.lease_id, []).append(one.id)
        wanted: set[str] = set()
        for lease_id, ids in leases.items():
            if self._db.write(partial(_want_mended, lease_id=lease_id, reservation_ids=ids)):
                wanted.update(ids)
        return wanted

    def tell_drift(self, reservation_id: str, what: str) -> bool:
        """Show on a running lease what is not as it should be and nothing mends; False where it is shown already."""

        def tell_it(tx: Transaction) -> bool:
            now = tx.now()
            found = tx.leases.reservations_by_ids([reservation_id]).get(reservation_id)
            lease = tx.leases.get(found.lease_id, lock=True) if found else None
            if lease is None or lease.status is not LeaseStatus.ACTIVE or lease.status_reason == what:
                return False
            tx.leases.change(lease, now=now, **columns_of(Reason(what)))
            remember(tx, lease.id, "drift", lease.status, lease.status, actor=ENGINE, now=now, reason=what)
            return True

        return self._db.write(tell_it)

    def over(self, reservation_ids: Collection[str]) -> set[str]:
        """Those of the reservations that are known, hold nothing, and have ended."""
        with self._db.read() as tx:
            return tx.leases.over(reservation_ids) - tx.allocations.holding(reservation_ids)

    def known(self, reservation_ids: Collection[str]) -> set[str]:
        """Those of the reservations that the ledger knows at all."""
        with self._db.read() as tx:
            return set(tx.leases.reservations_by_ids(reservation_ids))

    def idle_trusts(self, limit: int) -> list[str]:
        """Trusts of owners whose leases are over."""
        with self._db.read() as tx:
            return tx.leases.idle_trusts(limit)

    def forget_trust(self, trust_id: str) -> None:
        """Record that a trust was deleted."""
        self._db.write(lambda tx: tx.leases.forget_trust(trust_id))

    # --- inside

    def _can_start(self, tx: Transaction, stored: StoredEvent, lease: Lease, now: datetime) -> bool:
        """Make the plan of a lease what it holds; False where its resources are not given back, or not clean."""
        clean_at = cleaned_at(stored)
        if clean_at is not None and clean_at > now:
            tx.events.change([stored.event.id], now=now, ready_at=clean_at)
            return False
        return self._pin(tx, lease, now)

    def _pin(self, tx: Transaction, lease: Lease, now: datetime) -> bool:
        """Make the plan what the lease holds; False when somebody before has not given back."""
        ids = [reservation.id for reservation in lease.reservations]
        tx.hold({kind.inventory for kind in self._types})
        allocations, versions = tx.allocations.with_versions(ids)
        if tx.allocations.predecessors(ids, now=now):
            return False
        if any(allocation.state is AllocationState.PLANNED for allocation in allocations):
            tx.resources.raise_versions(versions)
            tx.allocations.pin(ids)
        return True

    def _take(self, tx: Transaction, stored: StoredEvent, lease: Lease, now: datetime) -> Work:
        event = stored.event
        token = new_id()
        action = _ACTIONS.get(event.event_type)
        if action is None:
            unseen = event.event_type in _UNSEEN or _is_looked_after(event.event_type, lease)
            tx.leases.change(lease, now=lease.updated_at if unseen else now)
        else:
            reason = None
            if event.event_type is EventType.END:
                reason = self._cancel_others(tx, lease, event.id, now)
            apply(tx, lease, action, actor=ENGINE, now=now, reason=reason, keep_reason=True)
        attempts = tx.events.claim(stored, token=token, until=now + self._rules.claim_time, now=now)
        claimed = self._lease_of(tx, lease.id)
        if event.event_type in _NEAR_THE_END:
            self._tell_of_the_end(tx, lease, claimed, event.event_type, now)
        return self._work(tx, stored, claimed, token, attempts=attempts)

    def _tell_of_the_end(
        self, tx: Transaction, before: Lease, lease: Lease, event_type: EventType, now: datetime
    ) -> None:
        """Have told what is to be told before the end; ``before`` is the lease as it was before the claim."""
        tell_of_the_end(tx, self._types, lease, now=now)
        if event_type is not EventType.END:
            return
        notice = before.event(EventType.BEFORE_END)
        runs = before.status in {LeaseStatus.ACTIVE, LeaseStatus.UPDATING}
        if runs and notice is not None and notice.status in _TO_COME and notice.due_at <= now:
            tell(tx, "lease.event.before_end_lease", lease, now=now)  # what it has left undone, the end does
        if outstanding(tx, self._types, lease, at_the_end=True):
            begin_to_wait(tx, lease, now=now)
        if lease.status is not LeaseStatus.DELETING:
            for event in due_events(before, now):  # the end has cancelled what was to come
                tell_event(tx, lease, event, now=now)

    def _give_back(self, tx: Transaction, lease: Lease, reservation_ids: Collection[str], now: datetime) -> bool:
        """Free what these reservations had; whether the lease had failed to start."""
        release(tx, self._types, self._rules, reservation_ids, now=now)
        tx.allocations.remove_planned(reservation_ids)
        failed = any(
            event.event_type is EventType.START and event.status is EventStatus.ERROR for event in lease.events
        )
        status = ReservationStatus.ERROR if failed else ReservationStatus.DELETED
        ids = [
            one.id
            for one in lease.reservations
            if one.id in reservation_ids and one.status is not ReservationStatus.DELETED
        ]
        tx.leases.change_reservations(ids, now=now, status=status.value, subject=None)
        return failed

    def _cancel_others(self, tx: Transaction, lease: Lease, event_id: str, now: datetime) -> Reason | None:
        """End what has not run: a lease that is over does not start. Says so where that broke the promise."""
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
        payload = stored.payload or {}
        undoing = bool(payload.get("undoing"))
        replaced = {} if undoing else payload.get("replaced", {})
        without = ids_in(payload, "added" if undoing else "replaced")
        ends = stored.event.event_type is EventType.END
        near = stored.event.event_type in _NEAR_THE_END
        actions = outstanding(tx, self._types, lease, at_the_end=ends) if near else {}
        at_the_end = bool(actions) and ends
        orders: Iterable[Order] = orders_of(tx, [lease], held_only=ends, without=without)
        if stored.event.event_type is EventType.HOLD:
            over = lease.reservations if _is_looked_after(EventType.HOLD, lease) else ()
            orders = leftover_orders(tx, [reservation.id for reservation in over])
        elif undoing:
            refused = payload.get("refused", {})
            orders = (replace(one, withdrawn=refused.get(one.reservation_id, {})) for one in orders)
        return Work(
            event_id=stored.event.id,
            token=token,
            event_type=stored.event.event_type,
            due_at=stored.event.due_at,
            attempts=attempts,
            lease=lease,
            orders=tuple(orders),
            actions=actions,
            unsaved=given_up(tx, lease) if ends else frozenset(),
            waits=not at_the_end or is_awaited(tx, lease, self._rules, now=tx.now()),
            retries=not at_the_end or is_retried(lease, self._rules, attempts=attempts),
            dropped=frozenset(payload.get("new" if undoing else "dropped", ())),
            undoing=undoing,
            replaced=replaced,
            drifted=frozenset(payload.get("drifted", ())),
        )

    def _done(self, tx: Transaction, work: Work, now: datetime, *, outcome: EventStatus = EventStatus.DONE) -> bool:
        """Give the claim back for good; False when it is lost and nothing may be recorded."""
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
            self._say(tx, work, reason, now)

    def _look_then(self, tx: Transaction, work: Work, then: datetime, now: datetime, *, attempts: int = 0) -> None:
        """Look again for what was made for a lease that is over: nothing is said of it."""
        undone = EventStatus.UNDONE.value
        tx.events.finish(work.event_id, token=work.token, now=now, status=undone, ready_at=then, attempts=attempts)

    def _mend_later(self, tx: Transaction, work: Work, now: datetime, *, exhausted: bool) -> None:
        """Try again, or leave it to the next look at the cloud, which finds again what is wrong."""
        if exhausted:
            tx.events.remove(work.event_id, token=work.token)
            return
        again_at = now + self._rules.delay_after(work.attempts)
        tx.events.finish(work.event_id, token=work.token, now=now, status=EventStatus.UNDONE.value, ready_at=again_at)

    def _give_up(self, tx: Transaction, work: Work, reason: Reason, now: datetime) -> None:
        lease = self._lease(tx, work)
        if work.event_type is EventType.START and lease.status is LeaseStatus.STARTING:
            ids = [one.id for one in lease.reservations if one.status is not ReservationStatus.DELETED]
            tx.leases.change_reservations(ids, now=now, status=ReservationStatus.ERROR.value)
            apply(tx, lease, Action.FAIL, actor=ENGINE, now=now, reason=reason)
            end = lease.event(EventType.END)
            if end is not None:  # takes back at once what was started in part
                tx.events.change([end.id], now=now, ready_at=now)
        elif work.event_type is EventType.PREPARE and lease.status is LeaseStatus.CREATING:
            undo = give_up if is_promised(tx, work.event_id) else unmake
            undo(tx, lease, reason, now=now)
        elif work.event_type is EventType.UPDATE and lease.status is LeaseStatus.UPDATING:
            undo_update(tx, work.event_id, lease, self._rules, reason, now=now)
        else:
            self._say(tx, work, reason, now)

    def _say(self, tx: Transaction, work: Work, reason: Reason, now: datetime) -> None:
        """Show a reason on the lease without changing its status."""
        lease = self._lease(tx, work)
        if lease.reason != reason:
            tx.leases.change(lease, now=now, **columns_of(reason))
            remember(
                tx, lease.id, work.event_type.value, lease.status, lease.status, actor=ENGINE, now=now, reason=reason
            )

    def _move(
        self,
        tx: Transaction,
        lease: Lease,
        now: datetime,
        *,
        states: Collection[AllocationState],
        resource_ids: Collection[int],
    ) -> Mapping[int, int]:
        """Put allocations of the lease that are on these resources on others; all of them or none.

        The new resource for each old one; empty where nothing was moved. Nothing moves to any of those named.
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

    def _held_ids(self, tx: Transaction, work: Work, external_ids: Collection[str]) -> list[int]:
        """Those of the lease's resources that the cloud knows by these ids."""
        allocations = tx.allocations.of_reservations([order.reservation_id for order in work.orders])
        held = tx.resources.by_ids(one.resource_id for one in allocations if one.state is AllocationState.HELD)
        return [resource_id for resource_id, resource in held.items() if resource.external_id in external_ids]

    def _lease(self, tx: Transaction, work: Work) -> Lease:
        return self._lease_of(tx, work.lease.id)

    def _lease_of(self, tx: Transaction, lease_id: str) -> Lease:
        lease = tx.leases.get(lease_id, deleted=True, lock=True)
        if lease is None:
            raise InvalidState(f"The lease {lease_id} has vanished.")
        return lease


def _is_looked_after(event_type: EventType, lease: Lease) -> bool:
    """Whether the event is about what may be left of a lease that was held and came to nothing."""
    return event_type is EventType.HOLD and lease.status in {LeaseStatus.DELETED, LeaseStatus.ERROR}


def _want_mended(tx: Transaction, lease_id: str, reservation_ids: Sequence[str]) -> bool:
    lease = tx.leases.get(lease_id, lock=True)
    return lease is not None and want_mended(tx, lease, now=tx.now(), drifted=reservation_ids)
