"""A database that does not work: callers are asked to retry, and nothing is done twice."""

from __future__ import annotations

import logging
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from sqlalchemy import event, text

from tenure.domain.errors import TooManyConflicts, Unavailable
from tenure.store import schema
from tenure.store.database import Database, OutcomeUnknown, Transaction
from tests.store.rows import new_lease
from tests.support.breaker import Breaker

SECRET = "not-for-strangers"
LEASE = "the-lease"

#: URLs of databases without a server.
UNREACHABLE = {
    "postgresql": f"postgresql+psycopg://tenure:{SECRET}@127.0.0.1:1/tenure",
    "mariadb": f"mysql+pymysql://tenure:{SECRET}@127.0.0.1:1/tenure",
    "sqlite": "sqlite:////nowhere/at/all/tenure.db",
}


@pytest.fixture(params=[pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgresql", "mariadb")])
def db(request: pytest.FixtureRequest, fresh_database, clock) -> Iterator[Database]:
    """A database on a server: a file has no connections to lose."""
    with fresh_database(request.param) as url:
        database = Database(url, clock=clock)
        try:
            schema.upgrade(database)
            yield database
        finally:
            database.close()


def is_there(db: Database) -> bool:
    with db.read() as tx:
        return tx.leases.get(LEASE) is not None


def tells_nothing(refusal: Unavailable) -> bool:
    """Whether strangers learn nothing from the text of how the service is made."""
    return not any(
        word in refusal.message for word in (SECRET, "SELECT", "INSERT", "psycopg", "pymysql", "sqlite", "://")
    )


@pytest.mark.parametrize("kind", UNREACHABLE)
def test_unreachable_database_is_unavailable(kind: str, caplog: pytest.LogCaptureFixture):
    db = Database(UNREACHABLE[kind])
    attempts: list[Transaction] = []
    with pytest.raises(Unavailable, match="try again later") as writing:
        db.write(attempts.append)
    with pytest.raises(Unavailable, match="try again later") as reading, db.read():
        raise AssertionError("there is nothing to read from")
    with pytest.raises(Unavailable):
        db.ping()
    db.close()
    assert attempts == []
    assert tells_nothing(writing.value)
    assert tells_nothing(reading.value)
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(logged) == 3
    assert all("connect" in line or "unable to open" in line for line in logged)  # the operator sees why
    assert SECRET not in caplog.text


def test_unreadable_file_works_again_once_readable(tmp_path: Path):
    db = Database(f"sqlite:///{tmp_path / 'later' / 'tenure.db'}")
    with pytest.raises(Unavailable):
        db.ping()
    (tmp_path / "later").mkdir()
    db.ping()
    db.close()


@pytest.mark.parametrize("lost", ["tenure.db", "tenure.db-wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_promised_in_a_file_that_is_gone(tmp_path: Path, clock, lost: str, replaced: bool):
    """What is written into a deleted file is there until the process ends, and lost then."""
    db = Database(f"sqlite:///{tmp_path / 'tenure.db'}", clock=clock)
    schema.upgrade(db)
    db.write(lambda _tx: None)
    content = (tmp_path / lost).read_bytes()
    (tmp_path / lost).unlink()
    if replaced:
        (tmp_path / lost).write_bytes(content)
    attempts: list[Transaction] = []
    with pytest.raises(Unavailable, match="try again later"):
        db.write(attempts.append)
    with pytest.raises(Unavailable), db.read():
        raise AssertionError("what is read is lost as well")
    assert attempts == []
    db.close()


def test_a_file_deleted_during_a_transaction_may_have_lost_it(tmp_path: Path, clock):
    db = Database(f"sqlite:///{tmp_path / 'tenure.db'}", clock=clock)
    schema.upgrade(db)
    with pytest.raises(OutcomeUnknown):
        db.write(lambda _tx: (tmp_path / "tenure.db").unlink())
    db.close()


def test_a_renamed_folder_works_again_at_its_old_place(tmp_path: Path, clock):
    (tmp_path / "data").mkdir()
    db = Database(f"sqlite:///{tmp_path / 'data' / 'tenure.db'}", clock=clock)
    schema.upgrade(db)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(Unavailable):
        db.write(lambda _tx: None)
    (tmp_path / "elsewhere").rename(tmp_path / "data")
    db.write(lambda _tx: None)
    db.close()


@pytest.mark.slow
def test_file_locked_by_another_process(tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch):
    """A reader, which waits for no writer, waits for the lock, but not without end."""
    monkeypatch.setattr("tenure.store.database.SQLITE_WAIT_SECONDS", 0.01)
    url = f"sqlite:///{tmp_path / 'tenure.db'}"
    db = Database(url, clock=clock)
    schema.upgrade(db)
    db.close()
    with closing(sqlite3.connect(tmp_path / "tenure.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match="try again later"), db.read():
            raise AssertionError("there is nothing to read from")
        with pytest.raises(TooManyConflicts):
            db.write(lambda _tx: None)
    assert not is_there(db)
    db.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_silent_server_is_unavailable(kind: str, monkeypatch: pytest.MonkeyPatch):
    """It takes the connection and then keeps silent, as a machine that has died in the middle of it."""
    monkeypatch.setattr("tenure.store.database.CONNECT_SECONDS", 2)
    monkeypatch.setattr("tenure.store.database.SILENCE_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = UNREACHABLE[kind].replace(":1/", f":{mute.getsockname()[1]}/")
        db = Database(url)
        with pytest.raises(Unavailable, match="try again later"):
            db.ping()
        db.close()


def test_schema_check_does_not_wait_for_a_writer(tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch):
    """Every health check reads the schema."""
    monkeypatch.setattr("tenure.store.database.SQLITE_WAIT_SECONDS", 0.01)
    db = Database(f"sqlite:///{tmp_path / 'tenure.db'}", clock=clock)
    schema.upgrade(db)
    with closing(sqlite3.connect(tmp_path / "tenure.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert schema.current(db) == schema.head()
    db.close()


def test_full_disk_is_unavailable(tmp_path: Path, clock):
    db = Database(f"sqlite:///{tmp_path / 'tenure.db'}", clock=clock)
    schema.upgrade(db)
    db.close()

    def fill(connection: sqlite3.Connection, _record: object) -> None:
        [(pages,)] = connection.execute("PRAGMA page_count")
        connection.execute(f"PRAGMA max_page_count={pages}")

    event.listen(db.engine, "connect", fill)
    with pytest.raises(Unavailable, match="try again later"):
        db.write(lambda tx: tx.leases.add(new_lease(lease_id=LEASE, name="n" * 100_000)))
    assert not is_there(db)
    db.close()


def test_exhausted_connections_are_unavailable(database_url: str):
    db = Database(database_url, pool_size=1, pool_wait_seconds=0.1)
    with db.read(), db.read():
        with pytest.raises(Unavailable, match="try again later"), db.read():
            raise AssertionError("there is no third")
        with pytest.raises(Unavailable, match="try again later"):
            db.write(lambda _tx: None)
    db.ping()
    db.close()


@pytest.mark.parametrize("nested", [False, True])
def test_connection_lost_in_a_transaction(db: Database, nested: bool, caplog: pytest.LogCaptureFixture):
    """What was written is not there, and the next transaction has another connection."""
    breaker, attempts = Breaker(db), []

    def work(tx: Transaction) -> None:
        attempts.append(tx)
        tx.leases.add(new_lease(lease_id=LEASE))
        breaker.end(tx.session.connection())
        with tx.session.begin_nested() if nested else nullcontext():
            tx.session.execute(text("SELECT 1"))

    with pytest.raises(Unavailable, match="try again later") as lost:
        db.write(work)
    assert not isinstance(lost.value, OutcomeUnknown)
    assert tells_nothing(lost.value)
    assert any(
        "the database does not work" in record.getMessage()
        for record in caplog.records
        if record.name.startswith("tenure")
    )
    assert len(attempts) == 1
    assert not is_there(db)
    db.write(lambda tx: tx.leases.add(new_lease(lease_id=LEASE)))
    assert is_there(db)


def test_connection_lost_while_reading(db: Database):
    breaker = Breaker(db)

    def read_on() -> None:
        with db.read() as tx:
            breaker.end(tx.session.connection())
            tx.leases.get(LEASE)

    with pytest.raises(Unavailable, match="try again later") as lost:
        read_on()
    assert tells_nothing(lost.value)
    assert not is_there(db)


def test_connection_lost_before_its_first_use(db: Database):
    Breaker(db).end_when_taken()
    with pytest.raises(Unavailable, match="try again later"), db.read() as tx:
        tx.leases.get(LEASE)
    Breaker(db).end_when_taken()
    with pytest.raises(Unavailable, match="try again later"):
        db.write(lambda tx: tx.leases.add(new_lease(lease_id=LEASE)))
    assert not is_there(db)


def test_connection_lost_while_idle(db: Database):
    """A restart of the database between two requests goes unnoticed."""
    breaker = Breaker(db)
    with db.engine.connect() as connection:
        number = breaker.number_of(connection)
    breaker.end_number(number)
    db.write(lambda tx: tx.leases.add(new_lease(lease_id=LEASE)))
    assert is_there(db)


@pytest.mark.parametrize("committed", [False, True])
def test_a_commit_without_an_answer_is_not_repeated(db: Database, committed: bool):
    """The outcome is unknown; the text does not claim a failure."""
    attempts: list[Transaction] = []

    def work(tx: Transaction) -> None:
        attempts.append(tx)
        tx.leases.add(new_lease(lease_id=LEASE))

    Breaker(db).end_at_commit(committed=committed)
    with pytest.raises(OutcomeUnknown, match="may have been made or not") as lost:
        db.write(work)
    assert tells_nothing(lost.value)
    assert len(attempts) == 1
    assert is_there(db) is committed


def test_lost_connections_are_not_reused(db: Database):
    breaker = Breaker(db)

    def work(tx: Transaction) -> None:
        breaker.end(tx.session.connection())
        tx.session.execute(text("SELECT 1"))

    for _ in range(50):
        with pytest.raises(Unavailable):
            db.write(work)
    assert db.engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a pool that counts
    assert not is_there(db)
