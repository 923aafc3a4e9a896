"""Instances, flavors and addresses when hosts fail, inventories change and others meddle: while they wait and run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import ReservationRequest
from tenure.drivers.simulated import HostHealth
from tests.support import ledger
from tests.support.agreement import disagreements
from tests.support.engines import HOUR, MINUTE, another, lease_of
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
#: Each of the two smallest hosts has room for two of these, each of the others for four.
VCPUS = 16
#: For longer than this a host has to be away until what runs there is replaced.
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


def look(world: World, *, refresh: bool = False) -> None:
    """What every manager does once a minute, and now and then."""
    for service in (world.service, another(world)):
        service.health_check.run()
        if refresh:
            service.refresh.run()
        service.repair.run()
    world.engine.settle()


def fail(world: World, *hosts: str, health: HostHealth = HostHealth.DOWN) -> None:
    for host in hosts:
        world.cloud.world.mark_host(host, health)
    look(world)


def where(world: World, lease: Lease) -> dict[str, int]:
    """On which hosts, or at which addresses, the lease has how many units, by name."""
    with world.db.read() as tx:
        allocations, _ = tx.allocations.with_versions([one.id for one in lease.reservations])
        names = tx.resources.by_ids({one.resource_id for one in allocations})
    units = Counter[str]()
    for one in allocations:
        units[names[one.resource_id].name] += one.units
    return dict(units)


def flags(world: World, lease: Lease) -> tuple[bool, bool, bool]:
    """Degraded; whether any reservation misses something; whether any has others than it had."""
    found = lease_of(world, lease.id)
    return (
        found.degraded,
        any(one.missing_resources for one in found.reservations),
        any(one.resources_changed for one in found.reservations),
    )


WELL = (False, False, False)
CHANGED = (False, False, True)
LACKING = (True, True, False)


def assert_sound(world: World, url: str) -> None:
    assert ledger.faults(url) == []
    assert disagreements(url, world.cloud) == []


class TestHostsFail:
    @pytest.mark.slow
    def test_before_the_start_parts_move_and_nobody_is_told(self, database_url: str):
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
    def test_the_rule_of_affinity_is_kept_where_parts_move(
        self, one_database_url: str, affinity: bool | None, shape: list[int]
    ):
        with open_world(one_database_url, hosts=4) as world:
            plan = book(world, instances(sum(shape), affinity), start=1)
            for _ in range(2):
                [failed, *_] = before = sorted(where(world, plan))
                fail(world, failed)
                if affinity is False and len(before) > 2 and flags(world, plan) == LACKING:
                    break  # of four hosts two are left
                assert failed not in where(world, plan)
                assert sum(where(world, plan).values()) == sum(shape)
                assert affinity is None or sorted(where(world, plan).values()) == shape
                fail(world, failed, health=HostHealth.UP)
            assert_sound(world, one_database_url)

    def test_others_move_to_the_hosts_of_who_must_be_apart(self, one_database_url: str):
        """Two of three hosts have half the room. What failed can only go to the third, which others fill."""
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
    def test_where_there_is_no_room_it_is_told_until_there_is(self, one_database_url: str):
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

    def test_while_it_runs_it_is_told_at_once_and_replaced_later(self, database_url: str):
        with open_world(database_url, hosts=4) as world:
            lease, near = book(world, instances(2)), book(world, instances(1), start=1, hours=1)
            server = world.boot(lease)
            [host] = where(world, lease)
            fail(world, host)
            assert flags(world, lease) == LACKING
            assert host not in where(world, near)
            assert flags(world, near) == WELL
            assert list(where(world, lease)) == [host]
            assert server in {one.id for one in world.cloud.world.servers()}
            world.clock.advance(PATIENCE)
            look(world)
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

    def test_together_means_that_all_of_it_is_replaced_by_one_host(self, one_database_url: str):
        """Also what was added while it ran, which the ledger keeps as a part of its own."""
        with open_world(one_database_url, hosts=4) as world:
            lease = book(world, instances(1, True))
            world.change(lease, amount=2)
            world.engine.settle()
            [host] = where(world, lease)
            fail(world, host)
            world.clock.advance(PATIENCE)
            look(world)
            [(other, units)] = where(world, lease).items()
            assert (other != host, units) == (True, 2)
            assert flags(world, lease) == CHANGED
            assert_sound(world, one_database_url)

    @pytest.mark.slow
    def test_apart_means_that_no_host_replaces_two(self, one_database_url: str):
        with open_world(one_database_url, hosts=4) as world:
            lease = book(world, instances(3, False))
            [spare] = {host.name for host in world.cloud.world.hosts()} - where(world, lease).keys()
            first, second, _ = sorted(where(world, lease))
            fail(world, first, second)
            world.clock.advance(PATIENCE)
            look(world)
            look(world)
            assert sorted(where(world, lease).values()) == [1, 1, 1]
            assert spare in where(world, lease)
            assert flags(world, lease) == (True, True, True)  # one of the two has nowhere to go
            fail(world, first, second, health=HostHealth.UP)
            assert flags(world, lease) == CHANGED
            assert_sound(world, one_database_url)

    def test_what_is_only_closed_loses_nothing(self, one_database_url: str):
        """Servers run there still."""
        with open_world(one_database_url, hosts=4) as world:
            lease = book(world, instances(2))
            server = world.boot(lease)
            before = where(world, lease)
            fail(world, *before, health=HostHealth.DISABLED)
            world.clock.advance(PATIENCE)
            look(world)
            assert where(world, lease) == before
            assert flags(world, lease) == WELL
            assert server in {one.id for one in world.cloud.world.servers()}
            assert_sound(world, one_database_url)

    def test_of_several_types_each_keeps_its_own_flag(self, one_database_url: str):
        with open_world(one_database_url, hosts=4) as world:
            register(world, "203.0.113.10")
            lease = book(world, instances(1), address_reservation())
            [host] = {name for name in where(world, lease) if name.startswith("sim-")}
            fail(world, host)
            flagged = [one.missing_resources for one in lease_of(world, lease.id).reservations]
            assert flagged == [True, False]
            fail(world, host, health=HostHealth.UP)
            assert flags(world, lease) == WELL
            assert_sound(world, one_database_url)


class TestInventoriesChange:
    def test_a_smaller_ratio(self, one_database_url: str):
        """Plans move to where there is room; what runs is told, and keeps what it has."""
        with open_world(one_database_url, hosts=4) as world:
            running, plan = book(world, instances(2)), book(world, instances(2), start=6)
            [host] = where(world, running)
            assert list(where(world, plan)) == [host]
            world.cloud.world.change_host(host, inventory={"VCPU": {"allocation_ratio": 0.5}})
            look(world, refresh=True)
            assert where(world, running) == {host: 2}
            assert flags(world, running) == LACKING
            assert (
                lease_of(world, running.id).status_detail == f"{host} has no room any more for what was promised there"
            )
            assert where(world, plan).get(host, 0) <= 1
            assert flags(world, plan) == WELL
            with pytest.raises(NotEnoughResources):
                book(world, instances(12))
            world.cloud.world.change_host(host, inventory={})
            look(world, refresh=True)
            assert flags(world, running) == WELL
            assert_sound(world, one_database_url)

    def test_a_smaller_total_and_nowhere_to_go(self, one_database_url: str):
        with open_world(one_database_url, hosts=1) as world:
            plan = book(world, instances(2), start=1)
            world.cloud.world.change_host("1", facts={"vcpus": 16})
            look(world, refresh=True)
            assert flags(world, plan) == LACKING
            world.cloud.world.change_host("1", facts={"vcpus": 32})
            look(world, refresh=True)
            assert flags(world, plan) == WELL
            world.pass_time(HOUR)
            assert lease_of(world, plan.id).status is LeaseStatus.ACTIVE
            assert_sound(world, one_database_url)

    def test_a_larger_ratio_is_room_at_once(self, one_database_url: str):
        with open_world(one_database_url, hosts=1) as world:
            with pytest.raises(NotEnoughResources):
                book(world, instances(3))
            world.cloud.world.change_host("1", inventory={"VCPU": {"allocation_ratio": 4.0}})
            look(world, refresh=True)
            lease = book(world, instances(8))
            for _ in range(8):
                world.boot(lease)
            assert_sound(world, one_database_url)

    def test_a_trait_that_a_flavor_needs_is_gone(self, one_database_url: str):
        """Two of eight hosts have it."""
        with open_world(one_database_url, hosts=8) as world:
            running, plan = book(world, flavors(1)), book(world, flavors(1), start=6)
            [host] = where(world, running)
            world.cloud.world.change_host(host, traits=["COMPUTE_NODE"])
            look(world, refresh=True)
            [other] = where(world, plan)
            assert where(world, running) == {host: 1}
            assert flags(world, running) == LACKING
            assert lease_of(world, running.id).status_detail == f"{host} is not any more what was asked for"
            assert (flags(world, plan), other != host) == (WELL, True)
            world.cloud.world.change_host(other, traits=["COMPUTE_NODE"])
            look(world, refresh=True)
            assert flags(world, plan) == LACKING
            for name in (host, other):
                world.cloud.world.change_host(name, traits=["CUSTOM_GPU_A100"])
            look(world, refresh=True)
            assert (flags(world, running), flags(world, plan)) == (WELL, WELL)
            assert_sound(world, one_database_url)

    def test_fewer_devices_than_are_promised(self, one_database_url: str):
        with open_world(one_database_url, hosts=4) as world:
            lease = book(world, flavors(3), start=1)
            world.cloud.world.change_host("4", inventory={"CUSTOM_GPU": {"total": 2}})
            look(world, refresh=True)
            assert flags(world, lease) == LACKING
            world.cloud.world.change_host("4", inventory={"CUSTOM_GPU": {"total": 3}})
            look(world, refresh=True)
            assert flags(world, lease) == WELL
            assert_sound(world, one_database_url)


class TestOthersMeddle:
    def test_what_instances_have_in_the_cloud_is_mended(self, one_database_url: str):
        with open_world(one_database_url, hosts=4) as world:
            lease = book(world, instances(2, False))
            server, number = world.boot(lease), lease.reservations[0].id
            parts = world.cloud.world.instances
            parts.delete_aggregate(number)
            look(world)
            assert_sound(world, one_database_url)
            [first, _] = sorted(where(world, lease))
            parts.set_units(number, first, None)
            parts.take_access(number, OWNER.project_id)
            look(world)
            assert_sound(world, one_database_url)
            parts.delete_flavor(number)
            for group in parts.server_groups():
                parts.delete_group(group)
            look(world)
            assert_sound(world, one_database_url)
            assert server in {one.id for one in world.cloud.world.servers()}
            assert flags(world, lease) == WELL
            effects = world.cloud.world.journal()
            look(world)
            assert world.cloud.world.journal() == effects

    def test_an_address_taken_before_the_start_is_replaced_by_another(self, one_database_url: str):
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

    def test_where_no_other_address_is_free_the_start_fails_and_says_why(self, one_database_url: str):
        with open_world(one_database_url, hosts=2) as world:
            register(world, "203.0.113.10")
            lease = book(world, instances(1, True), address_reservation(), start=1)
            world.cloud.world.addresses.take("203.0.113.10", "thief-project")
            world.pass_time(2 * HOUR + MINUTE)
            found = lease_of(world, lease.id)
            assert found.status is LeaseStatus.ERROR
            assert "project thief-project has 203.0.113.10" in str(found.status_detail)
            world.cloud.world.addresses.release("203.0.113.10")
            assert_sound(world, one_database_url)  # also nothing of the instances

    def test_an_address_that_is_deleted_is_made_again(self, one_database_url: str):
        with open_world(one_database_url, hosts=1) as world:
            register(world, "203.0.113.10")
            lease = book(world, address_reservation())
            world.cloud.world.addresses.release("203.0.113.10")
            look(world)
            world.pass_time(MINUTE)
            assert_sound(world, one_database_url)
            assert flags(world, lease) == WELL

    def test_an_address_taken_while_it_is_reserved_is_told_and_comes_back(self, one_database_url: str):
        with open_world(one_database_url, hosts=1) as world:
            register(world, "203.0.113.10")
            lease = book(world, address_reservation())
            steal(world, "203.0.113.10")
            look(world)
            assert flags(world, lease) == LACKING
            assert "203.0.113.10" in str(lease_of(world, lease.id).status_reason)
            with pytest.raises(NotEnoughResources):
                book(world, address_reservation(), start=6)
            world.cloud.world.addresses.release("203.0.113.10")
            look(world)
            world.pass_time(MINUTE)
            assert flags(world, lease) == WELL
            assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
            assert_sound(world, one_database_url)

    def test_an_address_taken_for_long_is_replaced(self, database_url: str):
        with open_world(database_url, hosts=1) as world:
            register(world, "203.0.113.10", "203.0.113.11")
            lease = book(world, address_reservation())
            [taken] = where(world, lease)
            steal(world, taken)
            look(world)
            assert flags(world, lease) == LACKING
            world.clock.advance(PATIENCE)
            look(world)
            [other] = where(world, lease)
            assert (other != taken, flags(world, lease)) == (True, CHANGED)
            found = world.cloud.world.addresses.floating_ips()
            assert (found[other].project_id, found[taken].project_id) == (OWNER.project_id, "thief-project")
            world.cloud.world.addresses.release(taken)
            look(world)
            assert_sound(world, database_url)
            book(world, address_reservation())


def steal(world: World, address: str) -> None:
    """Another project gets itself an address that its owner has given up."""
    world.cloud.world.addresses.release(address)
    world.cloud.world.addresses.take(address, "thief-project")


def test_what_is_to_stay_together_is_replaced_together_where_plans_have_to_move(tmp_path: Path):
    """It has grown while it ran, so it lies in two parts; there is room for all of it once a plan has moved."""
    with open_world(tmp_path, hosts=3) as world:
        world.resize(4, 4, 2)
        lease = world.reserve_on(1, instances(2, vcpus=1, affinity=True), hours=5)
        world.engine.settle()
        world.change(lease, amount=4)
        world.engine.settle()
        world.reserve_on(2, instances(1, vcpus=2), hours=5)
        world.engine.settle()  # what runs does not move
        plan = world.reserve_on(2, instances(1, vcpus=1), start=1)
        fail(world, "sim-host-001")
        world.pass_time(PATIENCE)
        look(world)
        assert where(world, lease) == {"sim-host-001": 4}  # there is no room for all four: none has moved
        assert flags(world, lease)[0]
        assert where(world, plan) == {"sim-host-002": 1}
        assert ledger.faults(url_in(tmp_path)) == []


def test_what_is_to_stay_together_goes_where_a_plan_makes_room_for_all_of_it(tmp_path: Path):
    with open_world(tmp_path, hosts=3) as world:
        world.resize(4, 4, 1)
        lease = world.reserve_on(1, instances(2, vcpus=1, affinity=True), hours=5)
        world.engine.settle()
        world.change(lease, amount=4)
        world.engine.settle()
        plan = world.reserve_on(2, instances(1, vcpus=1), start=1)
        fail(world, "sim-host-001")
        world.pass_time(PATIENCE)
        look(world)
        assert where(world, lease) == {"sim-host-002": 4}
        assert where(world, plan) == {"sim-host-003": 1}
        assert ledger.faults(url_in(tmp_path)) == []
