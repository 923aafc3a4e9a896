"""A row in every table of each past schema: the data of a deployment of that time before an upgrade.

The rows are those that the code of the time wrote for hosts and their leases. Each is written with all columns that
there have ever been; ``insert_rows`` leaves out the columns that a revision does not have yet. A change with a
migration that adds a table adds rows of it here, with the revision as their ``since``. A column that it adds gets a
sample, and is named here only if its value matters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, bindparam, inspect, text

from tenure.store.tables import UtcDateTime

RUNNING, PENDING, STARTING, ENDED, DELETED = (f"{number}0000000-0000-4000-8000-000000000000" for number in range(1, 6))
#: A lease on the waiting list.
WAITING = "60000000-0000-4000-8000-000000000000"
#: The reservation of each lease.
RESERVATION_OF = {lease: f"{lease[0]}0000000-0000-4000-8000-00000000000a" for lease in (
    RUNNING, PENDING, STARTING, ENDED, DELETED
)}  # fmt: skip
#: The message of which the delivery was given up.
GIVEN_UP = "40000000-0000-4000-8000-0000000000bb"
#: The status of a lease's reservation.
RESERVATION_STATUS = {
    "ACTIVE": "active", "PENDING": "pending", "STARTING": "pending", "TERMINATED": "deleted", "DELETED": "deleted"
}  # fmt: skip
#: The trust of the lease that has ended.
TRUST = "0123456789abcdef0123456789abcdef"
NOTICE = "The running lease ends in half an hour."

#: The reason of the failure as the owner of the deleted lease reads it, and the whole reason.
SHORT_REASON = "The cloud refused it."
WHOLE = "The cloud refused it: host sim-host-004 has servers of lease-of-others."
#: What the owner of the running lease wrote himself.
RENAMED = "name: running"

HOST = "physical:host"
#: The names of hosts by external id, as the simulated cloud has them.
NAMES = {str(number): f"sim-host-{number:03d}" for number in range(1, 9)}


@dataclass(frozen=True)
class Row:
    table: str
    values: Mapping[str, object]
    #: The first revision whose code wrote such a row.
    since: str = "0001"


def at(clock: str) -> datetime:
    """Return that time of the day on which the rows were written."""
    return datetime.fromisoformat(f"2030-01-01T{clock}").replace(tzinfo=UTC)


def insert_rows(connection: Connection, revision: str) -> None:
    """Write the rows into an empty database whose schema is at ``revision``.

    A column that no row of its table names gets a sample of its type in all rows.
    """
    quote = connection.dialect.identifier_preparer.quote
    rows = list(rows_of(revision))
    there = {table: _columns(connection, table) for table in {row.table for row in rows}}
    named = {table: {name for row in rows if row.table == table for name in row.values} for table in there}
    for row in rows:
        samples = {name: sample for name, sample in there[row.table].items() if name not in named[row.table]}
        values = {name: value for name, value in {**samples, **row.values}.items() if name in there[row.table]}
        statement = f"INSERT INTO {row.table} ({', '.join(map(quote, values))}) VALUES (:{', :'.join(values)})"
        times = [bindparam(name, type_=UtcDateTime()) for name, value in values.items() if isinstance(value, datetime)]
        connection.execute(text(statement).bindparams(*times), values)


def _columns(connection: Connection, table: str) -> dict[str, object]:
    """Return a sample for each column of a table, but for a number that the database counts itself."""
    counting = ("resources", "allocations", "history", "outbox", "properties", "ledger_feed", "freed_room")
    counted = {(table, "id") for table in counting}
    samples: Mapping[type, object] = {str: "sample", datetime: at("07:00")}
    return {
        column["name"]: samples.get(column["type"].python_type, 1)
        for column in inspect(connection).get_columns(table)
        if (table, column["name"]) not in counted
    }


def rows_of(revision: str) -> Iterator[Row]:
    """Return the rows that there are at a revision, each after those that it refers to."""
    for row in (*_resources(), *_leases(), *_ROWS):
        if row.since <= revision:
            yield row


def _resources() -> Iterator[Row]:
    """Return resources; their ids are 1 to 8, in this order."""
    yield from (_resource(number) for number in (1, 2, 3))
    own = {"properties": '{"rack": "r1"}', "traits": '["COMPUTE_NODE", "HW_CPU_X86_AVX2"]'}
    yield _resource(4, updated_at=at("07:00"), **own)
    # A registration and a removal that were interrupted.
    yield _resource(5, reservable=False, version=1, registration="registering")
    yield _resource(6, reservable=False, version=3, registration="unregistering")
    yield _resource(7, reservable=False, version=4, resource_type=f"retired:{HOST}")
    refused = {"enabled": False, "disabled_reason": "a disk to replace"}
    failed = {"health": "down", "health_reason": "no answer", "health_since": at("07:00"), "unreviewed": True}
    yield _resource(8, reservable=False, updated_at=at("07:00"), **refused, **failed)


def _resource(number: int, **values: object) -> Row:
    facts = {"vcpus": 32, "memory_mb": 131072, "local_gb": 960, "hypervisor_hostname": NAMES[str(number)]}
    usual = {
        "resource_type": HOST,
        "region": "",
        "external_id": str(number),
        "name": NAMES[str(number)],
        "capacity": '{"DISK_GB": 960, "MEMORY_MB": 131072, "VCPU": 32}',
        "facts": json.dumps(facts),
        "properties": "{}",
        "traits": '["COMPUTE_NODE"]',
        "limits": '{"VCPU": {"max_unit": 16}}',
        "reservable": True,
        "registration": "registered",
        "enabled": True,
        "disabled_reason": None,
        "health": "well",
        "health_reason": None,
        "health_since": None,
        "unreviewed": False,
        "scarcity": 0,
        "version": 2,
        "created_at": at("06:00"),
        "updated_at": None,
    }
    return Row("resources", {**usual, **values})


def _leases() -> Iterator[Row]:
    yield from _lease(RUNNING, "running", "ACTIVE", ("08:00", "15:00"), {2: "held", 3: "held"})
    yield from _lease(PENDING, "pending", "PENDING", ("16:00", "18:00"), {2: "planned", 3: "planned"}, least=1)
    yield from _lease(STARTING, "starting", "STARTING", ("09:59", "12:00"), {1: "held"})
    # The subject and the effects are there so that all columns have values.
    over, hosts, effects = ("08:00", "09:00"), {4: "released"}, '{"aggregate_id": 1}'
    yield from _lease(ENDED, "ended", "TERMINATED", over, hosts, trust_id=TRUST, subject="server 7d0a", effects=effects)
    yield from _lease(
        DELETED,
        "deleted",
        "DELETED",
        ("17:00", "18:00"),
        {},
        status_reason=SHORT_REASON,
        status_detail=WHOLE,
        deleted_at=at("08:30"),
    )


def _lease(
    lease_id: str,
    name: str,
    status: str,
    period: tuple[str, str],
    hosts: Mapping[int, str],
    *,
    least: int | None = None,
    subject: str | None = None,
    effects: str = "{}",
    trust_id: str | None = None,
    status_reason: str | None = None,
    status_detail: str | None = None,
    deleted_at: datetime | None = None,
) -> Iterator[Row]:
    starts_at, ends_at = map(at, period)
    usual = {
        "id": lease_id,
        "name": name,
        "project_id": "demo-project",
        "user_id": "demo-user",
        "starts_at": starts_at,
        "ends_at": ends_at,
        "status": status,
        "status_reason": status_reason,
        "status_detail": status_detail,
        "degraded": False,
        "trust_id": trust_id,
        "version": 3,
        "created_at": at("08:00"),
        "updated_at": at("08:30"),
        "deleted_at": deleted_at,
    }
    yield Row("leases", usual)
    parameters = {"min": least or len(hosts), "max": len(hosts), "hypervisor_properties": "", "resource_properties": ""}
    reservation = {
        "id": RESERVATION_OF[lease_id],
        "lease_id": lease_id,
        "position": 0,
        "resource_type": HOST,
        "status": RESERVATION_STATUS[status],
        "parameters": json.dumps({**parameters, "before_end": "default"}),
        "effects": effects,
        "region": "",
        "missing_resources": False,
        "resources_changed": False,
        "subject": subject,
        "created_at": at("08:00"),
        "updated_at": at("08:30"),
    }
    yield Row("reservations", reservation)
    for number, state in hosts.items():
        allocation = {"resource_id": number, "reservation_id": RESERVATION_OF[lease_id], "state": state}
        amounts = {"exclusive": True, "units": 1, "amounts": '{"WHOLE": 1}'}
        yield Row("allocations", {**allocation, "starts_at": starts_at, "ends_at": ends_at, **amounts})


#: The ranks of events in every release so far.
_RANKS = {"start_lease": 0, "update_lease": 1, "before_end_lease": 2, "end_lease": 3, "notify_lease": 6}


def _event(lease_id: str, event_type: str, due: str, status: str, **values: object) -> Row:
    usual = {
        "id": f"{lease_id[0]}0000000-0000-4000-8000-00000000000{_RANKS[event_type] + 1}",
        "lease_id": lease_id,
        "event_type": event_type,
        "rank": _RANKS[event_type],
        "due_at": at(due),
        "status": status,
        "ready_at": at(due) if status == "UNDONE" else None,
        "claim_token": None,
        "attempts": 0 if status == "UNDONE" else 1,
        "payload": "null",
        "created_at": at("08:00"),
        "updated_at": None if status == "UNDONE" else at(due),
    }
    return Row("events", {**usual, **values})


def _history(lease_id: str, time: str, action: str, before: str | None, after: str, **more: object) -> Row:
    values = {"lease_id": lease_id, "at": at(time), "actor": "demo-user" if before is None else "tenure"}
    moved = {
        "action": action,
        "from_status": before,
        "to_status": after,
        "reason": None,
        "detail": None,
        "request_id": None,
    }
    return Row("history", {**values, **moved, **more})


def _message(number: str, lease_id: str, topic: str, name: str, **more: object) -> Row:
    usual = {
        "key": f"{lease_id[0]}0000000-0000-4000-8000-0000000000{number}",
        "channel": "",
        "lease_id": lease_id,
        "topic": topic,
        "payload": json.dumps({"lease_id": lease_id, "name": name, "project_id": "demo-project"}),
        "created_at": at("08:00"),
        "ready_at": at("08:00"),
        "attempts": 0,
        "last_error": None,
        "delivered_at": None,
        "failed_at": None,
        "refusals": 0,
    }
    return Row("outbox", {**usual, **more})


_ROWS = (
    _event(RUNNING, "start_lease", "08:00", "DONE"),
    _event(RUNNING, "update_lease", "08:30", "DONE", payload='{"before": {"name": "lease"}}'),
    _event(RUNNING, "before_end_lease", "14:00", "UNDONE"),
    _event(RUNNING, "end_lease", "15:00", "UNDONE"),
    _event(RUNNING, "notify_lease", "14:30", "UNDONE", payload=json.dumps({"message": NOTICE})),
    _event(PENDING, "start_lease", "16:00", "UNDONE"),
    _event(PENDING, "before_end_lease", "17:00", "UNDONE"),
    _event(PENDING, "end_lease", "18:00", "UNDONE"),
    # A manager was stopped in the middle of it: its claim lasts until half a minute after ten.
    _event(STARTING, "start_lease", "09:59", "IN_PROGRESS", ready_at=at("10:00:30"), claim_token="claimed"),
    _event(STARTING, "before_end_lease", "11:00", "UNDONE"),
    _event(STARTING, "end_lease", "12:00", "UNDONE"),
    _event(ENDED, "start_lease", "08:00", "DONE"),
    _event(ENDED, "before_end_lease", "08:00", "DONE"),
    _event(ENDED, "end_lease", "09:00", "DONE"),
    _history(RUNNING, "08:00", "create", None, "PENDING", request_id="req-1"),
    _history(RUNNING, "08:00", "start", "PENDING", "STARTING"),
    _history(RUNNING, "08:00", "started", "STARTING", "ACTIVE"),
    _history(RUNNING, "08:30", "update", "ACTIVE", "ACTIVE", reason=RENAMED, actor="demo-user"),
    _history(RUNNING, "08:40", "wait", "ACTIVE", "ACTIVE", reason="The server is gone."),
    _history(PENDING, "08:00", "create", None, "PENDING"),
    _history(STARTING, "08:00", "create", None, "PENDING"),
    _history(STARTING, "09:59", "start", "PENDING", "STARTING"),
    _history(ENDED, "08:00", "create", None, "PENDING"),
    _history(ENDED, "08:00", "start", "PENDING", "STARTING"),
    _history(ENDED, "08:00", "started", "STARTING", "ACTIVE"),
    _history(ENDED, "09:00", "end", "ACTIVE", "TERMINATING"),
    _history(ENDED, "09:00", "ended", "TERMINATING", "TERMINATED"),
    _history(DELETED, "08:30", "deleted", "DELETING", "DELETED", reason=SHORT_REASON, detail=WHOLE),
    _message("aa", RUNNING, "lease.create", "running", ready_at=None, attempts=1, delivered_at=at("08:00")),
    _message("aa", PENDING, "lease.create", "pending"),
    _message("aa", STARTING, "lease.create", "starting", attempts=2, last_error="no bus", failed_at=at("09:00")),
    _message("bb", ENDED, "lease.event.end_lease", "ended", ready_at=None, attempts=20, last_error="refused"),
    Row("properties", {
        "resource_type": HOST, "name": "rack", "private": True, "created_at": at("06:00"), "updated_at": at("07:00")
    }),
    Row("resource_attributes", {
        "resource_id": 4, "name": "rack", "value": "r1", "number": None, "key": "4 rack r1", "scarcity": 0, "own": True
    }),
    Row("resource_attributes", {
        "resource_id": 4, "name": "vcpus", "value": "32", "number": 32.0, "key": "5 vcpus 32.0", "scarcity": 0,
        "own": False,
    }),
    *(Row("resource_traits", {"resource_id": number, "trait": "COMPUTE_NODE"}) for number in range(1, 9)),
    Row("resource_traits", {"resource_id": 4, "trait": "HW_CPU_X86_AVX2"}),
    Row("projects", {"id": "demo-project", "version": 5}),
    Row("surplus_trusts", {"id": "fedcba9876543210fedcba9876543210", "created_at": at("09:00")}),
    Row("leases", {
        "id": WAITING, "name": "waiting", "project_id": "demo-project", "user_id": "demo-user", "status": "WAITING",
        "starts_at": at("19:00"), "ends_at": at("20:00"), "degraded": False, "version": 1, "created_at": at("09:00"),
    }),
    Row("events", {
        "id": "60000000-0000-4000-8000-00000000000e", "lease_id": WAITING, "event_type": "wait_lease", "rank": 8,
        "due_at": at("21:00"), "ready_at": at("21:00"), "status": "UNDONE", "attempts": 0, "created_at": at("09:00"),
    }),
    Row("waiting_leases", {
        "number": 1, "lease_id": WAITING, "latest_at": at("21:00"), "confirm_within": 3600, "request": json.dumps({
            "name": "waiting", "choices": [[{"resource_type": HOST, "region": "", "checks_values": True, "parameters": {
                "min": 9, "max": 9, "hypervisor_properties": "", "resource_properties": "", "before_end": "default",
            }}]], "window": {"length": "PT1H", "earliest": "2030-01-01T19:00:00Z", "latest": "2030-01-01T21:00:00Z"},
            "waits": True, "confirm_within": "PT1H",
        }),
    }),
    Row("waiting_lines", {"inventory": HOST, "region": "", "number": 1}),
    Row("freed_room", {"inventory": HOST, "region": ""}),
    Row("idempotency_keys", {
        "id": "7c9e6679-7425-540d-944b-e07fc1f90ae7", "project_id": "demo-project", "digest": "ab" * 32,
        "made_id": RUNNING, "created_at": at("09:00"),
    }),
    Row("upkeep", {"name": "probe", "at": at("07:00")}),
    Row("boots", {
        "lease_id": PENDING, "project_id": "demo-project", "microversion": "2.60",
        "request": json.dumps({"server": {"name": "web", "flavorRef": "2"}}),
    }, since="0003"),
    Row("ledger_feed", {"at": at("09:00"), "changed": json.dumps({"resources": [1, 2]})}),
)  # fmt: skip


def document(value: Any) -> Any:
    """Return what a column of JSON holds, however the driver gives it."""
    return json.loads(value) if isinstance(value, str) else value
