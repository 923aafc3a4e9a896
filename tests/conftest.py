"""Fixtures and reporting for every suite of the server."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import settings
from sqlalchemy import Engine, event

from tenure.simulation import share_statements

pytest.register_assert_rewrite("tests.support")

from tests.support.certificates import Authority  # noqa: E402 - after its assertions were made to speak
from tests.support.databases import (  # noqa: E402 - after its assertions were made to speak
    MARIADB,
    POSTGRESQL,
    SQLITE,
    DatabaseServers,
    ServerMissing,
    quick_folder,
)
from tests.support.durations import MARKER  # noqa: E402
from tests.support.lengths import times  # noqa: E402

# A database on a disk waits for that disk at each commit. The processes that a test starts use the same folder, and
# pytest has looked for one already.
tempfile.tempdir = os.environ.setdefault("TMPDIR", str(quick_folder()))

event.listen(Engine, "engine_connect", share_statements)

# Time limits for one example fail on a busy machine and say nothing about the code.
settings.register_profile("quick", deadline=None, print_blob=True)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=times(150, 300))
settings.load_profile("quick")

#: With this set to 1, a run that leaves anything out fails.
NOTHING_LEFT_OUT = "TENURE_TEST_ALL"

#: The markers of a test that its JUnit report names, so that durations can be added up by them.
REPORTED = frozenset({"postgresql", "mariadb", "slow", "races", "crash", "long", "cloud"})

FreshDatabase = Callable[[str], AbstractContextManager[str]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority that has certified the servers of a test."""
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """Another authority, which no client of a test trusts."""
    return Authority(tmp_path, "stranger")


@pytest.fixture(scope="session")
def database_servers() -> Iterator[DatabaseServers]:
    """The database servers of this run; each starts when it is first asked for."""
    with DatabaseServers() as servers:
        yield servers


@pytest.fixture(scope="session")
def postgresql_server(database_servers: DatabaseServers) -> str:
    """The URL of a PostgreSQL server, for an account that may create databases."""
    return _url_or_skip(database_servers, POSTGRESQL)


@pytest.fixture(scope="session")
def mariadb_server(database_servers: DatabaseServers) -> str:
    """The URL of a MariaDB server, for an account that may create databases named ``tenure_test_...``."""
    return _url_or_skip(database_servers, MARIADB)


@pytest.fixture(scope="session")
def fresh_database(database_servers: DatabaseServers) -> FreshDatabase:
    """A function: ``with fresh_database(kind) as url`` makes an empty database and drops it at the end."""

    def fresh(kind: str) -> AbstractContextManager[str]:
        if kind != SQLITE:
            _url_or_skip(database_servers, kind)
        return database_servers.fresh_database(kind)

    return fresh


@pytest.fixture(
    params=[
        SQLITE,
        pytest.param(POSTGRESQL, marks=pytest.mark.postgresql),
        pytest.param(MARIADB, marks=pytest.mark.mariadb),
    ]
)
def database_url(request: pytest.FixtureRequest, fresh_database: FreshDatabase) -> Iterator[str]:
    """The URL of an empty database, for each kind that Tenure supports."""
    with fresh_database(request.param) as url:
        yield url


@pytest.fixture(
    params=[pytest.param(POSTGRESQL, marks=pytest.mark.postgresql), pytest.param(MARIADB, marks=pytest.mark.mariadb)]
)
def server_url(request: pytest.FixtureRequest, fresh_database: FreshDatabase) -> Iterator[str]:
    """The URL of an empty database on a server: SQLite has one lock for all writers."""
    with fresh_database(request.param) as url:
        yield url


@pytest.fixture(
    params=[
        SQLITE,
        pytest.param(POSTGRESQL, marks=[pytest.mark.postgresql, pytest.mark.long]),
        pytest.param(MARIADB, marks=[pytest.mark.mariadb, pytest.mark.long]),
    ]
)
def one_database_url(request: pytest.FixtureRequest, fresh_database: FreshDatabase) -> Iterator[str]:
    """The URL of an empty database on SQLite, and on the others in a long run only.

    It is for tests of what does not differ between databases, once a few tests have shown that on each kind.
    """
    with fresh_database(request.param) as url:
        yield url


def _url_or_skip(servers: DatabaseServers, kind: str) -> str:
    try:
        return servers.url(kind)
    except ServerMissing as missing:
        pytest.skip(str(missing))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the JUnit report of a run name the markers of each test."""
    for item in items:
        item.user_properties += [(MARKER, name) for name in sorted(REPORTED & {m.name for m in item.iter_markers()})]


def pytest_collection_finish() -> None:
    """Search what was imported and collected for garbage no more: that is most of the objects, and all of it stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that must be complete and is not."""
    if os.environ.get(NOTHING_LEFT_OUT) == "1" and session.exitstatus == 0 and _left_out(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    """Name the tests left out in the last lines, so that a partial run is not taken for a whole run."""
    yield
    left_out = _left_out(config)
    if not left_out:
        return
    terminalreporter.write_sep("=", "LEFT OUT")
    for reason, count in sorted(left_out.items()):
        terminalreporter.write_line(f"{count} test{'s'[: count > 1]}: {reason}")
    if os.environ.get(NOTHING_LEFT_OUT) == "1":
        terminalreporter.write_line(f"{NOTHING_LEFT_OUT}=1: that is a failure.", red=True)


def _left_out(config: pytest.Config) -> Counter[str]:
    """Count the tests that were skipped, by reason. Empty in a worker: only its controller reports."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return Counter()
    return Counter(_reason(report) for report in reporter.stats.get("skipped", ()))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)
