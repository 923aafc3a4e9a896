"""Waiting for what another thread, process or service does: the one place where tests wait.

A limit is in seconds of an idle machine. On a busy machine time passes more slowly: the limit is stretched by the load,
so that a test which waits fails because of the product and not because of other work on the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

#: How long an answer may take that is expected at once, on an idle machine.
SECONDS = 60.0

#: How often an answer is asked for.
PAUSE_SECONDS = 0.05


def busyness() -> float:
    """Return how many times longer than on an idle machine work takes now: 1 when a processor is free, 3 when three
    processes want each processor."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def patience(seconds: float) -> float:
    """Return a limit for calls that take one, such as ``Popen.wait``: so many seconds, stretched by the load of now."""
    return seconds * busyness()


class Deadline:
    """The end of a wait of so many seconds of an idle machine."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._left = seconds
        self._looked = time.monotonic()

    @property
    def passed(self) -> bool:
        """Whether the time is over. Time on a busy machine counts for less."""
        now = time.monotonic()
        self._left -= (now - self._looked) / busyness()
        self._looked = now
        return self._left < 0


def wait_for(
    what: str | Callable[[], object],
    ask: Callable[[], Found],
    *,
    seconds: float = SECONDS,
    pause: float = PAUSE_SECONDS,
) -> Found:
    """Ask until the answer is true, and return the answer.

    :param what: what is waited for, or a function that describes how things stand when the time is over
    :raises AssertionError: after ``seconds``, stretched by the load of the machine
    """
    deadline = Deadline(seconds)
    while not (answer := ask()):
        if deadline.passed:
            raise AssertionError(f"waited {seconds:g} s for {what() if callable(what) else what}")
        time.sleep(pause)
    return answer
