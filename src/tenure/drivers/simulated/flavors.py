"""Flavors of a simulated cloud, and what a server of one takes of its host."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import Any, Final

from tenure.domain.capacity import Capacity
from tenure.domain.footprint import footprint_of
from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudNotFound

_RESOURCES: Final = re.compile(r"resources([\w-]*):(\w+)")
_TRAIT: Final = re.compile(r"trait[\w-]*:(\w+)")
_OF_RESERVATIONS: Final = "CUSTOM_RESERVATION_"
#: The extra spec of which only a reservation's flavor has one.
RESERVED: Final = "aggregate_instance_extra_specs:reservation"


def facts_of_flavor(tx: sqlite3.Connection, flavor_id: str, project_id: str | None) -> dict[str, Any]:
    """What the cloud says of a flavor that the project may see. Raises ``CloudNotFound``."""
    row = tx.execute(
        "SELECT * FROM flavor WHERE id = ? AND (is_public OR EXISTS"
        " (SELECT 1 FROM flavor_access WHERE flavor_id = flavor.id AND project_id = ?))",
        (flavor_id, project_id),
    ).fetchone()
    if row is None:
        raise CloudNotFound(Reason(f"Flavor {flavor_id} could not be found."))
    facts = {name: row[name] for name in ("id", "name", "vcpus", "ram", "disk", "ephemeral", "swap")}
    return {**facts, "extra_specs": json.loads(row["extra_specs"])}


def facts_of_any(tx: sqlite3.Connection, flavor_id: str | None, takes: dict[str, int]) -> dict[str, Any]:
    """The flavor that a server was booted with, or what is left to tell of it: what the server takes."""
    row = tx.execute("SELECT * FROM flavor WHERE id = ?", (flavor_id,)).fetchone()
    if row is not None:
        facts = {name: row[name] for name in ("id", "name", "vcpus", "ram", "disk", "ephemeral", "swap")}
        return {**facts, "extra_specs": json.loads(row["extra_specs"])}
    sizes = {"vcpus": takes.get("VCPU", 1), "ram": takes.get("MEMORY_MB", 512), "disk": takes.get("DISK_GB", 1)}
    return {"id": flavor_id, "name": flavor_id, **sizes, "ephemeral": 0, "swap": 0, "extra_specs": {}}


def taken_by(flavor: dict[str, Any]) -> Capacity:
    """What a server of the flavor takes of its host, beside a unit of a reservation's class."""
    amounts = footprint_of(flavor).amounts
    return Capacity({name: amount for name, amount in amounts.items() if not name.startswith(_OF_RESERVATIONS)})


def class_asked_for(flavor: dict[str, Any]) -> str | None:
    """The class of a reservation of which a server of the flavor takes a unit."""
    names = (found[2] for name in flavor["extra_specs"] if (found := _RESOURCES.fullmatch(name)))
    return next((name for name in names if name.startswith(_OF_RESERVATIONS)), None)


def is_preemptible(flavor: dict[str, Any]) -> bool:
    """Whether servers of the flavor may use what is reserved, for as long as that has not started.

    Those of a reservation's own flavor are what it is reserved for.
    """
    specs = flavor["extra_specs"]
    asked = str(specs.get("blazar:preemptible", "")).lower() in {"1", "t", "true", "on", "y", "yes"}
    return asked and RESERVED not in specs


def suits(flavor: dict[str, Any], traits: frozenset[str]) -> bool:
    """Whether a host of these traits has those that the flavor requires, and none that it forbids."""
    asked = {found[1]: value for name, value in flavor["extra_specs"].items() if (found := _TRAIT.fullmatch(name))}
    return all((name in traits) is (value == "required") for name, value in asked.items())
