"""The turn to write: who gets it next, and what gives way to whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
from sqlalchemy import text

from tenure import deadlines
from tenure.clock import SimulatedClock
from tenure.deadlines import Deadline, SearchTooLong
from tenure.store.database import Database, Transaction
from tenure.store.turns import WRITES_BEFORE_A_TRIAL, Turns
from tests.store.rows import new_lease
from tests.support import schemas
from tests.support.waiting import patience, wait_for

PROJECT = "the-project"


@pytest.fixture
def impatient(database_url: str, clock: SimulatedClock):
    """A database whose transactions give way at once, of each kind in turn."""
    db = Database(database_url, clock=clock, courtesy_seconds=0)
    try:
        schemas.lay_out(db)
        db.write(lambda tx: tx.projects.take_turn(PROJECT))
        yield db
    finally:
        db.close()


def test_a_transaction_that_is_rolled_back_gives_way_to_one_that_writes(impatient: Database):
    """Also where it does not search: each of its statements is an occasion."""
    begun, written, attempts = threading.Event(), threading.Event(), []

    def look(tx: Transaction) -> None:
        attempts.append(tx)
        tx.projects.take_turn(PROJECT)
        begun.set()
        until = time.monotonic() + patience()
        while not written.is_set() and time.monotonic() < until:
            tx.projects.count_leases(PROJECT)

    with ThreadPoolExecutor(2) as threads:
        looking = threads.submit(impatient.rehearse, look)
        assert begun.wait(patience())
        impatient.write(lambda tx: tx.projects.take_turn(PROJECT))
        written.set()
        looking.result(patience())
    assert len(attempts) > 1


def test_a_trial_ends_beside_others_that_write_without_a_pause(database_url: str, clock: SimulatedClock):
    db = Database(database_url, clock=clock, courtesy_seconds=0.05)
    over = threading.Event()

    def write_on() -> None:
        while not over.is_set():
            db.write(lambda tx: tx.projects.take_turn(PROJECT))

    def look(tx: Transaction) -> None:
        tx.projects.take_turn(PROJECT)
        until = time.monotonic() + 0.08
        while time.monotonic() < until:
            tx.projects.count_leases(PROJECT)

    with closing(db), ThreadPoolExecutor(2) as threads:
        schemas.lay_out(db)
        writing = [threads.submit(write_on) for _ in range(2)]
        try:
            with deadlines.within(deadlines.until_at_most(patience())):
                db.rehearse(look)
        finally:
            over.set()
        for each in writing:
            each.result(patience())


def test_what_is_undone_within_a_transaction_is_no_occasion_to_give_way(impatient: Database):
    def look(tx: Transaction) -> int:
        with suppress(LookupError), tx.session.begin_nested():
            raise LookupError
        with tx.session.begin_nested():
            return tx.projects.count_leases(PROJECT)

    assert impatient.rehearse(look) == 0


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


def wait_until_waiting(turns: Turns, number: int) -> None:
    wait_for(lambda: f"{number} transactions to wait", lambda: turns.count_waiting() == number)


def order_of(turns: Turns, *waiting: tuple[str, bool]) -> list[str]:
    """Return in which order transactions of these projects, of which some are rolled back, have their turns."""
    had: list[str] = []

    def take(project: str, *, is_trial: bool) -> None:
        assert turns.take(project, is_trial=is_trial, seconds=patience())
        had.append(project)
        turns.hand_on()

    assert turns.take("before", is_trial=False, seconds=0)
    with ThreadPoolExecutor(len(waiting)) as threads:
        for number, (project, is_trial) in enumerate(waiting):
            threads.submit(take, project, is_trial=is_trial)
            wait_until_waiting(turns, number + 1)
        turns.hand_on()
    return had


def test_the_turn_goes_round_the_projects():
    waiting = [("a", False), ("a", False), ("a", False), ("b", False), ("c", False), ("c", False)]
    assert order_of(Turns(), *waiting) == ["a", "b", "c", "a", "c", "a"]


def test_what_is_rolled_back_comes_last_but_not_never():
    writes = [(f"project-{number}", False) for number in range(WRITES_BEFORE_A_TRIAL + 4)]
    assert order_of(Turns(), ("trial", True), *writes[:4]) == [*(name for name, _ in writes[:4]), "trial"]
    assert order_of(Turns(), ("trial", True), *writes).index("trial") == WRITES_BEFORE_A_TRIAL


@pytest.fixture
def on_server(server_url: str) -> Iterator[Database]:
    """A database on a server, with the newest schema and nothing in it."""
    with closing(Database(server_url)) as database:
        schemas.lay_out(database)
        yield database


def waits_for_a_turn(db: Database) -> bool:
    """Whether a transaction of any process waits for the turn of its project."""
    asked = (
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
        if db.dialect == "postgresql"
        else "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock'"
    )
    with db.engine.connect() as connection:
        return bool(connection.execute(text(asked)).scalar_one())


def test_large_transactions_of_a_project_take_turns_in_all_processes(on_server: Database, server_url: str):
    """Those of a flood would wait for each other's rows, and all other projects behind them."""
    order: list[str] = []

    def book(database: Database, project: str, name: str, meanwhile: Callable[[], object] = tuple) -> None:
        def work(tx: Transaction) -> None:
            tx.projects.take_turn(name)
            meanwhile()
            order.append(f"{name} ends")

        with deadlines.on_behalf_of(project):
            database.write(work, survey=lambda _tx: order.append(f"{name} begins"))

    with closing(Database(server_url)) as another_process, ThreadPoolExecutor(1) as threads:

        def meanwhile() -> None:
            threads.submit(book, another_process, "flooding", "second")
            wait_for("the second to wait, or to end", lambda: waits_for_a_turn(on_server) or "second ends" in order)
            book(another_process, "another", "of another")

        book(on_server, "flooding", "first", meanwhile)
    assert order == [
        "first begins",
        "of another begins",
        "of another ends",
        "first ends",
        "second begins",
        "second ends",
    ]


def test_large_work_has_its_turn_until_it_is_done(on_server: Database, server_url: str):
    """Else all large requests of a project would search at once, and none would end in time."""
    order: list[str] = []

    def work(database: Database, name: str, meanwhile: Callable[[], object] = tuple) -> None:
        def look(_tx: Transaction) -> None:
            order.append(name)

        with deadlines.on_behalf_of("flooding"), database.project_turn():
            for _ in range(2):
                database.write(lambda _tx: None, survey=look)
                meanwhile()

    with closing(Database(server_url)) as another_process, ThreadPoolExecutor(1) as threads:

        def meanwhile() -> None:
            if len(order) == 1:
                threads.submit(work, another_process, "second")
                wait_for("the second to wait, or to end", lambda: waits_for_a_turn(on_server) or len(order) > 1)

        work(on_server, "first", meanwhile)
    assert order == ["first", "first", "second", "second"]


def test_a_transaction_that_gets_no_turn_ends_with_its_deadline(on_server: Database):
    surveys: list[str] = []

    def late() -> None:
        with deadlines.on_behalf_of("flooding"), deadlines.within(deadlines.until_at_most(0.05)):
            on_server.write(lambda _tx: None, survey=lambda _tx: surveys.append("late"))

    with deadlines.on_behalf_of("flooding"), ThreadPoolExecutor(1) as threads:

        def work(_tx: Transaction) -> None:
            with pytest.raises(SearchTooLong):
                threads.submit(late).result(patience())

        on_server.write(work, survey=lambda _tx: surveys.append("in time"))
    assert surveys == ["in time"]
