"""Asking the cloud at intervals how large its resources are, and what they have."""

from __future__ import annotations

import logging
from collections.abc import Collection

from tenure.drivers.contract import CloudDriver, CloudError, parts_of
from tenure.services.healing import HealingService
from tenure.services.inventory import InventoryService

LOG = logging.getLogger(__name__)


class Refresh:
    """One look at every inventory. Any number of managers may look at the same time."""

    def __init__(
        self,
        inventory: InventoryService,
        healing: HealingService,
        driver: CloudDriver,
        inventories: Collection[str],
    ) -> None:
        self._inventory = inventory
        self._healing = healing
        self._driver = driver
        self._inventories = sorted(inventories)

    def run(self) -> int:
        """Take over what the cloud says by now, and heal the leases that this leaves without; how much changed."""
        changed = 0
        for inventory in self._inventories:
            for region, cloud in parts_of(self._driver, inventory).items():
                try:
                    found = cloud.discover(inventory)
                except CloudError as error:
                    LOG.warning("what resources have will be asked for again: %s", error)
                    continue
                report = self._inventory.sync(inventory, found, dry_run=False, region=region)
                for change in report.changes:
                    LOG.info("%s %s: %s", inventory, change.name, ", ".join(change.what))
                changed += len(report.changes)
        self._healing.heal()
        return changed
