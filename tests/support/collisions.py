"""Two threads that meet in the middle of their work, and the removal of the ledger's guards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from tenure.store.resources import ResourceStore
from tests.support.waiting import SECONDS, patience
from tests.support.world import World


class Meeting:
    """A point where two threads wait for each other once. Later threads go on; a single thread does not wait long."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._barrier = threading.Barrier(2)
        self._seen: set[int] = set()
        self.held = False

    def __call__(self) -> None:
        """Wait for the other thread, unless this one was here before."""
        thread = threading.get_ident()
        if thread in self._seen:
            return
        self._seen.add(thread)
        try:
            self._barrier.wait(patience(self._seconds))
            self.held = True
        except threading.BrokenBarrierError:
            pass


@contextmanager
def without_versions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the compare-and-swap of resource versions: no row is compared, counted or locked."""
    with monkeypatch.context() as patch:
        patch.setattr(ResourceStore, "raise_versions", lambda _store, _seen, wait=True: None)
        yield


def drop_constraint(world: World) -> None:
    """Drop the exclusion constraint, which only PostgreSQL has."""
    if world.db.dialect == "postgresql":
        with world.db.engine.begin() as connection:
            connection.execute(text("ALTER TABLE allocations DROP CONSTRAINT ex_allocations_no_overlap"))
