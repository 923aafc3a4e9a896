"""Trials: whether a request can be met now, in a period that a search has found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tenure import deadlines
from tenure.domain.actor import Actor
from tenure.domain.allocation import Choice, Demand, hardest_first
from tenure.domain.errors import AlreadyOver, Conflict, NotEnoughResources, OverQuota, TenureError
from tenure.domain.period import Period
from tenure.domain.request import ReservationRequest
from tenure.services.availability.index import View
from tenure.services.availability.room import RoomSideBySide
from tenure.services.availability.steps import ticks
from tenure.services.context import Authorize, Rules, target_of
from tenure.services.enforcement.filters import Enforcement
from tenure.services.leases.booking import Booker
from tenure.services.leases.intake import Completed, Intake
from tenure.services.planning.budget import SearchTooLong
from tenure.store.database import Transaction

#: Carries out a request from a start to an end, and undoes it. The planner may search for the given time. Raises the
#: errors of the request.
Attempt = Callable[[datetime, datetime, timedelta], None]


class Trials:
    """Makes trials, each with the same time."""

    def __init__(
        self,
        authorize: Authorize,
        intake: Intake,
        booker: Booker,
        enforcement: Enforcement,
        rules: Rules,
    ) -> None:
        """A trial may last as long as planning; bookings in it that plans must make way for, as long as a search."""
        self._authorize = authorize
        self._intake = intake
        self._booker = booker
        self._enforcement = enforcement
        self._rules = rules

    def want(self, actor: Actor, reservations: Sequence[ReservationRequest]) -> Completed:
        """Return the completed reservations and their demands. Raises ``InvalidParameter`` and ``Unavailable``."""
        target = target_of(actor)
        wanted = self._intake.completed(actor, reservations)
        self._intake.check_conditions(wanted, seen=self._authorize("admin", actor, target))
        return wanted

    def begin(self, actor: Actor, wanted: Completed, view: View) -> Trial:
        """Return a trial of a lease of these reservations, whose time begins to count with its first attempt."""
        return self.of(self.booking(actor, wanted, view))

    def of(self, attempt: Attempt) -> Trial:
        """Return a trial of any request. Each trial has the same time."""
        allowed, for_moves = self._rules.planning_time, self._rules.search_time
        left = _TimeLeft(allowed, allowed.total_seconds(), for_moves.total_seconds())
        return Trial(attempt, left)

    def booking(self, actor: Actor, wanted: Completed, view: View) -> Attempt:
        """Return the attempt to book a lease of these reservations.

        It books what is free in the view, so that the database need not search; where that is not free any more, and
        where the view has too little, the database searches.
        """

        def attempt(starts_at: datetime, ends_at: datetime, allowed: timedelta) -> None:
            found = _choices(view, wanted.demands, Period(starts_at, ends_at + self._rules.cleaning_time))
            draft = self._booker.draft_trial(actor, wanted.reservations, wanted.demands, starts_at, ends_at, found)
            self._booker.admit(
                actor,
                draft,
                lambda booking: self._enforcement.rehearse_create(
                    draft.lease, booking.work, look_at_nothing, survey=booking.survey, ask=False
                ),
                allowed=allowed,
            )

        return attempt


def _choices(view: View, demands: Sequence[Demand], period: Period) -> Mapping[int, Choice]:
    """Return what is free in the view for the demands side by side, by their positions.

    Demands that name resources are left to the booking, and so are those without room.
    """
    room = RoomSideBySide(view, ticks(period.start), ticks(period.end))
    chosen: dict[int, Choice] = {}
    for position in hardest_first(demands):
        deadlines.check()
        demand = demands[position]
        if not demand.named and (found := room.take(demand)):
            chosen[position] = Choice(demand, demand.span(period), found)
    return chosen


@dataclass(slots=True)
class _TimeLeft:
    """The seconds that are left for all bookings, and for those that plans must make way for."""

    allowed: timedelta
    seconds: float
    for_moves: float
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """Tries a request in several periods; each attempt is undone."""

    _attempt: Attempt
    _left: _TimeLeft

    @property
    def has_given_up(self) -> bool:
        """Whether a period was not tried since the time was over."""
        return self._left.is_over

    @property
    def is_over(self) -> bool:
        """Whether no period is tried any more."""
        return min(self._left.seconds, deadlines.seconds_left()) <= 0

    def give_up(self) -> None:
        """Note that a period was not tried since the time was over."""
        self._left.is_over = True

    def of(self, attempt: Attempt) -> Trial:
        """Return a trial of another request, which shares the time of this one."""
        return replace(self, _attempt=attempt)

    def fits(self, starts_at: datetime, ends_at: datetime, *, direct: bool) -> bool:
        """Whether the request can be met in this period; ``direct`` if it may be so without moving plans.

        It is tried as long as there is time, and then counts as impossible.
        """
        if self.is_over or (not direct and self._left.for_moves <= 0):
            self._left.is_over = True
            return False
        began = time.monotonic()
        seconds = min(self._left.seconds, deadlines.seconds_left())
        if not direct:
            seconds = min(seconds, self._left.for_moves)
        try:
            self._attempt(starts_at, ends_at, timedelta(seconds=seconds))
        except (NotEnoughResources, OverQuota, Conflict, AlreadyOver):
            return False
        except SearchTooLong:
            self._left.is_over = True
            return False
        finally:
            spent = time.monotonic() - began
            self._left.seconds -= spent
            self._left.for_moves -= 0.0 if direct else spent
        return True

    def refusal(self, starts_at: datetime, ends_at: datetime) -> TenureError | None:
        """Return the refusal of the request in this period; None if it fits, or if time is over."""
        if self.is_over:
            return None
        try:
            self._attempt(starts_at, ends_at, timedelta(seconds=self._left.seconds))
        except (NotEnoughResources, OverQuota, Conflict, AlreadyOver) as refusal:
            return refusal
        except SearchTooLong:
            return None
        return None

    def book(self, starts_at: datetime, ends_at: datetime) -> None:
        """Try this period for as long as a trial may last. Raises the errors of the request."""
        self._attempt(starts_at, ends_at, self._left.allowed)


def look_at_nothing(_tx: Transaction) -> None:
    """Look at nothing."""
