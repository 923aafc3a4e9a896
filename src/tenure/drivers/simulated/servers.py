"""Reserved servers of a simulated cloud: shelved until the start, woken on the host that keeps room for them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from tenure.domain.capacity import Capacity
from tenure.domain.reason import Reason
from tenure.drivers.contract import (
    DONE,
    BootedServer,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Drift,
    Order,
    Progress,
    ResourceMissing,
    ResourceOccupied,
    ResourceRef,
)
from tenure.drivers.reserved_servers import (
    ADOPTED,
    IN_PLACE,
    MARKS,
    RESERVATION,
    WOKEN,
    excess_of,
    fate_of,
    is_in_place,
    is_its_own,
    is_woken,
    marks_of,
    metadata_of,
    named_server,
)
from tenure.drivers.simulated.effects import Effects, hosts_of
from tenure.drivers.simulated.faults import Call
from tenure.drivers.simulated.flavors import facts_of_any
from tenure.drivers.simulated.fleet import capacity_of
from tenure.drivers.simulated.places import SERVERS, number_of, server_id
from tenure.drivers.simulated.preemption import Preemption
from tenure.drivers.simulated.state import EffectKind, StateFile
from tenure.drivers.simulated.wanted import text_of


class Servers:
    """What the verbs of a driver do for reserved servers."""

    def __init__(self, state: StateFile, effects: Effects, preemption: Preemption) -> None:
        self._state = state
        self._effects = effects
        self._preemption = preemption

    def prepare(self, call: Call, order: Order) -> Progress:
        wanted = named_server(order)
        if wanted is None:
            return DONE
        with self._state.look() as tx:
            server = server_of(tx, order)
        if server is None:
            raise CloudRefused(Reason(f"There is no server {wanted} any more."))
        self._mark(call, order, server, {} if is_in_place(order) else {WOKEN: None})
        is_early = order.starts_at is not None and order.starts_at > self._state.now()
        if is_early and server["host_id"] is not None and not is_in_place(order):
            if unfinished := call.slowed("The server is being shelved."):
                return unfinished
            self._shelve(call, server)
        return Progress(True, effects={ADOPTED: wanted})

    def start(self, call: Call, order: Order) -> Progress:
        with self._state.look() as tx:
            hosts, missing = hosts_of(tx, order.resources)
            server = server_of(tx, order)
        for host in hosts:
            if host["reservation_id"] is not None:
                raise CloudBusy(f"{host['name']} is not released yet by reservation {host['reservation_id']}.")
        told: dict[str, object] = {} if server is None else {ADOPTED: order.parameters["server_id"]}
        if is_in_place(order):
            if server is not None:
                self._mark(call, order, server, {})
            return Progress(True, effects=told)
        told["aggregate_id"] = self._ensure_aggregate(call, order, {host["id"] for host in hosts})
        if missing:
            raise ResourceMissing(missing)
        self._withdraw(call, order)
        lingering = self._preemption.clear(call, order)
        if server is None or not hosts:
            if lingering is not None:
                return Progress(False, lingering.look_again_after, lingering.reason, told)
            return Progress(True, effects=told)
        self._mark(call, order, server, {})
        unfinished = lingering or self._wake(call, order, server, hosts[0])
        if unfinished is not None:
            return Progress(False, unfinished.look_again_after, unfinished.reason, told, awaited=True)
        return Progress(True, effects=told)

    def end(self, call: Call, order: Order) -> Progress:
        with self._state.look() as tx:
            servers = its_own_servers(tx, order)
            marked = _servers_marked(tx, order.reservation_id) if order.is_over else []
        own = {server["number"] for server in servers}
        for server in marked:
            if server["number"] not in own:
                self._change_metadata(call, order.reservation_id, server, dict.fromkeys(MARKS))
        for server in servers:
            unfinished = self._end_server(call, order, server)
            if unfinished is not None:
                return unfinished
        with self._state.change() as tx:
            removed = tx.execute(
                "DELETE FROM aggregate WHERE name = ? AND json_extract(metadata, '$.\"tenure:reservation\"') = name",
                (order.reservation_id,),
            ).rowcount
            if removed:
                self._record(tx, call, EffectKind.AGGREGATE_REMOVED, order.reservation_id, None)
        if removed:
            call.effect_happened()
        return DONE

    def held(self, tx: sqlite3.Connection) -> set[str]:
        rows = tx.execute(
            "SELECT name AS held FROM aggregate WHERE json_extract(metadata, '$.\"tenure:reservation\"') = name UNION"
            " SELECT json_extract(metadata, '$.\"tenure:reservation\"') FROM server"
            " WHERE json_extract(metadata, '$.\"tenure:reservation\"') IS NOT NULL"
            " AND json_extract(metadata, '$.\"tenure:woken\"') IS NOT ?",
            (IN_PLACE,),
        )
        return {row["held"] for row in rows}

    # A server

    def _mark(self, call: Call, order: Order, server: sqlite3.Row, more: Mapping[str, str | None]) -> None:
        """Have its metadata say of which reservation it is."""
        self._change_metadata(call, order.reservation_id, server, {**marks_of(order), **more})

    def _change_metadata(
        self, call: Call, reservation_id: str, server: sqlite3.Row, changes: Mapping[str, str | None]
    ) -> None:
        with self._state.change() as tx:
            row = tx.execute("SELECT * FROM server WHERE number = ?", (server["number"],)).fetchone()
            if row is None:
                return
            before = json.loads(row["metadata"])
            after = {name: value for name, value in {**before, **changes}.items() if value is not None}
            if after == before:
                return
            tx.execute("UPDATE server SET metadata = ? WHERE number = ?", (text_of(after), row["number"]))
            self._record(tx, call, EffectKind.SERVER_MARKED, reservation_id, row)
        call.effect_happened()

    def _shelve(self, call: Call, server: sqlite3.Row) -> None:
        with self._state.change() as tx:
            row = tx.execute("SELECT * FROM server WHERE number = ?", (server["number"],)).fetchone()
            if row is None or row["host_id"] is None:
                return
            tx.execute("UPDATE server SET host_id = NULL, reservation_id = NULL WHERE number = ?", (server["number"],))
            self._record(tx, call, EffectKind.SERVER_SHELVED, _reservation_of(row), row)
        call.effect_happened()

    def _wake(self, call: Call, order: Order, seen: sqlite3.Row, host: sqlite3.Row) -> Progress | None:
        """Have it run on the host; None when it does.

        Where it was woken there before, it is its owner's affair where it is now. Raises ``ResourceOccupied`` where the
        host cannot take it.
        """
        if is_woken(order, host["name"], _metadata(seen)):
            return None
        if seen["host_id"] not in (None, host["id"]):
            self._shelve(call, seen)
        if unfinished := call.slowed("The server is being woken."):
            return unfinished
        with self._state.change() as tx:
            server = server_of(tx, order)
            if server is None:
                return None
            if host["health"] == "down":
                raise _unable(host, "does not answer")
            if server["host_id"] is None and not _has_room(tx, host, server):
                raise _unable(host, "has no room for the server")
            metadata = {**_metadata(server), WOKEN: host["name"]}
            tx.execute(
                "UPDATE server SET host_id = ?, reservation_id = ?, metadata = ?, stopped = 0 WHERE number = ?",
                (host["id"], order.reservation_id, text_of(metadata), server["number"]),
            )
            self._state.record(
                tx,
                call.verb,
                EffectKind.SERVER_WOKEN,
                reservation_id=order.reservation_id,
                host=host["id"],
                subject=server_id(server["number"]),
            )
        call.effect_happened()
        return None

    def _withdraw(self, call: Call, order: Order) -> None:
        """Have the server as it was that a change named which was refused; asleep where there is no room for it."""
        refused = order.withdrawn.get("server_id")
        if refused is None or refused == named_server(order):
            return
        with self._state.look() as tx:
            server = server_of(tx, replace(order, parameters={"server_id": refused}))
        if server is None or _reservation_of(server) != order.reservation_id:
            return
        if server["host_id"] is None or not self._is_in_general_use(server):
            self._leave(call, order, server, asleep=True)
        self._change_metadata(call, order.reservation_id, server, dict.fromkeys(MARKS))
        with self._state.change() as tx:
            tx.execute("UPDATE server SET reservation_id = NULL WHERE number = ?", (server["number"],))

    def _end_server(self, call: Call, order: Order, server: sqlite3.Row) -> Progress | None:
        """Do with a server what was asked for the end; None when that is done."""
        fate = fate_of(order, server_id(server["number"]), _booted_at(server))
        if fate == "delete":
            unfinished = call.slowed("Servers are still vanishing.")
            self._effects.delete_server(call, server, vanishes=unfinished is None)
            return unfinished
        if fate == "shelve" and not (order.spared and self._is_in_general_use(server)):
            self._shelve(call, server)
        if fate == "stop" and server["host_id"] is not None:
            self._stop(call, order, server)
            if not is_in_place(order):
                self._leave(call, order, server)
        self._change_metadata(call, order.reservation_id, server, dict.fromkeys(MARKS))
        with self._state.change() as tx:
            tx.execute("UPDATE server SET reservation_id = NULL WHERE number = ?", (server["number"],))
        return None

    def _stop(self, call: Call, order: Order, server: sqlite3.Row) -> None:
        with self._state.change() as tx:
            stopped = tx.execute(
                "UPDATE server SET stopped = 1 WHERE number = ? AND NOT stopped", (server["number"],)
            ).rowcount
            if stopped:
                self._record(tx, call, EffectKind.SERVER_STOPPED, order.reservation_id, server)
        if stopped:
            call.effect_happened()

    def _is_in_general_use(self, server: sqlite3.Row) -> bool:
        with self._state.look() as tx:
            host = tx.execute("SELECT pooled FROM host WHERE id = ?", (server["host_id"],)).fetchone()
        return host is None or not host["pooled"]

    def _leave(self, call: Call, order: Order, seen: sqlite3.Row, *, asleep: bool = False) -> None:
        """Have it leave its reserved host for one in general use; where none has room, it is shelved.

        With ``asleep`` also where it is on no host.
        """
        with self._state.change() as tx:
            server = tx.execute(
                "SELECT * FROM server WHERE number = ?1 AND (host_id IN (SELECT id FROM host WHERE pooled)"
                " OR (?2 AND host_id IS NULL))",
                (seen["number"], asleep),
            ).fetchone()
            if server is None:
                return
            hosts = tx.execute(
                "SELECT * FROM host WHERE NOT pooled AND reservation_id IS NULL AND health = 'up' ORDER BY id"
            ).fetchall()
            place = next((host["id"] for host in hosts if _has_room(tx, host, server)), None)
            tx.execute("UPDATE server SET host_id = ? WHERE number = ?", (place, server["number"]))
            kind = EffectKind.SERVER_SHELVED if place is None else EffectKind.SERVER_MOVED
            self._record(tx, call, kind, order.reservation_id, server)
        call.effect_happened()

    # Its aggregate

    def _ensure_aggregate(self, call: Call, order: Order, hosts: set[int]) -> int:
        name, metadata = order.reservation_id, text_of(metadata_of(order))
        with self._state.change() as tx:
            row = tx.execute("SELECT * FROM aggregate WHERE name = ?", (name,)).fetchone()
            changed = row is None or row["metadata"] != metadata
            if changed:
                tx.execute(
                    "INSERT INTO aggregate (name, metadata) VALUES (?, ?)"
                    " ON CONFLICT (name) DO UPDATE SET metadata = excluded.metadata",
                    (name, metadata),
                )
                kind = EffectKind.AGGREGATE_MADE if row is None else EffectKind.AGGREGATE_CHANGED
                self._record(tx, call, kind, name, None)
            found = tx.execute("SELECT id FROM aggregate WHERE name = ?", (name,)).fetchone()["id"]
        if changed:
            call.effect_happened()
        with self._state.look() as tx:
            members = {
                row["host_id"]
                for row in tx.execute("SELECT host_id FROM aggregate_host WHERE aggregate_id = ?", (found,))
            }
        for statement, kind, numbers in (
            ("INSERT INTO aggregate_host VALUES (?, ?) ON CONFLICT DO NOTHING", EffectKind.HOST_ADDED, hosts - members),
            (
                "DELETE FROM aggregate_host WHERE aggregate_id = ? AND host_id = ?",
                EffectKind.HOST_DROPPED,
                members - hosts,
            ),
        ):
            for host in sorted(numbers):
                self._change_member(call, name, statement, kind, found, host)
        return int(found)

    def _change_member(
        self, call: Call, reservation_id: str, statement: str, kind: EffectKind, aggregate: int, host: int
    ) -> None:
        try:
            with self._state.change() as tx:
                done = tx.execute(statement, (aggregate, host)).rowcount > 0
                if done:
                    self._state.record(tx, call.verb, kind, reservation_id=reservation_id, host=host)
        except sqlite3.IntegrityError:
            raise CloudBusy(f"The aggregate or a host of reservation {reservation_id} was removed meanwhile.") from None
        if done:
            call.effect_happened()

    def _record(
        self, tx: sqlite3.Connection, call: Call, kind: EffectKind, reservation_id: str | None, row: sqlite3.Row | None
    ) -> None:
        host, subject = (None, None) if row is None else (row["host_id"], server_id(row["number"]))
        self._state.record(tx, call.verb, kind, reservation_id=reservation_id, host=host, subject=subject)


def facts_of_server(tx: sqlite3.Connection, reference: str, project_id: str) -> dict[str, Any]:
    """What the cloud says of a server of that project. Raises ``CloudNotFound``."""
    row = tx.execute(
        "SELECT * FROM server WHERE number = ? AND project_id = ? AND NOT vanishing",
        (number_of(reference), project_id),
    ).fetchone()
    if row is None:
        raise CloudNotFound(Reason(f"There is no server {reference}."))
    return {
        "id": reference,
        "name": row["name"],
        "project_id": row["project_id"],
        "flavor": facts_of_any(tx, row["flavor_id"], json.loads(row["takes"])),
    }


def booted_since(tx: sqlite3.Connection, since: datetime) -> list[BootedServer]:
    """The servers that were booted since then, but for those of reservations of other types; and all that went."""
    rows = tx.execute(
        "SELECT * FROM server WHERE booted_at >= ? AND NOT vanishing AND (reservation_id IS NULL"
        " OR json_extract(metadata, '$.\"tenure:reservation\"') IS NOT NULL) ORDER BY number",
        (since.isoformat(),),
    ).fetchall()
    there = {row["number"] for row in tx.execute("SELECT number FROM server")}
    last = tx.execute("SELECT seq FROM sqlite_sequence WHERE name = 'server'").fetchone()
    newest = last["seq"] if last else 0
    first = newest // SERVERS * SERVERS + 1  # of this cloud: the numbers before it are those of other regions
    gone = sorted(set(range(first, newest + 1)) - there)
    return [
        *(
            BootedServer(
                server_id(row["number"]),
                row["name"],
                row["project_id"],
                row["user_id"],
                reservation_id=_metadata(row).get(RESERVATION),
            )
            for row in rows
        ),
        *(BootedServer(server_id(number), "", "", "", is_gone=True) for number in gone),
    ]


def server_of(tx: sqlite3.Connection, order: Order) -> sqlite3.Row | None:
    """The server that the order names, if its project has it; None where there is none, or none is named."""
    row = _server_of(tx, order)
    return None if row is None or row["vanishing"] else row


def its_own_servers(tx: sqlite3.Connection, order: Order) -> list[sqlite3.Row]:
    """The reservation's servers, also those that are vanishing; none that only say that they are."""
    named = _server_of(tx, order)
    found = [named] if named is not None else _servers_marked(tx, order.reservation_id)
    return [one for one in found if one["project_id"] == order.project_id and _is_its_own(order, one)]


def _server_of(tx: sqlite3.Connection, order: Order) -> sqlite3.Row | None:
    wanted = named_server(order)
    if wanted is None:
        return None
    try:
        number = number_of(wanted)
    except CloudNotFound:
        return None
    row: sqlite3.Row | None = tx.execute(
        "SELECT * FROM server WHERE number = ? AND project_id = ?", (number, order.project_id)
    ).fetchone()
    return row


def _servers_marked(tx: sqlite3.Connection, reservation_id: str) -> list[sqlite3.Row]:
    """The servers of all projects that bear the reservation's mark, whoever wrote it."""
    return tx.execute(
        "SELECT * FROM server WHERE json_extract(metadata, '$.\"tenure:reservation\"') = ? ORDER BY number",
        (reservation_id,),
    ).fetchall()


def _is_its_own(order: Order, server: sqlite3.Row) -> bool:
    return is_its_own(order, server_id(server["number"]), _metadata(server), _booted_at(server))


def _booted_at(server: sqlite3.Row) -> datetime | None:
    return None if server["booted_at"] is None else datetime.fromisoformat(server["booted_at"])


def drift_of_servers(tx: sqlite3.Connection, orders: Sequence[Order]) -> Iterator[Drift]:
    """What is not as it should be of the aggregates of started orders; where servers are is their owners' affair."""
    aggregates = {row["name"]: row for row in tx.execute("SELECT * FROM aggregate").fetchall()}
    members: dict[str, set[str]] = {}
    for row in tx.execute("SELECT name, host_id FROM aggregate_host JOIN aggregate ON id = aggregate_id"):
        members.setdefault(row["name"], set()).add(str(row["host_id"]))
    known = {str(row["id"]) for row in tx.execute("SELECT id FROM host")}
    yield from _grown(tx, orders)
    for order in orders:
        name = order.reservation_id
        wanted = {one.external_id for one in order.resources} & known
        if is_in_place(order):
            continue
        if name not in aggregates:
            yield Drift(name, None, f"the aggregate of reservation {name} is not there")
        elif aggregates[name]["metadata"] != text_of(metadata_of(order)):
            yield Drift(name, None, f"the aggregate of reservation {name} was changed")
        elif members.get(name, set()) != wanted:
            yield Drift(name, _first(order.resources), f"the aggregate of reservation {name} has other hosts")


def _grown(tx: sqlite3.Connection, orders: Sequence[Order]) -> Iterator[Drift]:
    """The servers that take more of their reserved hosts than was booked, as their owners have resized them."""
    marked = tx.execute(
        "SELECT * FROM server WHERE json_extract(metadata, '$.\"tenure:reservation\"') IS NOT NULL"
    ).fetchall()
    found = {server_id(row["number"]): row for row in marked}
    for order in orders:
        server = found.get(named_server(order) or "")
        if server is None or str(server["host_id"]) not in {one.external_id for one in order.resources}:
            continue
        if excess := excess_of(order, Capacity(json.loads(server["takes"]))):
            yield Drift(order.reservation_id, _first(order.resources), excess, lasts=True)


def _first(resources: Iterable[ResourceRef]) -> ResourceRef | None:
    return next(iter(resources), None)


def _metadata(server: sqlite3.Row) -> dict[str, str]:
    found: dict[str, str] = json.loads(server["metadata"])
    return found


def _reservation_of(server: sqlite3.Row) -> str | None:
    return _metadata(server).get(RESERVATION)


def _unable(host: sqlite3.Row, why: str) -> ResourceOccupied:
    return ResourceOccupied({str(host["id"]): f"The server cannot be woken on {host['name']}, which {why}."})


def _has_room(tx: sqlite3.Connection, host: sqlite3.Row, server: sqlite3.Row) -> bool:
    rows = tx.execute("SELECT takes FROM server WHERE host_id = ?", (host["id"],)).fetchall()
    used = sum((Capacity(json.loads(row["takes"])) for row in rows), Capacity(json.loads(server["takes"])))
    return capacity_of(json.loads(host["facts"]), json.loads(host["inventory"])).fits(used)
