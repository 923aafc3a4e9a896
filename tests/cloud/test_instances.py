"""Reservations of instances and of flavors, as Nova and Placement see them, from the start to the end."""

from __future__ import annotations

from typing import Any

import pytest
from keystoneauth1.session import Session

from tests.support.cloud import Cloud
from tests.support.site import FREE_POOL, HOSTS, Lease, Site, answered, moment, open_site
from tests.support.waiting import wait_for

NO_VALID_HOST = "No valid host was found"


def instances(amount: int = 1, **more: object) -> dict[str, object]:
    return {"resource_type": "virtual:instance", "amount": amount, "vcpus": 1, "memory_mb": 512, "disk_gb": 1, **more}


def of_flavor(site: Site, amount: int = 1, name: str = "m1.tiny", **more: object) -> dict[str, object]:
    return {"resource_type": "flavor:instance", "flavor_id": site.nova.flavor(name), "amount": amount, **more}


def assert_nothing_left(site: Site, lease: Lease) -> None:
    assert lease.reservation not in site.nova.aggregates()
    assert site.nova.api.get(f"/flavors/{lease.reservation}", raise_exc=False).status_code == 404
    assert site.nova.placement.get(f"/resource_classes/{class_of(lease)}", raise_exc=False).status_code == 404
    groups = site.nova.api.get("/os-server-groups?all_projects=1").json()["server_groups"]
    assert f"reservation:{lease.reservation}" not in {group["name"] for group in groups}


@pytest.mark.parametrize("resource_type", ["virtual:instance", pytest.param("flavor:instance", marks=pytest.mark.long)])
def test_only_the_owner_boots_instances_up_to_their_number(
    site: Site, demo: Session, other: Session, resource_type: str
):
    """The hosts stay in the pool, closed to all other servers."""
    site.register(*HOSTS)
    asked = instances(2) if resource_type == "virtual:instance" else of_flavor(site, 2)
    lease = site.reserve(demo, asked)
    lease.wait("ACTIVE")
    found = lease.show_reservation()
    assert found["flavor_id"] == lease.reservation
    assert set(site.nova.members(lease.reservation) or ()) <= set(HOSTS)
    assert set(HOSTS) <= (site.nova.members(FREE_POOL) or set())
    mine = [site.nova.boot(demo, flavor=lease.reservation) for _ in range(2)]
    places = {server.place() for server in mine}
    assert places <= (site.nova.members(lease.reservation) or set())
    assert NO_VALID_HOST in site.nova.boot(demo, flavor=lease.reservation).place()
    assert NO_VALID_HOST in site.nova.boot(demo).place()
    denied = site.cloud.service(other, "compute", "2.87").get(f"/flavors/{lease.reservation}", raise_exc=False)
    assert denied.status_code == 404
    lease.delete()
    lease.wait_until_gone()
    assert [server.show() for server in mine] == [None, None]
    assert_nothing_left(site, lease)
    assert set(HOSTS) <= (site.nova.members(FREE_POOL) or set())


def test_instances_are_placed_by_affinity(site: Site, demo: Session):
    site.register(*HOSTS)
    apart, together = site.reserve(demo, instances(2, affinity=False)), site.reserve(demo, instances(2, affinity=True))
    for lease, count in ((apart, 2), (together, 1)):
        group = lease.show_reservation()["server_group_id"]
        assert group
        lease.wait("ACTIVE")
        servers = [site.nova.boot(demo, flavor=lease.reservation, group=group) for _ in range(2)]
        assert len({server.place() for server in servers}) == count
        lease.delete()
        lease.wait_until_gone()
        assert_nothing_left(site, lease)


def test_running_instances_grow(site: Site, demo: Session):
    site.register("compute-1")
    lease = site.reserve(demo, instances(1))
    lease.wait("ACTIVE")
    assert site.nova.boot(demo, flavor=lease.reservation).place() == "compute-1"
    assert NO_VALID_HOST in site.nova.boot(demo, flavor=lease.reservation).place()
    lease.change(reservations=[{"id": lease.reservation, "amount": 2}])
    lease.wait("ACTIVE")
    assert site.nova.boot(demo, flavor=lease.reservation).place() == "compute-1"
    assert "reduce" in lease.change(409, reservations=[{"id": lease.reservation, "amount": 1}])["error_message"]


def test_instances_run_on_hosts_with_the_resources_of_the_flavor(site: Site, demo: Session):
    """Four of a class that one host alone has, by a provider file."""
    site.register(*HOSTS)
    flavor = {"name": "gpu-of-a-test", "vcpus": 1, "ram": 256, "disk": 1, "os-flavor-access:is_public": True}
    made = site.nova.api.post("/flavors", json={"flavor": flavor}).json()["flavor"]["id"]
    try:
        specs = {"resources:CUSTOM_GPU": "2", "trait:CUSTOM_NVME_SCRATCH": "required"}
        site.nova.api.post(f"/flavors/{made}/os-extra_specs", json={"extra_specs": specs})
        asked = {"resource_type": "flavor:instance", "flavor_id": made}
        lease = site.reserve(demo, {**asked, "amount": 2})
        refused = answered(
            lease.api.post(
                "/leases",
                json={
                    "name": "one-too-many",
                    "start_date": "now",
                    "end_date": lease.show()["end_date"],
                    "reservations": [{**asked, "amount": 1}],
                },
            ),
            409,
        )
        assert "Not enough instances available" in refused["error_message"]
        lease.wait("ACTIVE")
        assert {site.nova.boot(demo, flavor=lease.reservation).place() for _ in range(2)} == {"compute-4"}
        lease.delete()
        lease.wait_until_gone()
        assert_nothing_left(site, lease)
    finally:
        site.nova.delete_booted()
        site.nova.api.delete(f"/flavors/{made}")


CARD = "CUSTOM_CARD_OF_A_TEST"


def set_cards(site: Site, host: str, total: int) -> None:
    """Have two providers below a host's, each with that many cards, 0 for none.

    They stay when the cards are gone: nova-compute remembers providers, and fails to build servers if one is missing.
    """
    placement = site.nova.placement
    placement.put(f"/resource_classes/{CARD}")
    for number in (1, 2):
        name = f"{host}-card-{number}"
        if name not in site.nova.providers():
            parent = site.nova.providers()[host]["uuid"]
            placement.post("/resource_providers", json={"name": name, "parent_provider_uuid": parent})
        uuid = site.nova.providers()[name]["uuid"]
        inventories = {CARD: {"total": total}} if total else {}
        generation = placement.get(f"/resource_providers/{uuid}/inventories").json()["resource_provider_generation"]
        placement.put(
            f"/resource_providers/{uuid}/inventories",
            json={"resource_provider_generation": generation, "inventories": inventories},
        )


def test_groups_of_a_flavor_are_counted_by_the_providers_below_a_host(site: Site, demo: Session):
    """Two cards of two providers are as good as two for two groups, and not for a group of two."""
    set_cards(site, "compute-3", 1)
    site.register(*HOSTS)
    made: dict[str, str] = {}
    try:
        for name, specs in {
            "two-groups": {f"resources1:{CARD}": "1", f"resources2:{CARD}": "1", "group_policy": "none"},
            "group-of-two": {f"resources1:{CARD}": "2"},
        }.items():
            flavor = {"name": name, "vcpus": 1, "ram": 256, "disk": 1, "os-flavor-access:is_public": True}
            made[name] = site.nova.api.post("/flavors", json={"flavor": flavor}).json()["flavor"]["id"]
            site.nova.api.post(f"/flavors/{made[name]}/os-extra_specs", json={"extra_specs": specs})
        asked = {"resource_type": "flavor:instance", "flavor_id": made["two-groups"], "amount": 1}
        lease = site.reserve(demo, asked)
        for flavor_id in made.values():
            more = {"name": "none-left", "start_date": "now", "end_date": lease.show()["end_date"]}
            reservations = [{**asked, "flavor_id": flavor_id}]
            refused = answered(lease.api.post("/leases", json={**more, "reservations": reservations}), 409)
            assert "Not enough instances" in refused["error_message"]
        lease.wait("ACTIVE")
        assert site.nova.boot(demo, flavor=lease.reservation).place() == "compute-3"
        lease.delete()
        lease.wait_until_gone()
        assert_nothing_left(site, lease)
    finally:
        site.nova.delete_booted()
        for flavor_id in made.values():
            site.nova.api.delete(f"/flavors/{flavor_id}")
        set_cards(site, "compute-3", 0)


def class_of(lease: Lease) -> str:
    return f"CUSTOM_RESERVATION_{lease.reservation.upper().replace('-', '_')}"


def seen_of(site: Site, lease: Lease) -> dict[str, Any]:
    """All that is in the cloud of a reservation of instances, but for its server group."""
    nova, placement = site.nova.api, site.nova.placement
    flavor = nova.get(f"/flavors/{lease.reservation}", raise_exc=False)
    found: dict[str, Any] = {"flavor": None, "access": None}
    if flavor.status_code == 200:
        found["flavor"] = {name: value for name, value in flavor.json()["flavor"].items() if name != "links"}
        access = nova.get(f"/flavors/{lease.reservation}/os-flavor-access").json()["flavor_access"]
        found["access"] = [entry["tenant_id"] for entry in access]
    aggregate = site.nova.aggregates().get(lease.reservation)
    found["aggregate"] = aggregate and (sorted(aggregate["hosts"]), aggregate["metadata"])
    for name, provider in site.nova.providers().items():
        inventories = placement.get(f"/resource_providers/{provider['uuid']}/inventories").json()["inventories"]
        found[name] = inventories.get(class_of(lease), {}).get("total")
    return found


def test_changes_by_others_are_reconciled(
    cloud: Cloud, demo: Session, other: Session, tmp_path_factory: pytest.TempPathFactory
):
    options = {"manager": {"reconcile_interval": 2}}
    with open_site(tmp_path_factory.mktemp("reconciling"), cloud, options=options) as site:
        nova, placement = site.nova.api, site.nova.placement
        site.register("compute-1", "compute-2")
        lease = site.reserve(demo, instances(2, affinity=False))
        lease.wait("ACTIVE")
        right = seen_of(site, lease)
        assert right["access"] == [demo.get_project_id()]
        assert (right["blazar_compute-1"], right["blazar_compute-2"]) == (1, 1)
        flavor = f"/flavors/{lease.reservation}"

        def on_aggregate(body: dict[str, object]) -> None:
            number = site.nova.aggregates()[lease.reservation]["id"]
            nova.post(f"/os-aggregates/{number}/action", json=body)

        def let_in() -> None:
            nova.post(f"{flavor}/action", json={"addTenantAccess": {"tenant": other.get_project_id()}})

        def shut_out() -> None:
            nova.post(f"{flavor}/action", json={"removeTenantAccess": {"tenant": demo.get_project_id()}})

        def forget_units() -> None:
            uuid = site.nova.providers()["blazar_compute-1"]["uuid"]
            placement.delete(f"/resource_providers/{uuid}/inventories/{class_of(lease)}")

        def delete_aggregate() -> None:
            for host in ("compute-1", "compute-2"):
                on_aggregate({"remove_host": {"host": host}})
            nova.delete(f"/os-aggregates/{site.nova.aggregates()[lease.reservation]['id']}")

        for meddle in (
            lambda: nova.delete(flavor),
            lambda: nova.post(f"{flavor}/os-extra_specs", json={"extra_specs": {f"resources:{class_of(lease)}": "2"}}),
            let_in,
            shut_out,
            lambda: on_aggregate({"remove_host": {"host": "compute-1"}}),
            lambda: on_aggregate({"set_metadata": {"metadata": {"reservation": "another"}}}),
            delete_aggregate,
            forget_units,
        ):
            meddle()
            assert seen_of(site, lease) != right
            wait_for("it to be reconciled", lambda: seen_of(site, lease) == right, seconds=30, pause=0.5)

        group = lease.show_reservation()["server_group_id"]
        nova.delete(f"/os-server-groups/{group}")
        wait_for("another server group", lambda: lease.show_reservation()["server_group_id"] != group, seconds=30)
        group = lease.show_reservation()["server_group_id"]
        servers = [site.nova.boot(demo, flavor=lease.reservation, group=group) for _ in range(2)]
        assert {server.place() for server in servers} == {"compute-1", "compute-2"}
        lease.delete()
        lease.wait_until_gone()
        assert_nothing_left(site, lease)


def test_snapshots_of_servers_are_made_before_the_end(site: Site, demo: Session):
    """An image of each server, made as its owner, and ready before the server is deleted."""
    site.register("compute-1")
    images = site.cloud.service(demo, "image")
    lease = site.reserve(demo, instances(2, before_end="snapshot"), before_end_date=moment(minutes=50))
    lease.wait("ACTIVE")
    servers = [site.nova.boot(demo, flavor=lease.reservation) for _ in range(2)]
    assert [server.place() for server in servers] == ["compute-1"] * 2
    lease.change(end_date=moment(seconds=20), before_end_date=moment(seconds=2))
    lease.wait("TERMINATED", seconds=90)
    assert [server.show() for server in servers] == [None, None]
    found = images.get(f"/v2/images?owner={demo.get_project_id()}&visibility=private").json()["images"]
    kept = [
        image
        for image in found
        if image.get("base_image_ref") and image.get("instance_uuid") in {s.id for s in servers}
    ]
    try:
        assert sorted(image["instance_uuid"] for image in kept) == sorted(server.id for server in servers)
        assert {image["status"] for image in kept} == {"active"}
    finally:
        for image in kept:
            images.delete(f"/v2/images/{image['id']}")


def test_hosts_instances_and_addresses_start_and_end_together(site: Site, demo: Session):
    site.register(*HOSTS)
    network = site.cloud.service(site.nova.admin, "network")
    (public,) = network.get("/v2.0/networks?name=public").json()["networks"]
    address = answered(
        site.admin.post(
            "/floatingips", json={"floating_network_id": public["id"], "floating_ip_address": "172.24.4.12"}
        ),
        201,
    )["floatingip"]["floating_ip_address"]
    lease = site.reserve(
        demo,
        {"resource_type": "physical:host", "min": 1, "max": 1},
        instances(2),
        {"resource_type": "virtual:floatingip", "network_id": public["id"], "amount": 1},
    )
    lease.wait("ACTIVE")
    host, units, _ = (reservation["id"] for reservation in lease.show()["reservations"])
    mine = site.cloud.service(demo, "network")

    def owned() -> list[str]:
        return [
            floating_ip["floating_ip_address"] for floating_ip in mine.get("/v2.0/floatingips").json()["floatingips"]
        ]

    assert owned() == [address]
    whole = site.nova.boot(demo, reservation=host)
    part = site.nova.boot(demo, flavor=units)
    assert {whole.place()} == site.nova.members(host)
    assert part.place() in (site.nova.members(units) or set())
    lease.delete()
    lease.wait_until_gone()
    wait_for("the address to go", lambda: owned() == [])
    assert (whole.show(), part.show()) == (None, None)
    assert not {host, units} & site.nova.aggregates().keys()
