"""The simulated cloud keeps the contract of drivers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.drivers.contract import CloudDriver, Command, ResourceRef
from tenure.drivers.simulated import EffectKind, Fault, FaultKind
from tenure.testing.rig import NEIGHBOUR, OWNER, command_of
from tests.drivers.contracts.hosts import DriverContract, Rig
from tests.support.simulated import HostHealth, ImageStatus, NoValidHost, SimulatedCloud

HOST = "physical:host"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
FACTS = {
    "vcpus",
    "cpu_info",
    "hypervisor_type",
    "hypervisor_version",
    "hypervisor_hostname",
    "service_name",
    "memory_mb",
    "local_gb",
    "availability_zone",
    "aggregate_metadata",
}
#: What users do is in the journal as well, and is no effect of the driver.
USERS = frozenset({EffectKind.SERVER_BOOTED})


class SimulatedRig:
    resource_type = "physical:host"
    owner = OWNER
    neighbour = NEIGHBOUR
    patience = timedelta(seconds=5)
    pause = timedelta(0)

    def __init__(self, path: Path) -> None:
        self._path = path
        self.clock = SimulatedClock(NOW)
        self.cloud = SimulatedCloud.create(path, hosts=6, clock=self.clock)
        self.driver: CloudDriver = self.cloud

    def reopen(self) -> None:
        self.cloud.close()
        self.cloud = SimulatedCloud(self._path, clock=self.clock)
        self.driver = self.cloud

    def resources(self) -> list[ResourceRef]:
        return [ResourceRef(found.external_id, found.name) for found in self.cloud.discover(self.resource_type)]

    def boot(self, resource: ResourceRef, project_id: str, reservation_id: str | None = None) -> str | None:
        try:
            return self.cloud.world.boot_server(project_id, reservation_id=reservation_id, host=resource.external_id)
        except NoValidHost:
            return None

    def force(self, resource: ResourceRef, project_id: str) -> str:
        return self.cloud.world.force_server(project_id, resource.external_id)

    def servers(self) -> set[str]:
        return {server.id for server in self.cloud.world.servers()}

    def images(self) -> list[str]:
        return [image.name for image in self.cloud.world.images()]

    def effects(self) -> int:
        return sum(1 for effect in self.cloud.world.journal() if effect.kind not in USERS)

    def fail(self, verb: str, *, after_effects: int) -> None:
        self.cloud.inject(Fault(FaultKind.BUSY, verb, after_effects=after_effects))

    def lose_reply(self, verb: str) -> None:
        self.cloud.inject(Fault(FaultKind.LOST_REPLY, verb))

    def hold(self) -> None:
        self.cloud.inject(Fault(FaultKind.SLOW))

    def let_go(self) -> None:
        self.cloud.clear_faults()

    def delete(self, server: str) -> None:
        self.cloud.world.delete_server(server)

    def mark_down(self, resource: ResourceRef) -> None:
        self.cloud.world.mark_host(resource.external_id, HostHealth.DOWN)

    def remove(self, resource: ResourceRef) -> None:
        self.cloud.world.remove_host(resource.external_id)

    def add_namesake(self, resource: ResourceRef) -> None:
        self.cloud.world.add_host(resource.name)

    def take_out(self, resource: ResourceRef) -> None:
        self.cloud.world.take_out(resource.external_id)

    def drop_group(self, command: Command) -> None:
        self.cloud.world.drop_group(command.reservation_id)

    def put_in(self, resource: ResourceRef, command: Command) -> None:
        self.cloud.world.put_in(resource.external_id, command.reservation_id)

    def change_owner(self, command: Command, project_id: str) -> None:
        self.cloud.world.change_owner(command.reservation_id, project_id)

    def caller(self, project_id: str) -> Actor:
        return Actor("a-user", project_id, frozenset({"member"}), token="a-token")


class TestSimulatedCloud(DriverContract):
    sees_servers_without_group = False
    moves_occupied_hosts = False

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[Rig]:
        rig = SimulatedRig(tmp_path / "cloud.db")
        yield rig
        rig.cloud.close()

    def effects_of_a_start(self, resources: int) -> int:
        """The group, the zones that it keeps, its owner, and for each host two moves."""
        return 3 + 2 * resources


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(NOW)


@pytest.fixture
def cloud(clock: SimulatedClock) -> Iterator[SimulatedCloud]:
    with SimulatedCloud.create(hosts=20, clock=clock) as cloud:
        yield cloud


class TestFleet:
    def test_is_the_same_every_time(self, cloud: SimulatedCloud):
        with SimulatedCloud.create(hosts=7) as other:
            other.world.ensure_hosts(20)
            assert other.discover(HOST) == cloud.discover(HOST)

    def test_has_ids_and_facts_like_those_of_nova(self, cloud: SimulatedCloud):
        found = {resource.external_id: resource for resource in cloud.discover(HOST)}
        assert set(found) == {str(number) for number in range(1, 21)}
        assert [found[str(number)].name for number in (1, 2, 20)] == [
            "sim-host-001",
            "sim-host-002",
            "sim-host-020",
        ]
        for resource in found.values():
            facts = resource.facts
            assert set(facts) == FACTS
            assert facts["hypervisor_hostname"] == resource.name
            assert isinstance(facts["hypervisor_version"], int)
            assert isinstance(facts["cpu_info"], str)
            assert json.loads(facts["cpu_info"])["arch"] == "x86_64"
            assert resource.capacity["VCPU"] == facts["vcpus"]
            assert resource.capacity["MEMORY_MB"] == facts["memory_mb"]
            assert resource.capacity["DISK_GB"] == facts["local_gb"]

    def test_has_several_sizes_and_zones_and_a_few_special_hosts(self, cloud: SimulatedCloud):
        found = cloud.discover(HOST)
        assert len({resource.capacity["MEMORY_MB"] for resource in found}) == 4
        assert len({resource.facts["availability_zone"] for resource in found}) == 3
        assert sum("CUSTOM_GPU_A100" in resource.traits for resource in found) == 5
        assert all(("CUSTOM_GPU_A100" in host.traits) is (host.capacity["CUSTOM_GPU"] == 4) for host in found)
        assert sum("CUSTOM_NVME" in resource.traits for resource in found) == 2

    def test_does_not_bring_back_a_removed_host(self, cloud: SimulatedCloud):
        cloud.world.remove_host("sim-host-020")
        cloud.world.ensure_hosts(20)
        assert len(cloud.discover(HOST)) == 19
        cloud.world.ensure_hosts(21)
        assert cloud.look_up(HOST, "sim-host-021").external_id == "21"

    def test_takes_hosts_of_all_kinds(self, cloud: SimulatedCloud):
        added = cloud.world.add_host("big", facts={"vcpus": 512, "availability_zone": "lab"}, traits={"CUSTOM_X"})
        found = cloud.look_up(HOST, "big")
        assert (found.external_id, found.capacity["VCPU"]) == (added, 512)
        assert found.traits == {"CUSTOM_X"}
        assert found.facts["hypervisor_hostname"] == "big"
        cloud.world.change_host("big", facts={"vcpus": 256})
        found = cloud.look_up(HOST, added)
        assert (found.capacity["VCPU"], found.facts["availability_zone"]) == (256, "lab")
        assert found.traits == {"CUSTOM_X"}


class TestServers:
    """Who may boot where: as Nova decides with Blazar's filter."""

    def test_go_to_the_first_host_that_is_open(self, cloud: SimulatedCloud):
        cloud.ensure_registered(HOST, ResourceRef("1", "sim-host-001"))
        cloud.world.mark_host("2", HostHealth.DOWN)
        cloud.world.mark_host("3", HostHealth.DISABLED)
        cloud.world.boot_server(OWNER, name="db")
        (server,) = cloud.world.servers()
        assert (server.host, server.name, server.reservation_id) == ("4", "db", None)

    def test_go_to_a_host_of_the_reservation_that_is_named(self, cloud: SimulatedCloud):
        cloud.ensure_started(command_of(ResourceRef("5", "sim-host-005"), resource_type=HOST))
        cloud.world.boot_server(OWNER, reservation_id="r-1")
        (server,) = cloud.world.servers("sim-host-005")
        assert (server.project_id, server.reservation_id) == (OWNER, "r-1")
        with pytest.raises(NoValidHost):
            cloud.world.boot_server("somebody", reservation_id="r-1")
        with pytest.raises(NoValidHost):
            cloud.world.boot_server(OWNER, reservation_id="r-9")

    def test_are_deleted_by_their_users(self, cloud: SimulatedCloud):
        server = cloud.world.boot_server(OWNER)
        cloud.world.delete_server(server)
        cloud.world.delete_server(server)
        assert cloud.world.servers() == []


def test_the_health_of_a_host_has_a_reason(cloud: SimulatedCloud):
    cloud.world.mark_host("1", HostHealth.DOWN)
    cloud.world.mark_host("2", HostHealth.DISABLED)
    health = cloud.check(HOST)
    assert (health["1"].reason, health["2"].reason, health["3"].reason) == (
        "The hypervisor is down.",
        "The compute service is disabled.",
        None,
    )
    assert (health["1"].works, health["2"].works) == (False, True)
    cloud.world.mark_host("1", HostHealth.UP)
    assert cloud.check(HOST)["1"].well


def trusting(cloud: SimulatedCloud, command: Command) -> Command:
    """The same command of an owner who trusts us."""
    return replace(command, trust_id=cloud.delegate(Actor("u", OWNER, frozenset({"member"}))))


def test_the_journal_lists_each_effect_with_its_time(cloud: SimulatedCloud, clock: SimulatedClock):
    host = ResourceRef("4", "sim-host-004")
    command = trusting(cloud, command_of(host, resource_type=HOST))
    cloud.ensure_registered(HOST, host)
    clock.advance(timedelta(hours=1))
    cloud.ensure_started(command)
    server = cloud.world.boot_server(OWNER, reservation_id="r-1", name="db")
    cloud.before_end(command, "snapshot")
    clock.advance(timedelta(hours=1))
    cloud.ensure_ended(command)
    cloud.ensure_unregistered(HOST, host)

    effects = [
        (effect.at - NOW, effect.verb, effect.kind, effect.reservation_id, effect.host, effect.subject)
        for effect in cloud.world.journal()
    ]
    hour = timedelta(hours=1)
    assert effects == [
        (0 * hour, "delegate", EffectKind.TRUST_MADE, None, None, command.trust_id),
        (0 * hour, "ensure_registered", EffectKind.HOST_POOLED, None, "4", None),
        (0 * hour, "ensure_registered", EffectKind.PROVIDER_MADE, None, None, "blazar_sim-host-004"),
        (1 * hour, "ensure_started", EffectKind.GROUP_MADE, "r-1", None, None),
        (1 * hour, "ensure_started", EffectKind.GROUP_CHANGED, "r-1", None, None),  # it keeps the zone of the host
        (1 * hour, "ensure_started", EffectKind.HOST_DROPPED, None, "4", None),
        (1 * hour, "ensure_started", EffectKind.HOST_TAKEN, "r-1", "4", None),
        (1 * hour, "ensure_started", EffectKind.GROUP_CHANGED, "r-1", None, None),  # it has an owner
        (1 * hour, "boot", EffectKind.SERVER_BOOTED, "r-1", "4", server),
        (1 * hour, "before_end", EffectKind.IMAGE_MADE, "r-1", "4", server),
        (2 * hour, "ensure_ended", EffectKind.GROUP_CHANGED, "r-1", None, None),  # it is closed
        (2 * hour, "ensure_ended", EffectKind.SERVER_DELETED, "r-1", "4", server),
        (2 * hour, "ensure_ended", EffectKind.HOST_RETURNED, "r-1", "4", None),
        (2 * hour, "ensure_ended", EffectKind.HOST_ADDED, None, "4", None),
        (2 * hour, "ensure_ended", EffectKind.GROUP_REMOVED, "r-1", None, None),
        (2 * hour, "ensure_unregistered", EffectKind.HOST_UNPOOLED, None, "4", None),
    ]
    sequence = [effect.sequence for effect in cloud.world.journal()]
    assert sequence == sorted(set(sequence))
    assert len(cloud.world.journal("r-1")) == 10
    (image,) = cloud.world.images("r-1")
    assert (image.name, image.status, image.project_id) == ("reserved_db", ImageStatus.ACTIVE, OWNER)


def test_a_server_deleted_during_its_snapshot_loses_the_image(cloud: SimulatedCloud):
    command = trusting(cloud, command_of(ResourceRef("4", "sim-host-004"), resource_type=HOST))
    cloud.ensure_started(command)
    cloud.world.boot_server(OWNER, reservation_id="r-1")
    cloud.inject(Fault(FaultKind.SLOW, "before_end"))
    assert not cloud.before_end(command, "snapshot").done
    assert cloud.ensure_ended(command).done
    assert [image.status for image in cloud.world.images()] == [ImageStatus.LOST]


def test_a_file_of_another_program_is_unchanged(tmp_path: Path):
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE precious (id)")
    with pytest.raises(ValueError, match="not that of a simulated cloud"):
        SimulatedCloud(path)


def test_a_file_of_a_release_before_is_refused(tmp_path: Path):
    path = tmp_path / "cloud.db"
    with closing(sqlite3.connect(path)) as older:
        older.execute("CREATE TABLE host (id)")
        older.execute("PRAGMA user_version = 9")
    with pytest.raises(ValueError, match="format of an earlier release"):
        SimulatedCloud(path)


def test_a_whole_cloud_survives_its_driver(tmp_path: Path):
    path = tmp_path / "cloud.db"
    command = command_of(ResourceRef("1", "sim-host-001"), resource_type=HOST)
    part = replace(
        command_of(ResourceRef("2", "sim-host-002"), reservation_id="r-2", resource_type="virtual:instance"),
        parameters={"vcpus": 1, "memory_mb": 64, "disk_gb": 1, "affinity": True},
        units={"2": 3},
    )
    with SimulatedCloud.create(path, hosts=3) as cloud:
        cloud.ensure_started(command)
        cloud.world.boot_server(OWNER, reservation_id="r-1")
        cloud.before_end(trusting(cloud, command), "snapshot")
        group = cloud.ensure_started(trusting(cloud, part)).effects
        cloud.world.instances.boot(OWNER, "r-2", group=str(group["server_group_id"]))
        cloud.world.addresses.take("203.0.113.10", OWNER)
        cloud.world.addresses.associate("203.0.113.10")
        cloud.inject(Fault(FaultKind.SLOW, "ensure_ended", until=NOW, reason="a stuck host"))
        before = state_of(cloud)
    with SimulatedCloud.create(path, hosts=3) as cloud:
        assert state_of(cloud) == before


def state_of(cloud: SimulatedCloud) -> tuple[object, ...]:
    world, parts = cloud.world, cloud.world.instances
    hosts = world.hosts(), world.groups(), world.servers(), world.images(), world.journal(), cloud.faults()
    of_parts = parts.flavors(), parts.aggregates(), parts.inventories(), parts.server_groups()
    return *hosts, *of_parts, world.addresses.floating_ips()
