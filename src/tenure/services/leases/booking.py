"""New leases: from a request to a lease that is booked in the ledger."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar
from zlib import crc32

from tenure.clock import Clock
from tenure.domain.actor import ENGINE, Actor
from tenure.domain.admission import AdmissionWay
from tenure.domain.allocation import Choice, Demand, hardest_first
from tenure.domain.errors import AlreadyOver, Conflict, InvalidParameter, NotEnoughResources, OverQuota
from tenure.domain.lease import (
    Action,
    Event,
    EventStatus,
    EventType,
    Lease,
    LeaseStatus,
    Reservation,
    ReservationStatus,
)
from tenure.domain.period import Period, minute_of
from tenure.domain.request import LeaseRequest, ReservationRequest
from tenure.resources.contract import ResourceTypes
from tenure.services.availability.headroom import Headrooms
from tenure.services.context import Rules, apply, new_id, notify, write_history
from tenure.services.events.payloads import PreparePayload
from tenure.services.events.user_events import check_events, new_events
from tenure.services.leases.access import LeaseAccess
from tenure.services.leases.changes import bind, check_length, check_notice, resolve
from tenure.services.leases.intake import Completed, Intake
from tenure.services.leases.provisional import confirmation_deadline
from tenure.services.planning.arrangements import Arrangement, Arrangements, admit
from tenure.services.planning.budget import Budget
from tenure.services.planning.planner import Counts, Planner
from tenure.services.planning.survey import found_before, is_large, survey
from tenure.services.planning.wishes import Wish
from tenure.store.database import Transaction

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Draft:
    """A lease that is not booked yet, and the demands of its reservations, in their order."""

    lease: Lease
    demands: Sequence[Demand]
    #: Whether the lease is on the waiting list until it is booked.
    waits: bool = False
    #: Whether the booking is undone in any case: without events, history and notifications.
    is_trial: bool = False
    #: What to book if it is free, by the position of the reservation.
    preferred: Mapping[int, Choice] = field(default_factory=dict)


class Booking(NamedTuple):
    """The work of a transaction that books a lease: it returns None, or the lease that was booked before.

    ``survey`` searches for room before the transaction, if that takes long; see ``Database.write``.
    """

    work: Callable[[Transaction], Lease | None]
    survey: Callable[[Transaction], Mapping[int, Choice]] | None


class Booker:
    """Makes and books new leases."""

    def __init__(
        self,
        clock: Clock,
        types: ResourceTypes,
        rules: Rules,
        access: LeaseAccess,
        intake: Intake,
        counts: Counts | None = None,
        arrangements: Arrangements | None = None,
        headrooms: Headrooms | None = None,
    ) -> None:
        self._headrooms = headrooms
        self._clock = clock
        self._types = types
        self._rules = rules
        self._access = access
        self._intake = intake
        self._counts = counts
        self._arrangements = arrangements

    def draft(
        self,
        actor: Actor,
        request: LeaseRequest,
        *,
        lease_id: str | None = None,
        completed: Completed | None = None,
    ) -> Draft:
        """Return the lease that is asked for. Raises ``InvalidParameter`` and ``Unavailable``.

        If ``completed`` has the reservations, these are not read from the request, and were checked before.
        """
        now = self._clock.now()
        starts_at, ends_at = resolve(request.starts_at, now), resolve(request.ends_at, now)
        if starts_at < minute_of(now):
            raise InvalidParameter("Start date must be later than current date", field="start_date")
        if ends_at <= starts_at:
            raise InvalidParameter("End date must be later than start date.", field="end_date")
        if ends_at <= now:
            raise AlreadyOver
        check_length(self._rules, starts_at, ends_at)
        notice_at = self._notice_at(request, starts_at, ends_at, now)
        check_events(request.events, starts_at, ends_at)
        wanted = completed or self._intake.completed(actor, request.reservations)
        request = replace(request, reservations=tuple(wanted.reservations))
        lease = self._new_lease(lease_id or new_id(), actor, request, starts_at, ends_at, notice_at, now)
        if completed is None:
            self._intake.check_conditions(wanted, seen=self._access.sees(actor, lease))
        return Draft(lease, wanted.demands)

    def draft_waiting(self, owner: Actor, request: LeaseRequest, wanted: Completed, waiting: Lease) -> Draft:
        """Return a waiting lease as it is to be booked. Raises ``InvalidParameter`` if its time has passed."""
        return replace(self.draft(owner, request, lease_id=waiting.id, completed=wanted), waits=True)

    def draft_trial(
        self,
        actor: Actor,
        reservations: Sequence[ReservationRequest],
        demands: Sequence[Demand],
        starts_at: datetime,
        ends_at: datetime,
        preferred: Mapping[int, Choice],
    ) -> Draft:
        """Return a lease for a trial, of these reservations, which are complete.

        If what is ``preferred`` for the reservation at a position is free, that is booked. The period is valid, but may
        be over by now: then ``AlreadyOver`` is raised.
        """
        now = self._clock.now()
        if ends_at <= now:
            raise AlreadyOver
        request = LeaseRequest("", starts_at, ends_at, reservations=tuple(reservations))
        lease = self._new_lease(new_id(), actor, request, starts_at, ends_at, None, now)
        return Draft(lease, demands, is_trial=True, preferred=preferred)

    def admit(self, actor: Actor, draft: Draft, run: Callable[[Booking], R], *, allowed: timedelta | None = None) -> R:
        """Return what ``run`` makes of the booking of a lease.

        If it finds no room, it runs once more with an arrangement of the exact search; if it exceeds a limit of the
        project, once more for as many units as the limits leave, if the reservations ask for a range. The planner may
        search for as long as is ``allowed``, by default for its usual time. Raises the errors of ``run``.
        """
        try:
            return self._admit(actor, draft, run, allowed)
        except OverQuota:
            reduced = self._reduced(draft)
            if reduced is None:
                raise
        return self._admit(actor, reduced, run, allowed)

    def _reduced(self, draft: Draft) -> Draft | None:
        """Return the draft for as many units as the limits leave; None if that changes nothing."""
        lease = draft.lease
        if self._headrooms is None:
            return None
        demands = self._headrooms.reduced(
            lease.project_id, lease.reservations, draft.demands, lease.starts_at, lease.ends_at
        )
        return None if demands is None else replace(draft, demands=demands, preferred={})

    def _admit(self, actor: Actor, draft: Draft, run: Callable[[Booking], R], allowed: timedelta | None) -> R:
        period = self._period(draft.lease)
        wishes = [
            Wish(reservation.id, demand, period)
            for reservation, demand in zip(draft.lease.reservations, draft.demands, strict=True)
        ]

        def book(arrangement: Arrangement | None) -> R:
            try:
                return run(self.booking(actor, draft, arrangement, allowed))
            except NotEnoughResources as refusal:
                least = _least(draft)
                if arrangement is not None or refusal.is_hopeless or least is None:
                    raise
            return run(self.booking(actor, least, None, allowed))

        return admit(self._arrangements, book, lambda: wishes, now=draft.lease.created_at)

    def _period(self, lease: Lease) -> Period:
        """Return the period in which a new lease takes its resources."""
        return Period(max(lease.starts_at, lease.created_at), lease.ends_at + self._rules.cleaning_time)

    def booking(
        self, actor: Actor, draft: Draft, arrangement: Arrangement | None = None, allowed: timedelta | None = None
    ) -> Booking:
        """Return the work that writes a new lease and books everything that it asks for.

        With an arrangement, it books as that says, and raises ``OutdatedArrangement`` if it cannot.
        """
        lease, demands = draft.lease, draft.demands
        now = lease.created_at
        period = self._period(lease)
        turn = crc32(lease.id.encode())
        large, order = is_large(demands), tuple(hardest_first(demands))
        unnamed = sum(not demand.named for demand in demands)
        budget = Budget(self._rules.planning_time if allowed is None else allowed, large=large)
        look = partial(survey, demands=demands, period=period, now=now, turn=turn, budget=budget)

        def work(tx: Transaction) -> Lease | None:
            # This comes first: of two requests with one id, the second must wait before it does anything else.
            booked = self._write(tx, actor, draft)
            if booked is not None:
                return booked
            for position, demand in enumerate(demands):
                bind(tx, lease.reservations[position].id, demand, position)
            planner = Planner(
                tx,
                self._types,
                now=now,
                turn=turn,
                notice=self._rules.preemption_notice,
                budget=budget,
                counts=self._counts,
            )
            reservation_ids = [reservation.id for reservation in lease.reservations]
            if draft.preferred:
                tx.preferred = {reservation_ids[position]: choice for position, choice in draft.preferred.items()}
            booked_at_once: Collection[int] = ()

            def begin(this_order: Sequence[int]) -> None:
                nonlocal booked_at_once
                if arrangement is not None:
                    planner.arrange(arrangement)
                if not large or arrangement is not None:
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
            tx.admissions[lease.id] = AdmissionWay.WAITED if draft.waits else planner.way
            if draft.waits:
                _notify_owner(tx, lease.id, now)
                return None
            if draft.is_trial:
                return None
            write_history(tx, lease.id, "create", None, lease.status, actor=actor, now=now)
            if lease.status is LeaseStatus.PENDING:
                notify(tx, "lease.create", lease, now=now)
            return None

        def look_before(tx: Transaction) -> Mapping[int, Choice]:
            if len(draft.preferred) == unnamed:  # it is searched only if that is not free any more
                return {}
            if self._counts is not None and self._counts.any_hopeless(demands, period):
                return {}
            with budget:
                return look(tx, order=order)

        return Booking(work, look_before if large and arrangement is None else None)

    def _write(self, tx: Transaction, actor: Actor, draft: Draft) -> Lease | None:
        """Write a lease without its allocations; return the lease if it was booked before."""
        if draft.is_trial:
            tx.leases.add(draft.lease)
            return None
        if draft.waits:
            return _take_off(tx, draft.lease, draft.lease.created_at)
        return self._add(tx, actor, draft.lease)

    def _add(self, tx: Transaction, actor: Actor, lease: Lease) -> Lease | None:
        """Write a new lease without its allocations; return the actor's lease of its id if there is one."""
        booked = self.booked_before(tx, actor, lease.id)
        if booked is not None:
            return booked
        tx.leases.add(lease)
        tx.events.add(lease.events)
        if lease.status is LeaseStatus.CREATING and lease.hold_until is None:
            tx.events.add([preparation(lease)], claim=(lease.id, tx.now() + self._rules.claim_time))
        return None

    def booked_before(self, tx: Transaction, actor: Actor, lease_id: str) -> Lease | None:
        """Return the actor's lease of that id, if any; raise ``Conflict`` if it belongs to another user."""
        lease = tx.leases.get(lease_id, deleted=True)
        if lease is not None and (lease.project_id, lease.user_id) != (actor.project_id, actor.user_id):
            raise Conflict("There is a lease of this id already.")
        return lease

    def _notice_at(
        self, request: LeaseRequest, starts_at: datetime, ends_at: datetime, now: datetime
    ) -> datetime | None:
        if request.before_end_at is not None:
            return check_notice(resolve(request.before_end_at, now), starts_at, ends_at)
        if not self._rules.notice_before_end:
            return None
        return max(starts_at, ends_at - self._rules.notice_before_end)

    def _is_prepared(self, request: LeaseRequest) -> bool:
        return any(
            self._types[reservation.resource_type].is_prepared(reservation.parameters)
            for reservation in request.reservations
        )

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
        deadline = confirmation_deadline(lease_id, request.hold_for, ends_at, now)
        due = {EventType.START: starts_at, EventType.BEFORE_END: notice_at, EventType.END: ends_at}
        return Lease(
            **request.details(),
            id=lease_id,
            project_id=actor.project_id,
            user_id=actor.user_id,
            starts_at=starts_at,
            ends_at=ends_at,
            status=LeaseStatus.CREATING if deadline or self._is_prepared(request) else LeaseStatus.PENDING,
            status_reason=None,
            degraded=False,
            version=1,
            reservations=tuple(
                new_reservation(self._types, lease_id, reservation, now) for reservation in request.reservations
            ),
            events=tuple(
                Event(new_id(), lease_id, event_type, due_at, EventStatus.UNDONE, 0, now)
                for event_type, due_at in due.items()
                if due_at is not None
            )
            + new_events(lease_id, request.events, now)
            + deadline,
            created_at=now,
            choice=request.choice,
        )


def _least(draft: Draft) -> Draft | None:
    """Return the draft with the least units of each reservation, if one of several would take more; otherwise None.

    A reservation that takes all that it may have can leave too little for another one.
    """
    demands = [replace(demand, maximum=demand.minimum) for demand in draft.demands]
    return replace(draft, demands=demands) if len(demands) > 1 and demands != list(draft.demands) else None


def _take_off(tx: Transaction, lease: Lease, now: datetime) -> Lease | None:
    """Write a waiting lease as it is booked, without its allocations; return it if it does not wait any more."""
    waiting = tx.leases.get(lease.id, deleted=True, lock=True)
    assert waiting is not None  # leases stay in the database when they are deleted
    if waiting.status is not LeaseStatus.WAITING:
        return waiting
    tx.events.discard([event.id for event in waiting.events if event.event_type is EventType.WAIT])
    apply(
        tx,
        waiting,
        Action.BOOK if lease.status is LeaseStatus.PENDING else Action.OFFER,
        actor=ENGINE,
        now=now,
        starts_at=lease.starts_at,
        ends_at=lease.ends_at,
        choice=lease.choice,
    )
    tx.leases.add_reservations(lease.reservations)
    tx.events.add(lease.events)
    if lease.status is LeaseStatus.CREATING and lease.hold_until is None:
        event = replace(preparation(lease), status=EventStatus.UNDONE, attempts=0)
        tx.events.add([event], payload=PreparePayload(promised=True).to_json())
    return None


def _notify_owner(tx: Transaction, lease_id: str, now: datetime) -> None:
    """Notify others that a waiting lease was booked. What must be prepared first is notified when that is done."""
    lease = tx.leases.get(lease_id)
    assert lease is not None
    if lease.status is LeaseStatus.PENDING:
        notify(tx, "lease.create", lease, now=now)
    elif lease.hold_until is not None:
        notify(tx, "lease.offer", lease, now=now, hold_until=f"{lease.hold_until:%Y-%m-%dT%H:%M:%S.%f}")


def new_reservation(
    types: ResourceTypes, lease_id: str, request: ReservationRequest, now: datetime, reservation_id: str | None = None
) -> Reservation:
    """Return a reservation that a request asks for."""
    reservation_id = reservation_id or new_id()
    return Reservation(
        id=reservation_id,
        lease_id=lease_id,
        resource_type=request.resource_type,
        status=ReservationStatus.PENDING,
        parameters=request.parameters,
        missing_resources=False,
        resources_changed=False,
        created_at=now,
        effects=types[request.resource_type].effects(reservation_id),
        region=request.region,
    )


def preparation(lease: Lease) -> Event:
    """Return the event that creates what clients must see of a new lease. Its id is derived from the lease's id."""
    event_id = str(uuid.uuid5(uuid.UUID(lease.id), EventType.PREPARE.value))
    return Event(event_id, lease.id, EventType.PREPARE, lease.created_at, EventStatus.IN_PROGRESS, 1, lease.created_at)
