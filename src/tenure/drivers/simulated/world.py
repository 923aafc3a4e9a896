"""What is in a simulated cloud, and what people other than Tenure do to it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tenure.drivers.simulated.address_world import AddressWorld
from tenure.drivers.simulated.fleet import HostModel, host_model
from tenure.drivers.simulated.instance_world import InstanceWorld
from tenure.drivers.simulated.places import NoValidHost, find_host, number_of, server_id
from tenure.drivers.simulated.state import Effect, EffectKind, StateFile
from tenure.drivers.simulated.volume_world import VolumeWorld

#: The pool's name, which no reservation has: their ids are UUIDs.
POOL: Final = "freepool"


class HostHealth(StrEnum):
    UP = "up"
    DOWN = "down"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Host:
    """A host, with where it belongs: to general use (None), to the pool, or to the reservation of that id."""

    id: str
    name: str
    facts: Mapping[str, object]
    traits: frozenset[str]
    health: HostHealth
    belongs_to: str | None


@dataclass(frozen=True, slots=True)
class Group:
    """The hosts that a project has for a reservation."""

    reservation_id: str
    lease_id: str
    project_id: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Server:
    id: str
    name: str
    host: str
    project_id: str
    reservation_id: str | None
    vanishing: bool
    flavor_id: str | None = None
    group_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    stopped: bool = False

    @property
    def shelved(self) -> bool:
        """Whether it is on no host."""
        return not self.host


class ImageStatus(StrEnum):
    SAVING = "saving"
    ACTIVE = "active"
    LOST = "lost"  # its server was deleted before it was saved


@dataclass(frozen=True, slots=True)
class Image:
    id: str
    name: str
    project_id: str
    reservation_id: str
    server_id: str
    status: ImageStatus


class World:
    """The cloud behind the driver. A host is named by its id or its name.

    What there is for instances, addresses and volumes is in ``instances``, ``addresses`` and ``volumes``.
    """

    def __init__(self, state: StateFile) -> None:
        self._state = state
        self.instances = InstanceWorld(state)
        self.addresses = AddressWorld(state)
        self.volumes = VolumeWorld(state)

    def ensure_hosts(self, count: int) -> None:
        """Let the fleet have ``count`` hosts or more: the same each time, and none again that was removed."""
        with self._state.change() as tx:
            size = tx.execute("SELECT size FROM fleet").fetchone()[0]
            if size >= count:
                return
            models = (host_model(number) for number in range(size + 1, count + 1))
            tx.executemany(
                "INSERT INTO host (name, facts, traits, inventory) VALUES (?, ?, ?, ?)",
                (_host_values(model) for model in models),
            )
            tx.execute("UPDATE fleet SET size = ?", (count,))

    def add_host(
        self,
        name: str | None = None,
        *,
        facts: Mapping[str, object] | None = None,
        traits: Iterable[str] | None = None,
        inventory: Mapping[str, Mapping[str, float]] | None = None,
    ) -> str:
        """A host beside the fleet, like one of it but for what is given here. Returns its id.

        ``inventory`` is what its provider has beyond what the facts say, by resource class: ``total``, ``reserved``,
        ``allocation_ratio``, ``min_unit``, ``max_unit``, ``step_size``, of which any may be left out.
        """
        with self._state.change() as tx:
            number = tx.execute("SELECT coalesce(max(id), 0) + 1 FROM host").fetchone()[0]
            model = host_model(number)
            name = name or f"sim-extra-{number:03d}"
            own = {"hypervisor_hostname": name, "service_name": name, **(facts or {})}
            added = HostModel(
                name,
                {**model.facts, **own},
                model.traits if traits is None else frozenset(traits),
                model.inventory if inventory is None else inventory,
            )
            values = _host_values(added)
            tx.execute("INSERT INTO host (name, facts, traits, inventory) VALUES (?, ?, ?, ?)", values)
            return str(tx.execute("SELECT last_insert_rowid()").fetchone()[0])

    def change_host(
        self,
        host: str,
        *,
        facts: Mapping[str, object] | None = None,
        traits: Iterable[str] | None = None,
        inventory: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Change what the cloud says of a host: facts that are not given stay, traits and inventory are replaced."""
        with self._state.change() as tx:
            row = find_host(tx, host)
            tx.execute(
                "UPDATE host SET facts = ?, traits = ?, inventory = ? WHERE id = ?",
                (
                    json.dumps({**json.loads(row["facts"]), **(facts or {})}),
                    row["traits"] if traits is None else json.dumps(sorted(traits)),
                    row["inventory"] if inventory is None else json.dumps(inventory),
                    row["id"],
                ),
            )

    def remove_host(self, host: str) -> None:
        """The host is gone for good, and its servers with it."""
        with self._state.change() as tx:
            host_id = find_host(tx, host)["id"]
            tx.execute("DELETE FROM server WHERE host_id = ?", (host_id,))
            tx.execute("DELETE FROM host WHERE id = ?", (host_id,))

    def mark_host(self, host: str, health: HostHealth) -> None:
        with self._state.change() as tx:
            tx.execute("UPDATE host SET health = ? WHERE id = ?", (health, find_host(tx, host)["id"]))

    def take_out(self, host: str) -> None:
        """Somebody takes the host out of the pool or group it is in: it is in general use then."""
        with self._state.change() as tx:
            host_id = find_host(tx, host)["id"]
            tx.execute("UPDATE host SET pooled = 0, reservation_id = NULL WHERE id = ?", (host_id,))

    def drop_group(self, reservation_id: str) -> None:
        """Somebody deletes a reservation's group: its hosts are in general use then."""
        with self._state.change() as tx:
            tx.execute("UPDATE host SET reservation_id = NULL WHERE reservation_id = ?", (reservation_id,))
            tx.execute("DELETE FROM host_group WHERE reservation_id = ?", (reservation_id,))

    def put_in(self, host: str, reservation_id: str) -> None:
        """Somebody puts the host into the group of a reservation, wherever it was."""
        with self._state.change() as tx:
            host_id = find_host(tx, host)["id"]
            tx.execute("UPDATE host SET pooled = 0, reservation_id = ? WHERE id = ?", (reservation_id, host_id))

    def change_owner(self, reservation_id: str, project_id: str) -> None:
        """Somebody gives a reservation's group to another project."""
        with self._state.change() as tx:
            tx.execute("UPDATE host_group SET project_id = ? WHERE reservation_id = ?", (project_id, reservation_id))

    def boot_server(
        self,
        project_id: str,
        *,
        name: str = "server",
        reservation_id: str | None = None,
        host: str | None = None,
    ) -> str:
        """Boot a server as a user does, with ``reservation_id`` as the scheduler hint. Returns its id.

        Goes to the first host that is up and that the user may use, or to ``host`` if it is such a one. With
        the hint that is a host of that reservation, for the project that owns it; without, one in general
        use. Raises ``NoValidHost``.
        """
        with self._state.change() as tx:
            conditions = ["health = 'up'"]
            values: list[object] = []
            if host is not None:
                conditions.append("id = ?")
                values.append(find_host(tx, host)["id"])
            if reservation_id is None:
                conditions.append("NOT pooled AND reservation_id IS NULL")
            else:
                conditions.append(
                    "reservation_id = (SELECT reservation_id FROM host_group"
                    " WHERE reservation_id = ? AND project_id = ?)"
                )
                values += (reservation_id, project_id)
            found = tx.execute(f"SELECT id FROM host WHERE {' AND '.join(conditions)} ORDER BY id LIMIT 1", values)
            row = found.fetchone()
            if row is None:
                raise NoValidHost("No valid host was found: none is up, and open to this project and this hint.")
            return self._boot(tx, row["id"], project_id, name, reservation_id)

    def force_server(self, project_id: str, host: str, *, name: str = "server") -> str:
        """Boot a server on that host whoever may use it, as an administrator can. Returns its id."""
        with self._state.change() as tx:
            return self._boot(tx, find_host(tx, host)["id"], project_id, name, None)

    def move_server(self, server: str, host: str) -> None:
        """Somebody moves the server to that host, whoever may use it."""
        with self._state.change() as tx:
            host_id = find_host(tx, host)["id"]
            tx.execute("UPDATE server SET host_id = ? WHERE number = ?", (host_id, number_of(server)))

    def delete_server(self, server_id: str) -> None:
        """Delete a server as its user does. One that is gone is no error."""
        with self._state.change() as tx:
            tx.execute("DELETE FROM server WHERE number = ?", (number_of(server_id),))

    def hosts(self) -> list[Host]:
        with self._state.look() as tx:
            rows = tx.execute("SELECT * FROM host ORDER BY id").fetchall()
        return [_host(row) for row in rows]

    def host(self, host: str) -> Host:
        with self._state.look() as tx:
            return _host(find_host(tx, host))

    def pool(self) -> frozenset[str]:
        """The ids of the hosts that are set aside and free."""
        with self._state.look() as tx:
            return frozenset(str(row["id"]) for row in tx.execute("SELECT id FROM host WHERE pooled"))

    def groups(self) -> dict[str, Group]:
        """The groups by reservation."""
        with self._state.look() as tx:
            members: dict[str, list[str]] = {}
            for row in tx.execute("SELECT id, reservation_id FROM host WHERE reservation_id IS NOT NULL ORDER BY id"):
                members.setdefault(row["reservation_id"], []).append(str(row["id"]))
            rows = tx.execute("SELECT * FROM host_group ORDER BY reservation_id").fetchall()
        return {
            row["reservation_id"]: Group(
                row["reservation_id"],
                row["lease_id"],
                row["project_id"],
                tuple(members.get(row["reservation_id"], ())),
            )
            for row in rows
        }

    def servers(self, host: str | None = None) -> list[Server]:
        """All servers, or those of one host; those that are vanishing are still there."""
        with self._state.look() as tx:
            where, values = ("", ()) if host is None else ("WHERE host_id = ?", (find_host(tx, host)["id"],))
            rows = tx.execute(f"SELECT * FROM server {where} ORDER BY number", values).fetchall()
        return [
            Server(
                server_id(row["number"]),
                row["name"],
                "" if row["host_id"] is None else str(row["host_id"]),
                row["project_id"],
                row["reservation_id"],
                bool(row["vanishing"]),
                row["flavor_id"],
                row["group_id"],
                json.loads(row["metadata"]),
                bool(row["stopped"]),
            )
            for row in rows
        ]

    def images(self, reservation_id: str | None = None) -> list[Image]:
        with self._state.look() as tx:
            rows = tx.execute("SELECT * FROM image ORDER BY number").fetchall()
        return [
            Image(
                f"image-{row['number']:06d}",
                row["name"],
                row["project_id"],
                row["reservation_id"],
                row["server_id"],
                ImageStatus(row["status"]),
            )
            for row in rows
            if reservation_id in (None, row["reservation_id"])
        ]

    def trusts(self) -> frozenset[str]:
        """The ids of the trusts that were made and not revoked."""
        with self._state.look() as tx:
            return frozenset(row["id"] for row in tx.execute("SELECT id FROM trust"))

    def journal(self, reservation_id: str | None = None) -> list[Effect]:
        """Everything that Tenure and users changed, or what was changed for one reservation, oldest first."""
        return self._state.journal(reservation_id)

    def number_servers_from(self, first: int) -> None:
        """Have servers that are booted from now on bear this number or a higher one."""
        with self._state.change() as tx:
            highest = tx.execute("SELECT seq FROM sqlite_sequence WHERE name = 'server'").fetchone()
            if highest is None:
                tx.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('server', ?)", (first - 1,))
            elif highest["seq"] < first - 1:
                tx.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'server'", (first - 1,))

    def _boot(
        self, tx: sqlite3.Connection, host_id: int, project_id: str, name: str, reservation_id: str | None
    ) -> str:
        cursor = tx.execute(
            "INSERT INTO server (name, host_id, project_id, reservation_id, booted_at) VALUES (?, ?, ?, ?, ?)",
            (name, host_id, project_id, reservation_id, self._state.now().isoformat()),
        )
        assert cursor.lastrowid is not None
        booted = server_id(cursor.lastrowid)
        self._state.record(
            tx, "boot", EffectKind.SERVER_BOOTED, reservation_id=reservation_id, host=host_id, subject=booted
        )
        return booted


def _host_values(model: HostModel) -> tuple[str, str, str, str]:
    return model.name, json.dumps(model.facts), json.dumps(sorted(model.traits)), json.dumps(model.inventory)


def _host(row: sqlite3.Row) -> Host:
    return Host(
        str(row["id"]),
        row["name"],
        json.loads(row["facts"]),
        frozenset(json.loads(row["traits"])),
        HostHealth(row["health"]),
        POOL if row["pooled"] else row["reservation_id"],
    )
