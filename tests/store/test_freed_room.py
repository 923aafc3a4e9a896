"""What was freed, until the leases that wait for it have been served."""

from __future__ import annotations

from tenure.clock import SimulatedClock
from tenure.domain.lease import LeaseStatus
from tenure.store import schema
from tenure.store.database import Database, Transaction
from tenure.store.waiting import Line
from tests.store.rows import hours, new_lease
from tests.support.world import HOST

LINE = Line(HOST, "")


def wait(tx: Transaction) -> None:
    """Put a lease on the waiting list."""
    lease = new_lease(reservations=0, status=LeaseStatus.WAITING)
    tx.leases.add(lease)
    tx.waiting.add(lease.id, hours(0, 1).end, None, {"choices": []}, [LINE])


def freed(db: Database) -> list[int]:
    """Return the ids of what was freed and not served yet."""
    with db.read() as tx:
        return tx.waiting.freed().get(LINE, [])


def test_what_is_freed_later_is_not_forgotten_with_what_was_served(db: Database):
    """Two managers serve at the same time; meanwhile something else is freed."""
    db.write(wait)
    seen = freed(db)
    db.write(lambda tx: tx.waiting.forget(seen))  # by the manager that is faster
    db.write(lambda tx: tx.waiting.serve_all())
    later = freed(db)
    db.write(lambda tx: tx.waiting.forget(seen))
    assert freed(db) == later
    assert len(later) == 1


def test_what_was_freed_before_an_upgrade_is_still_to_be_served(database_url: str, clock: SimulatedClock):
    database = Database(database_url, clock=clock)
    schema.upgrade(database, "0001")
    database.write(wait)
    schema.upgrade(database)
    seen = freed(database)
    assert len(seen) == 1
    database.write(lambda tx: tx.waiting.forget(seen))
    database.write(lambda tx: tx.waiting.serve_all())
    assert not set(freed(database)) & set(seen)
    database.close()
