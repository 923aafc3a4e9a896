"""What requests want done in the cloud before they are answered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import CloudBusy, CloudDriver, ResourceRef, trust_in
from tenure.engine.performer import Performer
from tenure.engine.repair import take_back
from tenure.engine.workers import Lane, Workers
from tenure.services.events import EventService, Work

LOG = logging.getLogger(__name__)

#: How long a request waits for the cloud to do what belongs to a lease; then it is answered while that goes on.
ANSWER_SECONDS = 10.0
#: How long a request waits for others to be done with the cloud.
QUEUE_SECONDS = 1.0


class AtOnce:
    """The cloud's part of a request, with a bound on how many wait for it, and on how long.

    ``places`` is how many requests may wait at a time. Those who serve requests have more threads than that, so that
    a cloud that hangs never takes all of them. What finds no place or no worker, and what lasts longer than
    ``answer_seconds``, is the engine's business: a request about a lease is answered without it.
    """

    def __init__(
        self,
        events: EventService,
        performer: Performer,
        driver: CloudDriver,
        workers: Workers,
        wake: Callable[[], None],
        *,
        places: int,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._events = events
        self._performer = performer
        self._driver = driver
        self._workers = workers
        self._wake = wake
        #: Taken by whoever waits for anybody outside; others who do so share it.
        self.places = threading.Semaphore(places)
        self._answer_seconds = answer_seconds

    def carry_out(self, event_id: str, token: str) -> None:
        """Do what a claimed event is about and record the outcome; the engine does it where no worker is free."""
        if not self._attempt(event_id, lambda: self._events.claimed(event_id, token)):
            self._events.give_back(event_id, token)
            self._wake()

    def try_now(self, event_id: str) -> None:
        """Make one attempt at a due event, or see how one ends that is being made."""
        self._attempt(event_id, lambda: self._events.claim(event_id))

    def take_back(self, reservation_ids: Collection[str]) -> None:
        """Take back what was made for reservations that are over; what is not done at once is left to the repair."""
        if reservation_ids:
            self._wait_for(min(reservation_ids), partial(self._take_back, reservation_ids))

    def wake(self) -> None:
        """Say that something new is due."""
        self._wake()

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        """The thing of the cloud that is called so. Raises what the driver raises, ``CloudBusy`` without a place."""
        with self._place():
            return self._driver.look_up(resource_type, reference)

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        """What the cloud says of something. Raises what the driver raises, ``CloudBusy`` without a place."""
        with self._place():
            return self._driver.fetch(kind, reference, actor)

    def register(self, resource_type: str, resource: ResourceRef) -> None:
        """Set a resource aside in the cloud. Raises what the driver raises, ``CloudBusy`` without a place."""
        with self._place():
            self._driver.ensure_registered(resource_type, resource)

    def unregister(self, resource_type: str, resource: ResourceRef) -> None:
        """Give a resource back to the cloud. Raises what the driver raises, ``CloudBusy`` without a place."""
        with self._place():
            self._driver.ensure_unregistered(resource_type, resource)

    def delegate(self, actor: Actor, regions: Collection[str]) -> str:
        """A new trust of the caller in us. Raises what the driver raises, ``CloudBusy`` without a place."""
        with self._place():
            return trust_in(self._driver, actor, regions)

    def revoke(self, trust_id: str) -> None:
        """Forget a trust. Raises what the driver raises, ``CloudBusy`` without a place."""
        with self._place():
            self._driver.revoke(trust_id)

    def _attempt(self, event_id: str, take: Callable[[], Work | None]) -> bool:
        """Have an attempt made, and wait for the one that is being made, as long as may be; whether it is this one."""
        return self._wait_for(event_id, partial(self._performer.attempt, event_id, take))

    def _take_back(self, reservation_ids: Collection[str]) -> None:
        try:
            for reservation_id in reservation_ids:
                take_back(self._events, self._driver, reservation_id)
        except Exception:
            LOG.exception("reservations that are over could not be taken back; the repair will")

    def _wait_for(self, key: str, attempt: Callable[[], object]) -> bool:
        begun = self._workers.begin(key, Lane.REQUESTS, attempt)
        if self.places.acquire(blocking=False):
            try:
                self._workers.wait(key, self._answer_seconds)
            finally:
                self.places.release()
        return begun

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self.places.acquire(timeout=QUEUE_SECONDS):
            raise CloudBusy(Reason("too many requests wait for it"))
        try:
            yield
        finally:
            self.places.release()
