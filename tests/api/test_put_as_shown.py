"""A lease can be sent back as it was shown: what is as before is no change."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.api.rig import ADDRESSES, FLAVORS, HOSTS, INSTANCES, Api, rfc3339

HOUR = timedelta(hours=1)


def shown(api: Api, lease_id: str) -> Any:
    answer = api.get(f"/v1/leases/{lease_id}")
    assert answer.status_code == 200
    return answer.json["lease"]


@pytest.fixture
def newest(api: Api) -> Api:
    return api.using(version="1.3")


@pytest.fixture
def lease(newest: Api) -> Any:
    newest.register_address()
    events = [{"time": rfc3339(newest.now + 2 * HOUR), "message": "half"}]
    before_end = rfc3339(newest.now + 3 * HOUR)
    requested = [HOSTS, INSTANCES, FLAVORS, ADDRESSES]
    body = newest.lease_body(start=1, hours=3, reservations=requested, events=events, before_end_date=before_end)
    answer = newest.post("/v1/leases", body)
    assert answer.status_code == 201, answer.text
    return shown(newest, answer.json["lease"]["id"])


def put(api: Api, lease: Any, body: object, status: int = 200) -> Any:
    answer = api.put(f"/v1/leases/{lease['id']}", body)
    assert answer.status_code == status, answer.text
    return answer.json["lease"] if status == 200 else answer.json


@pytest.mark.parametrize("names", [(), ("reservations",), ("events",), ("name", "status"), ("id", "before_end_date")])
def test_lease_that_is_sent_back_is_unchanged(newest: Api, lease: Any, names: tuple[str, ...]):
    body = {name: lease[name] for name in names or lease}
    assert put(newest, lease, body) == lease
    assert shown(newest, lease["id"]) == lease
    assert newest.put(f"/v1/leases/{lease['id']}?dry_run=true", body).status_code == 200


def test_running_lease_can_be_sent_back(newest: Api, lease: Any):
    newest.world.pass_time(1.5 * HOUR)
    running = shown(newest, lease["id"])
    assert running["status"] == "ACTIVE"
    assert put(newest, lease, running)["events"] == running["events"]


def test_what_is_changed_in_it_is_changed(newest: Api, lease: Any):
    hosts, *others = lease["reservations"]
    own = next(event for event in lease["events"] if event["event_type"] == "notify_lease")
    others_events = [event for event in lease["events"] if event is not own]
    body = {
        **lease,
        "name": "another",
        "reservations": [{**hosts, "min": 1, "max": 2}, *others],
        "events": [*others_events, {**own, "message": "changed"}],
    }
    after = put(newest, lease, body)
    assert after["name"] == "another"
    assert [reservation["max"] for reservation in after["reservations"] if "max" in reservation] == [2]
    assert [event["message"] for event in after["events"] if event["event_type"] == "notify_lease"] == ["changed"]
    assert [event["time"] for event in after["events"]] == [event["time"] for event in lease["events"]]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"status": "ACTIVE"}, "status"),
        ({"id": "another"}, "id"),
        ({"project_id": "another"}, "project_id"),
        ({"created_at": "2030-01-01T00:00:00Z"}, "created_at"),
        ({"elephants": 1}, "elephants"),
    ],
)
def test_what_the_service_sets_cannot_be_changed(newest: Api, lease: Any, change: dict[str, object], field: str):
    assert put(newest, lease, {**lease, **change}, 400)["field"] == field
    assert shown(newest, lease["id"]) == lease


def test_reservations_and_events_of_the_service_cannot_be_changed(newest: Api, lease: Any):
    hosts, *others = lease["reservations"]
    for name, value in {"status": "active", "lease_id": "x", "elephants": 1}.items():
        refused = put(newest, lease, {**lease, "reservations": [*others, {**hosts, name: value}]}, 400)
        assert refused["field"] == f"reservations[3].{name}"
    start, *rest = lease["events"]
    refused = put(newest, lease, {**lease, "events": [*rest, {**start, "time": rfc3339(newest.now)}]}, 400)
    assert refused["field"] == f"events[{len(rest)}].time"


def test_facts_that_change_by_themselves_are_ignored(newest: Api, lease: Any):
    put(newest, lease, {**lease, "updated_at": rfc3339(newest.now), "may_end_at": rfc3339(newest.now)})


def test_earlier_versions_refuse_what_they_refused(newest: Api, lease: Any):
    old = newest.using(version="1.2")
    assert put(old, lease, {"id": lease["id"]}, 400)["field"] == "id"
    put(old, lease, shown(old, lease["id"]), 400)
