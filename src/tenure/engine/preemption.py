"""Preemption: servers that use reserved hosts until the lease starts are warned, and removed in time."""

from __future__ import annotations

import logging

from tenure.drivers.contract import CloudDriver, CloudError, Command
from tenure.services.execution.preemption import PreemptionService

LOG = logging.getLogger(__name__)


class Preemption:
    """One pass over leases that start soon. Any number of managers may run it at the same time."""

    def __init__(self, preemption: PreemptionService, driver: CloudDriver) -> None:
        self._preemption = preemption
        self._driver = driver

    def run(self) -> int:
        """Warn, stop or remove servers that are in the way of a start, as scheduled; return their number."""
        count = 0
        approaching: list[Command] = []
        for lease_id, commands, deadline in self._preemption.approaching():
            for command in commands:
                ahead = tuple(approaching)
                approaching.append(command)
                try:
                    preempted = self._driver.make_way(command, deadline=deadline, ahead=ahead)
                except CloudError as error:
                    LOG.warning("preempting servers for lease %s will be tried again: %s", lease_id, error)
                    continue
                self._preemption.notify(lease_id, preempted, deadline=deadline)
                count += len(preempted)
        return count
