"""Health checks: which resources the cloud reports as working, and healing the leases on the others."""

from __future__ import annotations

import logging
import threading

from tenure.drivers.contract import CloudDriver, CloudError, drivers_by_region
from tenure.services.resources.healing import Healed, HealingService
from tenure.services.resources.in_use import InventoriesInUse

LOG = logging.getLogger(__name__)


class HealthCheck:
    """One pass over all inventories. Any number of managers may run it at the same time."""

    def __init__(self, healing: HealingService, driver: CloudDriver, inventories: InventoriesInUse) -> None:
        self._healing = healing
        self._driver = driver
        self._inventories = inventories
        self._asked = threading.Event()

    def run(self) -> Healed:
        """Store the health that the cloud reports for each type, and heal leases; return what was healed.

        It also heals if the cloud does not answer: a failure known from before may have become curable.
        """
        self._read_health()
        return self._healing.heal()

    def ask(self) -> None:
        """Request a pass by ``run_if_asked``: some resource is reported to work again."""
        self._asked.set()

    def run_if_asked(self) -> Healed | None:
        """Run a pass if requested; repeat it at later calls until the cloud has answered and all resources work."""
        if not self._asked.is_set():
            return None
        self._asked.clear()  # first: a later request may be about something that this pass does not see
        settled = False
        try:
            settled = self._read_health() and not any(map(self._healing.fails, self._inventories.names()))
            return self._healing.heal()
        finally:
            if not settled:
                self._asked.set()

    def _read_health(self) -> bool:
        """Store the health that the cloud reports; return whether it has answered."""
        answered = True
        for inventory in self._inventories.names():
            for region, cloud in drivers_by_region(self._driver, inventory).items():
                known = self._healing.known(inventory, region=region)
                try:
                    healths = cloud.check(inventory, self._healing.registered(inventory, region=region))
                except CloudError as error:
                    LOG.warning("the health of resources could not be read; it will be read again later: %s", error)
                    answered = False
                else:
                    self._healing.observe(inventory, healths, before=known, region=region)
        return answered
