"""Preemptible servers of a simulated cloud: they use what is reserved and has not started, and go before it does."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from tenure.clock import Clock
from tenure.domain.capacity import Capacity
from tenure.drivers.contract import Order, Preempted, Progress, ResourceRef
from tenure.drivers.notice import Step, next_step
from tenure.drivers.reserved_servers import SERVER, size_of
from tenure.drivers.simulated.effects import Effects, hosts_of
from tenure.drivers.simulated.faults import Call
from tenure.drivers.simulated.flavors import taken_by
from tenure.drivers.simulated.fleet import capacity_of
from tenure.drivers.simulated.places import server_id
from tenure.drivers.simulated.state import EffectKind, StateFile
from tenure.drivers.simulated.wanted import FLAVOR, INSTANCE, SIZES, units_of, wanted_of

#: By when a server goes, and since when it knows, in its metadata.
LEAVES_AT: Final = "tenure:leaves_at"
TOLD_AT: Final = "tenure:told_at"


class Preemption:
    """Tells, stops and deletes the preemptible servers that are in the way of an order, and no others."""

    def __init__(self, state: StateFile, effects: Effects, clock: Clock) -> None:
        self._state = state
        self._effects = effects
        self._clock = clock

    def make_way(self, call: Call, order: Order, deadline: datetime, ahead: Iterable[Order]) -> Sequence[Preempted]:
        with self._state.look() as tx:
            found = list(in_the_way(tx, order, tuple(ahead)))
        for server, _ in found:
            told_at = self._tell(call, server, deadline)
            match next_step(deadline - self._clock.now(), deadline - told_at):
                case Step.DELETE:
                    self._effects.delete_preemptible(call, server)
                case Step.STOP:
                    self._stop(call, server)
        return [Preempted(server_id(server["number"]), server["project_id"], resource) for server, resource in found]

    def clear(self, call: Call, order: Order) -> Progress | None:
        """Delete at once what is still in the way; None when it has vanished."""
        with self._state.look() as tx:
            found = list(in_the_way(tx, order))
        lingering: Progress | None = None
        for server, _ in found:
            lingering = self._effects.delete_preemptible(call, server) or lingering
        return lingering

    def _tell(self, call: Call, server: sqlite3.Row, deadline: datetime) -> datetime:
        """Tell the server by when it goes, unless it knows that or goes earlier; since when it knows."""
        now = self._clock.now()
        with self._state.change() as tx:
            row = tx.execute("SELECT metadata FROM server WHERE number = ?", (server["number"],)).fetchone()
            if row is None:
                return now
            metadata = json.loads(row["metadata"])
            if LEAVES_AT in metadata and now < datetime.fromisoformat(metadata[LEAVES_AT]) <= deadline:
                return datetime.fromisoformat(metadata[TOLD_AT])
            metadata |= {LEAVES_AT: deadline.isoformat(), TOLD_AT: now.isoformat()}
            tx.execute("UPDATE server SET metadata = ? WHERE number = ?", (json.dumps(metadata), server["number"]))
            self._record(tx, call, EffectKind.SERVER_TOLD, server)
        call.effect_happened()
        return now

    def _stop(self, call: Call, server: sqlite3.Row) -> None:
        with self._state.change() as tx:
            stopped = tx.execute(
                "UPDATE server SET stopped = 1 WHERE number = ? AND NOT stopped", (server["number"],)
            ).rowcount
            if stopped:
                self._record(tx, call, EffectKind.SERVER_STOPPED, server)
        if stopped:
            call.effect_happened()

    def _record(self, tx: sqlite3.Connection, call: Call, kind: EffectKind, server: sqlite3.Row) -> None:
        self._state.record(tx, call.verb, kind, host=server["host_id"], subject=server_id(server["number"]))


def in_the_way(
    tx: sqlite3.Connection, order: Order, ahead: Sequence[Order] = ()
) -> Iterator[tuple[sqlite3.Row, ResourceRef]]:
    """The preemptible servers that must go for the order beside those ``ahead`` of it, and where they are.

    On a host that it takes as a whole, all; on one of which it takes parts, only as many as it needs the room of: those
    that were told before, and else the youngest, which have the least to lose.
    """
    refs = {resource.external_id: resource for resource in order.resources}
    hosts, _ = hosts_of(tx, order.resources)
    for host in hosts:
        if host["reservation_id"] is not None:
            continue  # nothing preemptible gets there, or its end is waited for
        servers = tx.execute("SELECT * FROM server WHERE host_id = ? ORDER BY number", (host["id"],)).fetchall()
        chosen = [server for server in servers if server["preemptible"]]
        if order.resource_type in (INSTANCE, FLAVOR, SERVER):
            chosen = _fewest(chosen, _missing_room(tx, order, ahead, host, servers))
        for server in chosen:
            yield server, refs[str(host["id"])]


def _missing_room(
    tx: sqlite3.Connection, order: Order, ahead: Iterable[Order], host: sqlite3.Row, servers: Sequence[sqlite3.Row]
) -> dict[str, int]:
    """How much more of each class must get free on the host before the order, and who runs there, have theirs."""
    parts = tx.execute(
        "SELECT flavor.*, total FROM part JOIN resource_class ON resource_class.name = resource_class"
        " JOIN flavor ON flavor.id = reservation_id WHERE host_id = ?",
        (host["id"],),
    ).fetchall()
    units = {part["id"]: part["total"] for part in parts}
    takes = {part["id"]: taken_by({**dict(part), "extra_specs": json.loads(part["extra_specs"])}) for part in parts}
    here = str(host["id"])
    others = (one for one in ahead if one.resource_type in (INSTANCE, FLAVOR, SERVER) and here in one.units)
    booted = Counter(server["flavor_id"] for server in servers)
    booted.update(server["reservation_id"] for server in servers if server["flavor_id"] != server["reservation_id"])
    for one in (*others, order):
        if one.resource_type == SERVER:
            units[one.reservation_id] = units_of(one, here)
            takes[one.reservation_id] = size_of(one.parameters)
            continue
        wanted = wanted_of(one, None)
        flavor = dict(zip(SIZES, wanted.sizes, strict=True))
        units[one.reservation_id] = units_of(one, here)
        takes[one.reservation_id] = taken_by({**flavor, "extra_specs": dict(wanted.extra_specs)})
    promised = [takes[one].times(max(0, count - booted[one])) for one, count in units.items()]
    used = [_takes(server) for server in servers]
    offered = capacity_of(json.loads(host["facts"]), json.loads(host["inventory"]))
    total = sum([*promised, *used], Capacity())
    return {name: amount - offered[name] for name, amount in total.items() if amount > offered[name]}


def _fewest(servers: Sequence[sqlite3.Row], missing: dict[str, int]) -> list[sqlite3.Row]:
    """Those that must go so that nothing is missing, with those that go already and still have some of it."""
    going = [one for one in servers if one["vanishing"] and missing.keys() & _takes(one).keys()]
    missing = _lacks(missing, going)
    chosen: list[sqlite3.Row] = []
    for server in sorted(servers, key=lambda one: (not _is_told(one), -one["number"])):
        if not server["vanishing"] and _lacks(missing, chosen).keys() & _takes(server).keys():
            chosen.append(server)
    for server in [one for one in chosen if not _is_told(one)]:
        others = [one for one in chosen if one is not server]
        if not _lacks(missing, others):
            chosen = others
    return going + chosen


def _lacks(missing: dict[str, int], gone: Iterable[sqlite3.Row]) -> dict[str, int]:
    """What is still missing when these are gone."""
    freed = sum((_takes(server) for server in gone), Capacity())
    return {name: amount - freed[name] for name, amount in missing.items() if amount > freed[name]}


def _takes(server: sqlite3.Row) -> Capacity:
    return Capacity(json.loads(server["takes"]))


def _is_told(server: sqlite3.Row) -> bool:
    return LEAVES_AT in json.loads(server["metadata"])
