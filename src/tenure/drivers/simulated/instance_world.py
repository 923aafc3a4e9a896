"""Flavors, aggregates, inventories and server groups of a simulated cloud, and what people do with them."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from tenure.domain.capacity import Capacity
from tenure.drivers.contract import CloudNotFound
from tenure.drivers.simulated.flavors import RESERVED, class_asked_for, facts_of_flavor, is_preemptible, suits, taken_by
from tenure.drivers.simulated.fleet import capacity_of, limits_of
from tenure.drivers.simulated.places import NoValidHost, find_host, number_of, server_id
from tenure.drivers.simulated.state import EffectKind, StateFile
from tenure.drivers.simulated.wanted import class_of, group_name, text_of


@dataclass(frozen=True, slots=True)
class Flavor:
    """Memory and swap are in MiB, disks in GiB. ``access`` are the projects that see it where it is not public."""

    id: str
    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int
    swap: int
    is_public: bool
    extra_specs: Mapping[str, str]
    access: frozenset[str]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The hosts, by id, of a reservation of instances, or of an operator."""

    id: int
    name: str
    metadata: Mapping[str, str]
    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class ServerGroup:
    id: str
    name: str
    project_id: str
    policy: str
    members: tuple[str, ...]


class InstanceWorld:
    """What there is for instances. A host is named by its id or its name, a reservation by its id."""

    def __init__(self, state: StateFile) -> None:
        self._state = state

    # As a user

    def write(self, server: str, metadata: Mapping[str, str]) -> None:
        """Write in the metadata of a server, as its users can. Raises ``CloudNotFound``."""
        with self._state.change() as tx:
            row = tx.execute("SELECT metadata FROM server WHERE number = ?", (number_of(server),)).fetchone()
            if row is None:
                raise CloudNotFound(f"There is no server {server}.")
            after = text_of({**json.loads(row["metadata"]), **metadata})
            tx.execute("UPDATE server SET metadata = ? WHERE number = ?", (after, number_of(server)))

    def shelve(self, server: str) -> None:
        """Put a server away, as its users can: it is on no host then."""
        with self._state.change() as tx:
            tx.execute("UPDATE server SET host_id = NULL WHERE number = ?", (number_of(server),))

    def resize(self, server: str, flavor_id: str) -> None:
        """Make a server one of another flavor, on the host that it is on, as its users can."""
        with self._state.change() as tx:
            row = tx.execute("SELECT project_id FROM server WHERE number = ?", (number_of(server),)).fetchone()
            flavor = facts_of_flavor(tx, flavor_id, row["project_id"])
            takes = json.dumps(dict(taken_by(flavor)))
            tx.execute(
                "UPDATE server SET flavor_id = ?, takes = ? WHERE number = ?", (flavor_id, takes, number_of(server))
            )

    def boot(
        self,
        project_id: str,
        flavor_id: str,
        *,
        name: str = "server",
        group: str | None = None,
        host: str | None = None,
        metadata: Mapping[str, str] | None = None,
        user_id: str = "",
    ) -> str:
        """Boot a server of that flavor as a user does, with ``group`` as the scheduler hint. Returns its id.

        Goes to the first host that is up, that has room, that the flavor and the policy of the group allow, or to
        ``host`` if it is such a one. Raises ``CloudNotFound`` for a flavor that the project does not see and a group
        that is not its own, and ``NoValidHost``.
        """
        with self._state.change() as tx:
            flavor = facts_of_flavor(tx, flavor_id, project_id)
            hosts = tx.execute("SELECT * FROM host WHERE health = 'up' ORDER BY id").fetchall()
            only = None if host is None else find_host(tx, host)["id"]
            policy = None if group is None else _policy_of(tx, group, project_id)
            used = {row["host_id"] for row in tx.execute("SELECT host_id FROM server WHERE group_id = ?", (group,))}
            for one in hosts:
                if (
                    only in (None, one["id"])
                    and not (policy == "affinity" and used and one["id"] not in used)
                    and not (policy == "anti-affinity" and one["id"] in used)
                    and suits(flavor, frozenset(json.loads(one["traits"])))
                    and _is_open(tx, one, flavor, project_id)
                    and _has_room(tx, one, flavor)
                ):
                    booted = self._boot(tx, one["id"], project_id, name, flavor, group)
                    tx.execute(
                        "UPDATE server SET metadata = ?, user_id = ? WHERE number = ?",
                        (text_of(metadata or {}), user_id, number_of(booted)),
                    )
                    return booted
            raise NoValidHost("No valid host was found: none is open to this flavor and this group, and has room.")

    def make_group(self, project_id: str, name: str, policy: str) -> str:
        """Make a server group as a user does. Returns its id."""
        made = str(uuid.uuid4())
        with self._state.change() as tx:
            tx.execute("INSERT INTO server_group VALUES (?, ?, ?, ?)", (made, name, project_id, policy))
        return made

    # To look

    def flavors(self) -> dict[str, Flavor]:
        """All flavors by id."""
        with self._state.look() as tx:
            access: dict[str, set[str]] = {}
            for row in tx.execute("SELECT * FROM flavor_access"):
                access.setdefault(row["flavor_id"], set()).add(row["project_id"])
            rows = tx.execute("SELECT * FROM flavor ORDER BY id").fetchall()
        return {
            row["id"]: Flavor(
                row["id"],
                row["name"],
                row["vcpus"],
                row["ram"],
                row["disk"],
                row["ephemeral"],
                row["swap"],
                bool(row["is_public"]),
                json.loads(row["extra_specs"]),
                frozenset(access.get(row["id"], ())),
            )
            for row in rows
        }

    def aggregates(self) -> dict[str, Aggregate]:
        """All aggregates by name, but for the pool and those of whole hosts."""
        with self._state.look() as tx:
            members: dict[int, set[str]] = {}
            for row in tx.execute("SELECT * FROM aggregate_host"):
                members.setdefault(row["aggregate_id"], set()).add(str(row["host_id"]))
            rows = tx.execute("SELECT * FROM aggregate ORDER BY id").fetchall()
        return {
            row["name"]: Aggregate(
                row["id"], row["name"], json.loads(row["metadata"]), frozenset(members.get(row["id"], ()))
            )
            for row in rows
        }

    def inventories(self) -> dict[str, dict[str, int]]:
        """The classes of reservations, and how many units which host has of each, by its id."""
        with self._state.look() as tx:
            found: dict[str, dict[str, int]] = {row["name"]: {} for row in tx.execute("SELECT * FROM resource_class")}
            for row in tx.execute("SELECT * FROM part ORDER BY host_id"):
                found[row["resource_class"]][str(row["host_id"])] = row["total"]
        return found

    def units(self, reservation_id: str) -> dict[str, int]:
        """How many units a reservation has on which host, by its id."""
        return self.inventories().get(class_of(reservation_id), {})

    def server_groups(self) -> dict[str, ServerGroup]:
        """All server groups by id."""
        with self._state.look() as tx:
            members: dict[str, list[str]] = {}
            for row in tx.execute("SELECT number, group_id FROM server WHERE group_id IS NOT NULL ORDER BY number"):
                members.setdefault(row["group_id"], []).append(server_id(row["number"]))
            rows = tx.execute("SELECT * FROM server_group ORDER BY id").fetchall()
        return {row["id"]: ServerGroup(**dict(row), members=tuple(members.get(row["id"], ()))) for row in rows}

    def traces(self, reservation_id: str) -> frozenset[str]:
        """What there is of a reservation of instances, by the noun for it."""
        groups = {group.name for group in self.server_groups().values()}
        found = {
            "flavor": reservation_id in self.flavors(),
            "aggregate": reservation_id in self.aggregates(),
            "resource class": class_of(reservation_id) in self.inventories(),
            "inventory": bool(self.units(reservation_id)),
            "server group": group_name(reservation_id) in groups,
        }
        return frozenset(noun for noun, is_there in found.items() if is_there)

    # To meddle

    def add_flavor(
        self,
        flavor_id: str,
        *,
        vcpus: int = 1,
        ram: int = 512,
        disk: int = 1,
        ephemeral: int = 0,
        swap: int = 0,
        is_public: bool = True,
        extra_specs: Mapping[str, str] | None = None,
    ) -> None:
        """The operator makes a flavor, whose name is its id."""
        with self._state.change() as tx:
            tx.execute(
                "INSERT INTO flavor VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (flavor_id, flavor_id, vcpus, ram, disk, ephemeral, swap, is_public, text_of(extra_specs or {})),
            )

    def change_extra_specs(self, flavor_id: str, **changes: str | None) -> None:
        """Somebody sets extra specs of a flavor, or removes those that are None."""
        with self._state.change() as tx:
            row = tx.execute("SELECT extra_specs FROM flavor WHERE id = ?", (flavor_id,)).fetchone()
            specs = {**json.loads(row["extra_specs"]), **changes}
            kept = text_of({name: value for name, value in specs.items() if value is not None})
            tx.execute("UPDATE flavor SET extra_specs = ? WHERE id = ?", (kept, flavor_id))

    def delete_flavor(self, flavor_id: str) -> None:
        """Somebody deletes a flavor; servers of it stay."""
        self._change("DELETE FROM flavor WHERE id = ?", flavor_id)

    def give_access(self, flavor_id: str, project_id: str) -> None:
        """Somebody lets a project see a flavor."""
        self._change("INSERT INTO flavor_access VALUES (?, ?) ON CONFLICT DO NOTHING", flavor_id, project_id)

    def take_access(self, flavor_id: str, project_id: str) -> None:
        """Somebody hides a flavor from a project."""
        self._change("DELETE FROM flavor_access WHERE flavor_id = ? AND project_id = ?", flavor_id, project_id)

    def delete_aggregate(self, name: str) -> None:
        """Somebody deletes an aggregate; its hosts stay where they are."""
        self._change("DELETE FROM aggregate WHERE name = ?", name)

    def change_metadata(self, name: str, **changes: str | None) -> None:
        """Somebody sets metadata of an aggregate, or removes those that are None."""
        with self._state.change() as tx:
            row = tx.execute("SELECT metadata FROM aggregate WHERE name = ?", (name,)).fetchone()
            metadata = {**json.loads(row["metadata"]), **changes}
            kept = text_of({key: value for key, value in metadata.items() if value is not None})
            tx.execute("UPDATE aggregate SET metadata = ? WHERE name = ?", (kept, name))

    def add_to_aggregate(self, name: str, host: str) -> None:
        """Somebody adds a host to an aggregate."""
        with self._state.change() as tx:
            tx.execute(
                "INSERT INTO aggregate_host SELECT id, ? FROM aggregate WHERE name = ? ON CONFLICT DO NOTHING",
                (find_host(tx, host)["id"], name),
            )

    def take_from_aggregate(self, name: str, host: str) -> None:
        """Somebody takes a host out of an aggregate."""
        with self._state.change() as tx:
            tx.execute(
                "DELETE FROM aggregate_host WHERE host_id = ?"
                " AND aggregate_id = (SELECT id FROM aggregate WHERE name = ?)",
                (find_host(tx, host)["id"], name),
            )

    def set_units(self, reservation_id: str, host: str, units: int | None) -> None:
        """Somebody lets a host have so many units of a reservation's class, or none at all."""
        with self._state.change() as tx:
            host_id, name = find_host(tx, host)["id"], class_of(reservation_id)
            tx.execute("DELETE FROM part WHERE host_id = ? AND resource_class = ?", (host_id, name))
            if units is not None:
                tx.execute("INSERT INTO part VALUES (?, ?, ?)", (host_id, name, units))

    def delete_class(self, reservation_id: str) -> None:
        """Somebody deletes the resource class of a reservation, with every inventory of it."""
        with self._state.change() as tx:
            tx.execute("DELETE FROM part WHERE resource_class = ?", (class_of(reservation_id),))
            tx.execute("DELETE FROM resource_class WHERE name = ?", (class_of(reservation_id),))

    def delete_group(self, group_id: str) -> None:
        """Somebody deletes a server group; its servers stay."""
        self._change("DELETE FROM server_group WHERE id = ?", group_id)

    def _change(self, statement: str, *values: str) -> None:
        with self._state.change() as tx:
            tx.execute(statement, values)

    def _boot(
        self,
        tx: sqlite3.Connection,
        host_id: int,
        project_id: str,
        name: str,
        flavor: dict[str, object],
        group: str | None,
    ) -> str:
        reservation_id = flavor["id"] if flavor["name"] == group_name(str(flavor["id"])) else None
        cursor = tx.execute(
            "INSERT INTO server (name, host_id, project_id, reservation_id, flavor_id, takes, group_id, preemptible,"
            " booted_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                name,
                host_id,
                project_id,
                reservation_id,
                flavor["id"],
                json.dumps(dict(taken_by(flavor))),
                group,
                is_preemptible(flavor),
                self._state.now().isoformat(),
            ),
        )
        assert cursor.lastrowid is not None
        booted = server_id(cursor.lastrowid)
        reservation = None if reservation_id is None else str(reservation_id)
        self._state.record(
            tx, "boot", EffectKind.SERVER_BOOTED, reservation_id=reservation, host=host_id, subject=booted
        )
        return booted


def _policy_of(tx: sqlite3.Connection, group: str, project_id: str) -> str:
    row = tx.execute("SELECT policy FROM server_group WHERE id = ? AND project_id = ?", (group, project_id)).fetchone()
    if row is None:
        raise CloudNotFound(f"Instance group {group} could not be found.")
    return str(row["policy"])


def _is_open(tx: sqlite3.Connection, host: sqlite3.Row, flavor: dict[str, object], project_id: str) -> bool:
    """Whether the filters of Nova's scheduler let a server of the flavor onto the host."""
    specs = flavor["extra_specs"]
    assert isinstance(specs, dict)
    if RESERVED not in specs:
        return host["reservation_id"] is None and bool(host["pooled"]) is is_preemptible(flavor)
    rows = tx.execute(
        "SELECT metadata FROM aggregate JOIN aggregate_host ON id = aggregate_id WHERE host_id = ?", (host["id"],)
    ).fetchall()
    for metadata in (json.loads(row["metadata"]) for row in rows):
        if metadata.get("reservation") == specs[RESERVED]:
            fits_group = specs.get("affinity_id") in (None, metadata.get("affinity_id"))
            return fits_group and metadata.get("filter_tenant_id") in (None, project_id)
    return False


def _has_room(tx: sqlite3.Connection, host: sqlite3.Row, flavor: dict[str, object]) -> bool:
    """Whether Placement finds what a server of the flavor takes, below the host's provider."""
    resource_class = class_asked_for(flavor)
    if resource_class is not None:
        part = tx.execute(
            "SELECT total FROM part WHERE host_id = ? AND resource_class = ?", (host["id"], resource_class)
        ).fetchone()
        used = tx.execute(
            "SELECT count(*) AS units FROM server WHERE host_id = ? AND flavor_id = ?", (host["id"], flavor["id"])
        ).fetchone()
        if part is None or part["total"] <= used["units"]:
            return False
    rows = tx.execute("SELECT takes FROM server WHERE host_id = ?", (host["id"],)).fetchall()
    takes = taken_by(flavor)
    provider = json.loads(host["facts"]), json.loads(host["inventory"])
    limits = limits_of(*provider)
    for name, amount in takes.items():
        limit = limits.get(name)
        if limit is not None and not (limit["min"] <= amount <= limit["max"] and amount % limit["step"] == 0):
            return False
    return capacity_of(*provider).fits(sum((Capacity(json.loads(row["takes"])) for row in rows), takes))
