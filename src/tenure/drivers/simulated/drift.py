"""What in a simulated cloud is not as the ledger says."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from tenure.domain.address import address_id
from tenure.drivers.contract import Drift, Order, ResourceRef
from tenure.drivers.simulated.addresses import is_tagged_for, marks_of
from tenure.drivers.simulated.places import server_id
from tenure.drivers.simulated.preemption import in_the_way
from tenure.drivers.simulated.volumes import ids_of, volume_id
from tenure.drivers.simulated.wanted import SIZES, Wanted, group_name, policy_of, text_of, units_of, wanted_of

_MISSING = "is not there"


def drift_of_hosts(tx: sqlite3.Connection, orders: Sequence[Order], pooled: Iterable[ResourceRef]) -> Iterator[Drift]:
    """Everything that started orders and registered free hosts would not leave as it is."""
    hosts = {str(row["id"]): row for row in tx.execute("SELECT id, name, pooled, reservation_id FROM host")}
    owners = {row["reservation_id"]: row["project_id"] for row in tx.execute("SELECT * FROM host_group").fetchall()}
    for order in orders:
        yield from _drift_of_order(order, owners.get(order.reservation_id), hosts)
    for resource in pooled:
        host = hosts.get(resource.external_id)
        if host is not None and not host["pooled"] and host["reservation_id"] is None:
            yield Drift(None, resource, f"{resource.name} is not in the pool")


def _drift_of_order(order: Order, owner: str | None, hosts: dict[str, sqlite3.Row]) -> Iterator[Drift]:
    reservation_id = order.reservation_id
    if owner is None:
        yield Drift(reservation_id, None, f"reservation {reservation_id} has no group")
    elif owner != order.project_id:
        yield Drift(reservation_id, None, f"the group of reservation {reservation_id} belongs to project {owner}")
    wanted = {resource.external_id: resource for resource in order.resources}
    for external_id, resource in wanted.items():
        host = hosts.get(external_id)
        if host is not None and host["reservation_id"] != reservation_id:
            yield Drift(reservation_id, resource, f"{resource.name} is {_place(host)}")
    if not wanted.keys() <= hosts.keys():
        return  # what is listed by another id now may be among those that look strange
    for external_id, host in hosts.items():
        if host["reservation_id"] == reservation_id and external_id not in wanted:
            strange = ResourceRef(external_id, host["name"])
            yield Drift(reservation_id, strange, f"{strange.name} is in the group of reservation {reservation_id}")


def _place(host: sqlite3.Row) -> str:
    if host["pooled"]:
        return "in the pool"
    if host["reservation_id"] is None:
        return "in general use"
    return f"in the group of reservation {host['reservation_id']}"


def drift_of_instances(tx: sqlite3.Connection, orders: Sequence[Order]) -> Iterator[Drift]:
    """The same for started orders of instances."""
    found = _Found(tx)
    for order in orders:
        yield from found.drift_of(order)
        for server, resource in in_the_way(tx, order):
            what = (
                f"{server_id(server['number'])} on {resource.name} has the room of reservation {order.reservation_id}"
            )
            yield Drift(order.reservation_id, resource, what)


class _Found:
    """What is there of all reservations of instances, read at once."""

    def __init__(self, tx: sqlite3.Connection) -> None:
        self._hosts = {str(row["id"]): row for row in tx.execute("SELECT id, name, pooled, reservation_id FROM host")}
        self._flavors = {row["id"]: row for row in tx.execute("SELECT * FROM flavor").fetchall()}
        self._groups = {
            (row["name"], row["project_id"]): row for row in tx.execute("SELECT * FROM server_group").fetchall()
        }
        self._aggregates = {row["name"]: row for row in tx.execute("SELECT * FROM aggregate").fetchall()}
        self._members: dict[str, set[str]] = {}
        for row in tx.execute("SELECT name, host_id FROM aggregate_host JOIN aggregate ON id = aggregate_id"):
            self._members.setdefault(row["name"], set()).add(str(row["host_id"]))
        self._access: dict[str, set[str]] = {}
        for row in tx.execute("SELECT * FROM flavor_access"):
            self._access.setdefault(row["flavor_id"], set()).add(row["project_id"])
        self._parts: dict[str, dict[str, int]] = {}
        for row in tx.execute("SELECT * FROM part"):
            self._parts.setdefault(row["resource_class"], {})[str(row["host_id"])] = row["total"]

    def drift_of(self, order: Order) -> Iterator[Drift]:
        reservation_id = order.reservation_id
        group = self._groups.get((group_name(reservation_id), order.project_id))
        wanted = wanted_of(order, None if group is None else str(group["id"]))
        for noun, problem in (
            ("server group", self._of_group(order, group)),
            ("flavor", self._of_flavor(order, wanted)),
            ("aggregate", self._of_aggregate(wanted)),
        ):
            if problem is not None:
                yield Drift(reservation_id, None, f"the {noun} of reservation {reservation_id} {problem}")
        yield from self._of_hosts(order, wanted)

    def _of_group(self, order: Order, group: sqlite3.Row | None) -> str | None:
        policy = policy_of(order)
        if policy is None:
            return None if group is None else "should not be"
        if order.trust_id is None or (group is not None and group["policy"] == policy):
            return None  # without a trust it could not be mended
        return _MISSING if group is None else f"has the policy {group['policy']}"

    def _of_flavor(self, order: Order, wanted: Wanted) -> str | None:
        flavor = self._flavors.get(wanted.id)
        if flavor is None:
            return _MISSING
        if tuple(flavor[name] for name in SIZES) != wanted.sizes or flavor["extra_specs"] != text_of(
            wanted.extra_specs
        ):
            return "was changed"
        if (seen_by := self._access.get(wanted.id, set())) != {order.project_id}:
            return f"is open to {', '.join(sorted(seen_by)) or 'nobody'}"
        return None

    def _of_aggregate(self, wanted: Wanted) -> str | None:
        aggregate = self._aggregates.get(wanted.id)
        if aggregate is None:
            return _MISSING
        return None if aggregate["metadata"] == text_of(wanted.metadata) else "was changed"

    def _of_hosts(self, order: Order, wanted: Wanted) -> Iterator[Drift]:
        members = self._members.get(wanted.id, set())
        parts = self._parts.get(wanted.resource_class, {})
        ordered = {resource.external_id: resource for resource in order.resources}
        for external_id, resource in ordered.items():
            host, units = self._hosts.get(external_id), units_of(order, external_id)
            if host is None:
                continue
            if not host["pooled"] and host["reservation_id"] is None:
                yield Drift(None, resource, f"{resource.name} is not in the pool")
            if external_id not in members or parts.get(external_id) != units:
                what = f"{resource.name} does not have {units} units of reservation {wanted.id}"
                yield Drift(wanted.id, resource, what)
        if not ordered.keys() <= self._hosts.keys():
            return  # what is listed by another id now may be among those that look strange
        for external_id in sorted((members | parts.keys()) - ordered.keys()):
            strange = ResourceRef(external_id, self._hosts[external_id]["name"])
            yield Drift(wanted.id, strange, f"{strange.name} has units of reservation {wanted.id}")


def drift_of_addresses(
    tx: sqlite3.Connection, orders: Sequence[Order], pooled: Iterable[ResourceRef]
) -> Iterator[Drift]:
    """The same for started orders of addresses, and for registered addresses that somebody else has."""
    rows = tx.execute("SELECT * FROM floating_ip").fetchall()
    found = {address_id(row["network_id"], row["address"]): row for row in rows}
    for order in orders:
        reservation_id = order.reservation_id
        ordered = {resource.external_id: resource for resource in order.resources}
        for external_id, resource in ordered.items():
            if (problem := _problem_of_address(order, found.get(external_id))) is not None:
                yield Drift(reservation_id, resource, f"{resource.name} of reservation {reservation_id} {problem}")
        for external_id, row in found.items():
            if reservation_id in marks_of(row) and external_id not in ordered:
                strange = ResourceRef(external_id, row["address"])
                yield Drift(reservation_id, strange, f"reservation {reservation_id} has {strange.name} as well")
    for resource in pooled:
        taken = found.get(resource.external_id)
        if taken is not None and not marks_of(taken):
            yield Drift(None, resource, f"project {taken['project_id']} has {resource.name}")


def drift_of_volumes(tx: sqlite3.Connection, orders: Sequence[Order]) -> Iterator[Drift]:
    """The same for started orders of volumes: those that are not there."""
    there = {volume_id(row["number"]) for row in tx.execute("SELECT number FROM volume")}
    for order in orders:
        known = ids_of(order)
        wanted = sum(order.units.values())
        if missing := [one for one in known if one not in there]:
            yield Drift(order.reservation_id, None, f"{missing[0]} of reservation {order.reservation_id} {_MISSING}")
        elif len(known) < wanted:
            what = f"reservation {order.reservation_id} has {len(known)} volumes of {wanted}"
            yield Drift(order.reservation_id, None, what)


def _problem_of_address(order: Order, row: sqlite3.Row | None) -> str | None:
    if row is None:
        return _MISSING
    if order.reservation_id not in marks_of(row) or row["project_id"] != order.project_id:
        return f"belongs to project {row['project_id']}"
    return None if is_tagged_for(order, row) else "has other tags"
