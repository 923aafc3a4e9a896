"""Changes of leases: what all have in common. Each is in a module of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from tenure.domain.actor import Actor
from tenure.domain.allocation import Allocation, Demand
from tenure.domain.errors import InvalidParameter, InvalidState, LeaseBusy, MissingParameter
from tenure.domain.lease import (
    BUSY,
    Action,
    Event,
    EventStatus,
    EventType,
    Lease,
    LeaseStatus,
    Reservation,
    ReservationStatus,
)
from tenure.domain.request import ReservationChange
from tenure.domain.requirement import Comparison
from tenure.domain.resource import Resource
from tenure.planning.snapshot import Snapshot
from tenure.services.booking.admission import Proposal, Request
from tenure.services.booking.context import BookingContext
from tenure.services.booking.reservation_changes import Dates, PlannedReservations, ReservationDraft, plan_reservations
from tenure.services.booking.subjects import bind
from tenure.services.context import new_id
from tenure.services.enforcement.filters import Question
from tenure.services.events.payloads import NO_PAYLOAD, Payload, UpdatePayload
from tenure.services.leases.bounds import check_sizes
from tenure.services.leases.parameters import (
    Facts,
    changed_parameters,
    errors_at_position,
    parameters_after,
    placed_demand,
)
from tenure.services.leases.properties import check_identifying, check_private, check_values
from tenure.services.notifications.records import apply, notify, write_history
from tenure.services.notifications.statements import Values, revision, served_by, statement
from tenure.store.conflict import Overtaken
from tenure.store.database import Transaction


class Claim(NamedTuple):
    """The claim of an event that was written as claimed, for the caller to carry it out."""

    event_id: str
    token: str


class Changed(NamedTuple):
    """The lease after a change, the claim of the event for the cloud's part, if there is one, and about its trust."""

    lease: Lease
    claim: Claim | None = None
    #: Whether the lease has got the trust that came with the request.
    is_entrusted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeProposal(Proposal):
    """What a change would write; ``before`` is the lease."""

    before: Lease
    #: Whether there is nothing to change.
    is_empty: bool = False
    dates: Dates
    drafts: Sequence[ReservationDraft] = ()
    planned: PlannedReservations = field(default_factory=PlannedReservations)
    #: The reservation that the change drops; its resources are taken back after the transaction.
    dropped: str | None = None

    @property
    def allocations_after(self) -> list[Allocation]:
        """The allocations that the lease would have, without those of the reservation that is dropped."""
        kept = {reservation.id for reservation in self.lease.reservations} - {self.dropped}
        return [
            allocation
            for allocation in self.changes.applied_to(self.allocations, kept)
            if allocation.reservation_id in kept
        ]


@dataclass(frozen=True, slots=True)
class ChangeRequest(Request[ChangeProposal, Changed]):
    """A change of a lease. ``facts`` are what the cloud has said about it."""

    context: BookingContext
    actor: Actor
    lease: Lease
    #: When it came in.
    at: datetime
    facts: Facts = field(default_factory=dict)
    #: The versions one of which the lease must have; None for any.
    if_version: Collection[int] | None = None
    #: The trust that the lease is to get.
    trust_id: str | None = None

    @property
    def project_id(self) -> str:
        return self.lease.project_id

    @property
    def now(self) -> datetime:
        return self.at

    def propose(self, snapshot: Snapshot) -> ChangeProposal:
        access = self.context.access
        with self.context.db.read() as tx:
            lease = access.get_for(tx, self.actor, self.lease.id, "blazar:leases:put", if_version=self.if_version)
            return self.proposed(tx, lease, snapshot)

    def proposed(self, tx: Transaction, lease: Lease, snapshot: Snapshot) -> ChangeProposal:
        """Return what the change would write, for the lease as it is now."""
        raise NotImplementedError

    def question(self, proposal: ChangeProposal, resources: Mapping[int, Resource]) -> Question | None:
        """Return the question about the change; None if it changes neither dates nor reservations.

        None also for the confirmation of a provisional lease: it was judged before.
        """
        before, after = proposal.before, proposal.lease
        served_before = served_by(before, proposal.allocations, resources)
        current, old = statement(before, served_before), revision(before, served_before)
        served_after = served_by(after, proposal.allocations_after, resources)
        new = revision(after, served_after, without={proposal.dropped})
        same = _amount(new) == _amount(old) if before.hold_until else {**new, "name": old["name"]} == old
        return None if same else Question(new, current)

    def begin(self, tx: Transaction, proposal: ChangeProposal) -> Changed | None:
        """Lock the lease. Raises ``Overtaken`` if it has changed since the proposal."""
        lease = tx.leases.get(self.lease.id, lock=True)
        if lease is None or lease.version != proposal.before.version:
            raise Overtaken
        return self._entrusted(tx, Changed(lease)) if proposal.is_empty else None

    def finish(self, tx: Transaction, proposal: ChangeProposal) -> Changed:
        return self._entrusted(tx, self.write(tx, proposal))

    def write(self, tx: Transaction, proposal: ChangeProposal) -> Changed:
        """Write what follows from the allocations."""
        raise NotImplementedError

    def _entrusted(self, tx: Transaction, changed: Changed) -> Changed:
        trust_id = self.trust_id
        return changed._replace(is_entrusted=trust_id is not None and tx.leases.entrust(changed.lease, trust_id))

    # --- what subclasses share

    def nothing(self, lease: Lease) -> ChangeProposal:
        """Return the proposal to change nothing."""
        return ChangeProposal(lease=lease, before=lease, is_empty=True, dates=Dates(lease.starts_at, lease.ends_at))

    def draft(
        self, tx: Transaction, lease: Lease, reservation: Reservation, position: int, change: ReservationChange | None
    ) -> ReservationDraft:
        """Return a reservation as it is to be; raise the errors that its type finds."""
        types = self.context.types
        before = demand = placed_demand(types, reservation, position)
        given = changed_parameters(reservation, change)
        with errors_at_position(position):
            running = lease.status is LeaseStatus.ACTIVE
            parameters = parameters_after(types, reservation, change, self.facts, running=running)
        if given:
            demand = placed_demand(types, replace(reservation, parameters=parameters), position)
            old = set(before.expression.comparisons)
            new = [comparison for comparison in demand.expression.comparisons if comparison not in old]
            self.check_conditions(tx, lease, demand, new, position)
            if change is not None and change.checks_values:
                check_values(tx, demand, new, position)
        grows = bool(types[reservation.resource_type].growing & given.keys())
        return ReservationDraft(reservation, position, parameters, before, demand, grows)

    def check_conditions(
        self, tx: Transaction, lease: Lease, demand: Demand, comparisons: Collection[Comparison], position: int
    ) -> None:
        """Raise ``InvalidParameter`` for conditions that the actor may not use."""
        names = {name for comparison in comparisons for name in comparison.reads}
        seen = self.context.access.sees(self.actor, lease)
        check_private(tx, self.context.rules, demand.inventory, names, position, seen=seen)
        check_identifying(self.context.types, demand.inventory, comparisons, position, seen=seen)

    def matched(self, lease: Lease, changes: Sequence[ReservationChange]) -> dict[str, ReservationChange]:
        """Return the changes by reservation; raise if a change names another lease's reservation, or another type."""
        known = {reservation.id: reservation for reservation in live_reservations(lease)}
        if any(not change.reservation_id for change in changes):
            raise MissingParameter("reservation ID")
        unknown = {
            position: change.reservation_id
            for position, change in enumerate(changes)
            if change.reservation_id not in known
        }
        if unknown:
            raise InvalidParameter(
                f"Please enter valid reservation IDs. Invalid reservation IDs are: {', '.join(unknown.values())}",
                field=f"reservations[{next(iter(unknown))}].id",
            )
        if len({change.reservation_id for change in changes}) != len(changes):
            raise InvalidParameter("A reservation is named twice", field="reservations")
        for position, change in enumerate(changes):
            if change.resource_type not in {None, known[change.reservation_id].resource_type}:
                field = f"reservations[{position}].resource_type"
                raise InvalidParameter("resource_type cannot be updated", field=field)
        return {change.reservation_id: change for change in changes}

    def planned(
        self,
        tx: Transaction,
        lease: Lease,
        drafts: Sequence[ReservationDraft],
        dates: Dates,
        snapshot: Snapshot,
    ) -> ChangeProposal:
        """Return the proposal to give reservations what they ask for, with these dates."""
        if any(draft.parameters != draft.reservation.parameters for draft in drafts):
            changed = {draft.reservation.id: draft.parameters for draft in drafts}
            check_sizes([changed.get(reservation.id, reservation.parameters) for reservation in lease.reservations])
        allocations = tx.allocations.of_reservations([reservation.id for reservation in lease.reservations])
        planned = plan_reservations(tx, self.context, lease, drafts, dates, allocations, snapshot, now=self.now)
        parameters = {draft.reservation.id: draft.parameters for draft in drafts}
        after = replace(
            lease,
            starts_at=dates.starts_at,
            ends_at=dates.ends_at,
            version=lease.version + 1,
            updated_at=self.now,
            reservations=tuple(
                replace(reservation, parameters=parameters[reservation.id])
                if reservation.id in parameters
                else reservation
                for reservation in lease.reservations
            ),
        )
        return ChangeProposal(
            lease=after,
            before=lease,
            allocations=allocations,
            changes=planned.changes,
            dates=dates,
            drafts=drafts,
            planned=planned,
        )

    def write_reservations(self, tx: Transaction, proposal: ChangeProposal) -> dict[str, Mapping[str, object]]:
        """Write the parameters and the subjects of reservations; return the earlier parameters that have changed."""
        before: dict[str, Mapping[str, object]] = {}
        for draft in proposal.drafts:
            reservation_id = draft.reservation.id
            bind(tx, reservation_id, draft.demand, draft.position)
            if draft.parameters != draft.reservation.parameters:
                before[reservation_id] = draft.reservation.parameters
                tx.leases.change_reservations([reservation_id], now=self.now, parameters=dict(draft.parameters))
        return before

    def is_prepared(self, reservation: Reservation, parameters: Mapping[str, object] | None = None) -> bool:
        """Whether something of a reservation is made in the cloud before its start."""
        resource_type = self.context.types[reservation.resource_type]
        return resource_type.is_prepared(reservation.parameters if parameters is None else parameters)

    def record(self, tx: Transaction, lease: Lease, reason: str, **values: Any) -> Lease:
        """Record a change that the cloud need not follow, and notify others; return the changed lease."""
        tx.leases.change(lease, now=self.now, **values)
        self.note(tx, lease, reason)
        changed = again(tx, lease)
        notify(tx, "lease.update", changed, now=self.now)
        return changed

    def follow(self, tx: Transaction, lease: Lease, *, payload: UpdatePayload, reason: str, **values: Any) -> Claim:
        """Add the event by which the cloud follows a change of a running lease, claimed by the caller."""
        claimed = self.claimed(tx, lease, EventType.UPDATE, payload)
        apply(tx, lease, Action.UPDATE, actor=self.actor, now=self.now, **values)
        self.note(tx, lease, reason, status=LeaseStatus.UPDATING)
        return claimed

    def claimed(self, tx: Transaction, lease: Lease, event_type: EventType, payload: Payload = NO_PAYLOAD) -> Claim:
        """Add an event that the caller carries out; return the claim."""
        token, now = new_id(), tx.now()
        others = [stored for stored in tx.events.of_lease(lease.id) if stored.event.event_type is not EventType.NOTIFY]
        if any(stored.claim_token and stored.ready_at and stored.ready_at > now for stored in others):
            raise LeaseBusy(lease.status)  # a worker carries out another event of the lease
        event = Event(new_id(), lease.id, event_type, now, EventStatus.IN_PROGRESS, 1, self.now)
        claim = token, now + self.context.rules.claim_time
        tx.events.add([event], claim=claim, payload=payload.to_json())
        return Claim(event.id, token)

    def note(self, tx: Transaction, lease: Lease, reason: str, *, status: LeaseStatus | None = None) -> None:
        after = status or lease.status
        write_history(tx, lease.id, "update", after, after, actor=self.actor, now=self.now, reason=reason)


def refuse_busy(lease: Lease) -> None:
    """Raise ``LeaseBusy`` during an operation on the lease, and ``InvalidState`` if the lease is provisional."""
    if lease.hold_until is not None:
        raise InvalidState(
            f"The lease is held until {lease.hold_until:%Y-%m-%d %H:%M:%S} UTC: confirm it first, or delete it."
        )
    if lease.status in BUSY:
        raise LeaseBusy(lease.status)


def live_reservations(lease: Lease) -> list[Reservation]:
    """Return the reservations of a lease that were not dropped."""
    return [reservation for reservation in lease.reservations if reservation.status is not ReservationStatus.DELETED]


def again(tx: Transaction, lease: Lease) -> Lease:
    """Return the lease as it is now in this transaction."""
    fresh = tx.leases.get(lease.id)
    assert fresh is not None
    return fresh


def added_allocations(tx: Transaction, proposal: ChangeProposal) -> dict[str, tuple[int, ...]]:
    """Return the ids of the allocations that a running lease has got, by reservation."""
    own = {reservation.id for reservation in proposal.lease.reservations}
    gaining = {allocation.reservation_id for allocation in proposal.changes.added} & own
    known = {allocation.id for allocation in proposal.allocations}
    added: dict[str, list[int]] = {}
    for allocation in tx.allocations.of_reservations(gaining):
        if allocation.id not in known:
            added.setdefault(allocation.reservation_id, []).append(allocation.id)
    return {reservation_id: tuple(ids) for reservation_id, ids in added.items()}


def _amount(lease: Values) -> object:
    """Return what a lease takes, and for how long."""
    return [
        lease["start_date"],
        lease["end_date"],
        [reservation["allocations"] for reservation in lease["reservations"]],
    ]
