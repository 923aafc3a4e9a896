"""What in a simulated cloud is not as the ledger says."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from tenure.drivers.contract import Drift, Order, ResourceRef


def drift_of(tx: sqlite3.Connection, orders: Sequence[Order], pooled: Iterable[ResourceRef]) -> Iterator[Drift]:
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
