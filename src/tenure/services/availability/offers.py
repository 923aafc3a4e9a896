"""The use cases of searches: when a lease fits, for how long, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from tenure.clock import Clock
from tenure.domain.actor import Actor
from tenure.domain.allocation import Demand, Spread
from tenure.domain.availability import LargestOffer, LongestOffer, Offer, OfferQuery, Offers
from tenure.domain.errors import InvalidParameter
from tenure.domain.period import minute_of
from tenure.domain.request import ReservationRequest, When
from tenure.services.availability.index import AvailabilityIndex, View
from tenure.services.availability.openings import Condition, Openings, conditions_of, place_of
from tenure.services.availability.room import starts, units
from tenure.services.availability.service import LONGEST_SPAN, ZONE
from tenure.services.availability.start_times import stretches_of
from tenure.services.availability.steps import SECOND, Mask, moment, ticks, ticks_of
from tenure.services.availability.trials import Trials, Wanted
from tenure.services.context import Authorize, Rules, require
from tenure.services.leases.changes import SHORTEST, check_length, resolve
from tenure.services.leases.intake import Intake

MINUTE = timedelta(minutes=1)
#: How far ahead a search looks, if it is not told.
USUAL_REACH = timedelta(days=30)


class OfferService:
    """The use cases of offers. An offer that is taken at once succeeds: it was booked, and the booking undone."""

    def __init__(
        self,
        clock: Clock,
        authorize: Authorize,
        rules: Rules,
        index: AvailabilityIndex,
        intake: Intake,
        trials: Trials,
    ) -> None:
        self._clock = clock
        self._authorize = authorize
        self._rules = rules
        self._index = index
        self._intake = intake
        self._trials = trials

    def first(self, actor: Actor, query: OfferQuery) -> Offers:
        """Return the first periods in which a lease fits; no two of them overlap.

        Raises ``Forbidden``, ``InvalidParameter``, and ``Unavailable`` if the cloud or the database does not answer.
        """
        wanted = self._wanted(actor, query.reservations)
        now = self._clock.now()
        earliest = minute_of(now) + MINUTE if query.earliest is None else resolve(query.earliest, now)
        latest = earliest + USUAL_REACH if query.latest is None else query.latest
        if earliest < minute_of(now):
            raise InvalidParameter("It must not be in the past.", field="earliest")
        if not earliest <= latest <= now + LONGEST_SPAN:
            raise InvalidParameter(
                f"It must not be before the earliest start, nor more than {LONGEST_SPAN.days} days ahead.",
                field="latest",
            )
        check_length(self._rules, earliest, earliest + query.length, field="duration")
        view, length = self._index.view(), ticks_of(query.length)
        allowed = stretches_of(query.times, earliest, latest)
        openings = Openings(view, wanted.demands, length + self._cleaning, allowed)
        trial = self._trials.begin(actor, wanted)
        offers: list[Offer] = []
        time: int | None = ticks(earliest)
        while time is not None and len(offers) < query.limit:
            opening = openings.at_or_after(time)
            if opening is None:
                break
            start, end = opening.start, opening.start + length
            if trial.fits(moment(start), moment(end), direct=opening.direct):
                offers.append(Offer(moment(start), moment(end), self._left(view, wanted, start, end)))
                time = end
            else:
                time = openings.next_change(start)
        return Offers(tuple(offers), not trial.has_given_up)

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
        if not place:
            trial.book(start, start + SHORTEST)  # raises the refusal
            return LongestOffer(start, start + SHORTEST, not trial.has_given_up)
        is_endless = ends[place - 1] == last and self._rules.longest_lease is None
        return LongestOffer(start, None if is_endless else ends[place - 1], not trial.has_given_up)

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
        hint, most = (
            self._count(view, demand, chosen, ticks(start), end, planned=planned) for planned in (True, False)
        )

        def fits(amount: int) -> bool:
            resized = trial.of(replace(demand, minimum=amount, maximum=amount))
            return resized.fits(start, ends_at, direct=amount <= hint)

        amount = _largest(fits, most, hint)
        zones = {
            zone: self._count(view, demand, chosen & view.catalogue.has(ZONE, zone), ticks(start), end)
            for zone in view.catalogue.values(ZONE, chosen)
        }
        return LargestOffer(start, ends_at, amount, zones, not trial.has_given_up)

    @property
    def _cleaning(self) -> int:
        return ticks_of(self._rules.cleaning_time)

    def _start(self, starts_at: When | None) -> datetime:
        now = self._clock.now()
        start = minute_of(now) + MINUTE if starts_at is None else resolve(starts_at, now)
        if start < minute_of(now):
            raise InvalidParameter("It must not be in the past.", field="start_date")
        return start

    def _wanted(self, actor: Actor, reservations: Sequence[ReservationRequest]) -> Wanted:
        """Return the completed reservations and their demands. Raises the errors of the methods above."""
        target = {"project_id": actor.project_id, "user_id": actor.user_id}
        require(self._authorize, "tenure:availability:get", actor, target)
        if not reservations:
            raise InvalidParameter("A search needs a reservation at least.", field="reservations")
        completed, demands = self._intake.completed(actor, reservations)
        self._intake.check_conditions(completed, demands, seen=self._authorize("admin", actor, target))
        return Wanted(completed, demands)

    def _left(self, view: View, wanted: Wanted, start: int, end: int) -> tuple[int, ...]:
        """Return how many more units of each demand would fit in the period beside the lease."""
        found = []
        for demand in wanted.demands:
            single = replace(demand, minimum=1)
            free = self._count(view, single, view.catalogue.matching(single), start, end + self._cleaning)
            beside = (other for other in wanted.demands if place_of(other) == place_of(demand))
            taken = min(demand.maximum, free) + sum(other.minimum for other in beside if other is not demand)
            found.append(max(0, free - taken))
        return tuple(found)

    def _count(self, view: View, demand: Demand, chosen: Mask, start: int, end: int, *, planned: bool = True) -> int:
        """Return how many units have room on the chosen resources throughout a period."""
        rows, counts = units(view, demand, chosen, start, end, planned=planned)
        match demand.spread:
            case Spread.APART:
                return len(rows)
            case Spread.TOGETHER:
                return int(counts.max(initial=0))
            case Spread.ANY:
                return int(counts.sum())


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
    """Return when a lease would have to end before an allocation begins on a resource that could serve it, in order."""
    chosen = np.any([condition.chosen for condition in conditions], axis=0)
    begins = [timeline.uses.starts[mask[timeline.uses.rows]] for timeline, mask in view.parts(chosen)]
    ends = np.unique(np.concatenate(begins)) - ticks_of(cleaning)
    ends = np.unique(ends // SECOND * SECOND)
    return [moment(end) for end in ends[(ends >= ticks(first)) & (ends < ticks(last))]]
