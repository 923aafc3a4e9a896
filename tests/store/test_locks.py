"""The locks of writers and of projects: which transaction gets one next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import text

from tenure import deadlines
from tenure.deadlines import Deadline, SearchTooLong
from tenure.store.conflict import Overtaken
from tenure.store.database import Database, Transaction
from tenure.store.fair_lock import FairLock
from tests.store.rows import new_lease
from tests.support import schemas
from tests.support.waiting import patience, wait_for

PROJECT = "the-project"


def test_a_transaction_ends_with_its_deadline_and_leaves_nothing(db: Database):
    clock = [0.0]

    def work(tx: Transaction) -> None:
        tx.leases.add(new_lease(lease_id="late"))
        tx.session.flush()
        clock[0] = 2.0
        tx.projects.count_leases(PROJECT)

    deadline = Deadline(1.0, 1.0, seconds=lambda: clock[0])
    with deadlines.within(deadline), pytest.raises(SearchTooLong):
        db.write(work)
    with db.read() as tx:
        assert tx.leases.get("late", deleted=True) is None


def test_what_has_been_changed_in_time_is_carried_out_to_its_end(db: Database):
    clock = [0.0]
    with deadlines.within(Deadline(1.0, 1.0, seconds=lambda: clock[0])):
        db.write(lambda tx: tx.leases.add(new_lease(lease_id="first")))
        clock[0] = 2.0
        db.write(lambda tx: tx.leases.add(new_lease(lease_id="second")))
        with db.read() as tx:
            assert tx.leases.get("second", deleted=True) is not None


def wait_until_waiting(lock: FairLock, number: int) -> None:
    wait_for(lambda: f"{number} transactions to wait", lambda: lock.count_waiting() == number)


def order_of(lock: FairLock, *waiting: str) -> list[str]:
    """Return in which order transactions of these projects get the lock."""
    had: list[str] = []

    def take(project: str) -> None:
        assert lock.acquire(project, seconds=patience())
        had.append(project)
        lock.release()

    assert lock.acquire("before", seconds=0)
    with ThreadPoolExecutor(len(waiting)) as threads:
        for number, project in enumerate(waiting):
            threads.submit(take, project)
            wait_until_waiting(lock, number + 1)
        lock.release()
    return had


def test_the_lock_goes_round_the_projects():
    assert order_of(FairLock(), "a", "a", "a", "b", "c", "c") == ["a", "b", "c", "a", "c", "a"]


def test_who_waits_too_long_leaves_the_queue():
    lock = FairLock()
    assert lock.acquire("a", seconds=0)
    assert not lock.acquire("a", seconds=0.01)
    assert lock.count_waiting() == 0
    lock.release()
    assert lock.acquire("b", seconds=0)


@pytest.fixture
def on_server(server_url: str) -> Iterator[Database]:
    """A database on a server, with the newest schema and nothing in it."""
    with closing(Database(server_url)) as database:
        schemas.lay_out(database)
        yield database


def waits_for_the_project_lock(db: Database) -> bool:
    """Whether a transaction of any process waits for the lock of its project."""
    asked = (
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
        if db.dialect == "postgresql"
        else "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock'"
    )
    with db.engine.connect() as connection:
        return bool(connection.execute(text(asked)).scalar_one())


def waits_for_a_row(db: Database) -> bool:
    """Whether a transaction of any process waits for a row that another has changed, or is about to."""
    asked = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        if db.dialect == "postgresql"
        else "SELECT count(*) FROM information_schema.processlist WHERE state = 'Updating'"
    )
    with db.engine.connect() as connection:
        return bool(connection.execute(text(asked)).scalar_one())


def test_bookings_of_a_project_are_counted_one_after_the_other(on_server: Database, server_url: str):
    """Two that fit a limit one by one would otherwise exceed it together."""
    counted: list[int] = []

    def book(database: Database, lease_id: str, meanwhile: Callable[[], object] = tuple) -> None:
        def work(tx: Transaction) -> None:
            tx.projects.lock(PROJECT)
            counted.append(tx.projects.count_leases(PROJECT))
            meanwhile()
            tx.leases.add(new_lease(lease_id=lease_id, project=PROJECT))

        database.write(work)

    on_server.write(lambda tx: tx.projects.lock(PROJECT))
    with closing(Database(server_url)) as another_process, ThreadPoolExecutor(1) as threads:

        def meanwhile() -> None:
            threads.submit(book, another_process, "second")
            wait_for("the second to wait, or to count", lambda: waits_for_a_row(on_server) or len(counted) > 1)

        book(on_server, "first", meanwhile)
    assert counted == [0, 1]


def test_large_work_of_a_project_runs_one_by_one_in_all_processes(on_server: Database, server_url: str):
    """Requests of a flood would wait for each other's rows, and all other projects behind them."""
    order: list[str] = []

    def work(database: Database, project: str, name: str, meanwhile: Callable[[], object] = tuple) -> None:
        with deadlines.on_behalf_of(project), database.project_lock():
            order.append(f"{name} begins")
            database.write(lambda tx: tx.projects.lock(name))
            meanwhile()
            order.append(f"{name} ends")

    with closing(Database(server_url)) as another_process, ThreadPoolExecutor(1) as threads:

        def meanwhile() -> None:
            threads.submit(work, another_process, "flooding", "second")
            wait_for("the second to wait, or to begin", lambda: waits_for_the_project_lock(on_server) or len(order) > 1)
            work(another_process, "another", "of another")

        work(on_server, "flooding", "first", meanwhile)
    assert order == [
        "first begins",
        "of another begins",
        "of another ends",
        "first ends",
        "second begins",
        "second ends",
    ]


def test_a_transaction_that_conflicts_again_and_again_has_the_lock_of_its_project(on_server: Database):
    """From the third attempt on it locks rows first, for which others would wait."""
    order: list[str] = []

    def ask() -> None:
        with deadlines.on_behalf_of("flooding"), on_server.project_lock():
            order.append("another")

    def work(tx: Transaction) -> None:
        asking = threads.submit(ask)
        if len(order) < 2:
            asking.result(patience())
            tx.resources.bumped.add(1)
            raise Overtaken
        wait_for(
            "the other to wait, or to have the lock", lambda: waits_for_the_project_lock(on_server) or asking.done()
        )
        order.append("third attempt")

    with deadlines.on_behalf_of("flooding"), ThreadPoolExecutor(1) as threads:
        on_server.write(work)
    assert order == ["another", "another", "third attempt", "another"]


def test_work_that_gets_no_lock_ends_with_its_deadline(on_server: Database):
    begun: list[str] = []

    def late() -> None:
        late = deadlines.until_at_most(0.05)
        with deadlines.on_behalf_of("flooding"), deadlines.within(late), on_server.project_lock():
            begun.append("late")

    with deadlines.on_behalf_of("flooding"), on_server.project_lock(), ThreadPoolExecutor(1) as threads:
        begun.append("in time")
        with pytest.raises(SearchTooLong):
            threads.submit(late).result(patience())
    assert begun == ["in time"]
