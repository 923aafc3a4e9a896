"""``tenure-manage``, as an operator types it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from tenure.config import CONFIG_DIR_VARIABLE
from tenure.domain.request import LeaseQuery, LeaseRequest
from tenure.store import schema
from tests.cmd.conftest import Site
from tests.support.databases import MARIADB, POSTGRESQL
from tests.support.standalone import BIN
from tests.support.waiting import COMMAND_SECONDS
from tests.support.world import OWNER, reservation

NEWEST = schema.head() or ""
#: The newest revision of checkouts from before the first release.
BEFORE_RELEASE = "0020"


def manage(site: Site, *arguments: str, code: int = 0) -> str:
    """What the program prints; it must end with that code, and print nothing else."""
    done = site.run("tenure-manage", *arguments)
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


def refused(site: Site, *arguments: str) -> str:
    """Run a command that fails, and return its only line of error output."""
    done = site.run("tenure-manage", *arguments)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("tenure-manage: ")
    return line.removeprefix("tenure-manage: ")


# The schema and what is in it


def test_purge_counts_first_and_deletes_then(site: Site):
    with site.service(hosts=1) as service:
        moment = datetime.now(UTC)
        request = LeaseRequest(
            "lease", moment + timedelta(days=1), moment + timedelta(days=2), reservations=(reservation(1, 1),)
        )
        lease = service.manager.leases.create(OWNER, request)
        service.manager.leases.delete(OWNER, lease.id)
        service.engine.settle()
    before = datetime.now(UTC).isoformat()
    would = manage(site, "db", "purge", "--before", before, "--dry-run")
    assert would == "1 leases and 2 messages would be deleted\n"
    assert manage(site, "db", "purge", "--before", before) == "1 leases and 0 messages were deleted\n"
    assert manage(site, "db", "purge", "--before", before) == "0 leases and 0 messages were deleted\n"


@pytest.mark.parametrize("date", ["yesterday", "2999-01-01"])
def test_purge_before_no_date_of_the_past_is_refused(site: Site, date: str):
    done = site.run("tenure-manage", "db", "purge", "--before", date)
    assert done.returncode != 0
    assert date in done.stderr


def test_schema_is_created_and_passes_the_check(site: Site):
    assert manage(site, "db", "version") == "no schema\n"
    assert (
        manage(site, "db", "check", code=1)
        == f"the schema is at nothing, this release needs {NEWEST}: run tenure-manage db upgrade\n"
    )
    assert manage(site, "db", "upgrade") == f"the schema is at {NEWEST}\n"
    assert manage(site, "db", "version") == f"{NEWEST}\n"
    assert manage(site, "db", "check") == f"the database is as this release needs it ({NEWEST})\n"
    assert manage(site, "db", "upgrade") == f"the schema is at {NEWEST}\n"


def test_schema_from_before_the_first_release_is_upgraded(site: Site):
    assert manage(site, "db", "upgrade", "--revision", "0001") == "the schema is at 0001\n"
    site.set_revision(BEFORE_RELEASE)
    said = manage(site, "db", "check", code=1)
    assert said == f"the schema is at {BEFORE_RELEASE}, this release needs {NEWEST}: run tenure-manage db upgrade\n"
    assert manage(site, "db", "upgrade") == f"the schema is at {NEWEST}\n"
    assert manage(site, "db", "check") == f"the database is as this release needs it ({NEWEST})\n"


def test_the_schema_of_a_newer_release_is_left_alone(site: Site):
    manage(site, "db", "upgrade")
    site.set_revision("9999")
    said = "the schema is at 9999, which this release does not know: a newer release or another program made it"
    assert manage(site, "db", "check", code=1) == f"{said}\n"
    assert refused(site, "db", "upgrade") == said
    assert manage(site, "db", "version") == "9999\n"


def test_manual_schema_change_is_reported(site: Site):
    manage(site, "db", "upgrade")
    with closing(sqlite3.connect(site.folder / "tenure.db")) as db, db:
        db.execute("ALTER TABLE resources ADD COLUMN note TEXT")
    said = manage(site, "db", "check", code=1)
    assert said.startswith("differs from what this release needs: ('remove_column'")
    assert "'note'" in said


def test_a_revision_that_does_not_exist_is_named(site: Site):
    said = refused(site, "db", "upgrade", "--revision", "nonsense")
    assert said == "the schema cannot be brought there: Can't locate revision identified by 'nonsense'"


def test_foreign_tables_are_left_alone(site: Site):
    with closing(sqlite3.connect(site.folder / "tenure.db")) as db, db:
        db.execute("CREATE TABLE leases (name TEXT)")
    assert refused(site, "db", "upgrade") == "the database refuses: table leases already exists"


@pytest.mark.filterwarnings("ignore:Using fork:DeprecationWarning")  # of eventlet, which oslo.messaging imports
@pytest.mark.parametrize("database_kind", [
    pytest.param(POSTGRESQL, marks=pytest.mark.postgresql),
    pytest.param(MARIADB, marks=pytest.mark.mariadb),
])  # fmt: skip
def test_schema_commands_on_database_servers(site: Site, fresh_database, database_kind: str):
    with fresh_database(database_kind) as url:
        site.configure(connection=url)
        assert manage(site, "db", "upgrade") == f"the schema is at {NEWEST}\n"
        assert manage(site, "db", "check") == f"the database is as this release needs it ({NEWEST})\n"


@pytest.mark.slow
def test_program_is_installed(site: Site):
    """The other tests of this module call its entry point directly."""
    environ = os.environ | {CONFIG_DIR_VARIABLE: str(site.folder)}
    command = [str(BIN / "tenure-manage"), "db", "version"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no schema\n", "")


# Invalid databases and clouds

PASSWORD = "hunter2"


@pytest.mark.parametrize(
    ("connection", "said"),
    [
        ("", "[database] connection is not set"),
        ("nonsense", "[database] connection is no URL; "),
        (f"mysql+pymysql://tenure:{PASSWORD}@127.0.0.1:port/tenure", "[database] connection is no URL; "),
        (f"mysql+pymysql://tenure:{PASSWORD}@127.0.0.1", "[database] connection names a server and no database"),
        (f"postgresql://tenure:{PASSWORD}@127.0.0.1/", "[database] connection names a server and no database"),
        (f"mysql+pymysql://tenure:a@{PASSWORD}@127.0.0.1/tenure", "[database] connection has more than one @; "),
        (f"oracle://tenure:{PASSWORD}@127.0.0.1/tenure", "[database] connection: Tenure cannot use oracle, only "),
        (f"mysql://tenure:{PASSWORD}@127.0.0.1/tenure", "[database] connection cannot be used: No module named "),
        (f"mysql+pymysql://tenure:{PASSWORD}@127.0.0.1:1/tenure", "the database cannot be used: Can't connect "),
        (f"postgresql+psycopg://tenure:{PASSWORD}@127.0.0.1:1/tenure", "the database cannot be used: connection "),
        ("sqlite:////nonexistent/tenure.db", "the database cannot be used: unable to open database file"),
    ],
)  # fmt: skip
def test_unusable_database_is_reported_in_one_line(site: Site, connection: str, said: str):
    site.configure(connection=connection)
    line = refused(site, "db", "check")
    assert line.startswith(said)
    assert PASSWORD not in line


@pytest.mark.filterwarnings("ignore:Using fork:DeprecationWarning")
@pytest.mark.mariadb
def test_wrong_password_is_not_printed(site: Site, mariadb_server: str):
    account, separator, place = mariadb_server.rpartition("@")
    assert separator, account
    site.configure(connection=f"mysql+pymysql://nobody:{PASSWORD}@{place.partition('?')[0].rstrip('/')}/tenure")
    line = refused(site, "db", "upgrade")
    assert line.startswith("the database cannot be used: ")
    assert PASSWORD not in line


def test_a_configuration_that_cannot_be_read_is_named(site: Site):
    (site.folder / "tenure.conf").write_text("[database\n")
    assert str(site.folder / "tenure.conf") in refused(site, "db", "check").partition("; the configuration")[0]
    line = refused(site, "--config-file", "/nonexistent.conf", "db", "check")
    assert line.startswith("Failed to find some config files: /nonexistent.conf; ")


def test_unusable_cloud_is_reported_in_one_line(site: Site):
    manage(site, "db", "upgrade")
    site.configure(more="[simulated]\npath = /nonexistent/cloud.db\n")
    assert refused(site, "host", "sync") == (
        "[simulated] path /nonexistent/cloud.db cannot be used: unable to open database file"
    )


@pytest.mark.parametrize("arguments", [[], ["db"], ["db", "downgrade"], ["host", "sync", "--force"]])
def test_a_command_that_does_not_exist_is_refused(site: Site, arguments: Sequence[str]):
    done = site.run("tenure-manage", *arguments)
    assert done.returncode == 2
    assert "tenure-manage" in done.stderr.splitlines()[-1]
    assert not (site.folder / "tenure.db").exists()


# Hosts


def test_hosts_are_read_again_from_the_cloud(site: Site):
    with site.service(hosts=3) as service:
        names = [host.name for host in service.components.driver.discover("physical:host")]
    assert manage(site, "host", "sync") == "3 hosts are registered, 0 were changed, 0 are gone\n"
    with site.cloud() as cloud:
        vcpus = cloud.world.host(names[0]).facts["vcpus"]
        cloud.world.change_host(names[0], facts={"vcpus": 1000})
        cloud.world.remove_host(names[1])
        cloud.world.add_host("of-nobody")
    lines = [f"{names[0]}: vcpus {vcpus!r} -> 1000, VCPU {vcpus!r} -> 1000", f"{names[1]}: the cloud has it no more"]
    tried = manage(site, "host", "sync", "--dry-run").splitlines()
    assert tried == [*lines, "3 hosts are registered, 1 would be changed, 1 are gone"]
    done = manage(site, "host", "sync").splitlines()
    assert done == [*lines, "3 hosts are registered, 1 were changed, 1 are gone"]
    again = manage(site, "host", "sync").splitlines()
    assert again == [lines[1], "3 hosts are registered, 0 were changed, 1 are gone"]


def test_leases_on_hosts_that_changed_get_others_or_are_flagged(site: Site):
    with site.service(hosts=2) as service:
        soon = datetime.now(UTC) + timedelta(hours=1)
        asked = reservation(1, 1, hypervisor_properties='[">=", "$vcpus", "16"]')
        request = LeaseRequest(name="sized", starts_at=soon, ends_at=soon + timedelta(hours=1), reservations=(asked,))
        lease = service.manager.leases.create(OWNER, request)
        [booked] = service.manager.leases.resources(OWNER, lease.id, "physical:host")
        names = [host.name for host in service.components.driver.discover("physical:host")]
    [other] = {*names} - {booked.resource.name}
    with site.cloud() as cloud:
        cloud.world.change_host(booked.resource.name, facts={"vcpus": 2})
    assert "hosts of leases" not in manage(site, "host", "sync", "--dry-run")
    assert "1 hosts of leases that have not started were exchanged for others\n" in manage(site, "host", "sync")
    with site.cloud() as cloud:
        cloud.world.change_host(other, facts={"vcpus": 2})
    assert f"lease {lease.id} does not have what was promised any more\n" in manage(site, "host", "sync")


# Notifications


DEFAULTS = "[virtual:server]\ndefault_lease = true\ndefault_leases_per_pass = 2\n"


def test_existing_servers_are_given_default_leases(site: Site):
    site.configure(more=DEFAULTS)
    with site.service(hosts=1):
        pass
    with site.cloud() as cloud:
        cloud.world.add_host("general")
        booted = [cloud.world.instances.boot("demo-project", "1", name="old", user_id="demo-user") for _ in range(5)]
    would = json.loads(manage(site, "lease", "give-default", "--dry-run", "-f", "json"))
    assert sorted(server["id"] for server in would["servers"]) == sorted(booted)
    assert manage(site, "lease", "give-default", "--dry-run").endswith("\n5 servers would be given a lease\n")
    done = site.run("tenure-manage", "lease", "give-default", "-f", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"given": 5, "refused": {}})
    progress = [line for line in done.stderr.splitlines() if line.endswith("so far")]
    assert progress == [f"{count} servers were given a lease so far" for count in (2, 4)]
    assert manage(site, "lease", "give-default") == "0 servers were given a lease, 0 were refused one\n"
    with site.service(hosts=1) as service:
        assert len(service.manager.leases.list(OWNER, LeaseQuery(limit=10)).items) == 5


def test_servers_that_are_refused_a_default_lease_are_named(site: Site):
    site.configure(more=f"{DEFAULTS}[quota]\ndriver = config\nlimits = leases:0\n")
    with site.service(hosts=1):
        pass
    with site.cloud() as cloud:
        cloud.world.add_host("general")
        server_id = cloud.world.instances.boot("demo-project", "1", name="old", user_id="demo-user")
    reason, last = manage(site, "lease", "give-default", code=1).splitlines()
    assert reason.startswith(f"{server_id}: ")
    assert last == "0 servers were given a lease, 1 were refused one"


def test_default_leases_that_are_off_are_not_given(site: Site):
    with site.service(hosts=1):
        pass
    said = refused(site, "lease", "give-default")
    assert said == "[virtual:server] default_lease is not set, so servers get no default leases"


def give_up(site: Site) -> None:
    """Mark all notifications as undeliverable."""
    with closing(sqlite3.connect(site.folder / "tenure.db")) as db, db:
        changed = db.execute("UPDATE outbox SET ready_at = NULL, attempts = 20, last_error = 'no bus'")
        assert changed.rowcount == 1


def test_abandoned_notifications_are_shown_and_retried(site: Site):
    with site.service(hosts=1) as service:
        soon = datetime.now(UTC) + timedelta(hours=1)
        request = LeaseRequest(
            name="told", starts_at=soon, ends_at=soon + timedelta(hours=1), reservations=(reservation(1, 1),)
        )
        lease = service.manager.leases.create(OWNER, request)
    assert manage(site, "outbox", "list") == ""
    give_up(site)
    [shown] = map(json.loads, manage(site, "outbox", "list").splitlines())
    assert shown.keys() == {
        "key",
        "lease_id",
        "channel",
        "event_type",
        "created_at",
        "attempts",
        "error",
    }
    assert (shown["lease_id"], shown["event_type"]) == (lease.id, "lease.create")
    assert (shown["attempts"], shown["error"]) == (20, "no bus")
    assert manage(site, "outbox", "retry", "--key", "another") == "0 messages will be delivered again\n"
    assert manage(site, "outbox", "retry") == "1 messages will be delivered again\n"
    assert manage(site, "outbox", "list") == ""
    assert manage(site, "outbox", "retry") == "0 messages will be delivered again\n"
    give_up(site)
    assert manage(site, "outbox", "drop", shown["key"]) == "it will not be delivered\n"
    assert manage(site, "outbox", "list") == ""
