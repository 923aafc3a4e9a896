"""How the driver of OpenStack clouds makes way for reservations that are about to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.clock import SimulatedClock
from tenure.drivers.contract import CloudBusy, Command, Preempted, ResourceOccupied, ResourceRef
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.http import connect
from tenure.testing.rig import command_of
from tests.drivers.contracts.instances import INSTANCE
from tests.drivers.contracts.preemption import PreemptionContract, PreemptionRig
from tests.drivers.instance_rigs import FakePreemptionRig
from tests.drivers.rigs import HOST, command_for, options_of, registered
from tests.support.openstack import NEIGHBOUR, OWNER, FakeOpenStack, Flavor

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
NOTICE = timedelta(seconds=120)
#: A preemptible flavor of a quarter of what the first host's processors give, and one that only has much memory.
SPOT, LARGE = "spot", "spot.large"


@pytest.fixture(params=["2.103", "2.96"], ids=["newer", "older"])
def cloud(request: pytest.FixtureRequest) -> Iterator[FakeOpenStack]:
    with FakeOpenStack(nova=str(request.param)) as cloud:
        specs = {"blazar:preemptible": "true"}
        cloud.add_flavor(Flavor(SPOT, SPOT, 8, 512, 1, extra_specs=specs))
        cloud.add_flavor(Flavor(LARGE, LARGE, 1, 4096, 1, extra_specs=specs))
        yield cloud
        assert cloud.surprises == []


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(BEGIN)


@pytest.fixture
def driver(cloud: FakeOpenStack, clock: SimulatedClock) -> Iterator[OpenStackCloud]:
    with connect(options_of(cloud), clock=clock) as driver:
        yield driver


def instances(host: ResourceRef, units: int, *, vcpus: int = 8, memory_mb: int = 512) -> Command:
    parameters = {"vcpus": vcpus, "memory_mb": memory_mb, "disk_gb": 1, "affinity": None}
    plain = command_of(host, resource_type=INSTANCE)
    return replace(plain, parameters=parameters, units={host.external_id: units})


def boot(cloud: FakeOpenStack, flavor: str = SPOT, host: str = "compute-1", project_id: str = NEIGHBOUR) -> str:
    server = cloud.boot_with(host, project_id, flavor)
    assert server is not None
    return server


def ids(preempted: Any) -> list[str]:
    return [server.server_id for server in preempted]


class TestWholeHosts:
    def test_servers_are_notified_stopped_and_deleted_in_time(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, clock: SimulatedClock
    ):
        host, other = registered(driver, cloud, 2)
        server, elsewhere = boot(cloud), boot(cloud, host="compute-2")
        deadline = BEGIN + NOTICE
        found = driver.make_way(command_for(host), deadline=deadline)
        assert list(found) == [Preempted(server, NEIGHBOUR, host)]
        assert cloud.servers[server].metadata == {
            "tenure:leaves_at": "2030-01-01T00:02:00+00:00",
            "tenure:told_at": "2030-01-01T00:00:00+00:00",
        }
        cloud.seen.clear()
        clock.advance(timedelta(seconds=59))
        assert list(driver.make_way(command_for(host), deadline=deadline)) == list(found)
        assert {seen.method for seen in cloud.seen} == {"GET"}
        clock.advance(timedelta(seconds=1))
        driver.make_way(command_for(host), deadline=deadline)
        assert cloud.servers[server].status == "SHUTOFF"
        clock.advance(timedelta(seconds=44))
        driver.make_way(command_for(host), deadline=deadline)
        assert server in cloud.servers
        clock.advance(timedelta(seconds=1))
        driver.make_way(command_for(host), deadline=deadline)
        assert set(cloud.servers) == {elsewhere}
        assert cloud.servers[elsewhere].metadata == {}
        assert driver.ensure_started(command_for(host)).done
        assert other.name == "node-2.lab"

    def test_a_late_server_is_stopped_and_deleted_sooner(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, clock: SimulatedClock
    ):
        (host,) = registered(driver, cloud, 1)
        deadline = BEGIN + timedelta(seconds=32)
        server = boot(cloud)
        driver.make_way(command_for(host), deadline=deadline)
        clock.advance(timedelta(seconds=17))
        driver.make_way(command_for(host), deadline=deadline)
        assert cloud.servers[server].status == "SHUTOFF"
        clock.advance(timedelta(seconds=7))
        driver.make_way(command_for(host), deadline=deadline)
        assert cloud.servers == {}

    def test_a_start_deletes_remaining_preemptible_servers(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        boot(cloud)
        cloud.held = True
        for _ in range(2):
            with pytest.raises(CloudBusy, match="1 preemptible servers are still being deleted") as caught:
                driver.ensure_started(command_for(host))
            assert not isinstance(caught.value, ResourceOccupied)
        cloud.let_go()
        assert driver.ensure_started(command_for(host)).done
        assert cloud.servers == {}

    def test_foreign_servers_stop_a_start_and_none_is_deleted(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        boot(cloud)
        cloud.force("compute-1", NEIGHBOUR)
        with pytest.raises(ResourceOccupied, match="1 servers of others"):
            driver.ensure_started(command_for(host))
        assert len(cloud.servers) == 2

    def test_a_server_is_not_notified_again_of_a_later_start(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, clock: SimulatedClock
    ):
        (host,) = registered(driver, cloud, 1)
        server = boot(cloud)
        driver.make_way(command_for(host), deadline=BEGIN + NOTICE)
        before = dict(cloud.servers[server].metadata)
        driver.make_way(command_for(host), deadline=BEGIN + 2 * NOTICE)
        assert cloud.servers[server].metadata == before
        clock.advance(2 * NOTICE)  # the server still runs: the lease was cancelled
        driver.make_way(command_for(host), deadline=BEGIN + 4 * NOTICE)
        assert cloud.servers[server].metadata["tenure:told_at"] == "2030-01-01T00:04:00+00:00"
        assert cloud.servers[server].status == "ACTIVE"

    def test_invalid_metadata_by_the_owner_is_replaced(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        server = boot(cloud)
        cloud.servers[server].metadata = {"tenure:leaves_at": "never", "tenure:told_at": ""}
        assert ids(driver.make_way(command_for(host), deadline=BEGIN + NOTICE)) == [server]
        assert cloud.servers[server].metadata["tenure:leaves_at"] == "2030-01-01T00:02:00+00:00"

    def test_a_server_with_full_metadata_is_still_preempted(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, clock: SimulatedClock
    ):
        (host,) = registered(driver, cloud, 1)
        deaf, other = boot(cloud), boot(cloud)
        cloud.servers[deaf].metadata = {f"note-{number}": "x" for number in range(128)}
        deadline = BEGIN + NOTICE
        assert sorted(ids(driver.make_way(command_for(host), deadline=deadline))) == sorted([deaf, other])
        assert "tenure:leaves_at" in cloud.servers[other].metadata
        clock.set(deadline - NOTICE / 2)
        driver.make_way(command_for(host), deadline=deadline)
        assert cloud.servers[other].status == "SHUTOFF"
        clock.set(deadline - timedelta(seconds=5))
        driver.make_way(command_for(host), deadline=deadline)
        assert cloud.servers == {}

    def test_a_failed_notification_stops_no_deletion(
        self, cloud: FakeOpenStack, driver: OpenStackCloud, clock: SimulatedClock
    ):
        (host,) = registered(driver, cloud, 1)
        boot(cloud)
        clock.set(BEGIN + NOTICE - timedelta(seconds=5))
        cloud.instead = lambda seen: (500, {}) if seen.path.endswith("/metadata") else None
        with pytest.raises(CloudBusy):
            driver.make_way(command_for(host), deadline=BEGIN + NOTICE)
        assert cloud.servers == {}

    def test_a_server_in_deletion_is_not_notified(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        server = boot(cloud)
        cloud.servers[server].task = "deleting"
        cloud.seen.clear()
        assert ids(driver.make_way(command_for(host), deadline=BEGIN + NOTICE)) == [server]
        assert {seen.method for seen in cloud.seen} == {"GET"}

    def test_servers_on_a_host_of_another_reservation_stay(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host, reservation_id="r-2"))
        cloud.servers[cloud.force("compute-1", NEIGHBOUR)].flavor = cloud.flavors[SPOT]
        assert list(driver.make_way(command_for(host), deadline=BEGIN + NOTICE)) == []

    @pytest.mark.parametrize("cloud", ["2.103"], indirect=True)  # which shows the reservation of a server
    def test_a_server_booted_for_the_reservation_is_not_preempted(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        """Also with a preemptible flavor, and while its host is missing in the aggregate."""
        (host,) = registered(driver, cloud, 1)
        driver.ensure_started(command_for(host))
        server = cloud.force("compute-1", OWNER, reservation="r-1")
        cloud.servers[server].flavor = cloud.flavors[SPOT]
        group = cloud.aggregate("r-1")
        assert group is not None
        group.hosts.clear()
        with suppress(CloudBusy):  # Nova moves no host with servers into a zone
            driver.ensure_started(command_for(host))
        assert set(cloud.servers) == {server}

    def test_nothing_is_in_the_way_of_addresses(self, driver: OpenStackCloud):
        addresses = command_of(resource_type="virtual:floatingip")
        assert list(driver.make_way(addresses, deadline=BEGIN + NOTICE)) == []


class TestParts:
    """The first host gives 32 processors, 15872 MiB and 200 GiB."""

    def test_only_as_many_servers_go_as_needed_youngest_first(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        oldest, older, younger, youngest = (boot(cloud) for _ in range(4))
        deadline = BEGIN + NOTICE
        assert ids(driver.make_way(instances(host, 1), deadline=deadline)) == [youngest]
        assert sorted(ids(driver.make_way(instances(host, 2), deadline=deadline))) == sorted([youngest, younger])
        # Servers that were notified go, even if others are younger.
        del cloud.servers[oldest]
        latest = boot(cloud)
        assert ids(driver.make_way(instances(host, 1), deadline=deadline)) == [youngest]
        assert {older, latest} <= cloud.servers.keys()

    def test_no_server_is_preempted_where_there_is_room(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        for _ in range(3):
            boot(cloud)
        assert list(driver.make_way(instances(host, 1), deadline=BEGIN + NOTICE)) == []
        assert driver.ensure_started(instances(host, 1)).done
        assert len(cloud.servers) == 3

    def test_servers_with_the_missing_memory_go(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        large = [boot(cloud, LARGE) for _ in range(3)]
        small = boot(cloud)
        command = instances(host, 1, vcpus=1, memory_mb=4096)
        assert ids(driver.make_way(command, deadline=BEGIN + NOTICE)) == [large[-1]]
        assert cloud.servers[small].metadata == {}

    def test_the_room_of_others_is_kept(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        """Units of a reservation that runs are room that it has, with servers in them or not."""
        (host,) = registered(driver, cloud, 1)
        other = replace(instances(host, 2), reservation_id="r-2")
        driver.ensure_started(other)
        assert cloud.boot_with("compute-1", OWNER, "r-2")
        first, second = boot(cloud), boot(cloud)
        deadline = BEGIN + NOTICE
        assert list(driver.make_way(replace(instances(host, 0), units={}), deadline=deadline)) == []
        assert ids(driver.make_way(instances(host, 1), deadline=deadline)) == [second]
        assert driver.ensure_started(instances(host, 1)).done is False
        assert driver.ensure_started(instances(host, 1)).done
        assert first in cloud.servers
        assert second not in cloud.servers

    def test_a_start_deletes_remaining_preemptible_servers(self, cloud: FakeOpenStack, driver: OpenStackCloud):
        (host,) = registered(driver, cloud, 1)
        servers = [boot(cloud) for _ in range(4)]
        cloud.held = True
        assert not driver.ensure_started(instances(host, 2)).done
        cloud.let_go()
        assert driver.ensure_started(instances(host, 2)).done
        assert set(cloud.servers) == set(servers[:2])
        assert driver.drift(HOST, [instances(host, 2)], []) == []

    def test_a_deletion_that_ends_during_a_look_displaces_no_other_server(
        self, cloud: FakeOpenStack, driver: OpenStackCloud
    ):
        """Placement still counts the server when its usage is read, and no longer when its allocation is read."""
        (host,) = registered(driver, cloud, 1)
        servers = [boot(cloud) for _ in range(4)]
        cloud.held = True
        assert not driver.ensure_started(instances(host, 1)).done
        cloud.observe = lambda seen: cloud.let_go() if seen.path.endswith(f"/allocations/{servers[3]}") else None
        driver.ensure_started(instances(host, 1))
        assert set(cloud.servers) == set(servers[:3])


class OpenStackPreemption(PreemptionContract):
    nova: str

    @pytest.fixture
    def rig(self, transport: str) -> Iterator[PreemptionRig]:
        with FakeOpenStack(nova=self.nova) as cloud:
            rig = FakePreemptionRig(cloud, transport)
            yield rig
            rig.close()


class TestPreemption(OpenStackPreemption):
    nova = "2.103"


class TestPreemptionOfOlderNova(OpenStackPreemption):
    nova = "2.96"
