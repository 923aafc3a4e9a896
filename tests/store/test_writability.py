"""Whether the database takes writes, as the health check asks: where nothing can be booked, it says why."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, text

from tenure.domain.errors import Unavailable
from tenure.store import schema
from tenure.store.database import Database, Transaction
from tests.support.schemas import lay_out

#: What makes a session of each database read-only, as a server that has become a standby is.
READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET default_transaction_read_only = on",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
}


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    lay_out(database)
    yield database
    database.close()


def on_connect(db: Database, *statements: str) -> None:
    """Execute statements at the beginning of each new connection."""

    def execute(connection: sqlite3.Connection, _record: object) -> None:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()
        connection.commit()

    db.close()
    event.listen(db.engine, "connect", execute)


def writes(db: Database) -> list[str]:
    """Return a list that gets each statement that writes from now on."""
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            statements.append(statement)

    event.listen(db.engine, "before_cursor_execute", note)
    return statements


def change(tx: Transaction) -> None:
    tx.changed.add_resources([1])


def test_database_takes_writes(db: Database):
    assert db.writability.ailment() is None


def test_read_only_database_is_unwell(db: Database):
    on_connect(db, READ_ONLY[db.dialect])
    db.ping()
    with pytest.raises(Unavailable, match="try again later"):
        db.write(change)
    assert db.writability.ailment() == "it is read-only"


def test_probe_is_written_once_in_a_while(db: Database):
    written = writes(db)
    for _ in range(5):
        assert db.writability.ailment() is None
    assert 1 <= len(written) <= 2  # an update, and the first time an insert


def test_no_probe_is_written_beside_other_writes(db: Database):
    db.write(change)
    written = writes(db)
    assert db.writability.ailment() is None
    assert written == []


def test_full_disk_is_unwell(tmp_path: Path):
    db = Database(f"sqlite:///{tmp_path / 'tenure.db'}")
    schema.upgrade(db)
    with db.read() as tx:
        pages = tx.session.execute(text("PRAGMA page_count")).scalar_one()
    on_connect(db, f"PRAGMA max_page_count = {pages}")
    assert db.writability.ailment() == "its disk is full"
    db.close()


def test_failed_write_is_later_than_the_last_answer(tmp_path: Path):
    db = Database(f"sqlite:///{tmp_path / 'tenure.db'}")
    schema.upgrade(db)
    assert db.writability.ailment() is None
    on_connect(db, READ_ONLY["sqlite"])
    assert db.writability.ailment() is None  # the last answer holds for a while
    with pytest.raises(Unavailable):
        db.write(change)
    assert db.writability.ailment() == "it is read-only"
    db.close()


def test_damaged_file_is_unwell_until_it_is_restored(tmp_path: Path):
    path = tmp_path / "tenure.db"
    db = Database(f"sqlite:///{path}")
    schema.upgrade(db)
    with db.read() as tx:
        root = tx.session.execute(text("SELECT rootpage FROM sqlite_master WHERE name = 'leases'")).scalar_one()
    db.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(Unavailable, match="try again later"), db.read() as tx:
        tx.session.execute(text("SELECT count(name) FROM leases NOT INDEXED"))
    assert db.writability.ailment() == "the file is damaged; restore a backup"
    db.close()


def test_nothing_is_promised_on_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tenure.open_file.RESERVED_BYTES", 2**62)
    monkeypatch.setattr("tenure.open_file.RESERVED_SHARE", 1.0)
    db = Database(f"sqlite:///{tmp_path / 'tenure.db'}")
    schema.upgrade(db)
    with pytest.raises(Unavailable, match="try again later"):
        db.require_space()
    assert str(db.writability.ailment()).startswith("the disk is nearly full")
    db.write(change)  # what was promised begins and ends all the same
    db.close()
