"""Leases at 1.0, as Blazar's clients see them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.api.rig import HOSTS, Api, minutes


def test_lease_is_booked_shown_renamed_and_deleted(api: Api) -> None:
    made = api.book(name="mine", start=1, hours=2)
    assert made["status"] == "PENDING"
    assert made["start_date"] == "2030-01-01T11:00:00.000000"
    assert made["end_date"] == "2030-01-01T13:00:00.000000"
    assert made["created_at"] == "2030-01-01 10:00:00"
    assert made["trust_id"] == ""
    assert made["user_id"] == "demo-user"
    assert made["project_id"] == "demo-project"
    assert {event["event_type"]: event["time"] for event in made["events"]} == {
        "start_lease": "2030-01-01T11:00:00.000000",
        "before_end_lease": "2030-01-01T12:00:00.000000",
        "end_lease": "2030-01-01T13:00:00.000000",
    }
    [reservation] = made["reservations"]
    assert reservation["resource_id"] == reservation["id"]
    assert reservation["before_end"] == "default"

    shown = api.get(f"/v1/leases/{made['id']}")
    assert shown.json == {"lease": made}
    renamed = api.put(f"/v1/leases/{made['id']}", {"name": "ours"})
    assert renamed.status_code == 200
    assert renamed.json["lease"]["name"] == "ours"
    assert renamed.json["lease"]["status"] == "PENDING"

    for _ in range(2):
        gone = api.delete(f"/v1/leases/{made['id']}")
        assert (gone.status_code, gone.text) == (204, "")
    assert api.get(f"/v1/leases/{made['id']}").status_code == 404
    assert api.get("/v1/leases").json == {"leases": []}


def test_now_is_the_current_minute(api: Api) -> None:
    api.world.clock.advance(timedelta(seconds=42))
    lease = api.book(start_date="now", end_date="2030-01-01 11:00")
    assert lease["start_date"] == "2030-01-01T10:00:00.000000"


def test_running_lease_can_end_now(api: Api) -> None:
    lease = api.book(start=0)
    api.world.pass_time(timedelta(minutes=1))
    assert api.get(f"/v1/leases/{lease['id']}").json["lease"]["status"] == "ACTIVE"
    ended = api.put(f"/v1/leases/{lease['id']}", {"end_date": "now"})
    assert ended.status_code == 200, ended.text
    api.world.pass_time(timedelta(minutes=1))
    after = api.get(f"/v1/leases/{lease['id']}").json["lease"]
    assert after["status"] == "TERMINATED"
    assert {event["event_type"] for event in after["events"]} == {"start_lease", "before_end_lease", "end_lease"}


def test_unknown_and_read_only_fields_are_ignored(api: Api) -> None:
    body = api.lease_body(
        events=[{"event_type": "before_end_lease", "event_date": "2030-01-01 10:30"}],
        before_end_date=None,
        id="chosen-by-me",
        project_id="other",
        user_id="other-user",
        degraded=True,
        status="ACTIVE",
        reservations=[{**HOSTS, "id": "mine too", "ephemeral_gb": 1, "status": "active"}],
    )
    lease = api.post("/v1/leases", body).json["lease"]
    assert lease["id"] != "chosen-by-me"
    assert (lease["project_id"], lease["user_id"]) == ("demo-project", "demo-user")
    assert (lease["degraded"], lease["status"]) == (False, "PENDING")
    assert lease["reservations"][0]["id"] != "mine too"
    assert lease["reservations"][0]["status"] == "pending"
    assert len(lease["events"]) == 3

    changed = api.put(f"/v1/leases/{lease['id']}", {"id": "x", "project_id": "other", "trust_id": "x", "name": "n"})
    assert changed.json["lease"]["id"] == lease["id"]
    assert changed.json["lease"]["project_id"] == "demo-project"
    assert api.using("other").get("/v1/leases").json == {"leases": []}


def test_numbers_and_texts_are_converted(api: Api) -> None:
    lease = api.book(name=5, reservations=[{**HOSTS, "min": "1", "max": "2"}])
    assert lease["name"] == "5"
    assert (lease["reservations"][0]["min"], lease["reservations"][0]["max"]) == (1, 2)


def test_time_of_the_action_before_the_end_can_be_chosen(api: Api) -> None:
    lease = api.book(start=1, hours=2, before_end_date="2030-01-01 11:30")
    times = {event["event_type"]: event["time"] for event in lease["events"]}
    assert times["before_end_lease"] == "2030-01-01T11:30:00.000000"
    moved = api.put(f"/v1/leases/{lease['id']}", {"before_end_date": "2030-01-01 12:00"}).json["lease"]
    times = {event["event_type"]: event["time"] for event in moved["events"]}
    assert times["before_end_lease"] == "2030-01-01T12:00:00.000000"


def test_action_before_the_end_must_be_within_the_lease(api: Api) -> None:
    lease = api.book(start=1, hours=2)
    result = api.put(f"/v1/leases/{lease['id']}", {"before_end_date": "2030-01-01 13:00"})
    assert result.status_code == 403
    assert result.json["error_message"] == "Datetime is out of lease limits"
    assert api.get(f"/v1/leases/{lease['id']}").json["lease"]["status"] == "PENDING"


def test_waiting_reservation_can_grow(api: Api) -> None:
    lease = api.book()
    reservation = lease["reservations"][0]["id"]
    path = f"/v1/leases/{lease['id']}"
    grown = api.put(path, {"reservations": [{"id": reservation, "min": 3, "max": 3}]}).json["lease"]
    assert (grown["reservations"][0]["min"], grown["reservations"][0]["max"]) == (3, 3)
    too_much = api.put(path, {"reservations": [{"id": reservation, "min": 5, "max": 5}]})
    assert too_much.status_code == 400
    assert too_much.json["error_message"].startswith("Not enough hosts available")
    assert api.get(path).json["lease"]["reservations"][0]["max"] == 3


@pytest.mark.parametrize("suffix", ["", ".json"])
def test_every_url_is_also_served_with_a_suffix(api: Api, suffix: str) -> None:
    lease = api.post(f"/v1/leases{suffix}", api.lease_body()).json["lease"]
    assert api.get(f"/v1/leases/{lease['id']}{suffix}").status_code == 200
    assert api.get(f"/v1/leases{suffix}").json["leases"][0]["id"] == lease["id"]
    assert api.using("admin").get(f"/v1/os-hosts/allocations{suffix}").status_code == 200
    assert api.delete(f"/v1/leases/{lease['id']}{suffix}").status_code == 204


def test_leases_of_other_projects_look_like_missing_leases(api: Api) -> None:
    lease = api.book()
    stranger = api.using("other")
    for method, body in (("GET", None), ("PUT", {"name": "stolen"}), ("DELETE", None)):
        foreign = stranger.call(method, f"/v1/leases/{lease['id']}", body)
        missing = stranger.call(method, "/v1/leases/00000000-0000-0000-0000-000000000000", body)
        assert foreign.status_code == missing.status_code == 404
        assert foreign.json["error_message"].replace(lease["id"], "") == missing.json["error_message"].replace(
            "00000000-0000-0000-0000-000000000000", ""
        )
    assert stranger.get("/v1/leases").json == {"leases": []}
    assert len(api.using("admin").get("/v1/leases").json["leases"]) == 1
    assert len(api.using("reader").get("/v1/leases").json["leases"]) == 1


def test_a_reader_reads_and_does_not_write(api: Api) -> None:
    lease = api.book()
    reader = api.using("reader")
    assert reader.get(f"/v1/leases/{lease['id']}").status_code == 200
    for method, path, body in (
        ("POST", "/v1/leases", api.lease_body()),
        ("PUT", f"/v1/leases/{lease['id']}", {"name": "x"}),
        ("DELETE", f"/v1/leases/{lease['id']}", None),
    ):
        result = reader.call(method, path, body)
        assert result.status_code == 403
        assert result.json["error_message"].startswith("Policy doesn't allow blazar:leases:")
        assert result.json["error_code"] == result.json["error_name"] == 403
    assert api.using("nobody").get("/v1/leases").status_code == 403


def test_a_query_changes_nothing(api: Api) -> None:
    api.book()
    for query in ("name=other", "limit=0", "all_tenants=1", "marker=x&marker=y", "%00=%00"):
        assert len(api.get(f"/v1/leases?{query}").json["leases"]) == 1


def test_urls_of_later_versions_are_not_served(api: Api) -> None:
    lease = api.book()
    for method, rest in (("GET", "/history"), ("GET", "/hosts"), ("DELETE", "/reservations/x")):
        result = api.call(method, f"/v1/leases/{lease['id']}{rest}")
        assert (result.status_code, result.json["error"]) == (404, 404)


#: An operator that microversion 1.1 accepts, and Blazar does not.
AN_OR = '["or", ["==", "$vcpus", "8"], ["==", "$vcpus", "16"]]'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, "Malformed parameter name"),
        ({"name": "x" * 81}, "Malformed parameter name (String should have at most 80 characters)"),
        ({"start_date": "Bogus-date 13:13"}, "Bogus-date 13:13 is an invalid date. Required format: %Y-%m-%d %H:%M"),
        ({"end_date": "2050-01-01 9:00:00"}, "2050-01-01 9:00:00 is an invalid date."),
        ({"end_date": 7}, "7 is an invalid date."),
        ({"end_date": None}, "None is an invalid date."),
        ({"end_date": "9999-12-31 23:59"}, "9999-12-31 23:59 is an invalid date."),
        ({"end_date": "2030-01-01 09:00"}, "End date must be later than start date."),
        ({"start_date": "2030-01-01 09:59"}, "Start date must be later than current date"),
        ({"before_end_date": "soon"}, "soon is an invalid date."),
        ({"events": "none"}, "Malformed parameter events"),
        ({"reservations": None}, "Malformed parameter reservations"),
        ({"reservations": {}}, "Malformed parameter reservations"),
        ({"reservations": ["x"]}, "Malformed parameter reservations"),
        ({"reservations": [HOSTS] * 101}, "Malformed parameter reservations (List should have at most 100 items"),
        ({"reservations": [{}]}, "Missing parameter resource_type"),
        ({"reservations": [{**HOSTS, "resource_type": ["x"]}]}, "The ['x'] resource type is not supported"),
        ({"reservations": [{**HOSTS, "resource_type": "physical:ship"}]}, "The physical:ship resource type is not"),
        ({"reservations": [{**HOSTS, "min": "bar", "max": "foo"}]}, "Malformed parameter min"),
        ({"reservations": [{**HOSTS, "min": 0}]}, "Malformed parameter min and max (must be greater than"),
        ({"reservations": [{**HOSTS, "min": True}]}, "Malformed parameter min"),
        ({"reservations": [{**HOSTS, "max": 2**31}]}, "Malformed parameter max"),
        ({"reservations": [{**HOSTS, "min": 2}]}, "Invalid values for min/max of hosts. Max must be equal"),
        ({"reservations": [{**HOSTS, "before_end": "email"}]}, "Malformed parameter before_end"),
        ({"reservations": [{**HOSTS, "before_end": "notify"}]}, "Malformed parameter before_end"),
        ({"reservations": [{**HOSTS, "resource_properties": ["=="]}]}, "Malformed requirements ['==']"),
        ({"reservations": [{**HOSTS, "resource_properties": "nonsense"}]}, "Malformed requirements nonsense"),
        (
            {"reservations": [{**HOSTS, "resource_properties": '["not", ["==", "$gpu", "a100"]]'}]},
            "Malformed requirements ['not', ['==', '$gpu', 'a100']]",
        ),
        (
            {"reservations": [{**HOSTS, "hypervisor_properties": '["in", "$rack", "r1", "r2"]'}]},
            "Malformed requirements ['in', '$rack', 'r1', 'r2']",
        ),
        (
            {"reservations": [{**HOSTS, "resource_properties": f'["and", {AN_OR}, ["==", "$gpu", "a100"]]'}]},
            "Malformed requirements ['and', ['or', ['==', '$vcpus', '8'], ['==', '$vcpus', '16']], ['==', '$gpu', ",
        ),
    ],
)
def test_a_mistake_is_named_as_blazar_names_it(shared_api: Api, change: dict[str, Any], message: str) -> None:
    before = shared_api.dump()
    result = shared_api.post("/v1/leases", shared_api.lease_body(**change))
    assert result.status_code == 400, result.text
    assert result.json["error_message"].startswith(message)
    assert result.json["error_code"] == result.json["error_name"] == 400
    assert shared_api.dump() == before


def test_missing_parameters_are_named_in_a_fixed_order(shared_api: Api) -> None:
    assert shared_api.post("/v1/leases", {}).json["error_message"] == "Missing parameter name, end_date, start_date"
    body = shared_api.lease_body()
    del body["end_date"]
    assert shared_api.post("/v1/leases", body).json["error_message"] == "Missing parameter end_date"


def test_change_of_a_reservation_needs_its_id(api: Api) -> None:
    lease = api.book()
    path = f"/v1/leases/{lease['id']}"
    before = api.dump()
    assert api.put(path, {"reservations": [{"max": 2}]}).json["error_message"] == "Missing parameter reservation ID"
    unknown = api.put(path, {"reservations": [{"id": "x", "max": 2}]})
    assert unknown.json["error_message"].startswith("Please enter valid reservation IDs.")
    other_type = api.put(path, {"reservations": [{"id": lease["reservations"][0]["id"], "resource_type": "x:y"}]})
    assert (other_type.status_code, unknown.status_code) == (400, 400)
    assert api.dump() == before


def test_empty_change_changes_nothing(api: Api) -> None:
    lease = api.book()
    for body in ({}, None, {"colour": "red"}, {"before_end_date": None}):
        result = api.put(f"/v1/leases/{lease['id']}", body)
        assert (result.status_code, result.json) == (200, {"lease": lease})


def test_ended_lease_can_only_be_renamed(api: Api) -> None:
    lease = api.book(start=0, hours=1)
    api.world.pass_time(timedelta(hours=2))
    path = f"/v1/leases/{lease['id']}"
    refused = api.put(path, {"end_date": minutes(api.now + timedelta(hours=1))})
    assert (refused.status_code, refused.json["error_message"]) == (400, "Terminated leases can only be renamed")
    assert api.put(path, {"name": "was mine"}).json["lease"]["name"] == "was mine"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_lease_can_end_in_the_minute_of_its_start(api: Api, version: str) -> None:
    """A lease with a start between two minutes, which needs 1.1, can end ``now`` at both versions."""
    new = api.using(version="1.1")
    new.world.clock.advance(timedelta(seconds=30))
    lease = new.book(start_date="now", end_date="2030-01-01T11:00:00Z", reservations=[{**HOSTS, "min": 4, "max": 4}])
    assert lease["start_date"] == "2030-01-01T10:00:30Z"
    new.world.pass_time(timedelta(seconds=15))
    ended = api.using(version=version).put(f"/v1/leases/{lease['id']}", {"end_date": "now"})
    assert ended.status_code == 200, ended.text
    assert ended.json["lease"]["end_date"].startswith(
        "2030-01-01T10:00:30" if version == "1.0" else "2030-01-01T10:00:45"
    )
    new.world.pass_time(timedelta(seconds=1))
    assert new.get(f"/v1/leases/{lease['id']}").json["lease"]["status"] == "TERMINATED"
    new.book(start_date="now", end_date="2030-01-01T11:00:00Z", reservations=[{**HOSTS, "min": 4, "max": 4}])


def test_lease_cannot_end_before_its_start(api: Api) -> None:
    """This holds also if the start is in the current minute."""
    new = api.using(version="1.1")
    for start in ("2030-01-01T10:00:30Z", "2030-01-01T10:30:00Z"):
        lease = new.book(start_date=start, end_date="2030-01-01T11:00:00Z")
        for versioned in (api, new):
            refused = versioned.put(f"/v1/leases/{lease['id']}", {"end_date": "now"})
            assert refused.status_code == 400, refused.text
            assert refused.json["error_message"] == "End date must be later than current and start date"
        assert new.get(f"/v1/leases/{lease['id']}").json["lease"]["end_date"] == "2030-01-01T11:00:00Z"
