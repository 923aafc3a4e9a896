"""Each guard against overbooking is necessary and sufficient: two concurrent bookings of the last room.

The tests are deterministic. Two requests go through the real service, and both have planned before either writes.
A small patch removes the guard in question; then ``tests.support.ledger`` judges the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
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
from tenure.services.planning.planning import Planning
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
WITHOUT_CONSTRAINT = [SQLITE, pytest.param(MARIADB, marks=pytest.mark.mariadb)]


@dataclass
class Outcome:
    """The outcome of two bookings of the same host."""

    booked: int
    refused: int
    #: Whether both had looked, and found the host free, before either wrote.
    met: bool
    #: The number of looks: two, and one more for each request that started again.
    looks: int
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


#: Where a request looks whether there is room: a method, after which it waits for the other request.
Look = tuple[type, str]
PLAN: Look = (Planning, "plan")
PROMISED: Look = (AllocationStore, "promised")
PREDECESSORS: Look = (AllocationStore, "predecessors")


def race(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    looks: list[Look],
    works: list[Callable[[], object]],
    wait: float,
) -> Outcome:
    """Run two operations at once, as two processes would; after it has looked, each waits for the other."""
    meeting = Meeting(wait)
    looked: list[str] = []

    def meet_after(original: Callable[..., Any]) -> Callable[..., Any]:
        def look(*arguments: Any, **named: Any) -> Any:
            looked.append(original.__name__)
            found = original(*arguments, **named)
            meeting()
            return found

        return look

    def granted(work: Callable[[], object]) -> bool:
        try:
            return work() is not None
        except (Conflict, NotEnoughResources):
            return False

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        for owner, name in looks:
            patch.setattr(owner, name, meet_after(getattr(owner, name)))
        patch.setattr(Database, "_write_permit", lambda _database: nullcontext())  # orders the writers of a process
        # This check before a commit would find only conflicts with transactions that have committed before.
        patch.setattr(Gains, "verify", lambda _gains: None)
        futures = [pool.submit(granted, work) for work in works]
        booked = [future.result(patience(2 * SECONDS)) for future in futures]
    url = world.db.engine.url.render_as_string(hide_password=False)
    overlaps = ledger.overlaps(url) + ledger.overbooked(url)
    return Outcome(booked.count(True), booked.count(False), meeting.held, len(looked), overlaps)


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
    return race(world, monkeypatch, [PLAN, PROMISED], works, wait)


def book_twice(world: World, monkeypatch: pytest.MonkeyPatch, *, wait: float = SECONDS) -> Outcome:
    """Book the only host twice for the same hour."""
    works: list[Callable[[], object]] = [lambda: world.book(1, start=1)] * 2
    return race(world, monkeypatch, [PLAN], works, wait)


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
            LeaseRequest("lease", NOW + HOUR, NOW + 2 * HOUR, reservations=(requested,))
            for requested in (self.first, self.second)
        ]
        works: list[Callable[[], object]] = [partial(world.leases.create, OWNER, request) for request in requests]
        return race(world, monkeypatch, [PLAN], works, wait)


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
SHARED = [
    pytest.param(Rivals(INSTANCES, INSTANCES), id="instances"),
    pytest.param(Rivals(FLAVORS, APART), id="a flavor and an instance"),
    pytest.param(Rivals(reservation(1, 1), INSTANCES), id="a host and instances"),
    pytest.param(Rivals(VOLUMES, VOLUMES), id="volumes"),
]
EVERY_TYPE = [*SHARED, pytest.param(Rivals(ADDRESS, ADDRESS), id="addresses")]


def move_twice(world: World, monkeypatch: pytest.MonkeyPatch, *, wait: float = SECONDS) -> Outcome:
    """Move two leases of the only host to the same hour."""
    change = LeaseChange(starts_at=NOW + 10 * HOUR, ends_at=NOW + 11 * HOUR)
    leases = [world.book(1, start=start) for start in (1, 5)]
    works: list[Callable[[], object]] = [partial(world.leases.update, OWNER, lease.id, change) for lease in leases]
    return race(world, monkeypatch, [PLAN], works, wait)


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
    return race(world, monkeypatch, [PREDECESSORS], works, wait)


# --- with all guards


@pytest.mark.parametrize("database", EVERY_DATABASE)
def test_only_one_of_two_leases_starts_beside_overdue_instances(fresh_database, monkeypatch, database: str):
    together = database != SQLITE
    with fresh_database(database) as url, open_world(url, hosts=1) as world:
        outcome = start_twice(world, monkeypatch, wait=SECONDS if together else 0.5)
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, together)


@pytest.mark.parametrize("database", EVERY_DATABASE)
def test_concurrent_bookings_never_share_a_host(fresh_database, monkeypatch, database: str):
    with fresh_database(database) as url, open_world(url, hosts=1) as world:
        outcome = book_twice(world, monkeypatch)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, True)


@pytest.mark.parametrize("database", EVERY_DATABASE)
def test_concurrent_changes_never_share_a_host(fresh_database, monkeypatch, database: str):
    with fresh_database(database) as url, open_world(url, hosts=1) as world:
        outcome = move_twice(world, monkeypatch)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, True)


@pytest.mark.parametrize("database", EVERY_DATABASE)
@pytest.mark.parametrize("rivals", EVERY_TYPE)
def test_concurrent_bookings_never_share_the_last_room(fresh_database, monkeypatch, database: str, rivals: Rivals):
    with fresh_database(database) as url, open_world(url, hosts=1) as world:
        outcome = rivals.book(world, monkeypatch)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, True)


@pytest.mark.parametrize("database", EVERY_DATABASE)
def test_pool_never_lends_less_than_a_concurrent_booking_takes(fresh_database, monkeypatch, database: str):
    with fresh_database(database) as url, open_world(url, hosts=0) as world:
        outcome = book_while_less_is_lent(world, monkeypatch)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, True)


# --- the versions


@pytest.mark.long
@pytest.mark.parametrize("database", EVERY_DATABASE)
def test_pool_lends_less_than_is_booked_without_version_check(fresh_database, monkeypatch, database: str):
    with fresh_database(database) as url, open_world(url, hosts=0) as world, without_versions(monkeypatch):
        outcome = book_while_less_is_lent(world, monkeypatch)
    assert (outcome.booked, outcome.met) == (2, True)
    assert outcome.overlaps != []


@pytest.mark.long
@pytest.mark.parametrize("database", WITHOUT_CONSTRAINT)
def test_last_host_is_booked_twice_without_version_check(fresh_database, monkeypatch, database: str):
    with fresh_database(database) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        outcome = book_twice(world, monkeypatch)
    assert (outcome.booked, outcome.met, len(outcome.overlaps)) == (2, True, 1)


@pytest.mark.long
@pytest.mark.parametrize("database", WITHOUT_CONSTRAINT)
def test_changes_share_a_host_without_version_check(fresh_database, monkeypatch, database: str):
    with fresh_database(database) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        outcome = move_twice(world, monkeypatch)
    assert (outcome.booked, outcome.met, len(outcome.overlaps)) == (2, True, 1)


@pytest.mark.long
@pytest.mark.postgresql
def test_postgresql_books_the_last_host_twice_without_version_check_and_constraint(fresh_database, monkeypatch):
    with fresh_database(POSTGRESQL) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        drop_constraint(world)
        outcome = book_twice(world, monkeypatch)
    assert (outcome.booked, outcome.met, len(outcome.overlaps)) == (2, True, 1)


@pytest.mark.long
@pytest.mark.parametrize("database", EVERY_DATABASE)
@pytest.mark.parametrize("rivals", SHARED)
def test_last_room_is_booked_twice_without_version_check(fresh_database, monkeypatch, database: str, rivals: Rivals):
    """The constraint of PostgreSQL does not apply to parts of a resource."""
    with fresh_database(database) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        outcome = rivals.book(world, monkeypatch)
    assert (outcome.booked, outcome.met) == (2, True)
    assert outcome.overlaps != []


@pytest.mark.long
@pytest.mark.parametrize("database", EVERY_DATABASE)
def test_address_is_booked_twice_without_version_check_and_constraint(fresh_database, monkeypatch, database: str):
    with fresh_database(database) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        if database == POSTGRESQL:
            drop_constraint(world)
        outcome = Rivals(ADDRESS, ADDRESS).book(world, monkeypatch)
    assert (outcome.booked, outcome.met, len(outcome.overlaps)) == (2, True, 1)


@pytest.mark.parametrize("database", EVERY_DATABASE)
def test_version_check_alone_suffices(fresh_database, monkeypatch, database: str):
    """The second transaction finds a new version, starts again, and finds the host taken."""
    with fresh_database(database) as url, open_world(url, hosts=1) as world:
        if database == POSTGRESQL:
            drop_constraint(world)
        outcome = book_twice(world, monkeypatch)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, True)
    assert outcome.looks >= 3


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


def test_version_check_suffices_without_the_lock_of_sqlite(fresh_database, monkeypatch):
    """Both transactions have read the version of the host; the second to raise it starts again."""
    with fresh_database(SQLITE) as url, open_world(url, hosts=1) as world:
        begin_at_first_write(world)
        outcome = move_twice(world, monkeypatch)
    assert outcome.overlaps == []
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, True)
    assert outcome.looks >= 3


@pytest.mark.long
def test_both_leases_start_beside_overdue_instances_without_lock_and_version_check(fresh_database, monkeypatch):
    """The check whether something is in the way is made in the transaction, which the lock of SQLite protects."""
    with fresh_database(SQLITE) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        begin_at_first_write(world)
        outcome = start_twice(world, monkeypatch)
    assert (outcome.booked, outcome.met) == (2, True)


def test_lock_alone_suffices_for_starts_on_sqlite(fresh_database, monkeypatch):
    with fresh_database(SQLITE) as url, open_world(url, hosts=1) as world, without_versions(monkeypatch):
        outcome = start_twice(world, monkeypatch, wait=0.5)
    assert (outcome.booked, outcome.refused, outcome.met) == (1, 1, False)
