"""The turn to write: who gets it next, and what gives way to whom."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tenure.clock import SimulatedClock
from tenure.store.database import Database, Transaction
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
