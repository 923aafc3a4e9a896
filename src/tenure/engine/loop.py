"""The engine's loop: claim and carry out due events, then sleep until the next is due."""

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
from tenure.services.execution.at_once import POLL
from tenure.services.execution.performer import Performer
from tenure.services.execution.service import EventService
from tenure.services.execution.workers import Lane, Workers

LOG = logging.getLogger(__name__)

#: How many events of a lane to fetch in one round.
BATCH = 200
#: How long a waiting start is not planned anew after no free resources were found for it, unless the engine is woken:
#: the search is expensive.
REPLAN = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Periodic:
    """A task to run at intervals, in a thread of its own; also when the engine starts, and on ``wake``."""

    name: str
    run: Callable[[], object]
    interval: timedelta
    #: Set this to run the task now.
    wake: threading.Event = field(default_factory=threading.Event)


class Engine:
    """Rounds of claiming and acting.

    Once the engine is started, its workers run attempts concurrently, so that a slow one delays no other. Deliveries
    and periodic tasks have their own threads. Before that, attempts run one after the other in the caller's thread, for
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
        *,
        serve: Callable[[], int] = lambda: 0,
    ) -> None:
        """``serve`` serves the waiting list in ``settle``; once the engine runs, a periodic task does."""
        self._events = events
        self._performer = performer
        self._delivery = delivery
        self._channels = tuple(channels)
        self._serve = serve
        self._periodic = tuple(periodic)
        self._clock = clock
        self._workers = workers
        #: Events that could not be claimed or recorded, and the time until which they are not tried again.
        self._resting: dict[str, datetime] = {}
        #: Waiting starts for which no free resources were found, and the time until which they are not planned anew.
        self._stuck: dict[str, datetime] = {}
        #: How often the engine was woken.
        self._wakes = 0
        #: Ready events from the last query that are not begun yet. Lanes with ends come first: what they release can
        #: be handed on.
        self._found: dict[Lane, deque[str]] = {Lane.OTHERS: deque(), Lane.STARTS: deque()}
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, task: Periodic) -> None:
        """Add a periodic task. Call it before the engine is started."""
        self._periodic = (*self._periodic, task)

    # --- in tests

    def settle(self) -> int:
        """Carry out everything that is due now, one by one; return the number of attempts."""
        attempts = 0
        while True:
            done = self.round() + self._serve()
            attempts += done
            if not done:
                for delivery in (self._delivery, *self._channels):
                    delivery.deliver()
                return attempts

    def next_due_at(self) -> datetime | None:
        """Return when the next event becomes ready."""
        now, upcoming = self._clock.now(), self._events.ready_in()
        return now + upcoming if upcoming is not None else None

    # --- in production

    def start(self) -> None:
        """Run in threads. They do not keep the process alive: after a crash, claims expire."""
        threads: list[tuple[str, Callable[[], None]]] = [
            ("tenure-engine", self._run),
            ("tenure-outbox", partial(self._run_delivery, self._delivery)),
            *(
                (f"tenure-outbox-{delivery.channel}", partial(self._run_delivery, delivery))
                for delivery in self._channels
            ),
            *((f"tenure-{task.name}", partial(self._run_periodic, task)) for task in self._periodic),
        ]
        for name, target in threads:
            thread = threading.Thread(target=target, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout_seconds: float = 30.0) -> None:
        """Take nothing new, and wait for running attempts, up to the time-out. After that, claims expire."""
        deadline = time.monotonic() + timeout_seconds
        self._stopping.set()
        for wake in (self._wake, *(task.wake for task in self._periodic)):
            wake.set()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        idle = self._workers.join(max(0.0, deadline - time.monotonic()))
        if not idle or any(thread.is_alive() for thread in self._threads):
            LOG.warning(
                "stopped while calls to the cloud were under way; they are taken up again when their claims expire"
            )

    def wake(self) -> None:
        """Start a round now: something new may be due, or free."""
        with self._guard:
            self._stuck = {}
            self._wakes += 1
        self._wake.set()

    def begin_more(self) -> None:
        """Start a round now: a worker is free."""
        self._wake.set()

    @property
    def is_alive(self) -> bool:
        return bool(self._threads) and self._threads[0].is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                # before the round, so that events that become due meanwhile are not missed
                until = self._next_round_at()
                self.round()
                until = min(until, self._clock.now() + POLL)  # the clock may have been set back meanwhile
            except Exception as error:  # noqa: BLE001  # a thread of the process must not end
                _log_failure(error, f"a round of the engine failed; the next one comes in {POLL}")
                until = self._clock.now() + POLL
            self._clock.wait(self._wake, until)

    def _run_delivery(self, delivery: Delivery) -> None:
        while not self._stopping.is_set():
            try:
                delivered = delivery.deliver(self._stopping)
            except Exception as error:  # noqa: BLE001  # a thread of the process must not end
                _log_failure(error, "delivering messages failed")
                delivered = 0
            if not delivered:
                self._stopping.wait(0.5)

    def _run_periodic(self, task: Periodic) -> None:
        while True:
            task.wake.clear()
            if self._stopping.is_set():  # checked after the wake-up: a stop wakes as well
                return
            again_at = self._clock.now() + task.interval
            try:
                task.run()
            except Exception as error:  # noqa: BLE001  # a thread of the process must not end
                _log_failure(error, f"the {task.name} pass failed")
            # A clock that was set back during the task does not delay the next run.
            self._clock.wait(task.wake, min(again_at, self._clock.now() + task.interval))

    def _next_round_at(self) -> datetime:
        """Return when to look again: at the next due time, and within ``POLL``, as other managers may have booked."""
        now = self._clock.now()
        return now + min(self._events.ready_in() or POLL, POLL)

    def round(self) -> int:
        """Start attempts at ready events, and replan waiting starts; return how many events that concerned."""
        now = self._clock.now()
        with self._guard:
            self._resting = {event_id: until for event_id, until in self._resting.items() if now < until <= now + POLL}
            self._stuck = {event_id: until for event_id, until in self._stuck.items() if now < until <= now + REPLAN}
        taken = sum(self._take(lane) for lane in self._found)
        if not self._found[Lane.STARTS]:  # otherwise there is no room for more of them
            waiting = (event_id for event_id in self._events.waiting(BATCH) if not self._is_resting(event_id))
            movable = [event_id for event_id in waiting if self._replan(event_id)]
            self._found[Lane.STARTS].extend(movable)
            taken += len(movable)
        return taken

    def _take(self, lane: Lane) -> int:
        """Begin with the events from the last query; if there is still room, query again and begin with those."""
        event_ids = self._found[lane]
        taken = self._begin(lane, event_ids)
        if not event_ids and self._has_room(lane):
            event_ids.extend(self._events.ready(BATCH, starts=lane is Lane.STARTS))
            taken += self._begin(lane, event_ids)
        return taken

    def _begin(self, lane: Lane, event_ids: deque[str]) -> int:
        taken = 0
        while event_ids and self._has_room(lane):
            event_id = event_ids.popleft()
            if event_id not in self._resting:
                attempt = partial(self._attempt, event_id)
                taken += self._workers.begin(event_id, lane, attempt, here=not self._threads)
        return taken

    def _has_room(self, lane: Lane) -> bool:
        return not self._stopping.is_set() and (not self._threads or self._workers.has_room(lane))

    def _is_resting(self, event_id: str) -> bool:
        """Whether an attempt at the event has just failed, or is running, or no free resources were just found."""
        return event_id in self._resting or event_id in self._stuck or self._workers.is_at(event_id)

    def _replan(self, event_id: str) -> bool:
        """Plan a waiting start on free resources; return whether it need not wait any more."""
        moved, wakes = False, self._wakes
        try:
            moved = self._events.move_off_unreturned(event_id)
        except Exception:
            LOG.exception("event %s could not be planned anew; it waits", event_id)
        if moved:
            self._wake.set()
        else:
            with self._guard:
                if self._wakes == wakes:  # otherwise something may have become free during the search
                    self._stuck[event_id] = self._clock.now() + REPLAN
        return moved

    def _attempt(self, event_id: str) -> None:
        if not self._performer.attempt(event_id, lambda: self._events.claim(event_id)):
            with self._guard:
                self._resting[event_id] = self._clock.now() + POLL


def _log_failure(error: Exception, problem: str) -> None:
    """Log an error: with its trace, unless the database is down, which lasts and repeats."""
    if isinstance(error, Unavailable):
        LOG.warning("%s: %s", problem, error)
    else:
        LOG.error("%s", problem, exc_info=error)
