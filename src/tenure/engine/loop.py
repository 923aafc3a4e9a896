"""The clock-driven way in: what is due is claimed and carried out; then sleep until something is."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from tenure.clock import Clock
from tenure.domain.errors import Unavailable
from tenure.engine.delivery import Delivery
from tenure.engine.performer import Performer
from tenure.engine.workers import Lane, Workers
from tenure.services.events import EventService

LOG = logging.getLogger(__name__)

#: How many events of a lane one round looks at.
BATCH = 200
#: How often it looks when nothing wakes it: what other managers have booked.
POLL = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Periodic:
    """Something to be done at intervals, in a thread of its own; at once when the engine starts, and on ``wake``."""

    name: str
    run: Callable[[], object]
    interval: timedelta
    #: Set by whoever wants it done now, and not when the interval is over.
    wake: threading.Event = field(default_factory=threading.Event)


class Engine:
    """Rounds of claiming and acting.

    Once started, its workers make attempts side by side, so that a slow one delays no other, and deliveries and what is
    done at intervals have threads of their own. Before that, one attempt follows the other in the caller's thread, for
    tests that move the clock by hand.
    """

    def __init__(
        self,
        events: EventService,
        performer: Performer,
        delivery: Delivery,
        periodic: Sequence[Periodic],
        clock: Clock,
        workers: Workers,
        channels: Sequence[Delivery] = (),
    ) -> None:
        self._events = events
        self._performer = performer
        self._delivery = delivery
        self._channels = tuple(channels)
        self._periodic = tuple(periodic)
        self._clock = clock
        self._workers = workers
        #: Events that could not even be claimed, and until when they are left alone.
        self._resting: dict[str, datetime] = {}
        #: Events that were ready when they were last looked for, and not begun with yet. Ends and the like come first:
        #: what is given back can be handed on.
        self._found: dict[Lane, deque[str]] = {Lane.OTHERS: deque(), Lane.STARTS: deque()}
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, one: Periodic) -> None:
        """Have one more thing done at intervals; to be called before it is started."""
        self._periodic = (*self._periodic, one)

    # --- in tests

    def settle(self) -> int:
        """Carry out everything that is due now, one after the other; how many attempts that took."""
        attempts = 0
        while True:
            done = self.round()
            attempts += done
            if not done:
                for delivery in (self._delivery, *self._channels):
                    delivery.deliver()
                return attempts

    def next_due_at(self) -> datetime | None:
        """When the next event becomes ready."""
        now, upcoming = self._clock.now(), self._events.ready_in()
        return now + upcoming if upcoming is not None else None

    # --- in production

    def start(self) -> None:
        """Begin to run in threads of its own. They do not keep the process alive: claims expire."""
        threads: list[tuple[str, Callable[[], None]]] = [
            ("tenure-engine", self._run),
            ("tenure-outbox", partial(self._run_delivery, self._delivery)),
            *((f"tenure-outbox-{one.channel}", partial(self._run_delivery, one)) for one in self._channels),
            *((f"tenure-{one.name}", partial(self._run_periodic, one)) for one in self._periodic),
        ]
        for name, target in threads:
            thread = threading.Thread(target=target, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout_seconds: float = 30.0) -> None:
        """Take nothing new, and wait for what is under way, but not for ever: claims expire."""
        deadline = time.monotonic() + timeout_seconds
        self._stopping.set()
        for wake in (self._wake, *(one.wake for one in self._periodic)):
            wake.set()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        idle = self._workers.join(max(0.0, deadline - time.monotonic()))
        if not idle or any(thread.is_alive() for thread in self._threads):
            LOG.warning(
                "stopped while calls to the cloud were under way; they are taken up again when their claims expire"
            )

    def wake(self) -> None:
        """Look at once: something new may be due."""
        self._wake.set()

    @property
    def is_alive(self) -> bool:
        return bool(self._threads) and self._threads[0].is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                until = self._until()  # before the round: what becomes due meanwhile is not slept over
                self.round()
            except Exception as error:  # noqa: BLE001  # a thread of the process ends for nothing
                _tell(error, f"a round of the engine failed; the next one comes in {POLL}")
                until = self._clock.now() + POLL
            self._clock.wait(self._wake, until)

    def _run_delivery(self, delivery: Delivery) -> None:
        while not self._stopping.is_set():
            try:
                delivered = delivery.deliver(self._stopping)
            except Exception as error:  # noqa: BLE001  # a thread of the process ends for nothing
                _tell(error, "delivering messages failed")
                delivered = 0
            if not delivered:
                self._stopping.wait(0.5)

    def _run_periodic(self, task: Periodic) -> None:
        while True:
            task.wake.clear()
            if self._stopping.is_set():  # looked at after that: a stop wakes as well
                return
            again_at = self._clock.now() + task.interval
            try:
                task.run()
            except Exception as error:  # noqa: BLE001  # a thread of the process ends for nothing
                _tell(error, f"the {task.name} pass failed")
            self._clock.wait(task.wake, again_at)

    def _until(self) -> datetime:
        """When to look again: at the next due time, and no later than the others may have booked something."""
        now = self._clock.now()
        return now + min(self._events.ready_in() or POLL, POLL)

    def round(self) -> int:
        """Claim what is ready and carry it out, or have a worker do it; how many were taken, or moved to be taken."""
        now = self._clock.now()
        with self._guard:
            self._resting = {event_id: until for event_id, until in self._resting.items() if now < until <= now + POLL}
        taken = sum(self._take(lane) for lane in self._found)
        if not self._found[Lane.STARTS]:  # else there is no room for more of them
            waiting = (one for one in self._events.waiting(BATCH) if not self._is_left_alone(one))
            going = [one for one in waiting if self._move(one)]
            self._found[Lane.STARTS].extend(going)
            taken += len(going)
        return taken

    def _take(self, lane: Lane) -> int:
        """Begin with what was found before; where that leaves room, look again, and begin with what is found then."""
        found = self._found[lane]
        taken = self._begin(lane, found)
        if not found and self._has_room(lane):
            found.extend(self._events.ready(BATCH, starts=lane is Lane.STARTS))
            taken += self._begin(lane, found)
        return taken

    def _begin(self, lane: Lane, found: deque[str]) -> int:
        taken = 0
        while found and self._has_room(lane):
            event_id = found.popleft()
            if event_id not in self._resting:
                attempt = partial(self._attempt, event_id)
                taken += self._workers.begin(event_id, lane, attempt, here=not self._threads)
        return taken

    def _has_room(self, lane: Lane) -> bool:
        return not self._stopping.is_set() and (not self._threads or self._workers.has_room(lane))

    def _is_left_alone(self, event_id: str) -> bool:
        """Whether the last attempt was in vain a moment ago, or one is being made."""
        return event_id in self._resting or self._workers.is_at(event_id)

    def _move(self, event_id: str) -> bool:
        """Plan a start that waits for others on what is free; whether it need not wait any more."""
        try:
            moved = self._events.move_off_unreturned(event_id)
        except Exception:
            LOG.exception("event %s could not be planned anew; it waits", event_id)
            return False
        if moved:
            self._wake.set()
        return moved

    def _attempt(self, event_id: str) -> None:
        if not self._performer.attempt(event_id, lambda: self._events.claim(event_id)):
            with self._guard:
                self._resting[event_id] = self._clock.now() + POLL


def _tell(error: Exception, what: str) -> None:
    """Log what failed: with a trace, unless it is only that the database is away, which lasts and repeats."""
    if isinstance(error, Unavailable):
        LOG.warning("%s: %s", what, error)
    else:
        LOG.error("%s", what, exc_info=error)
