"""Bare metal: nodes of Ironic, of which many share one compute service, are hosts of their own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.rig import FLAVORS, HOSTS, USERS, Api
from tests.support.simulated.instances import NoValidHost

SERVICE = "ironic-1"
GOLD, BIG, SPARE = (f"{digit * 8}-0000-4000-8000-{digit * 12}" for digit in "abc")
DEMO, OTHER = (USERS[name].project_id for name in ("demo", "other"))
#: The traits of nodes, as Ironic has them.
TRAITS = {GOLD: ["CUSTOM_FAST_NET"], BIG: ["CUSTOM_FAST_NET", "CUSTOM_BIG"], SPARE: []}
#: What a flavor of Ironic asks for: a class, and nothing of what hypervisors have.
FLAVOR = {"resources:CUSTOM_BAREMETAL": "1", **{f"resources:{name}": "0" for name in ("VCPU", "MEMORY_MB", "DISK_GB")}}


@pytest.fixture
def nodes(api: Api) -> Api:
    """Three nodes of one service; the last one is not registered. There are no free hosts beside them."""
    admin = api.using("admin")
    for host in admin.get("/v1/os-hosts").json["hosts"]:
        assert admin.delete(f"/v1/os-hosts/{host['id']}").status_code == 204
    for name, traits in TRAITS.items():
        sizes = {"vcpus": 0, "memory_mb": 0, "local_gb": 0}
        api.world.cloud.world.add_host(
            name,
            facts={"hypervisor_type": "ironic", "service_name": SERVICE, **sizes},
            traits=traits,
            inventory={"CUSTOM_BAREMETAL": {"total": 1}},
        )
    api.world.cloud.world.instances.add_flavor("metal", extra_specs=FLAVOR)
    for name in (GOLD, BIG):
        made = admin.post("/v1/os-hosts", {"name": name})
        assert made.status_code == 201, made.text
    return api


def boot(api: Api, project_id: str, reservation_id: str | None = None) -> str:
    """Boot a server of the flavor as Nova schedules it; the name of the node that it is on."""
    world = api.world.cloud.world
    server = world.boot_server(project_id, reservation_id=reservation_id, flavor_id="metal")
    [found] = [known for known in world.servers() if known.id == server]
    return world.host(found.host).name


def lease_of(api: Api, user: str, **more: Any) -> dict[str, Any]:
    return api.using(user).book(start=0, hours=2, reservations=[{**HOSTS, **more}])


def test_nodes_of_one_service_are_hosts_of_their_own(nodes: Api) -> None:
    shown = {host["hypervisor_hostname"]: host for host in nodes.using("admin").get("/v1/os-hosts").json["hosts"]}
    assert shown.keys() == {GOLD, BIG}
    assert {host["service_name"] for host in shown.values()} == {SERVICE}
    assert {host["hypervisor_type"] for host in shown.values()} == {"ironic"}


def test_a_node_that_is_not_registered_stays_open_to_all(nodes: Api) -> None:
    assert boot(nodes, OTHER) == SPARE
    with pytest.raises(NoValidHost):
        boot(nodes, OTHER)


def test_nodes_of_one_service_are_reserved_apart(nodes: Api) -> None:
    mine = lease_of(nodes, "demo", resource_properties='["==", "$trait:CUSTOM_BIG", "required"]')
    other = lease_of(nodes, "other")
    nodes.world.engine.settle()
    [my_id], [other_id] = ([found["id"] for found in lease["reservations"]] for lease in (mine, other))
    with pytest.raises(NoValidHost):
        boot(nodes, OTHER, my_id)
    assert boot(nodes, DEMO, my_id) == BIG
    assert boot(nodes, OTHER, other_id) == GOLD
    with pytest.raises(NoValidHost):  # it has one node only
        boot(nodes, DEMO, my_id)
    assert boot(nodes, DEMO) == SPARE


def test_a_node_is_asked_for_by_its_class(nodes: Api) -> None:
    nodes.world.cloud.world.change_host(GOLD, inventory={"CUSTOM_GOLD": {"total": 1}})
    nodes.world.service.refresh.run()
    lease_of(nodes, "demo", resource_properties='["==", "$resource_class", "CUSTOM_GOLD"]')
    asked = {**HOSTS, "resource_properties": '["==", "$resource_class", "CUSTOM_GOLD"]'}
    refused = nodes.using("other").post("/v1/leases", nodes.lease_body(start=0, hours=1, reservations=[asked]))
    assert refused.status_code == 400
    lease_of(nodes, "other", resource_properties='["==", "$resource_class", "CUSTOM_BAREMETAL"]')


def test_a_third_lease_finds_no_node(nodes: Api) -> None:
    lease_of(nodes, "demo", min=2, max=2)
    refused = nodes.using("other").post("/v1/leases", nodes.lease_body(start=0, hours=1, reservations=[HOSTS]))
    assert refused.status_code == 400
    assert "Not enough hosts available" in refused.json["error_message"]


def test_the_end_deletes_the_servers_of_its_own_node_only(nodes: Api) -> None:
    mine = lease_of(nodes, "demo", resource_properties='["==", "$trait:CUSTOM_BIG", "required"]')
    other = lease_of(nodes, "other")
    nodes.world.engine.settle()
    for lease, project_id in ((mine, DEMO), (other, OTHER)):
        boot(nodes, project_id, lease["reservations"][0]["id"])
    assert nodes.using("demo").delete(f"/v1/leases/{mine['id']}").status_code == 204
    nodes.world.engine.settle()
    world = nodes.world.cloud.world
    assert [(server.project_id, world.host(server.host).name) for server in world.servers()] == [(OTHER, GOLD)]
    assert {world.host(host).name for host in world.pool()} == {BIG}
    again = lease_of(nodes, "demo")
    nodes.world.engine.settle()
    assert boot(nodes, DEMO, again["reservations"][0]["id"]) == BIG


def test_a_node_with_a_server_is_not_registered_and_its_neighbours_are_looked_at_alone(nodes: Api) -> None:
    assert boot(nodes, OTHER) == SPARE
    refused = nodes.using("admin").post("/v1/os-hosts", {"name": SPARE})
    assert refused.status_code == 409
    assert SPARE in refused.json["error_message"]


def test_an_unregistered_node_is_open_again(nodes: Api) -> None:
    admin = nodes.using("admin")
    [gold] = [host for host in admin.get("/v1/os-hosts").json["hosts"] if host["hypervisor_hostname"] == GOLD]
    assert admin.delete(f"/v1/os-hosts/{gold['id']}").status_code == 204
    assert {boot(nodes, OTHER), boot(nodes, OTHER)} == {GOLD, SPARE}
    with pytest.raises(NoValidHost):
        boot(nodes, OTHER)


def test_a_node_that_leaves_the_pool_is_put_back(nodes: Api) -> None:
    nodes.world.cloud.world.take_out(GOLD)
    nodes.world.service.reconciler.run()
    nodes.world.engine.settle()
    world = nodes.world.cloud.world
    assert {world.host(host).name for host in world.pool()} == {GOLD, BIG}


def test_a_node_in_use_keeps_its_class(nodes: Api) -> None:
    """Nova reserves all that a node has while a server is on it; a reservation of its class stays possible later."""
    world = nodes.world.cloud.world
    reservation = {**FLAVORS, "flavor_id": "metal", "amount": 2}
    for name in (GOLD, BIG):
        world.change_host(name, inventory={"CUSTOM_BAREMETAL": {"total": 1, "reserved": 1}})
    nodes.world.service.refresh.run()
    made = nodes.using("demo").post("/v1/leases", nodes.lease_body(start=10, reservations=[reservation]))
    assert made.status_code == 201, made.text


def test_a_flavor_is_reserved_on_nodes_of_its_class(nodes: Api) -> None:
    lease = nodes.using("demo").book(start=0, reservations=[{**FLAVORS, "flavor_id": "metal", "amount": 2}])
    nodes.world.engine.settle()
    [reservation] = lease["reservations"]
    world = nodes.world.cloud.world
    booted = [world.instances.boot(DEMO, reservation["id"]) for _ in range(2)]
    hosts = {server.id: world.host(server.host).name for server in world.servers()}
    assert {hosts[server] for server in booted} == {GOLD, BIG}
    with pytest.raises(NoValidHost):
        world.instances.boot(DEMO, reservation["id"])
