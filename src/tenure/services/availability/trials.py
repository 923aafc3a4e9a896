"""Trials: whether a request can be met now, in a period that a search has found."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tenure.domain.actor import Actor
from tenure.domain.errors import Conflict, NotEnoughResources, OverQuota
from tenure.domain.request import ReservationRequest
from tenure.services.context import Authorize
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
        allowed: timedelta,
        for_moves: timedelta,
    ) -> None:
        """``allowed`` is the time of a trial, ``for_moves`` that for bookings that plans must make way for."""
        self._authorize = authorize
        self._intake = intake
        self._booker = booker
        self._enforcement = enforcement
        self._allowed = allowed
        self._for_moves = for_moves

    def want(self, actor: Actor, reservations: Sequence[ReservationRequest]) -> Completed:
        """Return the completed reservations and their demands. Raises ``InvalidParameter`` and ``Unavailable``."""
        target = {"project_id": actor.project_id, "user_id": actor.user_id}
        wanted = self._intake.completed(actor, reservations)
        self._intake.check_conditions(wanted, seen=self._authorize("admin", actor, target))
        return wanted

    def begin(self, actor: Actor, wanted: Completed) -> Trial:
        """Return a trial of a lease of these reservations, whose time begins to count with its first attempt."""
        return self.of(self.booking(actor, wanted))

    def of(self, attempt: Attempt) -> Trial:
        """Return a trial of any request. Each trial has the same time."""
        left = _TimeLeft(self._allowed, self._allowed.total_seconds(), self._for_moves.total_seconds())
        return Trial(attempt, left)

    def booking(self, actor: Actor, wanted: Completed) -> Attempt:
        """Return the attempt to book a lease of these reservations."""

        def attempt(starts_at: datetime, ends_at: datetime, allowed: timedelta) -> None:
            draft = self._booker.draft_trial(actor, wanted.reservations, wanted.demands, starts_at, ends_at)
            self._booker.admit(
                actor,
                draft,
                lambda booking: self._enforcement.rehearse_create(
                    draft.lease, booking.work, look_at_nothing, survey=booking.survey, ask=False
                ),
                allowed=allowed,
            )

        return attempt


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
        return self._left.seconds <= 0

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
        seconds = self._left.seconds if direct else min(self._left.seconds, self._left.for_moves)
        try:
            self._attempt(starts_at, ends_at, timedelta(seconds=seconds))
        except (NotEnoughResources, OverQuota, Conflict):
            return False
        except SearchTooLong:
            self._left.is_over = True
            return False
        finally:
            spent = time.monotonic() - began
            self._left.seconds -= spent
            self._left.for_moves -= 0.0 if direct else spent
        return True

    def book(self, starts_at: datetime, ends_at: datetime) -> None:
        """Try this period for as long as a trial may last. Raises the errors of the request."""
        self._attempt(starts_at, ends_at, self._left.allowed)


def look_at_nothing(_tx: Transaction) -> None:
    """Look at nothing."""
