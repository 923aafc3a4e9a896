"""Lanes: how many operations run and wait at a time, in all and for each project, and how long they wait.

Each operation of the manager has a lane (``LANES`` in ``tenure.services.manager``). What finds no room in its lane is
refused with ``Busy``, and nothing was done. In a lane, projects take turns.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from tenure import deadlines
from tenure.deadlines import Arrival, CallerGone, Deadline
from tenure.domain.errors import Busy
from tenure.domain.lanes import USUAL, Bounds, Lane
from tenure.metrics import LANE_REFUSALS, LANE_RUNNING, LANE_WAITING

#: How often a waiting operation looks whether its caller has disconnected, in seconds.
LOOK_SECONDS = 0.1


@dataclass(eq=False, slots=True)
class _Waiter:
    called: threading.Event = field(default_factory=threading.Event)


class _Track:
    """The operations of a lane: a semaphore whose permits go round the projects."""

    def __init__(self, lane: Lane, bounds: Bounds) -> None:
        self.lane = lane
        self._bounds = bounds
        self._guard = threading.Lock()
        self._running: Counter[str] = Counter()
        #: The waiting operations of each project, the next project first.
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        LANE_RUNNING.labels(lane.value).set(0)
        LANE_WAITING.labels(lane.value).set(0)

    def enter(self, project_id: str, arrival: Arrival, deadline: Deadline | None) -> None:
        """Wait for a permit; raise ``Busy`` if none is free in time, ``CallerGone`` if the caller disconnects.

        It does not wait beyond the deadline.
        """
        bounds = self._bounds
        with self._guard:
            if self._has_permit_for(project_id) and project_id not in self._waiting:
                self._begin(project_id)
                return
            line = self._waiting.get(project_id, ())
            if self._count_waiting() >= bounds.waiting or len(line) >= bounds.waiting_of_project:
                LANE_REFUSALS.labels(self.lane.value, "full").inc()
                raise Busy
            waiter = _Waiter()
            self._waiting.setdefault(project_id, deque()).append(waiter)
            self._show()
        self._wait(waiter, project_id, arrival, bounds.wait_seconds if deadline is None else deadline.left)

    def leave(self, project_id: str) -> None:
        """Release a permit; the next operations begin."""
        with self._guard:
            self._running[project_id] -= 1
            if not self._running[project_id]:
                del self._running[project_id]
            self._call_next()
            self._show()

    def _wait(self, waiter: _Waiter, project_id: str, arrival: Arrival, most_seconds: float) -> None:
        until = time.monotonic() + min(self._bounds.wait_seconds, most_seconds)
        while not waiter.called.wait(max(0.0, min(LOOK_SECONDS, until - time.monotonic()))):
            is_gone = arrival.is_gone()
            if not is_gone and time.monotonic() < until:
                continue
            with self._guard:
                if waiter.called.is_set():  # just now
                    return
                self._waiting[project_id].remove(waiter)
                if not self._waiting[project_id]:
                    del self._waiting[project_id]
                self._show()
            LANE_REFUSALS.labels(self.lane.value, "gone" if is_gone else "late").inc()
            raise CallerGone if is_gone else Busy

    @property
    def waiting(self) -> int:
        """How many operations wait."""
        with self._guard:
            return self._count_waiting()

    def _has_permit_for(self, project_id: str) -> bool:
        bounds = self._bounds
        return self._running.total() < bounds.running and self._running[project_id] < bounds.running_of_project

    def _begin(self, project_id: str) -> None:
        self._running[project_id] += 1
        self._show()

    def _call_next(self) -> None:
        """Begin the operations for which there are permits now, one of each project in turn."""
        while True:
            project_id = next((waiting for waiting in self._waiting if self._has_permit_for(waiting)), None)
            if project_id is None:
                return
            line = self._waiting.pop(project_id)
            waiter = line.popleft()
            if line:
                self._waiting[project_id] = line  # behind the other projects
            self._begin(project_id)
            waiter.called.set()

    def _count_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _show(self) -> None:
        LANE_RUNNING.labels(self.lane.value).set(self._running.total())
        LANE_WAITING.labels(self.lane.value).set(self._count_waiting())


class _Permit:
    """A permit in a lane, which is released once."""

    def __init__(self, track: _Track, project_id: str) -> None:
        self._track = track
        self._project_id = project_id
        self._is_taken = True

    def release(self) -> None:
        """Let another operation begin."""
        if self._is_taken:
            self._is_taken = False
            self._track.leave(self._project_id)


#: The permits of the operation that this thread carries out, the innermost last.
_PERMITS: ContextVar[tuple[_Permit, ...]] = ContextVar("permits", default=())


class Lanes:
    """The lanes of a process."""

    def __init__(self, bounds: Mapping[Lane, Bounds] = USUAL, *, search_seconds: float = 5.0) -> None:
        """``search_seconds`` is how long an operation in the lane of searches may take, counted from its arrival."""
        self._tracks = {lane: _Track(lane, bounds[lane]) for lane in Lane}
        #: How long the operations of a lane may take, from their arrival to their first change, in seconds.
        self._seconds = {
            Lane.SEARCHING: search_seconds,
            Lane.BOOKING: max(bounds[Lane.BOOKING].wait_seconds, search_seconds),
        }
        self.most = sum(bound.most for bound in bounds.values())

    @contextmanager
    def enter(self, lane: Lane, project_id: str) -> Iterator[None]:
        """Carry out an operation of a project in a lane, or a part of one.

        In the lane of searches, the block has a deadline, and in that of bookings until it has changed something.
        Raises ``Busy`` and ``CallerGone``, before the block, and the errors of ``Deadline.check``.
        """
        track, arrival = self._tracks[lane], deadlines.arrival()
        deadline = self._deadline(lane, arrival)
        track.enter(project_id, arrival, deadline)
        permit = _Permit(track, project_id)
        permits = _PERMITS.set((*_PERMITS.get(), permit))
        try:
            with deadlines.on_behalf_of(project_id), deadlines.within(deadline):
                yield
        finally:
            _PERMITS.reset(permits)
            permit.release()

    def count_waiting(self, lane: Lane) -> int:
        """Return how many operations wait in a lane."""
        return self._tracks[lane].waiting

    def _deadline(self, lane: Lane, arrival: Arrival) -> Deadline | None:
        around = deadlines.current()
        if lane is Lane.READING or (lane is Lane.BOOKING and around is not None):
            return around  # a booking inside of a search has the time of the search
        seconds = self._seconds[lane]
        if lane is Lane.BOOKING:  # which is carried out for a caller that is gone, too
            return Deadline(arrival.at + seconds, seconds, of_booking=True)
        return Deadline(arrival.at + seconds, seconds, arrival.is_gone)


def release_permits() -> None:
    """Release the permits of the operation that this thread carries out: from now on it waits for the cloud only."""
    for permit in _PERMITS.get():
        permit.release()
