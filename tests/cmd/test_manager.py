"""``tenure-manager`` waits for its database, and says why; a schema that it cannot use ends it."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

import pytest

from tenure.cmd.process import StartFailed, wait_for_schema
from tenure.store.database import Database
from tests.support import schemas
from tests.support.deployment import Options, Program, write_config
from tests.support.waiting import patience, wait_for


class Waiting:
    """A clock that advances when the process sleeps, and runs callbacks on the way."""

    def __init__(self, seconds: float, then) -> None:
        self.now, self._until, self._then = 1000.0, 1000.0 + seconds, then

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self._until and self._then is not None:
            self._then, then = None, self._then
            then()

    def clock(self) -> float:
        return self.now


@pytest.fixture
def db(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path / 'away' / 'tenure.db'}")
    yield database
    database.close()


def come_back(db: Database, folder: Path, *, empty: bool = False) -> None:
    (folder / "away").mkdir()
    if not empty:
        schemas.lay_out(db)


def test_unavailable_database_is_logged_once_a_minute(db: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    waiting = Waiting(150, lambda: come_back(db, tmp_path))
    wait_for_schema(db, sleep=waiting.sleep, clock=waiting.clock)
    assert waiting.now == pytest.approx(1150, abs=2)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["the database cannot be used: unable to open database file; waiting for it"] * 3
    (tmp_path / "away").rename(tmp_path / "gone")
    db.close()
    with pytest.raises(Exception, match="try again later"):  # the store warns again
        db.ping()
    assert len(caplog.records) == 4


def test_manager_does_not_wait_for_a_missing_schema(db: Database, tmp_path: Path):
    waiting = Waiting(30, lambda: come_back(db, tmp_path, empty=True))
    with pytest.raises(StartFailed, match=r"the schema is at nothing, .*: run tenure-manage db upgrade"):
        wait_for_schema(db, sleep=waiting.sleep, clock=waiting.clock)
    assert waiting.now == pytest.approx(1030, abs=2)


@pytest.mark.slow
def test_a_manager_runs_when_its_database_is_there(db: Database, tmp_path: Path):
    options: Options = {
        "DEFAULT": {"driver": "simulated", "transport_url": "fake://"},
        "database": {"connection": f"sqlite:///{tmp_path / 'away' / 'tenure.db'}"},
        "simulated": {"path": str(tmp_path / "cloud.db")},
        "metrics": {"port": 0},
    }
    config = write_config(tmp_path / "tenure.conf", options)
    command: list[str | Path] = [sys.executable, "-m", "tenure.cmd.manager", "--config-file", config]
    manager = Program("manager", command, tmp_path / "manager.log")
    manager.start()
    try:
        wait_for("it to wait", lambda: "; waiting for it" in manager.log.read_text())
        assert manager.is_running
        come_back(db, tmp_path)
        wait_for("it to run", lambda: " runs" in manager.log.read_text())
        assert manager.process is not None
        manager.process.send_signal(signal.SIGTERM)
        assert manager.process.wait(patience()) == 0, manager.tail()
    finally:
        manager.kill()
