"""What members may not see appears in no answer: names of hosts, other projects, private properties."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tenure.api.openapi import describe
from tenure.api.table import operations_of
from tenure.api.versions import Version
from tenure.resources.contract import load_types
from tests.api.rig import ADDRESSES, FLAVORS, HOSTS, INSTANCES, Api, open_api, rfc3339
from tests.api.test_operations import BODIES, PATH_PARAMETERS
from tests.support.samples import NEEDED_QUERIES

#: Hosts of two kinds, by a public property. The private one is the same on no two of them.
KINDS = {"1": "a100", "2": "a100", "3": "v100", "4": "v100"}
PRIVATE, VALUE = "cellar", "vault"
#: Leases of the other project take three of the hosts for hours.
HOURS = 6


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A service on which a project has booked most, as a member of another project calls it."""
    with open_api(tmp_path, hosts=len(KINDS)) as api:
        admin = api.using("admin", "1.3")
        for host_id, gpu in KINDS.items():
            changed = admin.put(f"/v1/os-hosts/{host_id}", {"properties": {"gpu": gpu, PRIVATE: f"{VALUE}-{host_id}"}})
            assert changed.status_code == 200, changed.text
        assert admin.patch(f"/v1/os-hosts/properties/{PRIVATE}", {"private": True}).status_code == 200
        api.register_address()
        yield api.using("other", "1.3")


def book_of_others(api: Api) -> dict[str, Any]:
    """Book leases of another project, with a name of their own; return one of them."""
    demo = api.using("demo", "1.3")
    demo.book(name="their-lease", start=0, hours=HOURS, reservations=[INSTANCES, ADDRESSES])
    demo.book(name="their-lease", start=0, hours=HOURS, reservations=[{**HOSTS, "min": 2, "max": 2}])
    lease = demo.book(name="their-lease", start=1, hours=HOURS)
    api.world.engine.settle()
    return lease


def secrets(api: Api) -> set[str]:
    """Return texts that no answer to the member may have."""
    names = {host["hypervisor_hostname"] for host in api.using("admin", "1.3").get("/v1/os-hosts").json["hosts"]}
    leases = api.using("demo", "1.3").get("/v1/leases").json["leases"]
    ids = {lease["id"] for lease in leases} | {
        reservation["id"] for lease in leases for reservation in lease["reservations"]
    }
    assert len(names) == len(KINDS)
    assert len(ids) > len(leases) > 0
    return {"demo-project", "demo-user", "their-lease", PRIVATE, VALUE, *names, *ids}


def leaks(answer: Any, secret: set[str], asked: str) -> set[str]:
    """Return the secrets in an answer, but for what the question itself says."""
    said = answer.text + "".join(f"{name}: {value}\n" for name, value in answer.headers.items())
    return {text for text in secret if text in said and text not in asked}


def endpoints(version: Version) -> list[tuple[str, str, Mapping[str, Any]]]:
    paths = describe(operations_of(tuple(load_types())), version)["paths"]
    return [(method.upper(), path, shown) for path, methods in paths.items() for method, shown in methods.items()]


@pytest.mark.parametrize("version", list(Version), ids=str)
def test_no_endpoint_tells_a_member_what_is_not_for_members(api: Api, version: Version):
    lease = book_of_others(api)
    secret = secrets(api)
    member = api.using("other", version.value)
    wrong, statuses = [], set()
    for method, path, shown in endpoints(version):
        path_parameters = {**PATH_PARAMETERS, "lease_id": lease["id"], "reservation_id": lease["reservations"][0]["id"]}
        url = path.format(**path_parameters)
        if method == "GET" and path in NEEDED_QUERIES:
            url += f"?{NEEDED_QUERIES[path]}"
        body = BODIES.get((method, path))
        if (method, path) == ("POST", "/v1/leases"):
            body = member.lease_body(start=0, hours=HOURS, reservations=[{**HOSTS, "min": 3, "max": 3}])
        can_be_dry = any(parameter["name"] == "dry_run" for parameter in shown["parameters"])
        for query in ("", "?dry_run=true") if can_be_dry else ("",):
            answer = member.call(method, url + query, body)
            statuses.add(answer.status_code)
            assert answer.status_code != 500, answer.text
            wrong += [f"{method} {path}: {text}" for text in leaks(answer, secret, f"{url} {body}")]
    assert wrong == []
    assert {200, 403, 404} <= statuses


CONDITION = '["==", "${}", "{}"]'
THREE = {**HOSTS, "min": 3, "max": 3}


def refusals() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield requests for leases that are refused, each with the name of the error."""
    yield "NotEnoughResources", {"reservations": [THREE]}
    yield "NotEnoughResources", {"reservations": [{**THREE, "resource_properties": CONDITION.format("gpu", "a100")}]}
    yield "NotEnoughResources", {"reservations": [{**HOSTS, "resource_properties": CONDITION.format("rack", "r1")}]}
    yield "NotEnoughResources", {"reservations": [{**INSTANCES, "amount": 900}]}
    yield "NotEnoughResources", {"reservations": [{**FLAVORS, "amount": 900}]}
    yield "NotEnoughResources", {"reservations": [ADDRESSES]}
    yield "NotEnoughResources", {"reservations": [HOSTS, THREE, INSTANCES]}
    yield "InvalidParameter", {"reservations": [{**HOSTS, "resource_properties": CONDITION.format(PRIVATE, "x")}]}
    yield "InvalidParameter", {"reservations": [{**HOSTS, "resource_properties": CONDITION.format("vcpus", "x")}]}
    yield "InvalidParameter", {"reservations": [{**INSTANCES, "vcpus": 0}]}
    yield "InvalidParameter", {"reservations": [{**FLAVORS, "flavor_id": "none"}]}
    yield "NotEnoughResources", {"reservations": [{**ADDRESSES, "required_floatingips": ["198.51.100.1"]}]}


@pytest.mark.parametrize(("name", "fields"), list(refusals()))
@pytest.mark.parametrize("query", ["", "?dry_run=true"], ids=["booked", "dry run"])
def test_no_refusal_tells_a_member_what_is_not_for_members(api: Api, name: str, fields: dict[str, Any], query: str):
    book_of_others(api)
    secret = secrets(api)
    body = api.lease_body(start=0, hours=HOURS, **fields)
    answer = api.post(f"/v1/leases{query}", body)
    assert answer.json["error_name"] == name, answer.text
    assert leaks(answer, secret, str(body)) == set()


def test_no_refusal_of_a_change_tells_a_member_what_is_not_for_members(api: Api):
    mine = api.book(start=0, hours=1)
    reservation = mine["reservations"][0]["id"]
    book_of_others(api)
    secret = secrets(api)
    later = rfc3339(api.now + timedelta(hours=HOURS))
    lease = f"/v1/leases/{mine['id']}"
    changes: list[tuple[str, str, Any]] = [
        ("PUT", lease, {"end_date": later, "reservations": [{"id": reservation, "min": 4, "max": 4}]}),
        ("PUT", lease, {"reservations": [{"id": reservation, "resource_properties": CONDITION.format(PRIVATE, "x")}]}),
        ("POST", f"{lease}/reservations", THREE),
    ]
    for method, path, body in changes:
        for query in ("", "?dry_run=true"):
            answer = api.call(method, path + query, body)
            assert answer.status_code in {400, 409}, answer.text
            assert leaks(answer, secret, str(body)) == set()
    shown = api.get(lease)
    assert shown.json["lease"]["may_end_at"] is not None
    assert leaks(shown, secret, lease) == set()


def availability(api: Api, **query: object) -> Any:
    return api.get("/v1/availability?" + urlencode({"resource_type": "physical:host", **query}))


IDENTIFYING = {"id": "3", "hypervisor_hostname": "sim-host-003", "service_name": "sim-host-003"}


def test_members_cannot_ask_how_much_is_free_by_what_tells_hosts_apart(api: Api):
    for name, value in IDENTIFYING.items():
        for op in ("==", "!=", "<", "<=", ">", ">=", "in", "not"):
            term: list[object] = [op, ["==", f"${name}", value]] if op == "not" else [op, f"${name}", value]
            asked = {"resource_properties": json.dumps(["and", term])}
            refused = availability(api, **asked)
            assert (refused.status_code, refused.json["field"]) == (400, "resource_properties")
            assert "only administrators can ask" in refused.json["error_message"]
            assert availability(api.using("admin"), **asked).status_code == 200


def test_the_health_of_few_hosts_is_not_shown_to_members(api: Api):
    admin = api.using("admin")
    assert admin.post("/v1/os-hosts/3/disable", {"reason": "x"}).status_code == 200
    assert admin.put("/v1/os-hosts/4", {"properties": {"rack": "last"}}).status_code == 200
    narrowed: list[dict[str, object]] = [
        {"resource_properties": CONDITION.format("gpu", "v100")},
        {"resource_properties": CONDITION.format("gpu", "v100").replace("==", "!=")},
        {"resource_properties": '["not", ["==", "$rack", "last"]]'},
        {"group_by": "kind"},
        {"required": "HW_CPU_X86_VMX"},
        {"forbidden": "HW_CPU_X86_VMX"},
    ]
    for query in narrowed:
        for group in availability(api, **query).json["groups"]:
            for step in group["steps"]:
                assert step["out_of_order"] is None, query
                assert step["reserved"] + step["allocated"] + step["available"] == group["total"]
        for group in availability(admin, **query).json["groups"]:
            assert group["steps"][0]["out_of_order"] is not None
    [everything] = availability(api).json["groups"]
    assert everything["steps"][0]["out_of_order"] == 1


def test_the_health_of_a_type_with_few_resources_is_not_shown_to_members(tmp_path: Path):
    with open_api(tmp_path, hosts=2) as few:
        few.using("admin", "1.3").post("/v1/os-hosts/2/disable", {"reason": "x"})
        queries: list[dict[str, object]] = [{}, {"group_by": "zone"}]
        for query in queries:
            groups = availability(few.using("demo", "1.3"), **query).json["groups"]
            assert [group["steps"][0]["out_of_order"] for group in groups] == [None] * len(groups)
            assert sum(group["steps"][0]["reserved"] for group in groups) == 1


def test_zones_show_their_health_to_members_only_if_all_have_several_hosts(tmp_path: Path):
    with open_api(tmp_path, hosts=9) as api:
        member = api.using("demo", "1.3")
        by_zone = availability(member, group_by="zone").json["groups"]
        sizes = {group["availability_zone"]: group["resources"] for group in by_zone}
        assert min(sizes.values()) >= 3, sizes
        assert all(group["steps"][0]["out_of_order"] == 0 for group in by_zone)
        removed = next(zone for zone in sizes)
        hosts = api.using("admin", "1.3").get("/v1/os-hosts").json["hosts"]
        for host in [host for host in hosts if host["availability_zone"] == removed][2:]:
            assert api.using("admin", "1.3").delete(f"/v1/os-hosts/{host['id']}").status_code == 204
        queries: list[dict[str, object]] = [{"group_by": "zone"}, {"availability_zone": removed}]
        for query in queries:
            for group in availability(member, **query).json["groups"]:
                assert group["steps"][0]["out_of_order"] is None


@pytest.mark.parametrize("path", ["leases", "leases?dry_run=true", "offers", "offers/longest", "offers/largest"])
def test_members_cannot_search_for_names_by_halves(api: Api, path: str):
    lease = api.lease_body(start=1, hours=1)
    dates = {"start_date": lease["start_date"], "end_date": lease["end_date"]}
    body: dict[str, Any] = {}
    for name, value in IDENTIFYING.items():
        for op in ("<", "<=", ">", ">="):
            asked = {**HOSTS, "resource_properties": json.dumps(["not", [op, f"${name}", value]])}
            bodies: dict[str, dict[str, Any]] = {
                "offers": {"duration": 3600, "reservations": [asked]},
                "offers/longest": {"reservations": [asked]},
                "offers/largest": {"reservation": asked, **dates},
            }
            body = bodies.get(path, lease | {"reservations": [asked]})
            refused = api.post(f"/v1/{path}", body)
            assert refused.status_code == 400, refused.text
            assert "compared by == and != only" in refused.json["error_message"]
    assert api.using("admin").post(f"/v1/{path}", body).status_code in {200, 201, 409}


def test_members_cannot_search_for_names_by_changes(api: Api):
    lease = api.book(start=1, hours=1)
    asked = {"resource_properties": '["<", "$hypervisor_hostname", "sim-host-003"]'}
    changes = {"reservations": [{"id": lease["reservations"][0]["id"], **asked}]}
    added = api.post(f"/v1/leases/{lease['id']}/reservations", {**HOSTS, **asked})
    for refused in (api.put(f"/v1/leases/{lease['id']}", changes), added):
        assert refused.status_code == 400
        assert "compared by == and != only" in refused.json["error_message"]


def test_a_refusal_does_not_tell_a_broken_host_from_a_busy_one(api: Api):
    """A lease may be of a certain host; its refusal is the same whether the host is out of order or reserved."""
    api.using("admin").post("/v1/os-hosts/3/disable", {"reason": "x"})
    api.using("demo").book(
        start=0, hours=HOURS, reservations=[{**HOSTS, "resource_properties": CONDITION.format("id", "4")}]
    )
    refused = {}
    for host_id in ("3", "4"):
        condition = CONDITION.format("id", host_id)
        body = api.lease_body(start=0, hours=1, reservations=[{**HOSTS, "resource_properties": condition}])
        answer = api.post("/v1/leases?dry_run=true", body).json
        refused[host_id] = answer["error_message"], answer["details"]["stages"]
    assert refused["3"] == refused["4"]
    assert [stage["stage"] for stage in refused["3"][1]] == ["reservable", "free"]


def test_a_lease_that_waits_tells_a_member_nothing_of_those_before_it(api: Api):
    lease = book_of_others(api)
    full = {"start": 2, "hours": 2, "reservations": [{**HOSTS, "min": 4, "max": 4}], "if_full": "wait"}
    assert api.using("demo").book(name="their-lease", **full)["status"] == "WAITING"
    mine = api.book(**full)
    secret, path = secrets(api), f"/v1/leases/{mine['id']}"
    shown = api.get(path)
    assert shown.json["lease"]["waiting"]["ahead"] == 1
    assert api.using("demo").delete(f"/v1/leases/{lease['id']}").status_code == 204
    api.world.engine.settle()
    for method, url in (("GET", path), ("GET", "/v1/leases"), ("GET", f"{path}/history"), ("DELETE", path)):
        answer = api.call(method, url)
        assert answer.status_code in {200, 204}
        assert leaks(answer, secret, url) == set()


def test_the_alternative_of_another_kind_names_public_properties_only(api: Api):
    demo = api.using("demo", "1.3")
    demo.book(start=0, hours=HOURS, reservations=[{**HOSTS, "resource_properties": CONDITION.format("gpu", "a100")}])
    body = api.lease_body(
        start=0,
        hours=HOURS,
        reservations=[{**HOSTS, "min": 2, "max": 2, "resource_properties": CONDITION.format("gpu", "a100")}],
    )
    refused = api.post("/v1/leases", body)
    alternatives = {alternative["change"]: alternative for alternative in refused.json["details"]["alternatives"]}
    assert alternatives["kind"]["resource_properties"] == CONDITION.format("gpu", "v100")
    assert PRIVATE not in refused.text
    assert VALUE not in refused.text
