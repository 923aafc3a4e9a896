"""Reservations of floating IPs, as Neutron and their users see them, from the start to the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session

from tests.support.cloud import Cloud, Undo
from tests.support.site import Lease, Site, answered, open_site
from tests.support.waiting import wait_for

#: Addresses outside the allocation pool, none of them a gateway.
FREE, TOO, THIRD = "172.24.4.12", "172.24.4.13", "172.24.4.14"
POOLED, GATEWAY, ELSEWHERE = "172.24.4.150", "172.24.4.1", "198.51.100.7"


@pytest.fixture(scope="module")
def public(cloud: Cloud) -> str:
    """The network that addresses are taken from."""
    admin = cloud.service(cloud.session("admin"), "network")
    return str(admin.get("/v2.0/networks?name=public").json()["networks"][0]["id"])


def neutron(site: Site, session: Session) -> Adapter:
    return site.cloud.service(session, "network")


def addresses(network: Adapter) -> dict[str, dict[str, Any]]:
    """The floating IPs that an account sees, by their addresses."""
    found = network.get("/v2.0/floatingips").json()["floatingips"]
    return {floating_ip["floating_ip_address"]: floating_ip for floating_ip in found}


def register(site: Site, public: str, *wanted: str) -> None:
    for address in wanted:
        body = {"floating_network_id": public, "floating_ip_address": address}
        answered(site.admin.post("/floatingips", json=body), 201)


def reserve(site: Site, by: Session, public: str, amount: int, *required: str) -> Lease:
    asked: dict[str, object] = {"resource_type": "virtual:floatingip", "network_id": public, "amount": amount}
    return site.reserve(by, {**asked, "required_floatingips": list(required)})


@pytest.fixture
def port(site: Site, public: str, demo: Session, undo: Undo) -> str:
    """A port behind a router to the outside, all of the project ``demo``."""
    mine = neutron(site, demo)

    def made(kind: str, **values: object) -> str:
        object_id = str(mine.post(f"/v2.0/{kind}s", json={kind: values}).json()[kind]["id"])
        undo.append(lambda: mine.delete(f"/v2.0/{kind}s/{object_id}"))
        return object_id

    network = made("network", name="of-a-test")
    subnet = made("subnet", network_id=network, ip_version=4, cidr="10.20.30.0/28")
    router = made("router", name="of-a-test", external_gateway_info={"network_id": public})
    mine.put(f"/v2.0/routers/{router}/add_router_interface", json={"subnet_id": subnet})
    undo.append(lambda: mine.put(f"/v2.0/routers/{router}/remove_router_interface", json={"subnet_id": subnet}))
    return made("port", network_id=network)


def test_addresses_belong_to_the_owner_during_the_lease(
    site: Site, public: str, port: str, demo: Session, other: Session
):
    register(site, public, FREE, TOO)
    lease = reserve(site, demo, public, 1, FREE)
    lease.wait("ACTIVE")
    mine, theirs = neutron(site, demo), neutron(site, other)
    assert addresses(mine).keys() == {FREE}
    assert set(addresses(mine)[FREE]["tags"]) == {"blazar", f"reservation:{lease.reservation}"}
    used = {"floatingip": {"port_id": port}}
    assert (
        mine.put(f"/v2.0/floatingips/{addresses(mine)[FREE]['id']}", json=used).json()["floatingip"]["port_id"] == port
    )

    stranger = {"floatingip": {"floating_network_id": public, "floating_ip_address": FREE}}
    assert theirs.post("/v2.0/floatingips", json=stranger, raise_exc=False).status_code in {403, 409}
    assert theirs.get(f"/v2.0/floatingips/{addresses(mine)[FREE]['id']}", raise_exc=False).status_code == 404
    assert reserve_refused(site, other, public, FREE)["error_name"] == "NotEnoughResources"

    lease.change(reservations=[{"id": lease.reservation, "amount": 2}])
    wait_for("the second address", lambda: addresses(mine).keys() == {FREE, TOO})
    assert addresses(mine)[FREE]["port_id"] == port

    lease.change(end_date="now")
    lease.wait("TERMINATED")
    assert addresses(mine) == {}
    assert not addresses(neutron(site, site.nova.admin)).keys() & {FREE, TOO}
    again = reserve(site, other, public, 2)
    again.wait("ACTIVE")
    assert addresses(theirs).keys() == {FREE, TOO}


def reserve_refused(site: Site, by: Session, public: str, address: str) -> dict[str, Any]:
    asked = {"resource_type": "virtual:floatingip", "network_id": public, "amount": 1}
    body = {"name": "refused", "start_date": "now", "end_date": "2099-01-01T00:00:00Z"}
    body |= {"reservations": [{**asked, "required_floatingips": [address]}]}  # type: ignore[dict-item]
    return dict(answered(site.api(by).post("/leases", json=body), 409))


def test_only_addresses_outside_of_allocation_pools_can_be_reserved(site: Site, public: str):
    for address, status, words in (
        (POOLED, 400, "allocation_pools"),
        (GATEWAY, 400, "gateway_ip"),
        (ELSEWHERE, 404, "subnet"),
    ):
        body = {"floating_network_id": public, "floating_ip_address": address}
        refused = answered(site.admin.post("/floatingips", json=body), status)
        assert words in refused["error_message"], refused
        assert refused["field"] == "floating_ip_address"
    body = {"floating_network_id": "5b0ab5c6-0000-4000-8000-000000000000", "floating_ip_address": FREE}
    assert answered(site.admin.post("/floatingips", json=body), 400)["field"] == "floating_network_id"
    assert answered(site.admin.get("/floatingips"), 200)["floatingips"] == []


@pytest.fixture(scope="module")
def reconciling(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tenure that looks often, and replaces what fails as soon as it sees that."""
    options = {
        "manager": {"reconcile_interval": 2},
        "physical:host": {"polling_interval": 2, "replace_after": 0},
    }
    with open_site(tmp_path_factory.mktemp("addresses"), cloud, options=options) as site:
        yield site


@pytest.fixture
def quick(reconciling: Site) -> Iterator[Site]:
    """The same, with nothing in it before the test nor after it."""
    yield reconciling
    reconciling.clear()


def test_a_deleted_address_comes_back(quick: Site, public: str, demo: Session):
    """The floating IP is deleted by mistake; the next comparison with the ledger makes it again."""
    site = quick
    register(site, public, FREE)
    lease = reserve(site, demo, public, 1)
    lease.wait("ACTIVE")
    mine = neutron(site, demo)
    lost = addresses(mine)[FREE]["id"]
    mine.delete(f"/v2.0/floatingips/{lost}")
    wait_for("the address to come back", lambda: FREE in addresses(mine), seconds=120)
    assert addresses(mine)[FREE]["id"] != lost
    wait_for("its tags", lambda: f"reservation:{lease.reservation}" in addresses(mine)[FREE]["tags"])


def test_an_address_taken_by_another_project_is_replaced(quick: Site, public: str, demo: Session, other: Session):
    """But for one that was asked for by its name, which is waited for."""
    site = quick
    register(site, public, FREE, TOO, THIRD)
    named, lease = reserve(site, demo, public, 1, FREE), reserve(site, demo, public, 1)
    for booked in (named, lease):
        booked.wait("ACTIVE")
    mine, admin = neutron(site, demo), neutron(site, site.nova.admin)
    (had,) = addresses(mine).keys() - {FREE}
    thefts = []
    for address in (FREE, had):
        admin.delete(f"/v2.0/floatingips/{addresses(admin)[address]['id']}")
        stolen = {"floating_network_id": public, "floating_ip_address": address, "project_id": other.get_project_id()}
        thefts.append(admin.post("/v2.0/floatingips", json={"floatingip": stolen}).json()["floatingip"]["id"])
    try:
        (spare,) = {TOO, THIRD} - {had}
        wait_for("another address", lambda: addresses(mine).keys() == {spare})
        wait_for(
            "the flags of the lease", lambda: named.show()["degraded"] and lease.show_reservation()["resources_changed"]
        )
        assert named.show_reservation()["missing_resources"]
    finally:
        for theft in thefts:
            admin.delete(f"/v2.0/floatingips/{theft}")
    wait_for("the address to come back", lambda: addresses(mine).keys() == {spare, FREE})
    wait_for("the lease to be well", lambda: not named.show()["degraded"])
