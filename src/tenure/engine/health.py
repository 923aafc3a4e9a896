"""Health: asking the cloud at intervals which resources work, and healing the leases on those that do not."""

from __future__ import annotations

import logging
from collections.abc import Collection

from tenure.drivers.contract import CloudDriver, CloudError
from tenure.services.healing import Healed, HealingService

LOG = logging.getLogger(__name__)


class HealthCheck:
    """One look at everything. Any number of managers may look at the same time."""

    def __init__(self, healing: HealingService, driver: CloudDriver, inventories: Collection[str]) -> None:
        self._healing = healing
        self._driver = driver
        self._inventories = sorted(inventories)

    def run(self) -> Healed:
        """Ask the cloud once for each type, take over what it says, and heal; what that came to.

        Heals also where the cloud does not answer: what is known already may be healed by now.
        """
        for inventory in self._inventories:
            try:
                healths = self._driver.check(inventory)
            except CloudError as error:
                LOG.warning("the health of resources will be asked for again: %s", error)
                continue
            self._healing.observe(inventory, healths)
        return self._healing.heal()
