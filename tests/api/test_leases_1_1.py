"""Leases from 1.1 on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tests.api.rig import HOSTS, Api, api_over, open_api
from tests.support.engines import rebuild


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as opened:
        yield opened.using(version="1.1")


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with open_api(tmp_path_factory.mktemp("api")) as opened:
        yield opened.using(version="1.1")


def test_lease_is_booked_and_shown(api: Api) -> None:
    body = {
        "name": "mine",
        "start_date": "2030-01-01T12:00:30+01:00",
        "end_date": "2030-01-01T13:00:00Z",
        "before_end_date": "2030-01-01T12:30:00.250Z",
        "reservations": [{"resource_type": "physical:host", "min": 1, "max": 2}],
    }
    made = api.post("/v1/leases", body)
    assert made.status_code == 201, made.text
    lease = made.json["lease"]
    assert lease["start_date"] == "2030-01-01T11:00:30Z"
    assert lease["end_date"] == "2030-01-01T13:00:00Z"
    assert lease["before_end_date"] == "2030-01-01T12:30:00.250000Z"
    assert (lease["status"], lease["status_reason"], lease["degraded"]) == ("PENDING", None, False)
    assert lease["created_at"] == "2030-01-01T10:00:00Z"
    [reservation] = lease["reservations"]
    assert reservation["hypervisor_properties"] == reservation["resource_properties"] == ""
    assert reservation["before_end"] == "default"
    assert "resource_id" not in reservation
    assert api.get(f"/v1/leases/{lease['id']}").json == {"lease": lease}
    assert made.headers["OpenStack-API-Version"] == "reservation 1.1"
    assert made.headers["Vary"] == "OpenStack-API-Version"


def test_now_is_the_current_instant(api: Api) -> None:
    api.world.clock.advance(timedelta(seconds=42))
    lease = api.book(start_date="now", end_date="2030-01-01T11:00:00Z")
    assert lease["start_date"] == "2030-01-01T10:00:42Z"
    api.world.pass_time(timedelta(minutes=5))
    ended = api.put(f"/v1/leases/{lease['id']}", {"end_date": "now"})
    assert ended.status_code == 200, ended.text
    assert ended.json["lease"]["end_date"] == "2030-01-01T10:05:42Z"


def test_the_owner_sees_hosts_and_history(api: Api) -> None:
    api.using("admin").put("/v1/os-hosts/1", {"properties": {"rack": "r1", "asset": "4711"}})
    assert api.using("admin").patch("/v1/os-hosts/properties/asset", {"private": True}).status_code == 200
    here = '["==", "$rack", "r1"]'
    lease = api.book(start=0, reservations=[{**HOSTS, "resource_properties": here}])
    api.world.pass_time(timedelta(minutes=1))
    [host] = api.get(f"/v1/leases/{lease['id']}/hosts").json["hosts"]
    assert host["hypervisor_hostname"] == "sim-host-001"
    assert host["properties"] == {"rack": "r1"}
    assert host["status"] == "held"
    assert host["reservation_id"] == lease["reservations"][0]["id"]
    history = api.get(f"/v1/leases/{lease['id']}/history").json["history"]
    assert (history[0]["from_status"], history[0]["to_status"]) == (None, "PENDING")
    assert history[0]["request_id"].startswith("req-")
    assert history[-1]["to_status"] == "ACTIVE"
    for rest in ("history", "hosts"):
        assert api.using("other").get(f"/v1/leases/{lease['id']}/{rest}").status_code == 404


def test_a_reservation_can_be_dropped(api: Api) -> None:
    lease = api.book(reservations=[HOSTS, HOSTS])
    dropped = lease["reservations"][0]["id"]
    assert api.delete(f"/v1/leases/{lease['id']}/reservations/{dropped}").status_code == 204

    def states() -> dict[str, str]:
        reservations = api.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"]
        return {reservation["id"]: reservation["status"] for reservation in reservations}

    kept = lease["reservations"][1]["id"]
    assert states() == {dropped: "deleted", kept: "pending"}
    assert len(api.get(f"/v1/leases/{lease['id']}/hosts").json["hosts"]) == 1
    for missing in (f"/v1/leases/{lease['id']}/reservations/x", f"/v1/leases/x/reservations/{dropped}"):
        assert api.delete(missing).status_code == 404
    assert api.delete(f"/v1/leases/{lease['id']}/reservations/{'x' * 65}").status_code == 404

    changed = api.put(f"/v1/leases/{lease['id']}", {"reservations": [{"id": dropped, "min": 1, "max": 2}]})
    assert (changed.status_code, changed.json["field"]) == (400, "reservations[0].id")
    api.world.pass_time(timedelta(hours=1, minutes=5))
    assert states() == {dropped: "deleted", kept: "active"}
    assert len(api.get(f"/v1/leases/{lease['id']}/hosts").json["hosts"]) == 1


def test_a_running_reservation_can_be_dropped(api: Api) -> None:
    lease = api.book(start=0, hours=2, reservations=[{**HOSTS, "min": 2, "max": 2}, HOSTS])
    api.world.pass_time(timedelta(minutes=1))
    path = f"/v1/leases/{lease['id']}"
    dropped, kept = (reservation["id"] for reservation in lease["reservations"])

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = api.get(path).json["lease"]
        return found

    def held() -> dict[str, list[str]]:
        hosts: dict[str, list[str]] = {dropped: [], kept: []}
        for host in api.get(f"{path}/hosts").json["hosts"]:
            if host["status"] == "held":
                hosts[host["reservation_id"]].append(host["id"])
        return {reservation_id: sorted(ids) for reservation_id, ids in hosts.items()}

    def in_the_cloud() -> set[str]:
        return set(api.world.cloud.world.groups())

    before = held()
    assert (len(before[dropped]), len(before[kept])) == (2, 1)
    assert in_the_cloud() == {dropped, kept}
    assert (
        api.post("/v1/leases", api.lease_body(start=0, reservations=[{**HOSTS, "min": 2, "max": 2}])).status_code == 409
    )

    assert api.delete(f"{path}/reservations/{dropped}").status_code == 204
    after = shown()
    assert after["status"] == "ACTIVE"
    states = {reservation["id"]: reservation["status"] for reservation in after["reservations"]}
    assert states == {dropped: "deleted", kept: "active"}
    assert (after["start_date"], after["end_date"]) == (lease["start_date"], lease["end_date"])
    assert held() == {dropped: [], kept: before[kept]}
    assert in_the_cloud() == {kept}
    assert api.delete(f"{path}/reservations/{dropped}").status_code == 204

    taken = api.book(start=0, hours=1, reservations=[{**HOSTS, "min": 3, "max": 3}])
    api.world.pass_time(timedelta(minutes=1))
    hosts = api.get(f"/v1/leases/{taken['id']}/hosts").json["hosts"]
    assert set(before[dropped]) <= {host["id"] for host in hosts}
    assert held() == {dropped: [], kept: before[kept]}
    api.world.pass_time(timedelta(hours=3))
    assert shown()["status"] == "TERMINATED"


def test_dropping_a_reservation_again_is_no_error(api: Api) -> None:
    lease = api.book(reservations=[HOSTS, HOSTS])
    for _ in range(2):
        path = f"/v1/leases/{lease['id']}/reservations/{lease['reservations'][0]['id']}"
        assert api.delete(path).status_code == 204


def test_pages_of_a_list_link_to_the_next_page(api: Api) -> None:
    for index in range(5):
        api.book(name=f"lease-{index}", start=1 + index, reservations=[])
    path = "/v1/leases?limit=2&sort_key=name&sort_dir=desc"
    names = []
    for _ in range(3):
        page = api.get(path).json
        names.append([lease["name"] for lease in page["leases"]])
        if "leases_links" not in page:
            break
        [link] = page["leases_links"]
        assert link["rel"] == "next"
        assert link["href"].startswith(
            "http://falconframework.org/v1/leases?limit=2&sort_key=name&sort_dir=desc&marker="
        )
        path = link["href"].removeprefix("http://falconframework.org")
    assert names == [["lease-4", "lease-3"], ["lease-2", "lease-1"], ["lease-0"]]


def test_lists_can_be_filtered(api: Api) -> None:
    early = api.book(name="early", start=1, reservations=[])
    late = api.book(name="late", start=10, reservations=[])
    api.using("other").book(name="foreign", start=1, reservations=[])

    def found(query: str, user: str = "demo") -> list[str]:
        return sorted(lease["name"] for lease in api.using(user).get(f"/v1/leases?{query}").json["leases"])

    assert found("name=late") == ["late"]
    assert found("status=PENDING") == ["early", "late"]
    assert found("status=ACTIVE") == []
    assert found(f"starts_before={late['start_date']}") == ["early"]
    assert found(f"ends_after={early['end_date']}") == ["late"]
    assert found("project_id=demo-project&user_id=demo-user") == ["early", "late"]
    assert found("project_id=other-project", "admin") == ["foreign"]


def test_or_not_and_in_are_accepted_and_shown_at_1_0(api: Api) -> None:
    text = '["and", ["in", "$availability_zone", "az-1", "az-2"], ["not", ["==", "$vcpus", "1"]]]'
    body = api.lease_body(reservations=[{**HOSTS, "resource_properties": text}])
    lease = api.post("/v1/leases", body).json["lease"]
    assert lease["reservations"][0]["resource_properties"] == text
    old = api.using(version="1.0")
    assert old.get(f"/v1/leases/{lease['id']}").json["lease"]["reservations"][0]["resource_properties"] == text
    change = {"id": lease["reservations"][0]["id"], "max": 2}
    assert old.put(f"/v1/leases/{lease['id']}", {"reservations": [change]}).status_code == 200
    assert (
        old.put(f"/v1/leases/{lease['id']}", {"reservations": [{**change, "resource_properties": text}]})
        .json["error_message"]
        .startswith("Malformed requirements ['and', ['in',")
    )


def test_refusal_has_the_reasons_as_data(api: Api) -> None:
    body = api.lease_body(reservations=[{**HOSTS, "min": 9, "max": 9}])
    result = api.post("/v1/leases", body)
    assert result.status_code == 409
    assert result.json["error_name"] == "NotEnoughResources"
    assert result.json["error_message"].startswith("Not enough hosts available: 9 asked for")
    assert result.json["details"] == {
        "resource_type": "physical:host",
        "reservation": 0,
        "requested": 9,
        "stages": [
            {"stage": "reservable", "count": 4},
            {"stage": "matching", "count": 4},
            {"stage": "free", "count": 4},
        ],
        "unknown_properties": [],
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"colour": "red"}, "colour"),
        ({"events": []}, "events"),
        ({"id": "mine"}, "id"),
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"name": None}, "name"),
        ({"start_date": "2030-01-01 11:00"}, "start_date"),
        ({"start_date": "2030-01-01T11:00:00"}, "start_date"),
        ({"start_date": "2030-01-01T11:00Z"}, "start_date"),
        ({"start_date": "2030-02-30T11:00:00Z"}, "start_date"),
        ({"start_date": "2030-01-01T11:00:60Z"}, "start_date"),
        ({"start_date": "2030-01-01T11:00:00+24:00"}, "start_date"),
        ({"start_date": "0001-01-01T00:00:00+01:00"}, "start_date"),
        ({"start_date": "1999-01-01T00:00:00Z"}, "start_date"),
        ({"start_date": 1893495600}, "start_date"),
        ({"end_date": "now"}, "end_date"),
        ({"end_date": "9999-12-31T23:59:59Z"}, "end_date"),
        ({"end_date": "2030-01-01T10:00:01Z"}, "end_date"),
        ({"before_end_date": "now"}, "before_end_date"),
        ({"before_end_date": "2031-01-01T00:00:00Z"}, "before_end_date"),
        ({"reservations": None}, "reservations"),
        ({"reservations": "none"}, "reservations"),
        ({"reservations": [7]}, "reservations[0]"),
        ({"reservations": [{"resource_type": {}}]}, "reservations[0].resource_type"),
        ({"reservations": [{**HOSTS, "min": "1"}]}, "reservations[0].min"),
        ({"reservations": [{**HOSTS, "min": 0}]}, "reservations[0].min"),
        ({"reservations": [{**HOSTS, "min": -1}]}, "reservations[0].min"),
        ({"reservations": [{**HOSTS, "min": 1.5}]}, "reservations[0].min"),
        ({"reservations": [{**HOSTS, "min": True}]}, "reservations[0].min"),
        ({"reservations": [{**HOSTS, "max": 2**31}]}, "reservations[0].max"),
        ({"reservations": [{**HOSTS, "min": 2}]}, "reservations[0]"),
        ({"reservations": [HOSTS, {**HOSTS, "colour": "red"}]}, "reservations[1].colour"),
        ({"reservations": [{**HOSTS, "before_end": "email"}]}, "reservations[0].before_end"),
        ({"reservations": [{**HOSTS, "resource_properties": []}]}, "reservations[0].resource_properties"),
        ({"reservations": [{**HOSTS, "resource_properties": "[1"}]}, "reservations[0].resource_properties"),
    ],
)
def test_wrong_field_of_a_request_is_named(shared_api: Api, change: dict[str, Any], field: str) -> None:
    before = shared_api.dump()
    result = shared_api.post("/v1/leases", shared_api.lease_body(**change))
    assert result.status_code == 400, result.text
    assert result.json["error_name"] == "InvalidParameter"
    assert result.json["field"] == field, result.text
    assert result.headers["OpenStack-API-Version"] == "reservation 1.1"
    assert shared_api.dump() == before


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"before_end_date": None}, "before_end_date"),
        ({"end_date": None}, "end_date"),
        ({"status": "ACTIVE"}, "status"),
        ({"project_id": "other"}, "project_id"),
        ({"reservations": [{"id": "RESERVATION", "status": "active"}]}, "reservations[0].status"),
        ({"reservations": [{"id": 5}]}, "reservations[0].id"),
        ({"reservations": [{}]}, "reservations[0].id"),
        ({"reservations": [{"id": "RESERVATION", "min": 0}]}, "reservations[0].min"),
        ({"reservations": [{"id": "x", "resource_type": "physical:host", "min": 0}]}, "reservations[0].min"),
        ({"reservations": [{"id": "x", "min": 0}]}, "reservations[0].id"),
        ({"reservations": [{"id": "x", "resource_type": "physical:ship"}]}, "reservations[0].resource_type"),
    ],
)
def test_wrong_field_of_a_change_is_named(api: Api, change: dict[str, object], field: str) -> None:
    lease = api.book()
    before = api.dump()
    body = json.loads(json.dumps(change).replace("RESERVATION", lease["reservations"][0]["id"]))
    result = api.put(f"/v1/leases/{lease['id']}", body)
    assert (result.status_code, result.json["field"]) == (400, field), result.text
    assert api.dump() == before


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=-1", "limit"),
        ("limit=1.5", "limit"),
        ("limit=", "limit"),
        ("limit=%D9%A1", "limit"),  # a digit, but not an ASCII digit
        ("limit=1&limit=2", "limit"),
        ("sort_key=project_id", "sort_key"),
        ("sort_dir=up", "sort_dir"),
        ("status=DELETED", "status"),
        ("status=active", "status"),
        ("starts_before=2030-01-01", "starts_before"),
        ("starts_before=now", "starts_before"),
        ("name=", "name"),
        ("marker=%00", "marker"),
        ("marker=", "marker"),
        ("colour=red", "colour"),
        ("%00=1", "?"),
    ],
)
def test_wrong_parameter_of_a_query_is_named(shared_api: Api, query: str, field: str) -> None:
    result = shared_api.get(f"/v1/leases?{query}")
    assert (result.status_code, result.json.get("field")) == (400, field), result.text


def test_query_is_refused_except_for_lists(api: Api) -> None:
    lease = api.book()
    for method, path in (
        ("GET", f"/v1/leases/{lease['id']}"),
        ("PUT", f"/v1/leases/{lease['id']}"),
        ("DELETE", f"/v1/leases/{lease['id']}"),
        ("POST", "/v1/leases"),
        ("GET", f"/v1/leases/{lease['id']}/history"),
        ("GET", f"/v1/leases/{lease['id']}/hosts"),
    ):
        result = api.call(method, f"{path}?force=true")
        assert (result.status_code, result.json["field"]) == (400, "force")
    assert api.get(f"/v1/leases/{lease['id']}").status_code == 200


def _next(page: Any) -> str:
    """Return the link to the next page."""
    [link] = page.json["leases_links"]
    href: str = link["href"]
    return href.removeprefix("http://falconframework.org")


def test_marker_must_be_a_lease_of_the_caller(api: Api) -> None:
    api.book()
    foreign = api.using("other").book()["id"]
    for marker in (foreign, "00000000-0000-0000-0000-000000000000", "x"):
        for more in ("", "&limit=1&sort_key=name&sort_dir=desc", "&status=ACTIVE", "&project_id=demo-project"):
            result = api.get(f"/v1/leases?marker={marker}{more}")
            assert result.status_code == 400, result.text
            message = f"marker: there is no lease {marker} that a list could go on after."
            assert result.json == {
                "error_code": 400,
                "error_name": "InvalidParameter",
                "error_message": message,
                "error": {"code": 400, "title": "InvalidParameter", "message": message},
                "field": "marker",
            }
    seen = api.using("admin").get(f"/v1/leases?marker={foreign}")
    assert seen.status_code == 200
    assert foreign not in [lease["id"] for lease in seen.json["leases"]]


def test_marker_need_not_match_the_filters(api: Api) -> None:
    """A lease may start, or be renamed, between two pages."""
    first = api.book(name="first", reservations=[])["id"]
    last = api.book(name="last", reservations=[])["id"]
    markers = sorted([first, last])  # both have the same creation time
    page = api.get(f"/v1/leases?status=PENDING&marker={markers[0]}&name={'last' if markers[1] == last else 'first'}")
    assert [lease["id"] for lease in page.json["leases"]] == [markers[1]]


def test_list_continues_after_a_lease_that_was_deleted_meanwhile(api: Api) -> None:
    for name in "abc":
        api.book(name=name)
    first = api.get("/v1/leases?limit=1&sort_key=name")
    [lease] = first.json["leases"]
    assert api.delete(f"/v1/leases/{lease['id']}").status_code == 204
    rest = api.get(_next(first))
    assert [lease["name"] for lease in rest.json["leases"]] == ["b"]
    assert [lease["name"] for lease in api.get(_next(rest)).json["leases"]] == ["c"]
    foreign = api.using("other").get(f"/v1/leases?marker={lease['id']}")
    assert foreign.status_code == 400


def test_lease_of_zero_length_gets_no_reservation(api: Api):
    """As in Blazar, a waiting lease may get its start as its end."""
    lease = api.book(start=1)
    empty = api.put(f"/v1/leases/{lease['id']}", {"end_date": lease["start_date"]})
    assert empty.status_code == 200
    added = api.post(f"/v1/leases/{lease['id']}/reservations", {"resource_type": "physical:host", "min": 1, "max": 1})
    assert added.status_code == 409
    assert "no time" in added.json["error_message"]


@pytest.mark.parametrize("length", ["0.000001", "0.5", "0.999999"])
def test_lease_of_less_than_a_second_is_refused(api: Api, length: str):
    """It would be over before its resources could be handed over."""
    begin, end = "2030-01-01T12:00:00Z", f"2030-01-01T12:00:0{length}Z"
    body = {"name": "l", "start_date": begin, "end_date": end, "reservations": [HOSTS]}
    refused = api.post("/v1/leases", body)
    assert (refused.status_code, refused.json["field"]) == (400, "end_date")
    lease = api.book(start_date=begin, end_date="2030-01-01T12:00:01Z")
    refused = api.put(f"/v1/leases/{lease['id']}", {"end_date": end})
    assert (refused.status_code, refused.json["field"]) == (400, "end_date")
    assert api.get(f"/v1/leases/{lease['id']}").json["lease"] == lease


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "a\r\nb", "a\x07", "a\x7f", "a\x9b31m", "\t"])
def test_name_with_control_characters_is_refused(api: Api, name: str):
    refused = api.post("/v1/leases", api.lease_body(name=name))
    assert (refused.status_code, refused.json["field"]) == (400, "name")
    assert "control character" in refused.json["error_message"]
    lease = api.book(start=1)
    refused = api.put(f"/v1/leases/{lease['id']}", {"name": name})
    assert (refused.status_code, refused.json["field"]) == (400, "name")
    assert api.get(f"/v1/leases/{lease['id']}").json["lease"] == lease
    assert api.using(version="1.0").put(f"/v1/leases/{lease['id']}", {"name": name}).status_code == 200


def test_requests_reveal_no_private_property(api: Api):
    """From the hosts that match, in a refusal, a value could be found out comparison by comparison."""
    admin = api.using("admin")
    for host in ("1", "2"):
        admin.put(f"/v1/os-hosts/{host}", {"properties": {"asset": "4711", "rack": "7"}})
    assert admin.patch("/v1/os-hosts/properties/asset", {"private": True}).status_code == 200

    def asking(caller: Api, expression: str) -> Any:
        return caller.post("/v1/leases", caller.lease_body(reservations=[{**HOSTS, "resource_properties": expression}]))

    lease = asking(api, '["==", "$rack", "7"]').json["lease"]
    [reservation] = lease["reservations"]
    for expression in (
        '[">=", "$asset", "4000"]',
        '["and", ["==", "$rack", "7"], ["not", ["<", "$asset", "4000"]]]',
    ):
        change = {"reservations": [{"id": reservation["id"], "resource_properties": expression}]}
        more = {**HOSTS, "resource_properties": expression}
        for refused in (
            asking(api, expression),
            api.put(f"/v1/leases/{lease['id']}", change),
            api.post(f"/v1/leases/{lease['id']}/reservations", more),
        ):
            assert refused.status_code == 400, refused.text
            assert "asset is private" in refused.json["error_message"]
            assert refused.json["field"].endswith("resource_properties")
        made = asking(admin, expression)
        assert made.status_code == 201, made.text
        assert admin.delete(f"/v1/leases/{made.json['lease']['id']}").status_code == 204
    assert api.get(f"/v1/leases/{lease['id']}").json["lease"] == lease


def test_requests_reveal_no_value_inside_of_a_private_property(api: Api):
    admin = api.using("admin")
    for host in ("1", "2"):
        admin.put(f"/v1/os-hosts/{host}", {"properties": {"asset": '{"number": 4711}', "rack": '{"row": 7}'}})
    assert admin.patch("/v1/os-hosts/properties/asset", {"private": True}).status_code == 200

    def asking(caller: Api, expression: str) -> Any:
        return caller.post("/v1/leases", caller.lease_body(reservations=[{**HOSTS, "resource_properties": expression}]))

    lease = asking(api, '["==", "$rack:row", "7"]').json["lease"]
    expression = '["s>=", "$asset:number", "4000"]'
    change = {"reservations": [{"id": lease["reservations"][0]["id"], "resource_properties": expression}]}
    specs = {**HOSTS, "extra_specs": {"capabilities:asset:number": ">= 4000"}}
    newer = api.using(version="1.2")
    for refused in (
        asking(api, expression),
        api.put(f"/v1/leases/{lease['id']}", change),
        newer.post("/v1/leases", newer.lease_body(reservations=[specs])),
    ):
        assert refused.status_code == 400, refused.text
        assert "asset is private" in refused.json["error_message"]
    assert asking(admin, expression).status_code == 201


def test_changes_reveal_no_property_made_private_later(api: Api):
    admin = api.using("admin")
    for host in ("1", "2"):
        admin.put(f"/v1/os-hosts/{host}", {"properties": {"asset": "4711"}})
    asked = {**HOSTS, "resource_properties": '[">=", "$asset", "4000"]'}
    path = f"/v1/leases/{api.post('/v1/leases', api.lease_body(reservations=[asked])).json['lease']['id']}"
    assert admin.patch("/v1/os-hosts/properties/asset", {"private": True}).status_code == 200
    [reservation] = api.get(path).json["lease"]["reservations"]

    def changing(**parameters: object) -> Any:
        return api.put(path, {"reservations": [{"id": reservation["id"], **parameters}]})

    refused = changing(resource_properties='[">=", "$asset", "4711"]')
    assert refused.status_code == 400, refused.text
    assert "asset is private" in refused.json["error_message"]
    assert changing(resource_properties=asked["resource_properties"], before_end="snapshot").status_code == 200


@pytest.mark.slow
def test_reservations_added_to_a_lease_are_limited(api: Api):
    none = {**HOSTS, "min": 1, "max": 1, "resource_properties": ""}
    lease = api.post("/v1/leases", api.lease_body(reservations=[])).json["lease"]
    path = f"/v1/leases/{lease['id']}/reservations"
    floating = {"resource_type": "virtual:instance", "amount": 1, "vcpus": 1, "memory_mb": 1, "disk_gb": 0}
    for _ in range(100):
        assert api.post(path, floating).status_code == 201
    refused = api.post(path, none)
    assert refused.status_code == 409
    assert "no lease has more than 100" in refused.json["error_message"]


def test_the_stored_size_of_a_lease_is_limited(api: Api):
    """An expression may be 16 kB, and extra specs are dozens of values."""
    long = json.dumps(["in", "$rack", *(f"{number:0200d}" for number in range(64))])
    large = {**HOSTS, "resource_properties": long, "hypervisor_properties": long}
    answers = [api.post("/v1/leases", api.lease_body(reservations=[large] * count)) for count in (9, 11)]
    assert [answer.status_code for answer in answers] == [409, 400]  # there are no such hosts
    assert answers[1].json["field"] == "reservations"
    assert "too large" in answers[1].json["error_message"]


@pytest.mark.parametrize(
    ("name", "op", "value"),
    [("memory_mb", ">=", "1t"), ("vcpus", ">=", "1,000"), ("vcpus", "==", "many"), ("ssd_gb", "<", "1t")],
)
def test_a_numeric_property_is_compared_only_with_numbers(api: Api, name: str, op: str, value: str):
    """As text 524288 is more than 1t."""
    for host in ("1", "2"):
        api.using("admin").put(f"/v1/os-hosts/{host}", {"properties": {"ssd_gb": "960", "rack": "r1"}})
    requested = {**HOSTS, "resource_properties": json.dumps([op, f"${name}", value])}
    refused = api.post("/v1/leases", api.lease_body(reservations=[requested]))
    assert refused.status_code == 400, refused.text
    assert refused.json["field"] == "reservations[0].resource_properties"
    assert f"The property {name} is a number everywhere" in refused.json["error_message"]
    lease = api.book()
    change = {"id": lease["reservations"][0]["id"], "resource_properties": requested["resource_properties"]}
    for answer in (
        api.put(f"/v1/leases/{lease['id']}", {"reservations": [change]}),
        api.post(f"/v1/leases/{lease['id']}/reservations", requested),
    ):
        assert answer.status_code == 400, answer.text
        assert "is a number everywhere" in answer.json["error_message"]


def test_accepted_comparisons_of_numbers_and_texts(api: Api):
    """What is a text somewhere is compared as text; so is everything at 1.0, as in Blazar."""
    for host, slot in (("1", "12"), ("2", "12b")):
        api.using("admin").put(f"/v1/os-hosts/{host}", {"properties": {"slot": slot, "rack": "r1"}})
    for expression in (["==", "$slot", "12b"], [">=", "$rack", "r0"], ["==", "$vcpus", "64"], ["!=", "$nosuch", "x"]):
        requested = {**HOSTS, "resource_properties": json.dumps(expression)}
        answer = api.post("/v1/leases", api.lease_body(reservations=[requested]))
        assert answer.status_code in {201, 409}, answer.text
    old = api.using(version="1.0")
    requested = {**HOSTS, "resource_properties": json.dumps([">=", "$memory_mb", "1t"])}
    assert old.post("/v1/leases", old.lease_body(reservations=[requested])).status_code == 201


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("ends_after=2027-03-01T10:30:00+01:00", ('"2027-03-01T10:30:00 01:00"', "+ is written as %2B")),
        ("ends_after=2027-03-01", ('"2027-03-01"',)),
        ("limit=many", ('"many"',)),
        ("limit=-1", ('"-1"',)),
        ("sort_dir=up", ('"up"',)),
        ("status=active", ('"active"',)),
        ("name=" + "x" * 300, ('"' + "x" * 100 + '"...',)),
    ],
)
def test_the_refusal_of_a_query_shows_what_was_understood(api: Api, query: str, shown: tuple[str, ...]) -> None:
    answer = api.get(f"/v1/leases?{query}")
    assert answer.status_code == 400
    for text in shown:
        assert text in answer.json["error_message"]


def test_the_refusal_of_a_body_shows_what_was_understood(api: Api) -> None:
    for field, value, shown in (
        ("start_date", "soon", '"soon"'),
        ("start_date", 5, "5"),
        ("name", None, "null"),
        ("reservations", "x\x1b[2J", '"x\\u001b[2J"'),
    ):
        answer = api.post("/v1/leases", api.lease_body() | {field: value})
        assert answer.status_code == 400
        assert f"(given: {shown})" in answer.json["error_message"], answer.text


def test_the_refusal_of_a_number_in_an_expression_says_that_values_are_texts(api: Api) -> None:
    body = api.lease_body(reservations=[{**HOSTS, "resource_properties": '["==", "$vcpus", 40]'}])
    hint = ': values are texts, in quotes: "40" in place of 40.'
    malformed = "Malformed requirements ['==', '$vcpus', 40]"
    assert api.post("/v1/leases", body).json["error_message"] == malformed + hint
    old = api.using(version="1.0")
    assert old.post("/v1/leases", old.lease_body() | {"reservations": body["reservations"]}).json["error_message"] == (
        malformed
    )


def test_the_refusal_of_a_long_lease_says_how_long_it_would_be(api: Api, tmp_path: Path) -> None:
    rebuild(api.world, rules=replace(api.world.service.components.rules, longest_lease=timedelta(days=2)))
    (tmp_path / "limited").mkdir()
    limited = api_over(api.world, tmp_path / "limited").using(version="1.3")
    refused = limited.post("/v1/leases", limited.lease_body(hours=49))
    assert refused.json["error_message"] == "A lease lasts for 2 days at most, and this one for 2 days 1 hour."


#: For each type: its path, the field with its name, its registration and a reservation.
PAST_RESOURCES = pytest.mark.parametrize(
    ("path", "name", "register", "requested"),
    [
        ("os-hosts", "hypervisor_hostname", {"name": "sim-host-001"}, HOSTS),
        (
            "floatingips",
            "floating_ip_address",
            {"floating_network_id": PUBLIC_NETWORK, "floating_ip_address": "203.0.113.10"},
            {"resource_type": "virtual:floatingip", "network_id": PUBLIC_NETWORK, "amount": 1},
        ),
        (
            "volume-pools",
            "name",
            {"name": "sim-storage@fast#nvme", "capacity_gb": 100},
            {"resource_type": "virtual:volume", "amount": 1, "size_gb": 10, "volume_type": "fast"},
        ),
    ],
)


@PAST_RESOURCES
def test_a_past_lease_names_what_it_had_also_when_that_is_unregistered(
    tmp_path: Path, path: str, name: str, register: dict[str, Any], requested: dict[str, Any]
) -> None:
    listed = path.removeprefix("os-").replace("-", "_")
    with open_api(tmp_path, hosts=1) as api:
        admin = api.using("admin", "1.3")
        if path != "os-hosts":
            assert admin.post(f"/v1/{path}", register).status_code == 201
        lease = api.using(version="1.3").book(start=0, hours=1, reservations=[requested])
        api.world.pass_time(timedelta(hours=2))
        owner = api.using(version="1.3")
        before = owner.get(f"/v1/leases/{lease['id']}/{listed}").json[listed]
        [had] = before
        assert admin.delete(f"/v1/{path}/{had['id']}").status_code == 204
        for _ in range(2):  # while it is unregistered, and when another one of its name is registered
            [after] = owner.get(f"/v1/leases/{lease['id']}/{listed}").json[listed]
            same = ("id", name, "reservation_id", "start_date", "end_date", "status")
            assert [after[field] for field in same] == [had[field] for field in same]
            assert admin.post(f"/v1/{path}", register).status_code == 201
            assert admin.delete(f"/v1/{path}/{had['id']}").status_code == 204


def _allocations(admin: Api, path: str, query: str = "") -> list[dict[str, Any]]:
    """Return the allocations on all pages of a list."""
    answer = admin.get(f"/v1/{path}/allocations?{query}")
    assert answer.status_code == 200, answer.text
    found = list(answer.json["allocations"])
    while links := answer.json.get("allocations_links"):
        answer = admin.get(links[0]["href"].removeprefix("http://falconframework.org"))
        found += answer.json["allocations"]
    return found


@PAST_RESOURCES
def test_allocations_of_a_past_lease_name_what_is_unregistered(
    tmp_path: Path, path: str, name: str, register: dict[str, Any], requested: dict[str, Any]
) -> None:
    with open_api(tmp_path, hosts=1) as api:
        admin = api.using("admin", "1.3")
        if path != "os-hosts":
            assert admin.post(f"/v1/{path}", register).status_code == 201
        lease = api.using(version="1.3").book(start=0, hours=1, reservations=[requested])
        of_lease = f"lease_id={lease['id']}"
        of_reservation = f"reservation_id={lease['reservations'][0]['id']}"
        api.world.pass_time(timedelta(hours=2))
        [had] = _allocations(admin, path, of_lease)
        assert [reservation["lease_id"] for reservation in had["reservations"]] == [lease["id"]]
        assert admin.delete(f"/v1/{path}/{had['resource_id']}").status_code == 204
        for _ in range(2):  # while it is unregistered, and when another one of its name was registered
            assert _allocations(admin, path, of_lease) == _allocations(admin, path, of_reservation) == [had]
            assert admin.post(f"/v1/{path}", register).status_code == 201
            assert had in _allocations(admin, path, of_lease)
            [registered] = _allocations(admin, path)
            assert registered["reservations"] == []
            assert admin.delete(f"/v1/{path}/{registered['resource_id']}").status_code == 204
        if path == "os-hosts":  # Blazar has no history of a host that is unregistered
            assert _allocations(api.using("admin", "1.0"), path, of_lease) == []


def test_a_host_that_a_lease_had_in_two_registrations_is_in_its_allocations_once(tmp_path: Path) -> None:
    with open_api(tmp_path, hosts=2) as api:
        admin = api.using("admin", "1.3")
        lease = api.using(version="1.3").book(start=0, hours=4, reservations=[HOSTS])
        api.world.pass_time(timedelta(minutes=10))
        of_lease = f"lease_id={lease['id']}"
        [first] = [allocation["resource_id"] for allocation in _allocations(admin, "os-hosts", of_lease)]
        [second] = {"1", "2"} - {first}
        for host in (first, second):
            moved = admin.post(f"/v1/os-hosts/{host}/reallocate", {"running": True})
            assert [part["moves_to"] for part in moved.json["reservations"]] == [({first, second} - {host}).pop()]
            api.world.pass_time(timedelta(minutes=10))
            assert admin.delete(f"/v1/os-hosts/{host}").status_code == 204
            assert admin.post("/v1/os-hosts", {"name": f"sim-host-{int(host):03}"}).status_code == 201
        for limit in (1, 2, 9):
            listed = _allocations(admin, "os-hosts", f"{of_lease}&limit={limit}")
            assert [allocation["resource_id"] for allocation in listed] == ["1", "2"]
            assert [[part["lease_id"] for part in allocation["reservations"]] for allocation in listed] == [
                [lease["id"]],
                [lease["id"]],
            ]


def test_the_allocations_of_a_deleted_lease_are_empty(api: Api) -> None:
    admin = api.using("admin", "1.3")
    lease = api.using(version="1.3").book(start=0, hours=4)
    api.world.pass_time(timedelta(minutes=10))
    assert api.delete(f"/v1/leases/{lease['id']}").status_code == 204
    assert _allocations(admin, "os-hosts", f"lease_id={lease['id']}") == []
