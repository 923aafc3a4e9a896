"""Worker threads for calls to the cloud: a number per lane, so that a hanging call delays only its own lane."""

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
    """The purpose of an attempt. Each lane has its own workers."""

    STARTS = "starts"
    #: Ends, events before them, and changes that were not finished at the first attempt.
    OTHERS = "others"
    #: Attempts for which a request waits.
    REQUESTS = "requests"


class Workers:
    """Runs attempts at events: one at a time for each event, and as many in each lane as it has workers.

    ``of_each_lane`` is the number of workers; 0 runs each attempt in the calling thread. ``freed`` is called when an
    attempt has ended and its worker is free.
    """

    def __init__(self, of_each_lane: int, freed: Callable[[], None] = lambda: None) -> None:
        self._of_each_lane = of_each_lane
        self._freed = freed
        self._free = {lane: threading.Semaphore(of_each_lane) for lane in Lane}
        self._running: dict[str, threading.Event] = {}
        self._guard = threading.Lock()

    def has_room(self, lane: Lane) -> bool:
        """Whether a worker of the lane is free. Only the thread that gives work to the lane may rely on it."""
        if not self._of_each_lane:
            return True
        if not self._free[lane].acquire(blocking=False):
            return False
        self._free[lane].release()
        return True

    def begin(self, event_id: str, lane: Lane, attempt: Callable[[], object], *, here: bool = False) -> bool:
        """Start an attempt; return False if one for this event is running, or no worker is free.

        ``here`` runs it in the calling thread. ``attempt`` must not raise.
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
                self._finish(event_id)
            self._freed()
            return True
        work = partial(copy_context().run, self._work, event_id, lane, attempt)  # keeps the caller's request id
        try:
            threading.Thread(target=work, name="tenure-event", daemon=True).start()
        except RuntimeError as error:  # the system cannot start another thread
            LOG.warning("no worker for event %s: %s", event_id, error)
            self._free[lane].release()
            self._finish(event_id)
            return False
        return True

    def is_at(self, event_id: str) -> bool:
        """Whether an attempt at the event is running."""
        with self._guard:
            return event_id in self._running

    def wait(self, event_id: str, seconds: float) -> None:
        """Wait while an attempt at the event is running, at most this long."""
        with self._guard:
            over = self._running.get(event_id)
        if over is not None:
            over.wait(seconds)

    def join(self, seconds: float) -> bool:
        """Wait until all attempts have ended, at most this long; return whether they have."""
        deadline = time.monotonic() + seconds
        with self._guard:
            running = list(self._running.values())
        return all(over.wait(max(0.0, deadline - time.monotonic())) for over in running)

    def _work(self, event_id: str, lane: Lane, attempt: Callable[[], object]) -> None:
        try:
            attempt()
        finally:
            self._free[lane].release()
            self._finish(event_id)
            self._freed()

    def _finish(self, event_id: str) -> None:
        with self._guard:
            self._running.pop(event_id).set()
