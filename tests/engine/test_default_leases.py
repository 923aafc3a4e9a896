"""Servers that are booted without a lease get one, once, where the operator wants that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.errors import Conflict
from tenure.domain.request import LeaseChange, LeaseQuery, LeaseRequest, ReservationChange, ReservationRequest
from tenure.drivers.simulated import Fault, FaultKind
from tenure.engine.default_leases import DefaultLeases, DefaultTerms
from tests.support.world import OWNER, World, open_world

DAY = timedelta(days=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(f"sqlite:///{tmp_path / 'tenure.db'}", hosts=1) as opened:
        opened.cloud.world.add_host("general")
        yield opened


def sweep(world: World) -> DefaultLeases:
    return DefaultLeases(world.leases, world.cloud, world.clock, DefaultTerms("virtual:server"))


def boot(world: World, **metadata: str) -> str:
    marks = {f"tenure:{name}": value for name, value in metadata.items()}
    return world.cloud.world.instances.boot("demo-project", "1", name="forgotten", user_id="demo-user", metadata=marks)


def leases(world: World):
    return world.leases.list(OWNER, LeaseQuery(limit=10)).items


def test_a_forgotten_server_is_left_where_it_is_and_shelved_after_a_month(world: World):
    server_id = boot(world)
    [before] = world.cloud.world.servers()
    assert sweep(world).run() == 1
    [lease] = leases(world)
    assert (lease.name, lease.user_id, lease.ends_at - lease.starts_at) == ("server forgotten", "demo-user", 30 * DAY)
    world.pass_time(29 * DAY)
    [running] = world.cloud.world.servers()
    assert (running.id, running.host) == (server_id, before.host)
    world.pass_time(2 * DAY)
    [after] = world.cloud.world.servers()
    assert after.shelved


def test_each_server_gets_one_lease_whoever_looks_and_whatever_became_of_it(world: World):
    boot(world)
    first, second = sweep(world), sweep(world)
    assert [first.run(), first.run()] == [1, 0]
    [lease] = leases(world)
    second.run()
    world.pass_time(timedelta(minutes=1))
    world.leases.delete(OWNER, lease.id)
    world.pass_time(timedelta(minutes=1))
    sweep(world).run()
    assert not leases(world)


def test_a_server_that_has_a_lease_gets_no_other(world: World):
    boot(world, reservation="booked")
    assert sweep(world).run() == 0


def test_what_was_booted_long_ago_is_left_alone(world: World):
    boot(world)
    world.clock.set(world.clock.now() + 2 * DAY)
    assert sweep(world).run() == 0


def test_a_cloud_that_does_not_answer_is_asked_again(world: World):
    boot(world)
    given = sweep(world)
    world.cloud.inject(Fault(FaultKind.BUSY, verb="servers", count=1))
    world.cloud.inject(Fault(FaultKind.BUSY, verb="fetch", count=1))
    assert [given.run(), given.run(), given.run()] == [0, 0, 1]


@pytest.mark.parametrize("way", ["at once", "named later"])
def test_a_lease_that_a_server_was_given_gives_way_to_one_that_somebody_makes(world: World, way: str):
    server_id = boot(world)
    sweep(world).run()
    world.pass_time(timedelta(minutes=1))
    [given] = leases(world)
    now = world.clock.now()
    size = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}
    parameters = {"at_end": "shelve", **({"server_id": server_id} if way == "at once" else size)}
    asked = LeaseRequest(
        "mine", now + timedelta(hours=1), now + timedelta(hours=2), reservations=(request(parameters),)
    )
    mine = world.leases.create(OWNER, asked)
    if way == "named later":
        named = (ReservationChange(mine.reservations[0].id, {"server_id": server_id}),)
        world.leases.update(OWNER, mine.id, LeaseChange(reservations=named))
    assert [one.id for one in leases(world)] == [mine.id]
    sweep(world).run()
    world.service.repair.run()
    [server] = world.cloud.world.servers()
    assert (server.shelved, server.metadata["tenure:lease"]) == (True, mine.id)
    world.pass_time(timedelta(minutes=90))
    [server] = world.cloud.world.servers()
    assert not server.shelved
    assert given.id not in {one.id for one in leases(world)}


@pytest.mark.parametrize("kind", [FaultKind.BUSY, FaultKind.REFUSED])
def test_a_server_whose_lease_gives_way_stays_whatever_becomes_of_the_other(world: World, kind: FaultKind):
    server_id = boot(world)
    terms = DefaultTerms("virtual:server", at_end="delete")
    DefaultLeases(world.leases, world.cloud, world.clock, terms).run()
    world.pass_time(timedelta(minutes=1))
    now = world.clock.now()
    asked = LeaseRequest("mine", now + DAY, now + 2 * DAY, reservations=(request({"server_id": server_id}),))
    world.cloud.inject(Fault(kind, verb="ensure_prepared", count=1))
    with suppress(Conflict):
        world.leases.create(OWNER, asked)
    world.service.repair.run()
    world.service.repair.run()
    assert [one.id for one in world.cloud.world.servers()] == [server_id]


def request(parameters: dict[str, object]) -> ReservationRequest:
    return ReservationRequest("virtual:server", parameters)


def test_a_lease_that_somebody_made_gives_way_to_none(world: World):
    server_id = boot(world)
    now = world.clock.now()
    asked = LeaseRequest(
        "mine", now + timedelta(hours=1), now + timedelta(hours=2), reservations=(request({"server_id": server_id}),)
    )
    world.leases.create(OWNER, asked)
    with pytest.raises(Conflict):
        world.leases.create(OWNER, asked)
