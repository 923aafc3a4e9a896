"""Whole hosts of a simulated cloud: ``physical:host``."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Final

from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudNotFound,
    Health,
    Order,
    Progress,
    ResourceMissing,
    ResourceRef,
)
from tenure.drivers.simulated.effects import (
    Effects,
    host_of,
    hosts_held,
    hosts_of,
    ids_of,
    refuse_held,
    refuse_occupied,
    servers_of,
)
from tenure.drivers.simulated.faults import Call
from tenure.drivers.simulated.fleet import capacity_of, limits_of
from tenure.drivers.simulated.places import find_host
from tenure.drivers.simulated.preemption import Preemption
from tenure.drivers.simulated.state import EffectKind, StateFile
from tenure.drivers.simulated.world import HostHealth

HOST: Final = "physical:host"
_SICK: Final = {
    HostHealth.DOWN: "The hypervisor is down.",
    HostHealth.DISABLED: "The compute service is disabled.",
}


class Hosts:
    """What the verbs of a driver do for whole hosts."""

    def __init__(self, state: StateFile, effects: Effects, preemption: Preemption, region: str) -> None:
        self._state = state
        self._effects = effects
        self._preemption = preemption
        self._region = region

    def discover(self) -> list[DiscoveredResource]:
        with self._state.look() as tx:
            rows = tx.execute("SELECT * FROM host ORDER BY CAST(id AS TEXT)").fetchall()
        return [self._discovered(row) for row in rows]

    def look_up(self, reference: str) -> DiscoveredResource:
        with self._state.look() as tx:
            return self._discovered(find_host(tx, reference))

    def register(self, call: Call, resource: ResourceRef) -> None:
        with self._state.change() as tx:
            host = host_of(tx, resource)
            free = not host["pooled"] and host["reservation_id"] is None
            if free:
                refuse_occupied(tx, [host], None)
                tx.execute("UPDATE host SET pooled = 1 WHERE id = ?", (host["id"],))
                self._state.record(tx, call.verb, EffectKind.HOST_POOLED, host=host["id"])
        if free:
            call.effect_happened()

    def unregister(self, call: Call, resource: ResourceRef) -> None:
        with self._state.change() as tx:
            try:
                host = host_of(tx, resource)
            except CloudNotFound:
                return
            refuse_held(tx, host, None)
            pooled = bool(host["pooled"])
            if pooled:
                refuse_occupied(tx, [host], None, but_preemptible=False)
                tx.execute("UPDATE host SET pooled = 0 WHERE id = ?", (host["id"],))
                self._state.record(tx, call.verb, EffectKind.HOST_UNPOOLED, host=host["id"])
        if pooled:
            call.effect_happened()

    def prepare(self, call: Call, order: Order) -> Progress:
        return DONE  # nothing of a host reservation is seen before its start

    def start(self, call: Call, order: Order) -> Progress:
        with self._state.look() as tx:
            hosts, missing = hosts_of(tx, order.resources)
            refuse_occupied(tx, hosts, order.reservation_id)
            returning = ids_of(tx, order.returning)
        # What the reservation gives up goes first: of two that trade hosts, neither then waits for the
        # other. What is not known may come back under another id, so it is not taken for given up.
        keep = {host["id"] for host in hosts}
        lingering = self._effects.return_surplus(call, order, keep, only=returning if missing else None)
        if (unfinished := self._preemption.clear(call, order)) is not None:
            raise CloudBusy(unfinished.reason or "Servers are still vanishing.")
        self._effects.take_all(call, order, hosts)
        if missing:
            raise ResourceMissing(missing)
        return lingering or DONE

    def end(self, call: Call, order: Order) -> Progress:
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

    def held(self, tx: sqlite3.Connection) -> set[str]:
        rows = tx.execute(
            "SELECT reservation_id FROM host_group"
            " UNION SELECT reservation_id FROM server WHERE reservation_id IS NOT NULL"
        )
        return {row["reservation_id"] for row in rows}

    def check(self) -> Mapping[str, Health]:
        with self._state.look() as tx:
            rows = tx.execute("SELECT id, health FROM host ORDER BY id").fetchall()
        return {str(row["id"]): _health(HostHealth(row["health"])) for row in rows}

    def _discovered(self, row: sqlite3.Row) -> DiscoveredResource:
        facts, inventory = json.loads(row["facts"]), json.loads(row["inventory"])
        return DiscoveredResource(
            resource_type=HOST,
            external_id=str(row["id"]),
            name=row["name"],
            capacity=capacity_of(facts, inventory),
            facts=facts,
            traits=frozenset(json.loads(row["traits"])),
            region=self._region,
            limits=limits_of(facts, inventory),
        )


def _health(health: HostHealth) -> Health:
    return Health(health is HostHealth.UP, _SICK.get(health), works=health is not HostHealth.DOWN)
