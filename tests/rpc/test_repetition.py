"""Operations that the message bus delivers twice, to two managers: the effect equals that of one delivery."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tenure.domain.capacity import Capacity
from tenure.domain.errors import Conflict
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import (
    BookingQuery,
    LeaseChange,
    LeaseQuery,
    LeaseRequest,
    Moment,
    ReservationChange,
    ResourceQuery,
)
from tenure.rpc.operations import TABLE
from tenure.rpc.server import Endpoint
from tests.rpc.test_operations import READS, WRITES, asked_about, read
from tests.support.waiting import patience
from tests.support.world import ADMIN, HOST, OWNER, STRANGER, World, open_world, reservation

VOLUME = "virtual:volume"
LEASE_ID = "7d1f4c5e-0000-4000-8000-000000000001"
ONE_MORE = "7d1f4c5e-0000-4000-8000-000000000002"


def request_of(world: World, **parameters: object) -> LeaseRequest:
    end = world.clock.now() + timedelta(hours=2)
    return LeaseRequest("twice", Moment.NOW, end, None, (reservation(1, 2, **parameters),))


def deliver(world: World, operation: str, *arguments: object, **named: object) -> list[Any]:
    """Return the answers of two managers to the same message."""
    message = TABLE[operation].encode_arguments(*arguments, **named)
    managers = [Endpoint(world.service.manager) for _ in range(2)]
    return [manager.perform({}, operation=operation, arguments=message) for manager in managers]


def all_leases(world: World) -> tuple[Lease, ...]:
    found: tuple[Lease, ...] = world.leases.list(ADMIN, LeaseQuery(limit=100)).items
    return found


def test_a_lease_is_booked_once(world: World):
    first, second = deliver(world, "leases.create", OWNER, request_of(world))
    assert first == second
    assert [lease.id for lease in all_leases(world)] == [first["result"]["id"]]
    assert len(world.hosts_of(first["result"]["id"])) == 2


def test_repeated_create_returns_the_lease_as_it_is(world: World):
    request = request_of(world)
    world.leases.create(OWNER, request, lease_id=LEASE_ID)
    world.pass_time(timedelta(minutes=1))
    assert world.leases.create(OWNER, request, lease_id=LEASE_ID).status is LeaseStatus.ACTIVE
    world.leases.delete(OWNER, LEASE_ID)
    assert world.leases.create(OWNER, request, lease_id=LEASE_ID).status is LeaseStatus.DELETED
    assert all_leases(world) == ()


def test_id_of_another_projects_lease_reveals_nothing(world: World):
    world.leases.create(OWNER, request_of(world), lease_id=LEASE_ID)
    for actor in (STRANGER, replace(OWNER, user_id="a colleague")):
        with pytest.raises(Conflict):
            world.leases.create(actor, request_of(world), lease_id=LEASE_ID)
    assert len(all_leases(world)) == 1


def test_surplus_trust_is_deleted(world: World):
    for _ in range(2):
        world.leases.create(OWNER, request_of(world, before_end="snapshot"), lease_id=LEASE_ID)
    assert len(world.cloud.world.trusts()) == 1


@pytest.mark.races
@pytest.mark.parametrize("before_end", ["default", "snapshot"])
def test_concurrent_repetition_books_a_lease_once(database_url: str, before_end: str):
    with open_world(database_url) as world:
        request = request_of(world, before_end=before_end)
        together = threading.Barrier(8)

        def create(_number: int) -> str:
            together.wait(patience())
            return str(world.leases.create(OWNER, request, lease_id=LEASE_ID).id)

        with ThreadPoolExecutor(8) as managers:
            assert set(managers.map(create, range(8))) == {LEASE_ID}
        assert len(all_leases(world)) == 1
        assert len(world.hosts_of(LEASE_ID)) == 2
        assert len(world.cloud.world.trusts()) == (1 if before_end == "snapshot" else 0)


def test_a_change_on_condition_is_made_once(world: World):
    lease = world.book(1, start=1)
    owner = replace(OWNER, request_id="req-of-the-change")
    condition: dict[str, object] = {"if_version": (lease.version,)}
    first, second = deliver(world, "leases.update", owner, lease.id, LeaseChange(name="other"), **condition)
    assert (first["result"]["name"], second["result"]["name"]) == ("other", "other")
    [another] = deliver(world, "leases.update", OWNER, lease.id, LeaseChange(name="third"), **condition)[:1]
    assert another["error"] == "PreconditionFailed"


# --- all others


def a_lease(world: World) -> str:
    lease = world.book(1, hours=5)
    world.pass_time(timedelta(minutes=1))
    return str(lease.id)


def a_part(world: World, lease_id: str) -> str:
    return str(world.leases.get(OWNER, lease_id).reservations[0].id)


def its_host(world: World, lease_id: str) -> str:
    (part,) = world.leases.resources(ADMIN, lease_id, HOST)
    return str(part.resource.external_id)


def grown(world: World, lease_id: str) -> LeaseChange:
    end = world.clock.now() + timedelta(hours=7)
    more = ReservationChange(a_part(world, lease_id), {"min": 2, "max": 2})
    return LeaseChange(name="longer", ends_at=end, reservations=(more,))


def confirmed(world: World) -> tuple[str, tuple[ReservationChange, ...]]:
    """A held lease, and the parameters of its confirmation."""
    lease = world.leases.create(OWNER, replace(request_of(world), hold_for=timedelta(minutes=1)))
    return lease.id, (ReservationChange(lease.reservations[0].id, {"max": 3}),)


def a_new_host(world: World) -> str:
    world.cloud.world.ensure_hosts(5)
    return str(max(world.cloud.discover(HOST), key=lambda host: int(host.external_id)).name)


def a_pool(world: World) -> str:
    """A pool of volumes of which something is lent already."""
    pool = world.cloud.world.volumes.fast
    return str(world.resources.register(ADMIN, VOLUME, pool, {}, Capacity({"DISK_GB": 10})).external_id)


def free_host(world: World, lease_id: str) -> str:
    taken = its_host(world, lease_id)
    return next(
        host.external_id
        for host in world.resources.list(ADMIN, ResourceQuery(HOST, 9)).items
        if host.external_id != taken
    )


#: What each operation that writes is asked for, by the lease that there is; its host is in the lease.
REPEATED: dict[str, Callable[[World, str], tuple[tuple[object, ...], dict[str, object]]]] = {
    "leases.create": lambda world, _lease: ((OWNER, request_of(world)), {}),
    "leases.update": lambda world, lease: ((OWNER, lease, grown(world, lease)), {}),
    "leases.confirm": lambda world, _lease: ((OWNER, *confirmed(world)), {}),
    "leases.delete": lambda _world, lease: ((OWNER, lease), {}),
    "leases.add_reservation": lambda _world, lease: ((OWNER, lease, reservation(1, 1)), {"reservation_id": ONE_MORE}),
    "leases.drop_reservation": lambda world, lease: ((OWNER, lease, a_part(world, lease)), {}),
    "resources.register": lambda world, _lease: ((ADMIN, HOST, a_new_host(world), {"ssd": "yes"}), {}),
    "resources.update": lambda world, lease: ((ADMIN, HOST, its_host(world, lease), {"ssd": "yes"}), {}),
    "resources.lend": lambda world, _lease: ((ADMIN, VOLUME, a_pool(world), Capacity({"DISK_GB": 20})), {}),
    "resources.unregister": lambda world, lease: ((ADMIN, HOST, free_host(world, lease)), {}),
    "resources.disable": lambda world, lease: ((ADMIN, HOST, its_host(world, lease)), {"reason": "new disk"}),
    "resources.enable": lambda world, lease: ((ADMIN, HOST, its_host(world, lease)), {}),
    "resources.reallocate": lambda world, lease: ((ADMIN, HOST, its_host(world, lease)), {"running": True}),
    "resources.set_property": lambda _world, _lease: ((ADMIN, HOST, "known"), {"private": True}),
}


def ledger(world: World) -> object:
    """All that users and operators can see, without the numbers of versions and the times of changes."""
    leases = [replace(lease, version=0, updated_at=None) for lease in all_leases(world)]
    resources = [
        replace(resource, version=0)
        for resource_type in (HOST, VOLUME)
        for resource in world.resources.list(ADMIN, ResourceQuery(resource_type, 100)).items
    ]
    return (
        leases,
        resources,
        world.resources.bookings(ADMIN, BookingQuery(HOST, 100)),
        world.resources.properties(ADMIN, HOST, include_private=True),
        world.cloud.world.groups(),
        world.cloud.world.pool(),
    )


@pytest.mark.parametrize("operation", sorted(REPEATED))
def test_operations_are_idempotent(world: World, operation: str):
    lease = a_lease(world)
    world.resources.update(ADMIN, HOST, free_host(world, lease), {"known": "yes"})
    positional, named = REPEATED[operation](world, lease)
    message = TABLE[operation].encode_arguments(*positional, **named)
    before = ledger(world)
    managers = [Endpoint(world.service.manager) for _ in range(2)]
    answers, after = [], []
    for manager in managers:
        answers.append(manager.perform({}, operation=operation, arguments=message))
        after.append(ledger(world))
    assert "result" in answers[0]
    assert answers[1].get("error", "") is not None  # no defect
    assert after[1] == after[0]
    assert after[0] != before or operation == "resources.enable"


@pytest.mark.parametrize("operation", sorted(READS))
def test_reads_change_nothing(world: World, operation: str):
    lease = a_lease(world)
    world.resources.update(ADMIN, HOST, free_host(world, lease), {"known": "yes"})
    host = its_host(world, lease)
    lease = asked_about(world, operation, world.leases.get(OWNER, lease)).id
    before = ledger(world)
    assert read(world.service.manager, operation, lease, host)
    assert ledger(world) == before


def test_every_writing_operation_is_repeated():
    assert REPEATED.keys() == WRITES
