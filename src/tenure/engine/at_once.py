"""Work in the cloud that is done before a request is answered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import CloudBusy, CloudDriver, Group, ResourceRef
from tenure.engine.performer import Performer
from tenure.engine.repair import take_back
from tenure.engine.workers import Lane, Workers
from tenure.services.execution.handler import Work
from tenure.services.execution.service import EventService
from tenure.services.lanes import give_back_places
from tenure.services.resources.drift import DriftService

LOG = logging.getLogger(__name__)

#: How long a request waits for the cloud's work on a lease, in seconds. Then it is answered while the work goes on.
ANSWER_SECONDS = 10.0
#: How long a request waits for a place, in seconds.
QUEUE_SECONDS = 1.0


class AtOnce:
    """The cloud's part of requests, with limits on how many requests wait for it, and for how long.

    ``places`` is how many requests may wait at a time. There are more threads to serve requests, so that a cloud that
    hangs never blocks all of them. Work that finds no place or no worker, or takes longer than ``answer_seconds``, is
    left to the engine: a request about a lease is answered without it.
    """

    def __init__(
        self,
        events: EventService,
        drift: DriftService,
        performer: Performer,
        driver: CloudDriver,
        workers: Workers,
        wake: Callable[[], None],
        *,
        places: int,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._events = events
        self._drift = drift
        self._performer = performer
        self._driver = driver
        self._workers = workers
        self._wake = wake
        #: The places for requests that wait for something outside; other such waits share them.
        self.places = threading.Semaphore(places)
        self._answer_seconds = answer_seconds

    def carry_out(self, event_id: str, token: str) -> None:
        """Carry out a claimed event and record the outcome; the engine does it if no worker is free."""
        if not self._attempt(event_id, lambda: self._events.claimed(event_id, token)):
            self._events.give_back(event_id, token)
            self._wake()

    def try_now(self, event_id: str) -> None:
        """Make one attempt at a due event, or wait for the attempt that is running."""
        self._attempt(event_id, lambda: self._events.claim(event_id))

    def take_back(self, reservation_ids: Collection[str]) -> None:
        """Take back the cloud resources of reservations that are over; the repair does what is not done at once."""
        if reservation_ids:
            self._wait_for(min(reservation_ids), partial(self._take_back, reservation_ids))

    def wake(self) -> None:
        """Tell the engine that something new is due."""
        self._wake()

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        """Return the cloud's resource with this name. Raises the driver's errors, and ``CloudBusy`` without a place."""
        with self._take_place():
            return self._driver.look_up(resource_type, reference)

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        """Return the cloud's description. Raises the driver's errors, and ``CloudBusy`` without a place."""
        with self._take_place():
            return self._driver.fetch(kind, reference, actor)

    def register(self, resource_type: str, resource: ResourceRef) -> None:
        """Set a resource aside in the cloud. Raises the driver's errors, and ``CloudBusy`` without a place."""
        with self._take_place():
            self._driver.ensure_registered(resource_type, resource)

    def unregister(self, resource_type: str, resource: ResourceRef) -> None:
        """Give a resource back to the cloud. Raises the driver's errors, and ``CloudBusy`` without a place."""
        with self._take_place():
            self._driver.ensure_unregistered(resource_type, resource)

    def delegate(self, actor: Actor, regions: Collection[str]) -> str:
        """Create a trust of the caller in Tenure. Raises the driver's errors, and ``CloudBusy`` without a place."""
        with self._take_place():
            return self._driver.delegate(actor, regions)

    def revoke(self, trust_id: str) -> None:
        """Delete a trust. Raises the driver's errors, and ``CloudBusy`` without a place."""
        with self._take_place():
            self._driver.revoke(trust_id)

    def identify(self, group: Group, reference: str) -> Sequence[str]:
        """Return the ids of users or projects. Raises the driver's errors, and ``CloudBusy`` without a place."""
        with self._take_place():
            return self._driver.identify(group, reference)

    def _attempt(self, event_id: str, take: Callable[[], Work[Any] | None]) -> bool:
        """Start an attempt, and wait for the running attempt within the limit; return whether it is this one."""
        return self._wait_for(event_id, partial(self._performer.attempt, event_id, take))

    def _take_back(self, reservation_ids: Collection[str]) -> None:
        try:
            take_back(self._drift, self._driver, reservation_ids)
        except Exception:
            LOG.exception("reservations that are over could not be taken back; the repair pass will do it")

    def _wait_for(self, key: str, attempt: Callable[[], object]) -> bool:
        begun = self._workers.begin(key, Lane.REQUESTS, attempt)
        if self.places.acquire(blocking=False):
            give_back_places()
            try:
                self._workers.wait(key, self._answer_seconds)
            finally:
                self.places.release()
        return begun

    @contextmanager
    def _take_place(self) -> Iterator[None]:
        if not self.places.acquire(timeout=QUEUE_SECONDS):
            raise CloudBusy(Reason("too many requests wait for it"))
        try:
            yield
        finally:
            self.places.release()
