"""Each guard against overbooking is necessary and sufficient: two concurrent bookings of the last room.

The tests are deterministic. Two requests go through the real service, and both have searched before either writes.
A small patch removes the guard in question; then ``tests.support.ledger`` judges the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from tenure.domain.capacity import Capacity
from tenure.domain.errors import Conflict, NotEnoughResources
from tenure.domain.lease import EventType, Lease
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationRequest
from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tenure.store.allocations import AllocationStore
from tenure.store.database import Database, begin_immediate
from tenure.store.gains import Gains
from tests.support import ledger
from tests.support.collisions import Meeting, drop_constraint, without_versions
from tests.support.databases import MARIADB, POSTGRESQL, SQLITE
from tests.support.engines import event_of
from tests.support.waiting import SECONDS, patience
from tests.support.world import ADMIN, NOW, OWNER, World, open_world, reservation

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)
EVERY_DATABASE = [
    SQLITE,
    pytest.param(POSTGRESQL, marks=pytest.mark.postgresql),
    pytest.param(MARIADB, marks=pytest.mark.mariadb),
]


@dataclass
class Outcome:
    """The outcome of two bookings of the same host."""

    booked: int
    refused: int
    #: Whether both had searched, and found the host free, before either wrote.
    met: bool
    #: The number of searches: two, and one more for each transaction that started again.
    searches: int
    #: The rooms that the ledger promises twice.
    overlaps: list[str]


def has_constraint(world: World) -> bool:
    with world.db.engine.connect() as connection:
        found = connection.execute(text("SELECT 1 FROM pg_constraint WHERE conname = 'ex_allocations_no_overlap'"))
        return found.first() is not None


def begin_at_first_write(world: World) -> None:
    """Remove ``BEGIN IMMEDIATE``: the driver of Python begins a transaction at the first write."""

    def begin(connection: Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        driver.isolation_level = ""

    event.remove(world.db.engine, "begin", begin_immediate)
    event.listen(world.db.engine, "begin", begin)


def begin_late(world: World) -> None:
    """Use ``BEGIN`` instead of ``BEGIN IMMEDIATE``: the lock is taken at the first write."""
    event.remove(world.db.engine, "begin", begin_immediate)
    event.listen(world.db.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))


def race(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    search: str | Sequence[str],
    works: list[Callable[[], object]],
    wait: float,
) -> Outcome:
    """Run two operations at once, as two processes would; after its ``search`` each waits for the other."""
    meeting = Meeting(wait)
    searches: list[int] = []

    def searched(original: Callable[..., Any]) -> Callable[..., Any]:
        def look(store: AllocationStore, *arguments: Any, **named: Any) -> Any:
            found = original(store, *arguments, **named)
            searches.append(len(found))
            meeting()
            return found

        return look

    def granted(work: Callable[[], object]) -> bool:
        try:
            return work() is not None
        except (Conflict, NotEnoughResources):
            return False

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        for name in [search] if isinstance(search, str) else search:
            patch.setattr(AllocationStore, name, searched(getattr(AllocationStore, name)))
        patch.setattr(
            Database, "_turn", lambda _database, *, is_trial: nullcontext()
        )  # orders the writers of a process
        # This check before a commit would find only conflicts with transactions that have committed before.
        patch.setattr(Gains, "verify", lambda _gains: None)
        futures = [pool.submit(granted, work) for work in works]
        booked = [future.result(patience(2 * SECONDS)) for future in futures]
    url = world.db.engine.url.render_as_string(hide_password=False)
    overlaps = ledger.overlaps(url) + ledger.overbooked(url)
    return Outcome(booked.count(True), booked.count(False), meeting.held, len(searches), overlaps)


def lend(world: World) -> str:
    """Lend a part of a volume pool, and return the id of the pool."""
    pool = world.cloud.world.volumes.fast
    return world.resources.register(ADMIN, "virtual:volume", pool, {}, Capacity({"DISK_GB": 100})).external_id


def book_while_less_is_lent(world: World, monkeypatch: pytest.MonkeyPatch, *, wait: float = SECONDS) -> Outcome:
    """Book volumes in a pool while its lent capacity is reduced below their size."""
    pool = lend(world)
    request = LeaseRequest("lease", NOW + HOUR, NOW + 2 * HOUR, reservations=(VOLUMES,))
    works: list[Callable[[], object]] = [
        partial(world.leases.create, OWNER, request),
        partial(world.resources.lend, ADMIN, "virtual:volume", pool, Capacity({"DISK_GB": 59})),
    ]
    return race(world, monkeypatch, ("candidates", "promised"), works, wait)


def book_twice(world: World, monkeypatch: pytest.MonkeyPatch, *, wait: float = SECONDS) -> Outcome:
    """Book the only host twice for the same hour."""
    works: list[Callable[[], object]] = [lambda: world.book(1, start=1)] * 2
    return race(world, monkeypatch, "candidates", works, wait)


@dataclass(frozen=True)
class Rivals:
    """Two requests for the only host, address or pool, which has room for only one of them."""

    first: ReservationRequest
    second: ReservationRequest

    def book(self, world: World, monkeypatch: pytest.MonkeyPatch, *, wait: float = SECONDS) -> Outcome:
        """Book both at once, for the same hour."""
        world.resources.register(ADMIN, "virtual:floatingip", f"{PUBLIC_NETWORK}/203.0.113.10", {})
        lend(world)
        requests = [
            LeaseRequest("lease", NOW + HOUR, NOW + 2 * HOUR, reservations=(wanted,))
            for wanted in (self.first, self.second)
        ]
        works: list[Callable[[], object]] = [partial(world.leases.create, OWNER, request) for request in requests]
        return race(world, monkeypatch, "candidates", works, wait)


#: The host has 32 virtual CPUs.
SIZE: dict[str, object] = {"memory_mb": 1024, "disk_gb": 0, "resource_properties": ""}
INSTANCES = ReservationRequest("virtual:instance", {"amount": 2, "vcpus": 9, "affinity": None, **SIZE})
APART = ReservationRequest("virtual:instance", {"amount": 1, "vcpus": 20, "affinity": False, **SIZE})
FLAVORS = ReservationRequest("flavor:instance", {"amount": 8, "flavor_id": "3", "affinity": True})
ADDRESS = ReservationRequest(
    "virtual:floatingip", {"network_id": PUBLIC_NETWORK, "amount": 1, "required_floatingips": []}
)
VOLUMES = ReservationRequest(
    "virtual:volume",
    {"amount": 3, "size_gb": 20, "volume_type": "fast", "at_end": "delete", "before_end": "default"},
)
PARTS = [
    pytest.param(Rivals(INSTANCES, INSTANCES), id="instances"),
    pytest.param(Rivals(FLAVORS, APART), id="a flavor and an instance"),
    pytest.param(Rivals(reservation(1, 1), INSTANCES), id="a host and instances"),
    pytest.param(Rivals(VOLUMES, VOLUMES), id="volumes"),
]
EVERY_TYPE = [*PARTS, pytest.param(Rivals(ADDRESS, ADDRESS), id="addresses")]


def move_twice(world: World, monkeypatch: pytest.MonkeyPatch, *, wait: float = SECONDS) -> Outcome:
    """Move two leases of the only host to the same hour: an update reads first, and writes last."""
    change = LeaseChange(starts_at=NOW + 10 * HOUR, ends_at=NOW + 11 * HOUR)
    leases = [world.book(1, start=start) for start in (1, 5)]
    works: list[Callable[[], object]] = [partial(world.leases.update, OWNER, lease.id, change) for lease in leases]
    return race(world, monkeypatch, "versions_of", works, wait)


def start_twice(world: World, monkeypatch: pytest.MonkeyPatch, *, wait: float = SECONDS) -> Outcome:
    """Start two leases on the only host, beside overdue instances: there is room for only one of them."""

    def book(vcpus: int, start: timedelta) -> Lease:
        size = {"amount": 1, "vcpus": vcpus, "affinity": None, **SIZE}
        parts = (ReservationRequest("virtual:instance", size),)
        request = LeaseRequest("lease", NOW + start, NOW + start + HOUR, reservations=parts)
        return world.leases.create(OWNER, request)

    leases = [book(8, 0 * HOUR), book(12, HOUR), book(20, HOUR)]
    world.engine.settle()
    world.clock.set(NOW + HOUR)
    starts = [event_of(world, lease.id, EventType.START) for lease in leases[1:]]
    works: list[Callable[[], object]] = [partial(world.service.events.claim, start.id) for start in starts]
    return race(world, monkeypatch, "predecessors", works, wait)


# --- with all guards


@pytest.mark.parametrize("database", EVERY_DATABASE)
def test_only_one_of_two_leases_starts_beside_overdue_instances(fresh_database, monkeypatch, database: str):
    together = database != SQLITE
    with fresh_database(database) as url, open_world(url, hosts=1) as world:
        outcome = start_twice(world, monkeypatch, wait=SECONDS if together else 0.5)
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, together)


@pytest.mark.parametrize("database", EVERY_DATABASE)
def test_concurrent_bookings_never_share_a_host(fresh_database, monkeypatch, database: str):
    """On SQLite the bookings cannot even both search: the second waits for the first at its beginning."""
    together = database != SQLITE
    with fresh_database(database) as url, open_world(url, hosts=1) as world:
        outcome = book_twice(world, monkeypatch, wait=SECONDS if together else 0.5)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, together)


@pytest.mark.parametrize("database", EVERY_DATABASE)
@pytest.mark.parametrize("rivals", EVERY_TYPE)
def test_concurrent_bookings_never_share_the_last_room(fresh_database, monkeypatch, database: str, rivals: Rivals):
    together = database != SQLITE
    with fresh_database(database) as url, open_world(url, hosts=1) as world:
        outcome = rivals.book(world, monkeypatch, wait=SECONDS if together else 0.5)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, together)


@pytest.mark.parametrize("database", EVERY_DATABASE)
def test_pool_never_lends_less_than_a_concurrent_booking_takes(fresh_database, monkeypatch, database: str):
    together = database != SQLITE
    with fresh_database(database) as url, open_world(url, hosts=0) as world:
        outcome = book_while_less_is_lent(world, monkeypatch, wait=SECONDS if together else 0.5)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, together)


# --- the versions


@pytest.mark.long
@pytest.mark.parametrize("database", EVERY_DATABASE[1:])
def test_pool_lends_less_than_is_booked_without_version_check(fresh_database, monkeypatch, database: str):
    with fresh_database(database) as url, open_world(url, hosts=0) as world, without_versions(monkeypatch):
        outcome = book_while_less_is_lent(world, monkeypatch)
    assert (outcome.booked, outcome.met) == (2, True)
    assert outcome.overlaps != []


@pytest.mark.long
@pytest.mark.mariadb
def test_mariadb_books_the_last_host_twice_without_version_check(fresh_database, monkeypatch):
    with fresh_database(MARIADB) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        outcome = book_twice(world, monkeypatch)
    assert (outcome.booked, outcome.met, len(outcome.overlaps)) == (2, True, 1)


@pytest.mark.long
@pytest.mark.postgresql
def test_postgresql_books_the_last_host_twice_without_version_check_and_constraint(fresh_database, monkeypatch):
    with fresh_database(POSTGRESQL) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        drop_constraint(world)
        outcome = book_twice(world, monkeypatch)
    assert (outcome.booked, outcome.met, len(outcome.overlaps)) == (2, True, 1)


@pytest.mark.long
@pytest.mark.parametrize("database", EVERY_DATABASE[1:])
@pytest.mark.parametrize("rivals", PARTS)
def test_last_room_is_booked_twice_without_version_check(fresh_database, monkeypatch, database: str, rivals: Rivals):
    """The constraint of PostgreSQL does not apply to parts of a resource."""
    with fresh_database(database) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        outcome = rivals.book(world, monkeypatch)
    assert (outcome.booked, outcome.met) == (2, True)
    assert outcome.overlaps != []


@pytest.mark.long
@pytest.mark.parametrize("database", EVERY_DATABASE[1:])
def test_address_is_booked_twice_without_version_check_and_constraint(fresh_database, monkeypatch, database: str):
    with fresh_database(database) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        if database == POSTGRESQL:
            drop_constraint(world)
        outcome = Rivals(ADDRESS, ADDRESS).book(world, monkeypatch)
    assert (outcome.booked, outcome.met, len(outcome.overlaps)) == (2, True, 1)


@pytest.mark.parametrize("database", EVERY_DATABASE[1:])
def test_version_check_alone_suffices(fresh_database, monkeypatch, database: str):
    """The second transaction finds a new version, starts again, and finds the host taken."""
    with fresh_database(database) as url, open_world(url, hosts=1) as world:
        if database == POSTGRESQL:
            drop_constraint(world)
        outcome = book_twice(world, monkeypatch)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, True)
    assert outcome.searches >= 3


@pytest.mark.long
@pytest.mark.parametrize("database", EVERY_DATABASE[1:])
def test_both_leases_start_beside_overdue_instances_without_version_check(fresh_database, monkeypatch, database: str):
    with fresh_database(database) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        outcome = start_twice(world, monkeypatch)
    assert (outcome.booked, outcome.met) == (2, True)


# --- PostgreSQL's exclusion constraint


@pytest.mark.postgresql
def test_constraint_alone_suffices_on_postgresql(fresh_database, monkeypatch):
    with fresh_database(POSTGRESQL) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        assert has_constraint(world)
        outcome = book_twice(world, monkeypatch)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, True)


@pytest.mark.postgresql
def test_constraint_alone_suffices_for_addresses(fresh_database, monkeypatch):
    with fresh_database(POSTGRESQL) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        outcome = Rivals(ADDRESS, ADDRESS).book(world, monkeypatch)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, True)


@pytest.mark.postgresql
def test_drop_constraint_drops_the_constraint(fresh_database):
    with fresh_database(POSTGRESQL) as url, open_world(url, hosts=1) as world:
        drop_constraint(world)
        assert not has_constraint(world)


# --- SQLite's write lock


@pytest.mark.long
def test_sqlite_books_the_last_host_twice_without_lock_and_version_check(fresh_database, monkeypatch):
    with fresh_database(SQLITE) as url, open_world(url, hosts=1) as world:
        begin_at_first_write(world)
        with without_versions(monkeypatch):
            outcome = move_twice(world, monkeypatch)
    assert (outcome.booked, outcome.met, len(outcome.overlaps)) == (2, True, 1)


def test_lock_alone_suffices_on_sqlite(fresh_database, monkeypatch):
    """The second transaction cannot search before the first is done."""
    with fresh_database(SQLITE) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        outcome = move_twice(world, monkeypatch, wait=0.5)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met, outcome.searches) == (1, 1, False, 2)


def test_version_check_alone_suffices_on_sqlite(fresh_database, monkeypatch):
    """Both transactions have read the version of the host; the second to raise it starts again."""
    with fresh_database(SQLITE) as url, open_world(url, hosts=1) as world:
        begin_at_first_write(world)
        leases = [world.book(1, start=start) for start in (1, 5)]
        change = LeaseChange(starts_at=NOW + 10 * HOUR, ends_at=NOW + 11 * HOUR)
        works: list[Callable[[], object]] = [partial(world.leases.update, OWNER, lease.id, change) for lease in leases]
        outcome = race(world, monkeypatch, "with_versions", works, SECONDS)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, True)
    assert outcome.searches >= 3


def test_sqlite_refuses_a_transaction_that_locks_too_late(fresh_database, monkeypatch):
    """If another transaction writes between ``BEGIN`` and our first write, SQLite refuses ours, and it is retried.

    SQLite thus has its own guard within a transaction; ``BEGIN IMMEDIATE`` only saves the discarded work.
    """
    with fresh_database(SQLITE) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        begin_late(world)
        outcome = move_twice(world, monkeypatch)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, True)
    assert outcome.searches > 2
