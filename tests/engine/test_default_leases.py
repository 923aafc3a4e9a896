"""Servers that are booted without a lease get one, once, where the operator wants that."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.request import LeaseQuery
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
