"""A cloud without a cloud: hosts, their pool and groups, servers and images, in one file.

It is what ``tenure-standalone`` reserves from, and what every scenario test runs on.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from os import PathLike
from typing import Final

from tenure.clock import Clock, SystemClock
from tenure.domain.actor import Actor
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Drift,
    Health,
    Order,
    Progress,
    ResourceMissing,
    ResourceRef,
)
from tenure.drivers.simulated.drift import drift_of
from tenure.drivers.simulated.effects import Effects, host_of, hosts_held, ids_of, refuse_occupied, servers_of
from tenure.drivers.simulated.faults import Call, Fault, Faults, Scope
from tenure.drivers.simulated.fleet import capacity_of
from tenure.drivers.simulated.state import IN_MEMORY, EffectKind, StateFile
from tenure.drivers.simulated.world import HostHealth, World, find_host

#: The one resource type that the simulated cloud has.
HOST: Final = "physical:host"
_SICK: Final = {
    HostHealth.DOWN: "The hypervisor is down.",
    HostHealth.DISABLED: "The compute service is disabled.",
}


class SimulatedCloud:
    """A ``CloudDriver`` for hosts. ``world`` is the cloud behind it, for looking and for meddling.

    Each effect is a transaction of its own, as each is a request of its own to a real cloud: a call that is
    killed in the middle leaves some of its effects, and the next call of a verb completes them. Safe for any
    number of threads; any number of processes may open the same file.
    """

    def __init__(
        self,
        path: str | PathLike[str] = IN_MEMORY,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        region: str = "",
        longest_call: timedelta = timedelta(seconds=30),
    ) -> None:
        clock = clock or SystemClock()
        self.longest_call = longest_call
        self._region = region
        self._state = StateFile(path, clock)
        self._faults = Faults(self._state, clock, sleep)
        self._effects = Effects(self._state)
        self.world = World(self._state)

    @classmethod
    def create(
        cls,
        path: str | PathLike[str] = IN_MEMORY,
        *,
        hosts: int,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> SimulatedCloud:
        """The cloud of that file, with a fleet of at least so many hosts."""
        cloud = cls(path, clock=clock, sleep=sleep)
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
        with self._faults.call(Scope("discover")):
            if resource_type != HOST:
                return []
            with self._state.look() as tx:
                rows = tx.execute("SELECT * FROM host ORDER BY CAST(id AS TEXT)").fetchall()
            return [self._discovered(row) for row in rows]

    def look_up(self, resource_type: str, reference: str) -> DiscoveredResource:
        with self._faults.call(Scope("look_up", hosts=frozenset({reference}))):
            if resource_type != HOST:
                raise CloudNotFound(f"The simulated cloud has no {resource_type}.")
            with self._state.look() as tx:
                return self._discovered(find_host(tx, reference))

    def ensure_registered(self, resource_type: str, resource: ResourceRef) -> None:
        with self._host_call("ensure_registered", resource_type, resource) as call:
            with self._state.change() as tx:
                host = host_of(tx, resource)
                free = not host["pooled"] and host["reservation_id"] is None
                if free:
                    refuse_occupied(tx, [host], None)
                    tx.execute("UPDATE host SET pooled = 1 WHERE id = ?", (host["id"],))
                    self._state.record(tx, "ensure_registered", EffectKind.HOST_POOLED, host=host["id"])
            if free:
                call.effect_happened()

    def ensure_unregistered(self, resource_type: str, resource: ResourceRef) -> None:
        with self._host_call("ensure_unregistered", resource_type, resource) as call:
            with self._state.change() as tx:
                try:
                    host = host_of(tx, resource)
                except CloudNotFound:
                    return
                if host["reservation_id"] is not None:
                    raise CloudBusy(f"{host['name']} is still held by reservation {host['reservation_id']}.")
                pooled = bool(host["pooled"])
                if pooled:
                    refuse_occupied(tx, [host], None)
                    tx.execute("UPDATE host SET pooled = 0 WHERE id = ?", (host["id"],))
                    self._state.record(tx, "ensure_unregistered", EffectKind.HOST_UNPOOLED, host=host["id"])
            if pooled:
                call.effect_happened()

    def ensure_prepared(self, order: Order) -> None:
        with self._order_call("ensure_prepared", order):
            """Nothing of a host reservation is seen before its start."""

    def ensure_started(self, order: Order) -> Progress:
        with self._order_call("ensure_started", order) as call:
            hosts: list[sqlite3.Row] = []
            missing: dict[str, str] = {}
            with self._state.look() as tx:
                for resource in order.resources:
                    try:
                        hosts.append(host_of(tx, resource))
                    except CloudNotFound as error:
                        missing[resource.external_id] = str(error)
                refuse_occupied(tx, hosts, order.reservation_id)
                returning = ids_of(tx, order.returning)
            # What the reservation gives up goes first: of two that trade hosts, neither then waits for the
            # other. What is not known may come back under another id, so it is not taken for given up.
            keep = {host["id"] for host in hosts}
            lingering = self._effects.return_surplus(call, order, keep, only=returning if missing else None)
            self._effects.take_all(call, order, hosts)
            if missing:
                raise ResourceMissing(missing)
            return lingering or DONE

    def before_end(self, order: Order, action: str) -> Progress:
        with self._order_call("before_end", order) as call:
            if action != "snapshot":
                raise CloudRefused(f"The simulated cloud cannot do {action!r} before the end.")
            with self._state.look() as tx:
                servers = servers_of(tx, order.reservation_id)
                _refuse_broken_trust(tx, order)
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
            with self._state.look() as tx:
                group = tx.execute("SELECT 1 FROM host_group WHERE reservation_id = ?", (order.reservation_id,))
                if group.fetchone() is None and not servers_of(tx, order.reservation_id):
                    return DONE
                hosts = hosts_held(tx, order.reservation_id)
            unfinished = self._effects.delete_servers(call, order.reservation_id)
            if unfinished is not None:
                return unfinished
            for host in hosts:
                self._effects.return_host(call, order.reservation_id, host)
            return self._effects.remove_group(call, order.reservation_id)

    def held(self, resource_type: str) -> Iterable[str]:
        with self._faults.call(Scope("held")):
            if resource_type != HOST:
                return []
            with self._state.look() as tx:
                rows = tx.execute(
                    "SELECT reservation_id FROM host_group"
                    " UNION SELECT reservation_id FROM server WHERE reservation_id IS NOT NULL ORDER BY 1"
                ).fetchall()
            return [row["reservation_id"] for row in rows]

    def check(self, resource_type: str) -> Mapping[str, Health]:
        with self._faults.call(Scope("check")):
            if resource_type != HOST:
                return {}
            with self._state.look() as tx:
                rows = tx.execute("SELECT id, health FROM host ORDER BY id").fetchall()
            return {str(row["id"]): _health(HostHealth(row["health"])) for row in rows}

    def drift(self, resource_type: str, orders: Iterable[Order], pooled: Iterable[ResourceRef]) -> Sequence[Drift]:
        with self._faults.call(Scope("drift")):
            if resource_type != HOST:
                return []
            with self._state.look() as tx:
                return list(drift_of(tx, list(orders), pooled))

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
        _refuse_type(order.resource_type)
        hosts = frozenset(name for resource in order.resources for name in (resource.external_id, resource.name))
        with self._faults.call(Scope(verb, order.reservation_id, order.lease_name, hosts)) as call:
            yield call

    @contextmanager
    def _host_call(self, verb: str, resource_type: str, resource: ResourceRef) -> Iterator[Call]:
        _refuse_type(resource_type)
        hosts = frozenset({resource.external_id, resource.name})
        with self._faults.call(Scope(verb, hosts=hosts)) as call:
            yield call

    def _discovered(self, row: sqlite3.Row) -> DiscoveredResource:
        facts = json.loads(row["facts"])
        return DiscoveredResource(
            resource_type=HOST,
            external_id=str(row["id"]),
            name=row["name"],
            capacity=capacity_of(facts),
            facts=facts,
            traits=frozenset(json.loads(row["traits"])),
            region=self._region,
        )


def _health(health: HostHealth) -> Health:
    return Health(health is HostHealth.UP, _SICK.get(health), works=health is not HostHealth.DOWN)


def _refuse_broken_trust(tx: sqlite3.Connection, order: Order) -> None:
    """Refuse an order whose trust is gone. One without a trust is served: this cloud needs none."""
    if order.trust_id is None:
        return
    if tx.execute("SELECT 1 FROM trust WHERE id = ?", (order.trust_id,)).fetchone() is None:
        raise CloudRefused("The trust of the lease's owner does not exist any more.")


def _refuse_type(resource_type: str) -> None:
    if resource_type != HOST:
        raise CloudRefused(f"The simulated cloud has no {resource_type}.")
