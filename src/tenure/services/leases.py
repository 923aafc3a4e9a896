"""Leases: what a user can do with them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from zlib import crc32

from tenure.clock import Clock
from tenure.domain.actor import Actor
from tenure.domain.allocation import Choice, Demand, hardest_first
from tenure.domain.errors import Conflict, InvalidParameter, InvalidState, LeaseBusy, NotFound, TenureError, Unavailable
from tenure.domain.lease import (
    BUSY,
    Action,
    AllocationState,
    Event,
    EventStatus,
    EventType,
    HistoryEntry,
    Lease,
    LeaseStatus,
    Reservation,
    ReservationStatus,
)
from tenure.domain.period import ENDLESS, Period, minute_of
from tenure.domain.regions import qualified, region_of
from tenure.domain.request import (
    LeaseChange,
    LeasedResource,
    LeaseQuery,
    LeaseRequest,
    Page,
    ReservationChange,
    ReservationRequest,
)
from tenure.drivers.contract import CloudBusy, CloudError
from tenure.resources.contract import ResourceTypes, Wanted
from tenure.services.bounds import check_sizes
from tenure.services.budget import Budget
from tenure.services.changes import (
    Facts,
    LeaseChanger,
    bind,
    check_asked_for,
    check_length,
    check_notice,
    check_values,
    complete,
    named_by_place,
    news,
    placed_demand,
    resolve,
)
from tenure.services.commitments import tell_end
from tenure.services.context import ENDED, Authorize, Effects, Rules, apply, new_id, remember, require, tell
from tenure.services.enforcement import Enforcement
from tenure.services.holds import check_confirmed, look_after, new_hold
from tenure.services.planning import Planner
from tenure.services.survey import found_before, is_large, survey
from tenure.services.trusts import Need, Trusts
from tenure.services.undoing import promise
from tenure.services.user_events import check_events, new_events
from tenure.store.database import Database, Transaction

LOG = logging.getLogger(__name__)


class LeaseService:
    """The use cases of leases; each is one transaction, and one more where the cloud must follow at once."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        types: ResourceTypes,
        authorize: Authorize,
        rules: Rules,
        effects: Effects,
        enforcement: Enforcement,
    ) -> None:
        self._db = db
        self._clock = clock
        self._types = types
        self._authorize = authorize
        self._rules = rules
        self._effects = effects
        self._enforcement = enforcement
        self._trusts = Trusts(db, types, effects, rules.regions)

    def create(self, actor: Actor, request: LeaseRequest, *, lease_id: str | None = None) -> Lease:
        """Book everything the request names, or nothing; with ``hold_for``, for so long unless it is confirmed.

        Whoever may ask twice for the same gives it a ``lease_id``, a new one that nobody else can know: where the same
        caller has a lease of that id already, it is that lease, as it is now. Raises ``Forbidden``,
        ``InvalidParameter``, ``NotEnoughResources``, and ``Conflict`` for the id of somebody else's lease.
        """
        target = {"project_id": actor.project_id, "user_id": actor.user_id}
        require(self._authorize, "blazar:leases:post", actor, target)
        if lease_id is not None:
            with self._db.read() as tx:
                booked = self._booked_before(tx, actor, lease_id)
            if booked is not None:
                return self._shown(actor, self._promised(lease_id) or booked)
        now = self._clock.now()
        starts_at, ends_at = resolve(request.starts_at, now), resolve(request.ends_at, now)
        if starts_at < minute_of(now):
            raise InvalidParameter("Start date must be later than current date", field="start_date")
        if ends_at <= starts_at:
            raise InvalidParameter("End date must be later than start date.", field="end_date")
        if ends_at <= now:
            raise InvalidParameter("End date must be later than current and start date", field="end_date")
        check_length(self._rules, starts_at, ends_at)
        notice_at = self._notice_at(request, starts_at, ends_at, now)
        check_events(request.events, starts_at, ends_at)
        placed = (self._in_region(one, position) for position, one in enumerate(request.reservations))
        request = self._with_facts(actor, replace(request, reservations=tuple(placed)))
        check_sizes([one.parameters for one in request.reservations])
        demands = [placed_demand(self._types, one, position) for position, one in enumerate(request.reservations)]
        lease = self._new_lease(lease_id or new_id(), actor, request, starts_at, ends_at, notice_at, now)
        self._check_conditions(request.reservations, demands, seen=self._sees(actor, lease))
        with self._trusts.given_by(actor, self._trusts.needed_for(request.reservations)) as trust_id:
            booked = self._book(actor, replace(lease, trust_id=trust_id), demands)
        if booked is not None and trust_id is not None:
            self._trusts.revoke(trust_id)  # the one who has booked it has made another
        if booked is None and lease.status is LeaseStatus.CREATING and request.hold_for is None:
            lease = self._prepare(lease, _preparation(lease).id, lease.id)
        self._effects.wake()
        return self._shown(actor, booked or lease)

    def get(self, actor: Actor, lease_id: str) -> Lease:
        """The lease; raises ``NotFound`` where there is none that the actor may see."""
        with self._db.read() as tx:
            return self._shown(actor, self._visible(tx, actor, lease_id, "blazar:leases:get"))

    def list(self, actor: Actor, query: LeaseQuery) -> Page[Lease]:
        """A page of the project's leases; of all projects' for an administrator.

        Raises ``InvalidParameter`` for a marker that is none of them, nor was.
        """
        target = {"project_id": actor.project_id, "user_id": actor.user_id}
        require(self._authorize, "blazar:leases:get", actor, target)
        if not self._authorize("admin", actor, target):
            if query.project_id not in {None, actor.project_id}:
                return Page((), None)
            query = replace(query, project_id=actor.project_id)
        with self._db.read() as tx:
            found = tx.leases.page(query)
        more = len(found) > query.limit
        items = tuple(self._shown(actor, lease) for lease in found[: query.limit])
        return Page(items, items[-1].id if more else None)

    def update(self, actor: Actor, lease_id: str, change: LeaseChange) -> Lease:
        """Change what the request names, all of it or nothing; the lease with its final status.

        Where a running lease gets more and the cloud is not done in time, it is the lease as it is then: ``UPDATING``.
        Raises ``NotFound``, ``Forbidden``, ``LeaseBusy``, ``InvalidState``, ``InvalidParameter``,
        ``NotEnoughResources``, and ``Conflict`` where the cloud refuses what a running lease was to get.
        """
        now = self._clock.now()
        budget = Budget(self._rules.planning_time)

        def work(tx: Transaction, trust_id: str | None) -> tuple[Lease, str | None, str, bool]:
            lease = self._visible(tx, actor, lease_id, "blazar:leases:put", lock=True)
            if change.is_empty:
                return lease, None, "", False
            _refuse_busy(lease)
            entrusted = trust_id is not None and tx.leases.entrust(lease, trust_id)
            changer = LeaseChanger(
                tx, self._types, self._rules, actor, now, facts, sees=self._sees(actor, lease), budget=budget
            )
            return *changer.apply(lease, change), entrusted

        need, facts = self._needs(actor, lease_id, change)
        with self._trusts.given_by(actor, need) as trust_id:
            lease, event_id, token, entrusted = self._enforcement.update(lease_id, partial(work, trust_id=trust_id))
        if trust_id is not None and not entrusted:
            self._trusts.revoke(trust_id)  # somebody else has asked for the same at the same time
        if event_id is not None:
            self._effects.carry_out(event_id, token)
            lease = self._outcome(lease_id, event_id)
        self._effects.wake()
        return self._shown(actor, lease)

    def confirm(self, actor: Actor, lease_id: str, changes: tuple[ReservationChange, ...] = ()) -> Lease:
        """Keep a lease that is held, with what ``changes`` say of its reservations, all of it or nothing.

        The lease as it is then; one that is confirmed already, with the same, is a success. Raises what ``update``
        does; ``NotFound`` where it was unmade before, and ``Conflict`` where it was confirmed with something else, or
        the cloud refuses what clients must see of it: there is no lease any more then.
        """
        now = self._clock.now()
        budget = Budget(self._rules.planning_time)
        with self._db.read() as tx:
            seen = self._visible(tx, actor, lease_id, "blazar:leases:put")
        if seen.hold_until is None:
            check_confirmed(seen, changes)
            return self._shown(actor, self._promised(lease_id) or seen)

        def work(tx: Transaction, trust_id: str | None) -> tuple[Lease, str | None, str, bool]:
            lease = self._visible(tx, actor, lease_id, "blazar:leases:put", lock=True)
            if lease.hold_until is None:
                check_confirmed(lease, changes)
                return lease, None, "", False
            entrusted = trust_id is not None and tx.leases.entrust(lease, trust_id)
            changer = LeaseChanger(
                tx, self._types, self._rules, actor, now, facts, sees=self._sees(actor, lease), budget=budget
            )
            event_id, token = changer.confirm(lease, changes)
            return tx.leases.get(lease.id) or lease, event_id, token, entrusted

        need, facts = self._needs(actor, lease_id, LeaseChange(reservations=changes))
        with self._trusts.given_by(actor, need) as trust_id:
            lease, event_id, token, entrusted = self._enforcement.update(lease_id, partial(work, trust_id=trust_id))
        if trust_id is not None and not entrusted:
            self._trusts.revoke(trust_id)  # somebody else has confirmed it at the same time
        if event_id is not None:
            lease = self._prepare(lease, event_id, token)
        self._effects.wake()
        return self._shown(actor, lease)

    def delete(self, actor: Actor, lease_id: str, *, reason: str | None = None) -> None:
        """Take everything back and forget the lease, for the ``reason``; no error for one that is deleted.

        What has not started is free when this returns. What has is taken back at once, or goes on being taken back:
        the lease is ``DELETING`` then.
        """
        now = self._clock.now()

        def work(tx: Transaction) -> tuple[str | None, list[str]]:
            lease = self._visible(tx, actor, lease_id, "blazar:leases:delete", deleted=True, lock=True)
            if lease.status is LeaseStatus.DELETED:
                return None, []
            return self._delete(tx, actor, lease, now, reason), [
                one.id for one in lease.reservations if self._is_made(one)
            ]

        event_id, made = self._db.write(work)
        if event_id is not None:
            self._effects.try_now(event_id)
        else:
            self._effects.take_back(made)
        self._effects.wake()

    def add_reservation(
        self, actor: Actor, lease_id: str, request: ReservationRequest, *, reservation_id: str | None = None
    ) -> Lease:
        """Give a lease one more reservation, for the rest of its time; the lease as it is then.

        Whoever may ask twice for the same gives it a ``reservation_id``, as ``create`` takes one of the lease. Raises
        what ``update`` does.
        """
        now = self._clock.now()
        budget = Budget(self._rules.planning_time)
        with self._db.read() as tx:
            seen = self._visible(tx, actor, lease_id, "blazar:leases:put")
        position = len(seen.reservations)
        request = self._in_region(request, position)
        facts = self._facts(actor, request, position)
        with named_by_place(position):
            parameters = complete(self._types[request.resource_type], request.parameters, facts)
        request = replace(request, parameters=parameters)
        reservation = self._new_reservation(lease_id, request, now, reservation_id)

        def work(tx: Transaction, trust_id: str | None) -> tuple[str | None, str, bool]:
            lease = self._visible(tx, actor, lease_id, "blazar:leases:put", lock=True)
            if any(one.id == reservation.id for one in lease.reservations):
                return None, "", False
            _refuse_busy(lease)
            entrusted = trust_id is not None and tx.leases.entrust(lease, trust_id)
            changer = LeaseChanger(
                tx, self._types, self._rules, actor, now, sees=self._sees(actor, lease), budget=budget
            )
            return *changer.add(lease, reservation, checks_values=request.checks_values), entrusted

        need = self._trusts.needed_with(seen, request, actor)
        with self._trusts.given_by(actor, need) as trust_id:
            event_id, token, entrusted = self._enforcement.update(lease_id, partial(work, trust_id=trust_id))
        if trust_id is not None and not entrusted:
            self._trusts.revoke(trust_id)
        if event_id is not None:
            self._effects.carry_out(event_id, token)
            self._outcome(lease_id, event_id)
        self._effects.wake()
        return self.get(actor, lease_id)

    def drop_reservation(self, actor: Actor, lease_id: str, reservation_id: str) -> None:
        """Give one reservation of a lease back; no error for one that is dropped already."""
        now = self._clock.now()

        def work(tx: Transaction) -> tuple[str | None, str, bool]:
            lease = self._visible(tx, actor, lease_id, "blazar:leases:put", lock=True)
            reservation = next((one for one in lease.reservations if one.id == reservation_id), None)
            if reservation is None:
                raise NotFound(f"Object with {{'reservation_id': '{reservation_id}'}} not found")
            if reservation.status is ReservationStatus.DELETED:
                return None, "", False
            _refuse_busy(lease)
            changer = LeaseChanger(tx, self._types, self._rules, actor, now)
            return *changer.drop(lease, reservation), self._is_made(reservation)

        event_id, token, is_made = self._enforcement.update(lease_id, work, dropped=reservation_id)
        if event_id is not None:
            self._effects.carry_out(event_id, token)
            self._outcome(lease_id, event_id)
        elif is_made:
            self._effects.take_back([reservation_id])
        self._effects.wake()

    def history(
        self, actor: Actor, lease_id: str, *, limit: int | None = None, marker: str | None = None
    ) -> tuple[HistoryEntry, ...]:
        """What happened to the lease, oldest first: at most so much, and only what is behind the marker.

        Raises ``InvalidParameter`` for a marker that is no entry of this history.
        """
        with self._db.read() as tx:
            lease = self._visible(tx, actor, lease_id, "blazar:leases:get")
            entries = tx.leases.history(lease.id, limit=limit, marker=marker)
        if self._sees(actor, lease):
            return entries
        return tuple(replace(entry, detail=None) for entry in entries)

    def resources(self, actor: Actor, lease_id: str, resource_type: str) -> tuple[LeasedResource, ...]:
        """The resources of a type that the lease has, had or will have, without the properties kept private.

        Of which resources parts serve it, such as the hosts of instances, is none of its owner's business.
        """
        with self._db.read() as tx:
            lease = self._visible(tx, actor, lease_id, "blazar:leases:get")
            whole = [one.id for one in lease.reservations if one.resource_type == resource_type]
            allocations = tx.allocations.of_reservations(whole)
            resources = tx.resources.by_ids(allocation.resource_id for allocation in allocations)
            private = tx.resources.private_properties(resource_type)
        if self._sees(actor, lease):
            private = frozenset()
        shown = {
            number: replace(
                resource,
                properties={name: value for name, value in resource.properties.items() if name not in private},
            )
            for number, resource in resources.items()
            if resource.resource_type == resource_type
        }
        return tuple(
            LeasedResource(
                shown[allocation.resource_id],
                allocation.reservation_id,
                _of_owner(allocation.period, lease),
                allocation.state,
            )
            for allocation in allocations
            if allocation.resource_id in shown
        )

    # --- inside

    def _sees(self, actor: Actor, lease: Lease) -> bool:
        """Whether the actor sees private properties, and the details of reasons."""
        return self._authorize("admin", actor, {"project_id": lease.project_id, "user_id": lease.user_id})

    def _shown(self, actor: Actor, lease: Lease) -> Lease:
        """The lease as the actor may see it: the details of its reason are for administrators."""
        if lease.status_detail is None or self._sees(actor, lease):
            return lease
        return replace(lease, status_detail=None)

    def _visible(
        self, tx: Transaction, actor: Actor, lease_id: str, rule: str, *, deleted: bool = False, lock: bool = False
    ) -> Lease:
        """The lease, as far as the actor may know of it; then whether he may do what ``rule`` is about."""
        lease = tx.leases.get(lease_id, deleted=deleted, lock=lock)
        missing = NotFound(f"Object with {{'lease_id': '{lease_id}'}} not found")
        if lease is None:
            raise missing
        target = {"project_id": lease.project_id, "user_id": lease.user_id}
        if lease.project_id != actor.project_id and not self._authorize("blazar:leases:get", actor, target):
            raise missing
        require(self._authorize, rule, actor, target)
        return lease

    def _needs(self, actor: Actor, lease_id: str, change: LeaseChange) -> tuple[Need | None, Facts]:
        """The trust that a change needs and that there is not yet, and what it must know of the cloud."""
        if not change.reservations:
            return None, {}
        with self._db.read() as tx:
            lease = self._visible(tx, actor, lease_id, "blazar:leases:put")
        facts: dict[Wanted, Mapping[str, object]] = {}
        known = {one.id: one for one in lease.reservations}
        for position, asked in enumerate(change.reservations):
            one = known.get(asked.reservation_id)
            if one is None:
                continue
            try:
                after = self._types[one.resource_type].merge(one.parameters, news(one, asked), running=False)
            except TenureError:
                continue  # what is wrong with it is found where it is applied
            owner = replace(actor, project_id=lease.project_id)
            facts.update(self._facts(owner, replace(one, parameters=after), position))
        return self._trusts.needed_by(lease, change, actor), facts

    def _booked_before(self, tx: Transaction, actor: Actor, lease_id: str) -> Lease | None:
        """The lease of that id that the actor has booked; raises ``Conflict`` where it is somebody else's."""
        lease = tx.leases.get(lease_id, deleted=True)
        if lease is not None and (lease.project_id, lease.user_id) != (actor.project_id, actor.user_id):
            raise Conflict("There is a lease of this id already.")
        return lease

    def _check_conditions(
        self, requests: Sequence[ReservationRequest], demands: Sequence[Demand], *, seen: bool
    ) -> None:
        """Raise ``InvalidParameter`` for conditions that may not be asked, or are never met as they are meant.

        Before anything is searched for, since how long a search takes could tell what is private.
        """
        if not any(demand.expression.comparisons for demand in demands):
            return
        known: set[tuple[str, str]] = set()
        with self._db.read() as tx:
            for position, (request, demand) in enumerate(zip(requests, demands, strict=True)):
                check_asked_for(tx, self._rules, demand.inventory, demand.expression.names, position, seen=seen)
                if request.checks_values:
                    check_values(tx, demand, demand.expression.comparisons, position, known=known)

    def _book(self, actor: Actor, lease: Lease, demands: Sequence[Demand]) -> Lease | None:
        """Write a new lease, with all that it asks for; the one of its id where the actor has booked it meanwhile."""
        now = lease.created_at
        period = Period(max(lease.starts_at, now), lease.ends_at + self._rules.cleaning_time)
        turn = crc32(lease.id.encode())
        large, order = is_large(demands), tuple(hardest_first(demands))
        unnamed = sum(not demand.named for demand in demands)
        budget = Budget(self._rules.planning_time, large=large)
        look = partial(survey, demands=demands, period=period, now=now, turn=turn, budget=budget)

        def work(tx: Transaction) -> Lease | None:
            booked = self._booked_before(tx, actor, lease.id)
            if booked is not None:
                return booked
            # First of all, so that of two with one id the second does nothing else before it waits.
            tx.leases.add(lease)
            tx.events.add(lease.events)
            if lease.status is LeaseStatus.CREATING and lease.hold_until is None:
                tx.events.add([_preparation(lease)], claim=(lease.id, tx.now() + self._rules.claim_time))
            for position, demand in enumerate(demands):
                bind(tx, lease.reservations[position].id, demand, position)
            planner = Planner(tx, self._types, now=now, turn=turn, notice=self._rules.preemption_notice, budget=budget)
            reservation_ids = [one.id for one in lease.reservations]
            booked_at_once: Collection[int] = ()

            def begin(this_order: Sequence[int]) -> None:
                nonlocal booked_at_once
                if not large:
                    return
                chosen = found_before(tx, reservation_ids) if this_order == order else {}
                booked_at_once = planner.book_surveyed(reservation_ids, chosen, missing=unnamed - len(chosen))
                searched = this_order == order and not chosen and tx.survey is not None  # and found nothing
                if not booked_at_once and not searched and not tx.spoken_for:
                    chosen = look(tx, order=this_order)
                    booked_at_once = planner.book_surveyed(reservation_ids, chosen, missing=unnamed - len(chosen))

            def place(position: int) -> None:
                if position not in booked_at_once:
                    planner.book(reservation_ids[position], demands[position], period, position=position)

            with budget:
                planner.place_all(demands, order, place, begin=begin)
            remember(tx, lease.id, "create", None, lease.status, actor=actor, now=now)
            if lease.status is LeaseStatus.PENDING:
                tell(tx, "lease.create", lease, now=now)
            return None

        def look_before(tx: Transaction) -> Mapping[int, Choice]:
            with budget:
                return look(tx, order=order)

        return self._enforcement.create(lease, work, survey=look_before if large else None)

    def _prepare(self, lease: Lease, event_id: str, token: str) -> Lease:
        """Have made what clients must see of a lease that was booked, and wait for it as long as may be.

        The lease as it is then; raises ``Conflict`` where the cloud refuses, and there is no lease any more.
        """
        self._effects.carry_out(event_id, token)
        found = self._promised(lease.id)
        if found is None or found.status is LeaseStatus.DELETED:
            self._effects.take_back([one.id for one in lease.reservations if self._is_made(one)])
            raise Conflict(f"The lease cannot be made: {found.status_reason if found else 'it was deleted'}")
        return found

    def _promised(self, lease_id: str) -> Lease | None:
        """The lease as its owner is told of it: what fails from then on does not vanish."""
        with self._db.read() as tx:
            found = tx.leases.get(lease_id, deleted=True)
        if found is None or found.status is not LeaseStatus.CREATING or found.hold_until is not None:
            return found
        return self._db.write(partial(promise, lease_id=lease_id))

    def _with_facts(self, actor: Actor, request: LeaseRequest) -> LeaseRequest:
        """The request, with what its types must know of the cloud. Raises what ``fetch_fact`` does."""
        completed = []
        for position, one in enumerate(request.reservations):
            facts = self._facts(actor, one, position)
            with named_by_place(position):
                completed.append(
                    replace(one, parameters=complete(self._types[one.resource_type], one.parameters, facts))
                )
        return replace(request, reservations=tuple(completed))

    def _in_region(self, request: ReservationRequest, position: int) -> ReservationRequest:
        """The request in the region that it names, or else in the home region."""
        region = region_of(request.region, self._rules.regions, field=f"reservations[{position}].region")
        return replace(request, region=region)

    def _facts(self, actor: Actor, asked: Reservation | ReservationRequest, position: int) -> Facts:
        """What the type must know of the cloud to judge these parameters.

        Raises ``InvalidParameter`` where the cloud does not know what they name, ``Unavailable`` while it is away.
        """
        wanted = self._types[asked.resource_type].wanted(asked.parameters)
        if wanted is None:
            return {}
        try:
            return {wanted: self._effects.fetch(wanted.kind, qualified(asked.region, wanted.reference), actor)}
        except CloudBusy as error:
            LOG.warning("the cloud does not tell of %s %s: %s", wanted.kind, wanted.reference, error)
            raise Unavailable(f"The cloud does not answer as it should: {error.reason.text}") from None
        except CloudError as error:
            LOG.info("the cloud does not tell of %s %s: %s", wanted.kind, wanted.reference, error)
            raise InvalidParameter(error.reason.text, field=f"reservations[{position}].{wanted.field}") from None

    def _notice_at(
        self, request: LeaseRequest, starts_at: datetime, ends_at: datetime, now: datetime
    ) -> datetime | None:
        if request.before_end_at is not None:
            return check_notice(resolve(request.before_end_at, now), starts_at, ends_at)
        if not self._rules.notice_before_end:
            return None
        return max(starts_at, ends_at - self._rules.notice_before_end)

    def _is_prepared(self, request: LeaseRequest) -> bool:
        return any(self._types[one.resource_type].is_prepared(one.parameters) for one in request.reservations)

    def _is_made(self, reservation: Reservation) -> bool:
        """Whether something may have been made for a reservation that was never started."""
        kind = self._types[reservation.resource_type]
        made = kind.is_prepared(reservation.parameters) or self._has_effects(reservation)
        return made and reservation.status is ReservationStatus.PENDING

    def _has_effects(self, reservation: Reservation) -> bool:
        return reservation.effects != self._types[reservation.resource_type].effects(reservation.id)

    def _new_lease(
        self,
        lease_id: str,
        actor: Actor,
        request: LeaseRequest,
        starts_at: datetime,
        ends_at: datetime,
        notice_at: datetime | None,
        now: datetime,
    ) -> Lease:
        hold = new_hold(lease_id, request.hold_for, ends_at, now)
        due = {EventType.START: starts_at, EventType.BEFORE_END: notice_at, EventType.END: ends_at}
        return Lease(
            id=lease_id,
            name=request.name,
            project_id=actor.project_id,
            user_id=actor.user_id,
            starts_at=starts_at,
            ends_at=ends_at,
            status=LeaseStatus.CREATING if hold or self._is_prepared(request) else LeaseStatus.PENDING,
            status_reason=None,
            degraded=False,
            version=1,
            reservations=tuple(self._new_reservation(lease_id, one, now) for one in request.reservations),
            events=tuple(
                Event(new_id(), lease_id, event_type, due_at, EventStatus.UNDONE, 0, now)
                for event_type, due_at in due.items()
                if due_at is not None
            )
            + new_events(lease_id, request.events, now)
            + hold,
            created_at=now,
        )

    def _new_reservation(
        self, lease_id: str, request: ReservationRequest, now: datetime, reservation_id: str | None = None
    ) -> Reservation:
        number = reservation_id or new_id()
        return Reservation(
            id=number,
            lease_id=lease_id,
            resource_type=request.resource_type,
            status=ReservationStatus.PENDING,
            parameters=request.parameters,
            missing_resources=False,
            resources_changed=False,
            created_at=now,
            effects=self._types[request.resource_type].effects(number),
            region=request.region,
        )

    def _delete(self, tx: Transaction, actor: Actor, lease: Lease, now: datetime, reason: str | None) -> str | None:
        """Begin to delete; the id of the end event where the cloud must be taken back first."""
        ids = [reservation.id for reservation in lease.reservations]
        held = any(one.state is AllocationState.HELD for one in tx.allocations.of_reservations(ids))
        runs = any(one.status is ReservationStatus.ACTIVE and self._has_effects(one) for one in lease.reservations)
        events = tx.events.of_lease(lease.id)
        was_held = lease.hold_until is not None
        if not held and not runs:
            if lease.status not in ENDED:
                tell_end(tx, lease, now=now)  # while it has what was planned for it
            tx.allocations.remove_planned(ids)
            lease = apply(tx, lease, Action.DELETE, actor=actor, now=now, reason=reason)
            lease = apply(tx, lease, Action.DELETED, actor=actor, now=now)
            # Also what somebody has claimed: with nothing to take back there is nothing to do.
            tx.events.change([one.event.id for one in events], now=now, ready_at=None, claim_token=None)
            look_after(tx, lease.id, now=tx.now())
            tx.leases.change_reservations(ids, now=now, status=ReservationStatus.DELETED.value)
            if not was_held:  # of which nobody was told
                tell(tx, "lease.delete", lease, now=now)
            return None
        apply(tx, lease, Action.DELETE, actor=actor, now=now, reason=reason, keep_reason=True)
        end = next(one for one in events if one.event.event_type is EventType.END)
        idle = [one.event.id for one in events if one.claim_token is None and one is not end]
        tx.events.change(idle, now=now, ready_at=None)
        if end.claim_token is None:
            tx.events.change([end.event.id], now=now, ready_at=tx.now(), attempts=0, status=EventStatus.UNDONE.value)
        return end.event.id

    def _outcome(self, lease_id: str, event_id: str) -> Lease:
        """The lease after an update was carried out; raises ``Conflict`` where the cloud refused it."""
        with self._db.read() as tx:
            lease = tx.leases.get(lease_id, deleted=True)
            stored = tx.events.get(event_id)
        if lease is None:
            raise NotFound(f"Object with {{'lease_id': '{lease_id}'}} not found")
        if stored is not None and (stored.payload or {}).get("undoing"):
            raise Conflict(f"The change was undone: {lease.status_reason}")
        return lease


def _of_owner(period: Period, lease: Lease) -> Period:
    """The part of an allocation's period in which it is its owner's: what is behind the lease is for cleaning."""
    is_longer = lease.ends_at < period.end != ENDLESS
    return Period(period.start, lease.ends_at) if is_longer and period.start < lease.ends_at else period


def _preparation(lease: Lease) -> Event:
    """The event that makes what clients must see of a new lease. Its id follows from the lease's."""
    number = str(uuid.uuid5(uuid.UUID(lease.id), EventType.PREPARE.value))
    return Event(number, lease.id, EventType.PREPARE, lease.created_at, EventStatus.IN_PROGRESS, 1, lease.created_at)


def _refuse_busy(lease: Lease) -> None:
    """Raise ``LeaseBusy`` where something is being done for the lease, and ``InvalidState`` where it is held."""
    if lease.hold_until is not None:
        raise InvalidState(
            f"The lease is held until {lease.hold_until:%Y-%m-%d %H:%M:%S} UTC: confirm it first, or delete it."
        )
    if lease.status in BUSY:
        raise LeaseBusy(lease.status)
