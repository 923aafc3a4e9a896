"""What a request costs at most, as ``Admission.admit`` says: attempts, statements and seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event, update

from tenure.domain.errors import TooManyConflicts
from tenure.domain.request import LeaseQuery
from tenure.services.booking.admission import STATEMENTS
from tenure.services.limits.quotas import FixedLimits, Quotas
from tenure.store.database import ATTEMPTS, LOCKING_FROM, Attempt, Database, Transaction
from tenure.store.tables import ResourceRow
from tests.support.engines import rebuild
from tests.support.world import OWNER, World, open_world

HOSTS = 40
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
