"""Calls to the cloud for requests, before any transaction."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import CloudBusy, CloudDriver, Group, ResourceRef

#: How long a request waits for a permit, in seconds.
QUEUE_SECONDS = 1.0


class CloudCalls:
    """The calls to the cloud that requests wait for, with a limit on how many wait at a time.

    ``permits`` is how many requests may wait; other waits for something outside share them. There are more threads to
    serve requests, so that a cloud that hangs never blocks all of them.
    """

    def __init__(self, driver: CloudDriver, permits: threading.Semaphore) -> None:
        self._driver = driver
        self._permits = permits

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        """Return the resource with this name. Raises the driver's errors, and ``CloudBusy`` without a permit."""
        with self._permit():
            return self._driver.look_up(resource_type, reference)

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        """Return the cloud's description of something that a request names. Raises the errors of ``look_up``."""
        with self._permit():
            return self._driver.fetch(kind, reference, actor)

    def register(self, resource_type: str, resource: ResourceRef) -> None:
        """Set a resource aside in the cloud. Raises the errors of ``look_up``."""
        with self._permit():
            self._driver.ensure_registered(resource_type, resource)

    def unregister(self, resource_type: str, resource: ResourceRef) -> None:
        """Give a resource back to the cloud. Raises the errors of ``look_up``."""
        with self._permit():
            self._driver.ensure_unregistered(resource_type, resource)

    def delegate(self, actor: Actor, regions: Collection[str]) -> str:
        """Create a trust of the caller in Tenure for these regions; return its id. Raises the errors of ``look_up``."""
        with self._permit():
            return self._driver.delegate(actor, regions)

    def revoke(self, trust_id: str) -> None:
        """Delete a trust. Raises the errors of ``look_up``."""
        with self._permit():
            self._driver.revoke(trust_id)

    def identify(self, group: Group, reference: str) -> Sequence[str]:
        """Return the ids of the users or projects with this id or name. Raises the errors of ``look_up``."""
        with self._permit():
            return self._driver.identify(group, reference)

    @contextmanager
    def _permit(self) -> Iterator[None]:
        if not self._permits.acquire(timeout=QUEUE_SECONDS):
            raise CloudBusy(Reason("too many requests wait for it"))
        try:
            yield
        finally:
            self._permits.release()
