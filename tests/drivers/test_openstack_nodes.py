"""What the driver of OpenStack clouds does with nodes of Ironic, of which many share one compute service."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from tenure.domain.actor import Actor
from tenure.drivers.contract import CloudRefused, ResourceOccupied, ResourceRef
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.testing.rig import command_of
from tests.drivers.rigs import HOST, command_for, ended
from tests.support.openstack import NEIGHBOUR, OWNER, POOL, FakeOpenStack, Provider, Seen, inventory

SERVICE = "ironic-1"
IRON, COPPER, LEAD = (f"{digit * 8}-0000-4000-8000-{digit * 12}" for digit in "abc")
CLASS = "CUSTOM_BAREMETAL"


@pytest.fixture
def nodes(cloud: FakeOpenStack, driver: OpenStackCloud) -> dict[str, ResourceRef]:
    """Three nodes of one service, of which the last is not registered."""
    cloud.classes[CLASS] = True
    found = {}
    for name in (IRON, COPPER, LEAD):
        provider = Provider(name, inventories={CLASS: inventory(1)}, traits=["CUSTOM_METAL"], uuid=name)
        cloud.provide(provider)
        sizes = {"vcpus": 0, "memory_mb": 0, "local_gb": 0}
        host = cloud.add_host(name, SERVICE, hypervisor_type="ironic", **sizes)
        found[name] = ResourceRef(host.id, name)
    for name in (IRON, COPPER):
        driver.ensure_registered(HOST, found[name])
    return found


def members(cloud: FakeOpenStack, name: str) -> set[str]:
    aggregate = cloud.aggregate(name)
    return set() if aggregate is None else set(aggregate.members)


def test_a_node_has_its_class_and_its_traits(driver: OpenStackCloud, nodes: dict[str, ResourceRef]):
    found = driver.look_up(HOST, IRON)
    assert dict(found.capacity) == {CLASS: 1}
    assert found.traits == {"CUSTOM_METAL"}
    assert (found.facts["service_name"], found.facts["hypervisor_type"]) == (SERVICE, "ironic")
    assert found.facts["resource_class"] == CLASS


def test_a_node_in_use_still_has_its_class(cloud: FakeOpenStack, driver: OpenStackCloud, nodes: dict[str, ResourceRef]):
    """Nova reserves it in Placement while a server is on the node, or the node is being cleaned."""
    cloud.providers[IRON].inventories[CLASS] = inventory(1, reserved=1)
    assert dict(driver.look_up(HOST, IRON).capacity) == {CLASS: 1}


def test_no_service_is_put_into_an_aggregate(
    cloud: FakeOpenStack, driver: OpenStackCloud, nodes: dict[str, ResourceRef]
):
    command = command_for(nodes[IRON])
    assert driver.ensure_started(command).done
    assert (members(cloud, POOL), members(cloud, command.reservation_id)) == ({COPPER}, {IRON})
    assert all(aggregate.hosts == [] for aggregate in cloud.aggregates.values())
    assert ended(driver, command).done
    assert members(cloud, POOL) == {IRON, COPPER}
    assert cloud.aggregate(command.reservation_id) is None


def test_nodes_of_one_service_belong_to_different_owners(
    cloud: FakeOpenStack, driver: OpenStackCloud, nodes: dict[str, ResourceRef]
):
    mine = command_for(nodes[IRON])
    other = command_for(nodes[COPPER], project_id=NEIGHBOUR, reservation_id=str(uuid.uuid4()))
    for command in (mine, other):
        assert driver.ensure_started(command).done
    assert cloud.boot(IRON, NEIGHBOUR, mine.reservation_id) is None
    assert cloud.boot(COPPER, OWNER, mine.reservation_id) is None
    assert cloud.boot(LEAD, NEIGHBOUR) is not None
    my_server = cloud.boot(IRON, OWNER, mine.reservation_id)
    other_server = cloud.boot(COPPER, NEIGHBOUR, other.reservation_id)
    assert my_server in cloud.servers
    assert ended(driver, mine).done
    assert my_server not in cloud.servers
    assert other_server in cloud.servers
    assert members(cloud, other.reservation_id) == {COPPER}


def test_servers_on_other_nodes_of_the_service_are_in_nobodys_way(
    cloud: FakeOpenStack, driver: OpenStackCloud, nodes: dict[str, ResourceRef]
):
    cloud.force(LEAD, NEIGHBOUR)
    assert driver.ensure_started(command_for(nodes[IRON])).done
    cloud.force(COPPER, NEIGHBOUR)
    with pytest.raises(ResourceOccupied, match=COPPER):
        driver.ensure_started(command_for(nodes[COPPER]))
    with pytest.raises(ResourceOccupied, match=LEAD):
        driver.ensure_registered(HOST, nodes[LEAD])


def test_a_node_with_a_server_of_others_does_not_leave_the_reservation(
    cloud: FakeOpenStack, driver: OpenStackCloud, nodes: dict[str, ResourceRef]
):
    """As Nova itself refuses for a compute service: the node would be given to the next lease with that server."""
    command = command_for(nodes[IRON])
    assert driver.ensure_started(command).done
    foreign = cloud.force(IRON, NEIGHBOUR)
    progress = driver.ensure_ended(command)
    assert not progress.done
    assert foreign in str(progress.reason)
    assert members(cloud, command.reservation_id) == {IRON}
    del cloud.servers[foreign]
    assert ended(driver, command).done
    assert members(cloud, POOL) == {IRON, COPPER}


def test_a_node_that_a_late_start_has_added_keeps_the_aggregate(
    cloud: FakeOpenStack, driver: OpenStackCloud, nodes: dict[str, ResourceRef]
):
    """Nova deletes an aggregate without services, and the node would be in none."""
    command = command_for(nodes[IRON])
    assert driver.ensure_started(command).done
    group = cloud.aggregate(command.reservation_id)
    assert group is not None

    def add_late(seen: Seen) -> None:
        if (seen.method, seen.path) == ("GET", "/v2.1/os-aggregates") and not group.members:
            group.metadata[f"tenure:node:{IRON}"] = "true"
            cloud.instead = lambda _seen: None

    cloud.instead = add_late
    assert not driver.ensure_ended(command).done
    assert members(cloud, command.reservation_id) == {IRON}
    assert ended(driver, command).done
    assert (members(cloud, POOL), cloud.aggregate(command.reservation_id)) == ({IRON, COPPER}, None)


def test_a_server_on_a_node_is_reserved_in_its_place_only(
    cloud: FakeOpenStack, driver: OpenStackCloud, nodes: dict[str, ResourceRef]
):
    """Ironic can neither shelve a server nor move it: it is stopped instead, and no lease may need more."""
    server = cloud.servers[str(cloud.boot(LEAD, OWNER))]
    with pytest.raises(CloudRefused, match="Ironic"):
        driver.fetch("server", server.id, Actor("u", OWNER))
    parameters = {"server_id": server.id, "in_place": True, "at_end": "shelve"}
    command = replace(command_of(resource_type="virtual:server"), parameters=parameters)
    assert driver.ensure_started(command).done
    adopted = replace(command, effects={"adopted_server_id": server.id})
    *_, last = [driver.ensure_ended(adopted) for _ in range(3)]
    assert (last.done, server.status) == (True, "SHUTOFF")


def test_drift_is_told_by_node(cloud: FakeOpenStack, driver: OpenStackCloud, nodes: dict[str, ResourceRef]):
    command = command_for(nodes[IRON])
    assert driver.ensure_started(command).done
    registered = [nodes[COPPER]]
    assert driver.drift(HOST, [command], registered) == []
    for name in (command.reservation_id, POOL):
        aggregate = cloud.aggregate(name)
        assert aggregate is not None
        for node in (IRON, COPPER):
            aggregate.metadata.pop(f"tenure:node:{node}", None)
    texts = sorted(found.text for found in driver.drift(HOST, [command], registered))
    assert texts == [f"{IRON} is in general use", f"{COPPER} is not in the pool"]


def test_a_service_in_the_aggregate_of_a_reservation_endangers_no_servers(
    cloud: FakeOpenStack, driver: OpenStackCloud, nodes: dict[str, ResourceRef]
):
    """As Blazar has left it there: what runs on its nodes is not deleted with it."""
    command = command_for(nodes[IRON])
    assert driver.ensure_started(command).done
    server = cloud.boot(IRON, OWNER, command.reservation_id)
    group = cloud.aggregate(command.reservation_id)
    assert group is not None
    group.hosts.append(SERVICE)
    driver.ensure_started(command)
    assert server in cloud.servers
    assert IRON in members(cloud, command.reservation_id)
