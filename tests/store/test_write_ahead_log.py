"""Commits of SQLite, and when they are on the disk."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tenure.store.database import Database, OutcomeUnknown, Transaction
from tests.support import schemas
from tests.support.waiting import HANG_SECONDS, wait_for

ALONE, BESIDE = "alone", 8


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tenure.db"


@pytest.fixture
def db(file: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{file}")
    schemas.lay_out(database)
    yield database
    database.close()


def write(db: Database, name: str = ALONE) -> None:
    db.write(lambda tx: tx.upkeep.record(name, tx.now()))


def written(file: Path) -> set[str]:
    """The rows that another program sees."""
    reader = sqlite3.connect(file)
    try:
        return {name for (name,) in reader.execute("SELECT name FROM upkeep")}
    finally:
        reader.close()


class Disk:
    """Counts what is written to the disk, and can hold it up, or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        self._file = file
        self._guard = threading.Lock()
        self.seen: list[set[str]] = []
        self.works = threading.Event()
        self.works.set()
        self.error: OSError | None = None
        monkeypatch.setattr(os, "fdatasync", self._flush)

    def _flush(self, log: int) -> None:
        assert os.readlink(f"/proc/self/fd/{log}") == f"{self._file}-wal"
        with self._guard:
            self.seen.append(written(self._file))
        assert self.works.wait(HANG_SECONDS)
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, db: Database, file: Path) -> Disk:
    return Disk(monkeypatch, file)


def test_a_write_returns_when_what_it_has_committed_is_on_the_disk(db: Database, disk: Disk) -> None:
    write(db)
    assert disk.seen == [{ALONE}]


def test_nothing_goes_to_the_disk_for_what_is_rolled_back_or_read(db: Database, disk: Disk) -> None:
    def fail(_tx: Transaction) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        db.write(fail)
    with db.read() as tx:
        tx.upkeep.at(ALONE)
    assert disk.seen == []


def test_writers_go_on_while_others_wait_for_the_disk_and_then_wait_together(
    db: Database, disk: Disk, file: Path
) -> None:
    names = {f"beside-{number}" for number in range(BESIDE)}
    disk.works.clear()
    with ThreadPoolExecutor(1 + BESIDE) as threads:
        answers = [threads.submit(write, db)]
        wait_for("the first to wait for the disk", lambda: disk.seen)
        answers += [threads.submit(write, db, name) for name in names]
        wait_for("all to have committed", lambda: written(file) == {ALONE, *names})
        assert not any(answer.done() for answer in answers)
        disk.works.set()
        for answer in answers:
            answer.result(HANG_SECONDS)
    assert len(disk.seen) <= 3  # the first, the others, and a straggler between its commit and its flush


def test_what_may_not_be_on_the_disk_is_not_promised(db: Database, disk: Disk, file: Path) -> None:
    disk.error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OutcomeUnknown):
        write(db)
    disk.error = None
    log = Path(f"{file}-wal")
    assert log.stat().st_size > 0
    write(db, "later")
    assert written(file) == {ALONE, "later"}
    assert log.stat().st_size == 0  # the system does not write again what it could not write: the log may have a gap


def test_the_log_is_found_beside_the_file_that_a_link_names(file: Path, db: Database, disk: Disk) -> None:
    link = file.with_name("link.db")
    link.symlink_to(file)
    linked = Database(f"sqlite:///{link}")
    write(linked)
    linked.close()
    assert disk.seen == [{ALONE}]


def test_a_database_that_need_not_last_leaves_the_disk_alone(file: Path, db: Database, disk: Disk) -> None:
    fleeting = Database(f"sqlite:///{file}", durable=False)
    write(fleeting)
    fleeting.close()
    assert disk.seen == []
