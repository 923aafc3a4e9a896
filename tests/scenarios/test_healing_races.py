"""Healing at the same time as bookings and starts: the guards against shared hosts, and the failures without them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tenure.domain.changes import Changes
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseRequest, ReservationRequest
from tenure.planning.snapshot import Snapshot
from tenure.services.planning.planning import Planning
from tenure.store.allocations import AllocationStore
from tenure.store.database import Database
from tenure.store.gains import Gains
from tenure.store.leases import LeaseStore
from tests.support import ledger
from tests.support.agreement import disagreements
from tests.support.collisions import Meeting, drop_constraint, without_versions
from tests.support.databases import MARIADB, POSTGRESQL
from tests.support.simulated import HostHealth
from tests.support.waiting import SECONDS, patience
from tests.support.world import NOW, OWNER, World, open_world, reservation

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)
#: Without SQLite, where a writing transaction is alone from its beginning.
SERVERS = [
    pytest.param(POSTGRESQL, marks=pytest.mark.postgresql),
    pytest.param(MARIADB, marks=pytest.mark.mariadb),
]


def at_once(monkeypatch: pytest.MonkeyPatch, *works: Callable[[], object]) -> tuple[list[Any], Meeting]:
    """Run two operations as two processes would; both have read the ledger before either writes."""
    meeting = Meeting()
    original = Planning.snapshot

    def read(planning: Planning) -> Snapshot:
        found = original(planning)
        meeting()
        return found

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(Planning, "snapshot", read)
        patch.setattr(Database, "_write_permit", lambda _database: nullcontext())  # orders the writers of a process
        # This check before a commit would find only conflicts with transactions that have committed before.
        patch.setattr(Gains, "verify", lambda _gains: None)
        return [done.result(patience(2 * SECONDS)) for done in [pool.submit(work) for work in works]], meeting


#: An instance with most of the 32 processors of a host, and a whole host: a host has room for one of any two.
SHARED = ReservationRequest(
    "virtual:instance",
    {"amount": 1, "vcpus": 20, "memory_mb": 1024, "disk_gb": 0, "affinity": True, "resource_properties": ""},
)
WHOLE = reservation(1, 1)
RIVALS = [
    pytest.param((WHOLE, WHOLE), id="hosts"),
    pytest.param((SHARED, SHARED), id="instances"),
    pytest.param((SHARED, WHOLE), id="instances and a host"),
]


def book(world: World, request: ReservationRequest) -> Lease:
    lease = world.leases.create(OWNER, LeaseRequest("lease", NOW + HOUR, NOW + 2 * HOUR, reservations=(request,)))
    world.engine.settle()
    return lease


def host_of(world: World, lease: Lease) -> str:
    """Return the name of the host of the lease."""
    with world.db.read() as tx:
        [allocation], _ = tx.allocations.with_versions([lease.reservations[0].id])
        return tx.resources.by_ids([allocation.resource_id])[allocation.resource_id].name


def heal_and_book(
    world: World, monkeypatch: pytest.MonkeyPatch, rivals: tuple[ReservationRequest, ReservationRequest]
) -> tuple[bool, bool]:
    """Let a plan that must move and a new lease compete for the last host.

    Return whether the new lease was booked, and whether both had read the ledger before either wrote.
    """
    planned = book(world, rivals[0])
    host = host_of(world, planned)
    world.cloud.world.mark_host(host, HostHealth.DOWN)
    world.service.healing.observe("physical:host", world.cloud.check("physical:host"))

    def try_to_book() -> bool:
        try:
            book(world, rivals[1])
        except NotEnoughResources:
            return False
        return True

    (booked, _), meeting = at_once(monkeypatch, try_to_book, world.service.healing.heal)
    return booked, meeting.held


@pytest.mark.parametrize("database", SERVERS)
@pytest.mark.parametrize("rivals", RIVALS)
def test_healed_plan_and_booking_never_share_a_host(fresh_database, monkeypatch, database: str, rivals):
    with fresh_database(database) as url, open_world(url, hosts=2) as world:
        booked, met = heal_and_book(world, monkeypatch, rivals)
        assert met
        assert ledger.faults(url) == []
        degraded = world.service.healing.heal().degraded
        assert len(degraded) == booked  # the second has no host: the booking is refused, or the plan stays


@pytest.mark.long
@pytest.mark.parametrize("database", SERVERS)
@pytest.mark.parametrize("rivals", RIVALS)
def test_healed_plan_and_booking_share_a_host_without_version_check(fresh_database, monkeypatch, database: str, rivals):
    with fresh_database(database) as url, open_world(url, hosts=2) as world, without_versions(monkeypatch):
        drop_constraint(world)
        booked, met = heal_and_book(world, monkeypatch, rivals)
        assert (booked, met) == (True, True)
        assert len(ledger.overlaps(url) + ledger.overbooked(url)) == 1


def heal_and_start(
    world: World, monkeypatch: pytest.MonkeyPatch, request: ReservationRequest = WHOLE, *, first: str | None = None
) -> tuple[str, bool]:
    """Heal a lease while its start is claimed; both begin to read the lease at the same time.

    Return the id of the lease, and whether both had read its allocations before either wrote. With ``first``, the name
    of the operation that then writes first, this is enforced; without it, each waits for the other for two seconds.
    """
    lease = book(world, request)
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
        patch.setattr(Database, "_write_permit", lambda _database: nullcontext())
        acts = {"start": world.engine.round, "healing": world.service.healing.heal}
        for done in [pool.submit(work, name, act) for name, act in acts.items()]:
            done.result(patience(3 * SECONDS))
    assert beginning.held
    return lease.id, meeting.held


@pytest.mark.parametrize("database", SERVERS)
@pytest.mark.parametrize("requested", [pytest.param(WHOLE, id="a host"), pytest.param(SHARED, id="an instance")])
def test_plan_that_is_healed_while_it_starts_agrees_with_the_cloud(
    fresh_database, monkeypatch, database: str, requested
):
    """The first operation locks the lease, so the host in the cloud is the one in the ledger."""
    with fresh_database(database) as url, open_world(url, hosts=2) as world:
        lease_id, met = heal_and_start(world, monkeypatch, requested)
        assert not met
        world.engine.settle()
        assert ledger.leases(url)[lease_id].status == "ACTIVE"
        assert ledger.faults(url) == []
        assert disagreements(url, world.cloud) == []


@contextmanager
def without_lock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the lock of a lease that is about to be changed."""
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
    """Let a lease or an allocation be changed even if it has changed since it was read."""
    change, apply = LeaseStore.change, AllocationStore.apply

    def change_as_it_is(store: LeaseStore, lease: Lease, **values: Any) -> None:
        current = store.get(lease.id, deleted=True)
        assert current is not None
        change(store, current, **values)

    def apply_as_it_is(store: AllocationStore, changes: Changes, *, now: datetime) -> None:
        stored = store.of_reservations({before.reservation_id for before, _ in changes.changed})
        current = {each.id: each for each in stored}
        changed = [(each := current[before.id], replace(after, state=each.state)) for before, after in changes.changed]
        apply(store, replace(changes, changed=changed), now=now)

    with monkeypatch.context() as patch:
        patch.setattr(LeaseStore, "change", change_as_it_is)
        patch.setattr(AllocationStore, "apply", apply_as_it_is)
        yield


@pytest.mark.parametrize("database", SERVERS)
@pytest.mark.parametrize("first", ["start", "healing"])
def test_comparisons_suffice_without_the_lock_of_the_lease(fresh_database, monkeypatch, database: str, first: str):
    """The second operation finds the lease and its allocation changed since it read them, and reads them again."""
    with fresh_database(database) as url, open_world(url, hosts=2) as world, without_lock(monkeypatch):
        lease_id, met = heal_and_start(world, monkeypatch, first=first)
        assert met
        world.engine.settle()
        assert ledger.leases(url)[lease_id].status == "ACTIVE"
        assert ledger.faults(url) == []
        assert disagreements(url, world.cloud) == []


@pytest.mark.long
@pytest.mark.parametrize("database", SERVERS)
def test_lease_starts_on_a_wrong_host_without_lock_and_comparisons(fresh_database, monkeypatch, database: str):
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
