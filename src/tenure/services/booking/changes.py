"""Changes of leases: what each request writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple
from zlib import crc32

from tenure.domain.actor import Actor
from tenure.domain.allocation import Allocation, Demand
from tenure.domain.errors import InvalidParameter, InvalidState, LeaseBusy, MissingParameter, NotFound
from tenure.domain.lease import (
    BUSY,
    Action,
    AllocationState,
    Event,
    EventStatus,
    EventType,
    Lease,
    LeaseStatus,
    Reservation,
    ReservationStatus,
)
from tenure.domain.period import Period, minute_of
from tenure.domain.request import LeaseChange, Moment, ReservationChange
from tenure.domain.requirement import Comparison
from tenure.domain.resource import Resource
from tenure.planning.changes import changes_of
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import NewUnits
from tenure.services.booking.admission import Proposal, Request
from tenure.services.booking.context import BookingContext
from tenure.services.booking.reservation_changes import (
    Dates,
    PlannedReservations,
    ReservationDraft,
    plan_reservations,
)
from tenure.services.booking.subjects import bind, check_unbound
from tenure.services.context import new_id
from tenure.services.enforcement.filters import Question
from tenure.services.events.before_end import add_notice, may_move, move_notice, notice_after, notify_armed_again
from tenure.services.events.payloads import (
    NO_PAYLOAD,
    BeforeEndPayload,
    LeaseBefore,
    NoticeBefore,
    Payload,
    UpdatePayload,
)
from tenure.services.events.user_events import EventReplacement, check_events
from tenure.services.leases.bounds import check_one_more, check_sizes
from tenure.services.leases.dates import check_longest, check_notice, check_shortest, resolve
from tenure.services.leases.parameters import (
    Facts,
    changed_parameters,
    errors_at_position,
    parameters_after,
    placed_demand,
)
from tenure.services.leases.properties import check_identifying, check_private, check_values
from tenure.services.leases.provisional import check_confirmed
from tenure.services.notifications.records import apply, notify, write_history
from tenure.services.notifications.statements import Values, revision, served_by, statement
from tenure.services.resources.healing import request_reconciliation
from tenure.store.conflict import Overtaken
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent


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
        return [each for each in self.changes.applied_to(self.allocations, kept) if each.reservation_id in kept]


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
        self, tx: Transaction, lease: Lease, reservation: Reservation, position: int, asked: ReservationChange | None
    ) -> ReservationDraft:
        """Return a reservation as it is to be; raise the errors that its type finds."""
        types = self.context.types
        before = demand = placed_demand(types, reservation, position)
        given = changed_parameters(reservation, asked)
        with errors_at_position(position):
            running = lease.status is LeaseStatus.ACTIVE
            parameters = parameters_after(types, reservation, asked, self.facts, running=running)
        if given:
            demand = placed_demand(types, replace(reservation, parameters=parameters), position)
            old = set(before.expression.comparisons)
            new = [comparison for comparison in demand.expression.comparisons if comparison not in old]
            self.check_conditions(tx, lease, demand, new, position)
            if asked is not None and asked.checks_values:
                check_values(tx, demand, new, position)
        grows = bool(types[reservation.resource_type].growing & given.keys())
        return ReservationDraft(reservation, position, parameters, before, demand, grows)

    def check_conditions(
        self, tx: Transaction, lease: Lease, demand: Demand, asked: Collection[Comparison], position: int
    ) -> None:
        """Raise ``InvalidParameter`` for conditions that the actor may not use."""
        names, seen = {comparison.name for comparison in asked}, self.context.access.sees(self.actor, lease)
        check_private(tx, self.context.rules, demand.inventory, names, position, seen=seen)
        check_identifying(self.context.types, demand.inventory, asked, position, seen=seen)

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
                replace(each, parameters=parameters[each.id]) if each.id in parameters else each
                for each in lease.reservations
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

    def record(self, tx: Transaction, lease: Lease, what: str, **values: Any) -> Lease:
        """Record a change that the cloud need not follow, and notify others; return the changed lease."""
        tx.leases.change(lease, now=self.now, **values)
        self.note(tx, lease, what)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(ChangeRequest):
    """The change of a lease's details, dates, reservations and events."""

    change: LeaseChange

    def proposed(self, tx: Transaction, lease: Lease, snapshot: Snapshot) -> ChangeProposal:
        change = self.change
        if change.is_empty:
            return self.nothing(lease)
        refuse_busy(lease)
        if change.only_details:
            proposal = replace(self.nothing(lease), is_empty=False)
            renamed = replace(lease, **change.details(), version=lease.version + 1, updated_at=self.now)
            return replace(proposal, lease=renamed)
        self._check_status(lease)
        dates = self._dates(lease)
        matched = self.matched(lease, change.reservations)
        events = tx.events.of_lease(lease.id)
        if dates.notice_at is not None:
            self._check_notice_open(dates.notice_at, events)
        moved = (dates.starts_at, dates.ends_at) != (lease.starts_at, lease.ends_at)
        positions = {asked.reservation_id: position for position, asked in enumerate(change.reservations)}
        drafts = [
            self.draft(tx, lease, reservation, positions.get(reservation.id, index), matched.get(reservation.id))
            for index, reservation in enumerate(lease.reservations)
            if (moved or reservation.id in matched) and reservation.status is not ReservationStatus.DELETED
        ]
        if change.events is not None:
            check_events(change.events, dates.starts_at, dates.ends_at)
        proposal = self.planned(tx, lease, drafts, dates, snapshot)
        after = replace(proposal.lease, **change.details(), events=self._events_after(lease, dates, events))
        if self._is_followed(proposal):
            after = replace(after, status=LeaseStatus.UPDATING, status_reason=None, status_detail=None)
        return replace(proposal, lease=after)

    def write(self, tx: Transaction, proposal: ChangeProposal) -> Changed:
        lease, dates, change = proposal.before, proposal.dates, self.change
        if change.only_details:
            tx.leases.change(lease, now=self.now, **change.details())
            self.note(tx, lease, "; ".join(_changed_details(lease, change)) or "nothing")
            return Changed(again(tx, lease))
        parameters_before = self.write_reservations(tx, proposal)
        events = tx.events.of_lease(lease.id)
        replaced = None
        if change.events is not None:
            replaced = EventReplacement.of(again(tx, lease), change.events, self.now).write(tx, self.now)
        due_before = self._move_events(tx, lease, dates, events)
        notice_before = self._move_notice(tx, lease, dates, events)
        values = {**change.details(), "starts_at": dates.starts_at, "ends_at": dates.ends_at}
        what = self._describe(lease, dates)
        planned = proposal.planned
        if self._is_followed(proposal):
            payload = UpdatePayload(
                added=_added(tx, proposal),
                parameters=parameters_before,
                before=LeaseBefore(**lease.details(), starts_at=lease.starts_at, ends_at=lease.ends_at),
                due=due_before,
                events=replaced,
                notice=notice_before,
                bound=planned.bound,
                ending=planned.ending,
                lasting=planned.lasting,
            )
            return Changed(lease, self.follow(tx, lease, payload=payload, reason=what, **values))
        for end, allocation_ids in planned.shorter.items():
            tx.allocations.shorten(allocation_ids, end)
        changed = self.record(tx, lease, what, **values)
        notify_armed_again(tx, changed, notice_before, now=self.now)
        if dates.ends_at != lease.ends_at and any(draft.demand.subject is not None for draft in proposal.drafts):
            request_reconciliation(tx, changed, now=self.now)  # writes the new end to the metadata of the server
        is_prepared_again = lease.status is LeaseStatus.PENDING and any(
            self.is_prepared(reservation) or self.is_prepared(reservation, parameters_before[reservation.id])
            for reservation in changed.reservations
            if reservation.id in parameters_before
        )
        return Changed(changed, self.claimed(tx, lease, EventType.PREPARE) if is_prepared_again else None)

    def _is_followed(self, proposal: ChangeProposal) -> bool:
        """Whether the cloud has to follow: a running lease gets something."""
        if proposal.before.status is not LeaseStatus.ACTIVE:
            return False
        own = {reservation.id for reservation in proposal.before.reservations}
        return bool(proposal.planned.bound) or any(each.reservation_id in own for each in proposal.changes.added)

    def _check_status(self, lease: Lease) -> None:
        if lease.status is LeaseStatus.WAITING:
            raise InvalidState("A lease on the waiting list can only be renamed or deleted")
        over = lease.status is LeaseStatus.TERMINATED or lease.ends_at < minute_of(self.now)
        if over and lease.status is not LeaseStatus.ERROR:
            raise InvalidState("Terminated leases can only be renamed")
        if lease.status is LeaseStatus.ERROR:
            raise InvalidState("A lease in ERROR can only be renamed or deleted")

    def _dates(self, lease: Lease) -> Dates:
        change, this_minute = self.change, minute_of(self.now)
        starts_at, ends_at = lease.starts_at, lease.ends_at
        if change.starts_at is not None:
            starts_at = resolve(change.starts_at, self.now)
            started = lease.starts_at < this_minute or lease.status is not LeaseStatus.PENDING
            if starts_at != lease.starts_at and started:
                raise InvalidParameter("Cannot modify the start date of already started leases", field="start_date")
            if starts_at != lease.starts_at and starts_at < this_minute:
                raise InvalidParameter("Start date must be later than current date", field="start_date")
        if change.ends_at is not None:
            ends_at = resolve(change.ends_at, self.now)
            if change.ends_at is Moment.THIS_MINUTE and starts_at <= self.now:
                ends_at = max(ends_at, starts_at)  # it began in this minute
        if ends_at < starts_at or (change.ends_at is not None and ends_at < this_minute):
            field = "end_date" if change.ends_at is not None else "start_date"
            raise InvalidParameter("End date must be later than current and start date", field=field)
        moves = (starts_at, ends_at) != (lease.starts_at, lease.ends_at)
        if moves and lease.status is LeaseStatus.PENDING and starts_at < ends_at:
            check_shortest(starts_at, ends_at)
        if ends_at - starts_at > lease.ends_at - lease.starts_at:
            check_longest(self.context.rules, starts_at, ends_at)
        notice_at = None
        if change.before_end_at is not None:
            notice_at = check_notice(resolve(change.before_end_at, self.now), starts_at, ends_at)
        return Dates(starts_at, ends_at, notice_at)

    def _check_notice_open(self, notice_at: datetime, events: Sequence[StoredEvent]) -> None:
        """Raise ``InvalidState`` if the action before the end has run, and should have run at another time."""
        for stored in events:
            event = stored.event
            has_run = event.event_type is EventType.BEFORE_END and event.status is not EventStatus.UNDONE
            if has_run and notice_at != event.due_at and notice_at <= self.now:
                raise InvalidState("The action before the end has run already; its new date must be in the future")

    # --- events

    def _events_after(self, lease: Lease, dates: Dates, events: Sequence[StoredEvent]) -> tuple[Event, ...]:
        """Return the events of the lease as they would be."""
        due = self._due_after(lease, dates, events)
        after: list[Event] = []
        for stored in events:
            event = stored.event
            if event.event_type is EventType.NOTIFY and self.change.events is not None:
                continue
            if event.event_type is EventType.BEFORE_END and self._moves_notice(lease, dates):
                due_at, _ = self._notice_after(stored, lease, dates)
                if may_move(stored, due_at):
                    event = replace(event, due_at=due_at, status=EventStatus.UNDONE)
            elif event.id in due:
                event = replace(event, due_at=due[event.id])
            after.append(event)
        if dates.notice_at is not None and lease.event(EventType.BEFORE_END) is None:
            after.append(
                Event(new_id(), lease.id, EventType.BEFORE_END, dates.notice_at, EventStatus.UNDONE, 0, self.now)
            )
        if self.change.events is not None:
            after += EventReplacement.of(lease, self.change.events, self.now).after
        return tuple(after)

    def _due_after(self, lease: Lease, dates: Dates, events: Sequence[StoredEvent]) -> dict[str, datetime]:
        """Return the new dates of events that have not begun, by id; the action before the end is not among them.

        They come along with the dates of the lease.
        """
        if (dates.starts_at, dates.ends_at) == (lease.starts_at, lease.ends_at):
            return {}
        due: dict[str, datetime] = {}
        for stored in events:
            event = stored.event
            if event.status is not EventStatus.UNDONE or stored.claim_token is not None:
                continue
            match event.event_type:
                case EventType.START:
                    due_at = dates.starts_at
                case EventType.END:
                    due_at = dates.ends_at
                case EventType.NOTIFY if self.change.events is None:
                    due_at = min(max(event.due_at, dates.starts_at), dates.ends_at)
                case _:
                    continue
            if due_at != event.due_at:
                due[event.id] = due_at
        return due

    def _move_events(
        self, tx: Transaction, lease: Lease, dates: Dates, events: Sequence[StoredEvent]
    ) -> dict[str, datetime]:
        """Move the events along with the dates; return their earlier due dates by id."""
        before = {stored.event.id: stored.event.due_at for stored in events}
        due = self._due_after(lease, dates, events)
        for event_id, due_at in due.items():
            tx.events.change([event_id], now=self.now, due_at=due_at, ready_at=due_at, attempts=0)
        return {event_id: before[event_id] for event_id in due}

    def _moves_notice(self, lease: Lease, dates: Dates) -> bool:
        moved = (dates.starts_at, dates.ends_at) != (lease.starts_at, lease.ends_at)
        return moved or dates.notice_at is not None

    def _move_notice(
        self, tx: Transaction, lease: Lease, dates: Dates, events: Sequence[StoredEvent]
    ) -> NoticeBefore | None:
        """Move the action before the end along with the dates, or add it; return what undoes that.

        If it has begun, it runs again if its time is later now.
        """
        if not self._moves_notice(lease, dates):
            return None
        stored = next((each for each in events if each.event.event_type is EventType.BEFORE_END), None)
        if stored is not None:
            due_at, payload = self._notice_after(stored, lease, dates)
            return move_notice(tx, stored, lease, due_at, payload, now=self.now)
        return None if dates.notice_at is None else add_notice(tx, lease, dates.notice_at, now=self.now)

    def _notice_after(self, stored: StoredEvent, lease: Lease, dates: Dates) -> tuple[datetime, BeforeEndPayload]:
        return notice_after(stored, lease, self.context.rules, dates.starts_at, dates.ends_at, dates.notice_at)

    def _describe(self, lease: Lease, dates: Dates) -> str:
        """Return the change in words, for the history."""
        change = self.change
        parts = _changed_details(lease, change)
        if dates.starts_at != lease.starts_at:
            parts.append(f"start_date: {lease.starts_at.isoformat()} → {dates.starts_at.isoformat()}")
        if dates.ends_at != lease.ends_at:
            parts.append(f"end_date: {lease.ends_at.isoformat()} → {dates.ends_at.isoformat()}")
        if dates.notice_at is not None:
            parts.append(f"before_end_date: {dates.notice_at.isoformat()}")
        if change.events is not None:
            parts.append(f"events: {len(change.events)} of the owner's")
        for asked in change.reservations:
            given = sorted(name for name, value in asked.parameters.items() if value is not None)
            parts.append(f"reservation {asked.reservation_id}: {', '.join(given)}")
        return "; ".join(parts) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation(ChangeRequest):
    """The confirmation of a provisional lease, with changes of its reservations.

    If the lease needs to be prepared in the cloud, it is confirmed when the claimed event is done.
    """

    changes: tuple[ReservationChange, ...] = ()

    def proposed(self, tx: Transaction, lease: Lease, snapshot: Snapshot) -> ChangeProposal:
        """Raises ``InvalidState`` after the end of the lease, ``Conflict`` if it was confirmed with other values."""
        if lease.hold_until is None:
            check_confirmed(lease, self.changes)
            return self.nothing(lease)
        if lease.ends_at <= self.now:
            raise InvalidState("The lease has come to its end before it was confirmed.")
        matched = self.matched(lease, self.changes)
        positions = {asked.reservation_id: position for position, asked in enumerate(self.changes)}
        drafts = [
            self.draft(tx, lease, reservation, positions[reservation.id], matched[reservation.id])
            for reservation in lease.reservations
            if reservation.id in matched
        ]
        return self.planned(tx, lease, drafts, Dates(lease.starts_at, lease.ends_at), snapshot)

    def write(self, tx: Transaction, proposal: ChangeProposal) -> Changed:
        lease = proposal.before
        self.write_reservations(tx, proposal)
        stored_events = tx.events.of_lease(lease.id)
        deadlines = [stored.event.id for stored in stored_events if stored.event.event_type is EventType.HOLD]
        # A worker that is about to delete the lease loses its claim.
        done = EventStatus.DONE.value
        tx.events.change(deadlines, now=self.now, status=done, ready_at=None, claim_token=None)
        confirmed = again(tx, lease)
        if any(self.is_prepared(reservation) for reservation in confirmed.reservations):
            tx.leases.change(lease, now=self.now)
            write_history(tx, lease.id, "confirm", lease.status, lease.status, actor=self.actor, now=self.now)
            return Changed(confirmed, self.claimed(tx, lease, EventType.PREPARE))
        tx.events.discard(deadlines)
        apply(tx, lease, Action.CONFIRM, actor=self.actor, now=self.now)
        confirmed = again(tx, lease)
        notify(tx, "lease.create", confirmed, now=self.now)
        return Changed(confirmed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition(ChangeRequest):
    """A reservation that is added to a lease for the rest of its time."""

    reservation: Reservation
    #: As in ``ReservationRequest``.
    checks_values: bool = False

    def proposed(self, tx: Transaction, lease: Lease, snapshot: Snapshot) -> ChangeProposal:
        reservation = self.reservation
        if any(known.id == reservation.id for known in lease.reservations):
            return self.nothing(lease)
        refuse_busy(lease)
        if lease.status not in {LeaseStatus.PENDING, LeaseStatus.ACTIVE} or lease.ends_at <= self.now:
            raise InvalidState(f"A lease that is {lease.status} gets no reservation any more.")
        if lease.ends_at <= lease.starts_at:
            raise InvalidState("A lease that lasts for no time gets no reservation.")
        check_one_more(lease)
        check_sizes([each.parameters for each in (*lease.reservations, reservation)])
        position = len(lease.reservations)
        demand = placed_demand(self.context.types, reservation, position)
        self.check_conditions(tx, lease, demand, demand.expression.comparisons, position)
        if self.checks_values:
            check_values(tx, demand, demand.expression.comparisons, position)
        check_unbound(tx, [(position, reservation.id, demand)])
        running = lease.status is LeaseStatus.ACTIVE
        task = NewUnits(
            reservation.id,
            demand,
            Period(max(lease.starts_at, self.now), lease.ends_at + self.context.rules.cleaning_time),
            state=AllocationState.HELD if running else AllocationState.PLANNED,
            position=position,
        )
        plan = self.context.planning.plan(snapshot, [task], now=self.now, seed=crc32(reservation.id.encode()))
        after = replace(
            lease,
            version=lease.version + 1,
            updated_at=self.now,
            status=LeaseStatus.UPDATING if running else lease.status,
            reservations=(*lease.reservations, reservation),
        )
        allocations = tx.allocations.of_reservations([each.id for each in lease.reservations])
        return ChangeProposal(
            lease=after,
            before=lease,
            allocations=allocations,
            changes=changes_of(snapshot, plan.snapshot),
            dates=Dates(lease.starts_at, lease.ends_at),
            drafts=[ReservationDraft(reservation, position, reservation.parameters, demand, demand)],
        )

    def begin(self, tx: Transaction, proposal: ChangeProposal) -> Changed | None:
        """Write the reservation, before its allocations."""
        done = ChangeRequest.begin(self, tx, proposal)
        if done is None:
            tx.leases.add_reservations([self.reservation], first=len(proposal.before.reservations))
        return done

    def write(self, tx: Transaction, proposal: ChangeProposal) -> Changed:
        lease, reservation = proposal.before, self.reservation
        self.write_reservations(tx, proposal)
        what = f"reservation {reservation.id} added"
        if lease.status is LeaseStatus.ACTIVE:
            payload = UpdatePayload(added=_added(tx, proposal), new=(reservation.id,))
            return Changed(lease, self.follow(tx, again(tx, lease), payload=payload, reason=what))
        changed = self.record(tx, lease, what)
        return Changed(changed, self.claimed(tx, lease, EventType.PREPARE) if self.is_prepared(reservation) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal(ChangeRequest):
    """A reservation that is dropped from a lease."""

    reservation_id: str

    def proposed(self, tx: Transaction, lease: Lease, snapshot: Snapshot) -> ChangeProposal:
        """Raises ``NotFound`` if the lease has no such reservation."""
        found = [reservation for reservation in lease.reservations if reservation.id == self.reservation_id]
        if not found:
            raise NotFound(f"Object with {{'reservation_id': '{self.reservation_id}'}} not found")
        if found[0].status is ReservationStatus.DELETED:
            return self.nothing(lease)
        refuse_busy(lease)
        if lease.status not in {LeaseStatus.PENDING, LeaseStatus.ACTIVE}:
            raise InvalidState(f"A reservation of a lease that is {lease.status} cannot be dropped.")
        allocations = tx.allocations.of_reservations([each.id for each in lease.reservations])
        is_running = lease.status is LeaseStatus.ACTIVE
        status = found[0].status if is_running else ReservationStatus.DELETED
        after = replace(
            lease,
            version=lease.version + 1,
            updated_at=self.now,
            status=LeaseStatus.UPDATING if is_running else lease.status,
            reservations=tuple(
                replace(each, status=status) if each.id == self.reservation_id else each for each in lease.reservations
            ),
        )
        return ChangeProposal(
            lease=after,
            before=lease,
            allocations=allocations,
            dates=Dates(lease.starts_at, lease.ends_at),
            dropped=self.reservation_id,
        )

    def write(self, tx: Transaction, proposal: ChangeProposal) -> Changed:
        lease = proposal.before
        if lease.status is LeaseStatus.ACTIVE:
            payload = UpdatePayload(dropped=(self.reservation_id,))
            return Changed(lease, self.follow(tx, lease, payload=payload, reason=f"drop {self.reservation_id}"))
        tx.allocations.remove_planned([self.reservation_id])
        tx.leases.change_reservations([self.reservation_id], now=self.now, status=ReservationStatus.DELETED.value)
        return Changed(self.record(tx, lease, f"reservation {self.reservation_id} dropped"))


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
    return [each for each in lease.reservations if each.status is not ReservationStatus.DELETED]


def again(tx: Transaction, lease: Lease) -> Lease:
    """Return the lease as it is now in this transaction."""
    fresh = tx.leases.get(lease.id)
    assert fresh is not None
    return fresh


def _added(tx: Transaction, proposal: ChangeProposal) -> dict[str, tuple[int, ...]]:
    """Return the ids of the allocations that a running lease has got, by reservation."""
    own = {reservation.id for reservation in proposal.lease.reservations}
    gaining = {allocation.reservation_id for allocation in proposal.changes.added} & own
    known = {allocation.id for allocation in proposal.allocations}
    added: dict[str, list[int]] = {}
    for allocation in tx.allocations.of_reservations(gaining):
        if allocation.id not in known:
            added.setdefault(allocation.reservation_id, []).append(allocation.id)
    return {reservation_id: tuple(ids) for reservation_id, ids in added.items()}


def _changed_details(lease: Lease, change: LeaseChange) -> list[str]:
    """Return the changed details in words."""
    before = lease.details()
    return [f"{name}: {before[name]} → {value}" for name, value in change.details().items() if value != before[name]]


def _amount(lease: Values) -> object:
    """Return what a lease takes, and for how long."""
    return [
        lease["start_date"],
        lease["end_date"],
        [reservation["allocations"] for reservation in lease["reservations"]],
    ]
