"""Actions in the cloud that are carried out before a request is answered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from tenure.domain.lease import Lease
from tenure.drivers.contract import CloudDriver, CloudError
from tenure.services.execution.handler import Work
from tenure.services.execution.performer import Performer
from tenure.services.execution.service import EventService
from tenure.services.execution.workers import Lane, Workers
from tenure.services.lanes import release_permits
from tenure.services.resources.reconciliation import ReconciliationService

LOG = logging.getLogger(__name__)

#: The longest sleep of the engine if nothing wakes it: other managers may have booked something.
POLL = timedelta(seconds=2)
#: How long a request waits for the cloud's work on a lease, in seconds. Then it is answered while the work goes on.
ANSWER_SECONDS = 10.0


class AtOnce:
    """Carries out events for requests, with limits on how many requests wait for it, and for how long.

    ``permits`` is how many requests may wait at a time: those of ``CloudCalls``. Work that finds no permit or no
    worker, or takes longer than ``answer_seconds``, is left to the engine: a request about a lease is answered without
    it.
    """

    def __init__(
        self,
        events: EventService,
        reconciliation: ReconciliationService,
        performer: Performer,
        driver: CloudDriver,
        workers: Workers,
        wake: Callable[[], None],
        *,
        permits: threading.Semaphore,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._events = events
        self._reconciliation = reconciliation
        self._performer = performer
        self._driver = driver
        self._workers = workers
        self._wake = wake
        self._permits = permits
        self._answer_seconds = answer_seconds

    def carry_out(self, event_id: str, token: str) -> None:
        """Carry out a claimed event and record the outcome; the engine does it if no worker is free."""
        if not self._attempt(event_id, partial(self._events.claimed, event_id, token)):
            self._events.give_back(event_id, token)
            self._wake()

    def try_now(self, event_id: str) -> None:
        """Make one attempt at a due event, or wait for the attempt that is running."""
        self._attempt(event_id, partial(self._events.claim, event_id))

    def take_back(self, reservation_ids: Collection[str]) -> None:
        """Take back the cloud resources of reservations that are over; the reconciler does what is not done at once."""
        if reservation_ids:
            self._wait_for(min(reservation_ids), partial(self._take_back, reservation_ids))

    def wake(self) -> None:
        """Tell the engine that something new is due, or free."""
        self._wake()

    def wake_if_due(self, lease: Lease, now: datetime) -> None:
        """Tell the engine that a lease was booked, unless it will look again before the first event of the lease."""
        if lease.starts_at - now <= 2 * POLL or any(event.due_at - now <= 2 * POLL for event in lease.events):
            self._wake()

    def _attempt(self, event_id: str, take: Callable[[], Work[Any] | None]) -> bool:
        """Start an attempt, and wait for the running attempt within the limit; return whether it is this one."""
        return self._wait_for(event_id, partial(self._performer.attempt, event_id, take))

    def _take_back(self, reservation_ids: Collection[str]) -> None:
        try:
            take_back(self._reconciliation, self._driver, reservation_ids)
        except Exception:
            LOG.exception("reservations that are over could not be taken back; the reconciliation pass will do it")

    def _wait_for(self, key: str, attempt: Callable[[], object]) -> bool:
        begun = self._workers.begin(key, Lane.REQUESTS, attempt)
        if self._permits.acquire(blocking=False):
            release_permits()
            try:
                self._workers.wait(key, self._answer_seconds)
            finally:
                self._permits.release()
        return begun


def take_back(reconciliation: ReconciliationService, driver: CloudDriver, reservation_ids: Collection[str]) -> set[str]:
    """Take back the cloud resources of reservations that are over; return the reservations without any left."""
    gone = set(reservation_ids)
    for command in reconciliation.leftovers(reservation_ids):
        try:
            done = driver.ensure_ended(command).done
        except CloudError as error:
            LOG.warning("taking back reservation %s will be tried again: %s", command.reservation_id, error)
            done = False
        if not done:
            gone.discard(command.reservation_id)
    return gone
