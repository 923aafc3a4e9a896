"""Health: asking the cloud at intervals which resources work, and healing the leases on those that do not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from tenure.drivers.contract import CloudDriver, CloudError, parts_of
from tenure.services.healing import Healed, HealingService

LOG = logging.getLogger(__name__)


class HealthCheck:
    """One look at everything. Any number of managers may look at the same time."""

    def __init__(self, healing: HealingService, driver: CloudDriver, inventories: Collection[str]) -> None:
        self._healing = healing
        self._driver = driver
        self._inventories = sorted(inventories)
        self._asked = threading.Event()

    def run(self) -> Healed:
        """Ask the cloud once for each type, take over what it says, and heal; what that came to.

        Heals also where the cloud does not answer: what is known already may be healed by now.
        """
        self._look()
        return self._healing.heal()

    def ask(self) -> None:
        """Have ``run_if_asked`` look: something is said to work again."""
        self._asked.set()

    def run_if_asked(self) -> Healed | None:
        """The same, where it was asked for; and again the next times, until the cloud has answered and all works."""
        if not self._asked.is_set():
            return None
        self._asked.clear()  # first: who asks from now on may know what this look does not see
        settled = False
        try:
            settled = self._look() and not any(self._healing.fails(inventory) for inventory in self._inventories)
            return self._healing.heal()
        finally:
            if not settled:
                self._asked.set()

    def _look(self) -> bool:
        """Take over what the cloud says; whether it has answered."""
        answered = True
        for inventory in self._inventories:
            for region, cloud in parts_of(self._driver, inventory).items():
                known = self._healing.known(inventory, region=region)
                try:
                    healths = cloud.check(inventory, self._healing.registered(inventory, region=region))
                except CloudError as error:
                    LOG.warning("the health of resources will be asked for again: %s", error)
                    answered = False
                else:
                    self._healing.observe(inventory, healths, before=known, region=region)
        return answered
