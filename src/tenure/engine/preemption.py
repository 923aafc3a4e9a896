"""Making way before a start: servers that use what is reserved until it is wanted are told, and go in time."""

from __future__ import annotations

import logging

from tenure.drivers.contract import CloudDriver, CloudError, Order
from tenure.services.preemption import PreemptionService

LOG = logging.getLogger(__name__)


class Preemption:
    """One look at what starts soon. Any number of managers may look at the same time."""

    def __init__(self, preemption: PreemptionService, driver: CloudDriver) -> None:
        self._preemption = preemption
        self._driver = driver

    def run(self) -> int:
        """Have whoever is in the way of a start told, stopped or removed, as it is time; how many are in the way."""
        found = 0
        approaching: list[Order] = []
        for lease_id, orders, deadline in self._preemption.approaching():
            for order in orders:
                ahead = tuple(approaching)
                approaching.append(order)
                try:
                    preempted = self._driver.make_way(order, deadline=deadline, ahead=ahead)
                except CloudError as error:
                    LOG.warning("making way for lease %s will be tried again: %s", lease_id, error)
                    continue
                self._preemption.tell(lease_id, preempted, deadline=deadline)
                found += len(preempted)
        return found
