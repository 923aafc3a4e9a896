"""New leases: from what is asked for to a lease in the ledger."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from zlib import crc32

from tenure.clock import Clock
from tenure.domain.actor import ENGINE, Actor
from tenure.domain.admission import AdmissionWay
from tenure.domain.allocation import Demand
from tenure.domain.boot import Boot
from tenure.domain.errors import AlreadyOver, Conflict, InvalidParameter
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
from tenure.domain.resource import Resource
from tenure.planning.changes import changes_of
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import NewUnits
from tenure.resources.contract import ResourceTypes
from tenure.services.booking.admission import P, Proposal, Request
from tenure.services.booking.context import BookingContext
from tenure.services.booking.precedence import Precedence
from tenure.services.booking.subjects import bind, check_unbound
from tenure.services.context import new_id
from tenure.services.enforcement.filters import Question
from tenure.services.events.payloads import PreparePayload
from tenure.services.events.user_events import check_events, new_events
from tenure.services.leases.dates import check_length, check_notice, resolve
from tenure.services.leases.intake import Completed, Intake
from tenure.services.leases.provisional import confirmation_deadline
from tenure.services.notifications.records import apply, notify, write_history
from tenure.services.notifications.statements import proposal as proposed_lease
from tenure.services.notifications.statements import served_by
from tenure.store.database import Transaction

#: A lease with more reservations, or more units, is large.
FEW = 4
FEW_UNITS = 64


@dataclass(frozen=True, slots=True)
class Draft:
    """A lease that is not booked yet, and the demands of its reservations, in their order."""

    lease: Lease
    demands: Sequence[Demand]
    #: Whether a request that was sent before may have booked it: the caller has given it its id.
    may_exist: bool = False
    #: The request of its servers, if they are made at its start.
    boot: Boot | None = None


@dataclass(frozen=True, slots=True)
class BookedLease:
    """A booked lease, and whether this very request has booked it."""

    lease: Lease
    is_new: bool = True


class NewLeases:
    """Makes requests for new leases."""

    def __init__(self, context: BookingContext, clock: Clock, intake: Intake) -> None:
        self._context = context
        self._clock = clock
        self._types = context.types
        self._rules = context.rules
        self._intake = intake

    def request(self, actor: Actor, draft: Draft) -> NewLease:
        """Return the request to book a lease."""
        return NewLease(self._context, actor, draft)

    def request_of_waiting(self, owner: Actor, draft: Draft, waiting: Lease, precedence: Precedence) -> WaitingLease:
        """Return the request to book a lease that is on the waiting list."""
        return WaitingLease(self._context, owner, draft, waiting, precedence)

    def request_of_search(
        self,
        actor: Actor,
        reservations: Sequence[ReservationRequest],
        demands: Sequence[Demand],
        starts_at: datetime,
        ends_at: datetime,
    ) -> NewLease:
        """Return the request for a lease of these reservations, which are complete, for a search.

        The period is valid, but may be over by now: then ``AlreadyOver`` is raised.
        """
        now = self._clock.now()
        if ends_at <= now:
            raise AlreadyOver
        request = LeaseRequest("", starts_at, ends_at, reservations=tuple(reservations))
        return self.request(
            actor, Draft(self._new_lease(new_id(), actor, request, starts_at, ends_at, None, now), demands)
        )

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
        known = completed or self._intake.completed(actor, request.reservations)
        request = replace(request, reservations=tuple(known.reservations))
        lease = self._new_lease(lease_id or new_id(), actor, request, starts_at, ends_at, notice_at, now)
        if completed is None:
            self._intake.check_conditions(known, seen=self._context.access.sees(actor, lease))
        return Draft(lease, known.demands, may_exist=lease_id is not None, boot=request.boot)

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


class LeaseToBook(Request[P, BookedLease]):
    """A request to book a new lease."""

    @property
    @abstractmethod
    def reservations(self) -> Sequence[Reservation | ReservationRequest]:
        """The reservations of the lease."""

    @abstractmethod
    def with_trust(self, trust_id: str | None) -> LeaseToBook[P]:
        """Return the request for a lease that has this trust."""


@dataclass(frozen=True, slots=True)
class NewLease(LeaseToBook[Proposal]):
    """The request to book a new lease."""

    context: BookingContext
    actor: Actor
    draft: Draft

    @property
    def project_id(self) -> str:
        return self.draft.lease.project_id

    @property
    def now(self) -> datetime:
        return self.draft.lease.created_at

    @property
    def is_large(self) -> bool:
        return is_large(self.draft.demands)

    @property
    def reservations(self) -> Sequence[Reservation]:
        return self.draft.lease.reservations

    def with_trust(self, trust_id: str | None) -> NewLease:
        return replace(self, draft=replace(self.draft, lease=replace(self.draft.lease, trust_id=trust_id)))

    def propose(self, snapshot: Snapshot) -> Proposal:
        """Return the lease with what it gets: as much as it asks for, as far as room and the limits allow."""
        lease = self.draft.lease
        self._check_subjects()
        period = Period(max(lease.starts_at, lease.created_at), lease.ends_at + self.context.rules.cleaning_time)
        tasks = [
            NewUnits(reservation.id, demand, period, position=position)
            for position, (reservation, demand) in enumerate(zip(lease.reservations, self._demands(), strict=True))
        ]
        plan = self.context.planning.plan(snapshot, tasks, now=self.now, seed=crc32(lease.id.encode()))
        return Proposal(lease=lease, before=None, changes=changes_of(snapshot, plan.snapshot), way=plan.way)

    def _demands(self) -> Sequence[Demand]:
        """Return the demands for no more units than the limits of the project leave."""
        lease, demands = self.draft.lease, self.draft.demands
        reduced = self.context.headrooms.reduced(
            lease.project_id, lease.reservations, demands, lease.starts_at, lease.ends_at
        )
        return demands if reduced is None else reduced

    def _check_subjects(self) -> None:
        """Raise ``Conflict`` or ``InvalidParameter`` if something that exists is reserved by others already."""
        if any(demand.subject is not None for demand in self.draft.demands):
            ids = [reservation.id for reservation in self.draft.lease.reservations]
            with self.context.db.read() as tx:
                check_unbound(tx, zip(range(len(ids)), ids, self.draft.demands, strict=True))

    def question(self, proposal: Proposal, resources: Mapping[int, Resource]) -> Question:
        served = served_by(proposal.lease, proposal.allocations_after, resources)
        return Question(proposed_lease(proposal.lease, served))

    def begin(self, tx: Transaction, proposal: Proposal) -> BookedLease | None:
        """Write the lease. Of two requests with one id, the second waits here, and returns the lease of the first."""
        lease = self.draft.lease
        booked = booked_before(tx, self.actor, lease.id) if self.draft.may_exist else None
        if booked is not None:
            return BookedLease(booked, is_new=False)
        tx.leases.add(lease)
        if self.draft.boot is not None:
            tx.boots.add(lease, self.draft.boot)
        tx.events.add(lease.events)
        if lease.status is LeaseStatus.CREATING and lease.hold_until is None:
            tx.events.add([preparation(lease)], claim=(lease.id, tx.now() + self.context.rules.claim_time))
        self._bind(tx)
        return None

    def finish(self, tx: Transaction, proposal: Proposal) -> BookedLease:
        lease = self.draft.lease
        write_history(tx, lease.id, "create", None, lease.status, actor=self.actor, now=self.now)
        if lease.status is LeaseStatus.PENDING:
            notify(tx, "lease.create", lease, now=self.now)
        return BookedLease(lease)

    def _bind(self, tx: Transaction) -> None:
        for position, demand in enumerate(self.draft.demands):
            bind(tx, self.draft.lease.reservations[position].id, demand, position)


@dataclass(frozen=True, slots=True)
class WaitingLease(NewLease):
    """The request to book a lease that is on the waiting list."""

    waiting: Lease
    precedence: Precedence

    def propose(self, snapshot: Snapshot) -> Proposal:
        return replace(NewLease.propose(self, snapshot), before=self.waiting, way=AdmissionWay.WAITED)

    def begin(self, tx: Transaction, proposal: Proposal) -> BookedLease | None:
        """Take the lease off the waiting list; return it if it does not wait any more."""
        gone = _take_off(tx, self.draft.lease, self.now)
        if gone is not None:
            return BookedLease(gone, is_new=False)
        self._bind(tx)
        return None

    def finish(self, tx: Transaction, proposal: Proposal) -> BookedLease:
        _notify_owner(tx, self.draft.lease.id, self.now)
        return BookedLease(self.draft.lease)


def is_large(demands: Sequence[Demand]) -> bool:
    """Whether so much is asked for that such requests of a project are carried out one after the other."""
    return len(demands) > FEW or sum(demand.maximum for demand in demands) > FEW_UNITS


def booked_before(tx: Transaction, actor: Actor, lease_id: str) -> Lease | None:
    """Return the actor's lease of that id, if any; raise ``Conflict`` if it belongs to another user."""
    lease = tx.leases.get(lease_id, deleted=True)
    if lease is not None and (lease.project_id, lease.user_id) != (actor.project_id, actor.user_id):
        raise Conflict("There is a lease of this id already.")
    return lease


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
