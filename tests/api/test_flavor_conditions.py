"""Flavors that choose hosts by capabilities and by metadata of aggregates, and the hosts that they get."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.rig import Api

#: Processors of two hosts; those of the other hosts are of AMD.
OLD = {"arch": "x86_64", "vendor": "VIA", "features": ["mmx", "padlock"]}
NEW = {"arch": "x86_64", "vendor": "Zhaoxin", "features": ["mmx", "gmi"], "maxphysaddr": {"bits": 46}}
#: The extra specs of flavors, and the only host that has what they ask for.
SPECS: dict[str, tuple[dict[str, str], str]] = {
    "vendor": ({"capabilities:cpu_info:vendor": "Zhaoxin"}, "new"),
    "features": ({"capabilities:cpu_info:features": "<all-in> padlock mmx"}, "old"),
    "addresses": ({"hw:maxphysaddr_bits": "42"}, "new"),
    "unscoped": ({"hypervisor_hostname": "old"}, "old"),
    "aggregate": ({"aggregate_instance_extra_specs:availability_zone": "west"}, "new"),
    "several": ({"capabilities:hypervisor_type": "<or> KVM <or> QEMU", "capabilities:cpu_info:vendor": "s> Y"}, "new"),
}
ZONES = {"old": "east", "new": "west"}


@pytest.fixture
def newest(api: Api) -> Api:
    """The API with two hosts that differ, beside the usual ones."""
    for name, cpu in (("old", OLD), ("new", NEW)):
        api.world.cloud.world.add_host(name, facts={"cpu_info": cpu, "availability_zone": ZONES[name]})
        answer = api.using("admin", "1.3").post("/v1/os-hosts", {"name": name})
        assert answer.status_code == 201, answer.text
    api.world.cloud.world.add_host("general")
    for flavor, (specs, _) in SPECS.items():
        api.world.cloud.world.instances.add_flavor(flavor, extra_specs=specs)
    return api.using(version="1.3")


def asked(resource_type: str, flavor: str, **more: Any) -> dict[str, Any]:
    requested = {"resource_type": resource_type, "flavor_id": flavor, **more}
    return {**requested, "amount": 1} if resource_type == "flavor:instance" else requested


def hosts_of(api: Api, lease: dict[str, Any]) -> set[str]:
    with api.world.db.read() as tx:
        plans = tx.allocations.of_reservations([reservation["id"] for reservation in lease["reservations"]])
        return {resource.name for resource in tx.resources.by_ids(plan.resource_id for plan in plans).values()}


@pytest.mark.parametrize("resource_type", ["flavor:instance", "virtual:server"])
@pytest.mark.parametrize("flavor", SPECS)
def test_hosts_have_what_the_flavor_asks_for(newest: Api, resource_type: str, flavor: str) -> None:
    host = SPECS[flavor][1]
    assert hosts_of(newest, newest.book(reservations=[asked(resource_type, flavor)])) == {host}
    elsewhere = asked(resource_type, flavor, availability_zone="az-1")
    refused = newest.post("/v1/leases", newest.lease_body(reservations=[elsewhere]))
    assert refused.status_code == 409, refused.text
    assert refused.json["details"]["stages"][1]["count"] == 0


@pytest.mark.parametrize("resource_type", ["flavor:instance", "virtual:server"])
@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"capabilities:vcpus_total": "= many"}, "cannot be reserved: capabilities:vcpus_total: 'many' is no number"),
        ({"aggregate_instance_extra_specs:ssd": "<or>"}, "'<or>' is an operator without a value"),
        ({"capabilities:boot_mode": "uefi", "num_instances": "<= 3"}, "with capabilities:boot_mode, num_instances."),
    ],
)
def test_conditions_that_cannot_be_decided_are_refused_by_name(
    newest: Api, resource_type: str, specs: dict[str, str], words: str
) -> None:
    newest.world.cloud.world.instances.add_flavor("odd", extra_specs=specs)
    refused = newest.post("/v1/leases", newest.lease_body(reservations=[asked(resource_type, "odd")]))
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].flavor_id")
    assert words in refused.json["error_message"]


def test_a_server_is_woken_where_its_flavor_may_run(newest: Api) -> None:
    cloud = newest.world.cloud
    server_id = cloud.world.instances.boot("demo-project", "1")
    known = cloud.openstack.servers[server_id].flavor
    assert known is not None
    known.extra_specs = {"capabilities:cpu_info:vendor": "Zhaoxin"}
    lease = newest.book(reservations=[{"resource_type": "virtual:server", "server_id": server_id}])
    assert hosts_of(newest, lease) == {"new"}


def test_a_server_may_not_run_elsewhere_than_was_booked(newest: Api) -> None:
    sizes = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}
    lease = newest.book(start=1, hours=1, reservations=[{"resource_type": "virtual:server", **sizes}])
    cloud = newest.world.cloud
    server_id = cloud.world.instances.boot("demo-project", "1")
    known = cloud.openstack.servers[server_id].flavor
    assert known is not None
    known.extra_specs = {"capabilities:cpu_info:vendor": "Zhaoxin"}
    change = {"reservations": [{"id": lease["reservations"][0]["id"], "server_id": server_id}]}
    refused = newest.put(f"/v1/leases/{lease['id']}", change)
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].server_id")
    assert "capabilities:cpu_info:vendor" in refused.json["error_message"]


def test_a_server_that_stays_in_its_place_has_no_conditions(newest: Api) -> None:
    cloud = newest.world.cloud
    server_id = cloud.world.instances.boot("demo-project", "1")
    known = cloud.openstack.servers[server_id].flavor
    assert known is not None
    known.extra_specs = {"capabilities:vcpus_total": "= many", "capabilities:cpu_info:vendor": "none"}
    in_place = {"resource_type": "virtual:server", "server_id": server_id, "in_place": True}
    assert newest.post("/v1/leases", newest.lease_body(reservations=[in_place])).status_code == 201
