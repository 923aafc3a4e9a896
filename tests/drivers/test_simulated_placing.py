"""Placement of servers in the simulated cloud, by users, flavors and hosts, as Nova and Placement decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tenure.domain.actor import Actor
from tenure.drivers.contract import CloudNotFound, CloudRefused, Command, ResourceRef
from tenure.testing.rig import NEIGHBOUR, OWNER, command_of
from tests.support.simulated import HostHealth, NoValidHost, SimulatedCloud

HOST = "physical:host"
SMALL = {"vcpus": 4, "memory_mb": 8192, "local_gb": 100}


@pytest.fixture
def cloud() -> Iterator[SimulatedCloud]:
    with SimulatedCloud.create(hosts=8) as cloud:
        yield cloud


def reserved(cloud: SimulatedCloud, *hosts: str, units: int = 1, affinity: bool | None = None, **more: str) -> Command:
    refs = [ResourceRef(host, cloud.world.host(host).name) for host in hosts]
    for ref in refs:
        cloud.ensure_registered(HOST, ref)
    command = command_of(*refs, resource_type="virtual:instance", **more)
    return replace(
        command,
        parameters={"vcpus": 2, "memory_mb": 2048, "disk_gb": 10, "amount": units * len(hosts), "affinity": affinity},
        units={ref.external_id: units for ref in refs},
        trust_id=cloud.delegate(Actor("u", command.project_id, frozenset({"member"}))),
    )


def test_flavors_are_there_from_the_beginning(cloud: SimulatedCloud):
    seen = {flavor.name: flavor for flavor in cloud.world.instances.flavors().values()}
    assert set(seen) == {"m1.tiny", "m1.small", "m1.medium", "m1.large", "g1.a100", "p1.small", "x1.private"}
    assert [name for name, flavor in seen.items() if not flavor.is_public] == ["x1.private"]
    assert cloud.fetch("flavor", "4", Actor("u", OWNER)) == {
        "id": "4",
        "name": "m1.large",
        "vcpus": 4,
        "ram": 8192,
        "disk": 80,
        "ephemeral": 20,
        "swap": 1024,
        "extra_specs": {},
    }


def test_a_server_takes_the_room_that_its_flavor_says(cloud: SimulatedCloud):
    host = cloud.world.add_host("little", facts=SMALL)
    cloud.world.instances.boot(OWNER, "3", host=host)
    server = cloud.world.instances.boot(NEIGHBOUR, "3", host=host)
    with pytest.raises(NoValidHost):
        cloud.world.instances.boot(OWNER, "1", host=host)
    cloud.world.delete_server(server)
    assert cloud.world.instances.boot(OWNER, "1", host=host)


def test_disk_includes_ephemeral_and_swap(cloud: SimulatedCloud):
    fits = cloud.world.add_host("fits", facts={**SMALL, "local_gb": 101})
    with pytest.raises(NoValidHost):
        cloud.world.instances.boot(OWNER, "4", host=cloud.world.add_host("tight", facts=SMALL))
    assert cloud.world.instances.boot(OWNER, "4", host=fits)


def test_gpus_are_counted_and_are_on_few_hosts(cloud: SimulatedCloud):
    placed = [cloud.world.instances.boot(OWNER, "5") for _ in range(8)]
    hosts = [server.host for server in cloud.world.servers()]
    assert (len(placed), hosts) == (8, ["4"] * 4 + ["8"] * 4)
    with pytest.raises(NoValidHost):
        cloud.world.instances.boot(OWNER, "5")
    cloud.world.change_host("1", inventory={"CUSTOM_GPU": {"total": 1}})
    with pytest.raises(NoValidHost):  # without the trait that the flavor requires
        cloud.world.instances.boot(OWNER, "5", host="1")


def test_traits_can_be_forbidden(cloud: SimulatedCloud):
    cloud.world.instances.add_flavor("plain", extra_specs={"trait:CUSTOM_GPU_A100": "forbidden"})
    with pytest.raises(NoValidHost):
        cloud.world.instances.boot(OWNER, "plain", host="4")
    assert cloud.world.instances.boot(OWNER, "plain", host="3")


def test_groups_of_resources_add_up(cloud: SimulatedCloud):
    specs = {"resources1:CUSTOM_GPU": "2", "resources2:CUSTOM_GPU": "2", "resources:DISK_GB": "0"}
    cloud.world.instances.add_flavor("four", disk=10**9, extra_specs=specs)
    assert cloud.world.instances.boot(OWNER, "four", host="4")
    with pytest.raises(NoValidHost):
        cloud.world.instances.boot(OWNER, "four", host="4")


def test_capacity_and_limits_are_those_of_the_provider(cloud: SimulatedCloud):
    host = cloud.world.add_host(
        "tuned",
        facts=SMALL,
        inventory={
            "VCPU": {"allocation_ratio": 2.5, "reserved": 1, "max_unit": 2},
            "MEMORY_MB": {"reserved": 4096, "step_size": 1024},
            "CUSTOM_FPGA": {"total": 2, "min_unit": 2},
            "DISK_GB": {"total": 50},
        },
        traits=(),
    )
    found = cloud.look_up(HOST, host)
    assert dict(found.capacity) == {"VCPU": 7, "MEMORY_MB": 4096, "DISK_GB": 50, "CUSTOM_FPGA": 2}
    assert found.limits == {
        "VCPU": {"min": 1, "max": 2, "step": 1},
        "MEMORY_MB": {"min": 1, "max": 4096, "step": 1024},
        "CUSTOM_FPGA": {"min": 2, "max": 2, "step": 1},
    }
    cloud.world.change_host("1", inventory={"VCPU": {"allocation_ratio": 4.0}})
    assert cloud.look_up(HOST, "1").capacity["VCPU"] == 128
    assert cloud.look_up(HOST, "1").limits == {"VCPU": {"min": 1, "max": 32, "step": 1}}
    instances = cloud.world.instances
    for name, vcpus, ram in (("wide", 3, 1024), ("odd", 1, 1500)):
        instances.add_flavor(name, vcpus=vcpus, ram=ram)
        with pytest.raises(NoValidHost):
            instances.boot(OWNER, name, host=host)
    instances.add_flavor("right", vcpus=2, ram=1024)
    assert [instances.boot(OWNER, "right", host=host) for _ in range(3)]
    with pytest.raises(NoValidHost):
        instances.boot(OWNER, "right", host=host)


def test_reserved_units_never_count_as_capacity(cloud: SimulatedCloud):
    before = cloud.discover(HOST)
    cloud.ensure_started(reserved(cloud, "1", "2", units=3))
    assert cloud.discover(HOST) == before
    assert cloud.world.instances.units("r-1") == {"1": 3, "2": 3}


def test_a_unit_is_no_use_where_the_host_is_full(cloud: SimulatedCloud):
    host = cloud.world.add_host("little", facts=SMALL)
    cloud.ensure_started(reserved(cloud, host, units=3))
    for _ in range(2):
        cloud.world.instances.boot(OWNER, "r-1")
    with pytest.raises(NoValidHost):
        cloud.world.instances.boot(OWNER, "r-1")


def test_a_flavor_that_is_not_to_be_seen_is_not_found(cloud: SimulatedCloud):
    cloud.ensure_started(reserved(cloud, "1"))
    for project, flavor in ((NEIGHBOUR, "r-1"), (OWNER, "6"), (OWNER, "no-such-flavor")):
        with pytest.raises(CloudNotFound, match=flavor):
            cloud.world.instances.boot(project, flavor)
    cloud.world.instances.give_access("6", OWNER)
    assert cloud.world.instances.boot(OWNER, "6")


def test_access_to_the_flavor_gives_no_other_project_the_reservation(cloud: SimulatedCloud):
    cloud.ensure_started(reserved(cloud, "1"))
    cloud.world.instances.give_access("r-1", NEIGHBOUR)
    with pytest.raises(NoValidHost):
        cloud.world.instances.boot(NEIGHBOUR, "r-1")


def test_a_host_that_is_down_takes_nothing(cloud: SimulatedCloud):
    cloud.ensure_started(reserved(cloud, "1", "2"))
    cloud.world.mark_host("1", HostHealth.DOWN)
    cloud.world.instances.boot(OWNER, "r-1")
    assert [server.host for server in cloud.world.servers()] == ["2"]


@pytest.mark.parametrize(("affinity", "hosts"), [(True, ["1", "1"]), (False, ["1", "2"])])
def test_servers_are_placed_by_the_policy_of_their_group(cloud: SimulatedCloud, affinity: bool, hosts: list[str]):
    group = cloud.ensure_started(reserved(cloud, "1", "2", units=2, affinity=affinity)).effects["server_group_id"]
    assert isinstance(group, str)
    booted = [cloud.world.instances.boot(OWNER, "r-1", group=group) for _ in range(2)]
    assert [server.host for server in cloud.world.servers()] == hosts
    assert cloud.world.instances.server_groups()[group].members == tuple(booted)
    with pytest.raises(NoValidHost):
        cloud.world.instances.boot(OWNER, "r-1", group=group)
    assert cloud.world.instances.boot(OWNER, "r-1")  # who does not name the group is not held to it


def test_a_group_is_its_projects_own(cloud: SimulatedCloud):
    group = cloud.world.instances.make_group(NEIGHBOUR, "mine", "affinity")
    with pytest.raises(CloudNotFound, match=group):
        cloud.world.instances.boot(OWNER, "1", group=group)
    assert cloud.world.instances.boot(NEIGHBOUR, "1", group=group)


def test_an_end_finds_a_server_that_was_moved(cloud: SimulatedCloud):
    command = reserved(cloud, "1")
    cloud.ensure_started(command)
    server = cloud.world.instances.boot(OWNER, "r-1")
    cloud.world.move_server(server, "8")
    assert [server.host for server in cloud.world.servers()] == ["8"]
    assert cloud.ensure_ended(command).done
    assert cloud.world.servers() == []


def test_aggregates_and_groups_of_others_are_none_of_ours(cloud: SimulatedCloud):
    cloud.world.instances.make_group(NEIGHBOUR, "reservation:r-1", "affinity")
    command = reserved(cloud, "1", affinity=False)
    group = cloud.ensure_started(command).effects["server_group_id"]
    assert len(cloud.world.instances.server_groups()) == 2
    assert cloud.drift(HOST, [command], []) == []
    assert cloud.world.instances.boot(OWNER, "r-1", group=str(group))


def test_addresses_are_taken_once(cloud: SimulatedCloud):
    cloud.world.addresses.take("203.0.113.10", OWNER)
    with pytest.raises(CloudRefused, match=r"203\.0\.113\.10"):
        cloud.world.addresses.take("203.0.113.10", NEIGHBOUR)


def test_networks_come_and_go(cloud: SimulatedCloud):
    world = cloud.world.addresses
    network = world.add_network("lab")
    world.add_subnet(network, "198.51.100.0/24", gateway="198.51.100.1", pools=[("198.51.100.8", "198.51.100.15")])
    found = cloud.look_up("virtual:floatingip", f"{network}/198.51.100.7")
    ref = ResourceRef(found.external_id, found.name)
    cloud.ensure_registered("virtual:floatingip", ref)
    world.take("198.51.100.7", NEIGHBOUR, network_id=network)
    assert set(world.floating_ips(network)) == {"198.51.100.7"}
    world.remove_network(network)
    assert world.floating_ips(network) == {}
    cloud.ensure_unregistered("virtual:floatingip", ref)


def test_any_leftover_of_a_reservation_is_found(cloud: SimulatedCloud):
    """Except a resource class alone, which blocks no other reservation."""
    command = reserved(cloud, "1", affinity=True)
    cloud.ensure_started(command)
    world = cloud.world.instances
    for nouns, remove in (
        ({"aggregate", "resource class", "inventory", "server group"}, lambda: world.delete_flavor("r-1")),
        ({"resource class", "inventory", "server group"}, lambda: world.delete_aggregate("r-1")),
    ):
        remove()
        assert world.traces("r-1") == nouns
        assert list(cloud.held(HOST)) == ["r-1"]
    assert cloud.ensure_ended(command).done
    assert list(cloud.held(HOST)) == []


def test_a_marked_address_in_another_project_is_given_to_its_owner(cloud: SimulatedCloud):
    world = cloud.world.addresses
    found = cloud.look_up("virtual:floatingip", f"{world.public}/203.0.113.10")
    address = ResourceRef(found.external_id, found.name)
    command = command_of(address, resource_type="virtual:floatingip")
    command = replace(command, parameters={"network_id": world.public})
    world.take(address.name, NEIGHBOUR)
    world.change_tags(address.name, {"blazar", "reservation:r-1"})
    assert [drift.resource for drift in cloud.drift("virtual:floatingip", [command], [])] == [address]
    cloud.ensure_started(command)
    assert world.floating_ips()[address.name].project_id == OWNER
    assert cloud.drift("virtual:floatingip", [command], []) == []


DEVICE = "CUSTOM_PCI_10DE_20B0"
FAST, SLOW = "CUSTOM_FAST", "CUSTOM_SLOW"


def with_devices(cloud: SimulatedCloud, *devices: tuple[str, int]) -> str:
    """Add a host with a provider for each trait, with as many devices of it; return the host."""
    host = cloud.world.add_host("with-devices")
    for number, (trait, total) in enumerate(devices):
        cloud.world.add_provider(host, f"with-devices_{number}", {DEVICE: {"total": total}}, [trait])
    return host


def test_devices_come_from_providers_below_the_host(cloud: SimulatedCloud):
    with_devices(cloud, (FAST, 1), (FAST, 1))
    cloud.world.instances.add_flavor("one", extra_specs={"resources:VCPU": "0", f"resources1:{DEVICE}": "1"})
    servers = [cloud.world.instances.boot(OWNER, "one") for _ in range(2)]
    assert {server.host for server in cloud.world.servers()} == {cloud.look_up(HOST, "with-devices").external_id}
    with pytest.raises(NoValidHost):
        cloud.world.instances.boot(OWNER, "one")
    taken = [cloud.openstack.allocated(cloud.openstack.servers[server]) for server in servers]
    assert [sum(amounts.get(DEVICE, 0) for amounts in of_server.values()) for of_server in taken] == [1, 1]
    assert [sorted(amounts) for amounts in taken[0].values()] == [["DISK_GB", "MEMORY_MB"], [DEVICE]]
    assert taken[0].keys() != taken[1].keys()
    cloud.world.delete_server(servers[0])
    assert cloud.world.instances.boot(OWNER, "one")


def test_a_group_comes_from_one_provider(cloud: SimulatedCloud):
    with_devices(cloud, (FAST, 2), (SLOW, 1))
    instances = cloud.world.instances
    instances.add_flavor("three", extra_specs={f"resources1:{DEVICE}": "3"})
    instances.add_flavor("two", extra_specs={f"resources1:{DEVICE}": "2"})
    instances.add_flavor("one and one", extra_specs={f"resources1:{DEVICE}": "1", f"resources2:{DEVICE}": "1"})
    with pytest.raises(NoValidHost):
        instances.boot(OWNER, "three")
    assert instances.boot(OWNER, "two")
    with pytest.raises(NoValidHost):
        instances.boot(OWNER, "one and one")


def test_a_group_comes_from_a_provider_with_its_traits(cloud: SimulatedCloud):
    with_devices(cloud, (SLOW, 2), (FAST, 1))
    instances = cloud.world.instances
    instances.add_flavor("fast", extra_specs={f"resources1:{DEVICE}": "1", f"trait1:{FAST}": "required"})
    instances.add_flavor("not fast", extra_specs={f"resources1:{DEVICE}": "1", f"trait1:{FAST}": "forbidden"})
    # Without a group, a trait of the device counts if the device is taken.
    instances.add_flavor("no device", extra_specs={f"trait:{FAST}": "required"})
    assert instances.boot(OWNER, "fast")
    with pytest.raises(NoValidHost):
        instances.boot(OWNER, "fast")
    assert [instances.boot(OWNER, "not fast") for _ in range(2)]
    for flavor in ("not fast", "no device"):
        with pytest.raises(NoValidHost):
            instances.boot(OWNER, flavor)


def test_a_server_that_moves_leaves_its_devices(cloud: SimulatedCloud):
    host = with_devices(cloud, (FAST, 1))
    cloud.world.instances.add_flavor("one", extra_specs={f"resources1:{DEVICE}": "1"})
    server = cloud.world.instances.boot(OWNER, "one")
    other = cloud.world.add_host("other")
    cloud.world.add_provider(other, "other_0", {DEVICE: {"total": 1}})
    cloud.world.move_server(server, other)
    assert cloud.world.instances.boot(OWNER, "one", host=host)
    with pytest.raises(NoValidHost):
        cloud.world.instances.boot(OWNER, "one", host=other)
