"""Instances and addresses through the services: how many can be booked, and how leases change."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.errors import InvalidParameter, InvalidState, NotEnoughResources
from tenure.domain.lease import LeaseStatus
from tenure.domain.request import LeaseChange, ReservationRequest
from tests.support.world import OWNER, World, instance_reservation, open_world, reservation

HOUR = timedelta(hours=1)
INSTANCE = "virtual:instance"
#: The VCPUs of each host in the simulated cloud, and of an instance by default.
VCPUS, SIZE = 64, 16
#: The number of such instances on all hosts.
HOSTS = 3
ROOM = HOSTS * VCPUS // SIZE


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=HOSTS) as world:
        world.resize(*[VCPUS] * HOSTS)
        yield world


def instances(amount: int, vcpus: int = SIZE, **more: object) -> ReservationRequest:
    return instance_reservation(amount, vcpus=vcpus, **more)


def hosts(amount: int) -> ReservationRequest:
    return reservation(amount, amount)


def up_to(maximum: int) -> ReservationRequest:
    return reservation(1, maximum)


def test_host_never_gets_more_instances_than_fit(world: World):
    """Blazar counted a reservation once for all its instances: it promised 18 VCPUs of 8."""
    first = world.reserve(instances(ROOM - 1), start=1)
    assert sum(count for _, count in world.units(first)) == ROOM - 1
    with pytest.raises(NotEnoughResources, match=r"2 asked for.* 1 fits there"):
        world.reserve(instances(2), start=1)
    world.reserve(instances(1), start=1)
    with pytest.raises(NotEnoughResources):
        world.reserve(instances(1), start=1)


def test_consecutive_leases_share_a_full_cloud(world: World):
    """Blazar refused a lease that starts when another one ends."""
    for number in range(4):
        world.reserve(instances(ROOM), start=1 + number)


def test_peaks_at_different_times_do_not_add_up(world: World):
    """Each lease fills half of every host, and the short ones do not overlap."""
    half = ROOM // 2
    for number in range(3):
        world.reserve(instances(half), start=1 + number)
    world.reserve(instances(half), start=1, hours=3)
    with pytest.raises(NotEnoughResources):
        world.reserve(instances(1), start=1, hours=3)


def test_conditions_apply_to_hosts_in_use(world: World):
    """Hosts in use are searched first; they must match all the same."""
    world.reserve(instances(1), start=1)
    with pytest.raises(NotEnoughResources, match="0 match the properties"):
        world.reserve(instances(1, resource_properties='["==", "$nothing", "1"]'), start=1)


def test_instances_gather_so_that_whole_hosts_stay_free(world: World):
    for _ in range(3):
        world.reserve(instances(1, vcpus=1), start=1)
    world.reserve(hosts(2), start=1)
    with pytest.raises(NotEnoughResources):
        world.reserve(hosts(1), start=1)
    world.reserve(instances(1, vcpus=VCPUS - 3), start=1)


def test_planned_instances_move_for_a_whole_host(world: World):
    """They are planned on different hosts, and can move to one host before they start."""
    spread = world.reserve(instances(3, vcpus=1, affinity=False), start=1)
    world.leases.delete(OWNER, spread.id)
    leases = [world.reserve(instances(1, vcpus=VCPUS // 2 + 1), start=1) for _ in range(2)]
    leases.append(world.reserve(instances(1, vcpus=1), start=1))
    assert len({world.units(lease)[0][0] for lease in leases[:2]}) == 2
    world.reserve(hosts(1), start=1)
    with pytest.raises(NotEnoughResources):
        world.reserve(hosts(1), start=1)


def test_host_serves_whole_and_part_reservations_in_turn(world: World):
    world.reserve(hosts(3), start=1)
    world.reserve(instances(ROOM), start=2)
    world.reserve(hosts(3), start=3)
    for requested in (hosts(1), instances(1)):
        with pytest.raises(NotEnoughResources):
            world.reserve(requested, start=1.5)


def test_lease_of_several_types_is_booked_whole_or_not_at_all(world: World):
    lease = world.reserve(hosts(1), instances(8), start=1)
    assert len(world.units(lease)) == 3
    world.leases.delete(OWNER, lease.id)
    with pytest.raises(NotEnoughResources) as caught:
        world.reserve(hosts(1), instances(9), start=1)
    assert caught.value.shortfall.reservation == 1
    world.reserve(hosts(3), start=1)


def test_order_of_reservations_does_not_matter(world: World):
    """Small instances gather on one host, although a large one would fit beside each of them elsewhere."""
    small, large = instances(HOSTS, vcpus=SIZE), instances(HOSTS, vcpus=VCPUS - SIZE)
    for reservations in ((small, large), (large, small)):
        lease = world.reserve(*reservations, start=1)
        assert sum(count for _, count in world.units(lease)) == 2 * HOSTS
        world.leases.delete(OWNER, lease.id)
    for reservations in ((up_to(HOSTS), small), (small, up_to(HOSTS))):
        lease = world.reserve(*reservations, start=1)
        assert sum(count for _, count in world.units(lease)) == 2 * HOSTS - 1
        world.leases.delete(OWNER, lease.id)


class TestAffinity:
    def test_anti_affinity_uses_a_host_for_each_instance(self, world: World):
        lease = world.reserve(instances(3, affinity=False), start=1)
        assert [count for _, count in world.units(lease)] == [1, 1, 1]
        with pytest.raises(NotEnoughResources, match=r"4 asked for.* 3 fit there"):
            world.reserve(instances(4, affinity=False), start=1)

    def test_affinity_uses_one_host(self, world: World):
        lease = world.reserve(instances(4, affinity=True), start=1)
        assert [count for _, count in world.units(lease)] == [4]
        world.reserve(instances(3, affinity=True), start=1)
        world.reserve(instances(3, affinity=True), start=1)
        with pytest.raises(NotEnoughResources, match=r"2 asked for.* 1 fits there"):
            world.reserve(instances(2, affinity=True), start=1)
        world.reserve(instances(2), start=1)

    def test_affinity_holds_when_the_amount_grows(self, world: World):
        apart = world.reserve(instances(2, affinity=False), start=1)
        together = world.reserve(instances(2, affinity=True), start=1)
        world.change(apart, amount=3)
        world.change(together, amount=3)
        assert [count for _, count in world.units(apart)] == [1, 1, 1]
        assert [count for _, count in world.units(together)] == [3]


class TestChanges:
    def test_all_parameters_may_change_before_the_start(self, world: World):
        lease = world.reserve(instances(2), start=1)
        world.change(lease, amount=5, vcpus=32, affinity=None)
        assert sum(count for _, count in world.units(lease)) == 5
        world.change(lease, amount=1)
        assert [count for _, count in world.units(lease)] == [1]
        with pytest.raises(NotEnoughResources):
            world.change(lease, amount=7)
        assert world.leases.get(OWNER, lease.id).reservations[0].parameters["amount"] == 1
        assert [count for _, count in world.units(lease)] == [1]

    def test_new_dates_need_room(self, world: World):
        lease = world.reserve(instances(ROOM), start=1)
        world.reserve(instances(1), start=3)
        now = world.clock.now()
        with pytest.raises(NotEnoughResources):
            world.leases.update(OWNER, lease.id, LeaseChange(ends_at=now + 4 * HOUR))
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=now + 3 * HOUR))
        assert world.leases.get(OWNER, lease.id).status is LeaseStatus.PENDING

    def test_refused_change_names_the_field(self, world: World):
        lease = world.reserve(instances(2), start=1)
        with pytest.raises(InvalidParameter) as caught:
            world.change(lease, vcpus=0)
        assert caught.value.field == "reservations[0].vcpus"


def test_zero_instances_are_refused(world: World):
    """Blazar's manager hung in an endless loop."""
    for size in ({"vcpus": 0}, {"vcpus": -1}, {"memory_mb": 0}, {"amount": 0}, {"disk_gb": -1}):
        with pytest.raises((InvalidParameter, ValueError)):
            world.reserve(instances(**{"amount": 1, **size}), start=1)


def test_running_amount_never_decreases(world: World):
    lease = world.reserve(instances(2), start=0, hours=2)
    world.engine.settle()
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.ACTIVE
    with pytest.raises(InvalidState, match="doesn't allow to reduce"):
        world.change(lease, amount=1)
