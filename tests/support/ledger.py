"""An independent check of the ledger: plain SQL that shares no code with the service.

It reads the tables over its own connection, and describes faults as texts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

#: Two allocations of one resource that overlap, at least one of them exclusive.
_OVERLAPS = """
    SELECT a.id, b.id, a.resource_id
    FROM allocations a JOIN allocations b
      ON b.resource_id = a.resource_id AND b.id > a.id AND a.starts_at < b.ends_at AND b.starts_at < a.ends_at
    WHERE (a.exclusive OR b.exclusive) AND a.state <> 'lapsed' AND b.state <> 'lapsed'
    ORDER BY a.id, b.id
"""
_PARTS = """
    SELECT resource_id, starts_at, ends_at, amounts FROM allocations WHERE NOT exclusive AND state <> 'lapsed'
"""
_ALLOCATIONS_OF_NOBODY = """
    SELECT a.id, a.reservation_id FROM allocations a
    LEFT JOIN reservations r ON r.id = a.reservation_id WHERE r.id IS NULL
"""
_ALLOCATIONS_OF_NOTHING = """
    SELECT a.id, a.resource_id FROM allocations a
    LEFT JOIN resources s ON s.id = a.resource_id WHERE s.id IS NULL
"""
_RESERVATIONS_OF_NO_LEASE = """
    SELECT r.id, r.lease_id FROM reservations r LEFT JOIN leases l ON l.id = r.lease_id WHERE l.id IS NULL
"""
#: The units of a reservation on each resource, and the rule for their distribution.
_SPREAD = """
    SELECT r.id AS reservation_id, r.resource_type AS resource_type, r.parameters AS parameters,
           a.resource_id AS resource_id, a.units AS units, a.amounts AS amounts, a.exclusive AS exclusive
    FROM allocations a JOIN reservations r ON r.id = a.reservation_id
    WHERE a.state NOT IN ('released', 'lapsed')
    ORDER BY r.id, a.id
"""
_HOLDINGS = """
    SELECT r.id AS reservation_id, r.resource_type AS resource_type, r.parameters AS parameters,
           r.status AS status, l.status AS lease_status, l.project_id AS project_id,
           s.external_id AS external_id, s.name AS name, a.units AS units
    FROM reservations r JOIN leases l ON l.id = r.lease_id
    LEFT JOIN allocations a ON a.reservation_id = r.id AND a.state = 'held'
    LEFT JOIN resources s ON s.id = a.resource_id
    WHERE l.deleted_at IS NULL AND l.status IN ('PENDING', 'ACTIVE') AND r.status <> 'deleted'
    ORDER BY r.id, a.id
"""
_EMPTY = "SELECT id, resource_id FROM allocations WHERE NOT starts_at < ends_at"
#: The room of kept volumes, which the ledger does not give to others.
_KEPT_FOR_NOBODY = """
    SELECT a.id, l.id, l.status FROM allocations a
    JOIN reservations r ON r.id = a.reservation_id JOIN leases l ON l.id = r.lease_id
    WHERE a.state NOT IN ('released', 'kept', 'lapsed')
      AND (l.status IN ('TERMINATED', 'DELETED') OR l.deleted_at IS NOT NULL)
"""
_RESERVATIONS = """
    SELECT l.id AS lease_id, l.status AS lease_status, r.id AS reservation_id, r.parameters AS parameters,
           l.ends_at AS lease_ends_at,
           (SELECT COALESCE(SUM(a.units), 0) FROM allocations a
               WHERE a.reservation_id = r.id AND a.state = 'planned') AS planned,
           (SELECT COALESCE(SUM(a.units), 0) FROM allocations a
               WHERE a.reservation_id = r.id AND a.state = 'held') AS held,
           (SELECT COUNT(*) FROM allocations a WHERE a.reservation_id = r.id AND a.state NOT IN ('released', 'lapsed')
               AND a.ends_at < l.ends_at) AS short
    FROM reservations r JOIN leases l ON l.id = r.lease_id
    WHERE l.deleted_at IS NULL AND l.status IN ('PENDING', 'ACTIVE') AND r.status <> 'deleted'
      AND l.starts_at < l.ends_at
"""


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as it is in the tables."""

    status: str
    deleted: bool
    reservation_ids: frozenset[str]
    #: The external ids of the resources with its current allocations.
    hosts: tuple[str, ...]
    #: The units of each of its reservations.
    units: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Holding:
    """The current resources of a reservation of a pending or running lease."""

    reservation_id: str
    resource_type: str
    project_id: str
    running: bool
    parameters: Mapping[str, Any]
    #: By external id of the resource: its name, and the units on it.
    names: Mapping[str, str]
    units: Mapping[str, int]


def overbooked(url: str) -> list[str]:
    """Return every resource with more promised at some instant than it has, by class."""
    with _connected(url) as connection:
        capacities = {
            number: _document(capacity)
            for number, capacity in connection.execute(text("SELECT id, capacity FROM resources"))
        }
        steps: dict[tuple[int, str], list[tuple[datetime, int]]] = {}
        for resource, starts, ends, amounts in connection.execute(text(_PARTS)):
            for name, amount in _document(amounts).items():
                steps.setdefault((resource, name), []).extend(((_moment(starts), amount), (_moment(ends), -amount)))
    found = []
    for (resource, name), changes in sorted(steps.items()):
        level = highest = 0
        for _, change in sorted(changes):  # at equal times the release comes first
            level += change
            highest = max(highest, level)
        if highest > capacities[resource].get(name, 0):
            found.append(
                f"resource {resource} has {capacities[resource].get(name, 0)} of {name}, {highest} are promised"
            )
    return found


def overlaps(url: str) -> list[str]:
    """Return every two exclusive allocations of one resource that overlap."""
    with _connected(url) as connection:
        return [
            f"allocations {first} and {second} have resource {resource} at the same time"
            for first, second, resource in connection.execute(text(_OVERLAPS))
        ]


def faults(url: str, *, now: datetime | None = None) -> list[str]:
    """Return all violated rules as texts; empty for a sound ledger.

    With ``now``, leases after their end may lack resources: a change of a lease that never started releases them.
    """
    found = overlaps(url) + overbooked(url)
    with _connected(url) as connection:
        for statement, words in (
            (_ALLOCATIONS_OF_NOBODY, "allocation {0} is of reservation {1}, which does not exist"),
            (_ALLOCATIONS_OF_NOTHING, "allocation {0} is of resource {1}, which does not exist"),
            (_RESERVATIONS_OF_NO_LEASE, "reservation {0} is of lease {1}, which does not exist"),
            (_EMPTY, "allocation {0} of resource {1} lasts for no time"),
            (_KEPT_FOR_NOBODY, "allocation {0} is kept for lease {1}, which is {2}"),
        ):
            found += [words.format(*row) for row in connection.execute(text(statement))]
        for row in connection.execute(text(_RESERVATIONS)).mappings():
            if now is None or _moment(row["lease_ends_at"]) > now:
                found += _incomplete(dict(row))
        found += _misplaced(connection)
    return found


def _misplaced(connection: Connection) -> list[str]:
    """Return reservations whose units are distributed against their rule, or have other amounts."""
    places: dict[str, Counter[int]] = {}
    affinities: dict[str, object] = {}
    wrong = []
    for row in connection.execute(text(_SPREAD)).mappings():
        number, parameters = row["reservation_id"], _document(row["parameters"])
        places.setdefault(number, Counter())[row["resource_id"]] += row["units"]
        affinities[number] = False if row["exclusive"] else parameters.get("affinity")
        if row["resource_type"] == "virtual:instance":
            sizes = {
                "VCPU": parameters["vcpus"],
                "MEMORY_MB": parameters["memory_mb"],
                "DISK_GB": parameters["disk_gb"],
            }
            due = {name: size * row["units"] for name, size in sizes.items() if size}
            if _document(row["amounts"]) != due:
                wrong.append(f"reservation {number} takes {row['amounts']} of resource {row['resource_id']}, not {due}")
    for number, units in places.items():
        if affinities[number] is True and len(units) > 1:
            wrong.append(f"reservation {number} is to be together and lies on {dict(units)}")
        if affinities[number] is False and max(units.values()) > 1:
            wrong.append(f"reservation {number} is to be apart and lies on {dict(units)}")
    return wrong


def _incomplete(row: dict[str, Any]) -> list[str]:
    """Return what a pending or running reservation lacks, or has too much of."""
    parameters = _document(row["parameters"])
    least, most = (parameters.get(name, parameters.get("amount", 0)) for name in ("min", "max"))
    words = f"reservation {row['reservation_id']} of {row['lease_status']} lease {row['lease_id']}"
    wrong = []
    if row["planned"] and row["held"]:
        wrong.append(f"{words} has {row['planned']} planned and {row['held']} held")
    if not least <= row["planned"] + row["held"] <= most:
        wrong.append(f"{words} asked for {least} to {most} and has {row['planned'] + row['held']}")
    if row["lease_status"] == "ACTIVE" and row["planned"]:
        wrong.append(f"{words} runs with {row['planned']} only planned")
    if row["short"]:
        wrong.append(f"{words} has {row['short']} for less than its time")
    return wrong


def leases(url: str) -> dict[str, StoredLease]:
    """Return all leases that were ever created."""
    reservations: dict[str, list[str]] = {}
    hosts: dict[str, list[str]] = {}
    units: dict[str, Counter[str]] = {}
    with _connected(url) as connection:
        for lease_id, reservation_id in connection.execute(text("SELECT lease_id, id FROM reservations")):
            reservations.setdefault(lease_id, []).append(reservation_id)
        for lease_id, reservation_id, host, count in connection.execute(
            text(
                "SELECT r.lease_id, r.id, s.external_id, a.units FROM allocations a "
                "JOIN reservations r ON r.id = a.reservation_id JOIN resources s ON s.id = a.resource_id "
                "WHERE a.state NOT IN ('released', 'lapsed')"
            )
        ):
            hosts.setdefault(lease_id, []).append(host)
            units.setdefault(lease_id, Counter())[reservation_id] += count
        return {
            lease_id: StoredLease(
                status,
                deleted_at is not None,
                frozenset(reservations.get(lease_id, ())),
                tuple(sorted(hosts.get(lease_id, ()))),
                units.get(lease_id, {}),
            )
            for lease_id, status, deleted_at in connection.execute(text("SELECT id, status, deleted_at FROM leases"))
        }


def holdings(url: str) -> list[Holding]:
    """Return the current resources of every pending or running reservation; a pending one has none."""
    rows: dict[str, list[dict[str, Any]]] = {}
    with _connected(url) as connection:
        for row in connection.execute(text(_HOLDINGS)).mappings():
            rows.setdefault(row["reservation_id"], []).append(dict(row))
    found = []
    for number, parts in rows.items():
        first, units = parts[0], Counter[str]()
        for part in parts:
            if part["external_id"] is not None:
                units[part["external_id"]] += part["units"]
        found.append(
            Holding(
                number,
                first["resource_type"],
                first["project_id"],
                first["lease_status"] == "ACTIVE",
                _document(first["parameters"]),
                {part["external_id"]: part["name"] for part in parts if part["external_id"] is not None},
                units,
            )
        )
    return found


def kept(url: str) -> Counter[str]:
    """Return how many units of each ended reservation still use their room."""
    with _connected(url) as connection:
        rows = connection.execute(
            text("SELECT reservation_id, SUM(units) FROM allocations WHERE state = 'kept' GROUP BY reservation_id")
        )
        return Counter({number: int(units) for number, units in rows})


def ends(url: str) -> dict[str, datetime]:
    """Return the end of each lease by id."""
    with _connected(url) as connection:
        return {
            lease_id: _moment(moment) for lease_id, moment in connection.execute(text("SELECT id, ends_at FROM leases"))
        }


def _document(value: Any) -> dict[str, Any]:
    """Parse a JSON document that a driver returns as text or as a value."""
    document: dict[str, Any] = json.loads(value) if isinstance(value, str | bytes) else value
    return document


def _moment(value: str | datetime) -> datetime:
    """Parse a time that a driver returns as text, naive in UTC, or with a zone."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def updates(url: str) -> Counter[str]:
    """Return the number of changes in the history of each lease."""
    with _connected(url) as connection:
        rows = connection.execute(
            text("SELECT lease_id, COUNT(*) FROM history WHERE action = 'update' GROUP BY lease_id")
        )
        return Counter({lease_id: int(count) for lease_id, count in rows})


def busy(url: str) -> list[str]:
    """Return the leases in a transient status, and those after their end that have not ended."""
    now = datetime.now(UTC)
    with _connected(url) as connection:
        rows = connection.execute(
            text("SELECT id, status, ends_at FROM leases WHERE status NOT IN ('TERMINATED', 'ERROR', 'DELETED')")
        )
        return [
            lease_id
            for lease_id, status, moment in rows
            if status not in {"PENDING", "ACTIVE"} or _moment(moment) <= now
        ]


def count_by_state(url: str) -> Counter[str]:
    """Return the number of allocations in each state."""
    with _connected(url) as connection:
        rows = connection.execute(text("SELECT state, COUNT(*) FROM allocations GROUP BY state"))
        return Counter({state: int(count) for state, count in rows})


def _connected(url: str) -> Connection:
    return create_engine(url, poolclass=NullPool).connect()
