"""Hosts, their allocations and their properties, at both versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from falcon import testing

from tests.api.rig import HOSTS, USERS, Api, open_api


@pytest.fixture(scope="module")
def shared_admin(shared_api: Api) -> Api:
    return shared_api.using("admin")


def test_a_host_is_registered_changed_and_unregistered(admin: Api) -> None:
    admin.world.cloud.world.add_host("extra-1", facts={"vcpus": 8})
    made = admin.post("/v1/os-hosts", {"name": "extra-1", "gpu": True, "weight": 5, "vcpus": 99, "nothing": None})
    assert made.status_code == 201, made.text
    host = made.json["host"]
    assert host["hypervisor_hostname"] == "extra-1"
    assert (host["gpu"], host["weight"], host["vcpus"]) == ("True", "5", 8)
    assert "nothing" not in host
    assert (host["status"], host["trust_id"], host["reservable"]) == (None, "", True)
    path = f"/v1/os-hosts/{host['id']}"
    assert admin.get(path).json == {"host": host}
    again = admin.post("/v1/os-hosts", {"name": "extra-1"})
    assert again.status_code == 409

    changed = admin.put(path, {"gpu": None, "rack": "r1"}).json["host"]
    assert "gpu" not in changed
    assert changed["rack"] == "r1"
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 404
    assert admin.get(path).json["error_message"] == f"Object with {{'host_id': '{host['id']}'}} not found"


def test_a_host_from_1_1_on(admin: Api) -> None:
    new = admin.using(version="1.1")
    new.world.cloud.world.add_host("extra-1")
    made = new.post("/v1/os-hosts", {"name": "extra-1", "properties": {"rack": "r1"}})
    assert made.status_code == 201, made.text
    host = made.json["host"]
    assert host["properties"] == {"rack": "r1"}
    assert host["created_at"] == "2030-01-01T10:00:00Z"
    assert isinstance(host["traits"], list)
    assert "status" not in host
    path = f"/v1/os-hosts/{host['id']}"
    changed = new.put(path, {"properties": {"rack": None, "gpu": "a100"}})
    assert changed.json["host"]["properties"] == {"gpu": "a100"}
    assert new.get(path).json == changed.json
    assert new.delete(path).status_code == 204


def test_a_property_never_hides_a_field(admin: Api) -> None:
    before = admin.get("/v1/os-hosts/1").json
    for name in ("vcpus", "id", "status", "created_at", "reservable", "properties"):
        result = admin.put("/v1/os-hosts/1", {name: "4"})
        assert (result.status_code, name in result.json["error_message"]) == (400, True)
    assert admin.get("/v1/os-hosts/1").json == before


def test_names_of_hosts_are_no_ids(admin: Api) -> None:
    assert admin.get("/v1/os-hosts/sim-host-001").status_code == 404
    assert admin.get("/v1/os-hosts/999").status_code == 404


def test_pages_of_hosts(admin: Api) -> None:
    new = admin.using(version="1.1")
    first = new.get("/v1/os-hosts?limit=3&sort_key=hypervisor_hostname&sort_dir=desc").json
    assert [host["hypervisor_hostname"] for host in first["hosts"]] == ["sim-host-004", "sim-host-003", "sim-host-002"]
    [link] = first["hosts_links"]
    rest = new.get(link["href"].removeprefix("http://falconframework.org")).json
    assert [host["hypervisor_hostname"] for host in rest["hosts"]] == ["sim-host-001"]
    assert "hosts_links" not in rest
    assert [host["id"] for host in new.get("/v1/os-hosts?hypervisor_hostname=sim-host-002").json["hosts"]] == ["2"]
    assert new.get("/v1/os-hosts?reservable=false").json == {"hosts": []}
    assert len(new.get("/v1/os-hosts?reservable=true").json["hosts"]) == 4


@pytest.mark.parametrize("path", ["os-hosts/allocations", "os-hosts/1", "os-hosts/1/allocation", "os-hosts/properties"])
def test_unknown_parameters_are_ignored_at_1_0(admin: Api, path: str) -> None:
    assert admin.get(f"/v1/{path}?limit=x&other=1").status_code == 200


def test_allocations_name_every_host_at_1_0(admin: Api) -> None:
    lease = admin.using("demo").book(start=1, hours=1)
    everything = admin.get("/v1/os-hosts/allocations").json["allocations"]
    assert len(everything) == 4
    [taken] = [allocation for allocation in everything if allocation["reservations"]]
    assert taken["reservations"] == [
        {
            "id": lease["reservations"][0]["id"],
            "lease_id": lease["id"],
            "start_date": "2030-01-01T11:00:00.000000",
            "end_date": "2030-01-01T12:00:00.000000",
        }
    ]
    filtered = admin.get(f"/v1/os-hosts/allocations?lease_id={lease['id']}").json["allocations"]
    assert len(filtered) == 4
    of_host = admin.get(f"/v1/os-hosts/{taken['resource_id']}/allocation").json["allocation"]
    assert of_host == taken
    other = admin.get(f"/v1/os-hosts/{taken['resource_id']}/allocation?reservation_id=x").json["allocation"]
    assert other["reservations"] == []


def test_allocations_name_the_hosts_that_matter_from_1_1_on(admin: Api) -> None:
    new = admin.using(version="1.1")
    lease = new.book(start=1, hours=1, reservations=[{**HOSTS, "min": 3, "max": 3}])
    first = new.get(f"/v1/os-hosts/allocations?lease_id={lease['id']}&limit=2").json
    assert len(first["allocations"]) == 2
    assert first["allocations"][0]["reservations"][0]["start_date"] == "2030-01-01T11:00:00Z"
    rest = new.get(first["allocations_links"][0]["href"].removeprefix("http://falconframework.org")).json
    assert len(rest["allocations"]) == 1
    assert new.get("/v1/os-hosts/allocations?lease_id=x").json == {"allocations": []}
    assert len(new.get("/v1/os-hosts/allocations").json["allocations"]) == 4


@pytest.mark.parametrize("version", [None, "1.1"])
def test_properties_are_listed_and_kept_private(api: Api, version: str | None) -> None:
    admin = api.using("admin", version)
    body: dict[str, Any] = {"rack": "r1", "asset": "4711"}
    assert admin.put("/v1/os-hosts/1", {"properties": body} if version else body).status_code == 200
    path = "/v1/os-hosts/properties"
    assert admin.get(path).json == {"resource_properties": [{"property": "asset"}, {"property": "rack"}]}
    private = admin.patch(f"{path}/asset", {"private": True})
    assert private.status_code == 200
    setting = private.json["resource_property"]
    assert (setting["property_name"], setting["private"], setting["resource_type"]) == ("asset", True, "physical:host")
    shown = "2030-01-01T10:00:00Z" if version else "2030-01-01T10:00:00.000000"
    assert setting["created_at"] == shown
    everything = admin.get(f"{path}?detail=True&all=True").json["resource_properties"]
    assert {"property": "asset", "private": True, "values": ["4711"]} in everything
    assert admin.patch(f"{path}/nothing", {"private": True}).status_code == 404


NAMES = [{"property": "rack"}]
DETAILS = [{"property": "rack", "private": False, "values": ["r1"]}]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_all_properties_are_listed_at_1_0_only_on_request(api: Api, version: str) -> None:
    api.using("admin").put("/v1/os-hosts/1", {"rack": "r1", "asset": "4711"})
    api.using("admin").patch("/v1/os-hosts/properties/asset", {"private": True})
    admin = api.using("admin", version)

    def listed(query: str) -> list[dict[str, Any]]:
        result = admin.get(f"/v1/os-hosts/properties?{query}")
        assert result.status_code == 200, (query, result.text)
        found: list[dict[str, Any]] = result.json["resource_properties"]
        return found

    assert listed("") == NAMES
    for yes in ("true", "True", "1", "yes"):
        assert listed(f"detail={yes}") == DETAILS
        assert listed(f"all={yes}") == [{"property": "asset"}, *NAMES]
    for no in ("false", "False", "0", "no"):
        assert listed(f"detail={no}") == (DETAILS if version == "1.0" else NAMES)
        assert len(listed(f"all={no}")) == (2 if version == "1.0" else 1)


@pytest.mark.parametrize("path", ["/v1/os-hosts", "/v1/os-hosts/allocations"])
def test_a_marker_that_names_no_host_is_refused(admin: Api, path: str) -> None:
    new = admin.using(version="1.1")
    lease = new.book()
    filters = [f"lease_id={lease['id']}", "lease_id=x"] if "allocations" in path else ["sort_key=hypervisor_hostname"]
    for more in ("", *(f"&{condition}" for condition in filters)):
        result = new.get(f"{path}?marker=4711{more}")
        assert result.status_code == 400, (more, result.text)
        message = "marker: there is nothing of id 4711 that a list could go on after."
        assert result.json == {
            "error_code": 400,
            "error_name": "InvalidParameter",
            "error_message": message,
            "error": {"code": 400, "title": "InvalidParameter", "message": message},
            "field": "marker",
        }
        assert new.get(f"{path}?marker=4{more}").status_code == 200


def test_a_list_does_not_continue_after_an_unregistered_host(admin: Api) -> None:
    """It would not be known where: so the client learns that it must begin again."""
    new = admin.using(version="1.1")
    first = new.get("/v1/os-hosts?limit=2")
    link = first.json["hosts_links"][0]["href"].removeprefix("http://falconframework.org")
    assert new.delete("/v1/os-hosts/2").status_code == 204
    refused = new.get(link)
    assert (refused.status_code, refused.json["field"]) == (400, "marker")
    assert [host["id"] for host in new.get("/v1/os-hosts").json["hosts"]] == ["1", "3", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/os-hosts", "/v1/os-hosts/allocations"])
def test_a_long_list_at_1_0_is_complete_while_hosts_are_unregistered(tmp_path: Path, path: str) -> None:
    """It is sent as it is read, and hosts that it would have gone on after are no longer there."""
    with open_api(tmp_path, hosts=1003) as api:
        admin = api.using("admin")
        environ = testing.create_environ(path, headers={"X-Auth-Token": USERS["admin"].token})
        started = testing.StartResponseMock()
        answer = admin.app(environ, started)
        chunks = iter(answer)
        sent = next(chunks) + next(chunks)
        for taken in ("1000", "999", "1001"):
            assert admin.delete(f"/v1/os-hosts/{taken}").status_code == 204
        document = json.loads(sent + b"".join(chunks))
        answer.close()
        assert started.status == "200 OK"
        [(name, listed)] = document.items()
        ids = [item["id" if name == "hosts" else "resource_id"] for item in listed]
        assert ids == [str(number) for number in range(1, 1004) if number != 1001]


UNREACHABLE = ("a/b", "/", "gpu.json", ".json", ".", "..")


@pytest.mark.parametrize("name", UNREACHABLE)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_property_that_no_url_could_name_is_refused(admin: Api, name: str, version: str) -> None:
    asked = admin.using(version=version)
    admin.world.cloud.world.add_host("extra-1")
    own = {"rack": "r1", name: "x"}
    before = admin.dump()
    for result in (
        asked.post("/v1/os-hosts", {"name": "extra-1", **(own if version == "1.0" else {"properties": own})}),
        asked.put("/v1/os-hosts/1", own if version == "1.0" else {"properties": own}),
    ):
        assert result.status_code == 400, result.text
        assert result.json["error_message"] == (
            f"{name} cannot be the name of a property: no URL could name it. "
            "It must not have a / in it, nor end with .json, nor be . or .. itself."
        )
        assert result.json.get("field") == (None if version == "1.0" else f"properties.{name}")
    assert admin.dump() == before


def test_a_property_with_an_odd_name_is_reached_by_its_url(admin: Api) -> None:
    for name in ("json", "a.json.b", "a.JSON", "...", "a b", "ä", "a%2Fb", "a?b#c"):
        assert admin.put("/v1/os-hosts/1", {name: "x"}).status_code == 200
        result = admin.patch(f"/v1/os-hosts/properties/{quote(name, safe='')}", {"private": True})
        assert result.status_code == 200, (name, result.text)
        assert result.json["resource_property"]["property_name"] == name


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_property_in_use_is_named_with_its_place(admin: Api, version: str) -> None:
    assert admin.put("/v1/os-hosts/1", {"gpu": "a100"}).status_code == 200
    admin.using("demo").book(reservations=[{**HOSTS, "resource_properties": '["==", "$gpu", "a100"]'}])
    asked = admin.using(version=version)
    own = {"gpu": "h100", "rack": "r1"}
    refused = asked.put("/v1/os-hosts/1", own if version == "1.0" else {"properties": own})
    assert refused.status_code == 409
    message = "Can't add extracapabilities ['gpu'] to Host 1: leases on this host ask for them."
    if version == "1.0":
        assert refused.json == {"error_code": 409, "error_message": message, "error_name": 409}
    else:
        assert refused.json == {
            "error_code": 409,
            "error_message": message,
            "error_name": "Conflict",
            "error": {"code": 409, "title": "Conflict", "message": message},
            "field": "properties.gpu",
        }


def test_a_host_that_is_reserved_stays(admin: Api) -> None:
    here = '["==", "$hypervisor_hostname", "sim-host-002"]'
    lease = admin.book(reservations=[{**HOSTS, "resource_properties": here}])
    refused = admin.delete("/v1/os-hosts/2")
    assert (refused.status_code, refused.json["error_message"]) == (
        409,
        "Can't delete host 2. The host is reserved.",
    )
    assert admin.using(version="1.1").delete("/v1/os-hosts/2").json["error_name"] == "Conflict"
    assert admin.delete(f"/v1/leases/{lease['id']}").status_code == 204
    assert admin.delete("/v1/os-hosts/2").status_code == 204


def test_only_administrators_see_hosts(shared_api: Api) -> None:
    for version in (None, "1.1"):
        member = shared_api.using("demo", version)
        for method, path, body in (
            ("GET", "", None),
            ("POST", "", {"name": "x"}),
            ("GET", "/1", None),
            ("PUT", "/1", {"properties": {"a": "b"}} if version else {"a": "b"}),
            ("DELETE", "/1", None),
            ("GET", "/allocations", None),
            ("GET", "/1/allocation", None),
            ("GET", "/properties", None),
            ("GET", "/properties?all=True", None),
            ("PATCH", "/properties/gpu", {"private": True}),
        ):
            result = member.call(method, f"/v1/os-hosts{path}", body)
            assert result.status_code == 403, (method, path, result.text)
            assert "Policy doesn't allow blazar:oshosts:" in result.json["error_message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "", {}, 403, "Invalid values for host {}"),
        ("POST", "", {"name": ""}, 403, "Invalid values for host"),
        ("POST", "", {"name": None, "id": None}, 403, "Invalid values for host"),
        ("POST", "", {"name": ["x"]}, 400, "Malformed parameter name"),
        ("POST", "", {"name": "x" * 256}, 400, "Malformed parameter name"),
        ("POST", "", {"name": "nope"}, 404, "Host 'nope' not found!"),
        ("POST", "", {"name": "sim-host-001", "k" * 65: "v"}, 400, "Extra capability key too long"),
        ("POST", "", {"name": "sim-host-001", "a": {"b": 1}}, 400, "Malformed parameter a"),
        ("POST", "", {"name": "sim-host-001", "": "v"}, 400, "A property needs a name"),
        ("PUT", "/1", {}, 400, "No data to update"),
        ("PUT", "/1", {"k" * 65: "v"}, 400, "Extra capability key too long"),
        ("PUT", "/1", {"values": {"a": "b"}}, 400, "Malformed parameter values"),
        ("PUT", "/1", {"a": "v" * 16385}, 400, "Malformed parameter a"),
        ("PUT", "/999", {"a": "b"}, 404, "Object with {'host_id': '999'} not found"),
        ("PATCH", "/properties/gpu", {}, 400, "Missing parameter private"),
        ("PATCH", "/properties/gpu", {"private": "yes"}, 400, "Malformed parameter private"),
        ("PATCH", "/properties/gpu", {"private": 1}, 400, "Malformed parameter private"),
        ("GET", f"/{'9' * 256}", None, 404, "Object with"),
        ("GET", "/%00", None, 404, "Object with"),
        ("GET", "/allocations?lease_id=%00", None, 400, "lease_id holds a NUL"),
        ("GET", f"/allocations?lease_id={'x' * 65}", None, 400, "Malformed parameter lease_id"),
    ],
)
def test_mistakes_at_1_0(shared_admin: Api, method: str, path: str, body: object, status: int, message: str) -> None:
    before = shared_admin.dump()
    result = shared_admin.call(method, f"/v1/os-hosts{path}", body)
    assert (result.status_code, result.json["error_code"]) == (status, status), result.text
    assert result.json["error_message"].startswith(message)
    assert shared_admin.dump() == before


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "", {}, "name"),
        ("POST", "", {"name": "a", "id": "1"}, "name"),
        ("POST", "", {"name": ""}, "name"),
        ("POST", "", {"id": 1}, "id"),
        ("POST", "", {"name": "sim-host-001", "gpu": "1"}, "gpu"),
        ("POST", "", {"name": "sim-host-001", "properties": None}, "properties"),
        ("POST", "", {"name": "sim-host-001", "properties": {"vcpus": "1"}}, "properties.vcpus"),
        ("POST", "", {"name": "sim-host-001", "properties": {"a": None}}, "properties.a"),
        ("POST", "", {"name": "sim-host-001", "properties": {"a": 1}}, "properties.a"),
        ("PUT", "/1", {}, "properties"),
        ("PUT", "/1", {"properties": {}}, "properties"),
        ("PUT", "/1", {"properties": {"": "x"}}, "properties."),
        ("PUT", "/1", {"properties": {"k" * 65: "v"}}, f"properties.{'k' * 65}"),
        ("PUT", "/1", {"properties": {"a": True}}, "properties.a"),
        ("PUT", "/1", {"a": "b"}, "properties"),
        ("PATCH", "/properties/gpu", {"private": True, "property_name": "x"}, "property_name"),
        ("GET", "?sort_key=vcpus", None, "sort_key"),
        ("GET", "?reservable=maybe", None, "reservable"),
        ("GET", "?reservable=", None, "reservable"),
        ("GET", "/properties?detail=", None, "detail"),
        ("GET", "/properties?detail=TRUE", None, "detail"),
        ("GET", "/properties?all=2", None, "all"),
        ("GET", "?marker=1&a=b", None, "a"),
        ("GET", "/allocations?limit=0", None, "limit"),
        ("GET", "/1/allocation?limit=1", None, "limit"),
        ("GET", "/properties?detail=1&colour=1", None, "colour"),
        ("DELETE", "/1?force=1", None, "force"),
    ],
)
def test_mistakes_from_1_1_on(shared_admin: Api, method: str, path: str, body: object, field: str) -> None:
    admin = shared_admin.using(version="1.1")
    before = admin.dump()
    result = admin.call(method, f"/v1/os-hosts{path}", body)
    assert (result.status_code, result.json.get("field")) == (400, field), result.text
    assert admin.dump() == before


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_host_has_a_bounded_number_of_properties(api: Api, version: str) -> None:
    admin = api.using("admin", version)
    many = {f"p{number}": "x" for number in range(501)}
    for given, status in ((many, 400), (dict(list(many.items())[:300]), 200), (dict(list(many.items())[300:]), 400)):
        body: dict[str, object] = dict(given) if version == "1.0" else {"properties": given}
        answer = admin.put("/v1/os-hosts/1", body)
        assert answer.status_code == status, answer.text
        if status == 400:
            assert "no more than 500 properties" in answer.json["error_message"]
