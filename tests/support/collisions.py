"""Two threads that are brought together in the middle of what they do, and guards of the ledger that are taken away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from tenure.services.planning import Planner
from tenure.store.resources import ResourceStore
from tests.support.waiting import SECONDS, patience
from tests.support.world import World


class Meeting:
    """Where two threads wait for each other, once; who comes later goes on, and who comes alone does not wait long."""

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
    """Without the compare-and-swap of versions of resources: no row is compared, counted or locked."""
    with monkeypatch.context() as patch:
        patch.setattr(ResourceStore, "raise_versions", lambda _store, _seen, wait=True: None)
        patch.setattr(Planner, "touch", lambda _planner, _versions: None)
        yield


def drop_constraint(world: World) -> None:
    """Drop the exclusion constraint, which PostgreSQL alone has."""
    if world.db.dialect == "postgresql":
        with world.db.engine.begin() as connection:
            connection.execute(text("ALTER TABLE allocations DROP CONSTRAINT ex_allocations_no_overlap"))
