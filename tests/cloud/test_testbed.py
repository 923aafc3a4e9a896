"""The testbed is as its guide describes it; other tests of a real cloud rely on that."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Any

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.identity import V3Password
from keystoneauth1.session import Session

from tests.support.cloud import Cloud, Undo
from tests.support.waiting import wait_for

SIZES = {
    "compute-1": {"VCPU": 8, "MEMORY_MB": 16384, "DISK_GB": 200},
    "compute-2": {"VCPU": 8, "MEMORY_MB": 16384, "DISK_GB": 200},
    "compute-3": {"VCPU": 16, "MEMORY_MB": 32768, "DISK_GB": 400},
    "compute-4": {"VCPU": 8, "MEMORY_MB": 16384, "DISK_GB": 200, "CUSTOM_GPU": 4, "CUSTOM_FPGA": 2},
}

#: The oldest that servers can be booted with without a network.
BOOTS_WITHOUT_NETWORK = "2.37"


@pytest.fixture
def compute(cloud: Cloud, demo: Session) -> Adapter:
    return cloud.service(demo, "compute", BOOTS_WITHOUT_NETWORK)


@pytest.fixture
def server(cloud: Cloud, demo: Session, compute: Adapter, undo: Undo) -> Callable[[], dict[str, Any]]:
    """A function that shows a server that was booted with no network and runs."""
    (image,) = cloud.service(demo, "image").get("/v2/images?name=tiny").json()["images"]
    (flavor,) = (f for f in compute.get("/flavors").json()["flavors"] if f["name"] == "m1.tiny")
    wanted = {"name": "of-a-test", "imageRef": image["id"], "flavorRef": flavor["id"], "networks": "none"}
    address = f"/servers/{compute.post('/servers', json={'server': wanted}).json()['server']['id']}"

    def show() -> dict[str, Any]:
        return dict(compute.get(address).json()["server"])

    def delete() -> None:
        compute.delete(address)
        wait_for("the end of the server", lambda: compute.get(address, raise_exc=False).status_code == 404)

    undo.append(delete)
    wait_for("the server to run", lambda: show()["status"] in {"ACTIVE", "ERROR"})
    assert show()["status"] == "ACTIVE", show().get("fault")
    return show


def providers(placement: Adapter) -> dict[str, str]:
    found = placement.get("/resource_providers").json()["resource_providers"]
    return {provider["name"]: provider["uuid"] for provider in found}


def test_four_compute_hosts_are_up(cloud: Cloud, admin: Session):
    services = cloud.service(admin, "compute").get("/os-services?binary=nova-compute").json()["services"]
    assert {service["host"]: service["state"] for service in services} == dict.fromkeys(SIZES, "up")
    assert {service["status"] for service in services} == {"enabled"}


def test_each_host_has_its_own_size(cloud: Cloud, admin: Session):
    placement = cloud.service(admin, "placement")
    sizes = {
        name: {
            resource_class: inventory["total"]
            for resource_class, inventory in placement.get(f"/resource_providers/{uuid}/inventories")
            .json()["inventories"]
            .items()
        }
        for name, uuid in providers(placement).items()
        if name in SIZES
    }
    assert sizes == SIZES


def test_one_host_has_traits_of_its_own(cloud: Cloud, admin: Session):
    placement = cloud.service(admin, "placement", "1.6")
    known = providers(placement)
    traits = {name: set(placement.get(f"/resource_providers/{known[name]}/traits").json()["traits"]) for name in SIZES}
    nvme, cooled = "CUSTOM_NVME_SCRATCH", "CUSTOM_LIQUID_COOLED"
    assert [name for name in SIZES if nvme in traits[name]] == ["compute-4"]
    assert [name for name in SIZES if cooled in traits[name]] == ["compute-4"]


def test_the_external_network_has_addresses_outside_of_its_pool(cloud: Cloud, admin: Session):
    network = cloud.service(admin, "network")
    (public,) = network.get("/v2.0/networks?name=public").json()["networks"]
    (subnet,) = network.get(f"/v2.0/subnets?network_id={public['id']}").json()["subnets"]
    (pool,) = subnet["allocation_pools"]
    assert public["router:external"] is True
    assert subnet["cidr"] == "172.24.4.0/24"
    assert IPv4Address(pool["start"]) > IPv4Address("172.24.4.99")


def test_a_floating_ip_outside_of_the_pool_can_be_made(cloud: Cloud, admin: Session, undo: Undo):
    network = cloud.service(admin, "network")
    (public,) = network.get("/v2.0/networks?name=public").json()["networks"]
    wanted = {"floating_network_id": public["id"], "floating_ip_address": "172.24.4.99"}
    made = network.post("/v2.0/floatingips", json={"floatingip": wanted}).json()["floatingip"]
    undo.append(lambda: network.delete(f"/v2.0/floatingips/{made['id']}"))
    assert made["floating_ip_address"] == "172.24.4.99"


def test_a_volume_can_be_made_and_deleted(cloud: Cloud, demo: Session):
    volumes = cloud.service(demo, "block-storage")
    address = f"/volumes/{volumes.post('/volumes', json={'volume': {'size': 1}}).json()['volume']['id']}"

    def status() -> str:
        return str(volumes.get(address).json()["volume"]["status"])

    wait_for("the volume", lambda: status() in {"available", "error"})
    assert status() == "available"
    volumes.delete(address)
    wait_for("the end of the volume", lambda: volumes.get(address, raise_exc=False).status_code == 404)


def test_a_server_boots_without_a_network(server: Callable[[], dict[str, Any]]):
    assert server()["addresses"] == {}


def test_a_server_is_shelved_and_comes_back(server: Callable[[], dict[str, Any]], compute: Adapter):
    action = f"/servers/{server()['id']}/action"
    compute.post(action, json={"shelve": None})
    wait_for("the server to be shelved", lambda: server()["status"] == "SHELVED_OFFLOADED")
    compute.post(action, json={"unshelve": None})
    wait_for("the server to run again", lambda: server()["status"] in {"ACTIVE", "ERROR"})
    assert server()["status"] == "ACTIVE"


def roles(session: Session) -> set[str]:
    assert isinstance(session.auth, V3Password)
    return set(session.auth.get_access(session).role_names or ())


def test_users_are_no_administrators(demo: Session, other: Session, service_account: Session):
    assert roles(demo) == roles(other) == {"member", "reader"}
    assert roles(service_account) >= {"admin", "service"}
