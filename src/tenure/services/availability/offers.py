"""The use cases of searches: when a lease fits, for how long, and how much of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice

import numpy as np

from tenure.clock import Clock
from tenure.domain.actor import Actor
from tenure.domain.allocation import Demand
from tenure.domain.availability import (
    Alternative,
    Change,
    LargestOffer,
    LongestOffer,
    OfferQuery,
    Offers,
)
from tenure.domain.errors import InvalidParameter
from tenure.domain.period import minute_of
from tenure.domain.request import FlexibleRequest, LeaseRequest, ReservationRequest, StartTimes, When
from tenure.resources.contract import ResourceTypes
from tenure.services.availability.index import AvailabilityIndex, View
from tenure.services.availability.openings import Condition, concerned, conditions_of
from tenure.services.availability.periods import MINUTE, USUAL_REACH, PeriodSearch
from tenure.services.availability.room import count, starts
from tenure.services.availability.service import LONGEST_SPAN, ZONE
from tenure.services.availability.start_times import stretches_of
from tenure.services.availability.steps import SECOND, moment, ticks, ticks_of
from tenure.services.availability.trials import Trial, Trials
from tenure.services.context import Authorize, Rules, require
from tenure.services.leases.changes import SHORTEST, check_length, placed_demand, resolve
from tenure.services.leases.intake import Completed
from tenure.store.database import Database

#: The most alternatives to a request that is refused, and how many kinds of resources are tried for one.
MOST_ALTERNATIVES = 3
KINDS_TRIED = 10
#: The shortest lease that is offered in place of a longer one.
SHORTEST_ALTERNATIVE = timedelta(minutes=1)


class OfferService:
    """The use cases of offers. An offer that is taken at once succeeds: it was booked, and the booking undone."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        types: ResourceTypes,
        authorize: Authorize,
        rules: Rules,
        index: AvailabilityIndex,
        trials: Trials,
        periods: PeriodSearch,
    ) -> None:
        self._db = db
        self._clock = clock
        self._types = types
        self._authorize = authorize
        self._rules = rules
        self._index = index
        self._trials = trials
        self._periods = periods

    def first(self, actor: Actor, query: OfferQuery) -> Offers:
        """Return the first periods in which a lease fits; no two of them overlap.

        Raises ``Forbidden``, ``InvalidParameter``, and ``Unavailable`` if the cloud or the database does not answer.
        """
        wanted = self._wanted(actor, query.reservations)
        return self._periods.first(actor, wanted, query.window, query.limit)

    def longest(
        self, actor: Actor, reservations: tuple[ReservationRequest, ...], starts_at: When | None = None
    ) -> LongestOffer:
        """Return the longest lease of these reservations from a start, by default from the next full minute.

        Raises ``NotEnoughResources`` if they do not fit at all, and the errors of ``first``.
        """
        wanted = self._wanted(actor, reservations)
        start = self._start(starts_at)
        last = start + (self._rules.longest_lease or LONGEST_SPAN)
        view, trial = self._index.view(), self._trials.begin(actor, wanted)
        end = self._last_end(view, trial, wanted, start, last)
        if end is None:
            end = start + SHORTEST
            trial.book(start, end)  # raises the refusal
        is_endless = end == last and self._rules.longest_lease is None
        return LongestOffer(start, None if is_endless else end, not trial.has_given_up)

    def largest(
        self, actor: Actor, reservation: ReservationRequest, starts_at: When | None, ends_at: datetime
    ) -> LargestOffer:
        """Return how many units of a reservation fit in a period. Raises the errors of ``first``."""
        wanted = self._wanted(actor, (reservation,))
        start = self._start(starts_at)
        check_length(self._rules, start, ends_at)
        [demand] = wanted.demands
        view, trial = self._index.view(), self._trials.begin(actor, wanted)
        chosen = view.catalogue.matching(replace(demand, minimum=1))
        end = ticks(ends_at) + self._cleaning
        hint, most = (count(view, demand, chosen, ticks(start), end, planned=planned) for planned in (True, False))

        def fits(amount: int) -> bool:
            resized = trial.of(replace(demand, minimum=amount, maximum=amount))
            return resized.fits(start, ends_at, direct=amount <= hint)

        if demand.subject is not None:  # a thing that exists is reserved once
            hint, most = min(hint, 1), min(most, 1)
        amount = _largest(fits, most, hint)
        zones = {
            zone: count(view, demand, chosen & view.catalogue.has(ZONE, zone), ticks(start), end)
            for zone in view.catalogue.values(ZONE, chosen)
        }
        return LargestOffer(start, ends_at, amount, zones, not trial.has_given_up)

    def alternatives(
        self, actor: Actor, request: LeaseRequest | FlexibleRequest, lacking: int
    ) -> tuple[Alternative, ...]:
        """Return up to three requests that would be met, in place of one that was refused for lack of resources.

        Of a flexible request, they are alternatives to its first choice at its first possible start. ``lacking`` is the
        position of the reservation that was refused. The search takes a bounded time. Raises the errors of ``first``.
        """
        if isinstance(request, FlexibleRequest):
            request = self._periods.earliest(request, 0)
        wanted = self._wanted(actor, request.reservations)
        start, end = resolve(request.starts_at, self._clock.now()), resolve(request.ends_at, self._clock.now())
        case = _Refused(wanted, lacking, start, end)
        view, trial = self._index.view(), self._trials.begin(actor, wanted)
        searches = (self._another_start, self._earlier_end, self._fewer, partial(self._another_kind, actor))
        found = (search(view, trial, case) for search in searches)
        return tuple(islice((alternative for alternative in found if alternative is not None), MOST_ALTERNATIVES))

    def _another_start(self, view: View, trial: Trial, case: _Refused) -> Alternative | None:
        allowed = stretches_of(StartTimes(), case.start, case.start + USUAL_REACH)
        offers = self._periods.within(view, trial, case.wanted, case.end - case.start, allowed, 1)
        return Alternative(Change.START, offers[0].starts_at, offers[0].ends_at) if offers else None

    def _earlier_end(self, view: View, trial: Trial, case: _Refused) -> Alternative | None:
        end = self._last_end(view, trial, case.wanted, case.start, case.end)
        worth_it = end is not None and end - case.start >= SHORTEST_ALTERNATIVE
        return Alternative(Change.END, case.start, end) if end is not None and worth_it else None

    def _fewer(self, view: View, trial: Trial, case: _Refused) -> Alternative | None:
        demand, place = case.wanted.demands[case.lacking], case.lacking

        def fits(amount: int) -> bool:
            fewer = replace(demand, minimum=amount, maximum=amount)
            demands = [*case.wanted.demands[:place], fewer, *case.wanted.demands[place + 1 :]]
            return trial.of(*demands).fits(case.start, case.end, direct=False)

        single = replace(demand, minimum=1)
        chosen = view.catalogue.matching(single)
        hint = count(view, single, chosen, ticks(case.start), ticks(case.end) + self._cleaning)
        amount = _largest(fits, demand.minimum - 1, min(hint, demand.minimum - 1))
        return Alternative(Change.AMOUNT, case.start, case.end, place, amount) if amount else None

    def _another_kind(self, actor: Actor, view: View, trial: Trial, case: _Refused) -> Alternative | None:
        """Return the request for resources of the most frequent other kind that fits."""
        place, reservation = case.lacking, case.wanted.reservations[case.lacking]
        asked = self._types[reservation.resource_type].request_model(strict=True).model_fields
        if "resource_properties" not in asked or not reservation.parameters.get("resource_properties"):
            return None
        names = self._public_names(actor, case.wanted.demands[place].inventory)
        anything = self._with_condition(reservation, "", place)
        for kind in islice(view.catalogue.kinds(view.catalogue.matching(anything), names), KINDS_TRIED):
            condition = _condition_for(kind.attributes)
            demand = self._with_condition(reservation, condition, place)
            chosen = view.catalogue.matching(demand)
            if count(view, demand, chosen, ticks(case.start), ticks(case.end) + self._cleaning) < demand.minimum:
                continue
            demands = [*case.wanted.demands[:place], demand, *case.wanted.demands[place + 1 :]]
            if condition and trial.of(*demands).fits(case.start, case.end, direct=True):
                return Alternative(Change.KIND, case.start, case.end, place, resource_properties=condition)
        return None

    def _with_condition(self, reservation: ReservationRequest, condition: str, place: int) -> Demand:
        parameters = {**reservation.parameters, "resource_properties": condition}
        return placed_demand(self._types, replace(reservation, parameters=parameters), place)

    def _public_names(self, actor: Actor, inventory: str) -> list[str]:
        target = {"project_id": actor.project_id, "user_id": actor.user_id}
        sees = self._authorize("admin", actor, target)
        with self._db.read() as tx:
            hidden = frozenset() if sees else tx.resources.private_properties(inventory)
            return sorted(tx.resources.property_names(inventory) - hidden)

    @property
    def _cleaning(self) -> int:
        return ticks_of(self._rules.cleaning_time)

    def _last_end(
        self, view: View, trial: Trial, wanted: Completed, start: datetime, last: datetime
    ) -> datetime | None:
        """Return the latest end up to ``last`` of a lease with this start; None if there is no room at all."""
        conditions = list(conditions_of(view, wanted.demands))
        ends = [*_possible_ends(view, conditions, start + SHORTEST, last, self._rules.cleaning_time), last]

        def has_room(place: int) -> bool:
            length = ticks_of(ends[place - 1] - start) + self._cleaning
            begin = ticks(start)
            return all(
                starts(view, each.demand, each.chosen, length, begin, begin + 1).values[0] >= each.needed
                for each in conditions
            )

        hint = _largest(has_room, len(ends))  # as the plans are, and each demand alone
        place = _largest(lambda place: trial.fits(start, ends[place - 1], direct=place <= hint), len(ends), hint)
        return ends[place - 1] if place else None

    def _start(self, starts_at: When | None) -> datetime:
        now = self._clock.now()
        start = minute_of(now) + MINUTE if starts_at is None else resolve(starts_at, now)
        if start < minute_of(now):
            raise InvalidParameter("It must not be in the past.", field="start_date")
        return start

    def _wanted(self, actor: Actor, reservations: Sequence[ReservationRequest]) -> Completed:
        """Return the completed reservations and their demands. Raises the errors of the methods above."""
        target = {"project_id": actor.project_id, "user_id": actor.user_id}
        require(self._authorize, "tenure:availability:get", actor, target)
        if not reservations:
            raise InvalidParameter("A search needs a reservation at least.", field="reservations")
        return self._trials.want(actor, reservations)


@dataclass(frozen=True, slots=True)
class _Refused:
    """A request that was refused; ``lacking`` is the position of the reservation for which there is no room."""

    wanted: Completed
    lacking: int
    start: datetime
    end: datetime


def _condition_for(attributes: Mapping[str, str]) -> str:
    """Return the expression that resources with these attributes match; empty if there are none."""
    terms = [["==", f"${name}", value] for name, value in sorted(attributes.items()) if value]
    return json.dumps(terms[0] if len(terms) == 1 else ["and", *terms]) if terms else ""


def _largest(fits: Callable[[int], bool], most: int, hint: int | None = None) -> int:
    """Return the largest number up to ``most`` that fits, 0 if none does; a number fits if a larger one does.

    With a hint, the numbers around it are tried first.
    """
    low, high = 0, most + 1  # the first fits, or is 0; the second does not
    if hint is not None and 0 < hint <= most:
        if not fits(hint):
            high = hint
        else:
            low = hint
            if hint < most and not fits(hint + 1):
                return hint
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _possible_ends(
    view: View, conditions: Sequence[Condition], first: datetime, last: datetime, cleaning: timedelta
) -> list[datetime]:
    """Return when a lease would have to end before an allocation begins on a resource that is concerned, in order."""
    chosen = concerned(view, conditions)
    begins = [timeline.uses.starts[mask[timeline.uses.rows]] for timeline, mask in view.parts(chosen)]
    ends = np.unique(np.concatenate((np.zeros(0, dtype=np.int64), *begins))) - ticks_of(cleaning)
    ends = np.unique(ends // SECOND * SECOND)
    return [moment(end) for end in ends[(ends >= ticks(first)) & (ends < ticks(last))]]
