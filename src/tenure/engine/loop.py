"""The clock-driven way in: what is due is claimed and carried out; then sleep until something is."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import datetime, timedelta

from tenure.clock import Clock
from tenure.engine.delivery import Delivery
from tenure.engine.performer import Performer
from tenure.engine.repair import Repair
from tenure.services.events import EventService

LOG = logging.getLogger(__name__)

#: How many events one round looks at, and how often it looks when nothing wakes it: what other managers have booked.
BATCH = 200
POLL = timedelta(seconds=2)


class Engine:
    """Rounds of claiming and acting.

    With an executor events run side by side on it, so that a slow one delays no other; without one they run one after
    the other in the caller's thread, for tests that move the clock by hand.
    """

    def __init__(
        self,
        events: EventService,
        performer: Performer,
        delivery: Delivery,
        repair: Repair,
        clock: Clock,
        *,
        workers: int = 0,
    ) -> None:
        self._events = events
        self._performer = performer
        self._delivery = delivery
        self._repair = repair
        self._clock = clock
        self._workers = workers
        self._executor: Executor | None = None
        self._free = threading.Semaphore(workers) if workers else None
        self._running: set[str] = set()
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.last_round: datetime | None = None

    # --- in tests

    def settle(self) -> int:
        """Carry out everything that is due now, one after the other; how many attempts that took."""
        attempts = 0
        while True:
            done = self.round()
            attempts += done
            if not done:
                self._delivery.deliver()
                return attempts

    def next_due_at(self) -> datetime | None:
        """When the next event becomes ready."""
        return self._events.next_ready_at()

    # --- in production

    def start(self) -> None:
        """Begin to run in threads of its own."""
        self._executor = ThreadPoolExecutor(self._workers, thread_name_prefix="tenure-event")
        self._thread = threading.Thread(target=self._run, name="tenure-engine", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 30.0) -> None:
        """Take nothing new, and wait for what is under way, but not for ever: claims expire."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def wake(self) -> None:
        """Look at once: something new may be due."""
        self._wake.set()

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        delivery = threading.Thread(target=self._run_delivery, name="tenure-outbox", daemon=True)
        delivery.start()
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                self.round()
                self._repair.run_when_due()
                until = self._until()
            except Exception:
                LOG.exception("a round of the engine failed; the next one comes in %s", POLL)
                until = self._clock.now() + POLL
            self._clock.wait(self._wake, until)

    def _run_delivery(self) -> None:
        while not self._stopping.is_set():
            try:
                delivered = self._delivery.deliver()
            except Exception:
                LOG.exception("delivering messages failed")
                delivered = 0
            if not delivered:
                self._stopping.wait(0.5)

    def _until(self) -> datetime:
        """When to look again: at the next due time, and no later than the others may have booked something."""
        latest = self._clock.now() + POLL
        upcoming = self._events.next_ready_at()
        return min(upcoming, latest) if upcoming else latest

    def round(self) -> int:
        """Claim what is ready and carry it out, or hand it to the executor; how many were taken."""
        self.last_round = self._clock.now()
        for event_id in self._events.waiting(BATCH):
            self._events.move_off_unreturned(event_id)
        taken = 0
        for event_id in self._events.ready(BATCH):
            if self._stopping.is_set() or not self._begin(event_id):
                continue
            taken += 1
            if self._executor is None:
                self._do(event_id)
            else:
                self._executor.submit(self._do, event_id)
        return taken

    def _begin(self, event_id: str) -> bool:
        """Whether this process is not at the event already and has a worker for it."""
        with self._guard:
            if event_id in self._running:
                return False
            if self._free is not None and not self._free.acquire(blocking=False):
                return False
            self._running.add(event_id)
            return True

    def _do(self, event_id: str) -> None:
        try:
            work = self._events.claim(event_id)
            if work is not None:
                self._performer.perform(work)
        except Exception:
            LOG.exception("event %s could not be carried out; it will be taken up again", event_id)
        finally:
            with self._guard:
                self._running.discard(event_id)
            if self._free is not None:
                self._free.release()
            self._wake.set()
