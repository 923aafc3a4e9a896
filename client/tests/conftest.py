"""What the tests share: servers at both API versions and the shells, run in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tenureclient.cli.command import Surroundings
from tenureclient.cli.shell import TenureShell
from tenureclient.testing import FakeServer

BEGINNING = datetime(2027, 3, 1, 9, 30, tzinfo=UTC)  # a Monday


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit code and the output of a command."""

    code: int
    output: str
    errors: str


Run = Callable[..., Outcome]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(now=BEGINNING) as started:
        yield started


@pytest.fixture
def blazar() -> Iterator[FakeServer]:
    """A server that knows API 1.0 only."""
    with FakeServer(now=BEGINNING, versions=("1.0",)) as started:
        yield started


@pytest.fixture
def two_regions() -> Iterator[FakeServer]:
    """A server of two regions, north, which is the home region, and south."""
    with FakeServer(now=BEGINNING, regions=("north", "south")) as started:
        yield started


@pytest.fixture
def surroundings(server: FakeServer) -> Surroundings:
    """The clock of the server, pauses that move it, and a zone that is not UTC."""
    return Surroundings(
        now=lambda: server.now,
        sleep=lambda seconds: server.advance(timedelta(seconds=seconds)),
        zone=ZoneInfo("Europe/Berlin"),
    )


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's own clouds from the tests."""
    for name in ("OS_CLOUD", "OS_CLIENT_CONFIG_FILE", "OS_AUTH_URL", "OS_USERNAME", "OS_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def plain_logging() -> Iterator[None]:
    """Restore the logging of the process after a shell has changed it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def tenure(
    server: FakeServer,
    surroundings: Surroundings,
    clean_environment: None,
    plain_logging: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run ``tenure`` in this process against the server."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> Outcome:
        try:
            code = TenureShell(surroundings=surroundings).run(list(arguments))
        except SystemExit as end:  # as argparse leaves
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run
