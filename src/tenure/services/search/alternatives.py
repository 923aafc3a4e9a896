"""Alternatives to requests that are refused for lack of resources: other requests that would be met now."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice

from tenure.deadlines import SearchTooLong
from tenure.domain.actor import Actor
from tenure.domain.allocation import Demand
from tenure.domain.availability import Alternative, Change
from tenure.domain.errors import Conflict, InvalidParameter, InvalidState
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.period import minute_of
from tenure.domain.request import (
    FlexibleRequest,
    LeaseChange,
    LeaseRequest,
    ReservationChange,
    ReservationRequest,
    StartTimes,
    UserEvent,
    When,
)
from tenure.domain.requirement import ORDER, parse_expression
from tenure.planning.room import count
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import moment, ticks, ticks_of
from tenure.services.booking.addition import Addition
from tenure.services.booking.changes import ChangeRequest, live_reservations
from tenure.services.booking.confirmation import Confirmation
from tenure.services.booking.context import BookingContext
from tenure.services.booking.new_leases import new_reservation
from tenure.services.booking.update import Update
from tenure.services.boots import with_flavor
from tenure.services.context import Context, ContextualService, require, target_of
from tenure.services.leases.dates import SHORTEST, resolve
from tenure.services.leases.intake import Completed, Intake
from tenure.services.leases.parameters import Facts, parameters_after, placed_demand
from tenure.services.limits.headroom import Headroom, Headrooms
from tenure.services.planning.index import AvailabilityIndex
from tenure.services.search.attempts import Attempt, AttemptFactory, Attempts
from tenure.services.search.largest import largest, latest_end, possible_ends, room_until
from tenure.services.search.look_ahead import LookAhead
from tenure.services.search.periods import USUAL_REACH, PeriodSearch
from tenure.services.search.start_times import stretches_of

#: The most alternatives to a request that is refused, and how many kinds of resources are tried for one.
MOST_ALTERNATIVES = 3
KINDS_TRIED = 10
#: The shortest lease that is offered in place of a longer one, and the shortest prolongation.
SHORTEST_ALTERNATIVE = timedelta(minutes=1)


class AlternativeService(ContextualService):
    """The use cases of alternatives: up to three for each request, found in a bounded time.

    An alternative that is taken at once succeeds: there was a plan for it. ``lacking`` is the position of the
    reservation for which there is no room. All raise ``Forbidden``, ``NotFound``, ``InvalidParameter``, and
    ``Unavailable`` if the cloud or the database does not answer.
    """

    def __init__(
        self,
        context: Context,
        index: AvailabilityIndex,
        look_ahead: LookAhead,
        attempt_factory: AttemptFactory,
        periods: PeriodSearch,
        headrooms: Headrooms,
        booking: BookingContext,
        intake: Intake,
    ) -> None:
        super().__init__(context)
        self._index = index
        self._look_ahead = look_ahead
        self._attempt_factory = attempt_factory
        self._periods = periods
        self._headrooms = headrooms
        self._access = booking.access
        self._intake = intake
        #: Without the exact search: its time is for the request itself, not for what it could be instead.
        self._booking = replace(booking, planning=booking.planning.without_exact_search())

    def to_lease(self, actor: Actor, request: LeaseRequest | FlexibleRequest, lacking: int) -> tuple[Alternative, ...]:
        """Return alternatives to a new lease.

        Of a flexible request, they are alternatives to its first choice at its first possible start.
        """
        self._check(actor)
        request = with_flavor(request)
        if isinstance(request, FlexibleRequest):
            request = self._periods.earliest(request, 0)
        completed = self._attempt_factory.complete(actor, request.reservations)
        now = self._clock.now()
        start, end = resolve(request.starts_at, now), resolve(request.ends_at, now)
        if end <= start:  # the end has passed since the refusal
            return ()
        view, demand = self._index.view(), completed.demands[lacking]

        def with_demand(other: Demand) -> Attempt:
            demands = [*completed.demands[:lacking], other, *completed.demands[lacking + 1 :]]
            return self._attempt_factory.booking(actor, replace(completed, demands=demands), view)

        return self._search(
            actor,
            _Refused(
                view,
                self._attempt_factory.begin(actor, completed, view),
                completed,
                start,
                end,
                headroom=self._headrooms.of(actor.project_id, completed.reservations, completed.demands),
                inside=_dates_inside(request.before_end_at, request.events, now),
                starts_otherwise=True,
                first_end=start + SHORTEST_ALTERNATIVE,
                has_room=room_until(view, completed, start, self._rules.cleaning_time),
                lacking=_Lacking(
                    lacking,
                    lacking,
                    fewest=0,
                    resized=lambda amount: with_demand(replace(demand, minimum=amount, maximum=amount)),
                    of_kind=lambda condition: with_demand(
                        self._with_condition(completed.reservations[lacking], condition, lacking)
                    ),
                ),
            ),
        )

    def to_change(self, actor: Actor, lease_id: str, change: LeaseChange, lacking: int) -> tuple[Alternative, ...]:
        """Return alternatives to a change of a lease."""
        lease, now = self._find(actor, lease_id), self._clock.now()
        facts = self._intake.facts_of_change(actor, lease, change)
        update = Update(self._booking, actor, lease, now, facts, change=LeaseChange())
        return self._to_change(update, change, lacking, lambda other: replace(update, change=other))

    def to_confirmation(
        self, actor: Actor, lease_id: str, changes: tuple[ReservationChange, ...], lacking: int
    ) -> tuple[Alternative, ...]:
        """Return alternatives to the confirmation of a held lease with these changes."""
        lease, now = self._find(actor, lease_id), self._clock.now()
        change = LeaseChange(reservations=changes)
        facts = self._intake.facts_of_change(actor, lease, change)
        confirmation = Confirmation(self._booking, actor, lease, now, facts)
        return self._to_change(
            confirmation, change, lacking, lambda other: replace(confirmation, changes=other.reservations)
        )

    def to_reservation(self, actor: Actor, lease_id: str, request: ReservationRequest) -> tuple[Alternative, ...]:
        """Return alternatives to a reservation that is added to a lease."""
        lease = self._find(actor, lease_id)
        completed = self._attempt_factory.complete(actor, [request])
        [requested] = completed.reservations
        [demand] = completed.demands

        now, snapshot = self._clock.now(), self._index.view()

        def adding(parameters: Mapping[str, object]) -> Attempt:
            other = replace(requested, parameters={**requested.parameters, **parameters})
            reservation = new_reservation(self._types, lease_id, other, now)
            addition = Addition(self._booking, actor, lease, now, reservation=reservation)
            return self._attempt_factory.changing(addition, snapshot)

        start, end = max(lease.starts_at, now), lease.ends_at
        if end <= start:  # the end has passed since the refusal
            return ()
        lacking = _lacking_reservation(0, 0, demand, requested.parameters, adding, fewest=0)
        attempts = self._attempt_factory.of(adding({}))
        refused = _Refused(snapshot, attempts, completed, start, end, lacking, Headroom(), has_plans=True)
        return self._search(actor, refused)

    def _to_change(
        self,
        request: ChangeRequest,
        change: LeaseChange,
        lacking: int,
        with_change: Callable[[LeaseChange], ChangeRequest],
    ) -> tuple[Alternative, ...]:
        lease, now, snapshot = request.lease, request.at, self._index.view()
        change = LeaseChange(
            starts_at=change.starts_at,
            ends_at=change.ends_at,
            before_end_at=change.before_end_at,
            reservations=change.reservations,
            events=change.events,
        )
        completed = self._after(lease, change, request.facts)
        start = lease.starts_at if change.starts_at is None else resolve(change.starts_at, now)
        end = lease.ends_at if change.ends_at is None else resolve(change.ends_at, now)
        if end <= start:  # the end has passed since the refusal
            return ()

        def trying(other: LeaseChange) -> Attempt:
            def attempt(starts_at: datetime, ends_at: datetime) -> None:
                dated = replace(other, starts_at=starts_at, ends_at=ends_at)
                if not dated.reservations and (starts_at, ends_at) == (lease.starts_at, lease.ends_at):
                    raise Conflict("The lease has this period already.")
                self._attempt_factory.changing(with_change(dated), snapshot)(starts_at, ends_at)

            return attempt

        moves = (start, end) != (lease.starts_at, lease.ends_at)
        is_prolonged = moves and start == lease.starts_at and not change.reservations
        until = self._may_end_at(lease) if is_prolonged else None
        return self._search(
            request.actor,
            _Refused(
                snapshot,
                self._attempt_factory.of(trying(change)),
                completed,
                start,
                end,
                headroom=self._headrooms.of(
                    lease.project_id, completed.reservations, completed.demands, without=lease.id
                ),
                inside=_dates_inside(change.before_end_at, change.events, now),
                starts_otherwise=moves and lease.status is LeaseStatus.PENDING and lease.starts_at >= minute_of(now),
                first_end=(lease.ends_at if is_prolonged else max(start, now)) + SHORTEST_ALTERNATIVE
                if moves
                else None,
                further_end=until,
                has_plans=True,
                has_room=lambda other: until is not None and other <= until,
                lacking=self._lacking_in_change(lease, change, lacking, completed, trying, moves=moves),
            ),
        )

    def _lacking_in_change(
        self,
        lease: Lease,
        change: LeaseChange,
        lacking: int,
        completed: Completed,
        trying: Callable[[LeaseChange], Attempt],
        *,
        moves: bool,
    ) -> _Lacking | None:
        """Return what may be changed in the reservation without room; None if the change does not name it."""
        if lacking >= len(change.reservations):
            return None
        reservation_change = change.reservations[lacking]
        live = live_reservations(lease)
        index = next((index for index, known in enumerate(live) if known.id == reservation_change.reservation_id), None)
        if index is None:
            return None

        def attempt(parameters: Mapping[str, object]) -> Attempt:
            other = replace(reservation_change, parameters={**reservation_change.parameters, **parameters})
            changes = (*change.reservations[:lacking], other, *change.reservations[lacking + 1 :])
            return trying(replace(change, reservations=changes))

        alone = not moves and len(change.reservations) == 1
        fewest = placed_demand(self._types, live[index], index).minimum if alone else 0
        return _lacking_reservation(
            lacking, index, completed.demands[index], reservation_change.parameters, attempt, fewest=fewest
        )

    def _after(self, lease: Lease, change: LeaseChange, facts: Facts) -> Completed:
        """Return the reservations of a lease after a change, and their demands."""
        changes = {asked.reservation_id: asked for asked in change.reservations}
        running = lease.status is LeaseStatus.ACTIVE
        reservations = [
            ReservationRequest(
                known.resource_type,
                parameters_after(self._types, known, changes.get(known.id), facts, running=running),
                region=known.region,
            )
            for known in live_reservations(lease)
        ]
        demands = [placed_demand(self._types, known, index) for index, known in enumerate(reservations)]
        return Completed(reservations, demands)

    def _may_end_at(self, lease: Lease) -> datetime | None:
        """Return until when a lease may be prolonged as things stand; None if nothing limits it."""
        with self._db.read() as tx:
            allocations = tx.allocations.of_reservations([reservation.id for reservation in lease.reservations])
        return self._look_ahead.may_end_at(lease, allocations)

    def _search(self, actor: Actor, case: _Refused) -> tuple[Alternative, ...]:
        searches = (self._another_start, self._earlier_end, self._fewer, partial(self._another_kind, actor))
        found = (_found(search, case) for search in searches)
        return tuple(islice((alternative for alternative in found if alternative is not None), MOST_ALTERNATIVES))

    def _another_start(self, case: _Refused) -> Alternative | None:
        if not case.starts_otherwise:
            return None
        first, last = case.starts_for(case.end - case.start)
        if last < first:
            return None
        allowed = stretches_of(StartTimes(), first, last)
        allowed = case.headroom.starts(case.end - case.start, allowed)
        offers = self._periods.within(case.view, case.attempts, case.completed, case.end - case.start, allowed, 1)
        return Alternative(Change.START, offers[0].starts_at, offers[0].ends_at) if offers else None

    def _earlier_end(self, case: _Refused) -> Alternative | None:
        if case.first_end is None:
            return None
        first_end = case.first_end
        if case.inside is not None:
            first_end = max(first_end, case.inside[1])
        ends = possible_ends(case.view, case.completed, first_end, case.end, self._rules.cleaning_time)
        more = {case.further_end} if case.further_end is not None else set()
        limit = case.headroom.latest_end(case.start)
        if limit < ticks(case.end):
            more.add(moment(limit))
        ends = sorted({*ends, *(end for end in more if first_end <= end < case.end)})
        end = latest_end(case.attempts, case.start, ends, case.has_room)
        return Alternative(Change.END, case.start, end) if end is not None else None

    def _fewer(self, case: _Refused) -> Alternative | None:
        lacking = case.lacking
        if lacking is None or lacking.resized is None:
            return None
        resized, demand = lacking.resized, case.completed.demands[lacking.index]

        def fits(amount: int) -> bool:
            if amount <= lacking.fewest:
                return True
            return case.attempts.of(resized(amount)).fits(case.start, case.end, direct=False)

        free = self._count(case, replace(demand, minimum=1))
        amount = largest(fits, demand.minimum - 1, min(lacking.fewest + free, demand.minimum - 1))
        is_less = lacking.fewest < amount
        return Alternative(Change.AMOUNT, case.start, case.end, lacking.position, amount) if is_less else None

    def _another_kind(self, actor: Actor, case: _Refused) -> Alternative | None:
        """Return the request for resources of the most frequent other kind that fits."""
        lacking = case.lacking
        if lacking is None or lacking.of_kind is None:
            return None
        reservation = case.completed.reservations[lacking.index]
        fields_of_request = self._types[reservation.resource_type].request_model(strict=True).model_fields
        if "resource_properties" not in fields_of_request or not reservation.parameters.get("resource_properties"):
            return None
        names = self._public_names(actor, case.completed.demands[lacking.index].inventory)
        catalogue = case.view.catalogue
        anything = self._with_condition(reservation, "", lacking.index)
        amounts = _amounts_in(str(reservation.parameters["resource_properties"]))
        for kind in islice(catalogue.kinds(catalogue.matching(anything), names), KINDS_TRIED):
            condition = _condition_for(kind.attributes, amounts)
            demand = self._with_condition(reservation, condition, lacking.index)
            if not condition or self._count(case, demand) < demand.minimum:
                continue
            if case.attempts.of(lacking.of_kind(condition)).fits(case.start, case.end, direct=not case.has_plans):
                return Alternative(Change.KIND, case.start, case.end, lacking.position, resource_properties=condition)
        return None

    def _count(self, case: _Refused, demand: Demand) -> int:
        """Return how many units of a demand fit in the period of a request, as the plans are.

        If some of the plans are those of the lease itself, as if there were none.
        """
        end = ticks(case.end) + ticks_of(self._rules.cleaning_time)
        chosen = case.view.catalogue.matching(demand)
        return count(case.view, demand, chosen, ticks(case.start), end, planned=not case.has_plans)

    def _with_condition(self, reservation: ReservationRequest, condition: str, index: int) -> Demand:
        parameters = {**reservation.parameters, "resource_properties": condition}
        return placed_demand(self._types, replace(reservation, parameters=parameters), index)

    def _public_names(self, actor: Actor, inventory: str) -> list[str]:
        target = target_of(actor)
        sees = self._authorize("admin", actor, target)
        with self._db.read() as tx:
            hidden = frozenset() if sees else tx.resources.private_properties(inventory)
            return sorted(tx.resources.property_names(inventory) - hidden)

    def _find(self, actor: Actor, lease_id: str) -> Lease:
        self._check(actor)
        with self._db.read() as tx:
            return self._access.get_for(tx, actor, lease_id, "blazar:leases:put")

    def _check(self, actor: Actor) -> None:
        """Raise ``Forbidden`` unless the actor may ask what is available."""
        target = target_of(actor)
        require(self._authorize, "tenure:availability:get", actor, target)


@dataclass(frozen=True, slots=True)
class _Lacking:
    """The reservation for which there is no room, and what may be changed in it.

    ``position`` is its position in the request, ``index`` that among the reservations of the lease after the request.
    Up to ``fewest`` units, the request would ask for nothing. ``resized`` returns the attempt for another number of
    units, ``of_kind`` for another condition; None if that cannot be changed.
    """

    position: int
    index: int
    fewest: int
    resized: Callable[[int], Attempt] | None
    of_kind: Callable[[str], Attempt] | None


@dataclass(frozen=True, slots=True)
class _Refused:
    """A request that was refused, and what may be changed in it.

    ``completed`` are the reservations of the lease after the request. An end before ``first_end`` is not worth
    offering; without it, the end cannot be changed. ``further_end`` is worth trying, and so is each end before which an
    allocation of another lease begins; ``has_room`` guesses whether there is room until an end without moving plans.
    """

    view: Snapshot
    attempts: Attempts
    completed: Completed
    start: datetime
    end: datetime
    lacking: _Lacking | None
    #: What the limits of the project leave for other dates.
    headroom: Headroom
    #: The latest start and the earliest end with which the dates of the request lie inside the lease; None without
    #: such dates.
    inside: tuple[datetime, datetime] | None = None
    starts_otherwise: bool = False
    first_end: datetime | None = None
    further_end: datetime | None = None
    #: Whether the lease has plans, which make way for its change.
    has_plans: bool = False
    has_room: Callable[[datetime], bool] = lambda _end: False

    def starts_for(self, length: timedelta) -> tuple[datetime, datetime]:
        """Return the first and the last start to try for this length: its dates stay inside the lease."""
        first, last = self.start, self.start + USUAL_REACH
        if self.inside is None:
            return first, last
        latest_start, earliest_end = self.inside
        return max(first, earliest_end - length), min(last, latest_start)


def _dates_inside(
    before_end_at: When | None, events: Sequence[UserEvent] | None, now: datetime
) -> tuple[datetime, datetime] | None:
    """Return the latest start and the earliest end of a lease with these dates inside; None if there are no dates.

    An event may be at the start or the end, the action before the end may not.
    """
    starts = ends = [event.at for event in events or ()]
    if before_end_at is not None:
        notice_at = resolve(before_end_at, now)
        starts, ends = [*starts, notice_at - SHORTEST], [*ends, notice_at + SHORTEST]
    return (min(starts), max(ends)) if starts else None


def _found(search: Callable[[_Refused], Alternative | None], case: _Refused) -> Alternative | None:
    """Return what a search finds; None also if an attempt was no valid request, or its time was over."""
    with suppress(InvalidParameter, InvalidState, SearchTooLong):
        return search(case)
    return None


def _lacking_reservation(
    position: int,
    index: int,
    demand: Demand,
    parameters: Mapping[str, object],
    attempt: Callable[[Mapping[str, object]], Attempt],
    *,
    fewest: int,
) -> _Lacking:
    """Return a reservation that is changed by these ``parameters`` of the request."""
    names = _AMOUNTS.get(demand.parameter, ())
    return _Lacking(
        position,
        index,
        fewest,
        (lambda amount: attempt(dict.fromkeys(names, amount))) if set(names) & set(parameters) else None,
        (lambda condition: attempt({"resource_properties": condition}))
        if "resource_properties" in parameters
        else None,
    )


#: The parameters that give a reservation its number of units, by that for the least number.
_AMOUNTS: Mapping[str, Sequence[str]] = {"min": ("min", "max"), "amount": ("amount",)}


def _amounts_in(text: str) -> list[list[str]]:
    """Return the comparisons of an expression that ask for more or for less: another kind must meet them, too."""
    comparisons = parse_expression(text, field="resource_properties").comparisons
    return [
        [comparison.op, f"${comparison.name}", comparison.value] for comparison in comparisons if comparison.op in ORDER
    ]


def _condition_for(attributes: Mapping[str, str], amounts: Sequence[list[str]]) -> str:
    """Return the expression that resources with these attributes and amounts match; empty without attributes."""
    terms = [*amounts, *(["==", f"${name}", value] for name, value in sorted(attributes.items()) if value)]
    return json.dumps(terms[0] if len(terms) == 1 else ["and", *terms]) if len(terms) > len(amounts) else ""
