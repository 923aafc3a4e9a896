"""Repair: undoing what should not be there. A late call of a lost worker cannot be fenced in the cloud."""

from __future__ import annotations

import logging
from collections.abc import Collection

from tenure.clock import Clock
from tenure.drivers.contract import CloudDriver, CloudError, Order
from tenure.services.events import EventService

LOG = logging.getLogger(__name__)


class Repair:
    """Compares what the cloud holds with what the ledger says, and takes back what nobody has."""

    def __init__(self, events: EventService, driver: CloudDriver, inventories: Collection[str], clock: Clock) -> None:
        self._events = events
        self._driver = driver
        self._inventories = sorted(inventories)
        self._clock = clock

    def run(self) -> int:
        """Take back the effects of reservations that have ended or never were; how many there were."""
        undone = 0
        for inventory in self._inventories:
            try:
                held = set(self._driver.held(inventory))
            except CloudError as error:
                LOG.warning("the repair pass will be tried again: %s", error)
                continue
            for reservation_id in sorted(held - self._events.live(held)):
                LOG.warning("reservation %s is over and still has effects; taking them back", reservation_id)
                try:
                    self._driver.ensure_ended(self._leftover(reservation_id, inventory))
                except CloudError as error:
                    LOG.warning("taking back reservation %s will be tried again: %s", reservation_id, error)
                else:
                    undone += 1
        return undone

    def _leftover(self, reservation_id: str, inventory: str) -> Order:
        return Order(
            reservation_id=reservation_id,
            lease_id="",
            lease_name="",
            project_id="",
            user_id="",
            resource_type=inventory,
            parameters={},
            resources=(),
            ends_at=self._clock.now(),
        )
