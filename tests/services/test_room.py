"""Making room by moving plans: a request that can fit is booked, whatever was tried before."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import event

from tenure.domain.availability import AvailabilityQuery
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import LeaseStatus
from tenure.domain.request import LeaseChange, ReservationRequest, ResourceQuery
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.simulated import Fault, FaultKind
from tests.services.test_shared_hosts import HOUR, hosts, instances
from tests.support.simulated import HostHealth
from tests.support.world import ADMIN, HOST, OWNER, World, open_world

HOSTS = 4


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=HOSTS) as world:
        yield world


def limit(world: World, number: int, limits: dict[str, int]) -> None:
    """Set the step size of a host's VCPUs."""
    with world.db.read() as tx:
        [host] = [
            resource for resource in tx.resources.page(ResourceQuery(HOST, 10)) if resource.external_id == str(number)
        ]
    described = DiscoveredResource(
        HOST, host.external_id, host.name, host.capacity, host.facts, limits={"VCPU": limits}
    )
    world.db.write(lambda tx: tx.resources.describe(host, described, now=world.clock.now()))


def test_plan_may_move_to_the_host_of_an_immovable_plan(world: World):
    """The plan on the large host cannot move, but the plan of the small host fits beside it."""
    world.resize(2, 1, 1, 1)
    for number in range(1, HOSTS + 1):
        world.reserve_on(number, instances(1, vcpus=1), start=1)
    world.reserve(hosts(1), start=1)


def test_plan_that_could_not_move_does_not_block_the_next(world: World):
    """Of two plans on one host only one fits elsewhere, so both stay; the two plans of another host both fit."""
    world.resize(4, 4, 4, 2)
    for number, vcpus in ((1, 4), (2, 2)):
        world.reserve_on(number, instances(1, vcpus=vcpus), start=0, hours=5)
    world.engine.settle()  # running leases do not move
    for number, begin in ((3, 1), (3, 1), (4, 1), (4, 2)):
        world.reserve_on(number, instances(1, vcpus=2), start=begin)
    world.reserve(hosts(1), start=1, hours=2)


def test_plan_does_not_depend_on_a_failed_attempt(world: World):
    """A plan with affinity is tried on a host that then fills up; it moves to another host instead.

    For the whole host, the first host is tried without success: one of its two plans fits nowhere else. The plans of
    the second host then move to the place tried for the other plan, which makes room for the instance later.
    """
    world.resize(7, 2, 3, 3)
    world.reserve_on(3, instances(1, vcpus=1), start=0, hours=9)
    world.reserve_on(4, instances(1, vcpus=1), start=0, hours=2)  # in use for a shorter time, so the third is preferred
    world.engine.settle()  # running leases do not move
    together = world.reserve_on(1, instances(1, vcpus=2, affinity=True), start=1, hours=2)
    world.reserve_on(1, instances(1, vcpus=4), start=1, hours=2)
    small = [world.reserve_on(2, instances(1, vcpus=1), start=1, hours=2) for _ in range(2)]
    lease = world.reserve(hosts(1), instances(1, vcpus=3), start=1, hours=2)
    assert [world.units(lease) for lease in small] == [[("sim-host-003", 1)]] * 2
    assert world.units(together) == [("sim-host-004", 1)]
    assert world.units(lease) == [("sim-host-001", 1), ("sim-host-002", 1)]


def test_affine_instances_grow_where_a_plan_moves_away(world: World):
    world.resize(4, 4, 4, 4)
    running = world.reserve_on(1, instances(1, vcpus=2, affinity=True), start=0, hours=3)
    world.engine.settle()
    world.reserve_on(1, instances(1, vcpus=2), start=1)
    world.change(running, amount=2)
    world.engine.settle()
    assert world.units(running) == [("sim-host-001", 1), ("sim-host-001", 1)]
    with pytest.raises(NotEnoughResources, match="3 asked for"):
        world.change(running, amount=3)


def test_plan_moves_beside_a_growing_reservation(world: World):
    """The plan overlaps the running reservation, but fits on its host."""
    world.resize(4, 2, 1, 1)
    running = world.reserve_on(1, instances(1, vcpus=2, affinity=False), start=0, hours=3)
    world.engine.settle()
    plan = world.reserve_on(2, instances(1, vcpus=2), start=2)
    world.change(running, amount=2)
    world.engine.settle()
    assert world.units(running) == [("sim-host-001", 1), ("sim-host-002", 1)]
    assert world.units(plan) == [("sim-host-001", 1)]


def test_plan_moves_beside_a_unit_placed_before(world: World):
    world.resize(4, 2, 1, 1)
    plan = world.reserve_on(2, instances(1, vcpus=2), start=2)
    lease = world.reserve(instances(2, vcpus=2, affinity=False), start=1, hours=3)
    assert world.units(lease) == [("sim-host-001", 1), ("sim-host-002", 1)]
    assert world.units(plan) == [("sim-host-001", 1)]


def test_plan_moves_beside_a_unit_where_another_unit_does_not_fit(world: World):
    """The second host has room for one unit throughout, and for the shorter plan beside it."""
    world.resize(1, 2, 1, 1)
    for number in (2, 3, 4):
        world.reserve_on(number, instances(1, vcpus=1), start=0, hours=1 if number == 2 else 2)
    world.engine.settle()  # running leases do not move
    plan = world.reserve_on(1, instances(1, vcpus=1), start=1)
    lease = world.reserve(instances(2, vcpus=1), start=0, hours=2)
    assert world.units(lease) == [("sim-host-001", 1), ("sim-host-002", 1)]
    assert world.units(plan) == [("sim-host-002", 1)]


def test_plan_moves_beside_a_unit_for_which_another_plan_moved(world: World):
    world.resize(3, 2, 1, 2)
    world.reserve_on(3, instances(1, vcpus=1), start=0, hours=2)
    world.reserve_on(4, instances(1, vcpus=2), start=0)
    world.engine.settle()  # running leases do not move
    first = world.reserve_on(1, instances(1, vcpus=2), start=1)
    second = world.reserve_on(2, instances(1, vcpus=1), start=1)
    lease = world.reserve(instances(2, vcpus=2, affinity=False), start=0, hours=2)
    assert world.units(lease) == [("sim-host-001", 1), ("sim-host-002", 1)]
    assert world.units(first) == [("sim-host-004", 1)]
    assert world.units(second) == [("sim-host-001", 1)]


def test_plan_moves_off_a_host_with_room_for_some_units(world: World):
    """The second host has room for one unit, and for both if the plan moves to the first host."""
    world.resize(2, 4, 1, 1)
    world.reserve_on(1, instances(1, vcpus=2), start=0)
    world.engine.settle()  # running leases do not move
    plan = world.reserve_on(2, instances(1, vcpus=2), start=1)
    lease = world.reserve(instances(2, vcpus=2), start=0, hours=2)
    assert {host for host, _ in world.units(lease)} == {"sim-host-002"}
    assert sum(count for _, count in world.units(lease)) == 2
    assert world.units(plan) == [("sim-host-001", 1)]


def test_two_plans_move_off_one_host_for_two_units(world: World):
    """Each plan blocks one unit, and each other host has room for one plan: both plans must move."""
    world.resize(4, 2, 2, 1)
    for number in (2, 3):
        world.reserve_on(number, instances(1, vcpus=2), start=0)
    world.engine.settle()  # running leases do not move
    plans = [world.reserve_on(1, instances(1, vcpus=2), start=1) for _ in range(2)]
    lease = world.reserve(instances(2, vcpus=2), start=0, hours=2)
    assert {host for host, _ in world.units(lease)} == {"sim-host-001"}
    assert sum(count for _, count in world.units(lease)) == 2
    assert sorted(world.units(plan) for plan in plans) == [[("sim-host-002", 1)], [("sim-host-003", 1)]]


def test_plan_that_frees_enough_room_moves_instead_of_a_smaller_plan(world: World):
    """The second host has room for either plan; the first host has enough room only without the larger one."""
    world.resize(4, 4, 1, 1)
    world.reserve_on(2, instances(1, vcpus=2), start=0, hours=2)
    world.engine.settle()  # running leases do not move
    small, large = (world.reserve_on(1, instances(1, vcpus=vcpus), start=1) for vcpus in (1, 2))
    lease = world.reserve(instances(1, vcpus=3), start=1)
    assert world.units(lease) == [("sim-host-001", 1)]
    assert world.units(small) == [("sim-host-001", 1)]
    assert world.units(large) == [("sim-host-002", 1)]


def test_plan_that_fits_elsewhere_only_in_part_does_not_take_the_place(world: World):
    """The longer plan has two units, and the second host has room for one of them, which frees too little."""
    world.resize(6, 4, 1, 1)
    world.reserve_on(2, instances(1, vcpus=1), start=0, hours=3)
    world.engine.settle()  # running leases do not move
    world.reserve_on(2, instances(1, vcpus=2), start=2)
    longer = world.reserve_on(1, instances(2, vcpus=1), start=1, hours=2)
    shorter = world.reserve_on(1, instances(1, vcpus=3), start=1)
    on_the_first = '["==", "$hypervisor_hostname", "sim-host-001"]'
    lease = world.reserve(instances(1, vcpus=3, resource_properties=on_the_first), start=1)
    assert world.units(lease) == [("sim-host-001", 1)]
    assert world.units(longer) == [("sim-host-001", 2)]
    assert world.units(shorter) == [("sim-host-002", 1)]


def test_plan_moves_to_a_host_with_room_for_some_units(world: World):
    """The third host has room for two of three units, or for the plan and one unit.

    If the plan moves there, the second host has room for the other two units.
    """
    world.resize(1, 2, 4, 1)
    for number, hours in ((1, 2), (4, 2), (3, 1), (3, 2)):
        world.reserve_on(number, instances(1, vcpus=1), start=0, hours=hours)
    world.engine.settle()  # running leases do not move
    plan = world.reserve_on(2, instances(1, vcpus=2), start=1)
    lease = world.reserve(instances(3, vcpus=1), start=0, hours=2)
    assert world.units(plan) == [("sim-host-003", 1)]
    assert sorted(world.units(lease)) == [("sim-host-002", 2), ("sim-host-003", 1)]


def test_anti_affine_units_do_not_share_a_cleared_host(world: World):
    world.resize(4, 2, 2, 1)
    for number in (2, 3):
        world.reserve_on(number, instances(1, vcpus=2), start=0)
    world.engine.settle()  # running leases do not move
    for _ in range(2):
        world.reserve_on(1, instances(1, vcpus=2), start=1)
    with pytest.raises(NotEnoughResources):
        world.reserve(instances(2, vcpus=2, affinity=False), start=0, hours=2)


def test_plan_moves_beside_other_units_of_a_prolonged_lease(world: World):
    world.resize(1, 2, 1, 1)
    for number in (3, 4):
        world.reserve_on(number, instances(1, vcpus=1), start=0, hours=2)
    running = world.reserve(instances(2, vcpus=1, affinity=False), start=0)
    world.engine.settle()
    plan = world.reserve_on(1, instances(1, vcpus=1), start=1)
    world.leases.update(OWNER, running.id, LeaseChange(ends_at=running.ends_at + HOUR))
    assert world.units(running) == [("sim-host-001", 1), ("sim-host-002", 1)]
    assert world.units(plan) == [("sim-host-002", 1)]


def test_reservation_does_not_grow_on_a_disabled_host(world: World):
    world.resize(4, 4, 4, 4)
    running = world.reserve_on(1, instances(1, vcpus=2, affinity=True), start=0, hours=3)
    world.engine.settle()
    world.reserve_on(1, instances(1, vcpus=2), start=1)
    world.resources.disable(ADMIN, HOST, "1", reason="repair")
    with pytest.raises(NotEnoughResources):
        world.change(running, amount=2)


def test_movable_plan_is_found_among_many_immovable_ones(tmp_path: Path):
    """Each of the other plans names its host, so that the result of one search does not help the next."""
    count = 20
    with open_world(tmp_path, hosts=count + 2) as world:
        last = count + 2
        for number in range(1, last):
            world.resources.update(ADMIN, HOST, str(number), {"gpu": "a100"})
        for number in range(1, count + 1):
            world.book(1, start=1, resource_properties=f'["==", "$hypervisor_hostname", "sim-host-{number:03d}"]')
        plan = world.reserve_on(last - 1, hosts(1), start=1)
        lease = world.book(1, start=1, resource_properties='["==", "$gpu", "a100"]')
        assert world.hosts_of(lease.id) == [f"sim-host-{last - 1:03d}"]
        assert world.hosts_of(plan.id) == [f"sim-host-{last:03d}"]


@pytest.mark.parametrize("limits", [{"max": 4}, {"min": 2, "max": 4, "step": 2}])
def test_plan_moves_to_a_host_whose_limit_excludes_the_request(world: World, limits: dict[str, int]):
    """The cloud's limit for one unit excludes the request from the second host, but not the plan's smaller units."""
    world.resize(8, 8, 1, 1)
    limit(world, 2, limits)
    units = 8 // limits.get("min", 1)
    plan = world.reserve_on(1, instances(units, vcpus=8 // units, affinity=True), start=1)
    lease = world.reserve(instances(1, vcpus=8), start=1)
    assert world.units(lease) == [("sim-host-001", 1)]
    assert world.units(plan) == [("sim-host-002", units)]


def statements(world: World, asked: ReservationRequest) -> int:
    """Return the number of statements of a refused request."""
    count = 0

    def note(*_anything: object) -> None:
        nonlocal count
        count += 1

    # What the bookings before have changed is in the index already.
    world.service.manager.availability.show(ADMIN, AvailabilityQuery(HOST))
    event.listen(world.db.engine, "before_cursor_execute", note)
    with pytest.raises(NotEnoughResources):
        world.reserve(asked, start=1)
    event.remove(world.db.engine, "before_cursor_execute", note)
    return count


@pytest.mark.slow
def test_refusal_cost_does_not_grow_with_plans(world: World):
    """Each search for another place covers the whole cloud; its result applies to all plans of the same size."""
    costs = []
    for size in (2, 1):
        world.resize(8, 8, 8, 8)
        leases = [world.reserve(instances(1, vcpus=size), start=1) for _ in range(4 * 8 // size)]
        asked = (
            instances(1, vcpus=size),
            instances(3, vcpus=size, affinity=True),
            instances(2, vcpus=size, affinity=False),
        )
        costs.append([statements(world, request) for request in asked])
        for lease in leases:
            world.leases.delete(OWNER, lease.id)
    assert costs[1] == costs[0]


def test_a_plan_that_ends_while_a_request_is_carried_out_still_refuses_it(tmp_path: Path):
    """The counts of a refusal are made later than the search: by then the plan that was in the way is over."""
    with open_world(tmp_path, hosts=1) as world:
        world.reserve(hosts(1), start=0, hours=1)  # never started: no engine runs
        world.clock.advance(timedelta(minutes=59, seconds=59))

        def pass_time(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
            if statement.startswith("INSERT INTO leases"):
                world.clock.advance(timedelta(seconds=2))

        event.listen(world.db.engine, "before_cursor_execute", pass_time)
        with pytest.raises(NotEnoughResources) as refused:
            world.reserve(hosts(1), start=0, hours=1)
        assert [stage.count for stage in refused.value.shortfall.stages] == [1, 1, 0]


@pytest.mark.parametrize("more", [0, 100_000])
def test_refusal_cost_does_not_grow_with_target_hosts(tmp_path: Path, more: int):
    """The plan of a whole host could move to every other host, but frees only as much as it takes there."""
    costs = []
    for count in (12, 24):
        directory = tmp_path / str(count)
        directory.mkdir()
        with open_world(directory, hosts=count) as world:
            world.resize(*[8] * count)
            world.reserve(hosts(1), start=1)
            costs.append(statements(world, instances(8 * count + more, vcpus=1)))
    assert costs[1] == costs[0]


def test_plan_on_a_failed_host_is_split_over_several_hosts(world: World):
    world.resize(8, 4, 4, 1)
    lease = world.reserve_on(1, instances(8, vcpus=1), start=1)
    world.cloud.world.mark_host("sim-host-001", HostHealth.DOWN)
    world.service.health_check.run()
    moved = dict(world.units(lease))
    assert sum(moved.values()) == 8
    assert len(moved) > 1
    assert "sim-host-001" not in moved
    assert not world.leases.get(OWNER, lease.id).degraded


@pytest.mark.slow
def test_plan_stays_if_only_a_part_could_move(world: World):
    """The owner gets a reason; moving only a part would not help."""
    world.resize(8, 4, 3, 4)
    together = world.reserve_on(1, instances(4, vcpus=1, affinity=True), start=1)
    other = world.reserve_on(1, instances(4, vcpus=1), start=1)
    for host in ("sim-host-001", "sim-host-002", "sim-host-004"):
        world.cloud.world.mark_host(host, HostHealth.DOWN)
    world.service.health_check.run()
    assert world.units(together) == [("sim-host-001", 4)]
    assert world.units(other) == [("sim-host-001", 4)]
    assert world.leases.get(OWNER, other.id).degraded


def test_reallocation_splits_a_plan_over_several_hosts(world: World):
    world.resize(8, 4, 4, 1)
    lease = world.reserve_on(1, instances(8, vcpus=1), start=1)
    [allocation] = world.resources.reallocate(ADMIN, HOST, "1", dry_run=True).affected
    assert allocation.moves_to in {"2", "3", "4"}
    assert world.units(lease) == [("sim-host-001", 8)]
    [allocation] = world.resources.reallocate(ADMIN, HOST, "1").affected
    assert allocation.moves_to in {"2", "3", "4"}
    assert sum(count for host, count in world.units(lease) if host != "sim-host-001") == 8


def test_start_moves_to_several_other_hosts_instead_of_waiting(world: World):
    world.resize(8, 4, 4, 1)
    before = world.reserve_on(1, instances(8, vcpus=1), start=0)
    after = world.reserve_on(1, instances(8, vcpus=1), start=1)
    stuck = Fault(FaultKind.BUSY, verb="ensure_ended", reservation_id=before.reservations[0].id, count=None)
    world.cloud.inject(stuck)
    world.pass_time(HOUR + timedelta(minutes=1))
    assert world.leases.get(OWNER, after.id).status is LeaseStatus.ACTIVE
    assert "sim-host-001" not in dict(world.units(after))


def test_start_moves_where_a_plan_makes_room_instead_of_waiting(world: World):
    """The second host has room for one of the two units, and for the plan that blocks the other unit."""
    world.resize(2, 2, 1, 1)
    before = world.reserve_on(1, instances(2, vcpus=1), start=0)
    for number, hours in ((2, 1.5), (4, 2)):
        world.reserve_on(number, instances(1, vcpus=1), start=0, hours=hours)
    world.engine.settle()
    after = world.reserve_on(1, instances(2, vcpus=1), start=1)
    plan = world.reserve_on(3, instances(1, vcpus=1), start=1.5, hours=0.5)
    stuck = Fault(FaultKind.BUSY, verb="ensure_ended", reservation_id=before.reservations[0].id, count=None)
    world.cloud.inject(stuck)
    world.pass_time(HOUR + timedelta(minutes=1))
    assert world.leases.get(OWNER, after.id).status is LeaseStatus.ACTIVE
    assert world.units(after) == [("sim-host-002", 1), ("sim-host-003", 1)]
    assert world.units(plan) == [("sim-host-002", 1)]


def test_start_moves_where_a_plan_leaves_for_a_host_with_some_room_instead_of_waiting(world: World):
    """As above, for a lease whose own host is released too late."""
    world.resize(3, 2, 4, 1)
    before = world.reserve_on(1, instances(3, vcpus=1), start=0)
    for number, hours in ((4, 3), (3, 2), (3, 3)):
        world.reserve_on(number, instances(1, vcpus=1), start=0, hours=hours)
    world.engine.settle()  # running leases do not move
    after = world.reserve_on(1, instances(3, vcpus=1), start=1, hours=2)
    plan = world.reserve_on(2, instances(1, vcpus=2), start=2)
    stuck = Fault(FaultKind.BUSY, verb="ensure_ended", reservation_id=before.reservations[0].id, count=None)
    world.cloud.inject(stuck)
    world.pass_time(HOUR + timedelta(minutes=1))
    assert world.leases.get(OWNER, after.id).status is LeaseStatus.ACTIVE
    assert world.units(plan) == [("sim-host-003", 1)]
    assert sorted(world.units(after)) == [("sim-host-002", 2), ("sim-host-003", 1)]
