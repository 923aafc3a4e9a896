"""Zones, extra specs and sizes in requests, from 1.2 on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.rig import FLAVORS, HOSTS, Api, open_api


def matching(api: Api, **asked: Any) -> int:
    """How many of the hosts match what is asked for."""
    requested = {**HOSTS, "min": 99, "max": 99, **asked}
    refused = api.using(version="1.2").post("/v1/leases", api.using(version="1.2").lease_body(reservations=[requested]))
    assert refused.status_code == 409, refused.text
    found: int = refused.json["details"]["stages"][1]["count"]
    return found


def test_each_addition_restricts_the_hosts(shared_api: Api) -> None:
    hosts = shared_api.using("admin", "1.2").get("/v1/os-hosts").json["hosts"]
    zone, kind = hosts[0]["availability_zone"], hosts[0]["hypervisor_type"]
    in_zone = sum(host["availability_zone"] == zone for host in hosts)
    large = sorted(host["vcpus"] for host in hosts)[-1]
    largest = sum(host["vcpus"] >= large for host in hosts)
    assert 0 < in_zone < len(hosts)
    large_cores = sum(json.loads(host["cpu_info"])["topology"]["cores"] >= 17 for host in hosts)
    with_gpu = sum("CUSTOM_GPU_A100" in host.traits for host in shared_api.world.cloud.discover("physical:host"))
    assert 0 < with_gpu < len(hosts)
    assert matching(shared_api) == len(hosts)
    assert matching(shared_api, availability_zone=zone) == in_zone
    assert matching(shared_api, vcpus=large) == largest
    assert matching(shared_api, vcpus=large + 1) == 0
    assert matching(shared_api, memory_mb=1, disk_gb=1) == len(hosts)
    for specs, count in (
        ({"capabilities:hypervisor_type": kind}, len(hosts)),
        ({"capabilities:hypervisor_type": "s!= " + kind}, 0),
        ({"capabilities:vcpus": f"= {large}"}, largest),
        ({"capabilities:vcpus": f"<= {large}", "availability_zone": zone}, in_zone),
        ({"availability_zone": f"<or> {zone} <or> nowhere"}, in_zone),
        ({"gpu": "none-such"}, 0),
        ({"capabilities:cpu_info:vendor": "AMD"}, len(hosts)),
        ({"capabilities:cpu_info:vendor": "s!= AMD"}, 0),
        ({"capabilities:cpu_info:features": "<all-in> avx2 svm"}, len(hosts)),
        ({"capabilities:cpu_info:features": "<in> vmx"}, 0),
        ({"capabilities:cpu_info:topology:cores": "= 17"}, large_cores),
        ({"capabilities:vcpus_total": f"= {large}"}, largest),
        ({"hypervisor_type": "s>= Q"}, len(hosts)),
        ({"hypervisor_type": "s< Q"}, 0),
        ({"aggregate_instance_extra_specs:availability_zone": zone}, in_zone),
        ({"aggregate_instance_extra_specs:availability_zone": f"<or> {zone} <or> nowhere"}, in_zone),
        ({"aggregate_instance_extra_specs:availability_zone": f"s!= {zone}"}, len(hosts) - in_zone),
        ({"aggregate_instance_extra_specs:ssd": "true"}, 0),
        ({"trait:CUSTOM_GPU_A100": "required"}, with_gpu),
        ({"trait:CUSTOM_GPU_A100": "forbidden"}, len(hosts) - with_gpu),
        ({"trait:HW_CPU_X86_AVX2": "required", "trait:CUSTOM_NO_SUCH": "forbidden"}, len(hosts)),
    ):
        assert matching(shared_api, extra_specs=specs) == count, specs


def test_the_least_memory_and_disk_restrict_the_hosts(shared_api: Api) -> None:
    hosts = shared_api.using("admin", "1.2").get("/v1/os-hosts").json["hosts"]
    for asked, fact in (("memory_mb", "memory_mb"), ("disk_gb", "local_gb")):
        sizes = sorted(host[fact] for host in hosts)
        for least in {*sizes, sizes[-1] + 1}:
            assert matching(shared_api, **{asked: least}) == sum(size >= least for size in sizes), (asked, least)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"extra_specs": {"hw:cpu_policy": "dedicated"}}, "extra_specs"),
        ({"extra_specs": {"capabilities:": "x"}}, "extra_specs"),
        ({"extra_specs": {"gpu": "<in>"}}, "extra_specs"),
        ({"extra_specs": {"trait:CUSTOM_GPU_A100": "yes"}}, "extra_specs"),
        ({"extra_specs": {"resources:VCPU": "2"}}, "extra_specs"),
        ({"extra_specs": {"capabilities:vcpus": ">= many"}}, "extra_specs"),
        ({"extra_specs": {"gpu": "<or> "}}, "extra_specs"),
        ({"extra_specs": {"gpu": ">="}}, "extra_specs"),
        ({"extra_specs": {"gpu": "s<"}}, "extra_specs"),
        ({"extra_specs": {f"gpu{number}": "<or> a " * 22 for number in range(3)}}, "extra_specs"),
        ({"extra_specs": {"gpu": 7}}, "extra_specs.gpu"),
        ({"extra_specs": {f"p{number}": "x" for number in range(33)}}, "extra_specs"),
        ({"vcpus": -1}, "vcpus"),
        ({"memory_mb": "8"}, "memory_mb"),
        ({"availability_zone": None}, "availability_zone"),
    ],
)
def test_invalid_additions_are_refused(shared_api: Api, asked: dict[str, Any], field: str) -> None:
    api = shared_api.using(version="1.2")
    refused = api.post("/v1/leases", api.lease_body(reservations=[{**HOSTS, **asked}]))
    assert (refused.status_code, refused.json["field"]) == (400, f"reservations[0].{field}"), refused.text


def test_an_extra_spec_of_another_scope_is_refused_by_its_name(shared_api: Api) -> None:
    api = shared_api.using(version="1.2")
    specs = {"capabilities:vcpus": "= 1", "quota:cpu_shares": "7"}
    refused = api.post("/v1/leases", api.lease_body(reservations=[{**HOSTS, "extra_specs": specs}]))
    assert refused.json["error_message"].startswith(
        "quota:cpu_shares: it is no condition on hosts: these are properties"
    )


def test_traits_are_asked_for_in_conditions_too(shared_api: Api) -> None:
    hosts = shared_api.world.cloud.discover("physical:host")
    with_gpu = sum("CUSTOM_GPU_A100" in host.traits for host in hosts)
    for value, count in (("required", with_gpu), ("forbidden", len(hosts) - with_gpu)):
        term = ["==", "$trait:CUSTOM_GPU_A100", value]
        assert matching(shared_api, resource_properties=json.dumps(term)) == count
        assert matching(shared_api, resource_properties=json.dumps(["not", term])) == len(hosts) - count
    api = shared_api.using(version="1.2")
    condition = '["==", "$trait:CUSTOM_GPU_A100", "perhaps"]'
    refused = api.post("/v1/leases", api.lease_body(reservations=[{**HOSTS, "resource_properties": condition}]))
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].resource_properties")


def test_names_of_hosts_are_not_searched_by_members(shared_api: Api) -> None:
    api = shared_api.using(version="1.2")
    for specs in ({"capabilities:hypervisor_hostname": "<in> sim"}, {"capabilities:host": "s< sim-compute-003"}):
        refused = api.post("/v1/leases", api.lease_body(reservations=[{**HOSTS, "extra_specs": specs}]))
        assert refused.status_code == 400
        assert "tells single resources apart" in refused.json["error_message"]


def test_additions_are_shown_and_changed_and_hidden_from_older_versions(tmp_path: Path) -> None:
    with open_api(tmp_path) as opened:
        api = opened.using(version="1.2")
        booked = api.book(reservations=[{**HOSTS, "availability_zone": "az-1"}])["reservations"][0]
        assert (booked["availability_zone"], booked["extra_specs"], booked["vcpus"]) == ("az-1", {}, 0)
        path = f"/v1/leases/{booked['lease_id']}"
        old = api.using(version="1.1")
        assert "availability_zone" not in old.get(path).json["lease"]["reservations"][0]
        changed = {"id": booked["id"], "availability_zone": "", "vcpus": 2}
        assert old.put(path, {"reservations": [changed]}).status_code == 400
        shown = api.put(path, {"reservations": [changed]}).json["lease"]["reservations"][0]
        assert (shown["availability_zone"], shown["vcpus"]) == ("", 2)


@pytest.mark.parametrize(
    "asked",
    [{**FLAVORS, "flavor_id": "1"}, {"resource_type": "virtual:server", "flavor_id": "1"}],
    ids=["flavor", "server"],
)
def test_instances_of_a_flavor_and_servers_are_booked_in_a_zone(tmp_path: Path, asked: dict[str, Any]) -> None:
    with open_api(tmp_path) as opened:
        api = opened.using(version="1.2")
        hosts = opened.using("admin", "1.2").get("/v1/os-hosts").json["hosts"]
        zones = {host["id"]: host["availability_zone"] for host in hosts}
        for zone in set(zones.values()):
            booked = api.book(reservations=[{**asked, "availability_zone": zone}])["reservations"][0]
            assert booked["availability_zone"] == zone
            with opened.world.db.read() as tx:
                plans = tx.allocations.of_reservations([booked["id"]])
                there = tx.resources.by_ids(plan.resource_id for plan in plans).values()
            assert {resource.facts["availability_zone"] for resource in there} == {zone}
        nowhere = {**asked, "availability_zone": "nowhere"}
        assert api.post("/v1/leases", api.lease_body(reservations=[nowhere])).status_code == 409
        old = api.using(version="1.1")
        assert old.post("/v1/leases", old.lease_body(reservations=[nowhere])).status_code == 400
