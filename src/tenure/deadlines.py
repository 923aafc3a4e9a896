"""Until when a piece of work may go on, and for which project it is done.

The deadline of a request is made where the request enters its lane (``tenure.services.lanes``). It goes along with the
thread that serves the request: each search, and each statement of a transaction, checks it. Searches inside of searches
share it, so that a request takes no longer than its deadline, whatever it is made of. Once a request has changed
something, it is carried out, however long that takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeVar

from tenure.domain.errors import Busy, Unavailable

T = TypeVar("T")

#: After how many values of a long row the deadline is checked again.
CHECKED_EACH = 500


class SearchTooLong(Unavailable):
    """The time for searching free resources is over."""


class NotInTime(SearchTooLong, Busy):
    """A request was not carried out in time, since it waited for others. Nothing was done; retry in a moment."""


class CallerGone(Unavailable):
    """The caller has disconnected before it got its answer; nobody reads this error."""

    def __init__(self) -> None:
        super().__init__("The caller has disconnected.")


def never() -> bool:
    """Return False: the caller of work without a connection does not disconnect."""
    return False


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that has come in: when, on the monotonic clock in seconds, and whether its caller has disconnected."""

    at: float
    is_gone: Callable[[], bool] = never


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of the time of a piece of work, on the monotonic clock in seconds, and the limit that this comes from."""

    at: float
    allowed: float
    is_gone: Callable[[], bool] = never
    seconds: Callable[[], float] = time.monotonic
    #: Whether it is that of a booking, which takes long only if it waits for others.
    of_booking: bool = False

    @property
    def left(self) -> float:
        """How many seconds are left; 0 if none are."""
        return max(0.0, self.at - self.seconds())

    @property
    def is_over(self) -> bool:
        """Whether the time is over, or the caller has disconnected."""
        return self.seconds() >= self.at or self.is_gone()

    def check(self) -> None:
        """Raise ``SearchTooLong`` or ``NotInTime`` if the time is over, ``CallerGone`` if the caller is gone."""
        if self.is_gone():
            raise CallerGone
        if self.seconds() < self.at:
            return
        if self.of_booking:
            raise NotInTime(
                f"The request was not carried out within {self.allowed:g} seconds, since others came before it; "
                "nothing was changed. Send it again in a moment."
            )
        raise SearchTooLong(
            f"The search for free resources took longer than {self.allowed:g} seconds; nothing was changed. "
            "Ask for fewer resources at once, or try again later."
        )


_DEADLINE: ContextVar[Deadline | None] = ContextVar("deadline", default=None)
_ARRIVAL: ContextVar[Arrival | None] = ContextVar("arrival", default=None)
_PROJECT: ContextVar[str] = ContextVar("project", default="")


def current() -> Deadline | None:
    """Return the deadline of the work that this thread does; None if it has none."""
    return _DEADLINE.get()


def check() -> None:
    """Raise the errors of ``Deadline.check`` if the work that this thread does has a deadline."""
    deadline = _DEADLINE.get()
    if deadline is not None:
        deadline.check()


def checked(values: Iterable[T]) -> Iterator[T]:
    """Yield these values, and check the deadline from time to time."""
    for number, value in enumerate(values):
        if number % CHECKED_EACH == 0:
            check()
        yield value


def seconds_left() -> float:
    """Return how many seconds the work that this thread does may go on; infinity if it has no deadline."""
    deadline = _DEADLINE.get()
    return math.inf if deadline is None else deadline.left


@contextmanager
def within(deadline: Deadline | None) -> Iterator[None]:
    """Do the work of this block until a deadline; without one, until it is done."""
    before = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(before)


def lift() -> None:
    """End the deadline of the work that this thread does: it has changed something, and is carried out to its end.

    A deadline around that of the work holds again after it.
    """
    _DEADLINE.set(None)


def until_at_most(allowed: float) -> Deadline:
    """Return a deadline in this many seconds, or the current one if that is earlier."""
    at, around = time.monotonic() + allowed, _DEADLINE.get()
    if around is None:
        return Deadline(at, allowed)
    return around if around.at <= at else replace(around, at=at, allowed=allowed, of_booking=False)


@contextmanager
def arrived(arrival: Arrival) -> Iterator[None]:
    """Serve a request that has come in."""
    before = _ARRIVAL.set(arrival)
    try:
        yield
    finally:
        _ARRIVAL.reset(before)


def arrival() -> Arrival:
    """Return the request that this thread serves; one that comes in now if it serves none."""
    return _ARRIVAL.get() or Arrival(time.monotonic())


@contextmanager
def on_behalf_of(project_id: str) -> Iterator[None]:
    """Do the work of this block for a project; without one, for the service itself."""
    before = _PROJECT.set(project_id)
    try:
        yield
    finally:
        _PROJECT.reset(before)


def project() -> str:
    """Return the project for which this thread works; empty for the service itself."""
    return _PROJECT.get()
