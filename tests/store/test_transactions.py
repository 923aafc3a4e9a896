"""Transactions: what is tried again and what is not, what a reader sees, and who waits for whom."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from tenure.domain.errors import TooManyConflicts, Unavailable
from tenure.store import schema
from tenure.store.conflict import Overtaken
from tenure.store.database import ATTEMPTS, Database, Transaction
from tenure.store.tables import ResourceRow
from tests.store.rows import add_hosts, add_lease, allocations_of, close, demand, execute, hours, new_lease
from tests.support.waiting import patience
from tests.support.world import HOST, NOW

SERVERS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
#: What a database answers when transactions meet; then what has another reason.
MEETINGS = [
    pytest.param("postgresql", "40001", marks=pytest.mark.postgresql),
    pytest.param("postgresql", "40P01", marks=pytest.mark.postgresql),
    pytest.param("postgresql", "23P01", marks=pytest.mark.postgresql),
    pytest.param("mariadb", "1020", marks=pytest.mark.mariadb),
    pytest.param("mariadb", "1205", marks=pytest.mark.mariadb),
    pytest.param("mariadb", "1213", marks=pytest.mark.mariadb),
]
FAILURES = [
    pytest.param("postgresql", "23505", IntegrityError, marks=pytest.mark.postgresql),  # a second row of one key
    pytest.param("mariadb", "1062", IntegrityError, marks=pytest.mark.mariadb),
    pytest.param("postgresql", "57014", Unavailable, marks=pytest.mark.postgresql),  # the operator cancelled it
    pytest.param("mariadb", "1317", Unavailable, marks=pytest.mark.mariadb),
    pytest.param("mariadb", "1969", Unavailable, marks=pytest.mark.mariadb),  # it lasted longer than the server allows
]


def fail(tx: Transaction, code: str) -> None:
    """Have the database refuse a statement with this code."""
    if tx.session.get_bind().dialect.name == "postgresql":
        tx.session.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END $$"))
    else:
        tx.session.execute(text(f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {code}"))


@contextmanager
def two_threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def version_of(tx: Transaction, resource_id: int) -> int:
    return versions_of(tx, [resource_id])[resource_id]


def versions_of(tx: Transaction, resource_ids: Iterable[int]) -> dict[int, int]:
    return {one.id: one.version for one in tx.resources.by_ids(resource_ids).values()}


def test_what_a_failed_transaction_wrote_is_not_there(db: Database):
    def work(tx: Transaction) -> None:
        tx.leases.add(new_lease(lease_id="half"))
        raise LookupError

    with pytest.raises(LookupError):
        db.write(work)
    with db.read() as tx:
        assert tx.leases.get("half", deleted=True) is None


def test_an_overtaken_transaction_is_done_again_from_the_beginning(db: Database):
    attempts: list[bool] = []

    def work(tx: Transaction) -> str:
        attempts.append(bool(tx.hold({HOST})))
        tx.leases.add(new_lease(lease_id="again"))
        if len(attempts) < 3:
            raise Overtaken
        return "done"

    assert db.write(work) == "done"
    assert attempts == [False] * 3
    with db.read() as tx:
        assert tx.leases.get("again") is not None


def test_who_is_overtaken_every_time_is_told_so_and_locks_first_in_the_end(db: Database):
    hosts = add_hosts(db, 2)
    add_hosts(db, 1, resource_type="something:else")
    attempts: list[list[int]] = []

    def work(tx: Transaction) -> None:
        attempts.append(list(tx.hold({HOST})))
        tx.leases.add(new_lease(lease_id="never"))
        raise Overtaken

    with pytest.raises(TooManyConflicts):
        db.write(work)
    assert attempts == [[]] * (ATTEMPTS - 1) + [hosts]
    with db.read() as tx:
        assert tx.leases.get("never") is None


@pytest.mark.parametrize(("database", "code"), MEETINGS)
def test_a_transaction_that_the_database_gave_up_is_done_again(fresh_database, clock, database: str, code: str):
    with fresh_database(database) as url:
        db = Database(url, clock=clock)
        attempts: list[str] = []

        def work(tx: Transaction) -> None:
            attempts.append(code)
            if len(attempts) < 2:
                fail(tx, code)

        db.write(work)
        db.close()
    assert attempts == [code] * 2


@pytest.mark.parametrize(("database", "code", "refusal"), FAILURES)
def test_what_fails_every_time_is_not_tried_again(
    fresh_database, clock, database: str, code: str, refusal: type[Exception]
):
    attempts: list[str] = []

    def work(tx: Transaction) -> None:
        attempts.append(code)
        fail(tx, code)

    with fresh_database(database) as url, closing(Database(url, clock=clock)) as db, pytest.raises(refusal):
        db.write(work)
    assert attempts == [code]


def test_a_second_row_of_one_key_is_not_tried_again(db: Database):
    attempts: list[str] = []
    lease = add_lease(db)

    def work(tx: Transaction) -> None:
        attempts.append("")
        tx.events.add(lease.events)

    with pytest.raises(IntegrityError):
        db.write(work)
    assert len(attempts) == 1


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("database", SERVERS)
def test_of_two_that_wait_for_each_other_one_is_done_again(fresh_database, clock, database: str, nested: bool):
    """A real deadlock: each has changed the row that the other one is about to change.

    MariaDB gives up the whole transaction then, with the savepoints in it.
    """
    with fresh_database(database) as url:
        db = opened(url, clock)
        first, second = add_hosts(db, 2)
        meeting = threading.Barrier(2)
        attempts: list[int] = []

        def change(here: int, there: int) -> Callable[[Transaction], None]:
            mine: list[int] = []

            def work(tx: Transaction) -> None:
                mine.append(here)
                attempts.append(here)
                close(tx, here)
                if len(mine) == 1:
                    meeting.wait(patience())
                with tx.session.begin_nested() if nested else nullcontext():
                    close(tx, there)

            return work

        with two_threads() as pool:
            waiting = [pool.submit(db.write, work) for work in (change(first, second), change(second, first))]
            for one in waiting:
                one.result(patience())
        with db.read() as tx:
            assert versions_of(tx, [first, second]) == {first: 3, second: 3}
        db.close()
    # The other one goes through at once; the repetition may still meet it, and is repeated then.
    assert min(Counter(attempts).values()) == 1
    assert len(attempts) >= 3


def test_sqlite_waits_for_whoever_writes(tmp_path, clock):
    """And tries again where it has waited in vain."""
    db = opened(f"sqlite:///{tmp_path / 'tenure.db'}", clock, wait_ms=20)
    [host] = add_hosts(db, 1)
    tried = threading.Event()
    event.listen(db.engine, "handle_error", lambda _context: tried.set())
    with two_threads() as pool:
        with db.engine.begin() as other:
            other.execute(text("UPDATE resources SET version = 7"))
            waiting = pool.submit(db.write, lambda tx: version_of(tx, host))
            assert tried.wait(patience())
        assert waiting.result(patience()) == 7
    db.close()


def test_writers_of_one_process_take_turns_on_sqlite(tmp_path, clock):
    """They are woken one by one; none asks for the file while another of them has it."""
    db = opened(f"sqlite:///{tmp_path / 'tenure.db'}", clock, wait_ms=1)
    [host] = add_hosts(db, 1)
    refused, entered, leave = threading.Event(), threading.Event(), threading.Event()
    event.listen(db.engine, "handle_error", lambda _context: refused.set())

    def hold(tx: Transaction) -> None:
        tx.resources.raise_versions({host: 1})
        entered.set()
        assert leave.wait(patience())

    with two_threads() as pool:
        first = pool.submit(db.write, hold)
        assert entered.wait(patience())
        second = pool.submit(db.write, lambda tx: version_of(tx, host))
        assert not refused.wait(0.2)
        leave.set()
        first.result(patience())
        assert second.result(patience()) == 2
    db.close()
    assert not refused.is_set()


def test_sqlite_that_stays_locked_is_too_many_conflicts(tmp_path, clock):
    db = opened(f"sqlite:///{tmp_path / 'tenure.db'}", clock, wait_ms=1)
    add_hosts(db, 1)
    with db.engine.begin(), pytest.raises(TooManyConflicts):
        db.write(lambda tx: tx.session.execute(text("UPDATE resources SET version = 7")))
    db.close()


def test_of_two_that_read_the_same_version_one_decides_again(db: Database):
    """On SQLite nobody reads what another is about to change: its transactions follow one another."""
    [host] = add_hosts(db, 1)
    meeting = threading.Barrier(2)
    seen: list[int] = []

    def work_of(mine: list[int]) -> Callable[[Transaction], None]:
        def work(tx: Transaction) -> None:
            version = version_of(tx, host)
            mine.append(version)
            seen.append(version)
            if db.dialect != "sqlite" and len(mine) == 1:
                meeting.wait(patience())
            tx.resources.raise_versions({host: version})

        return work

    with two_threads() as pool:
        for one in [pool.submit(db.write, work_of([])) for _ in range(2)]:
            one.result(patience())
    assert sorted(seen) == ([1, 2] if db.dialect == "sqlite" else [1, 1, 2])
    with db.read() as tx:
        assert version_of(tx, host) == 3


def test_of_two_that_find_the_last_host_free_one_gets_it(db: Database):
    """The booking itself: search, write, raise the version."""
    [host] = add_hosts(db, 1)
    leases = [add_lease(db), add_lease(db)]
    meeting = threading.Barrier(2)

    def book(reservation_id: str) -> Callable[[Transaction], list[int]]:
        attempts: list[list[int]] = []

        def work(tx: Transaction) -> list[int]:
            found = tx.allocations.candidates(demand(), hours(1, 2), now=NOW, turn=0)
            attempts.append([one.resource_id for one in found])
            if db.dialect != "sqlite" and len(attempts) == 1:
                meeting.wait(patience())
            tx.allocations.add(reservation_id, dict.fromkeys(attempts[-1], 1), hours(1, 2), demand())
            tx.resources.raise_versions({one.resource_id: one.version for one in found})
            return attempts[-1]

        return work

    with two_threads() as pool:
        booked = [pool.submit(db.write, book(lease.reservations[0].id)) for lease in leases]
        assert sorted(one.result(patience()) for one in booked) == [[], [host]]
    assert [one.resource_id for one in allocations_of(db, *leases)] == [host]


def test_a_version_that_somebody_raised_meanwhile_is_not_raised_again(db: Database):
    ids = add_hosts(db, 3)
    with db.read() as tx:
        seen = versions_of(tx, ids)
    db.write(lambda tx: tx.resources.raise_versions({ids[1]: seen[ids[1]]}))

    def raise_all(tx: Transaction) -> None:
        with pytest.raises(Overtaken), tx.session.begin_nested():
            tx.resources.raise_versions(seen)

    db.write(raise_all)
    with db.read() as tx:
        assert versions_of(tx, ids) == {ids[0]: 1, ids[1]: 2, ids[2]: 1}


def test_the_version_of_what_is_not_there_cannot_be_raised(db: Database):
    [host] = add_hosts(db, 1)

    def raise_wrong(tx: Transaction) -> None:
        for seen in ({host: 1, 4711: 1}, {host: 2}, {host: 0}):
            with pytest.raises(Overtaken), tx.session.begin_nested():
                tx.resources.raise_versions(seen)
        tx.resources.raise_versions({})

    db.write(raise_wrong)
    with db.read() as tx:
        assert version_of(tx, host) == 1


def test_a_reader_sees_one_state_however_long_it_reads(db: Database):
    [host] = add_hosts(db, 1)
    with db.read() as tx:
        assert version_of(tx, host) == 1
        db.write(lambda other: other.resources.raise_versions({host: 1}))
        assert version_of(tx, host) == 1
    with db.read() as tx:
        assert version_of(tx, host) == 2


def test_a_reader_does_not_wait_for_a_writer(db: Database):
    [host] = add_hosts(db, 1)

    def work(tx: Transaction) -> int:
        tx.resources.raise_versions({host: 1})
        with db.read() as reader:
            return version_of(reader, host)

    assert db.write(work) == 1


def test_a_writer_sees_what_others_have_written_since_it_began(db: Database):
    """So the attempt that locks first decides on the newest rows. On SQLite nobody writes meanwhile."""
    if db.dialect == "sqlite":
        with db.engine.connect() as outside:
            outside.execute(text("SELECT 1"))
            assert outside.get_isolation_level() == "SERIALIZABLE"
        return
    [host] = add_hosts(db, 1)

    def work(tx: Transaction) -> list[int]:
        seen = [version_of(tx, host)]
        execute(db, "UPDATE resources SET version = 5")
        return [*seen, version_of(tx, host)]

    assert db.write(work) == [1, 5]


def test_an_attempt_locks_first_what_the_ones_before_have_wanted(db: Database):
    """So nobody can get in between again; the others are left alone. On SQLite an attempt has the whole file."""
    wanted, other = add_hosts(db, 2)
    attempts: list[tuple[bool, bool, bool]] = []

    def work(tx: Transaction) -> None:
        holds = bool(tx.hold({HOST}))
        assert version_of(tx, wanted) == 1
        attempts.append((holds, is_locked(db, wanted), is_locked(db, other)))
        tx.resources.raise_versions({wanted: 1 if len(attempts) > 1 else 4711})

    db.write(work)
    whole_file = db.dialect == "sqlite"
    assert attempts == [(False, whole_file, whole_file), (True, True, whole_file)]
    assert not is_locked(db, wanted)


def test_the_last_attempt_locks_all_resources_first(db: Database):
    [wanted] = add_hosts(db, 1)
    [other_type] = add_hosts(db, 1, resource_type="something:else")
    attempts: list[tuple[bool, bool]] = []

    def work(tx: Transaction) -> None:
        tx.hold({HOST})
        assert version_of(tx, wanted) == 1
        attempts.append((is_locked(db, wanted), is_locked(db, other_type)))
        if len(attempts) < ATTEMPTS:
            raise Overtaken

    db.write(work)
    whole_file = db.dialect == "sqlite"
    assert attempts == [(whole_file, whole_file)] * (ATTEMPTS - 1) + [(True, whole_file)]


def test_who_holds_one_row_does_not_wait_for_another(db: Database):
    """No two can wait for each other then. What one does not get is locked first the next time."""
    if db.dialect == "sqlite":
        with db.engine.begin():
            assert is_locked(db, 0)  # nobody holds anything beside another here
        return
    first, second = add_hosts(db, 2)
    attempts: list[bool] = []

    with two_threads() as pool:
        held, release = threading.Event(), threading.Event()

        def hold_second(tx: Transaction) -> None:
            tx.resources.raise_versions({second: 1})
            held.set()
            assert release.wait(patience())

        def want_both(tx: Transaction) -> None:
            attempts.append(bool(tx.hold({HOST})))
            tx.resources.raise_versions({first: version_of(tx, first)})
            if len(attempts) == 1:
                try:
                    tx.resources.raise_versions({second: version_of(tx, second)}, wait=False)
                finally:
                    release.set()
            tx.resources.raise_versions({second: version_of(tx, second)}, wait=False)

        other = pool.submit(db.write, hold_second)
        assert held.wait(patience())
        db.write(want_both)
        other.result(patience())
    assert attempts == [False, True]
    with db.read() as tx:
        assert versions_of(tx, [first, second]) == {first: 2, second: 3}


def test_who_locks_a_lease_is_alone_with_it(db: Database):
    """Two changes of one lease follow one another, and neither has to begin anew."""
    lease = add_lease(db)
    attempts: list[int] = []
    meeting = threading.Barrier(2)

    def change(tx: Transaction) -> None:
        found = tx.leases.get(lease.id, lock=True)
        assert found is not None
        attempts.append(found.version)
        tx.leases.change(found, now=NOW)

    def begin() -> None:
        meeting.wait(patience())
        db.write(change)

    with two_threads() as pool:
        for one in [pool.submit(begin), pool.submit(begin)]:
            one.result(patience())
    assert attempts == [1, 2]


def is_locked(db: Database, resource_id: int) -> bool:
    """Whether somebody else holds a resource's row; on SQLite, the file."""
    if db.dialect == "sqlite":
        impatient = Database(str(db.engine.url))
        event.listen(impatient.engine, "connect", lambda connection, _record: be_impatient(connection, 1))
        try:
            with impatient.engine.begin():
                return False
        except OperationalError:
            return True
        finally:
            impatient.close()
    try:
        with db.engine.begin() as connection:
            connection.execute(select(ResourceRow.id).where(ResourceRow.id == resource_id).with_for_update(nowait=True))
            return False
    except DBAPIError:
        return True


def be_impatient(connection, wait_ms: int) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {wait_ms}")
    cursor.close()


def opened(url: str, clock, *, wait_ms: int | None = None) -> Database:
    """A database with the schema; SQLite waits for others for so many milliseconds only."""
    db = Database(url, clock=clock)
    if wait_ms is not None:
        event.listen(db.engine, "connect", lambda connection, _record: be_impatient(connection, wait_ms))
    schema.upgrade(db)
    return db


@pytest.mark.parametrize("database", SERVERS)
def test_nobody_waits_for_ever_for_a_row(fresh_database, clock, database: str):
    """Whoever has it may have come to a standstill, with his connection open: here until the caller has its answer."""
    limit = "SHOW lock_timeout" if database == "postgresql" else "SELECT @@innodb_lock_wait_timeout"
    limits: list[object] = []

    def change(tx: Transaction) -> None:
        limits.append(tx.session.execute(text(limit)).scalar_one())
        close(tx, host)

    with fresh_database(database) as url:
        db = Database(url, clock=clock, row_wait_seconds=1, patience_seconds=0.5)
        schema.upgrade(db)
        [host] = add_hosts(db, 1)
        with db.engine.begin() as holder:
            holder.execute(text("UPDATE resources SET version = 7"))
            with pytest.raises(TooManyConflicts):
                db.write(change)
        db.close()
    assert limits == ["1s" if database == "postgresql" else 1]  # and no second attempt


def test_a_database_that_answers_is_well(db: Database):
    db.ping()


def test_connections_are_given_back(db: Database):
    """Whatever becomes of a transaction."""
    for _ in range(50):
        with pytest.raises(LookupError):
            db.write(lambda tx: (_ for _ in ()).throw(LookupError))
        with db.read() as tx:
            assert tx.resources.known_external_ids(HOST) == set()
    assert db.engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a pool that counts
