"""The search for the first periods in which a lease fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tenure import deadlines
from tenure.clock import Clock
from tenure.deadlines import SearchTooLong
from tenure.domain.actor import Actor
from tenure.domain.allocation import Demand
from tenure.domain.availability import Offer, Offers
from tenure.domain.errors import InvalidParameter, NotEnoughResources
from tenure.domain.period import length_text, minute_of
from tenure.domain.request import FlexibleRequest, LeaseRequest, Window
from tenure.planning.room import count, is_served
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import Stretch, moment, ticks_of
from tenure.services.context import Rules
from tenure.services.leases.dates import check_length, resolve
from tenure.services.leases.intake import Completed
from tenure.services.limits.headroom import Headrooms
from tenure.services.planning.index import AvailabilityIndex
from tenure.services.search.attempts import AttemptFactory, Attempts
from tenure.services.search.openings import Openings, pool_of
from tenure.services.search.service import LONGEST_SPAN
from tenure.services.search.start_times import stretches_of

MINUTE = timedelta(minutes=1)
#: How far ahead a search looks by default.
USUAL_REACH = timedelta(days=30)
_NO_START = "No start up to this date is on these days, at these times."


@dataclass(frozen=True, slots=True)
class Starts:
    """The stretches of time in which a lease may start, from ``earliest`` to ``latest``."""

    earliest: datetime
    latest: datetime
    stretches: Sequence[Stretch]


class PeriodSearch:
    """Searches for periods in which a lease fits. For a period that is found there is a plan."""

    def __init__(
        self,
        clock: Clock,
        rules: Rules,
        index: AvailabilityIndex,
        attempt_factory: AttemptFactory,
        headrooms: Headrooms,
    ) -> None:
        self._clock = clock
        self._rules = rules
        self._index = index
        self._attempt_factory = attempt_factory
        self._headrooms = headrooms

    def first(
        self,
        actor: Actor,
        completed: Completed,
        window: Window,
        limit: int,
        *,
        explains: bool = False,
        snapshot: Snapshot | None = None,
    ) -> Offers:
        """Return the first periods in a window in which a lease fits; no two of them overlap.

        If it ``explains``, it tells why there are none. It searches on the ledger as it is now, or in the ``snapshot``.

        Raises the errors of ``starts``, and ``Unavailable`` if the database or the source of limits does not answer.
        """
        allowed = self.starts(window)
        headroom = self._headrooms.of(actor.project_id, completed.reservations, completed.demands)
        starts = headroom.starts(window.length, allowed.stretches)
        view = self._index.view() if snapshot is None else snapshot
        attempts = self._attempt_factory.begin(actor, completed, view)
        offers = self.within(view, attempts, completed, window.length, starts, limit)
        found = Offers(tuple(offers), not attempts.has_given_up)
        return replace(found, reason=_reason(attempts, window, allowed, found)) if explains and not offers else found

    def starts(self, window: Window) -> Starts:
        """Return when a lease may start in a window. Raises ``InvalidParameter`` if that is no window."""
        now = self._clock.now()
        earliest = minute_of(now) + MINUTE if window.earliest is None else resolve(window.earliest, now)
        if earliest < minute_of(now):
            raise InvalidParameter("It must not be in the past.", field="earliest")
        if earliest + window.length <= now:  # it would be over
            earliest = minute_of(now) + MINUTE
        latest = earliest + USUAL_REACH if window.latest is None else window.latest
        if latest < earliest:
            raise InvalidParameter("It must not be before the earliest start.", field="latest")
        if latest > now + LONGEST_SPAN and latest != earliest:  # a single start needs no search
            field, date = ("earliest", earliest) if window.latest is None else ("latest", latest)
            raise InvalidParameter(
                f"It must be within {LONGEST_SPAN.days} days from now, and is {length_text(date - now)} ahead.",
                field=field,
            )
        check_length(self._rules, earliest, earliest + window.length, field="duration")
        return Starts(earliest, latest, stretches_of(window.times, earliest, latest))

    def may_ever_fit(self, project_id: str, completed: Completed, window: Window) -> bool:
        """Whether a lease could fit in a window if the project had no other, and nothing else were booked.

        Resources that take no new leases count, since they may be back. Raises the errors of ``first``.
        """
        headroom = self._headrooms.of(project_id, completed.reservations, completed.demands, is_alone=True)
        starts = headroom.starts(window.length, self.starts(window).stretches)
        return bool(starts) and is_served(self._index.view(), completed.demands)

    def earliest(self, request: FlexibleRequest, index: int) -> LeaseRequest:
        """Return a choice of a request, at its first possible start. Raises the errors of ``starts``."""
        if request.window is None:
            assert request.starts_at is not None
            assert request.ends_at is not None
            return request.at(request.starts_at, request.ends_at, index)
        allowed = self.starts(request.window)
        if not allowed.stretches:
            latest_field = None if request.window.latest is None else "latest"
            raise InvalidParameter(_NO_START, field=latest_field)
        start = moment(allowed.stretches[0][0])
        return request.at(start, start + request.window.length, index)

    def within(
        self,
        view: Snapshot,
        attempts: Attempts,
        completed: Completed,
        length: timedelta,
        allowed: Sequence[Stretch],
        limit: int,
    ) -> list[Offer]:
        """Return the first periods of this length that fit and begin in the allowed stretches.

        If the time of the attempts is over before, they say so.
        """
        offers: list[Offer] = []
        try:
            for offer in self._each_within(view, attempts, completed, length, allowed):
                offers.append(offer)
                if len(offers) >= limit:
                    break
        except SearchTooLong:
            attempts.give_up()
        return offers

    def _each_within(
        self, view: Snapshot, attempts: Attempts, completed: Completed, length: timedelta, allowed: Sequence[Stretch]
    ) -> Iterator[Offer]:
        openings = Openings(view, completed.demands, ticks_of(length + self._rules.cleaning_time), allowed)
        time = allowed[0][0] if allowed else None
        while time is not None:
            if attempts.is_over:
                attempts.give_up()
                return
            opening = openings.at_or_after(time)
            if opening is None:
                break
            start, end = opening.start, opening.start + ticks_of(length)
            if attempts.fits(moment(start), moment(end), direct=opening.direct):
                yield Offer(moment(start), moment(end), self._left(view, completed, start, end))
                time = end
            else:
                time = openings.next_change(start)

    def _left(self, view: Snapshot, completed: Completed, start: int, end: int) -> tuple[int, ...]:
        """Return how many more units of each demand would fit in the period beside the lease."""
        found: dict[Demand, int] = {}
        for demand in dict.fromkeys(completed.demands):
            deadlines.check()
            if demand.subject is not None:  # a thing that exists is reserved once
                found[demand] = 0
                continue
            single = replace(demand, minimum=1)
            cleaned = end + ticks_of(self._rules.cleaning_time)
            free = count(view, single, view.catalogue.matching(single), start, cleaned)
            beside = sum(other.minimum for other in completed.demands if pool_of(other) == pool_of(demand))
            taken = min(demand.maximum, free) + beside - demand.minimum
            found[demand] = max(0, free - taken)
        return tuple(found[demand] for demand in completed.demands)


def _reason(attempts: Attempts, window: Window, allowed: Starts, found: Offers) -> str | None:
    """Return the text of the refusal that a lease gets for this window, in which no period was found."""
    if not allowed.stretches:
        return _NO_START
    start = moment(allowed.stretches[0][0])
    refusal = attempts.refusal(start, start + window.length)
    if isinstance(refusal, NotEnoughResources):
        return replace(refusal.shortfall, latest=allowed.latest, is_complete=found.is_complete).message
    return None if refusal is None else refusal.message
