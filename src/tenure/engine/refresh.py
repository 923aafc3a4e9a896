"""Regular updates of the resources' capacity and facts from the cloud."""

from __future__ import annotations

import logging
from collections.abc import Collection

from tenure.drivers.contract import CloudDriver, CloudError, drivers_by_region
from tenure.services.resources.healing import HealingService
from tenure.services.resources.in_use import InventoriesInUse
from tenure.services.resources.inventory import InventoryService

LOG = logging.getLogger(__name__)


class Refresh:
    """One pass over all inventories whose resources the cloud lists, which ``listed`` names.

    Any number of managers may run it at the same time.
    """

    def __init__(
        self,
        inventory: InventoryService,
        healing: HealingService,
        driver: CloudDriver,
        inventories: InventoriesInUse,
        listed: Collection[str],
    ) -> None:
        self._inventory = inventory
        self._healing = healing
        self._driver = driver
        self._inventories = inventories
        self._listed = frozenset(listed)

    def run(self) -> int:
        """Store the cloud's current descriptions, and heal leases that lose something by that; return the changes."""
        changed = 0
        for inventory in sorted(self._listed.intersection(self._inventories.names())):
            for region, cloud in drivers_by_region(self._driver, inventory).items():
                try:
                    discovered = cloud.discover(inventory)
                except CloudError as error:
                    LOG.warning("the resources could not be read; they will be read again later: %s", error)
                    continue
                report = self._inventory.sync(inventory, discovered, dry_run=False, region=region)
                for change in report.changes:
                    LOG.info("%s %s: %s", inventory, change.name, ", ".join(change.differences))
                changed += len(report.changes)
        self._healing.heal()
        return changed
