"""Volumes of a simulated cloud."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from tenure.domain.capacity import Capacity
from tenure.domain.reason import Reason
from tenure.domain.resource import DiscoveredResource
from tenure.domain.volume import pool_id
from tenure.drivers.contract import DONE, CloudNotFound, CloudRefused, Health, Order, Progress, ResourceRef
from tenure.drivers.simulated.effects import refuse_broken_trust
from tenure.drivers.simulated.faults import Call
from tenure.drivers.simulated.state import EffectKind, StateFile

VOLUME: Final = "virtual:volume"
#: In a volume's metadata: the reservation that it was made for, or of which it is kept, and which of its volumes it is.
_RESERVATION: Final = "tenure:reservation"
_KEPT: Final = "tenure:kept"
_NUMBER: Final = "tenure:number"
_PREFIX: Final = "volume-"


class Volumes:
    """What the verbs of a driver do for volumes.

    Nothing in the cloud sets a part of a pool aside. A volume that was made for a reservation is told by its metadata,
    and by its id once that is recorded, since its owner may change its metadata.
    """

    def __init__(self, state: StateFile, region: str) -> None:
        self._state = state
        self._region = region

    def discover(self) -> list[DiscoveredResource]:
        return []

    def look_up(self, reference: str) -> DiscoveredResource:
        with self._state.look() as tx:
            for row in tx.execute("SELECT * FROM pool ORDER BY name").fetchall():
                if reference in {row["name"], pool_id(row["name"])}:
                    return DiscoveredResource(
                        resource_type=VOLUME,
                        external_id=pool_id(row["name"]),
                        name=row["name"],
                        capacity=Capacity({"DISK_GB": row["total_gb"]}),
                        facts={"pool": row["name"]},
                        region=self._region,
                    )
        raise CloudNotFound(f"There is no volume pool {reference}.")

    def facts_of_type(self, reference: str) -> Mapping[str, object]:
        """A volume type by its name or id, the default one where none is named, and the pools that it leads to."""
        with self._state.look() as tx:
            found = tx.execute(
                "SELECT * FROM volume_type WHERE ? IN (id, name) OR (? = '' AND is_default)", (reference, reference)
            ).fetchone()
            pools = [row["name"] for row in tx.execute("SELECT name FROM pool ORDER BY name")]
        if found is None:
            raise CloudNotFound(Reason(f"There is no volume type {reference}."))
        leads = [one for one in pools if found["pool"] in (None, one)]
        return {"id": found["id"], "name": found["name"], "pools": leads}

    def register(self, call: Call, resource: ResourceRef) -> None:
        self.look_up(resource.name)

    def unregister(self, call: Call, resource: ResourceRef) -> None:
        """Nothing: nothing was set aside."""

    def check(self, registered: Iterable[ResourceRef]) -> dict[str, Health]:
        with self._state.look() as tx:
            up = {row["name"]: row["up"] for row in tx.execute("SELECT * FROM pool")}
        healths: dict[str, Health] = {}
        for resource in registered:
            if resource.name not in up:
                healths[resource.external_id] = Health(False, f"There is no volume pool {resource.name} any more.")
            elif not up[resource.name]:
                healths[resource.external_id] = Health(False, f"The volume pool {resource.name} is down.")
            else:
                healths[resource.external_id] = Health(True)
        return healths

    def prepare(self, call: Call, order: Order) -> Progress:
        return DONE

    def start(self, call: Call, order: Order) -> Progress:
        wanted = sum(order.units.values())
        for row in self._own(order):
            if _number(row, order) > wanted:
                self._remove(call, order, row)
        for number in range(1, wanted + 1):
            self._make(call, order, number)
        if unfinished := call.slowed("Volumes are being made."):
            return replace(unfinished, awaited=True)
        with self._state.change() as tx:
            for row in self._rows_of(tx, order):
                tx.execute(
                    "UPDATE volume SET status = 'available' WHERE number = ? AND status = 'creating'", (row["number"],)
                )
        made = sorted(self._own(order), key=lambda row: _number(row, order))
        ids = [volume_id(row["number"]) for row in made]
        return Progress(True, effects={"volume_ids": ids})

    def end(self, call: Call, order: Order) -> Progress:
        at_end = order.parameters.get("at_end", "delete")
        for row in self._own(order):
            if at_end == "delete" or volume_id(row["number"]) not in ids_of(order):
                self._detach(call, order, row)
                self._remove(call, order, row)
                continue
            if at_end == "snapshot":
                self._detach(call, order, row)
                self._snapshot(call, order, row)
            self._keep(call, order, row)
        if at_end != "delete" and (unfinished := call.slowed("Snapshots are being made.")):
            return unfinished
        return DONE

    def remaining(self, orders: Iterable[Order]) -> dict[str, int]:
        with self._state.look() as tx:
            there = {volume_id(row["number"]) for row in tx.execute("SELECT number FROM volume")}
        return {order.reservation_id: sum(1 for one in ids_of(order) if one in there) for order in orders}

    def held(self, tx: sqlite3.Connection) -> set[str]:
        rows = tx.execute("SELECT metadata FROM volume").fetchall()
        return {found for row in rows if (found := json.loads(row["metadata"]).get(_RESERVATION)) is not None}

    def _own(self, order: Order) -> list[sqlite3.Row]:
        with self._state.look() as tx:
            return self._rows_of(tx, order)

    def _rows_of(self, tx: sqlite3.Connection, order: Order) -> list[sqlite3.Row]:
        known = set(ids_of(order))
        rows = tx.execute("SELECT * FROM volume ORDER BY number").fetchall()
        return [
            row
            for row in rows
            if json.loads(row["metadata"]).get(_RESERVATION) == order.reservation_id
            or (volume_id(row["number"]) in known and _KEPT not in json.loads(row["metadata"]))
        ]

    def _make(self, call: Call, order: Order, number: int) -> None:
        parameters = order.parameters
        with self._state.change() as tx:
            if any(_number(row, order) == number for row in self._rows_of(tx, order)):
                return
            if order.trust_id is None:
                raise CloudRefused(Reason("Volumes are made as the lease's owner, who has given no trust."))
            refuse_broken_trust(tx, order)
            pool = tx.execute("SELECT * FROM pool WHERE name = ?", (parameters["pool"],)).fetchone()
            if pool is None:
                raise CloudRefused(f"There is no volume pool {parameters['pool']}.")
            cursor = tx.execute(
                "INSERT INTO volume (name, project_id, size_gb, volume_type, pool, status, metadata)"
                " VALUES (?, ?, ?, ?, ?, 'creating', ?)",
                (
                    f"{order.lease_name}-{number}",
                    order.project_id,
                    parameters["size_gb"],
                    parameters["volume_type"],
                    parameters["pool"],
                    json.dumps({_RESERVATION: order.reservation_id, _NUMBER: str(number)}),
                ),
            )
            assert cursor.lastrowid is not None
            self._record(tx, call, EffectKind.VOLUME_MADE, order, cursor.lastrowid)
        call.effect_happened()

    def _detach(self, call: Call, order: Order, row: sqlite3.Row) -> None:
        statement = "UPDATE volume SET server_id = NULL WHERE number = ? AND server_id IS NOT NULL"
        self._change(call, order, row, statement, EffectKind.VOLUME_DETACHED)

    def _snapshot(self, call: Call, order: Order, row: sqlite3.Row) -> None:
        statement = (
            "INSERT INTO volume_snapshot (name, project_id, volume)"
            " SELECT name, project_id, number FROM volume WHERE number = ? ON CONFLICT DO NOTHING"
        )
        self._change(call, order, row, statement, EffectKind.VOLUME_SNAPSHOT_MADE)

    def _keep(self, call: Call, order: Order, row: sqlite3.Row) -> None:
        metadata = json.loads(row["metadata"])
        metadata.pop(_RESERVATION, None)
        kept = json.dumps({**metadata, _KEPT: order.reservation_id})
        with self._state.change() as tx:
            tx.execute("UPDATE volume SET metadata = ? WHERE number = ?", (kept, row["number"]))
            self._record(tx, call, EffectKind.VOLUME_KEPT, order, row["number"])
        call.effect_happened()

    def _remove(self, call: Call, order: Order, row: sqlite3.Row) -> None:
        with self._state.change() as tx:
            tx.execute("DELETE FROM volume_snapshot WHERE volume = ?", (row["number"],))
        self._change(call, order, row, "DELETE FROM volume WHERE number = ?", EffectKind.VOLUME_REMOVED)

    def _change(self, call: Call, order: Order, row: sqlite3.Row, statement: str, kind: EffectKind) -> None:
        with self._state.change() as tx:
            done = tx.execute(statement, (row["number"],)).rowcount
            if done:
                self._record(tx, call, kind, order, row["number"])
        if done:
            call.effect_happened()

    def _record(self, tx: sqlite3.Connection, call: Call, kind: EffectKind, order: Order, number: int) -> None:
        self._state.record(tx, call.verb, kind, reservation_id=order.reservation_id, subject=volume_id(number))


def volume_id(number: int) -> str:
    return f"{_PREFIX}{number:06d}"


def ids_of(order: Order) -> list[str]:
    """The volumes that were recorded for a reservation."""
    found = order.effects.get("volume_ids")
    return [str(one) for one in found] if isinstance(found, list | tuple) else []


def _number(row: sqlite3.Row, order: Order) -> int:
    """Which of a reservation's volumes it is: by its place among those recorded, or else by what it was made with."""
    known = ids_of(order)
    if volume_id(row["number"]) in known:
        return known.index(volume_id(row["number"])) + 1
    text = str(json.loads(row["metadata"]).get(_NUMBER, ""))
    return int(text) if text.isascii() and text.isdigit() else 0
