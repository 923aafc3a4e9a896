"""The effects that a simulated cloud knows: each is a transaction, and done again it changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Final

from tenure.domain.reason import Reason
from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Order,
    Progress,
    ResourceOccupied,
    ResourceRef,
)
from tenure.drivers.simulated.faults import Call
from tenure.drivers.simulated.places import server_id
from tenure.drivers.simulated.state import EffectKind, StateFile

#: The reservations that have a part of a host.
_PARTS_OF_HOST: Final = (
    "SELECT reservation_id FROM part JOIN resource_class ON resource_class.name = resource_class WHERE host_id = ?1"
    " UNION SELECT name FROM aggregate_host JOIN aggregate ON id = aggregate_id"
    " WHERE host_id = ?1 AND json_extract(metadata, '$.\"tenure:reservation\"') = name"
)


class Effects:
    """The steps that the verbs are made of. Each tells its call when it has changed something."""

    def __init__(self, state: StateFile) -> None:
        self._state = state

    def ensure_group(self, call: Call, order: Order) -> None:
        with self._state.change() as tx:
            row = tx.execute(
                "SELECT project_id FROM host_group WHERE reservation_id = ?", (order.reservation_id,)
            ).fetchone()
            if row is not None and row["project_id"] == order.project_id:
                return
            tx.execute(
                "INSERT INTO host_group (reservation_id, lease_id, project_id) VALUES (?, ?, ?)"
                " ON CONFLICT (reservation_id) DO UPDATE SET project_id = excluded.project_id",
                (order.reservation_id, order.lease_id, order.project_id),
            )
            kind = EffectKind.GROUP_MADE if row is None else EffectKind.GROUP_CHANGED
            self._state.record(tx, "ensure_started", kind, reservation_id=order.reservation_id)
        call.effect_happened()

    def take_all(self, call: Call, order: Order, hosts: Sequence[sqlite3.Row]) -> None:
        """Hand all of them over, or none while somebody has one of them."""
        with self._state.look() as tx:
            for host in hosts:
                refuse_held(tx, _host_by_id(tx, host["id"], host["name"]), order.reservation_id)
        self.ensure_group(call, order)
        taken: list[int] = []
        for host in hosts:
            try:
                if self._take(call, order.reservation_id, host):
                    taken.append(host["id"])
            except ResourceOccupied:
                # Somebody forced a server onto it since we looked. Nothing is handed over then, not even the
                # others.
                for host_id in taken:
                    self.return_host(call, order.reservation_id, host_id)
                raise

    def _take(self, call: Call, reservation_id: str, seen: sqlite3.Row) -> bool:
        with self._state.change() as tx:
            host = _host_by_id(tx, seen["id"], seen["name"])
            if host["reservation_id"] == reservation_id:
                return False
            refuse_held(tx, host, reservation_id)
            refuse_occupied(tx, [host], reservation_id)
            if tx.execute("SELECT 1 FROM server WHERE host_id = ? AND preemptible", (host["id"],)).fetchone():
                raise CloudBusy(f"Preemptible servers have not left {host['name']} yet.")
            if not tx.execute("SELECT 1 FROM host_group WHERE reservation_id = ?", (reservation_id,)).fetchone():
                raise CloudBusy(f"The group of reservation {reservation_id} was removed meanwhile.")
            tx.execute("UPDATE host SET pooled = 0, reservation_id = ? WHERE id = ?", (reservation_id, host["id"]))
            self._state.record(
                tx, "ensure_started", EffectKind.HOST_TAKEN, reservation_id=reservation_id, host=host["id"]
            )
        call.effect_happened()
        return True

    def return_surplus(
        self, call: Call, order: Order, keep: set[int], *, only: Collection[int] | None
    ) -> Progress | None:
        """Return the hosts that the reservation keeps no more, or ``only`` some; says so while servers vanish there."""
        with self._state.look() as tx:
            held = [host for host in hosts_held(tx, order.reservation_id) if host not in keep]
        surplus = held if only is None else [host for host in held if host in only]
        lingering: Progress | None = None
        for host in surplus:
            unfinished = self.delete_servers(call, order.reservation_id, host)
            if unfinished is None:
                self.return_host(call, order.reservation_id, host)
            lingering = lingering or unfinished
        return lingering

    def return_host(self, call: Call, reservation_id: str, host: int) -> None:
        with self._state.change() as tx:
            returned = tx.execute(
                "UPDATE host SET pooled = 1, reservation_id = NULL WHERE id = ? AND reservation_id = ?",
                (host, reservation_id),
            ).rowcount
            if returned:
                self._state.record(tx, call.verb, EffectKind.HOST_RETURNED, reservation_id=reservation_id, host=host)
        if returned:
            call.effect_happened()

    def delete_servers(
        self, call: Call, reservation_id: str, host: int | None = None, *, but: int = 0
    ) -> Progress | None:
        """Delete the reservation's servers, there or everywhere, ``but`` the oldest; None when all have vanished."""
        with self._state.look() as tx:
            found = [row for row in servers_of(tx, reservation_id) if host in (None, row["host_id"])]
            kept = {row["number"] for row in [row for row in found if not row["vanishing"]][:but]}
            servers = [row for row in found if row["number"] not in kept]
        unfinished = call.slowed("Servers are still vanishing.") if servers or host is None else None
        for server in servers:
            self.delete_server(call, server, vanishes=unfinished is None)
        return unfinished

    def delete_preemptible(self, call: Call, server: sqlite3.Row) -> Progress | None:
        """Delete a server that is in the way; None when it has vanished."""
        unfinished = call.slowed("Preemptible servers are still vanishing.")
        self.delete_server(call, server, vanishes=unfinished is None)
        return unfinished

    def delete_server(self, call: Call, seen: sqlite3.Row, *, vanishes: bool) -> None:
        """Order its deletion; with ``vanishes`` it is gone then."""
        with self._state.change() as tx:
            ordered = tx.execute(
                "UPDATE server SET vanishing = 1 WHERE number = ? AND NOT vanishing", (seen["number"],)
            ).rowcount
            if ordered:
                name = server_id(seen["number"])
                tx.execute("UPDATE image SET status = 'lost' WHERE server_id = ? AND status = 'saving'", (name,))
                self._state.record(
                    tx,
                    call.verb,
                    EffectKind.SERVER_DELETED,
                    reservation_id=seen["reservation_id"],
                    host=seen["host_id"],
                    subject=name,
                )
            if vanishes:
                tx.execute("DELETE FROM server WHERE number = ?", (seen["number"],))
        if ordered:
            call.effect_happened()

    def remove_group(self, call: Call, reservation_id: str) -> Progress:
        with self._state.change() as tx:
            if hosts_held(tx, reservation_id) or servers_of(tx, reservation_id):
                return Progress(
                    False, timedelta(seconds=1), Reason("The reservation got more while it was taken back.")
                )
            removed = tx.execute("DELETE FROM host_group WHERE reservation_id = ?", (reservation_id,)).rowcount
            if removed:
                self._state.record(tx, call.verb, EffectKind.GROUP_REMOVED, reservation_id=reservation_id)
        if removed:
            call.effect_happened()
        return DONE

    def ensure_image(self, call: Call, order: Order, server: sqlite3.Row) -> None:
        tag = server_id(server["number"])
        with self._state.change() as tx:
            if not tx.execute(
                "SELECT 1 FROM server WHERE number = ? AND NOT vanishing", (server["number"],)
            ).fetchone():
                return
            # The pair of reservation and server is the image's tag: what bears it is not made again.
            made = tx.execute(
                "INSERT INTO image (name, project_id, reservation_id, server_id, status)"
                " VALUES (?, ?, ?, ?, 'saving') ON CONFLICT (reservation_id, server_id) DO NOTHING",
                (f"reserved_{server['name']}", order.project_id, order.reservation_id, tag),
            ).rowcount
            if made:
                self._state.record(
                    tx,
                    call.verb,
                    EffectKind.IMAGE_MADE,
                    reservation_id=order.reservation_id,
                    host=server["host_id"],
                    subject=tag,
                )
        if made:
            call.effect_happened()


def refuse_held(tx: sqlite3.Connection, host: sqlite3.Row, reservation_id: str | None) -> None:
    """Refuse a host that another reservation has, or a part of it.

    The other's end may be under way, so this is worth another try.
    """
    holders = [row["reservation_id"] for row in tx.execute(f"{_PARTS_OF_HOST} ORDER BY 1", (host["id"],))]
    for holder in (host["reservation_id"], *holders):
        if holder not in (None, reservation_id):
            raise CloudBusy(f"{host['name']} is not released yet by reservation {holder}.")


def refuse_occupied(
    tx: sqlite3.Connection, hosts: Iterable[sqlite3.Row], reservation_id: str | None, *, but_preemptible: bool = True
) -> None:
    """Refuse free hosts with servers of others than this reservation, and those that have parts of the host.

    One that is in a group is not asked: it was handed over before. Preemptible servers count only where that is said.
    """
    occupied: dict[str, str] = {}
    for host in hosts:
        if host["reservation_id"] is None:
            count = tx.execute(
                "SELECT count(*) FROM server WHERE host_id = ? AND (reservation_id IS NULL OR"
                f" (reservation_id IS NOT ? AND reservation_id NOT IN ({_PARTS_OF_HOST})))"
                " AND NOT (preemptible AND ?)",
                (host["id"], reservation_id, but_preemptible),
            ).fetchone()[0]
            if count:
                occupied[str(host["id"])] = f"{count} servers of others run on {host['name']}"
    if occupied:
        raise ResourceOccupied(occupied)


def refuse_broken_trust(tx: sqlite3.Connection, order: Order) -> None:
    """Refuse an order whose trust is gone. One without a trust is served: most needs none here."""
    if order.trust_id is None:
        return
    if tx.execute("SELECT 1 FROM trust WHERE id = ?", (order.trust_id,)).fetchone() is None:
        raise CloudRefused(Reason("The trust of the lease's owner does not exist any more."))


def host_of(tx: sqlite3.Connection, resource: ResourceRef) -> sqlite3.Row:
    if not (resource.external_id.isascii() and resource.external_id.isdigit()):
        raise CloudNotFound(f"There is no host {resource.external_id}.")
    return _host_by_id(tx, int(resource.external_id), resource.name)


def hosts_of(tx: sqlite3.Connection, resources: Iterable[ResourceRef]) -> tuple[list[sqlite3.Row], dict[str, str]]:
    """The hosts among these that are there, and what is known of the others, by external id."""
    hosts: list[sqlite3.Row] = []
    missing: dict[str, str] = {}
    for resource in resources:
        try:
            hosts.append(host_of(tx, resource))
        except CloudNotFound as error:
            missing[resource.external_id] = str(error)
    return hosts, missing


def ids_of(tx: sqlite3.Connection, resources: Iterable[ResourceRef]) -> set[int]:
    """The hosts among these that are still there."""
    known = {str(row["id"]): int(row["id"]) for row in tx.execute("SELECT id FROM host")}
    return {known[one.external_id] for one in resources if one.external_id in known}


def _host_by_id(tx: sqlite3.Connection, host_id: int, name: str) -> sqlite3.Row:
    row: sqlite3.Row | None = tx.execute("SELECT * FROM host WHERE id = ?", (host_id,)).fetchone()
    if row is None:
        raise CloudNotFound(f"There is no host {host_id} ({name}) any more.")
    return row


def hosts_held(tx: sqlite3.Connection, reservation_id: str) -> list[int]:
    rows = tx.execute("SELECT id FROM host WHERE reservation_id = ? ORDER BY id", (reservation_id,))
    return [row["id"] for row in rows]


def servers_of(tx: sqlite3.Connection, reservation_id: str) -> list[sqlite3.Row]:
    return tx.execute("SELECT * FROM server WHERE reservation_id = ? ORDER BY number", (reservation_id,)).fetchall()
