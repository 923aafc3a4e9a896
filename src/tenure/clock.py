"""Time as an object: the system's clock in production, and one that tests move by hand."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A clock that can also wait."""

    def now(self) -> datetime:
        """Return the current time, timezone-aware and in UTC."""

    def wait(self, wake: threading.Event, until: datetime) -> None:
        """Return when ``wake`` is set or ``until`` is reached, whichever is first. Does not clear ``wake``."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def wait(self, wake: threading.Event, until: datetime) -> None:
        wake.wait(max(0.0, (until - self.now()).total_seconds()))


class SimulatedClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: datetime) -> None:
        if now.utcoffset() is None:
            raise ValueError("a clock needs a timezone-aware time")
        self._now = now.astimezone(UTC)
        self._moved = threading.Condition()

    def now(self) -> datetime:
        return self._now

    def advance(self, step: timedelta) -> None:
        self.set(self._now + step)

    def set(self, now: datetime) -> None:
        if now.utcoffset() is None:
            raise ValueError("a clock needs a timezone-aware time")
        with self._moved:
            self._now = now.astimezone(UTC)
            self._moved.notify_all()

    def wait(self, wake: threading.Event, until: datetime) -> None:
        with self._moved:
            while not wake.is_set() and self._now < until:
                self._moved.wait(timeout=0.05)  # a wake-up does not notify this condition
