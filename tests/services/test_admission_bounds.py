"""What a request costs at most, as ``Admission.admit`` says: attempts, statements and seconds."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import event, update

from tenure.domain.errors import TooManyConflicts
from tenure.domain.lease import LeaseStatus
from tenure.domain.request import FlexibleRequest, LeaseQuery, Window
from tenure.services.booking import admission
from tenure.services.booking.admission import STATEMENTS
from tenure.services.limits.quotas import FixedLimits, Quotas
from tenure.store.database import ATTEMPTS, LOCKING_FROM, Attempt, Database, Transaction
from tenure.store.fair_lock import FairLock
from tenure.store.tables import ResourceRow
from tests.support.engines import rebuild
from tests.support.world import NOW, OWNER, STRANGER, World, open_world, reservation

HOSTS = 40
HOUR = timedelta(hours=1)
#: How long a thread waits for another before the test fails.
SECONDS = 30
RAISE_ALL = update(ResourceRow).values(version=ResourceRow.version + 1)


class Contended(Database):
    """A database in which other transactions change all resources before each transaction of a request, if they can."""

    attempts_made = 0
    is_contended = False

    @contextmanager
    def transaction(self, attempt: Attempt) -> Iterator[Transaction]:
        if self.is_contended:
            self.attempts_made += 1
            with super().transaction(Attempt(self, 1, ())) as other:
                other.session.execute(RAISE_ALL)
                other.changed.add_resources(range(1, HOSTS + 1))
                other.commit()
        with super().transaction(attempt) as tx:
            yield tx


class Hopeless(Contended):
    """The same, and they come in between even if resources are locked first."""

    @contextmanager
    def transaction(self, attempt: Attempt) -> Iterator[Transaction]:
        with super().transaction(attempt) as tx:
            if self.is_contended and attempt.locks_first:
                tx.lock_contended = lambda _types: self._change(tx)  # type: ignore[assignment,method-assign]
            yield tx

    def _change(self, tx: Transaction) -> tuple[()]:
        tx.session.execute(RAISE_ALL)
        return ()


class Counted(Database):
    """A database that counts transactions for requests, and in which the next one waits if it is to."""

    attempts_made = 0
    #: Set when the next transaction begins to wait; None if none is to. It waits until ``goes_on`` is set.
    waits: threading.Event | None = None
    goes_on: threading.Event

    @contextmanager
    def transaction(self, attempt: Attempt) -> Iterator[Transaction]:
        self.attempts_made += 1
        if self.waits is not None:
            waits, self.waits = self.waits, None
            waits.set()
            assert self.goes_on.wait(SECONDS)
        with super().transaction(attempt) as tx:
            yield tx


def test_requests_at_the_same_time_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    arrivals: queue.Queue[str] = queue.Queue()

    class Watched(FairLock):
        def acquire(self, project_id: str, *, seconds: float) -> bool:
            arrivals.put(project_id)
            return super().acquire(project_id, seconds=SECONDS)

    monkeypatch.setattr(admission, "FairLock", Watched)
    with open_world(tmp_path, hosts=HOSTS, database=Counted) as world, ThreadPoolExecutor(2) as threads:
        assert isinstance(world.db, Counted)
        waits, world.db.goes_on = threading.Event(), threading.Event()
        world.db.waits, before = waits, world.db.attempts_made
        leases = [threads.submit(world.reserve), threads.submit(world.reserve)]
        try:
            assert waits.wait(SECONDS)
            assert {arrivals.get(timeout=SECONDS) for _ in leases} == {OWNER.project_id}
        finally:
            world.db.goes_on.set()
        assert {lease.result().status for lease in leases} == {LeaseStatus.PENDING}
        assert world.db.attempts_made - before == len(leases)


def test_a_request_does_not_wait_for_long_for_its_turn(tmp_path: Path):
    with open_world(tmp_path, hosts=HOSTS, database=Counted) as world, ThreadPoolExecutor(1) as threads:
        assert isinstance(world.db, Counted)
        waits, world.db.goes_on = threading.Event(), threading.Event()
        world.db.waits = waits
        slow = threads.submit(world.reserve)
        assert waits.wait(SECONDS)
        try:
            assert world.reserve().status is LeaseStatus.PENDING
        finally:
            world.db.goes_on.set()
        assert slow.result().status is LeaseStatus.PENDING


def test_no_booking_waits_for_the_turn_of_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "TURN_SECONDS", 2 * SECONDS)
    with open_world(tmp_path, hosts=HOSTS, database=Counted) as world, ThreadPoolExecutor(1) as threads:
        assert isinstance(world.db, Counted)
        waits, world.db.goes_on = threading.Event(), threading.Event()
        world.db.waits = waits
        window = Window(HOUR, NOW + HOUR, NOW + 20 * HOUR)
        flexible = FlexibleRequest("flexible", choices=((reservation(1, 1),),), window=window)
        search = threads.submit(world.leases.create, STRANGER, flexible)
        assert waits.wait(SECONDS)
        try:
            assert world.reserve(start=30).status is LeaseStatus.PENDING
        finally:
            world.db.goes_on.set()
        assert search.result().status is LeaseStatus.PENDING


@pytest.mark.parametrize("hosts", [1, HOSTS])
def test_each_attempt_takes_a_bounded_number_of_statements(tmp_path: Path, hosts: int):
    with open_world(tmp_path, hosts=HOSTS, database=Contended) as world:
        rebuild(world, quotas=Quotas(FixedLimits({"leases": 10, "hosts": 2 * HOSTS})))
        world.book(1, start=5)
        run: list[str] = []
        event.listen(world.db.engine, "before_cursor_execute", lambda _c, _cursor, text, *_: run.append(text))
        db = contended(world)
        assert len(world.hosts_of(world.book(hosts, start=1).id)) == hosts
    assert db.attempts_made == LOCKING_FROM
    assert len(run) <= STATEMENTS * LOCKING_FROM


def test_no_request_is_tried_more_often(tmp_path: Path):
    with open_world(tmp_path, hosts=HOSTS, database=Hopeless) as world:
        db = contended(world)
        with pytest.raises(TooManyConflicts):
            world.book(1, start=1)
        assert db.attempts_made == ATTEMPTS
        assert world.leases.list(OWNER, LeaseQuery(10)).items == ()


def test_no_attempt_begins_after_the_patience(tmp_path: Path):
    def impatient(url: str, **options: object) -> Contended:
        return Contended(url, patience_seconds=0, **options)  # type: ignore[arg-type]

    with open_world(tmp_path, hosts=HOSTS, database=impatient) as world:
        db = contended(world)
        with pytest.raises(TooManyConflicts):
            world.book(1, start=1)
        assert db.attempts_made == 1


def contended(world: World) -> Contended:
    """Let others come in between from now on."""
    assert isinstance(world.db, Contended)
    world.db.is_contended = True
    return world.db
