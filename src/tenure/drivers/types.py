"""The driver of a cloud together with the drivers that third-party resource types bring along."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from tenure.domain.actor import Actor
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    BootedServer,
    CloudDriver,
    Drift,
    Health,
    Order,
    Preempted,
    Progress,
    ResourceRef,
    parts_of,
    trust_in,
)


class TypeDriver(CloudDriver, Protocol):
    """A driver for the resources of an inventory; ``PlainDriver`` is a base class for it."""

    #: The kinds of objects that ``fetch`` knows.
    kinds: frozenset[str]


class TypeRouter:
    """A ``CloudDriver`` that forwards each call to the driver of the resource type.

    ``own`` are the drivers of single types, by the names of these types and of their inventories; ``cloud`` drives all
    other types.
    """

    def __init__(self, cloud: CloudDriver, own: Mapping[str, TypeDriver]) -> None:
        self._cloud = cloud
        self._own = dict(own)
        self.longest_call: timedelta = max(driver.longest_call for driver in (cloud, *own.values()))
        self._by_kind = {kind: driver for driver in own.values() for kind in driver.kinds}

    def driver_of(self, resource_type: str) -> CloudDriver:
        """Return the driver of a resource type, or of an inventory."""
        return self._own.get(resource_type, self._cloud)

    def parts(self, resource_type: str) -> Mapping[str | None, CloudDriver]:
        return parts_of(self.driver_of(resource_type), resource_type)

    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        return self.driver_of(resource_type).discover(resource_type)

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        return self.driver_of(resource_type).look_up(resource_type, reference)

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        return self._by_kind.get(kind, self._cloud).fetch(kind, reference, actor)

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:
        self.driver_of(resource_type).ensure_registered(resource_type, resource)

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:
        self.driver_of(resource_type).ensure_unregistered(resource_type, resource)

    def ensure_prepared(self, order: Order) -> Progress:
        return self.driver_of(order.resource_type).ensure_prepared(order)

    def ensure_started(self, order: Order) -> Progress:
        return self.driver_of(order.resource_type).ensure_started(order)

    def make_way(self, order: Order, *, deadline: datetime, ahead: Iterable[Order] = ()) -> Sequence[Preempted]:
        driver = self.driver_of(order.resource_type)
        ahead = [earlier for earlier in ahead if self.driver_of(earlier.resource_type) is driver]
        return driver.make_way(order, deadline=deadline, ahead=ahead)

    def before_end(self, order: Order, action: str) -> Progress:
        return self.driver_of(order.resource_type).before_end(order, action)

    def ensure_ended(self, order: Order) -> Progress:
        return self.driver_of(order.resource_type).ensure_ended(order)

    def remaining(self, resource_type: str, orders: Iterable[Order]) -> Mapping[str, int]:
        return self.driver_of(resource_type).remaining(resource_type, orders)

    def servers(self, since: datetime) -> Iterable[BootedServer]:
        return self._cloud.servers(since)

    def held(self, resource_type: str) -> Iterable[str]:
        return self.driver_of(resource_type).held(resource_type)

    def check(self, resource_type: str, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        return self.driver_of(resource_type).check(resource_type, registered)

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        return self.driver_of(resource_type).drift(resource_type, orders, pooled)

    def delegate(self, actor: Actor) -> str:
        return self._cloud.delegate(actor)

    def delegate_in(self, actor: Actor, regions: Collection[str]) -> str:
        return trust_in(self._cloud, actor, regions)

    def revoke(self, trust_id: str) -> None:
        self._cloud.revoke(trust_id)
