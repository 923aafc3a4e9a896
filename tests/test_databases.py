"""The databases that the tests are given."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, make_url, text

from tests.support.databases import (
    MARIADB,
    POSTGRESQL,
    SERVER_KINDS,
    VARIABLES,
    DatabaseServers,
    ServerMissing,
    server_url,
)
from tests.support.waiting import wait_for

REPOSITORY = Path(__file__).parents[1]

FreshDatabase = Callable[[str], AbstractContextManager[str]]


def test_a_database_is_empty_and_keeps_names_apart_to_the_last_blank(database_url: str):
    engine = create_engine(database_url)
    assert inspect(engine).get_table_names() == []
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE names (name VARCHAR(20) PRIMARY KEY)"))
        connection.execute(text("INSERT INTO names VALUES ('a'), ('A'), ('á'), ('a ')"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM names")).scalar() == 4
    engine.dispose()


SERVERS = [
    pytest.param(POSTGRESQL, marks=pytest.mark.postgresql),
    pytest.param(MARIADB, marks=pytest.mark.mariadb),
]


@pytest.mark.parametrize("kind", SERVERS)
def test_a_database_is_dropped_under_an_open_transaction(kind: str, fresh_database: FreshDatabase):
    with fresh_database(kind) as url:
        engine = create_engine(url)
        connection = engine.connect()
        connection.execute(text("CREATE TABLE names (name VARCHAR(20) PRIMARY KEY)"))
        connection.commit()
        connection.execute(text("INSERT INTO names VALUES ('a')"))
    with fresh_database(kind) as other:
        assert make_url(other).database != make_url(url).database
    connection.invalidate()
    engine.dispose()


@pytest.fixture
def private_servers() -> Iterator[DatabaseServers]:
    """Servers that we start ourselves, whatever the environment names."""
    with DatabaseServers({}) as servers:
        yield servers


def started(servers: DatabaseServers, kind: str) -> str:
    try:
        return servers.url(kind)
    except ServerMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("kind", SERVERS)
def test_the_account_has_only_the_rights_of_an_operators_account(kind: str, private_servers: DatabaseServers):
    statement = {
        POSTGRESQL: "SELECT usesuper FROM pg_user WHERE usename = current_user",
        MARIADB: "SELECT count(*) FROM information_schema.user_privileges WHERE privilege_type = 'SUPER'",
    }
    engine = create_engine(started(private_servers, kind))
    with engine.connect() as connection:
        assert not connection.execute(text(statement[kind])).scalar()
    engine.dispose()


@pytest.mark.parametrize("kind", SERVERS)
def test_nothing_is_left_of_a_server_that_was_stopped(kind: str, private_servers: DatabaseServers):
    folder = folder_of(started(private_servers, kind))
    assert folder.stat().st_mode & 0o077 == 0
    pid = pid_of(folder)
    private_servers.close()
    assert not folder.exists()
    assert not is_alive(pid)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_does_not_outlive_a_run_that_is_killed(kind: str, private_servers: DatabaseServers):
    started(private_servers, kind)  # or skip
    source = f"""
        import time
        from tests.support.databases import DatabaseServers
        servers = DatabaseServers({{}})
        print(servers.url({kind!r}), flush=True)
        time.sleep(60)
        """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as run:
        try:
            assert run.stdout is not None
            folder = folder_of(run.stdout.readline().strip())
            pid = pid_of(folder)
            assert is_alive(pid)
        finally:
            run.kill()
    wait_for("the end of the server", lambda: not is_alive(pid))
    shutil.rmtree(folder)


def folder_of(url: str) -> Path:
    query = make_url(url).query
    return Path(str(query["host"])) if "host" in query else Path(str(query["unix_socket"])).parent


def pid_of(folder: Path) -> int:
    pid_file = next(path for path in (folder / "data/postmaster.pid", folder / "mariadb.pid") if path.exists())
    return int(pid_file.read_text().split()[0])


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("kind", SERVER_KINDS)
def test_a_missing_server_is_named_with_its_package(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.support.databases.find_program", lambda name: None)
    with (
        DatabaseServers({}) as servers,
        pytest.raises(ServerMissing, match=rf"{kind}: .* not found; apt-get install .*{VARIABLES[kind]}"),
    ):
        servers.url(kind)


def test_a_server_of_ones_own_is_reached_with_our_drivers():
    environ = {
        VARIABLES[POSTGRESQL]: "postgresql://me:secret@127.0.0.1:5432",
        VARIABLES[MARIADB]: "mariadb://me:secret@127.0.0.1",
    }
    assert server_url(POSTGRESQL, environ) == "postgresql+psycopg://me:secret@127.0.0.1:5432/postgres"
    assert server_url(MARIADB, environ) == "mysql+pymysql://me:secret@127.0.0.1?charset=utf8mb4"
    assert server_url(MARIADB, {}) is None
