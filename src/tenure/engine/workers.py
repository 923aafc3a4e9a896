"""Threads for calls to the cloud: so many of each kind, so that what hangs in one delays no other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from enum import Enum
from functools import partial

LOG = logging.getLogger(__name__)


class Lane(Enum):
    """What attempts are made for. Each lane has workers of its own."""

    STARTS = "starts"
    #: Ends, what comes before them, and changes that were not done at the first attempt.
    OTHERS = "others"
    #: What somebody waits for who has asked for it.
    REQUESTS = "requests"


class Workers:
    """Makes attempts at events: of each event one at a time, and of each lane as many as it has workers.

    ``of_each_lane`` is how many; 0 for one attempt after the other, each in the thread that asks for it. ``freed`` is
    called when an attempt is over and its worker free.
    """

    def __init__(self, of_each_lane: int, freed: Callable[[], None] = lambda: None) -> None:
        self._of_each_lane = of_each_lane
        self._freed = freed
        self._free = {lane: threading.Semaphore(of_each_lane) for lane in Lane}
        self._running: dict[str, threading.Event] = {}
        self._guard = threading.Lock()

    def has_room(self, lane: Lane) -> bool:
        """Whether an attempt can be made now, for the one who gives work to the lane."""
        if not self._of_each_lane:
            return True
        if not self._free[lane].acquire(blocking=False):
            return False
        self._free[lane].release()
        return True

    def begin(self, event_id: str, lane: Lane, attempt: Callable[[], object], *, here: bool = False) -> bool:
        """Make an attempt, or have a worker make it; False when one is being made, or no worker is free.

        ``here`` says that it shall be in the thread that asks. ``attempt`` raises nothing.
        """
        here = here or not self._of_each_lane
        with self._guard:
            if event_id in self._running or not (here or self._free[lane].acquire(blocking=False)):
                return False
            self._running[event_id] = threading.Event()
        if here:
            try:
                attempt()
            finally:
                self._over(event_id)
            self._freed()
            return True
        work = partial(copy_context().run, self._work, event_id, lane, attempt)  # belongs to the request that asks
        try:
            threading.Thread(target=work, name="tenure-event", daemon=True).start()
        except RuntimeError as error:  # the system has no thread left
            LOG.warning("no worker for event %s: %s", event_id, error)
            self._free[lane].release()
            self._over(event_id)
            return False
        return True

    def is_at(self, event_id: str) -> bool:
        """Whether an attempt at the event is being made."""
        with self._guard:
            return event_id in self._running

    def wait(self, event_id: str, seconds: float) -> None:
        """Wait while an attempt at the event is being made, but not for longer."""
        with self._guard:
            over = self._running.get(event_id)
        if over is not None:
            over.wait(seconds)

    def join(self, seconds: float) -> bool:
        """Wait until every attempt is over, but not for longer; whether they are."""
        deadline = time.monotonic() + seconds
        with self._guard:
            running = list(self._running.values())
        return all(over.wait(max(0.0, deadline - time.monotonic())) for over in running)

    def _work(self, event_id: str, lane: Lane, attempt: Callable[[], object]) -> None:
        try:
            attempt()
        finally:
            self._free[lane].release()
            self._over(event_id)
            self._freed()

    def _over(self, event_id: str) -> None:
        with self._guard:
            self._running.pop(event_id).set()
