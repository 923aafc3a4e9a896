"""The turn to write: who gets it next, and what gives way to whom."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tenure import deadlines
from tenure.clock import SimulatedClock
from tenure.deadlines import Deadline, SearchTooLong
from tenure.store.database import Database, Transaction
from tests.store.rows import new_lease
from tests.support import schemas
from tests.support.waiting import patience

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
