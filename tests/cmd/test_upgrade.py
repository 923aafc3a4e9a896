"""Upgrades from every past schema, with leases in it: as an operator does them, on each kind of database."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.pool import NullPool

from tenure.domain.errors import NotEnoughResources
from tenure.domain.request import LeaseChange
from tenure.drivers.contract import Command, ResourceRef
from tenure.services.notifications.outbox import Message
from tenure.store import schema
from tests.api.rig import Api, api_over
from tests.cmd.conftest import Site
from tests.support import ledger, past_rows
from tests.support.databases import MARIADB, POSTGRESQL, SQLITE
from tests.support.engines import SECOND, path_of, rebuild, status_of
from tests.support.past_rows import (
    DELETED,
    ENDED,
    GIVEN_UP,
    HOST,
    NAMES,
    NOTICE,
    PENDING,
    RESERVATION_OF,
    RUNNING,
    STARTING,
    WAITING,
    at,
)
from tests.support.world import ADMIN, NOW, OWNER, World, open_world

NEWEST = schema.head() or ""
REVISIONS = [f"{number:04d}" for number in range(1, int(NEWEST) + 1)]

pytestmark = [
    pytest.mark.parametrize("revision", REVISIONS),
    pytest.mark.filterwarnings("ignore:Using fork:DeprecationWarning"),  # of eventlet, which oslo.messaging imports
]

Rows = Mapping[str, list[dict[str, Any]]]


@pytest.fixture(params=[
    pytest.param(SQLITE, marks=pytest.mark.slow),
    pytest.param(POSTGRESQL, marks=[pytest.mark.postgresql, pytest.mark.long]),
    pytest.param(MARIADB, marks=[pytest.mark.mariadb, pytest.mark.long]),
])  # fmt: skip
def past(request: pytest.FixtureRequest, site: Site, revision: str, fresh_database) -> Iterator[str]:
    """Return the URL of a database as left by a release whose newest schema was ``revision``."""
    with fresh_database(request.param) as url:
        site.configure(connection=url)
        assert run(site, "tenure-manage", "db", "upgrade", "--revision", revision) == f"the schema is at {revision}\n"
        with connected(url) as connection:
            past_rows.insert_rows(connection, revision)
        yield url


def run(site: Site, program: str, *arguments: str, code: int = 0) -> str:
    """Run the operator's program; it must end with that exit code and without complaints. Return its output."""
    done = site.run(program, *arguments)
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    return done.stdout


def connected(url: str) -> Any:
    """Open a transaction that shares nothing with the code that is tested."""
    return create_engine(url, poolclass=NullPool).begin()


def rows_in(connection: Connection) -> Rows:
    """Return every row of every table but alembic's, in the order of all its values."""
    tables = set(inspect(connection).get_table_names()) - {"alembic_version"}
    return {
        table: sorted(
            (dict(row) for row in connection.execute(text(f"SELECT * FROM {table}")).mappings()),
            key=lambda row: str(sorted(row.items())),
        )
        for table in sorted(tables)
    }


@pytest.mark.parametrize("past", [pytest.param(SQLITE, marks=pytest.mark.slow)], indirect=True)
def test_the_past_rows_fill_every_table_and_every_column(past: str, revision: str):
    """Each column has a value somewhere, also those that migrations add: empty columns could be lost unnoticed."""
    with connected(past) as connection:
        rows = rows_in(connection)
        columns = {table: {column["name"] for column in inspect(connection).get_columns(table)} for table in rows}
    assert [table for table, found in rows.items() if not found] == []
    filled = {table: {name for row in found for name in row if row[name] is not None} for table, found in rows.items()}
    assert filled == columns


def test_an_upgrade_keeps_every_row(site: Site, past: str, revision: str):
    with connected(past) as connection:
        before = rows_in(connection)
    upgrade(site, revision)
    with connected(past) as connection:
        after = rows_in(connection)
    for table, rows in before.items():
        kept = [{name: row[name] for name in rows[0]} for row in after[table]]
        assert sorted(map(str, kept)) == sorted(map(str, rows)), table
    assert {row["external_id"]: row["registration"] for row in after["resources"]} == {
        **{str(number): "registered" for number in range(1, 9)},
        "5": "registering",
        "6": "unregistering",
    }
    traits = {(row["id"], trait) for row in after["resources"] for trait in past_rows.document(row["traits"])}
    assert {(row["resource_id"], row["trait"]) for row in after["resource_traits"]} == traits


def upgrade(site: Site, revision: str) -> None:
    """Upgrade as docs/operations/install.md says: check, upgrade, check again."""
    is_new = revision == NEWEST
    output = run(site, "tenure-status", "upgrade", "check", "--json", code=0 if is_new else 1)
    assert is_new or f"the schema is at {revision}, this release needs {NEWEST}" in output
    assert run(site, "tenure-manage", "db", "upgrade") == f"the schema is at {NEWEST}\n"
    assert_well(site)


def assert_well(site: Site) -> None:
    run(site, "tenure-status", "upgrade", "check", "--json")
    assert run(site, "tenure-manage", "db", "check") == f"the database is as this release needs it ({NEWEST})\n"


def shown(name: str, lease_id: str, status: str, period: tuple[str, str], *, hosts: tuple[int, int]) -> dict[str, Any]:
    """Return a lease as the API shows it at 1.0, which no release may change."""
    starts, ends = (f"2030-01-01T{clock}:00.000000" for clock in period)
    (least, most), reservation = hosts, RESERVATION_OF[lease_id]
    return {
        "id": lease_id,
        "name": name,
        "user_id": "demo-user",
        "project_id": "demo-project",
        "start_date": starts,
        "end_date": ends,
        "trust_id": "",
        "status": status,
        "degraded": False,
        "created_at": "2030-01-01 08:00:00",
        "updated_at": "2030-01-01 08:30:00",
        "reservations": [
            {
                "id": reservation,
                "lease_id": lease_id,
                "resource_id": reservation,
                "resource_type": HOST,
                "min": least,
                "max": most,
                "hypervisor_properties": "",
                "resource_properties": "",
                "before_end": "default",
                "status": past_rows.RESERVATION_STATUS[status],
                "missing_resources": False,
                "resources_changed": False,
                "created_at": "2030-01-01 08:00:00",
                "updated_at": "2030-01-01 08:30:00",
            }
        ],
    }


SHOWN = [
    shown("running", RUNNING, "ACTIVE", ("08:00", "15:00"), hosts=(2, 2)),
    shown("pending", PENDING, "PENDING", ("16:00", "18:00"), hosts=(1, 2)),
    shown("starting", STARTING, "STARTING", ("09:59", "12:00"), hosts=(1, 1)),
    shown("ended", ENDED, "TERMINATED", ("08:00", "09:00"), hosts=(1, 1)),
]
#: The hosts in the cloud's pool after all leases are over: one was registered, one unregistered.
POOL = frozenset("123458")


def furnish(world: World) -> None:
    """Create in the cloud what earlier releases have created there."""
    world.cloud.world.ensure_hosts(len(NAMES))
    for number in "123468":
        world.cloud.ensure_registered(HOST, ResourceRef(number, NAMES[number]))
    hosts = tuple(ResourceRef(number, NAMES[number]) for number in "23")
    owner = (RUNNING, "running", OWNER.project_id, OWNER.user_id)
    running = Command(RESERVATION_OF[RUNNING], *owner, HOST, {"before_end": "default"}, hosts, at("15:00"))
    assert world.cloud.ensure_started(running).done


def keys(messages: list[Message]) -> list[str]:
    return [message.key for message in messages]


def test_leases_live_on_after_an_upgrade(site: Site, past: str, revision: str):
    upgrade(site, revision)
    messages: list[Message] = []
    with open_world(past, hosts=0) as world:
        furnish(world)
        rebuild(world, sink=messages.append)
        owner = api_over(world, site.folder)
        assert_shown_as_before(owner, revision)
        world.engine.settle()
        assert_shown_as_before(owner, revision)

        unsent = [f"{lease[0]}0000000-0000-4000-8000-0000000000aa" for lease in (PENDING, STARTING)]
        assert sorted(keys(messages)) == unsent
        assert GIVEN_UP in run(site, "tenure-manage", "outbox", "list")

        world.pass_until(NOW + 29 * SECOND)
        assert status_of(world, STARTING) == "STARTING"  # it is claimed
        world.pass_until(NOW + 30 * SECOND)
        assert status_of(world, STARTING) == "ACTIVE"
        assert world.hosts_of(STARTING) == [NAMES["1"]]

        assert world.hosts_of(world.book(1, hours=1).id) == [NAMES["4"]]
        with pytest.raises(NotEnoughResources):
            world.book(1, hours=1)
        world.register(NAMES["5"])
        world.resources.unregister(ADMIN, HOST, "6")
        assert world.hosts_of(world.book(1, hours=1).id) == [NAMES["5"]]

        world.leases.update(OWNER, RUNNING, LeaseChange(ends_at=at("15:30")))
        let_passes_run(world)
        assert ledger.faults(past) == []
        with connected(past) as connection:
            assert connection.execute(text("SELECT trust_id FROM leases WHERE trust_id IS NOT NULL")).all() == []

        world.pass_until(at("15:30") - SECOND)
        assert status_of(world, RUNNING) == "ACTIVE"
        assert world.hosts_of(RUNNING) == [NAMES["2"], NAMES["3"]]
        notices = [message.payload["event"] for message in messages if message.topic == "lease.event.notify_lease"]
        assert re.findall(r"'message': '(.*?)'", str(notices)) == [NOTICE]
        world.pass_until(at("15:30"))
        assert status_of(world, RUNNING) == "TERMINATED"
        assert world.cloud.world.groups() == {}
        world.pass_until(at("16:00"))
        assert status_of(world, PENDING) == "ACTIVE"
        assert world.cloud.world.groups()[RESERVATION_OF[PENDING]].hosts == ("2", "3")
        let_passes_run(world)
        assert ledger.faults(past) == []
        world.pass_until(at("18:00"))
        assert status_of(world, PENDING) == "TERMINATED"
        assert (world.cloud.world.groups(), world.cloud.world.pool()) == ({}, POOL)

        lived = ["PENDING", "STARTING", "ACTIVE", "TERMINATING", "TERMINATED"]
        assert [path_of(world, lease) for lease in (RUNNING, PENDING, STARTING, ENDED)] == [lived] * 4
        assert (path_of(world, DELETED), status_of(world, DELETED)) == (["DELETED"], "DELETED")
        world.pass_until(at("21:00"))
        assert (status_of(world, WAITING), path_of(world, WAITING)) == ("ERROR", ["ERROR"])
        assert run(site, "tenure-manage", "outbox", "retry") == "1 messages will be delivered again\n"
        world.engine.settle()
        assert keys(messages)[-1] == GIVEN_UP
        assert ledger.faults(past) == []
    assert_well(site)


def assert_shown_as_before(owner: Api, revision: str) -> None:
    shown = {lease["id"]: lease for lease in owner.get("/v1/leases").json["leases"]}
    assert shown.pop(WAITING)["status"] == "CREATING"  # as API 1.0 shows it
    events = {
        lease: {(event["event_type"], event["time"], event["status"]) for event in shown[lease].pop("events")}
        for lease in shown
    }
    assert shown == {lease["id"]: lease for lease in SHOWN}
    for lease in shown:
        rows = [row.values for row in past_rows.rows_of(revision) if row.table == "events"]
        requested = [row for row in rows if row["event_type"] != "update_lease"]  # the API does not show that event
        assert events[lease] == {
            (row["event_type"], f"{row['due_at']:%Y-%m-%dT%H:%M:%S}.000000", row["status"])
            for row in requested
            if row["lease_id"] == lease
        }
    assert owner.get(f"/v1/leases/{DELETED}").status_code == 404


def let_passes_run(world: World) -> None:
    """Run the engine's passes; they find no drift, and no lease that has lost a host."""
    world.service.refresh.run()
    healed = world.service.health_check.run()
    assert (healed.moved, list(healed.degraded)) == (0, [])
    assert world.service.reconciler.run() == 0
    world.engine.settle()
