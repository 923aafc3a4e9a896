"""A cloud without a cloud: hosts, their pool and groups, servers and images, in one file.

It is what ``tenure-standalone`` reserves from, and what every scenario test runs on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from os import PathLike
from typing import Protocol

from tenure.clock import Clock, SystemClock
from tenure.domain.actor import Actor
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
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
from tenure.drivers.reserved_servers import SERVER
from tenure.drivers.simulated.addresses import FLOATING_IP, Addresses
from tenure.drivers.simulated.drift import drift_of_addresses, drift_of_hosts, drift_of_instances, drift_of_volumes
from tenure.drivers.simulated.effects import Effects, refuse_broken_trust, servers_of
from tenure.drivers.simulated.faults import Call, Fault, Faults, Scope
from tenure.drivers.simulated.flavors import facts_of_flavor
from tenure.drivers.simulated.hosts import HOST, Hosts
from tenure.drivers.simulated.instances import Instances
from tenure.drivers.simulated.places import SERVERS
from tenure.drivers.simulated.preemption import Preemption
from tenure.drivers.simulated.servers import Servers, booted_since, drift_of_servers, facts_of_server, its_own_servers
from tenure.drivers.simulated.state import IN_MEMORY, EffectKind, StateFile
from tenure.drivers.simulated.volumes import VOLUME, Volumes
from tenure.drivers.simulated.wanted import FLAVOR, INSTANCE
from tenure.drivers.simulated.world import World

#: What lies on no host, so that no server is in its way.
_ELSEWHERE = frozenset({FLOATING_IP, VOLUME})


class _Kind(Protocol):
    """What the verbs do for the reservations of a type."""

    def prepare(self, call: Call, order: Order) -> Progress: ...

    def start(self, call: Call, order: Order) -> Progress: ...

    def end(self, call: Call, order: Order) -> Progress: ...


class SimulatedCloud:
    """A ``CloudDriver`` for hosts, instances, addresses and volumes.

    ``world`` is the cloud behind it, for looking and for meddling.

    Each effect is a transaction of its own, as each is a request of its own to a real cloud: a call that is
    killed in the middle leaves some of its effects, and the next call of a verb completes them. Safe for any
    number of threads; any number of processes may open the same file.

    ``ordinal`` tells several clouds apart that are regions of one service, from 0 on: no two have servers of one id.
    """

    def __init__(
        self,
        path: str | PathLike[str] = IN_MEMORY,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        region: str = "",
        longest_call: timedelta = timedelta(seconds=30),
        ordinal: int = 0,
    ) -> None:
        clock = clock or SystemClock()
        self.longest_call = longest_call
        self._state = StateFile(path, clock)
        self._faults = Faults(self._state, clock, sleep)
        effects = Effects(self._state)
        self._effects = effects
        self._preemption = Preemption(self._state, effects, clock)
        self._hosts = Hosts(self._state, effects, self._preemption, region)
        self._instances = Instances(self._state, effects, self._preemption)
        self._servers = Servers(self._state, effects, self._preemption)
        self._addresses = Addresses(self._state, region)
        self._volumes = Volumes(self._state, region)
        self._kinds: dict[str, _Kind] = {
            HOST: self._hosts,
            INSTANCE: self._instances,
            FLAVOR: self._instances,
            SERVER: self._servers,
            FLOATING_IP: self._addresses,
            VOLUME: self._volumes,
        }
        self._inventories: dict[str, Hosts | Addresses | Volumes] = {
            HOST: self._hosts,
            FLOATING_IP: self._addresses,
            VOLUME: self._volumes,
        }
        self.world = World(self._state)
        if ordinal:
            self.world.number_servers_from(ordinal * SERVERS + 1)

    @classmethod
    def create(
        cls,
        path: str | PathLike[str] = IN_MEMORY,
        *,
        hosts: int,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        ordinal: int = 0,
    ) -> SimulatedCloud:
        """The cloud of that file, with a fleet of at least so many hosts."""
        cloud = cls(path, clock=clock, sleep=sleep, ordinal=ordinal)
        cloud.world.ensure_hosts(hosts)
        return cloud

    def close(self) -> None:
        self._state.close()

    def __enter__(self) -> SimulatedCloud:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Faults

    def inject(self, fault: Fault) -> int:
        """Let something go wrong; the number that is returned clears it."""
        return self._faults.inject(fault)

    def clear_faults(self, fault_id: int | None = None) -> None:
        """Clear that fault, or all of them; calls that it held go on."""
        self._faults.clear(fault_id)

    def faults(self) -> dict[int, Fault]:
        return self._faults.all()

    def wait_until_blocked(self, calls: int = 1, *, timeout_seconds: float = 10.0) -> bool:
        """Wait until so many calls of this process are held by faults; False when that did not come."""
        return self._faults.wait_until_blocked(calls, timeout_seconds)

    # The verbs of a driver

    def discover(self, resource_type: str) -> list[DiscoveredResource]:
        """All hosts. Addresses are looked up one by one: a network may have more than anybody can list."""
        with self._faults.call(Scope("discover")):
            inventory = self._inventories.get(resource_type)
            return [] if inventory is None else inventory.discover()

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        with self._faults.call(Scope("look_up", hosts=frozenset({reference}))):
            if resource_type not in self._inventories:
                raise CloudNotFound(Reason(f"The simulated cloud has no {resource_type}."))
            return self._inventories[resource_type].look_up(reference)

    def fetch(self, kind: str, reference: str, actor: Actor) -> Mapping[str, object]:
        with self._faults.call(Scope("fetch", hosts=frozenset({reference}))):
            if kind == "volume_type":
                return self._volumes.facts_of_type(reference)
            if kind not in {"flavor", "server"}:
                raise CloudNotFound(Reason(f"The simulated cloud has no {kind} {reference}."))
            with self._state.look() as tx:
                if kind == "server":
                    return facts_of_server(tx, reference, actor.project_id)
                return facts_of_flavor(tx, reference, actor.project_id)

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:
        with self._resource_call("ensure_registered", resource_type, resource) as call:
            self._inventories[resource_type].register(call, resource)

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:
        with self._resource_call("ensure_unregistered", resource_type, resource) as call:
            self._inventories[resource_type].unregister(call, resource)

    def ensure_prepared(self, order: Order) -> Progress:
        with self._order_call("ensure_prepared", order) as call:
            return self._kinds[order.resource_type].prepare(call, order)

    def ensure_started(self, order: Order) -> Progress:
        with self._order_call("ensure_started", order) as call:
            return self._kinds[order.resource_type].start(call, order)

    def make_way(self, order: Order, *, deadline: datetime, ahead: Iterable[Order] = ()) -> Sequence[Preempted]:
        with self._order_call("make_way", order) as call:
            return () if order.resource_type in _ELSEWHERE else self._preemption.make_way(call, order, deadline, ahead)

    def before_end(self, order: Order, action: str) -> Progress:
        with self._order_call("before_end", order) as call:
            if action not in {"snapshot", "last_snapshot"} or order.resource_type in _ELSEWHERE:
                raise CloudRefused(Reason(f"The simulated cloud cannot do {action!r} before the end."))
            with self._state.look() as tx:
                is_one = order.resource_type == SERVER
                servers = its_own_servers(tx, order) if is_one else servers_of(tx, order.reservation_id)
                refuse_broken_trust(tx, order)
            if is_one and any(server["host_id"] is None for server in servers):
                raise CloudRefused(Reason("No image can be made of a server that is shelved; it is kept."))
            for server in servers:
                if not server["vanishing"]:
                    self._effects.ensure_image(call, order, server)
            if unfinished := call.slowed("Images are being saved."):
                return unfinished
            with self._state.change() as tx:
                tx.execute(
                    "UPDATE image SET status = 'active' WHERE reservation_id = ? AND status = 'saving'",
                    (order.reservation_id,),
                )
            return DONE

    def ensure_ended(self, order: Order) -> Progress:
        with self._order_call("ensure_ended", order) as call:
            return self._kinds[order.resource_type].end(call, order)

    def remaining(self, resource_type: str, orders: Iterable[Order]) -> Mapping[str, int]:
        with self._faults.call(Scope("remaining")):
            return self._volumes.remaining(orders) if resource_type == VOLUME else {}

    def servers(self, since: datetime) -> Iterable[BootedServer]:
        with self._faults.call(Scope("servers")), self._state.look() as tx:
            return booted_since(tx, since)

    def held(self, resource_type: str) -> Iterable[str]:
        with self._faults.call(Scope("held")):
            if resource_type not in self._inventories:
                return []
            with self._state.look() as tx:
                found = self._inventories[resource_type].held(tx)
                if resource_type == HOST:
                    found |= self._instances.held(tx) | self._servers.held(tx)
            return sorted(found)

    def check(self, resource_type: str, registered: Iterable[ResourceRef] = ()) -> Mapping[str, Health]:
        with self._faults.call(Scope("check")):
            if resource_type == FLOATING_IP:
                return self._addresses.check(registered)
            if resource_type == VOLUME:
                return self._volumes.check(registered)
            return self._hosts.check() if resource_type == HOST else {}

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        with self._faults.call(Scope("drift")):
            if resource_type not in self._inventories:
                return []
            kinds: dict[str, list[Order]] = {}
            for order in orders:
                kinds.setdefault(order.resource_type, []).append(order)
            with self._state.look() as tx:
                if resource_type == FLOATING_IP:
                    return list(drift_of_addresses(tx, kinds.get(FLOATING_IP, ()), pooled))
                if resource_type == VOLUME:
                    return list(drift_of_volumes(tx, kinds.get(VOLUME, ())))
                instances = [*kinds.get(INSTANCE, ()), *kinds.get(FLAVOR, ())]
                return [
                    *drift_of_hosts(tx, kinds.get(HOST, ()), pooled),
                    *drift_of_instances(tx, instances),
                    *drift_of_servers(tx, kinds.get(SERVER, ())),
                ]

    def delegate(self, actor: Actor) -> str:
        """A trust of the caller. No token is asked for: this cloud takes everybody at his word."""
        with self._faults.call(Scope("delegate")) as call:
            trust_id = uuid.uuid4().hex
            with self._state.change() as tx:
                tx.execute("INSERT INTO trust VALUES (?, ?, ?)", (trust_id, actor.user_id, actor.project_id))
                self._state.record(tx, "delegate", EffectKind.TRUST_MADE, subject=trust_id)
            call.effect_happened()
            return trust_id

    def revoke(self, trust_id: str) -> None:
        with self._faults.call(Scope("revoke")) as call:
            with self._state.change() as tx:
                revoked = tx.execute("DELETE FROM trust WHERE id = ?", (trust_id,)).rowcount
                if revoked:
                    self._state.record(tx, "revoke", EffectKind.TRUST_REVOKED, subject=trust_id)
            if revoked:
                call.effect_happened()

    # What a call is about

    @contextmanager
    def _order_call(self, verb: str, order: Order) -> Iterator[Call]:
        if order.resource_type not in self._kinds:
            raise CloudRefused(Reason(f"The simulated cloud has no {order.resource_type}."))
        hosts = frozenset(name for resource in order.resources for name in (resource.external_id, resource.name))
        with self._faults.call(Scope(verb, order.reservation_id, order.lease_name, hosts)) as call:
            yield call

    @contextmanager
    def _resource_call(self, verb: str, resource_type: str, resource: ResourceRef) -> Iterator[Call]:
        if resource_type not in self._inventories:
            raise CloudRefused(Reason(f"The simulated cloud has no {resource_type}."))
        hosts = frozenset({resource.external_id, resource.name})
        with self._faults.call(Scope(verb, hosts=hosts)) as call:
            yield call
