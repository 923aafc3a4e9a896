"""Backup and restore with the commands of the operators' pages, while leases run and others become due."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tenure.domain.errors import NotFound
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseChange
from tenure.drivers.simulated import EffectKind
from tenure.store import schema
from tests.cmd.conftest import Site
from tests.support import ledger
from tests.support.databases import MARIADB, PACKAGES, POSTGRESQL, DatabaseServers, ServerMissing, missing_tools
from tests.support.engines import MINUTE, status_of
from tests.support.standalone import standalone
from tests.support.waiting import COMMAND_SECONDS
from tests.support.world import NOW, OWNER, World, open_world

REPOSITORY = Path(__file__).resolve().parents[2]
OPERATIONS = REPOSITORY / "docs" / "operations"

#: Each server's name for the administrator's connections, and the privileges of the install guide's account.
ADMINISTRATORS: Mapping[str, str] = {POSTGRESQL: "postgres", MARIADB: "root"}


def commands(page: str, heading: str, *requested: str) -> list[str]:
    """Return the commands in that section of a page that contain one of the words."""
    [section] = re.findall(rf"^## {heading}\n(.*?)^## ", (OPERATIONS / page).read_text(), re.DOTALL | re.MULTILINE)
    lines = [
        line.removeprefix("$ ")
        for block in re.findall(r"^```\w+\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    return [line for line in lines if any(word in line for word in requested)]


def type_in(lines: list[str], folder: Path, **environ: str) -> None:
    """Type commands into a shell, in that folder; each must succeed."""
    assert lines
    done = subprocess.run(
        ["bash", "-e", "-u", "-c", "\n".join(lines)],
        cwd=folder,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def dump_of(kind: str) -> list[str]:
    found = commands("install.md", "Backups", {POSTGRESQL: "pg_dump", MARIADB: "mariadb-dump"}[kind])
    assert len(found) == 1
    return found


def restore_of(kind: str) -> list[str]:
    """Return the commands that make a database anew from its dump."""
    words = {POSTGRESQL: ("dropdb", "createdb", "pg_restore"), MARIADB: ("mariadb --execute", "mariadb tenure")}[kind]
    found = commands("install.md", "Backups", *words)
    assert len(found) == 3
    return found


@contextmanager
def server_of(kind: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A server of the test's own with an empty database ``tenure``: its URL, and the environment of its administrator.

    A server that the environment names is never used: the commands drop the database ``tenure``.
    """
    if missing := missing_tools(kind):
        pytest.skip(f"{kind}: {', '.join(missing)} not found; apt-get install {PACKAGES[kind][0]}")
    with DatabaseServers({}) as servers:
        try:
            url = make_url(servers.url(kind))
        except ServerMissing as missing_server:
            pytest.skip(str(missing_server))
        administrator = url.set(username=ADMINISTRATORS[kind])
        if kind == POSTGRESQL:
            environ = {"PGHOST": str(url.query["host"]), "PGPORT": "5432", "PGUSER": "postgres"}
            type_in(["createdb --owner=tenure --encoding=UTF8 --template=template0 tenure"], folder, **environ)
        else:
            options = f"[client]\nsocket = {url.query['unix_socket']}\nuser = root\n"
            (folder / ".my.cnf").write_text(options)
            environ = {"HOME": str(folder)}
            with create_engine(administrator, poolclass=NullPool).begin() as connection:
                connection.execute(text("CREATE DATABASE tenure CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"))
                connection.execute(text("GRANT ALL ON tenure.* TO tenure@localhost"))
        yield url.set(database="tenure").render_as_string(hide_password=False), environ


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Using fork:DeprecationWarning")  # of eventlet, which oslo.messaging imports
@pytest.mark.parametrize("kind", [
    pytest.param(POSTGRESQL, marks=pytest.mark.postgresql),
    pytest.param(MARIADB, marks=pytest.mark.mariadb),
])  # fmt: skip
def test_managers_catch_up_after_a_restore(site: Site, tmp_path: Path, kind: str):
    with server_of(kind, tmp_path) as (url, environ), open_world(url, hosts=5) as world:
        site.configure(connection=url)
        running = world.book(1, hours=5, name="running")
        ending = world.book(1, hours=1, name="ends before the restore")
        prolonged = world.book(1, hours=1.5, name="prolonged after the dump")
        due = world.book(2, start=1, hours=2, name="starts before the restore")
        deleted = world.book(1, start=4, hours=1, name="deleted after the dump")
        world.pass_until(NOW + 30 * MINUTE)
        type_in(dump_of(kind), tmp_path, **environ)

        lost = world.book(1, hours=3, name="made after the dump")
        world.pass_until(NOW + 40 * MINUTE)
        [lost_host] = world.hosts_of(lost.id)
        world.leases.update(OWNER, prolonged.id, LeaseChange(ends_at=NOW + timedelta(hours=4)))
        world.leases.delete(OWNER, deleted.id)
        world.db.close()  # the managers stop
        seen = len(world.cloud.world.journal())
        world.clock.set(NOW + 70 * MINUTE)
        type_in(restore_of(kind), tmp_path, **environ)

        world.restart()
        assert site.run("tenure-manage", "db", "check").stdout.startswith("the database is as this release needs it")
        assert site.run("tenure-status", "upgrade", "check", "--json").returncode == 0
        world.engine.settle()
        statuses = [status_of(world, lease.id) for lease in (running, ending, prolonged, due, deleted)]
        assert statuses == ["ACTIVE", "TERMINATED", "ACTIVE", "ACTIVE", "PENDING"]
        assert ends_before_starts(world, seen, ending, due)

        # The steps of the page for data that is not in a dump.
        with pytest.raises(NotFound):
            world.leases.get(OWNER, lost.id)
        world.service.reconciler.run()
        world.service.health_check.run()
        assert lost.reservations[0].id in world.cloud.world.groups()
        next_lease = world.book(1, hours=1, name="on the host of the lost lease")
        world.engine.settle()
        assert status_of(world, next_lease.id) != "ACTIVE"
        assert lost_host in hosts_in_group(world, lost)
        world.pass_until(NOW + 90 * MINUTE)
        assert status_of(world, prolonged.id) == "TERMINATED"
        world.cloud.world.drop_group(lost.reservations[0].id)
        world.pass_until(NOW + timedelta(hours=4))
        assert status_of(world, deleted.id) == "ACTIVE"
        assert world.hosts_of(world.book(1, hours=1).id)
        world.pass_until(NOW + timedelta(hours=5))
        assert world.cloud.world.groups() == {}
        assert ledger.faults(url) == []


def ends_before_starts(world: World, seen: int, ending: Lease, starting: Lease) -> bool:
    """Return whether all that was taken back since came before all that was taken."""
    new = world.cloud.world.journal()[seen:]
    returned = [n for n, effect in enumerate(new) if effect.kind == EffectKind.HOST_RETURNED]
    taken = [n for n, effect in enumerate(new) if effect.kind == EffectKind.HOST_TAKEN]
    assert {new[n].reservation_id for n in returned} == {ending.reservations[0].id}
    assert {new[n].reservation_id for n in taken} == {starting.reservations[0].id}
    return max(returned) < min(taken)


def hosts_in_group(world: World, lease: Lease) -> list[str]:
    names = {host.id: host.name for host in world.cloud.world.hosts()}
    return [names[number] for number in world.cloud.world.groups()[lease.reservations[0].id].hosts]


def of_standalone(folder: Path, *requested: str) -> list[str]:
    """Return commands of the page of the standalone service, with the folders and the Python of this test."""
    found = commands("standalone.md", "Backup", *requested)
    return [line.replace("/tmp/", f"{folder}/").replace(".venv/bin/python", sys.executable) for line in found]


@pytest.mark.long
def test_restored_folder_continues(tmp_path: Path):
    folder = tmp_path / "tenure-try"
    with standalone(folder) as service:
        user = service.caller()
        _, running = user.book(seconds=3600)
        user.wait_for_status(running["id"], "ACTIVE")
        _, due = user.book(delay=2, seconds=3600)
        service.stop()
    [backup] = of_standalone(tmp_path, "cp -a /tmp/tenure-try /")
    type_in([backup], tmp_path)
    with standalone(folder) as service:
        user = service.caller()
        user.wait_for_status(due["id"], "ACTIVE")
        status, _ = user.call("DELETE", f"/leases/{running['id']}")
        assert status == 204
        _, lost = user.book(seconds=3600)
        service.stop()
    restore = of_standalone(tmp_path, "rm -r", "cp -a /tmp/tenure-try.backup")
    assert len(restore) == 2
    type_in(restore, tmp_path)
    with standalone(folder) as service:
        user = service.caller()
        user.wait_for_status(due["id"], "ACTIVE")
        assert user.lease(running["id"])["status"] == "ACTIVE"
        assert user.call("GET", f"/leases/{lost['id']}")[0] == 404
        status, answer = service.caller("admin").call("GET", "/os-hosts/allocations")
        assert status == 200
        reservations = [reservation for host in answer["allocations"] for reservation in host["reservations"]]
        assert {reservation["lease_id"] for reservation in reservations} == {
            running["id"],
            due["id"],
        }
        service.stop()
    assert ledger.faults(f"sqlite:///{folder / 'tenure.db'}") == []


@pytest.mark.long
def test_a_database_that_is_in_use_can_be_copied(tmp_path: Path, site: Site):
    with standalone(tmp_path / "tenure-try") as service:
        user = service.caller()
        _, running = user.book(seconds=3600)
        user.wait_for_status(running["id"], "ACTIVE")
        [copying] = of_standalone(tmp_path, "sqlite3")
        type_in([copying], tmp_path)
        assert user.lease(running["id"])["status"] == "ACTIVE"
    copy = tmp_path / "tenure.copy"
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("SELECT id, status FROM leases").fetchall() == [(running["id"], "ACTIVE")]
    site.configure(connection=f"sqlite:///{copy}")
    assert site.run("tenure-manage", "db", "version").stdout == f"{schema.head()}\n"
