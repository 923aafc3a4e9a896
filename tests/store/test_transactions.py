"""Transactions: what is retried, what a reader sees, and which transactions wait for each other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from tenure.domain.errors import TooManyConflicts, Unavailable
from tenure.store import schema
from tenure.store.conflict import Overtaken
from tenure.store.database import ATTEMPTS, LOCKING_FROM, Database, Transaction
from tenure.store.tables import ResourceRow
from tests.store.rows import add_hosts, add_lease, allocations_of, close, demand, execute, hours, new_lease
from tests.support import snapshots
from tests.support.changing import added, dropped, together
from tests.support.waiting import patience, wait_for
from tests.support.world import HOST, NOW

SERVERS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
#: Errors of databases for conflicts, which are retried; then errors with other reasons.
MEETINGS = [
    pytest.param("postgresql", "40001", marks=pytest.mark.postgresql),
    pytest.param("postgresql", "40P01", marks=pytest.mark.postgresql),
    pytest.param("postgresql", "23P01", marks=pytest.mark.postgresql),
    pytest.param("mariadb", "1020", marks=pytest.mark.mariadb),
    pytest.param("mariadb", "1205", marks=pytest.mark.mariadb),
    pytest.param("mariadb", "1213", marks=pytest.mark.mariadb),
]
FAILURES = [
    pytest.param("postgresql", "23505", IntegrityError, marks=pytest.mark.postgresql),  # duplicate key
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
    return {resource.id: resource.version for resource in tx.resources.by_ids(resource_ids).values()}


def test_failed_transaction_leaves_nothing(db: Database):
    def work(tx: Transaction) -> None:
        tx.leases.add(new_lease(lease_id="half"))
        raise LookupError

    with pytest.raises(LookupError):
        db.write(work)
    with db.read() as tx:
        assert tx.leases.get("half", deleted=True) is None


def test_overtaken_transaction_is_retried_from_the_beginning(db: Database):
    attempts: list[bool] = []

    def work(tx: Transaction) -> str:
        attempts.append(bool(tx.lock_contended({HOST})))
        tx.leases.add(new_lease(lease_id="again"))
        if len(attempts) < 3:
            raise Overtaken
        return "done"

    assert db.write(work) == "done"
    assert attempts == [False] * 3
    with db.read() as tx:
        assert tx.leases.get("again") is not None


@pytest.mark.slow
def test_repeated_conflicts_lock_first_and_finally_raise(db: Database):
    hosts = add_hosts(db, 2)
    add_hosts(db, 1, resource_type="something:else")
    attempts: list[list[int]] = []

    def work(tx: Transaction) -> None:
        attempts.append(list(tx.lock_contended({HOST})))
        tx.leases.add(new_lease(lease_id="never"))
        raise Overtaken

    with pytest.raises(TooManyConflicts):
        db.write(work)
    assert attempts == [[]] * (ATTEMPTS - 1) + [hosts]
    with db.read() as tx:
        assert tx.leases.get("never") is None


@pytest.mark.parametrize(("database", "code"), MEETINGS)
def test_transaction_aborted_by_the_database_is_retried(fresh_database, clock, database: str, code: str):
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
def test_permanent_error_is_not_retried(fresh_database, clock, database: str, code: str, refusal: type[Exception]):
    attempts: list[str] = []

    def work(tx: Transaction) -> None:
        attempts.append(code)
        fail(tx, code)

    with fresh_database(database) as url, closing(Database(url, clock=clock)) as db, pytest.raises(refusal):
        db.write(work)
    assert attempts == [code]


def test_duplicate_key_is_not_retried(db: Database):
    attempts: list[str] = []
    lease = add_lease(db)

    def work(tx: Transaction) -> None:
        attempts.append("")
        tx.events.add(lease.events)

    with pytest.raises(IntegrityError):
        db.write(work)
    assert len(attempts) == 1


@pytest.mark.parametrize("database", SERVERS)
def test_deadlock_victim_is_retried(fresh_database, clock, database: str):
    """A real deadlock: each transaction has changed the row that the other is about to change."""
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
                close(tx, there)

            return work

        with two_threads() as pool:
            waiting = [pool.submit(db.write, work) for work in (change(first, second), change(second, first))]
            for future in waiting:
                future.result(patience())
        with db.read() as tx:
            assert versions_of(tx, [first, second]) == {first: 3, second: 3}
        db.close()
        # The other commits at once. The retry may conflict with it again, and is then retried again.
    assert min(Counter(attempts).values()) == 1
    assert len(attempts) >= 3


def test_sqlite_waits_for_another_writer(tmp_path, clock):
    """And tries again after a wait without success."""
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


def test_writers_of_one_process_write_one_by_one_on_sqlite(tmp_path, clock):
    """They wake each other in turn; none polls the file while another writer has it."""
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


def test_locked_sqlite_raises_too_many_conflicts(tmp_path, clock):
    db = opened(f"sqlite:///{tmp_path / 'tenure.db'}", clock, wait_ms=1)
    add_hosts(db, 1)
    with db.engine.begin(), pytest.raises(TooManyConflicts):
        db.write(lambda tx: tx.session.execute(text("UPDATE resources SET version = 7")))
    db.close()


def test_second_transaction_with_the_same_version_decides_again(db: Database):
    """On SQLite no transaction reads what another is about to change: they run one after the other."""
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
        for future in [pool.submit(db.write, work_of([])) for _ in range(2)]:
            future.result(patience())
    assert sorted(seen) == ([1, 2] if db.dialect == "sqlite" else [1, 1, 2])
    with db.read() as tx:
        assert version_of(tx, host) == 3


def test_concurrent_bookings_never_share_the_last_host(db: Database):
    """The booking itself: search in a snapshot, raise the version, write."""
    [host] = add_hosts(db, 1)
    leases = [add_lease(db), add_lease(db)]
    meeting = threading.Barrier(2)

    def book(reservation_id: str) -> Callable[[Transaction], list[int]]:
        attempts: list[list[int]] = []

        def work(tx: Transaction) -> list[int]:
            changes = snapshots.book(tx, reservation_id, demand(), hours(1, 2), now=NOW)
            attempts.append([allocation.resource_id for allocation in changes.added])
            if db.dialect != "sqlite" and len(attempts) == 1:
                meeting.wait(patience())
            tx.raise_versions(changes.versions)
            tx.allocations.apply(changes, now=NOW)
            return attempts[-1]

        return work

    with two_threads() as pool:
        booked = [pool.submit(db.write, book(lease.reservations[0].id)) for lease in leases]
        assert sorted(future.result(patience()) for future in booked) == [[], [host]]
    assert [allocation.resource_id for allocation in allocations_of(db, *leases)] == [host]


def test_outdated_version_is_not_raised(db: Database):
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


def test_version_of_a_missing_resource_is_not_raised(db: Database):
    [host] = add_hosts(db, 1)

    def raise_wrong(tx: Transaction) -> None:
        for seen in ({host: 1, 4711: 1}, {host: 2}, {host: 0}):
            with pytest.raises(Overtaken), tx.session.begin_nested():
                tx.resources.raise_versions(seen)
        tx.resources.raise_versions({})

    db.write(raise_wrong)
    with db.read() as tx:
        assert version_of(tx, host) == 1


def test_reader_sees_a_single_snapshot(db: Database):
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


def test_writer_sees_later_commits_of_others(db: Database):
    """So an attempt that locks first decides on the newest rows. On SQLite there is no writer in between."""
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


def test_later_attempts_first_lock_the_rows_of_earlier_ones(db: Database):
    """So no other transaction can get in between again; other rows stay unlocked. SQLite locks the whole file."""
    wanted, other = add_hosts(db, 2)
    attempts: list[tuple[bool, bool, bool]] = []

    def work(tx: Transaction) -> None:
        holds = bool(tx.lock_contended({HOST}))
        assert version_of(tx, wanted) == 1
        attempts.append((holds, is_locked(db, wanted), is_locked(db, other)))
        tx.resources.raise_versions({wanted: 1 if len(attempts) >= LOCKING_FROM else 4711})

    db.write(work)
    whole_file = db.dialect == "sqlite"
    assert attempts == [(False, whole_file, whole_file)] * (LOCKING_FROM - 1) + [(True, True, whole_file)]
    assert not is_locked(db, wanted)


@pytest.mark.slow
def test_the_last_attempt_locks_all_resources_first(db: Database):
    [wanted] = add_hosts(db, 1)
    [other_type] = add_hosts(db, 1, resource_type="something:else")
    attempts: list[tuple[bool, bool]] = []

    def work(tx: Transaction) -> None:
        tx.lock_contended({HOST})
        assert version_of(tx, wanted) == 1
        attempts.append((is_locked(db, wanted), is_locked(db, other_type)))
        if len(attempts) < ATTEMPTS:
            raise Overtaken

    db.write(work)
    whole_file = db.dialect == "sqlite"
    assert attempts == [(whole_file, whole_file)] * (ATTEMPTS - 1) + [(True, whole_file)]


def test_holder_of_a_lock_does_not_wait_for_another(db: Database):
    """This prevents deadlocks. An attempt that does not get a row at once is made again."""
    if db.dialect == "sqlite":
        with db.engine.begin():
            assert is_locked(db, 0)  # SQLite has no row locks
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
            attempts.append(bool(tx.lock_contended({HOST})))
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
    assert attempts == [False, False]
    with db.read() as tx:
        assert versions_of(tx, [first, second]) == {first: 2, second: 3}


def test_lease_lock_is_exclusive(db: Database):
    """Two changes of a lease run one after the other, and neither has to be retried."""
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
        for future in [pool.submit(begin), pool.submit(begin)]:
            future.result(patience())
    assert attempts == [1, 2]


#: How many deletions wait for rows of other transactions, in this database alone: others are tested on the same server.
WAITING = {
    "postgresql": """
        SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND datname = current_database()
    """,
    "mariadb": """
        SELECT count(*) FROM information_schema.processlist
        WHERE info LIKE 'DELETE FROM allocations%' AND db = database()
    """,
}


@pytest.mark.parametrize("database", SERVERS)
def test_plans_are_removed_that_move_meanwhile(fresh_database, clock, database: str):
    """Its units scatter: the plan is deleted, others are added. The removal begins before the new rows exist."""
    has_moved, removal_waits = threading.Event(), threading.Event()

    def move(tx: Transaction) -> None:
        new = added(reservation_id, {other: 1}, plan.period, demand())
        tx.allocations.apply(together(dropped(plan), new), now=NOW)
        has_moved.set()
        assert removal_waits.wait(patience())

    def waits() -> bool:
        with db.engine.connect() as connection:
            return connection.execute(text(WAITING[database])).scalar_one() > 0

    with fresh_database(database) as url, closing(opened(url, clock)) as db, two_threads() as pool:
        host, other = add_hosts(db, 2)
        lease = add_lease(db, host)
        [plan], reservation_id = allocations_of(db, lease), lease.reservations[0].id
        moving = pool.submit(db.write, move)
        assert has_moved.wait(patience())
        removing = pool.submit(db.write, lambda tx: tx.allocations.remove_planned([reservation_id]))
        try:
            wait_for("the removal to wait for the move", waits)
        finally:
            removal_waits.set()
        moving.result(patience())
        removing.result(patience())
        assert allocations_of(db, lease) == []


def is_locked(db: Database, resource_id: int) -> bool:
    """Whether another transaction has locked a resource's row; on SQLite, the file."""
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
def test_waiting_for_a_row_has_a_timeout(fresh_database, clock, database: str):
    """The holder of the lock may hang with its connection open; in this test until the caller has its answer."""
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


def test_ping_of_an_available_database(db: Database):
    db.ping()


def test_connections_return_to_the_pool(db: Database):
    """Whatever becomes of a transaction."""
    for _ in range(50):
        with pytest.raises(LookupError):
            db.write(lambda tx: (_ for _ in ()).throw(LookupError))
        with db.read() as tx:
            assert tx.resources.known_external_ids(HOST) == set()
    assert db.engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a pool that counts
