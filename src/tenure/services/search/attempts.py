"""Attempts: whether a request can be met now, in a period that a search has found."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tenure import deadlines
from tenure.deadlines import SearchTooLong
from tenure.domain.actor import Actor
from tenure.domain.errors import AlreadyOver, Conflict, NotEnoughResources, OverQuota, TenureError
from tenure.domain.request import ReservationRequest
from tenure.planning.snapshot import Snapshot
from tenure.services.booking.admission import Admission
from tenure.services.booking.changes import ChangeRequest
from tenure.services.booking.new_leases import NewLeases
from tenure.services.context import Authorize, Rules, target_of
from tenure.services.leases.intake import Completed, Intake

#: Raises the refusal of a request from a start to an end; nothing is written.
Attempt = Callable[[datetime, datetime], None]


class AttemptFactory:
    """Makes attempts at requests; those at each request have the same time."""

    def __init__(
        self, authorize: Authorize, intake: Intake, new_leases: NewLeases, admission: Admission, rules: Rules
    ) -> None:
        """All attempts at a request may take the time of planning; those that move plans, the time of a search."""
        self._authorize = authorize
        self._intake = intake
        self._new_leases = new_leases
        self._admission = admission
        self._rules = rules

    def complete(self, actor: Actor, reservations: Sequence[ReservationRequest]) -> Completed:
        """Return the completed reservations and their demands. Raises ``InvalidParameter`` and ``Unavailable``."""
        target = target_of(actor)
        completed = self._intake.completed(actor, reservations)
        self._intake.check_conditions(completed, seen=self._authorize("admin", actor, target))
        return completed

    def begin(self, actor: Actor, completed: Completed, snapshot: Snapshot) -> Attempts:
        """Return attempts at a lease of these reservations, whose time begins to count with the first one."""
        return self.of(self.booking(actor, completed, snapshot))

    def of(self, attempt: Attempt) -> Attempts:
        """Return attempts at any request."""
        allowed, for_moves = self._rules.planning_time, self._rules.search_time
        return Attempts(attempt, _TimeLeft(allowed.total_seconds(), for_moves.total_seconds()))

    def booking(self, actor: Actor, completed: Completed, snapshot: Snapshot) -> Attempt:
        """Return the attempt to book a lease of these reservations."""
        standing = self._admission.standing_of(actor.project_id)

        def attempt(starts_at: datetime, ends_at: datetime) -> None:
            request = self._new_leases.request_of_search(
                actor, completed.reservations, completed.demands, starts_at, ends_at
            )
            self._admission.check(request, snapshot, standing)

        return attempt

    def changing(self, change: ChangeRequest, snapshot: Snapshot) -> Attempt:
        """Return the attempt to carry out a change of a lease, whatever the dates."""
        standing = self._admission.standing_of(change.project_id, without=change.lease.id)
        return lambda _starts_at, _ends_at: self._admission.check(change, snapshot, standing)


@dataclass(slots=True)
class _TimeLeft:
    """The seconds that are left for all attempts, and for those that plans must make way for."""

    seconds: float
    for_moves: float
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts at one request in several periods, which share a time."""

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

    def of(self, attempt: Attempt) -> Attempts:
        """Return attempts at another request, which share the time of these."""
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
            with deadlines.within(deadlines.until_at_most(seconds)):
                self._attempt(starts_at, ends_at)
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
            with deadlines.within(deadlines.until_at_most(self._left.seconds)):
                self._attempt(starts_at, ends_at)
        except (NotEnoughResources, OverQuota, Conflict, AlreadyOver) as refusal:
            return refusal
        except SearchTooLong:
            return None
        return None

    def check(self, starts_at: datetime, ends_at: datetime) -> None:
        """Raise the refusal of the request in this period."""
        self._attempt(starts_at, ends_at)
