"""The base class of the drivers of resource types that OpenStack clouds have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import ClassVar

from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudRefused, Command, Preempted, Progress
from tenure.drivers.openstack.aggregates import Aggregates
from tenure.drivers.openstack.compute import Compute, Server
from tenure.drivers.openstack.hosts import HOST
from tenure.drivers.openstack.image import saved
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.preemption import Preemption
from tenure.drivers.openstack.requests import Calls, name_of
from tenure.drivers.type_driver import TypeDriver, installed_type_drivers


@dataclass(frozen=True)
class DriverCall:
    """What a driver call in an OpenStack cloud works with."""

    calls: Calls
    options: OpenStackOptions
    now: datetime
    open_compute: Callable[[Calls], Compute]

    @cached_property
    def compute(self) -> Compute:
        return self.open_compute(self.calls)


class OpenStackTypeDriver(TypeDriver):
    """What an OpenStack cloud does for a resource type, during one driver call.

    An entry point that loads such a class belongs to the driver of OpenStack clouds, which has it in every region and
    calls it with a ``DriverCall``.
    """

    #: Whether the action before the end is refused if a single server has no image, since it is kept without one.
    saves_all: ClassVar[bool] = False
    #: The services without which nothing of the type can be handed over, by their types in Keystone's catalogue.
    services: ClassVar[tuple[str, ...]] = ("compute", "placement")

    def __init__(self, call: DriverCall) -> None:
        self._call = call
        self._calls = call.calls
        self._options = call.options
        self._now = call.now

    @property
    def _compute(self) -> Compute:
        return self._call.compute

    @cached_property
    def _aggregates(self) -> Aggregates:
        return Aggregates(self._compute, self._options)

    def missing_services(self) -> list[str]:
        return [f"{name_of(service)} ({service})" for service in self.services if not self._calls.has(service)]

    def servers_of(self, command: Command) -> list[Server]:
        """Return the servers of which images are made before the end."""
        return []

    def before_end(self, command: Command, action: str) -> Progress:
        if action not in {"snapshot", "last_snapshot"}:
            raise CloudRefused(Reason(f"This cloud cannot do {action!r} before the end."))
        servers, prefix = self.servers_of(command), self._options.image_prefix
        return saved(self._calls, command, servers, prefix=prefix, now=self._now, all_of_them=self.saves_all)

    def _cleared(
        self, command: Command, deadline: datetime, ahead: Iterable[Command], *, whole: bool
    ) -> list[Preempted]:
        """Make way on compute hosts; behaves as ``make_way``."""
        shared = [earlier for earlier in ahead if earlier.resource_type != HOST]
        preemption = Preemption(self._calls, self._compute, self._options, self._now, shared)
        return preemption.make_way(command, deadline, whole=whole)


@cache
def openstack_type_drivers() -> Mapping[str, type[OpenStackTypeDriver]]:
    """Return the installed type drivers of OpenStack clouds, by resource type."""
    return {name: loaded for name, loaded in installed_type_drivers().items() if is_in_openstack(loaded)}


def is_in_openstack(loaded: object) -> bool:
    """Whether what an entry point has loaded is a type driver of OpenStack clouds."""
    return isinstance(loaded, type) and issubclass(loaded, OpenStackTypeDriver)
