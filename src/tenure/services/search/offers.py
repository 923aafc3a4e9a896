"""The use cases of searches: when a lease fits, for how long, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from tenure.domain.actor import Actor
from tenure.domain.availability import (
    LargestOffer,
    LongestOffer,
    OfferQuery,
    Offers,
)
from tenure.domain.errors import AlreadyOver, InvalidParameter
from tenure.domain.period import minute_of
from tenure.domain.request import ReservationRequest, When
from tenure.domain.zones import latest_within_days
from tenure.planning.room import count
from tenure.planning.steps import moment, ticks, ticks_of
from tenure.services.context import Context, ContextualService, require, target_of
from tenure.services.leases.dates import SHORTEST, check_length, resolve
from tenure.services.leases.intake import Completed
from tenure.services.limits.headroom import Headrooms
from tenure.services.planning.index import AvailabilityIndex
from tenure.services.search.attempts import AttemptFactory, Attempts
from tenure.services.search.largest import largest, latest_end, possible_ends, room_until
from tenure.services.search.periods import MINUTE, PeriodSearch
from tenure.services.search.service import LONGEST_SPAN, ZONE


class OfferService(ContextualService):
    """The use cases of offers. An offer that is taken at once succeeds: there was a plan for it."""

    def __init__(
        self,
        context: Context,
        index: AvailabilityIndex,
        attempt_factory: AttemptFactory,
        periods: PeriodSearch,
        headrooms: Headrooms,
    ) -> None:
        super().__init__(context)
        self._headrooms = headrooms
        self._index = index
        self._attempt_factory = attempt_factory
        self._periods = periods

    def first(self, actor: Actor, query: OfferQuery) -> Offers:
        """Return the first periods in which a lease fits, or why there are none; no two of them overlap.

        Raises ``Forbidden``, ``InvalidParameter``, and ``Unavailable`` if the cloud or the database does not answer.
        """
        completed = self._completed(actor, query.reservations)
        return self._periods.first(actor, completed, query.window, query.limit, explains=True)

    def longest(
        self, actor: Actor, reservations: tuple[ReservationRequest, ...], starts_at: When | None = None
    ) -> LongestOffer:
        """Return the longest lease of these reservations from a start, by default from the next full minute.

        Raises ``NotEnoughResources`` if they do not fit at all, and the errors of ``first``.
        """
        completed = self._completed(actor, reservations)
        start = self._start(starts_at)
        longest = self._rules.longest_lease
        last = start + LONGEST_SPAN if longest is None else latest_within_days(start, longest)
        allowed = self._headrooms.of(actor.project_id, completed.reservations, completed.demands).latest_end(start)
        is_limited = allowed < ticks(last)
        if is_limited:
            last = moment(allowed)
        first = max(start, self._clock.now().replace(microsecond=0)) + SHORTEST
        last = max(last, first)
        view = self._index.view()
        attempts = self._attempt_factory.begin(actor, completed, view)
        ends = possible_ends(view, completed, first, last, self._rules.cleaning_time)
        has_room = room_until(view, completed, start, self._rules.cleaning_time)
        end = latest_end(attempts, start, [*ends, last], has_room)
        if end is None:
            end = first
            attempts.check(start, end)  # raises the refusal
        is_endless = end == last and not is_limited and longest is None
        return LongestOffer(start, None if is_endless else end, not attempts.has_given_up)

    def largest(
        self, actor: Actor, reservation: ReservationRequest, starts_at: When | None, ends_at: datetime
    ) -> LargestOffer:
        """Return how many units of a reservation fit in a period, or why none does. Raises the errors of ``first``."""
        completed = self._completed(actor, (reservation,))
        start = self._start(starts_at)
        check_length(self._rules, start, ends_at)
        if ends_at <= self._clock.now():
            raise AlreadyOver
        [demand] = completed.demands
        view = self._index.view()
        attempts = self._attempt_factory.begin(actor, completed, view)
        chosen = view.catalogue.matching(replace(demand, minimum=1))
        end = ticks(ends_at) + self._cleaning
        hint, most = (count(view, demand, chosen, ticks(start), end, planned=planned) for planned in (True, False))

        def attempt(amount: int) -> Attempts:
            resized = replace(completed, demands=[replace(demand, minimum=amount, maximum=amount)])
            return attempts.of(self._attempt_factory.booking(actor, resized, view))

        def fits(amount: int) -> bool:
            return attempt(amount).fits(start, ends_at, direct=amount <= hint)

        if demand.subject is not None:  # a thing that exists is reserved once
            hint, most = min(hint, 1), min(most, 1)
        amount = largest(fits, most, hint)
        zones = {
            zone: count(view, demand, chosen & view.catalogue.has(ZONE, zone), ticks(start), end)
            for zone in view.catalogue.values(ZONE, chosen)
        }
        refusal = None if amount else attempt(1).refusal(start, ends_at)
        reason = None if refusal is None else refusal.message
        return LargestOffer(start, ends_at, amount, zones, not attempts.has_given_up, reason)

    @property
    def _cleaning(self) -> int:
        return ticks_of(self._rules.cleaning_time)

    def _start(self, starts_at: When | None) -> datetime:
        now = self._clock.now()
        start = minute_of(now) + MINUTE if starts_at is None else resolve(starts_at, now)
        if start < minute_of(now):
            raise InvalidParameter("It must not be in the past.", field="start_date")
        return start

    def _completed(self, actor: Actor, reservations: Sequence[ReservationRequest]) -> Completed:
        """Return the completed reservations and their demands. Raises the errors of the methods above."""
        target = target_of(actor)
        require(self._authorize, "tenure:availability:get", actor, target)
        if not reservations:
            raise InvalidParameter("A search needs a reservation at least.", field="reservations")
        return self._attempt_factory.complete(actor, reservations)
