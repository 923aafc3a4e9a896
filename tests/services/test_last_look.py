"""The check before a commit refuses no fitting request: it checks only allocations of its transaction."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.lease import LeaseStatus
from tenure.domain.request import LeaseChange
from tenure.services.context import Rules
from tests.support import ledger
from tests.support.world import ADMIN, HOST, OWNER, World, instance_reservation, open_world, reservation

HOUR = timedelta(hours=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=3) as world:
        yield world


def test_lease_on_a_shrunk_host_is_prolonged_into_free_time(world: World) -> None:
    world.resize(8, 1, 1)
    prolonged = world.reserve(instance_reservation(vcpus=4), hours=4)
    beside = world.reserve(instance_reservation(vcpus=4), hours=2)
    world.engine.settle()
    world.resize(4, 1, 1)
    for passed in (timedelta(0), 3 * HOUR):
        world.pass_time(passed)
        end = world.leases.get(OWNER, prolonged.id).ends_at + HOUR
        changed = world.leases.update(OWNER, prolonged.id, LeaseChange(ends_at=end))
        assert (changed.status, changed.ends_at) == (LeaseStatus.ACTIVE, end)
    assert world.leases.get(OWNER, beside.id).status is LeaseStatus.TERMINATED


def test_undone_move_is_not_checked(world: World) -> None:
    """Two plans on a shrunk host: the first could move, the second cannot, so both stay."""
    for number, rack in enumerate(("r1", "r2", "r1"), start=1):
        world.resources.update(ADMIN, HOST, str(number), {"rack": rack})
    world.resize(8, 4, 4)
    crowded = [world.reserve_on(1, instance_reservation(vcpus=4, affinity=True), start=1) for _ in range(2)]
    moving = [world.reserve_on(3, instance_reservation(vcpus=2), start=1) for _ in range(2)]
    world.resize(4, 4, 4)
    in_r1 = instance_reservation(vcpus=4, resource_properties='["==", "$rack", "r1"]')
    lease = world.reserve(in_r1, start=1)
    assert world.units(lease) == [("sim-host-003", 1)]
    assert [world.units(plan) for plan in crowded] == [[("sim-host-001", 1)]] * 2
    assert [world.units(plan) for plan in moving] == [[("sim-host-002", 1)]] * 2


def test_host_with_two_allocations_of_a_lease_is_cleaned_as_far_as_possible(tmp_path: Path) -> None:
    cleaning = timedelta(minutes=30)
    with open_world(tmp_path, hosts=1, rules=Rules(cleaning_time=cleaning)) as world:
        world.resize(8)
        ending = world.reserve(instance_reservation(vcpus=4))
        world.engine.settle()
        world.change(ending, amount=2)
        following = world.reserve(instance_reservation(vcpus=4), start=1.5, hours=3)
        world.teardown_lasts(ending, until=ending.ends_at + timedelta(minutes=20))
        world.pass_until(ending.ends_at + timedelta(minutes=21))
        assert world.leases.get(OWNER, ending.id).status is LeaseStatus.TERMINATED
        world.pass_until(ending.ends_at + timedelta(minutes=55))
        assert world.leases.get(OWNER, following.id).status is LeaseStatus.ACTIVE
        assert ledger.faults(str(world.db.engine.url)) == []


def test_two_plans_may_use_the_place_of_an_undone_longer_plan(world: World) -> None:
    """Of two plans on the second host, one can move to the first host; both can move to the third host."""
    longer, _, later = (
        world.reserve_on(number, reservation(1, 1), start=start, hours=end - start)
        for number, start, end in ((2, 1, 4), (2, 5, 16), (1, 6, 21))
    )
    moving = [world.reserve_on(3, reservation(1, 1), start=start, hours=end - start) for start, end in ((3, 4), (1, 3))]
    world.reserve_on(3, reservation(1, 1), start=11, hours=10)
    lease = world.reserve(reservation(1, 1), start=2, hours=6)
    assert world.hosts_of(lease.id) == ["sim-host-003"]
    assert [world.hosts_of(plan.id) for plan in (*moving, later)] == [["sim-host-001"]] * 3
    assert world.hosts_of(longer.id) == ["sim-host-002"]
