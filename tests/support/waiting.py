"""Waiting for what another thread, process or service does: the one place where tests wait.

A limit is in seconds of an idle machine. On a busy machine work takes longer, so the limit is stretched: a test that
waits fails because of the product and not because of other work on the machine.

* ``wait_for`` asks until the answer is true.
* ``patience()`` is the limit for a call that takes one, such as ``Thread.join`` or ``Queue.get``.
* ``COMMAND_SECONDS`` is the limit for a program that a test runs to its end.

No test asserts that something took less than so many seconds. What hangs in a test hangs until the test has its answer:
an answer that comes at all shows that the product has given up waiting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

Found = TypeVar("Found")

#: How long an answer may take that is expected at once, on an idle machine. Tests of mutants give up earlier.
SECONDS = float(os.environ.get("TENURE_TEST_PATIENCE", "60"))

#: How long a program may take that is run to its end. It is long enough for a busy machine too.
COMMAND_SECONDS = 300.0

#: How long what hangs in a test hangs at most. Who waits for it until then was not given a limit.
HANG_SECONDS = 500.0

#: The longest pause between two questions. The first pauses are shorter: see ``wait_for``.
PAUSE_SECONDS = 0.25
_FIRST_PAUSE_SECONDS = 0.01

#: No limit is stretched further. A wait of ``SECONDS`` so ends before ``faulthandler_timeout`` of pytest, ten minutes
#: unless the run is a long one, ends the whole run.
MOST = 8.0

#: How much smaller a share of a processor a process gets for each step of niceness, as in the scheduler of Linux.
_STEP_OF_NICENESS = 1.25

#: Stolen time is measured over at least so many ticks: a second of one processor.
_TICKS = 100


def _read_statistics() -> str:
    return Path("/proc/stat").read_text()


@dataclass
class Machine:
    """The time and the load of a machine. The defaults are those of this one; tests of waiting have others."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    load: Callable[[], float] = lambda: os.getloadavg()[0]
    #: The text of ``/proc/stat``.
    statistics: Callable[[], str] = _read_statistics
    processors: Callable[[], int] = lambda: len(os.sched_getaffinity(0))
    niceness: Callable[[], int] = lambda: os.nice(0)

    def __post_init__(self) -> None:
        self._ticks = (0, 0)
        self._stolen = 0.0

    def busyness(self) -> float:
        """Return how many times longer than on an idle machine work takes now, from 1 to ``MOST``.

        It is 3 when three processes want each processor. Twice that if half of the time of the processors is stolen,
        which means that the host of this virtual machine gives it to others. More if this process has a low priority:
        the others then get more than an equal share.

        The load average is that of a minute. When the load has just come, the number of running processes tells it.
        """
        values = dict(line.split(" ", 1) for line in self.statistics().splitlines())
        wanting = max(self.load(), float(values["procs_running"]))
        rivals = max(0.0, wanting / self.processors() - 1)
        slowness = 1 + rivals * _STEP_OF_NICENESS ** max(0, self.niceness())
        return min(MOST, slowness / (1 - self._stolen_share(values["cpu"])))

    def _stolen_share(self, times: str) -> float:
        """Return the share of stolen time since the last measurement; at first, since the machine was started."""
        ticks = [int(number) for number in times.split()[:8]]  # the others are counted among these already
        total, stolen = sum(ticks), ticks[7]
        if (passed := total - self._ticks[0]) >= _TICKS:
            self._stolen = min(0.9, max(0.0, (stolen - self._ticks[1]) / passed))
            self._ticks = (total, stolen)
        return self._stolen


THIS_MACHINE = Machine()


def patience(seconds: float = SECONDS) -> float:
    """Return a limit for a call that takes one: so many seconds, stretched by the load of now."""
    return seconds * THIS_MACHINE.busyness()


class Deadline:
    """The end of a wait of so many seconds of an idle machine."""

    def __init__(self, seconds: float = SECONDS, machine: Machine = THIS_MACHINE) -> None:
        self._machine = machine
        self._left = seconds
        self._began = self._looked = machine.clock()

    def passed(self) -> bool:
        """Return whether the time is over. Time on a busy machine counts for less."""
        now = self._machine.clock()
        self._left -= (now - self._looked) / self._machine.busyness()
        self._looked = now
        return self._left < 0

    @property
    def waited(self) -> float:
        """The seconds that have passed, however busy the machine was, when ``passed`` was last asked for."""
        return self._looked - self._began


def wait_for(
    what: str | Callable[[], object],
    ask: Callable[[], Found | Literal[False] | None],
    *,
    seconds: float = SECONDS,
    pause: float = PAUSE_SECONDS,
    machine: Machine = THIS_MACHINE,
) -> Found:
    """Ask until the answer is true, and return the answer.

    Pauses grow with the time waited so far, up to ``pause`` seconds.

    :param what: what is waited for, or a function that describes how things stand when the time is over
    :raises AssertionError: after ``seconds``, stretched by the load of the machine
    """
    deadline = Deadline(seconds, machine)
    while not (answer := ask()):
        if deadline.passed():
            description = what() if callable(what) else what
            raise AssertionError(f"waited {deadline.waited:.0f} s ({seconds:g} s of an idle machine) for {description}")
        machine.sleep(min(pause, max(_FIRST_PAUSE_SECONDS, deadline.waited / 10)))
    return answer
