"""What the driver of OpenStack clouds does for reservations of instances."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.drivers.contract import CloudBusy, CloudNotFound, CloudRefused, Command, ResourceOccupied, ResourceRef
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.http import connect
from tenure.testing.rig import command_of
from tests.drivers.contracts.instances import INSTANCE, InstanceContract, InstanceRig
from tests.drivers.instance_rigs import FakeInstanceRig
from tests.drivers.rigs import HOST, options_of, registered
from tests.support.openstack import NEIGHBOUR, OWNER, POOL, FakeOpenStack, Flavor, Seen, ServerGroup, inventory


class OpenStackInstances(InstanceContract):
    nova: str

    @pytest.fixture
    def rig(self, transport: str) -> Iterator[InstanceRig]:
        with FakeOpenStack(nova=self.nova) as cloud:
            rig = FakeInstanceRig(cloud, transport)
            yield rig
            rig.close()


class TestInstances(OpenStackInstances):
    nova = "2.103"


@pytest.mark.slow
class TestInstancesOfOlderNova(OpenStackInstances):
    nova = "2.96"


# Beyond the contract of drivers


def command_for(*hosts: ResourceRef, units: int = 1, reservation_id: str = "r-1", **more: Any) -> Command:
    """A command of so many instances on each of these hosts; ``more`` are parameters, such as ``affinity``."""
    plain = command_of(*hosts, reservation_id=reservation_id, resource_type=INSTANCE)
    parameters = {"vcpus": 2, "memory_mb": 1024, "disk_gb": 10, "amount": units * len(hosts), "affinity": None, **more}
    return replace(plain, parameters=parameters, units={host.external_id: units for host in hosts})


def trusted(cloud: FakeOpenStack, driver: OpenStackCloud, command: Command) -> Command:
    token = cloud.issue("an-owner", OWNER, ("member",))
    return replace(command, trust_id=driver.delegate(Actor("an-owner", OWNER, frozenset({"member"}), token=token)))


def ended(driver: OpenStackCloud, command: Command) -> bool:
    return any(driver.ensure_ended(command).done for _ in range(10))


def bodies(cloud: FakeOpenStack, method: str, pattern: str) -> list[Any]:
    return [seen.body for seen in cloud.seen if seen.method == method and re.fullmatch(pattern, seen.path)]


class TestRequests:
    def test_equal_those_of_blazar(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        command = trusted(cloud, driver, command_for(host, units=3, affinity=False))
        group = driver.ensure_prepared(command).effects["server_group_id"]
        driver.ensure_started(command)
        assert bodies(cloud, "POST", "/v2.1/os-server-groups") == [
            {"server_group": {"name": "reservation:r-1", "policy": "anti-affinity"}}
        ]
        assert bodies(cloud, "POST", "/v2.1/flavors") == [
            {
                "flavor": {
                    "id": "r-1",
                    "name": "reservation:r-1",
                    "vcpus": 2,
                    "ram": 1024,
                    "disk": 10,
                    "OS-FLV-EXT-DATA:ephemeral": 0,
                    "swap": 0,
                    "os-flavor-access:is_public": False,
                }
            }
        ]
        assert bodies(cloud, "POST", "/v2.1/flavors/r-1/os-extra_specs") == [
            {
                "extra_specs": {
                    "aggregate_instance_extra_specs:reservation": "r-1",
                    "resources:CUSTOM_RESERVATION_R_1": "1",
                    "affinity_id": group,
                }
            }
        ]
        assert bodies(cloud, "POST", "/v2.1/flavors/r-1/action") == [{"addTenantAccess": {"tenant": OWNER}}]
        assert {"aggregate": {"name": "r-1", "availability_zone": None}} in bodies(cloud, "POST", "/v2.1/os-aggregates")
        metadata = {
            "reservation": "r-1",
            "filter_tenant_id": OWNER,
            "blazar:owner": OWNER,
            "affinity_id": group,
        }
        assert {"set_metadata": {"metadata": metadata}} in bodies(cloud, "POST", "/v2.1/os-aggregates/[0-9]+/action")
        assert bodies(cloud, "PUT", "/resource_providers/.*/inventories") == [
            {
                "resource_provider_generation": 0,
                "inventories": {
                    "CUSTOM_RESERVATION_R_1": {
                        "total": 3,
                        "reserved": 0,
                        "min_unit": 1,
                        "max_unit": 1,
                        "step_size": 1,
                        "allocation_ratio": 1.0,
                    }
                },
            }
        ]

    def test_opens_last_and_closes_first(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        cloud.seen.clear()
        driver.ensure_started(command_for(host))
        *_, last = (seen for seen in cloud.seen if seen.method != "GET")
        assert last.body == {"addTenantAccess": {"tenant": OWNER}}
        cloud.boot_with("compute-1", OWNER, "r-1")
        cloud.seen.clear()
        driver.ensure_ended(command_for(host))
        first, *_ = (seen for seen in cloud.seen if seen.method != "GET")
        assert first.body == {"removeTenantAccess": {"tenant": OWNER}}

    def test_no_host_is_ever_out_of_the_pool(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        hosts = registered(driver, cloud, 3)
        seen_out: list[str] = []

        def look(seen: Seen) -> None:
            with cloud.objects.lock:
                pool = cloud.aggregate(POOL)
                assert pool is not None
                seen_out.extend(seen.path for host in ("compute-1", "compute-2", "compute-3") if host not in pool.hosts)

        cloud.observe = look
        driver.ensure_started(command_for(*hosts[:2]))
        driver.ensure_started(replace(command_for(*hosts[1:]), returning=(hosts[0],)))
        assert ended(driver, command_for(*hosts))
        assert seen_out == []

    def test_a_flavor_is_copied_with_all_its_values(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        source = {
            "id": "f",
            "name": "m1",
            "vcpus": 2,
            "ram": 512,
            "disk": 0,
            "OS-FLV-EXT-DATA:ephemeral": 5,
            "swap": 256,
            "extra_specs": {"resources1:VGPU": "1", "trait1:CUSTOM_A": "required", "group_policy": "none"},
        }
        command = replace(
            command_for(host), resource_type="flavor:instance", parameters={"resource_properties": json.dumps(source)}
        )
        driver.ensure_started(command)
        made = cloud.flavors["r-1"]
        assert (made.vcpus, made.ram, made.disk, made.ephemeral, made.swap) == (2, 512, 0, 5, 256)
        assert made.extra_specs.items() >= {"resources1:VGPU": "1", "trait1:CUSTOM_A": "required"}.items()
        assert driver.drift(HOST, [command], []) == []

    @pytest.mark.parametrize(
        "parameters",
        [{}, {"vcpus": "many", "memory_mb": 1, "disk_gb": 1}, {"vcpus": None, "memory_mb": 1, "disk_gb": 1}],
    )
    def test_nothing_is_made_of_parameters_without_sense(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, parameters: dict[str, Any]
    ):
        (host,) = registered(driver, cloud, 1)
        cloud.seen.clear()
        with pytest.raises(CloudRefused, match="how large"):
            driver.ensure_started(replace(command_for(host), parameters=parameters))
        assert {seen.method for seen in cloud.seen} == {"GET"}


class TestUnits:
    def test_concurrent_changes_of_inventories_are_kept(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        provider = cloud.provider("blazar_node-1.lab")
        meddled = 0

        def meddle(seen: Seen) -> None:
            nonlocal meddled
            if seen.method == "PUT" and seen.path.endswith("/inventories") and meddled < 3:
                meddled += 1
                cloud.classes[f"CUSTOM_{meddled}"] = True
                provider.inventories[f"CUSTOM_{meddled}"] = inventory(meddled)
                provider.generation += 1

        cloud.observe = meddle
        driver.ensure_started(command_for(host, units=2))
        assert set(provider.inventories) == {"CUSTOM_1", "CUSTOM_2", "CUSTOM_3", "CUSTOM_RESERVATION_R_1"}
        assert cloud.units("r-1") == {"node-1.lab": 2}

    @pytest.mark.parametrize("counted", [True, False], ids=["before Placement compares", "after it has compared"])
    def test_the_end_of_another_reservation_during_the_write_is_no_failure(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, counted: bool
    ):
        """Placement compares generations first and looks up classes then: the class may be gone at either moment."""
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host, reservation_id="r-2"))
        provider = cloud.provider("blazar_node-1.lab")

        def meddle(seen: Seen) -> None:
            if seen.method == "PUT" and seen.path.endswith("/inventories"):
                cloud.observe = lambda _seen: None
                del provider.inventories["CUSTOM_RESERVATION_R_2"], cloud.classes["CUSTOM_RESERVATION_R_2"]
                provider.generation += counted

        cloud.observe = meddle
        assert driver.ensure_started(command_for(host, units=2)).done
        assert set(provider.inventories) == {"CUSTOM_RESERVATION_R_1"}
        assert cloud.units("r-1") == {"node-1.lab": 2}

    def test_an_inventory_that_placement_never_takes_fails(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        provider = cloud.provider("blazar_node-1.lab")
        provider.inventories["CUSTOM_UNKNOWN"] = inventory(1)
        with pytest.raises(CloudRefused, match="No such resource class CUSTOM_UNKNOWN"):
            driver.ensure_started(command_for(host))
        assert set(provider.inventories) == {"CUSTOM_UNKNOWN"}

    def test_endless_conflicts_with_placement_are_retried_later(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)

        def meddle(seen: Seen) -> None:
            if seen.method == "PUT":
                cloud.provider("blazar_node-1.lab").generation += 1

        cloud.observe = meddle
        with pytest.raises(CloudBusy, match="Placement"):
            driver.ensure_started(command_for(host))
        assert "r-1" not in cloud.flavors
        cloud.observe = lambda _seen: None
        assert driver.ensure_started(command_for(host)).done

    def test_many_reservations_start_on_a_host_at_once(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        commands = [command_for(host, units=number + 1, reservation_id=f"r-{number}") for number in range(4)]

        def start(command: Command) -> None:
            for _ in range(10):
                with suppress(CloudBusy):
                    driver.ensure_started(command)
                    return
            raise AssertionError(command.reservation_id)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(start, commands))
        assert [cloud.units(f"r-{number}") for number in range(4)] == [{"node-1.lab": count} for count in range(1, 5)]
        assert driver.drift(HOST, commands, []) == []
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(lambda command: ended(driver, command), commands))
        assert cloud.provider("blazar_node-1.lab").inventories == {}
        assert driver.held(HOST) == []

    def test_units_of_a_host_outside_the_aggregate_are_removed(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        first, second = registered(driver, cloud, 2)
        command = command_for(first, second)
        driver.ensure_started(command)
        group = cloud.aggregate("r-1")
        assert group is not None
        group.hosts.remove("compute-1")
        assert ended(driver, replace(command, resources=(), units={}, project_id=""))
        assert (cloud.units("r-1"), set(cloud.classes)) == ({}, set())

    def test_a_deleted_provider_is_made_again(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        hosts = registered(driver, cloud, 2)
        del cloud.providers[cloud.provider("blazar_node-1.lab").uuid]
        driver.ensure_started(command_for(*hosts))
        assert cloud.units("r-1") == {"node-1.lab": 1, "node-2.lab": 1}

    def test_many_hosts_take_few_calls_to_find(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        for number in range(10):
            cloud.add_host(f"more-{number}.lab")
        hosts = registered(driver, cloud, 16)
        cloud.seen.clear()
        driver.ensure_started(command_for(*hosts))
        assert len(cloud.units("r-1")) == 16
        assert sum(seen.path == "/resource_providers" for seen in cloud.seen) == 2

    def test_an_end_waits_for_allocations_in_placement(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))

        def in_use(seen: Seen) -> tuple[int, Any] | None:
            is_drop = seen.method == "DELETE" and "/inventories/" in seen.path
            return (409, {"errors": [{"detail": "in use"}]}) if is_drop else None

        cloud.instead = in_use
        progress = driver.ensure_ended(command_for(host))
        assert (progress.done, str(progress.reason)) == (
            False,
            "Placement still counts servers of the reservation on node-1.lab.",
        )
        assert driver.held(HOST) == ["r-1"]
        cloud.instead = lambda _seen: None
        assert driver.ensure_ended(command_for(host)).done


class TestFlavors:
    @pytest.mark.parametrize("change", [{"vcpus": 4}, {"ephemeral": 1}, {"is_public": True}, {"name": "other"}])
    def test_a_flavor_changed_in_fixed_fields_is_made_again(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, change: dict[str, Any]
    ):
        (host,) = registered(driver, cloud, 1)
        command = command_for(host, units=2)
        driver.ensure_started(command)
        server = cloud.boot_with("compute-1", OWNER, "r-1")
        for name, value in change.items():
            setattr(cloud.flavors["r-1"], name, value)
        assert [drift.reservation_id for drift in driver.drift(HOST, [command], [])] == ["r-1"] * (
            1 + ("is_public" in change)
        )
        driver.ensure_started(command)
        assert driver.drift(HOST, [command], []) == []
        assert server in cloud.servers
        # Nova does not find it by the flavor any more.
        assert ended(driver, command)
        assert cloud.servers == {}

    def test_a_flavor_that_another_process_makes_is_taken(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)

        def overtake(seen: Seen) -> None:
            if (seen.method, seen.path) == ("POST", "/v2.1/flavors"):
                cloud.add_flavor(Flavor("r-1", "reservation:r-1", 2, 1024, 10, is_public=False))

        cloud.observe = overtake
        assert driver.ensure_started(command_for(host)).done
        assert cloud.boot_with("compute-1", OWNER, "r-1")

    def test_servers_that_are_on_no_host_are_deleted_too(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host, units=2))
        for _ in range(2):
            server = cloud.boot_with("compute-1", OWNER, "r-1")
            assert server is not None
            cloud.servers[server].host = ""  # as shelved ones
        foreign = cloud.force("", OWNER)
        assert ended(driver, command_for(host))
        assert set(cloud.servers) == {foreign}

    def test_servers_on_no_host_are_found_without_the_flavor(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))
        server = cloud.boot_with("compute-1", OWNER, "r-1")
        assert server is not None
        cloud.servers[server].host = ""
        del cloud.flavors["r-1"]
        assert ended(driver, command_for(host))
        assert cloud.servers == {}

    def test_servers_on_no_host_are_found_with_another_flavor(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        """They were booted with one that was made anew since then."""
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))
        server = cloud.boot_with("compute-1", OWNER, "r-1")
        assert server is not None
        cloud.servers[server].host = ""
        cloud.flavors["r-1"].vcpus = 4
        driver.ensure_started(command_for(host))
        foreign = cloud.force("", OWNER)
        assert ended(driver, command_for(host))
        assert set(cloud.servers) == {foreign}

    def test_a_failed_deletion_is_requested_again(self, cloud: FakeOpenStack):
        clock = SimulatedClock(datetime.now(UTC))
        with connect(options_of(cloud), clock=clock) as driver:
            (host,) = registered(driver, cloud, 1)
            driver.ensure_started(command_for(host))
            cloud.boot_with("compute-1", OWNER, "r-1")
            cloud.held = True

            def deletions() -> int:
                return sum("forceDelete" in (seen.body or {}) for seen in cloud.seen)

            for _ in range(3):
                assert not driver.ensure_ended(command_for(host)).done
            assert deletions() == 1
            clock.advance(timedelta(minutes=3))
            driver.ensure_ended(command_for(host))
            assert deletions() == 2

    @pytest.mark.parametrize("status", ["SOFT_DELETED", "ERROR"])
    def test_fewer_units_cost_unusable_servers_first(self, cloud: FakeOpenStack, driver: OpenStackCloud, status: str):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host, units=2))
        oldest, newest = (cloud.boot_with("compute-1", OWNER, "r-1") for _ in range(2))
        assert oldest is not None
        cloud.servers[oldest].status = status
        driver.ensure_started(command_for(host, units=1))
        assert set(cloud.servers) == {newest}

    def test_access_of_other_projects_to_a_flavor_is_removed(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))
        cloud.flavors["r-1"].projects |= {NEIGHBOUR, "a-third"}
        driver.ensure_started(command_for(host))
        assert cloud.flavors["r-1"].projects == {OWNER}


class TestFetching:
    def test_a_flavor_takes_the_callers_token(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        cloud.add_flavor(Flavor("f1", "m1", 2, 1024, 5, 1, 64, extra_specs={"hw:cpu_policy": "dedicated"}))
        token = cloud.issue("somebody", OWNER, ("reader",))
        caller = Actor("somebody", OWNER, frozenset({"reader"}), token=token)
        assert driver.fetch("flavor", "f1", caller) == {
            "id": "f1",
            "name": "m1",
            "vcpus": 2,
            "ram": 1024,
            "swap": 64,
            "disk": 5,
            "ephemeral": 1,
            "extra_specs": {"hw:cpu_policy": "dedicated"},
        }
        with pytest.raises(CloudRefused, match=r"^A flavor reference needs a user token\.$"):
            driver.fetch("flavor", "f1", replace(caller, token=None))

    def test_missing_extra_specs_are_fetched(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        cloud.add_flavor(Flavor("f1", "m1", extra_specs={"a": "b"}))
        bare = {"id": "f1", "name": "m1", "vcpus": 1, "ram": 1, "disk": 0, "swap": ""}
        cloud.instead = lambda seen: (200, {"flavor": dict(bare)}) if seen.path == "/v2.1/flavors/f1" else None
        caller = Actor("u", OWNER, token=cloud.issue("u", OWNER, ("reader",)))
        assert driver.fetch("flavor", "f1", caller)["extra_specs"] == {"a": "b"}

    @pytest.mark.parametrize("reference", ["..", ".", " ", "a/b", "../os-aggregates", "a?b", "ä", "x" * 256])
    def test_a_reference_is_no_way_to_another_address(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, reference: str
    ):
        caller = Actor("u", OWNER, token=cloud.issue("u", OWNER, ("reader",)))
        with pytest.raises(CloudNotFound):
            driver.fetch("flavor", reference, caller)
        assert cloud.seen == []


class TestGroups:
    def test_a_namesake_of_another_project_is_left_alone(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        foreign = ServerGroup("reservation:r-1", "affinity", NEIGHBOUR)
        cloud.groups[foreign.id] = foreign
        command = trusted(cloud, driver, command_for(host, affinity=True))
        group = driver.ensure_prepared(command).effects["server_group_id"]
        assert group != foreign.id
        assert driver.ensure_started(command).effects["server_group_id"] == group
        assert driver.drift(HOST, [command], []) == []
        assert ended(driver, command)
        assert set(cloud.groups) == {foreign.id}

    def test_a_full_quota_refuses_a_group_but_no_start(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        cloud.group_quota = 0
        command = trusted(cloud, driver, command_for(host, affinity=True))
        with pytest.raises(CloudRefused, match="Quota exceeded"):
            driver.ensure_prepared(command)
        assert driver.ensure_started(command).effects["server_group_id"] is None
        assert cloud.boot_with("compute-1", OWNER, "r-1")

    def test_long_lists_are_read_to_the_end(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        cloud.page = 2
        hosts = registered(driver, cloud, 1)
        commands = [
            trusted(cloud, driver, command_for(*hosts, reservation_id=f"r-{number}", affinity=True))
            for number in range(5)
        ]
        for command in commands:
            driver.ensure_started(command)
        assert driver.held(HOST) == [f"r-{number}" for number in range(5)]
        assert driver.drift(HOST, commands, []) == []


class TestDrift:
    def test_takes_a_bounded_number_of_calls_and_sees_all_with_time(self, cloud: FakeOpenStack):
        clock = SimulatedClock(datetime(2030, 1, 1, tzinfo=UTC))
        with connect(options_of(cloud), clock=clock) as driver:
            commands = [command_for(reservation_id=f"r-{number:03}") for number in range(300)]
            driver.ensure_started(commands[0])
            for command in commands[1:]:
                name = command.reservation_id
                group = cloud.add_aggregate(name)
                first = cloud.aggregate("r-000")
                assert first is not None
                group.metadata = {**first.metadata, "reservation": name}
                specs = {
                    "aggregate_instance_extra_specs:reservation": name,
                    f"resources:CUSTOM_RESERVATION_{name.upper().replace('-', '_')}": "1",
                }
                made = Flavor(name, f"reservation:{name}", 2, 1024, 10, is_public=False, extra_specs=specs)
                made.projects = {OWNER, NEIGHBOUR}
                cloud.add_flavor(made)
            seen: set[str | None] = set()
            for _ in range(2):
                cloud.seen.clear()
                seen |= {drift.reservation_id for drift in driver.drift(HOST, commands, [])}
                assert len(cloud.seen) < 220
                clock.advance(timedelta(minutes=1))
            assert seen == {command.reservation_id for command in commands[1:]}

    def test_is_seen_of_hosts_and_instances_side_by_side(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        whole, shared, free = registered(driver, cloud, 3)
        host_command = command_of(whole, reservation_id="r-2", resource_type=HOST)
        command = command_for(shared)
        for reservation in (host_command, command):
            driver.ensure_started(reservation)
        assert driver.drift(HOST, [host_command, command], [free]) == []
        cloud.provider("blazar_node-2.lab").inventories.clear()
        group = cloud.aggregate("r-2")
        assert group is not None
        group.hosts.clear()
        found = {
            (drift.reservation_id, drift.resource) for drift in driver.drift(HOST, [host_command, command], [free])
        }
        assert found == {("r-2", whole), ("r-1", shared)}

    def test_without_placement_other_drift_is_found(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))
        del cloud.flavors["r-1"]
        cloud.instead = lambda seen: (503, {}) if seen.service == "placement" else None
        (drift,) = driver.drift(HOST, [command_for(host)], [])
        assert drift.text == "reservation r-1 has no flavor"


class TestOthers:
    def test_flavors_and_aggregates_of_others_are_left_alone(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        cloud.add_aggregate("ssd", None, ("compute-1",)).metadata["ssd"] = "true"
        cloud.add_flavor(Flavor("gold", "reservation:of gold"))
        before = cloud.aggregate("ssd")
        driver.ensure_started(command_for(host))
        assert driver.held(HOST) == ["r-1"]
        assert ended(driver, command_for(host))
        assert driver.held(HOST) == []
        assert cloud.aggregate("ssd") == before
        assert before is not None
        assert before.hosts == ["compute-1"]
        assert "gold" in cloud.flavors

    def test_a_server_of_another_reservation_is_not_in_the_way_of_registering(
        self, cloud: FakeOpenStack, driver: OpenStackCloud
    ):
        first, second = registered(driver, cloud, 2)
        driver.ensure_started(command_for(first))
        cloud.boot_with("compute-1", OWNER, "r-1")
        pool = cloud.aggregate(POOL)
        assert pool is not None
        pool.hosts.clear()
        driver.ensure_registered(HOST, first)
        cloud.force("compute-2", OWNER)
        with pytest.raises(ResourceOccupied):
            driver.ensure_registered(HOST, second)
        assert pool.hosts == ["compute-1"]
