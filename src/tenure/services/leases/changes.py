"""Changes of a lease: which of them are possible when, and what they do to the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple
from zlib import crc32

from tenure.domain.actor import Actor
from tenure.domain.allocation import Allocation, Choice, Demand, Spread, hardest_first, units_by_resource
from tenure.domain.errors import (
    Conflict,
    InvalidParameter,
    InvalidState,
    LeaseBusy,
    MissingParameter,
    NotEnoughResources,
    NotFound,
    OutOfLease,
)
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
from tenure.domain.period import ENDLESS, TICK, Period, length_text, minute_of
from tenure.domain.request import LeaseChange, Moment, ReservationChange, ReservationRequest, When
from tenure.domain.requirement import Comparison
from tenure.domain.zones import is_within_days
from tenure.resources.contract import ResourceType, ResourceTypes, Wanted
from tenure.services.context import Rules, apply, new_id, notify, write_history
from tenure.services.events.before_end import add_notice, move_notice, notice_after, notify_armed_again
from tenure.services.events.payloads import (
    NO_PAYLOAD,
    LeaseBefore,
    NoticeBefore,
    Payload,
    UpdatePayload,
    UserEventsBefore,
)
from tenure.services.events.user_events import check_events, replace_events
from tenure.services.leases.bounds import check_one_more, check_sizes
from tenure.services.leases.default_leases import give_way
from tenure.services.leases.provisional import check_confirmed
from tenure.services.planning.arrangements import Arrangement, OutdatedArrangement
from tenure.services.planning.budget import Budget
from tenure.services.planning.demands import demand_of
from tenure.services.planning.planner import Planner
from tenure.services.planning.survey import is_large
from tenure.services.planning.wishes import Wish
from tenure.services.resources.healing import request_mending
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent

#: The shortest lease. A lease that waits may get its start as its end, as in Blazar; it then has no allocations.
SHORTEST = timedelta(seconds=1)
#: How many properties of a request are checked for being numbers, if the request compares them with texts.
MOST_NAMES = 64


def resolve(when: When, now: datetime) -> datetime:
    """Return the instant of a requested date."""
    if when is Moment.NOW:
        return now.replace(microsecond=0)
    if when is Moment.THIS_MINUTE:
        return minute_of(now)
    assert isinstance(when, datetime)
    return when


def check_notice(notice_at: datetime, starts_at: datetime, ends_at: datetime) -> datetime:
    """Return the time of the action before the end; raise ``OutOfLease`` unless it is strictly inside the lease."""
    if not starts_at < notice_at < ends_at:
        raise OutOfLease
    return notice_at


def check_private(
    tx: Transaction, rules: Rules, inventory: str, names: Collection[str], position: int, *, seen: bool
) -> None:
    """Raise ``InvalidParameter`` if the caller asks for a private property without being allowed to see it.

    Repeated requests would reveal its value.
    """
    if seen or rules.private_asked_for or not names:
        return
    private = tx.resources.private_properties(inventory) & set(names)
    if private:
        raise InvalidParameter(
            f"The property {min(private)} is private: only administrators can ask for it.",
            field=f"reservations[{position}].resource_properties",
        )


def check_identifying(
    types: ResourceTypes, inventory: str, asked: Iterable[Comparison], position: int, *, seen: bool
) -> None:
    """Raise ``InvalidParameter`` if the caller compares names or ids by order without being allowed to see them.

    Each request would halve what a name can be. To name a resource, or all but one, one has to know it.
    """
    apart = types.stock(inventory).apart
    for comparison in asked:
        if not seen and comparison.name in apart and comparison.op not in {"==", "!="}:
            raise InvalidParameter(
                f"The property {comparison.name} tells single resources apart: it is compared by == and != only.",
                field=f"reservations[{position}].resource_properties",
            )


def check_values(
    tx: Transaction,
    demand: Demand,
    asked: Iterable[Comparison],
    position: int,
    *,
    known: set[tuple[str, str]] | None = None,
) -> None:
    """Raise ``InvalidParameter`` if a property that is a number on all resources is compared with a text.

    As a text, ``512000`` is greater than ``1t``, so the request would get resources that it did not ask for. Only the
    first ``MOST_NAMES`` properties of a request are checked: ``known`` has those that were checked for its earlier
    reservations, and is extended.
    """
    known = set() if known is None else known
    for comparison in asked if demand.names_are_asked else ():
        property_ = demand.inventory, comparison.name
        if comparison.number is not None or property_ in known or len(known) >= MOST_NAMES:
            continue
        known.add(property_)
        if tx.resources.is_number_everywhere(*property_):
            raise InvalidParameter(
                f"The property {comparison.name} is a number everywhere, and {comparison.value[:80]!r} is none.",
                field=f"reservations[{position}].resource_properties",
            )


def check_length(rules: Rules, starts_at: datetime, ends_at: datetime, *, field: str = "end_date") -> None:
    """Raise ``InvalidParameter`` for a lease that is too short to be started, or longer than allowed."""
    check_shortest(starts_at, ends_at, field=field)
    check_longest(rules, starts_at, ends_at, field=field)


def check_shortest(starts_at: datetime, ends_at: datetime, *, field: str = "end_date") -> None:
    """Raise ``InvalidParameter`` for a lease that is too short to be started."""
    if ends_at - starts_at < SHORTEST:
        raise InvalidParameter("A lease lasts for a second at least.", field=field)


def check_longest(rules: Rules, starts_at: datetime, ends_at: datetime, *, field: str = "end_date") -> None:
    """Raise ``InvalidParameter`` for a lease that is longer than allowed, in days of the calendar."""
    if rules.longest_lease is not None and not is_within_days(starts_at, ends_at, rules.longest_lease):
        days, asked = rules.longest_lease / timedelta(days=1), length_text(ends_at - starts_at)
        raise InvalidParameter(f"A lease lasts for {days:g} days at most, and this one for {asked}.", field=field)


def placed_demand(types: ResourceTypes, reservation: Reservation | ReservationRequest, position: int) -> Demand:
    """Return the demand of a reservation; errors name its field by its position in the request."""
    with errors_at_position(position):
        return demand_of(types, reservation)


def bind(tx: Transaction, reservation_id: str, demand: Demand, position: int) -> bool:
    """Bind the reservation to the subject of its demand; return False if it was bound to it already.

    A default lease of the subject gives way. Raises ``Conflict`` if another reservation is bound to the subject, and
    ``InvalidParameter`` if that reservation belongs to the same lease.
    """
    if demand.subject is None:
        return False
    try:
        give_way(tx, demand.subject, reservation_id)
        return tx.leases.bind(reservation_id, demand.subject)
    except (Conflict, InvalidParameter) as error:
        error.field = f"reservations[{position}]"
        raise


@contextmanager
def errors_at_position(position: int) -> Iterator[None]:
    """Add the position of a reservation in the request to the field of errors."""
    try:
        yield
    except (InvalidParameter, InvalidState) as error:
        place = f"reservations[{position}]"
        error.field = f"{place}.{error.field}" if error.field else place
        raise


#: The facts that the cloud has given for a request.
Facts = Mapping[Wanted, Mapping[str, object]]
NO_FACTS: Facts = MappingProxyType({})


class Claim(NamedTuple):
    """The claim of an event that was written as claimed, for the caller to carry it out."""

    event_id: str
    token: str


class Changed(NamedTuple):
    """The lease after a change, and the claim of the event for the cloud's part, if there is one."""

    lease: Lease
    claim: Claim | None = None


def complete(kind: ResourceType, parameters: Mapping[str, object], facts: Facts) -> Mapping[str, object]:
    """Return the parameters with the fact that their type needs of the cloud."""
    wanted = kind.wanted(parameters)
    if wanted is None:
        return parameters
    if wanted not in facts:
        raise InvalidState(f"The reservation was changed by another request: what {wanted.field} names is not known.")
    return kind.complete(parameters, facts[wanted])


def changed_parameters(reservation: Reservation, asked: ReservationChange | None) -> dict[str, object]:
    """Return the changed parameters, without values that clients send back as they were shown them."""
    given = {} if asked is None else asked.parameters
    shown = reservation.effects
    return {name: value for name, value in given.items() if name not in shown or shown[name] != value}


def parameters_after(
    types: ResourceTypes, reservation: Reservation, asked: ReservationChange | None, facts: Facts, *, running: bool
) -> Mapping[str, object]:
    """Return the parameters of a reservation after a change, with the facts of the cloud.

    Raises ``InvalidParameter``, and ``InvalidState`` if a ``running`` reservation cannot be changed so.
    """
    given = changed_parameters(reservation, asked)
    if not given:
        return reservation.parameters
    kind = types[reservation.resource_type]
    return complete(kind, kind.merge(reservation.parameters, given, running=running), facts)


@dataclass(frozen=True, slots=True)
class _Dates:
    """The dates of a lease after a change."""

    starts_at: datetime
    ends_at: datetime
    notice_at: datetime | None  # None keeps its distance from the end


@dataclass(frozen=True, slots=True)
class _Part:
    """The change of a single reservation."""

    reservation: Reservation
    #: The position of the reservation in the request.
    position: int
    parameters: Mapping[str, object]
    before: Demand
    demand: Demand
    #: Whether a parameter changes by which a running reservation may grow.
    grows: bool

    @property
    def asks_for_no_more(self) -> bool:
        return self.demand.is_within(self.before) and self.demand.maximum <= self.before.maximum


@dataclass(slots=True)
class _Outcome:
    """The effects of a change on the ledger."""

    #: New allocations of a running lease, by reservation; they are undone if the cloud refuses.
    added: dict[str, list[int]] = field(default_factory=dict)
    parameters_before: dict[str, Mapping[str, object]] = field(default_factory=dict)
    #: Allocations that get an earlier end, by the new end.
    shorter: dict[datetime, list[int]] = field(default_factory=dict)
    #: Allocations that were to last beyond the end of the lease and are no longer, and new ones that are.
    ending: list[int] = field(default_factory=list)
    lasting: list[int] = field(default_factory=list)
    #: Whether all plans got the new dates at once, so that the single reservations need no change.
    rescheduled: bool = False
    #: Reservations that were bound to a subject.
    bound: list[str] = field(default_factory=list)
    #: Whether a server of the owner has the end of the lease in its metadata, and the end changes.
    ends_otherwise: bool = False


class LeaseChanger:
    """Changes a lease in a single transaction."""

    def __init__(
        self,
        tx: Transaction,
        types: ResourceTypes,
        rules: Rules,
        actor: Actor,
        now: datetime,
        facts: Facts = NO_FACTS,
        *,
        sees: bool = True,
        budget: Budget | None = None,
        arrangement: Arrangement | None = None,
    ) -> None:
        """``budget`` is the search time of all attempts together; without it, each attempt has the full time.

        With an ``arrangement``, the lease is planned as that says; ``OutdatedArrangement`` is raised if it cannot be.
        """
        self._tx = tx
        self._arrangement = arrangement
        #: What the change needs of the ledger: the question of the exact search if there is no room.
        self.wishes: tuple[Wish, ...] = ()
        self._budget = budget or Budget(rules.planning_time)
        #: Whether the actor sees private properties.
        self._sees = sees
        self._facts = facts
        self._types = types
        self._rules = rules
        self._actor = actor
        self._now = now
        self._outcome = _Outcome()
        self._events_before: UserEventsBefore | None = None
        #: The earlier due dates of events, by event id.
        self._due_before: dict[str, datetime] = {}
        #: The event before the end before the change, if the change moves or adds it.
        self._notice_before: NoticeBefore | None = None

    def apply(self, lease: Lease, change: LeaseChange) -> Changed:
        """Change the lease."""
        if change.is_empty:
            return Changed(lease)
        _refuse_busy(lease)
        if change.only_details:
            self._tx.leases.change(lease, now=self._now, **change.details())
            self._note(lease, "; ".join(_changed_details(lease, change)) or "nothing")
            return Changed(self._again(lease))
        self._check_status(lease, change)
        dates = self._dates(lease, change)
        changes = self._match(lease, change.reservations)
        events = self._tx.events.of_lease(lease.id)
        if dates.notice_at is not None:
            self._check_notice_open(dates.notice_at, events)
        moved = (dates.starts_at, dates.ends_at) != (lease.starts_at, lease.ends_at)
        positions = {asked.reservation_id: position for position, asked in enumerate(change.reservations)}
        parts = [
            self._part(lease, reservation, positions.get(reservation.id, index), changes.get(reservation.id))
            for index, reservation in enumerate(lease.reservations)
            if (moved or reservation.id in changes) and reservation.status is not ReservationStatus.DELETED
        ]
        self._change_parts(lease, parts, dates)
        if change.events is not None:
            check_events(change.events, dates.starts_at, dates.ends_at)
            self._events_before = replace_events(self._tx, lease.id, change.events, events, self._now)
            events = [stored for stored in events if stored.event.event_type is not EventType.NOTIFY]
        if moved or change.before_end_at is not None:
            self._move_events(lease, dates, events)
        return self._finish(lease, change, dates)

    def confirm(self, lease: Lease, changes: tuple[ReservationChange, ...]) -> Changed:
        """Confirm a provisional lease, with changes of its reservations.

        If the lease needs to be prepared in the cloud, it is confirmed when the claimed event is done. Raises
        ``InvalidState`` if the end of the lease has come, and ``Conflict`` if it was confirmed with other values.
        """
        if lease.hold_until is None:
            check_confirmed(lease, changes)
            return Changed(lease)
        if lease.ends_at <= self._now:
            raise InvalidState("The lease has come to its end before it was confirmed.")
        stored_events = self._tx.events.of_lease(lease.id)
        deadlines = [stored.event.id for stored in stored_events if stored.event.event_type is EventType.HOLD]
        # A worker that is about to delete the lease loses its claim.
        done = EventStatus.DONE.value
        self._tx.events.change(deadlines, now=self._now, status=done, ready_at=None, claim_token=None)
        matched = self._match(lease, changes)
        positions = {asked.reservation_id: position for position, asked in enumerate(changes)}
        parts = [
            self._part(lease, reservation, positions[reservation.id], matched[reservation.id])
            for reservation in lease.reservations
            if reservation.id in matched
        ]
        self._change_parts(lease, parts, _Dates(lease.starts_at, lease.ends_at, None))
        confirmed = self._again(lease)
        if any(self._is_prepared(reservation) for reservation in confirmed.reservations):
            self._tx.leases.change(lease, now=self._now)
            write_history(self._tx, lease.id, "confirm", lease.status, lease.status, actor=self._actor, now=self._now)
            return Changed(confirmed, self._claimed(lease, EventType.PREPARE))
        self._tx.events.discard(deadlines)
        apply(self._tx, lease, Action.CONFIRM, actor=self._actor, now=self._now)
        confirmed = self._again(lease)
        notify(self._tx, "lease.create", confirmed, now=self._now)
        return Changed(confirmed)

    def drop(self, lease: Lease, reservation_id: str) -> Changed:
        """Drop a reservation. Raises ``NotFound`` if the lease has no such reservation."""
        found = [reservation for reservation in lease.reservations if reservation.id == reservation_id]
        if not found:
            raise NotFound(f"Object with {{'reservation_id': '{reservation_id}'}} not found")
        if found[0].status is ReservationStatus.DELETED:
            return Changed(lease)
        _refuse_busy(lease)
        if lease.status not in {LeaseStatus.PENDING, LeaseStatus.ACTIVE}:
            raise InvalidState(f"A reservation of a lease that is {lease.status} cannot be dropped.")
        if lease.status is LeaseStatus.PENDING:
            self._tx.allocations.remove_planned([reservation_id])
            self._tx.leases.change_reservations([reservation_id], now=self._now, status=ReservationStatus.DELETED.value)
            return Changed(self._record(lease, f"reservation {reservation_id} dropped"))
        payload = UpdatePayload(dropped=(reservation_id,))
        return Changed(lease, self._follow(lease, payload=payload, reason=f"drop {reservation_id}"))

    def add(self, lease: Lease, reservation: Reservation, *, checks_values: bool = False) -> Changed:
        """Add a reservation; ``checks_values`` as in ``ReservationRequest``."""
        if any(known.id == reservation.id for known in lease.reservations):
            return Changed(lease)
        _refuse_busy(lease)
        if lease.status not in {LeaseStatus.PENDING, LeaseStatus.ACTIVE} or lease.ends_at <= self._now:
            raise InvalidState(f"A lease that is {lease.status} gets no reservation any more.")
        if lease.ends_at <= lease.starts_at:
            raise InvalidState("A lease that lasts for no time gets no reservation.")
        check_one_more(lease)
        check_sizes([each.parameters for each in (*lease.reservations, reservation)])
        position = len(lease.reservations)
        demand = placed_demand(self._types, reservation, position)
        self._check_secrets(demand, demand.expression.comparisons, position)
        if checks_values:
            check_values(self._tx, demand, demand.expression.comparisons, position)
        self._tx.leases.add_reservations([reservation], first=position)
        bind(self._tx, reservation.id, demand, position)
        planner = Planner(
            self._tx,
            self._types,
            now=self._now,
            turn=crc32(reservation.id.encode()),
            notice=self._rules.preemption_notice,
            budget=self._budget,
        )
        period = Period(max(lease.starts_at, self._now), lease.ends_at + self._rules.cleaning_time)
        running = lease.status is LeaseStatus.ACTIVE
        state = AllocationState.HELD if running else AllocationState.PLANNED
        self._budget.large = is_large([demand])
        self._record_wishes(Wish(reservation.id, demand, period))
        with self._budget:
            if self._arrangement is not None:
                planner.arrange(self._arrangement)
            added = planner.book(reservation.id, demand, period, position=position, state=state)
        what = f"reservation {reservation.id} added"
        if running:
            payload = UpdatePayload(added={reservation.id: tuple(added)}, new=(reservation.id,))
            return Changed(lease, self._follow(self._again(lease), payload=payload, reason=what))
        prepared = self._is_prepared(reservation)
        return Changed(self._record(lease, what), self._claimed(lease, EventType.PREPARE) if prepared else None)

    def _is_prepared(self, reservation: Reservation) -> bool:
        return self._types[reservation.resource_type].is_prepared(reservation.parameters)

    # --- what may change

    def _check_status(self, lease: Lease, change: LeaseChange) -> None:
        if lease.status is LeaseStatus.WAITING:
            raise InvalidState("A lease on the waiting list can only be renamed or deleted")
        over = lease.status is LeaseStatus.TERMINATED or lease.ends_at < minute_of(self._now)
        if over and lease.status is not LeaseStatus.ERROR:
            raise InvalidState("Terminated leases can only be renamed")
        if lease.status is LeaseStatus.ERROR:
            raise InvalidState("A lease in ERROR can only be renamed or deleted")

    def _dates(self, lease: Lease, change: LeaseChange) -> _Dates:
        this_minute = minute_of(self._now)
        starts_at, ends_at = lease.starts_at, lease.ends_at
        if change.starts_at is not None:
            starts_at = resolve(change.starts_at, self._now)
            started = lease.starts_at < this_minute or lease.status is not LeaseStatus.PENDING
            if starts_at != lease.starts_at and started:
                raise InvalidParameter("Cannot modify the start date of already started leases", field="start_date")
            if starts_at != lease.starts_at and starts_at < this_minute:
                raise InvalidParameter("Start date must be later than current date", field="start_date")
        if change.ends_at is not None:
            ends_at = resolve(change.ends_at, self._now)
            if change.ends_at is Moment.THIS_MINUTE and starts_at <= self._now:
                ends_at = max(ends_at, starts_at)  # it began in this minute
        if ends_at < starts_at or (change.ends_at is not None and ends_at < this_minute):
            field = "end_date" if change.ends_at is not None else "start_date"
            raise InvalidParameter("End date must be later than current and start date", field=field)
        moves = (starts_at, ends_at) != (lease.starts_at, lease.ends_at)
        if moves and lease.status is LeaseStatus.PENDING and starts_at < ends_at:
            check_shortest(starts_at, ends_at)
        if ends_at - starts_at > lease.ends_at - lease.starts_at:
            check_longest(self._rules, starts_at, ends_at)
        notice_at = None
        if change.before_end_at is not None:
            notice_at = check_notice(resolve(change.before_end_at, self._now), starts_at, ends_at)
        return _Dates(starts_at, ends_at, notice_at)

    def _match(self, lease: Lease, changes: tuple[ReservationChange, ...]) -> dict[str, ReservationChange]:
        """Return the changes by reservation; raise if a change names another lease's reservation, or another type."""
        known = {
            reservation.id: reservation
            for reservation in lease.reservations
            if reservation.status is not ReservationStatus.DELETED
        }
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

    def _check_notice_open(self, notice_at: datetime, events: list[StoredEvent]) -> None:
        """Raise ``InvalidState`` if the action before the end has run, and should have run at another time."""
        for stored in events:
            event = stored.event
            has_run = event.event_type is EventType.BEFORE_END and event.status is not EventStatus.UNDONE
            if has_run and notice_at != event.due_at and notice_at <= self._now:
                raise InvalidState("The action before the end has run already; its new date must be in the future")

    # --- the ledger

    def _part(self, lease: Lease, reservation: Reservation, position: int, asked: ReservationChange | None) -> _Part:
        """Return the change of a reservation; raise the errors that its type finds."""
        before = demand = placed_demand(self._types, reservation, position)
        given = changed_parameters(reservation, asked)
        with errors_at_position(position):
            running = lease.status is LeaseStatus.ACTIVE
            parameters = parameters_after(self._types, reservation, asked, self._facts, running=running)
        if given:
            demand = placed_demand(self._types, replace(reservation, parameters=parameters), position)
            old = set(before.expression.comparisons)
            new = [comparison for comparison in demand.expression.comparisons if comparison not in old]
            self._check_secrets(demand, new, position)
            if asked is not None and asked.checks_values:
                check_values(self._tx, demand, new, position)
        grows = bool(self._types[reservation.resource_type].growing & given.keys())
        return _Part(reservation, position, parameters, before, demand, grows)

    def _check_secrets(self, demand: Demand, asked: Collection[Comparison], position: int) -> None:
        names = {comparison.name for comparison in asked}
        check_private(self._tx, self._rules, demand.inventory, names, position, seen=self._sees)
        check_identifying(self._types, demand.inventory, asked, position, seen=self._sees)

    def _change_parts(self, lease: Lease, parts: Sequence[_Part], dates: _Dates) -> None:
        """Change the ledger: first the reservations that ask for no more, then the others, the hardest first."""
        if not parts:
            return
        changed = {part.reservation.id: part.parameters for part in parts}
        if any(part.parameters != part.reservation.parameters for part in parts):
            check_sizes([changed.get(reservation.id, reservation.parameters) for reservation in lease.reservations])
        self._tx.defer_checks()
        planner = Planner(
            self._tx,
            self._types,
            now=self._now,
            turn=crc32(lease.id.encode()),
            notice=self._rules.preemption_notice,
            budget=self._budget,
        )
        order = hardest_first([part.demand for part in parts])
        order.sort(key=lambda index: not parts[index].asks_for_no_more)
        self._record_wishes(*(wish for part in parts if (wish := self._wish(lease, part, dates)) is not None))

        def begin(_order: Sequence[int]) -> None:
            self._outcome = _Outcome()
            if self._arrangement is not None:
                planner.arrange(self._arrangement)
            else:
                self._outcome.rescheduled = self._reschedule(planner, lease, parts, dates)

        def place(index: int) -> None:
            if not self._outcome.rescheduled:
                self._budget.spend(self._tx)
            self._change_part(planner, lease, parts[index], dates)

        demands = [part.demand for part in parts]
        self._budget.large = is_large(demands)
        with self._budget:
            planner.place_all(demands, order, place, begin=begin)

    def _wish(self, lease: Lease, part: _Part, dates: _Dates) -> Wish | None:
        """Return what a reservation is to have, for the exact search; None if it is to have nothing."""
        demand = part.demand
        if lease.status is LeaseStatus.ACTIVE:
            cleaned_at = dates.ends_at + self._rules.cleaning_time
            if cleaned_at <= self._now:
                return None
            prolongs = dates.ends_at > lease.ends_at or demand.lasting
            grows = part.grows and dates.ends_at > self._now
            return Wish(part.reservation.id, demand, Period(self._now, cleaned_at), prolongs=prolongs, grows=grows)
        period = self._time_of_plan(dates)
        if period is None:
            return None
        adds_no_time = lease.starts_at <= dates.starts_at and dates.ends_at <= lease.ends_at
        return Wish(part.reservation.id, demand, period, keeps=adds_no_time and part.asks_for_no_more)

    def _record_wishes(self, *wishes: Wish) -> None:
        """Record the question of the exact search; raise ``OutdatedArrangement`` if another one was answered."""
        self.wishes = wishes
        if self._arrangement is not None and self._arrangement.wishes != wishes:
            raise OutdatedArrangement

    def _change_part(self, planner: Planner, lease: Lease, part: _Part, dates: _Dates) -> None:
        reservation, demand = part.reservation, part.demand
        if bind(self._tx, reservation.id, demand, part.position):
            self._outcome.bound.append(reservation.id)
        self._outcome.ends_otherwise |= demand.subject is not None and dates.ends_at != lease.ends_at
        if not self._outcome.rescheduled:
            allocations, versions = self._tx.allocations.with_versions([reservation.id])
            planner.touch(versions)
            if lease.status is LeaseStatus.ACTIVE:
                self._change_pinned(planner, part, allocations, dates, prolonged=dates.ends_at > lease.ends_at)
            else:
                self._change_plan(planner, lease, part, allocations, dates)
        if part.parameters != reservation.parameters:
            self._outcome.parameters_before[reservation.id] = reservation.parameters
            self._tx.leases.change_reservations([reservation.id], now=self._now, parameters=dict(part.parameters))

    def _reschedule(self, planner: Planner, lease: Lease, parts: Sequence[_Part], dates: _Dates) -> bool:
        """Give all plans of a waiting lease new dates on their resources; return False, with no change, if that fails.

        It takes a search for each stretch of time that is added, instead of one for each reservation.
        """
        period = self._time_of_plan(dates)
        if lease.status is LeaseStatus.ACTIVE or period is None:
            return False
        plans: dict[str, list[Allocation]] = {part.reservation.id: [] for part in parts}
        allocations, versions = self._tx.allocations.with_versions(list(plans))
        planner.touch(versions)
        for allocation in allocations:
            plans[allocation.reservation_id].append(allocation)
        gained: dict[Period, list[Choice]] = {}
        moved: dict[Period, list[Allocation]] = {}
        for part in parts:
            plan = plans[part.reservation.id]
            if part.demand != part.before or units_by_resource(plan).total() != part.demand.maximum:
                return False
            spans = {allocation.period: _span(allocation, part.demand, period, lease, dates) for allocation in plan}
            for allocation in plan:
                moved.setdefault(spans[allocation.period], []).append(allocation)
            for before, span in spans.items():
                units = units_by_resource(allocation for allocation in plan if allocation.period == before)
                for stretch in span.without(before):
                    gained.setdefault(stretch, []).append(Choice(part.demand, stretch, units))
        if any(stretch.overlaps(other) for stretch, other in combinations(gained, 2)):
            return False  # room in each of these stretches does not mean room in both
        for choices in gained.values():
            versions = self._tx.allocations.versions_of(choices, now=self._now)
            if not versions:
                return False
            planner.touch(versions)
        if not gained:
            return False
        self._tx.allocations.lapse(allocations, now=self._now, since=dates.starts_at)
        for span, plan in moved.items():
            self._tx.allocations.reschedule(plan, span)
        return True

    def _time_of_plan(self, dates: _Dates) -> Period | None:
        """Return the period of the plans of a lease with these dates; None if it never has any allocation."""
        start, end = max(dates.starts_at, self._now), dates.ends_at + self._rules.cleaning_time
        return Period(start, end) if start < dates.ends_at else None

    def _change_plan(
        self, planner: Planner, lease: Lease, part: _Part, allocations: list[Allocation], dates: _Dates
    ) -> None:
        """Plan a reservation again: keep the resources that still fit, release the others, and add missing ones.

        A change that asks for no more than the reservation has keeps its resources even if they no longer fit.
        """
        reservation, position, demand = part.reservation, part.position, part.demand
        period = self._time_of_plan(dates)
        if period is None:
            self._tx.allocations.remove_planned([reservation.id])
            return
        self._tx.allocations.lapse(allocations, now=self._now, since=dates.starts_at)
        if self._arrangement is not None:
            self._tx.allocations.remove_planned([reservation.id])
            planner.book(reservation.id, demand, period, position=position)
            return
        spans = {allocation.id: _span(allocation, demand, period, lease, dates) for allocation in allocations}
        if lease.starts_at <= dates.starts_at and dates.ends_at <= lease.ends_at:
            times = _within(demand.span(period), allocations)  # adds no time, not even for cleaning
        else:
            times = {
                allocation.id: spans[allocation.id]
                for allocation in allocations
                if allocation.period.covers(spans[allocation.id])
            }
        if allocations and len(times) == len(allocations) and self._has_enough(part, allocations):
            self._keep_plan(planner, part, allocations, times, period)
            return
        if not demand.exclusive:
            # Parts are placed anew; they stay where they are if that is still the best place.
            self._tx.allocations.remove_planned([reservation.id])
            planner.book(reservation.id, demand, period, position=position)
            return
        mine = {allocation.resource_id: allocation for allocation in allocations}
        extended = replace(period, start=max((span.start for span in spans.values()), default=period.start))
        good = self._tx.allocations.still_good(
            demand, extended, dict.fromkeys(mine, 1), ignoring=reservation.id, keep_unreservable=False
        )
        planner.touch(good)
        named = self._tx.resources.ids_of(demand.inventory, demand.named, region=demand.region)
        lost = len(demand.named) - len(
            named.keys() & good
        )  # leaves room for them, so that booking reports them missing
        kept = sorted(good, key=lambda resource_id: (resource_id not in named, resource_id))
        kept = kept[: max(0, demand.maximum - lost)]
        self._tx.allocations.remove([plan.id for resource_id, plan in mine.items() if resource_id not in kept])
        for span in {spans[mine[resource_id].id] for resource_id in kept}:
            plans = [mine[resource_id] for resource_id in kept if spans[mine[resource_id].id] == span]
            self._tx.allocations.reschedule(plans, span)
        missing = demand.maximum - len(kept)
        if missing:
            rest = replace(demand, minimum=max(0, demand.minimum - len(kept)), maximum=missing)
            planner.book(reservation.id, rest, period, position=position, without=kept, requested=demand.minimum)

    def _has_enough(self, part: _Part, allocations: Collection[Allocation]) -> bool:
        """Whether the allocations of a reservation meet the new demand, apart from the period."""
        before, demand = part.before, part.demand
        if sum(allocation.units for allocation in allocations) < demand.minimum or not demand.is_within(before):
            return False
        ids = {allocation.resource_id for allocation in allocations}  # a provider may refuse smaller units
        return demand.amounts == before.amounts or ids == self._tx.allocations.matching(demand.part(1), ids)

    def _keep_plan(
        self,
        planner: Planner,
        part: _Part,
        allocations: Collection[Allocation],
        times: Mapping[int, Period],
        period: Period,
    ) -> None:
        """Keep as many units as the demand asks for, for the period in ``times`` by allocation, and release the rest.

        Named resources are kept first, then those that fit. Plans on resources that do not fit move if there is room
        elsewhere, and stay otherwise. Further units are booked for the whole ``period``.
        """
        reservation, demand = part.reservation, part.demand
        units = units_by_resource(allocations)
        longest = Period(min(time.start for time in times.values()), max(time.end for time in times.values()))
        good = self._tx.allocations.still_good(demand, longest, units, ignoring=reservation.id, keep_unreservable=False)
        named = self._tx.resources.ids_of(demand.inventory, demand.named, region=demand.region)
        left = demand.maximum
        kept: list[Allocation] = []
        order = sorted(allocations, key=lambda plan: (plan.resource_id not in named, plan.resource_id not in good))
        for allocation in order:
            count = min(allocation.units, left)
            left -= count
            if not count:
                self._tx.allocations.drop(allocation)
                continue
            amounts = demand.amounts.times(count)
            if amounts != allocation.amounts:
                self._tx.allocations.shrink(allocation, count, demand)
            kept.append(replace(allocation, units=count, amounts=amounts, period=times[allocation.id]))
        ids = [allocation.id for allocation in kept]
        self._tx.allocations.shorten(ids, demand.span(period).end, start=period.start)
        taken = {allocation.resource_id for allocation in kept}
        for allocation in kept:
            if allocation.resource_id not in good:
                planner.relocate(allocation, demand, without=taken)
        if left:
            rest = replace(demand, minimum=0, maximum=left)
            planner.book(reservation.id, rest, period, position=part.position, without=taken, requested=demand.minimum)

    def _change_pinned(
        self, planner: Planner, part: _Part, allocations: list[Allocation], dates: _Dates, *, prolonged: bool
    ) -> None:
        """Change a running reservation: its pinned allocations stay, and it can only grow."""
        reservation, position, demand = part.reservation, part.position, part.demand
        pinned = [allocation for allocation in allocations if allocation.state is AllocationState.HELD]
        units = units_by_resource(pinned)
        kept = units.total()
        end = dates.ends_at + self._rules.cleaning_time
        latest = max((allocation.period.start for allocation in pinned), default=self._now)
        # From now on only: earlier uses of the resources do not matter.
        until = max(end, self._now, latest + TICK)
        period = demand.span(Period(max(latest, min(self._now, until - TICK)), until))
        if kept > demand.maximum:
            raise NotEnoughResources(
                planner.shortfall(demand, period, position=position, kept=kept, requested=demand.maximum),
                field=f"reservations[{position}]",
                is_proven=True,
            )
        # A change to the same or an earlier end adds no time, not even for cleaning.
        more_time = prolonged or demand.lasting
        longer = [allocation for allocation in pinned if allocation.period.end < period.end] if more_time else []
        if longer:
            self._lengthen(planner, part, longer, units, period)
        # Applied last: if the cloud must follow the change, nothing is released before it has.
        self._outcome.shorter.setdefault(period.end, []).extend(
            allocation.id for allocation in pinned if allocation.period.end > period.end
        )
        lasted = [allocation.id for allocation in pinned if allocation.period.end == ENDLESS]
        self._outcome.ending += [] if demand.lasting else lasted
        if demand.lasting:
            self._outcome.lasting += [allocation.id for allocation in pinned if allocation.id not in lasted]
        if part.grows and kept < demand.maximum and dates.ends_at > self._now:
            rest = replace(demand, minimum=max(0, demand.minimum - kept), maximum=demand.maximum - kept)
            added = planner.book(
                reservation.id,
                rest,
                Period(self._now, end),
                position=position,
                without=units.keys() if demand.spread is Spread.APART else (),
                only=units.keys() if demand.spread is Spread.TOGETHER else None,
                requested=demand.minimum,
                kept=kept,
                state=AllocationState.HELD,
            )
            if added:
                self._outcome.added[reservation.id] = added

    def _lengthen(
        self, planner: Planner, part: _Part, longer: Sequence[Allocation], units: Mapping[int, int], period: Period
    ) -> None:
        """Extend these allocations to the end of the period; ``units`` are those of the reservation, by resource.

        Plans in the way move, perhaps to room beside another of these allocations. So each allocation is extended in
        the ledger before the next plan moves.
        """
        reservation, demand, kept = part.reservation, part.demand, sum(units.values())
        taken = {allocation.resource_id: units[allocation.resource_id] for allocation in longer}
        extension = Period(max(period.start, min(allocation.period.end for allocation in longer)), period.end)
        good = self._tx.allocations.still_good(
            demand, extension, taken, ignoring=reservation.id, keep_unreservable=True
        )
        planner.touch(good)
        lost = {resource_id: count for resource_id, count in taken.items() if resource_id not in good}
        if not lost:
            self._tx.allocations.lengthen(longer, period.end, now=self._now)
            return
        refusal = NotEnoughResources(
            planner.shortfall(demand, extension, position=part.position, kept=kept, requested=kept),
            field="end_date" if not part.grows else f"reservations[{part.position}]",
        )
        free = [allocation for allocation in longer if allocation.resource_id in good]
        self._tx.allocations.lengthen(free, period.end, now=self._now)
        for resource_id, count in sorted(lost.items()):
            if not planner.clear(demand, extension, {resource_id: count}, ignoring=reservation.id, without=lost):
                raise refusal
            behind = [allocation for allocation in longer if allocation.resource_id == resource_id]
            self._tx.allocations.lengthen(behind, period.end, now=self._now)

    # --- events and status

    def _move_events(self, lease: Lease, dates: _Dates, events: list[StoredEvent]) -> None:
        """Move the events to come along with the dates.

        Of the events that have begun, only the action before the end runs again, if its time is later now.
        """
        for stored in events:
            event = stored.event
            if event.event_type is EventType.BEFORE_END:
                self._move_notice(stored, lease, dates)
                continue
            if event.status is not EventStatus.UNDONE or stored.claim_token is not None:
                continue
            due_at = self._due_at(event, dates)
            if due_at is not None and due_at != event.due_at:
                self._due_before[event.id] = event.due_at
                self._tx.events.change([event.id], now=self._now, due_at=due_at, ready_at=due_at, attempts=0)
        if dates.notice_at is not None and all(
            stored.event.event_type is not EventType.BEFORE_END for stored in events
        ):
            self._notice_before = add_notice(self._tx, lease, dates.notice_at, now=self._now)

    def _move_notice(self, stored: StoredEvent, lease: Lease, dates: _Dates) -> None:
        """Move the action before the end along with the dates."""
        due_at, payload = notice_after(stored, lease, self._rules, dates.starts_at, dates.ends_at, dates.notice_at)
        self._notice_before = move_notice(self._tx, stored, lease, due_at, payload, now=self._now)

    def _due_at(self, event: Event, dates: _Dates) -> datetime | None:
        if event.event_type is EventType.START:
            return dates.starts_at
        if event.event_type is EventType.END:
            return dates.ends_at
        if event.event_type is EventType.NOTIFY:
            return min(max(event.due_at, dates.starts_at), dates.ends_at)
        return None

    def _finish(self, lease: Lease, change: LeaseChange, dates: _Dates) -> Changed:
        values = {**change.details(), "starts_at": dates.starts_at, "ends_at": dates.ends_at}
        what = self._describe(lease, change, dates)
        if self._outcome.added or (self._outcome.bound and lease.status is LeaseStatus.ACTIVE):
            outcome = self._outcome
            payload = UpdatePayload(
                added={reservation_id: tuple(ids) for reservation_id, ids in outcome.added.items()},
                parameters=outcome.parameters_before,
                before=LeaseBefore(**lease.details(), starts_at=lease.starts_at, ends_at=lease.ends_at),
                due=self._due_before,
                events=self._events_before,
                notice=self._notice_before,
                bound=tuple(outcome.bound),
                ending=tuple(outcome.ending),
                lasting=tuple(outcome.lasting),
            )
            return Changed(lease, self._follow(lease, payload=payload, reason=what, **values))
        for end, allocation_ids in self._outcome.shorter.items():
            self._tx.allocations.shorten(allocation_ids, end)
        changed = self._record(lease, what, **values)
        notify_armed_again(self._tx, changed, self._notice_before, now=self._now)
        if self._outcome.ends_otherwise:
            request_mending(self._tx, changed, now=self._now)  # writes the new end to the metadata
        if lease.status is LeaseStatus.PENDING and any(
            self._types[reservation.resource_type].is_prepared(parameters)
            for reservation in changed.reservations
            if reservation.id in self._outcome.parameters_before
            for parameters in (reservation.parameters, self._outcome.parameters_before[reservation.id])
        ):
            return Changed(changed, self._claimed(lease, EventType.PREPARE))
        return Changed(changed)

    def _record(self, lease: Lease, what: str, **values: Any) -> Lease:
        """Record a change that the cloud need not follow, and notify others; return the changed lease."""
        self._tx.leases.change(lease, now=self._now, **values)
        self._note(lease, what)
        changed = self._again(lease)
        notify(self._tx, "lease.update", changed, now=self._now)
        return changed

    def _follow(self, lease: Lease, *, payload: UpdatePayload, reason: str, **values: Any) -> Claim:
        """Add the event by which the cloud follows a change of a running lease, claimed by the caller."""
        claimed = self._claimed(lease, EventType.UPDATE, payload)
        apply(self._tx, lease, Action.UPDATE, actor=self._actor, now=self._now, **values)
        self._note(lease, reason, status=LeaseStatus.UPDATING)
        return claimed

    def _claimed(self, lease: Lease, event_type: EventType, payload: Payload = NO_PAYLOAD) -> Claim:
        """Add an event that the caller carries out; return the claim."""
        token = new_id()
        now = self._tx.now()
        others = [
            stored for stored in self._tx.events.of_lease(lease.id) if stored.event.event_type is not EventType.NOTIFY
        ]
        if any(stored.claim_token and stored.ready_at and stored.ready_at > now for stored in others):
            raise LeaseBusy(lease.status)  # a worker carries out another event of the lease
        event = Event(new_id(), lease.id, event_type, now, EventStatus.IN_PROGRESS, 1, self._now)
        self._tx.events.add([event], claim=(token, now + self._rules.claim_time), payload=payload.to_json())
        return Claim(event.id, token)

    def _note(self, lease: Lease, reason: str, *, status: LeaseStatus | None = None) -> None:
        after = status or lease.status
        write_history(self._tx, lease.id, "update", after, after, actor=self._actor, now=self._now, reason=reason)

    def _again(self, lease: Lease) -> Lease:
        fresh = self._tx.leases.get(lease.id)
        assert fresh is not None
        return fresh

    def _describe(self, lease: Lease, change: LeaseChange, dates: _Dates) -> str:
        """Return the change in words, for the history."""
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


def _changed_details(lease: Lease, change: LeaseChange) -> list[str]:
    """Return the changed details in words."""
    before = lease.details()
    return [f"{name}: {before[name]} → {value}" for name, value in change.details().items() if value != before[name]]


def _refuse_busy(lease: Lease) -> None:
    """Raise ``LeaseBusy`` during an operation on the lease, and ``InvalidState`` if the lease is provisional."""
    if lease.hold_until is not None:
        raise InvalidState(
            f"The lease is held until {lease.hold_until:%Y-%m-%d %H:%M:%S} UTC: confirm it first, or delete it."
        )
    if lease.status in BUSY:
        raise LeaseBusy(lease.status)


def _span(plan: Allocation, demand: Demand, period: Period, lease: Lease, dates: _Dates) -> Period:
    """Return how long a plan is to last in a changed lease that has its resources in this period.

    If the plan was delayed because its resource is given back late, it stays so, unless the start of the lease changes.
    """
    span = demand.span(period)
    if dates.starts_at == lease.starts_at and span.start < plan.period.start < span.end:
        return replace(span, start=plan.period.start)
    return span


def _within(period: Period, allocations: Iterable[Allocation]) -> dict[int, Period]:
    """Return the part of each allocation's period that lies in ``period``, by allocation id, if there is any."""
    times = {
        allocation.id: (max(allocation.period.start, period.start), min(allocation.period.end, period.end))
        for allocation in allocations
    }
    return {allocation_id: Period(start, end) for allocation_id, (start, end) in times.items() if start < end}
