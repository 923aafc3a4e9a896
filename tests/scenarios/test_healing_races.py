"""Healing meets bookings and starts, and neither gives a host to two: the guards, and what happens without them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any

import pytest

from tenure.domain.allocation import Allocation
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseRequest, ReservationRequest
from tenure.drivers.simulated import HostHealth
from tenure.store.allocations import AllocationStore
from tenure.store.database import Database
from tenure.store.gains import Gains
from tenure.store.leases import LeaseStore
from tests.support import ledger
from tests.support.agreement import disagreements
from tests.support.collisions import Meeting, drop_constraint, without_versions
from tests.support.databases import MARIADB, POSTGRESQL
from tests.support.waiting import SECONDS, patience
from tests.support.world import NOW, OWNER, World, open_world, reservation

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)
#: On SQLite whoever writes is alone from the beginning.
SERVERS = [
    pytest.param(POSTGRESQL, marks=pytest.mark.postgresql),
    pytest.param(MARIADB, marks=pytest.mark.mariadb),
]


def at_once(monkeypatch: pytest.MonkeyPatch, *works: Callable[[], object]) -> tuple[list[Any], Meeting]:
    """Do two things as two processes would; each has searched for a host before either writes."""
    meeting = Meeting()
    original = AllocationStore.candidates

    def searched(store: AllocationStore, *arguments: Any, **named: Any) -> Any:
        found = original(store, *arguments, **named)
        meeting()
        return found

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(AllocationStore, "candidates", searched)
        patch.setattr(Database, "_turn", lambda _database: nullcontext())  # of the writers of one process
        # The last look before a commit, which finds it only where the other has committed before.
        patch.setattr(Gains, "verify", lambda _gains: None)
        return [one.result(patience(2 * SECONDS)) for one in [pool.submit(work) for work in works]], meeting


#: Of the 32 processors of a host most; a whole host; and both, of which a host has room for one.
PART = ReservationRequest(
    "virtual:instance",
    {"amount": 1, "vcpus": 20, "memory_mb": 1024, "disk_gb": 0, "affinity": True, "resource_properties": ""},
)
WHOLE = reservation(1, 1)
RIVALS = [
    pytest.param((WHOLE, WHOLE), id="hosts"),
    pytest.param((PART, PART), id="instances"),
    pytest.param((PART, WHOLE), id="instances and a host"),
]


def book_one(world: World, one: ReservationRequest) -> Lease:
    lease = world.leases.create(OWNER, LeaseRequest("lease", NOW + HOUR, NOW + 2 * HOUR, reservations=(one,)))
    world.engine.settle()
    return lease


def host_of(world: World, lease: Lease) -> str:
    """The name of the host that the lease has something of."""
    with world.db.read() as tx:
        [allocation], _ = tx.allocations.with_versions([lease.reservations[0].id])
        return tx.resources.by_ids([allocation.resource_id])[allocation.resource_id].name


def heal_and_book(
    world: World, monkeypatch: pytest.MonkeyPatch, rivals: tuple[ReservationRequest, ReservationRequest]
) -> tuple[bool, bool]:
    """A plan that must move and a new lease want the last host; whether it was booked, and whether they met."""
    planned = book_one(world, rivals[0])
    host = host_of(world, planned)
    world.cloud.world.mark_host(host, HostHealth.DOWN)
    world.service.healing.observe("physical:host", world.cloud.check("physical:host"))

    def book() -> bool:
        try:
            book_one(world, rivals[1])
        except NotEnoughResources:
            return False
        return True

    (booked, _), meeting = at_once(monkeypatch, book, world.service.healing.heal)
    return booked, meeting.held


@pytest.mark.parametrize("database", SERVERS)
@pytest.mark.parametrize("rivals", RIVALS)
def test_a_plan_that_is_healed_and_a_booking_never_share_a_host(fresh_database, monkeypatch, database: str, rivals):
    with fresh_database(database) as url, open_world(url, hosts=2) as world:
        booked, met = heal_and_book(world, monkeypatch, rivals)
        assert met
        assert ledger.faults(url) == []
        degraded = world.service.healing.heal().degraded
        assert len(degraded) == booked  # who comes second has nothing: the booking is refused, or the plan stays


@pytest.mark.long
@pytest.mark.parametrize("database", SERVERS)
@pytest.mark.parametrize("rivals", RIVALS)
def test_without_versions_they_do(fresh_database, monkeypatch, database: str, rivals):
    with fresh_database(database) as url, open_world(url, hosts=2) as world, without_versions(monkeypatch):
        drop_constraint(world)
        booked, met = heal_and_book(world, monkeypatch, rivals)
        assert (booked, met) == (True, True)
        assert len(ledger.overlaps(url) + ledger.overbooked(url)) == 1


def heal_and_start(
    world: World, monkeypatch: pytest.MonkeyPatch, one: ReservationRequest = WHOLE, *, first: str | None = None
) -> tuple[str, bool]:
    """A lease is healed at the very moment at which its start is claimed; neither asks for it before the other does.

    Its id, and whether both had read what it has before either wrote. They have to where one is named that is to go
    ``first`` then; where none is, each waits for the other for a while only.
    """
    lease = book_one(world, one)
    host = host_of(world, lease)
    world.cloud.world.mark_host(host, HostHealth.DOWN)
    world.service.healing.observe("physical:host", world.cloud.check("physical:host"))
    world.clock.set(NOW + HOUR)
    beginning, meeting = Meeting(), Meeting(2.0 if first is None else SECONDS)
    first_is_done = threading.Event()
    working_on: dict[int, str] = {}
    get, with_versions = LeaseStore.get, AllocationStore.with_versions

    def get_together(store: LeaseStore, *arguments: Any, lock: bool = False, **named: Any) -> Any:
        if lock:
            beginning()
        return get(store, *arguments, lock=lock, **named)

    def read_together(store: AllocationStore, *arguments: Any) -> Any:
        found = with_versions(store, *arguments)
        meeting()
        if first not in {None, working_on[threading.get_ident()]}:
            assert first_is_done.wait(patience())
        return found

    def work(name: str, act: Callable[[], object]) -> None:
        working_on[threading.get_ident()] = name
        act()
        if name == first:
            first_is_done.set()

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(LeaseStore, "get", get_together)
        patch.setattr(AllocationStore, "with_versions", read_together)
        patch.setattr(Database, "_turn", lambda _database: nullcontext())
        acts = {"start": world.engine.round, "healing": world.service.healing.heal}
        for done in [pool.submit(work, name, act) for name, act in acts.items()]:
            done.result(patience(3 * SECONDS))
    assert beginning.held
    return lease.id, meeting.held


@pytest.mark.parametrize("database", SERVERS)
@pytest.mark.parametrize("one", [pytest.param(WHOLE, id="a host"), pytest.param(PART, id="an instance")])
def test_a_plan_that_is_healed_while_it_starts_is_one_or_the_other(fresh_database, monkeypatch, database: str, one):
    """The lease is locked by whoever comes first: the host that starts is the one that the ledger names."""
    with fresh_database(database) as url, open_world(url, hosts=2) as world:
        lease_id, met = heal_and_start(world, monkeypatch, one)
        assert not met
        world.engine.settle()
        assert ledger.leases(url)[lease_id].status == "ACTIVE"
        assert ledger.faults(url) == []
        assert disagreements(url, world.cloud) == []


@contextmanager
def without_lock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the lock of a lease that is about to be changed."""
    get = LeaseStore.get
    with monkeypatch.context() as patch:
        patch.setattr(
            LeaseStore,
            "get",
            lambda store, lease_id, *, deleted=False, lock=False: get(store, lease_id, deleted=deleted),
        )
        yield


@contextmanager
def without_comparisons(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither a lease nor an allocation has to be what was read, to be changed."""
    change, move = LeaseStore.change, AllocationStore.move

    def change_as_it_is(store: LeaseStore, lease: Lease, **values: Any) -> None:
        current = store.get(lease.id, deleted=True)
        assert current is not None
        change(store, current, **values)

    def move_as_it_is(store: AllocationStore, allocation: Allocation, resource_id: int, *, start: datetime) -> None:
        [current] = [one for one in store.of_reservations([allocation.reservation_id]) if one.id == allocation.id]
        move(store, current, resource_id, start=start)

    with monkeypatch.context() as patch:
        patch.setattr(LeaseStore, "change", change_as_it_is)
        patch.setattr(AllocationStore, "move", move_as_it_is)
        yield


@pytest.mark.parametrize("database", SERVERS)
@pytest.mark.parametrize("first", ["start", "healing"])
def test_without_the_lock_of_the_lease_the_comparisons_suffice(fresh_database, monkeypatch, database: str, first: str):
    """Who comes second finds the lease and its allocation changed since he read them, and reads them again."""
    with fresh_database(database) as url, open_world(url, hosts=2) as world, without_lock(monkeypatch):
        lease_id, met = heal_and_start(world, monkeypatch, first=first)
        assert met
        world.engine.settle()
        assert ledger.leases(url)[lease_id].status == "ACTIVE"
        assert ledger.faults(url) == []
        assert disagreements(url, world.cloud) == []


@pytest.mark.long
@pytest.mark.parametrize("database", SERVERS)
def test_without_lock_and_comparisons_a_lease_starts_on_another_host_than_planned(
    fresh_database, monkeypatch, database: str
):
    with (
        fresh_database(database) as url,
        open_world(url, hosts=2) as world,
        without_lock(monkeypatch),
        without_versions(monkeypatch),
        without_comparisons(monkeypatch),
    ):
        lease_id, met = heal_and_start(world, monkeypatch, first="start")
        assert met
        assert ledger.leases(url)[lease_id].status == "ACTIVE"
        [group] = world.cloud.world.groups().values()
        assert group.hosts != ledger.leases(url)[lease_id].hosts
