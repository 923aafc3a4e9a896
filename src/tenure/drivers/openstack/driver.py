"""The driver of OpenStack clouds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from tenure.clock import Clock, SystemClock
from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.drivers import reserved_servers
from tenure.drivers.contract import (
    DONE,
    BootedServer,
    CloudNotFound,
    CloudRefused,
    Drift,
    Health,
    Order,
    Preempted,
    Progress,
    ResourceRef,
)
from tenure.drivers.openstack import addresses, fleet, servers, volumes
from tenure.drivers.openstack.compute import Compute, Server, shows_hints
from tenure.drivers.openstack.flavors import Flavors
from tenure.drivers.openstack.hosts import Hosts
from tenure.drivers.openstack.identity import Identity, owner_of
from tenure.drivers.openstack.image import Images, of_project
from tenure.drivers.openstack.instance_drift import InstanceDrift
from tenure.drivers.openstack.instances import Instances
from tenure.drivers.openstack.layout import Layout
from tenure.drivers.openstack.network import Network
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.pages import PageStarts
from tenure.drivers.openstack.placement import Placement
from tenure.drivers.openstack.preemption import Preemption
from tenure.drivers.openstack.requests import Calls, Transport

#: How long Nova's version is cached: it may be upgraded while the driver runs.
_VERSION_CACHED: Final = timedelta(minutes=5)
#: The interval of checking whether images are ready.
_IMAGES: Final = timedelta(seconds=5)


class Inventory(Protocol):
    """The resources of one type; its methods behave as the driver's methods of the same purpose."""

    def discover(self) -> list[DiscoveredResource]: ...

    def look_up(self, reference: str) -> DiscoveredResource: ...

    def register(self, resource: ResourceRef) -> None: ...

    def unregister(self, resource: ResourceRef) -> None: ...

    def held(self) -> list[str]: ...

    def check(self, registered: Iterable[ResourceRef]) -> dict[str, Health]: ...

    def drift(self, orders: Sequence[Order], pooled: Sequence[ResourceRef]) -> Iterator[Drift]: ...


class Enforcement(Protocol):
    """The cloud side of reservations of one type; its methods behave as the driver's methods of the same purpose."""

    def prepare(self, order: Order) -> Progress: ...

    def hand_over(self, order: Order) -> Progress: ...

    def servers_of(self, order: Order) -> list[Server]: ...

    def take_back(self, order: Order) -> Progress: ...


#: The methods that read all hosts, and are called without a claim.
_LONG: Final = frozenset({"discover", "check", "drift"})


class OpenStackCloud:
    """A ``CloudDriver`` for the hosts of an OpenStack cloud, whole or in parts, its floating IPs and volumes.

    It remembers only Nova's version and page starts. Threads share the transport. A call takes no longer than
    ``verb_timeout``: if it is not done by then, it raises ``CloudBusy``, and the next call completes it.

    ``request_id`` returns the id under which services log the requests; it is called once for each driver call, in the
    calling thread. Closing the cloud closes ``transport``.
    """

    def __init__(
        self,
        options: OpenStackOptions,
        transport: Transport,
        *,
        request_id: Callable[[], str | None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self.longest_call = options.verb_timeout + timedelta(seconds=1)
        self._options = options
        self._transport = transport
        self._request_id = request_id
        self._clock = clock or SystemClock()
        self._tells_hints = False
        self._starts = PageStarts()
        self._ask_again_at = 0.0

    def close(self) -> None:
        """Send no more requests. Calls that wait for an answer raise ``CloudBusy``."""
        self._transport.close()

    def __enter__(self) -> OpenStackCloud:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inventories

    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        inventory = self._inventory("discover", resource_type)
        return inventory.discover() if inventory is not None else []

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        inventory = self._inventory("look_up", resource_type)
        if inventory is None:
            raise CloudNotFound(Reason(f"This cloud has no {resource_type}."))
        return inventory.look_up(reference)

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        if kind == "volume_type":
            return self._volumes(self._begin("fetch")).facts_of_type(reference, actor.project_id)
        if kind == "server":
            return self._facts_of_server(reference, actor)
        if kind != "flavor":
            raise CloudNotFound(Reason(f"This cloud has no {kind} {reference}."))
        found = Flavors(self._begin("fetch")).seen_by(actor, reference)
        names = ("id", "name", "vcpus", "ram", "swap", "disk", "ephemeral")
        return {**{name: getattr(found, name) for name in names}, "extra_specs": dict(found.extra_specs)}

    def remaining(self, resource_type: str, orders: Iterable[Order]) -> Mapping[str, int]:
        return self._volumes(self._begin("remaining")).remaining(orders) if resource_type == volumes.VOLUME else {}

    def _facts_of_server(self, server_id: str, actor: Actor) -> Mapping[str, object]:
        found = self._compute(self._begin("fetch")).described_server(server_id)
        if found is None or found["tenant_id"] != actor.project_id:
            raise CloudNotFound(Reason(f"Server {server_id[:64]} could not be found."))
        flavor = found["flavor"]
        sizes = {name: int(flavor.get(name) or 0) for name in ("vcpus", "ram", "disk", "swap", "ephemeral")}
        name = flavor.get("original_name")
        specs = dict(flavor.get("extra_specs") or {})
        return {
            "id": found["id"],
            "name": found["name"],
            "project_id": found["tenant_id"],
            "flavor": {"id": name, "name": name, **sizes, "extra_specs": specs},
        }

    def servers(self, since: datetime) -> Iterable[BootedServer]:
        compute = self._compute(self._begin("servers"))
        return servers.booted_since(compute, Layout(compute.aggregates(), self._options), since)

    def held(self, resource_type: str) -> Iterable[str]:
        inventory = self._inventory("held", resource_type)
        return inventory.held() if inventory is not None else []

    def check(self, resource_type: str, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        inventory = self._inventory("check", resource_type)
        return inventory.check(registered) if inventory is not None else {}

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        inventory = self._inventory("drift", resource_type)
        return list(inventory.drift(list(orders), list(pooled))) if inventory is not None else []

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:
        inventory = self._inventory("ensure_registered", resource_type)
        if inventory is None:
            raise _unknown_type(resource_type)
        inventory.register(resource)

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:
        inventory = self._inventory("ensure_unregistered", resource_type)
        if inventory is None:
            raise _unknown_type(resource_type)
        inventory.unregister(resource)

    # Reservations

    def ensure_prepared(self, order: Order) -> Progress:
        return self._enforcement(self._begin("ensure_prepared"), order.resource_type).prepare(order)

    def ensure_started(self, order: Order) -> Progress:
        return self._enforcement(self._begin("ensure_started"), order.resource_type).hand_over(order)

    def make_way(self, order: Order, *, deadline: datetime, ahead: Iterable[Order] = ()) -> Sequence[Preempted]:
        calls = self._begin("make_way")
        match order.resource_type:
            case fleet.HOST | "virtual:instance" | "flavor:instance" | "virtual:server":
                parts = [earlier for earlier in ahead if earlier.resource_type != fleet.HOST]
                preemption = Preemption(calls, self._compute(calls), self._options, self._clock.now(), parts)
                return preemption.make_way(order, deadline, whole=order.resource_type == fleet.HOST)
            case _:
                return ()

    def before_end(self, order: Order, action: str) -> Progress:
        calls = self._begin("before_end")
        enforcement = self._enforcement(calls, order.resource_type)
        if action not in {"snapshot", "last_snapshot"}:
            raise CloudRefused(Reason(f"This cloud cannot do {action!r} before the end."))
        servers_of = enforcement.servers_of(order)
        found = of_project(servers_of, order.project_id)
        is_one = order.resource_type == reserved_servers.SERVER
        if is_one and len(found) < len(servers_of):
            states = ", ".join(sorted({server.status for server in servers_of}))
            raise CloudRefused(Reason(f"No image can be made of a server in {states}; it is kept."))
        if not found:
            return DONE
        owner = owner_of(calls, order, what="Images")
        images = Images(calls, owner, self._clock.now()).ensure_of(
            found, order.reservation_id, self._options.image_prefix
        )
        if images.waiting_for:
            return Progress(False, _IMAGES, Reason(f"Images are being saved of {', '.join(images.waiting_for[:10])}."))
        if is_one and images.without:
            raise CloudRefused(Reason(f"No image came to be of {', '.join(images.without)}; it is kept."))
        return DONE

    def ensure_ended(self, order: Order) -> Progress:
        return self._enforcement(self._begin("ensure_ended"), order.resource_type).take_back(order)

    # Trusts

    def delegate(self, actor: Actor) -> str:
        return Identity(self._begin("delegate")).make_trust(actor)

    def revoke(self, trust_id: str) -> None:
        Identity(self._begin("revoke")).delete_trust(trust_id)

    # Dispatch by resource type

    def _inventory(self, verb: str, resource_type: str) -> Inventory | None:
        match resource_type:
            case fleet.HOST:
                calls = self._begin(verb)
                compute = self._compute(calls)
                now = self._clock.now()
                drift = InstanceDrift(calls, compute, self._options, now)
                return fleet.Fleet(compute, Placement(calls), self._hosts(calls), drift, self._options, now)
            case addresses.ADDRESS:
                return self._addresses(self._begin(verb))
            case volumes.VOLUME:
                return self._volumes(self._begin(verb))
            case _:
                return None

    def _enforcement(self, calls: Calls, resource_type: str) -> Enforcement:
        match resource_type:
            case fleet.HOST:
                return self._hosts(calls)
            case "virtual:instance" | "flavor:instance":
                return self._instances(calls)
            case reserved_servers.SERVER:
                return servers.Servers(calls, self._compute(calls), self._options, self._clock.now())
            case addresses.ADDRESS:
                return self._addresses(calls)
            case volumes.VOLUME:
                return self._volumes(calls)
            case _:
                raise _unknown_type(resource_type)

    def _hosts(self, calls: Calls) -> Hosts:
        return Hosts(self._compute(calls), Placement(calls), self._options, self._clock.now())

    def _instances(self, calls: Calls) -> Instances:
        return Instances(calls, self._compute(calls), self._options, self._clock.now())

    def _addresses(self, calls: Calls) -> addresses.Addresses:
        return addresses.Addresses(Network(calls), self._options)

    def _volumes(self, calls: Calls) -> volumes.Volumes:
        return volumes.Volumes(calls, self._options)

    def _begin(self, verb: str) -> Calls:
        timeout, request_id = self._options.verb_timeout, self._request_id()
        return Calls(self._transport, verb, timeout, request_id, is_long=verb in _LONG)

    def _compute(self, calls: Calls) -> Compute:
        now = time.monotonic()
        if now >= self._ask_again_at:
            self._tells_hints = shows_hints(calls)
            self._ask_again_at = now + _VERSION_CACHED.total_seconds()
        return Compute(calls, self._tells_hints, self._starts)


def _unknown_type(resource_type: str) -> CloudRefused:
    return CloudRefused(Reason(f"This cloud has no {resource_type}."))
