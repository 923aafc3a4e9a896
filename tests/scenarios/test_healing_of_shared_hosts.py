"""Instances, flavors and addresses, waiting and running, when hosts fail, inventories change and others interfere."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import ReservationRequest
from tests.support import ledger
from tests.support.agreement import disagreements
from tests.support.engines import HOUR, MINUTE, SECOND, another, lease_of
from tests.support.simulated import HostHealth
from tests.support.world import (
    ADMIN,
    OWNER,
    World,
    address_reservation,
    instance_reservation,
    open_world,
    url_in,
)

ADDRESS = "virtual:floatingip"
#: The size of an instance. The two smallest hosts have room for two instances each, the others for four.
VCPUS = 16
#: How long a host must be down before the allocations of running leases are replaced.
PATIENCE = 6 * MINUTE


def instances(amount: int, affinity: bool | None = None, **more: object) -> ReservationRequest:
    return instance_reservation(amount, affinity=affinity, **{"vcpus": VCPUS, **more})


def flavors(amount: int, flavor_id: str = "5") -> ReservationRequest:
    return ReservationRequest("flavor:instance", {"amount": amount, "flavor_id": flavor_id, "affinity": None})


def register(world: World, *addresses: str) -> None:
    for address in addresses:
        world.resources.register(ADMIN, ADDRESS, f"{world.cloud.world.addresses.public}/{address}", {})


def book(world: World, *reservations: ReservationRequest, start: float = 0, hours: float = 5) -> Lease:
    lease = world.reserve(*reservations, start=start, hours=hours)
    world.engine.settle()
    return lease_of(world, lease.id)


def check(world: World, *, refresh: bool = False) -> None:
    """Do the periodic checks of every manager; with ``refresh`` also read the inventories again."""
    for service in (world.service, another(world)):
        service.health_check.run()
        if refresh:
            service.refresh.run()
        service.reconciler.run()
    world.engine.settle()


def fail(world: World, *hosts: str, health: HostHealth = HostHealth.DOWN) -> None:
    for host in hosts:
        world.cloud.world.mark_host(host, health)
    check(world)


def where(world: World, lease: Lease) -> dict[str, int]:
    """Return the units of the lease by the name of the host or address."""
    with world.db.read() as tx:
        allocations, _ = tx.allocations.with_versions([reservation.id for reservation in lease.reservations])
        resources = tx.resources.by_ids({allocation.resource_id for allocation in allocations})
    units = Counter[str]()
    for allocation in allocations:
        units[resources[allocation.resource_id].name] += allocation.units
    return dict(units)


def flags(world: World, lease: Lease) -> tuple[bool, bool, bool]:
    """Return whether the lease is degraded, lacks resources, and has changed resources."""
    found = lease_of(world, lease.id)
    return (
        found.degraded,
        any(reservation.missing_resources for reservation in found.reservations),
        any(reservation.resources_changed for reservation in found.reservations),
    )


WELL = (False, False, False)
CHANGED = (False, False, True)
LACKING = (True, True, False)


def assert_sound(world: World, url: str) -> None:
    assert ledger.faults(url) == []
    assert disagreements(url, world.cloud) == []


class TestHostsFail:
    @pytest.mark.slow
    def test_waiting_parts_move_without_a_notice(self, database_url: str):
        with open_world(database_url, hosts=4) as world:
            plans = [book(world, instances(1), instances(2, False), flavors(1, "4"), start=1) for _ in range(2)]
            versions = [lease_of(world, plan.id).updated_at for plan in plans]
            failed = sorted(where(world, plans[0]))[:2]
            fail(world, *failed)
            for plan, updated_at in zip(plans, versions, strict=True):
                assert not where(world, plan).keys() & set(failed)
                assert sum(where(world, plan).values()) == 4
                assert flags(world, plan) == WELL
                assert lease_of(world, plan.id).updated_at == updated_at
            assert_sound(world, database_url)
            world.pass_time(HOUR)
            assert {lease_of(world, plan.id).status for plan in plans} == {LeaseStatus.ACTIVE}
            assert_sound(world, database_url)

    @pytest.mark.parametrize(("affinity", "shape"), [(None, [4]), (True, [4]), (False, [1, 1, 1])])
    def test_moving_parts_keep_their_affinity_rule(
        self, one_database_url: str, affinity: bool | None, shape: list[int]
    ):
        with open_world(one_database_url, hosts=4) as world:
            plan = book(world, instances(sum(shape), affinity), start=1)
            for _ in range(2):
                [failed, *_] = before = sorted(where(world, plan))
                fail(world, failed)
                if affinity is False and len(before) > 2 and flags(world, plan) == LACKING:
                    break  # two of the four hosts are left
                assert failed not in where(world, plan)
                assert sum(where(world, plan).values()) == sum(shape)
                assert affinity is None or sorted(where(world, plan).values()) == shape
                fail(world, failed, health=HostHealth.UP)
            assert_sound(world, one_database_url)

    def test_other_plans_move_for_a_failed_instance_that_must_be_apart(self, one_database_url: str):
        """Two of three hosts have half the room. The failed instance can only go to the third, which others fill."""
        with open_world(one_database_url, hosts=3) as world:
            small = world.book(2, start=1, hypervisor_properties='["==", "$vcpus", "32"]')
            others = book(world, instances(4), start=1, hours=1)
            world.leases.delete(OWNER, small.id)
            plan = book(world, instances(2, False), start=1, hours=1)
            assert where(world, others) == {"sim-host-003": 4}
            fail(world, "sim-host-001")
            assert flags(world, plan) == WELL
            assert where(world, plan) == {"sim-host-002": 1, "sim-host-003": 1}
            assert where(world, others) == {"sim-host-002": 1, "sim-host-003": 3}
            assert_sound(world, one_database_url)

    @pytest.mark.slow
    def test_plan_without_room_is_degraded_until_there_is_room(self, one_database_url: str):
        with open_world(one_database_url, hosts=2) as world:
            plan, other = book(world, instances(3), start=1), book(world, instances(1), start=1)
            [host] = {name for name, units in where(world, plan).items() if units == max(where(world, plan).values())}
            fail(world, host)
            assert flags(world, plan) == LACKING
            assert host in str(lease_of(world, plan.id).status_detail)
            world.leases.delete(OWNER, other.id)
            fail(world, host, health=HostHealth.UP)
            assert flags(world, plan) == WELL
            assert lease_of(world, plan.id).status_reason is None
            assert_sound(world, one_database_url)

    def test_running_parts_are_reported_at_once_and_replaced_later(self, database_url: str):
        with open_world(database_url, hosts=4) as world:
            lease, near = book(world, instances(2)), book(world, instances(1), start=1, hours=1)
            server = world.boot(lease)
            [host] = where(world, lease)
            fail(world, host)
            assert flags(world, lease) == LACKING
            assert host not in where(world, near)
            assert flags(world, near) == WELL
            assert list(where(world, lease)) == [host]
            assert server in {known.id for known in world.cloud.world.servers()}
            world.clock.advance(PATIENCE)
            check(world)
            assert host not in where(world, lease)
            assert sum(where(world, lease).values()) == 2
            assert flags(world, lease) == CHANGED
            assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
            assert_sound(world, database_url)
            world.boot(lease)
            world.boot(lease)
            world.pass_time(6 * HOUR)
            assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
            assert world.cloud.world.servers() == []
            assert_sound(world, database_url)

    def test_instances_that_stay_together_are_replaced_by_a_single_host(self, one_database_url: str):
        """This includes instances that were added to the running lease, which have their own allocation."""
        with open_world(one_database_url, hosts=4) as world:
            lease = book(world, instances(1, True))
            world.change(lease, amount=2)
            world.engine.settle()
            [host] = where(world, lease)
            fail(world, host)
            world.clock.advance(PATIENCE)
            check(world)
            [(other, units)] = where(world, lease).items()
            assert (other != host, units) == (True, 2)
            assert flags(world, lease) == CHANGED
            assert_sound(world, one_database_url)

    @pytest.mark.slow
    def test_a_host_never_replaces_two_instances_that_must_be_apart(self, one_database_url: str):
        with open_world(one_database_url, hosts=4) as world:
            lease = book(world, instances(3, False))
            [spare] = {host.name for host in world.cloud.world.hosts()} - where(world, lease).keys()
            first, second, _ = sorted(where(world, lease))
            fail(world, first, second)
            world.clock.advance(PATIENCE)
            check(world)
            check(world)
            assert sorted(where(world, lease).values()) == [1, 1, 1]
            assert spare in where(world, lease)
            assert flags(world, lease) == (True, True, True)  # there is room for only one of the two
            fail(world, first, second, health=HostHealth.UP)
            assert flags(world, lease) == CHANGED
            assert_sound(world, one_database_url)

    def test_disabled_hosts_keep_running_leases(self, one_database_url: str):
        """Servers still run on these hosts."""
        with open_world(one_database_url, hosts=4) as world:
            lease = book(world, instances(2))
            server = world.boot(lease)
            before = where(world, lease)
            fail(world, *before, health=HostHealth.DISABLED)
            world.clock.advance(PATIENCE)
            check(world)
            assert where(world, lease) == before
            assert flags(world, lease) == WELL
            assert server in {known.id for known in world.cloud.world.servers()}
            assert_sound(world, one_database_url)

    def test_each_reservation_of_a_lease_has_its_own_flag(self, one_database_url: str):
        with open_world(one_database_url, hosts=4) as world:
            register(world, "203.0.113.10")
            lease = book(world, instances(1), address_reservation())
            [host] = {name for name in where(world, lease) if name.startswith("sim-")}
            fail(world, host)
            missing = [reservation.missing_resources for reservation in lease_of(world, lease.id).reservations]
            assert missing == [True, False]
            fail(world, host, health=HostHealth.UP)
            assert flags(world, lease) == WELL
            assert_sound(world, one_database_url)


class TestInventoriesChange:
    def test_smaller_allocation_ratio(self, one_database_url: str):
        """Plans move to hosts with room; running leases are degraded, and keep their allocations."""
        with open_world(one_database_url, hosts=4) as world:
            running, plan = book(world, instances(2)), book(world, instances(2), start=6)
            [host] = where(world, running)
            assert list(where(world, plan)) == [host]
            world.cloud.world.change_host(host, inventory={"VCPU": {"allocation_ratio": 0.5}})
            check(world, refresh=True)
            assert where(world, running) == {host: 2}
            assert flags(world, running) == LACKING
            assert lease_of(world, running.id).status_detail == f"{host} no longer has room for what is reserved there"
            assert where(world, plan).get(host, 0) <= 1
            assert flags(world, plan) == WELL
            with pytest.raises(NotEnoughResources):
                book(world, instances(12))
            world.cloud.world.change_host(host, inventory={})
            check(world, refresh=True)
            assert flags(world, running) == WELL
            assert_sound(world, one_database_url)

    def test_smaller_total_without_room_elsewhere(self, one_database_url: str):
        with open_world(one_database_url, hosts=1) as world:
            plan = book(world, instances(2), start=1)
            world.cloud.world.change_host("1", facts={"vcpus": 16})
            check(world, refresh=True)
            assert flags(world, plan) == LACKING
            world.cloud.world.change_host("1", facts={"vcpus": 32})
            check(world, refresh=True)
            assert flags(world, plan) == WELL
            world.pass_time(HOUR)
            assert lease_of(world, plan.id).status is LeaseStatus.ACTIVE
            assert_sound(world, one_database_url)

    def test_larger_allocation_ratio_gives_room_at_once(self, one_database_url: str):
        with open_world(one_database_url, hosts=1) as world:
            with pytest.raises(NotEnoughResources):
                book(world, instances(3))
            world.cloud.world.change_host("1", inventory={"VCPU": {"allocation_ratio": 4.0}})
            check(world, refresh=True)
            lease = book(world, instances(8))
            for _ in range(8):
                world.boot(lease)
            assert_sound(world, one_database_url)

    def test_removed_trait_that_a_flavor_needs(self, one_database_url: str):
        """Two of eight hosts have the trait."""
        with open_world(one_database_url, hosts=8) as world:
            running, plan = book(world, flavors(1)), book(world, flavors(1), start=6)
            [host] = where(world, running)
            world.cloud.world.change_host(host, traits=["COMPUTE_NODE"])
            check(world, refresh=True)
            [other] = where(world, plan)
            assert where(world, running) == {host: 1}
            assert flags(world, running) == LACKING
            assert lease_of(world, running.id).status_detail == f"{host} no longer meets what was requested"
            assert (flags(world, plan), other != host) == (WELL, True)
            world.cloud.world.change_host(other, traits=["COMPUTE_NODE"])
            check(world, refresh=True)
            assert flags(world, plan) == LACKING
            for name in (host, other):
                world.cloud.world.change_host(name, traits=["CUSTOM_GPU_A100"])
            check(world, refresh=True)
            assert (flags(world, running), flags(world, plan)) == (WELL, WELL)
            assert_sound(world, one_database_url)

    def test_fewer_devices_than_are_booked(self, one_database_url: str):
        with open_world(one_database_url, hosts=4) as world:
            lease = book(world, flavors(3), start=1)
            world.cloud.world.change_host("4", inventory={"CUSTOM_GPU": {"total": 2}})
            check(world, refresh=True)
            assert flags(world, lease) == LACKING
            world.cloud.world.change_host("4", inventory={"CUSTOM_GPU": {"total": 3}})
            check(world, refresh=True)
            assert flags(world, lease) == WELL
            assert_sound(world, one_database_url)


class TestOthersInterfere:
    def test_effects_of_instances_in_the_cloud_are_reconciled(self, one_database_url: str):
        with open_world(one_database_url, hosts=4) as world:
            lease = book(world, instances(2, False))
            server, reservation_id = world.boot(lease), lease.reservations[0].id
            parts = world.cloud.world.instances
            parts.delete_aggregate(reservation_id)
            check(world)
            assert_sound(world, one_database_url)
            [first, _] = sorted(where(world, lease))
            parts.set_units(reservation_id, first, None)
            parts.take_access(reservation_id, OWNER.project_id)
            check(world)
            assert_sound(world, one_database_url)
            parts.delete_flavor(reservation_id)
            for group in parts.server_groups():
                parts.delete_group(group)
            check(world)
            assert_sound(world, one_database_url)
            assert server in {known.id for known in world.cloud.world.servers()}
            assert flags(world, lease) == WELL
            effects = world.cloud.world.journal()
            check(world)
            assert world.cloud.world.journal() == effects

    def test_address_taken_before_the_start_is_replaced(self, one_database_url: str):
        with open_world(one_database_url, hosts=1) as world:
            register(world, "203.0.113.10", "203.0.113.11")
            lease = book(world, address_reservation(), start=1)
            [taken] = where(world, lease)
            world.cloud.world.addresses.take(taken, "thief-project")
            world.pass_time(HOUR)
            assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
            [other] = where(world, lease)
            assert other != taken
            found = world.cloud.world.addresses.floating_ips()
            assert (found[other].project_id, found[taken].project_id) == (OWNER.project_id, "thief-project")
            assert ledger.faults(one_database_url) == []

    @pytest.mark.slow
    def test_start_without_a_free_address_fails_with_a_reason(self, one_database_url: str):
        with open_world(one_database_url, hosts=2) as world:
            register(world, "203.0.113.10")
            lease = book(world, instances(1, True), address_reservation(), start=1)
            world.cloud.world.addresses.take("203.0.113.10", "thief-project")
            world.pass_time(2 * HOUR + MINUTE, leap=20 * SECOND)
            found = lease_of(world, lease.id)
            assert found.status is LeaseStatus.ERROR
            assert "203.0.113.10 is a floating IP of project thief-project" in str(found.status_detail)
            world.cloud.world.addresses.release("203.0.113.10")
            assert_sound(world, one_database_url)  # the instances have no effects either

    def test_deleted_address_is_created_again(self, one_database_url: str):
        with open_world(one_database_url, hosts=1) as world:
            register(world, "203.0.113.10")
            lease = book(world, address_reservation())
            world.cloud.world.addresses.release("203.0.113.10")
            check(world)
            world.pass_time(MINUTE)
            assert_sound(world, one_database_url)
            assert flags(world, lease) == WELL

    def test_address_taken_from_a_running_lease_degrades_it_until_released(self, one_database_url: str):
        with open_world(one_database_url, hosts=1) as world:
            register(world, "203.0.113.10")
            lease = book(world, address_reservation())
            steal(world, "203.0.113.10")
            check(world)
            assert flags(world, lease) == LACKING
            assert "203.0.113.10" in str(lease_of(world, lease.id).status_reason)
            with pytest.raises(NotEnoughResources):
                book(world, address_reservation(), start=6)
            world.cloud.world.addresses.release("203.0.113.10")
            check(world)
            world.pass_time(MINUTE)
            assert flags(world, lease) == WELL
            assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
            assert_sound(world, one_database_url)

    def test_address_taken_for_long_is_replaced(self, database_url: str):
        with open_world(database_url, hosts=1) as world:
            register(world, "203.0.113.10", "203.0.113.11")
            lease = book(world, address_reservation())
            [taken] = where(world, lease)
            steal(world, taken)
            check(world)
            assert flags(world, lease) == LACKING
            world.clock.advance(PATIENCE)
            check(world)
            [other] = where(world, lease)
            assert (other != taken, flags(world, lease)) == (True, CHANGED)
            found = world.cloud.world.addresses.floating_ips()
            assert (found[other].project_id, found[taken].project_id) == (OWNER.project_id, "thief-project")
            world.cloud.world.addresses.release(taken)
            check(world)
            assert_sound(world, database_url)
            book(world, address_reservation())


def steal(world: World, address: str) -> None:
    """Let another project allocate the address, after its owner has released it."""
    world.cloud.world.addresses.release(address)
    world.cloud.world.addresses.take(address, "thief-project")


def test_instances_that_stay_together_never_move_in_part(tmp_path: Path):
    """The running lease has grown, so it has two allocations. A host has room for one of them, once a plan moves."""
    with open_world(tmp_path, hosts=3) as world:
        world.resize(4, 4, 2)
        lease = world.reserve_on(1, instances(2, vcpus=1, affinity=True), hours=5)
        world.engine.settle()
        world.change(lease, amount=4)
        world.engine.settle()
        world.reserve_on(2, instances(1, vcpus=2), hours=5)
        world.engine.settle()  # a running lease does not move
        plan = world.reserve_on(2, instances(1, vcpus=1), start=1)
        fail(world, "sim-host-001")
        world.pass_time(PATIENCE)
        check(world)
        assert where(world, lease) == {"sim-host-001": 4}  # without room for all four, none moves
        assert flags(world, lease)[0]
        assert where(world, plan) == {"sim-host-002": 1}
        assert ledger.faults(url_in(tmp_path)) == []


def test_instances_that_stay_together_move_to_a_host_that_a_plan_leaves(tmp_path: Path):
    with open_world(tmp_path, hosts=3) as world:
        world.resize(4, 4, 1)
        lease = world.reserve_on(1, instances(2, vcpus=1, affinity=True), hours=5)
        world.engine.settle()
        world.change(lease, amount=4)
        world.engine.settle()
        plan = world.reserve_on(2, instances(1, vcpus=1), start=1)
        fail(world, "sim-host-001")
        world.pass_time(PATIENCE)
        check(world)
        assert where(world, lease) == {"sim-host-002": 4}
        assert where(world, plan) == {"sim-host-003": 1}
        assert ledger.faults(url_in(tmp_path)) == []
