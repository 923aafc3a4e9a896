"""Capacity over time, on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.api.rig import HOSTS, Api, open_api, rfc3339

INSTANCES = {"resource_type": "virtual:instance", "amount": 2, "vcpus": 2, "memory_mb": 512, "disk_gb": 0}
HOUR = timedelta(hours=1)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        yield api.using(version="1.3")


def ask(api: Api, resource_type: str = "physical:host", **query: object) -> dict[str, Any]:
    answer = api.get("/v1/availability?" + urlencode({"resource_type": resource_type, **query}))
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json
    return document


def steps(api: Api, group: dict[str, Any]) -> list[tuple[float, int, int, int, int]]:
    """Return the steps of a group: hours from now, reserved, allocated, out of order, available."""
    begin = rfc3339(api.now)
    return [
        (
            hours_between(begin, step["start_date"]),
            step["reserved"],
            step["allocated"],
            step["out_of_order"],
            step["available"],
        )
        for step in group["steps"]
    ]


def hours_between(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)) / HOUR


def test_hosts_over_time(api: Api):
    api.book(start=1, hours=2)
    api.book(start=2, hours=2, reservations=[{**HOSTS, "min": 2, "max": 2}])
    api.book(start=0, hours=3)
    api.world.pass_time(timedelta(minutes=30))
    api.using("admin").post("/v1/os-hosts/4/disable", {"reason": "test"})
    found = ask(api, end_date=rfc3339(api.now + 10 * HOUR))
    assert found["step"] is None
    assert (found["resource_type"], found["resource_class"], found["more"]) == ("physical:host", "WHOLE", False)
    [group] = found["groups"]
    assert (group["resources"], group["total"]) == (4, 4)
    assert steps(api, group)[0][:3] == (0.0, 0, 1)
    for _, reserved, allocated, out_of_order, available in steps(api, group):
        assert reserved + allocated + out_of_order + available == 4
    assert group["least_available"] == min(step[4] for step in steps(api, group))
    assert steps(api, group)[-1] == (3.5, 0, 0, 1, 3)


def test_planned_and_running_leases_are_told_apart(api: Api):
    api.book(start=0, hours=2)
    api.book(start=1, hours=2)
    api.world.pass_time(timedelta(minutes=30))
    [group] = ask(api)["groups"]
    assert steps(api, group) == [(0.0, 0, 1, 0, 3), (0.5, 1, 1, 0, 2), (1.5, 1, 0, 0, 3), (2.5, 0, 0, 0, 4)]


def test_parts_of_hosts_are_counted_by_class(api: Api):
    total = sum(host["vcpus"] for host in api.using("admin").get("/v1/os-hosts").json["hosts"])
    api.book(start=1, hours=1, reservations=[INSTANCES])
    whole = api.book(start=1, hours=2)
    [host] = api.get(f"/v1/leases/{whole['id']}/hosts").json["hosts"]
    of_one = host["vcpus"]
    [group] = ask(api, "virtual:instance")["groups"]
    assert group["total"] == total
    assert steps(api, group) == [
        (0.0, 0, 0, 0, total),
        (1.0, 4 + of_one, 0, 0, total - 4 - of_one),
        (2.0, of_one, 0, 0, total - of_one),
        (3.0, 0, 0, 0, total),
    ]
    memory = ask(api, "virtual:instance", resource_class="MEMORY_MB")
    assert memory["resource_class"] == "MEMORY_MB"
    assert steps(api, memory["groups"][0])[1][1] > 1024


def test_coarse_steps_show_the_tightest_instant(api: Api):
    api.book(start=1, hours=1)
    api.book(start=1.5, hours=0.1, reservations=[{**HOSTS, "min": 2, "max": 2}])
    found = ask(api, end_date=rfc3339(api.now + 4 * HOUR), step=2 * 3600)
    assert found["step"] == 7200
    assert steps(api, found["groups"][0]) == [(0.0, 3, 0, 0, 1), (2.0, 0, 0, 0, 4)]


def test_resources_are_selected_by_their_ids(api: Api):
    admin = api.using("admin")
    address = api.register_address()
    api.register_address("203.0.113.11")
    name = admin.get("/v1/os-hosts/2").json["host"]["hypervisor_hostname"]
    for resource_type, condition in (
        ("physical:host", ["==", "$hypervisor_hostname", name]),
        ("physical:host", ["==", "$id", "2"]),
        ("virtual:floatingip", ["==", "$floating_ip_address", address["floating_ip_address"]]),
        ("virtual:floatingip", ["==", "$floating_network_id", address["floating_network_id"]]),
    ):
        [group] = ask(admin, resource_type, resource_properties=json.dumps(condition))["groups"]
        assert group["resources"] == (2 if condition[1] == "$floating_network_id" else 1), condition


def test_members_see_kinds_without_names(api: Api):
    admin = api.using("admin")
    for host, rack, owner in (("1", "r1", "x"), ("2", "r1", "y"), ("3", "r2", "x")):
        admin.put(f"/v1/os-hosts/{host}", {"properties": {"rack": rack, "owner": owner}})
    admin.patch("/v1/os-hosts/properties/owner", {"private": True})
    found = ask(api, group_by="kind")
    kinds = {group["properties"].get("rack"): group["resources"] for group in found["groups"]}
    assert kinds == {"r1": 2, "r2": 1, None: 1}
    assert all(set(group["properties"]) <= {"rack"} for group in found["groups"])
    assert all(group["capacity"]["VCPU"] for group in found["groups"])
    text = json.dumps(found)
    for host in admin.get("/v1/os-hosts").json["hosts"]:
        assert host["hypervisor_hostname"] not in text
    private = api.get('/v1/availability?resource_type=physical:host&resource_properties=["==","$owner","x"]')
    assert (private.status_code, private.json["field"]) == (400, "resource_properties")
    assert {group["properties"].get("owner") for group in ask(admin, group_by="kind")["groups"]} == {"x", "y", None}


def test_resources_are_selected(api: Api):
    admin = api.using("admin")
    admin.put("/v1/os-hosts/1", {"properties": {"rack": "r1"}})
    assert ask(api, resource_properties='["==", "$rack", "r1"]')["groups"][0]["resources"] == 1
    assert ask(api, resource_properties='["not", ["==", "$rack", "r1"]]')["groups"][0]["resources"] == 3
    assert ask(api, resource_properties='["==", "$cpu_info:vendor", "AMD"]')["groups"][0]["resources"] == 4
    assert ask(api, resource_properties='["==", "$cpu_info:vendor", "Intel"]')["groups"][0]["resources"] == 0
    assert ask(api, required="CUSTOM_NOTHING")["groups"][0]["resources"] == 0
    assert ask(api, forbidden="CUSTOM_NOTHING")["groups"][0]["resources"] == 4
    zones = ask(api, group_by="zone")["groups"]
    assert sum(group["resources"] for group in zones) == 4
    zone = zones[0]["availability_zone"]
    assert ask(api, availability_zone=zone)["groups"][0]["resources"] == zones[0]["resources"]
    refused = api.get("/v1/availability?resource_type=physical:host&availability_zone=nowhere")
    assert (refused.status_code, refused.json["field"]) == (400, "availability_zone")
    assert "'nowhere'" in refused.json["error_message"]


def test_only_administrators_see_resources_and_projects(api: Api):
    api.book(start=1, hours=1)
    api.using(user="other").book(start=1, hours=2, reservations=[{**HOSTS, "min": 2, "max": 2}])
    for group_by in ("resource", "project"):
        refused = api.get(f"/v1/availability?resource_type=physical:host&group_by={group_by}")
        assert refused.status_code == 403
    admin = api.using("admin")
    resources = ask(admin, group_by="resource", limit=3)
    assert resources["more"]
    assert [group["resource_id"] for group in resources["groups"]] == ["1", "2", "3"]
    [last] = ask(admin, group_by="resource", marker="3")["groups"]
    assert last["resource_id"] == "4"
    busy = [group for group in (*resources["groups"], last) if group["least_available"] == 0]
    assert len(busy) == 3
    projects = {group["project_id"]: group for group in ask(admin, group_by="project")["groups"]}
    begin = rfc3339(api.now)
    assert [
        (hours_between(begin, step["start_date"]), step["reserved"]) for step in projects["other-project"]["steps"]
    ] == [(0.0, 0), (1.0, 2), (3.0, 0)]
    assert projects["demo-project"]["total"] is None


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "resource_type"),
        ("resource_type=physical:nothing", "resource_type"),
        ("resource_type=physical:host&resource_class=COAL", "resource_class"),
        ("resource_type=physical:host&start_date=yesterday", "start_date"),
        ("resource_type=physical:host&end_date=2030-01-01T00:00:00Z", "end_date"),
        ("resource_type=physical:host&end_date=2090-01-01T00:00:00Z", "end_date"),
        ("resource_type=physical:host&step=0", "step"),
        ("resource_type=physical:host&step=1", "step"),
        ("resource_type=physical:host&group_by=colour", "group_by"),
        ("resource_type=physical:host&resource_properties=[1", "resource_properties"),
        ("resource_type=physical:host&region=nowhere", "region"),
        ("resource_type=physical:host&limit=0", "limit"),
        ("resource_type=physical:host&colour=red", "colour"),
    ],
)
def test_a_wrong_query_is_refused(api: Api, query: str, field: str):
    refused = api.get(f"/v1/availability?{query}")
    assert (refused.status_code, refused.json["field"]) == (400, field)


def test_an_unknown_marker_is_refused(api: Api):
    refused = api.using("admin").get("/v1/availability?resource_type=physical:host&group_by=resource&marker=99")
    assert (refused.status_code, refused.json["field"]) == (400, "marker")


def test_older_versions_have_no_availability(api: Api):
    assert api.using(version="1.2").get("/v1/availability?resource_type=physical:host").status_code == 404
