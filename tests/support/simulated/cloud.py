"""The simulated cloud with a door to what is behind the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from os import PathLike
from typing import Self

from tenure.clock import Clock
from tenure.drivers import simulated
from tenure.drivers.openstack.pci_aliases import PciAlias
from tenure.drivers.simulated import IN_MEMORY
from tests.support.simulated.world import World


class SimulatedCloud(simulated.SimulatedCloud):
    """The product's cloud; ``world`` shows what is in it, and changes it as other users and operators do."""

    @classmethod
    def create(
        cls,
        path: str | PathLike[str] = IN_MEMORY,
        *,
        hosts: int,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        pci_aliases: Sequence[PciAlias] = (),
    ) -> Self:
        """Return the cloud of that file, with a fleet of at least so many hosts."""
        cloud = cls(path, clock=clock, sleep=sleep, pci_aliases=pci_aliases)
        cloud.world.ensure_hosts(hosts)
        return cloud

    @cached_property
    def world(self) -> World:
        return World(self.openstack)
