"""Events that owners define, from 1.2 on, and as older versions see them."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.services.notifications.outbox import Message
from tests.api.rig import HOSTS, Api
from tests.support.engines import HOUR, rebuild

HALF_TIME = {"time": "2030-01-01T11:30:00Z", "message": "half time"}
NEARLY = {"event_type": "notify_lease", "time": "2030-01-01T12:50:00+01:00", "message": "ten minutes left"}


def own(lease: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in lease["events"] if event["event_type"] == "notify_lease"]


def test_events_are_made_with_a_lease_and_shown_with_it(new: Api) -> None:
    lease = new.book(start=1, hours=1, events=[HALF_TIME, NEARLY])
    first, second = own(lease)
    assert (first["time"], first["message"], first["status"]) == ("2030-01-01T11:30:00Z", "half time", "UNDONE")
    assert (second["time"], second["message"]) == ("2030-01-01T11:50:00Z", "ten minutes left")
    assert first["lease_id"] == lease["id"]
    others = [event for event in lease["events"] if event not in (first, second)]
    assert {event["event_type"]: event["message"] for event in others} == {
        "start_lease": None,
        "before_end_lease": None,
        "end_lease": None,
    }
    assert new.get(f"/v1/leases/{lease['id']}").json["lease"] == lease
    assert new.get("/v1/leases").json["leases"] == [lease]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_older_versions_see_events_in_their_form(api: Api, new: Api, version: str) -> None:
    lease = new.book(start=1, hours=1, events=[HALF_TIME])
    shown = api.using(version=version).get(f"/v1/leases/{lease['id']}").json["lease"]
    (event,) = own(shown)
    assert {frozenset(event) for event in shown["events"]} == {
        frozenset({"id", "lease_id", "event_type", "time", "status", "created_at", "updated_at"})
    }
    assert event["time"] == ("2030-01-01T11:30:00.000000" if version == "1.0" else "2030-01-01T11:30:00Z")
    renamed = api.using(version=version).put(f"/v1/leases/{lease['id']}", {"name": "other"}).json["lease"]
    assert len(own(renamed)) == 1


def test_version_1_0_ignores_events(api: Api, new: Api) -> None:
    given = [{"event_type": "notify_lease", "event_date": "2030-01-01 11:30"}, {**HALF_TIME}]
    lease = api.book(start=1, hours=1, events=given)
    assert own(lease) == []
    (kept,) = own(new.put(f"/v1/leases/{lease['id']}", {"events": [HALF_TIME]}).json["lease"])
    assert api.put(f"/v1/leases/{lease['id']}", {"name": "x", "events": []}).status_code == 200
    assert [event["id"] for event in own(new.get(f"/v1/leases/{lease['id']}").json["lease"])] == [kept["id"]]


def test_1_1_refuses_events(api: Api) -> None:
    old = api.using(version="1.1")
    refused = old.post("/v1/leases", old.lease_body(start=1, hours=1, events=[]))
    assert (refused.status_code, refused.json["field"]) == (400, "events")


def test_events_are_changed_as_a_whole(new: Api) -> None:
    lease = new.book(start=1, hours=1, events=[HALF_TIME, NEARLY])
    path = f"/v1/leases/{lease['id']}"
    first, second = own(lease)
    words = {**HALF_TIME, "id": first["id"], "message": "other words"}
    changed = own(new.put(path, {"events": [words, {**HALF_TIME, "time": "2030-01-01T11:15:00Z"}]}).json["lease"])
    assert {(event["time"], event["message"]) for event in changed} == {
        ("2030-01-01T11:30:00Z", "other words"),
        ("2030-01-01T11:15:00Z", "half time"),
    }
    assert first["id"] in {event["id"] for event in changed}
    assert second["id"] not in {event["id"] for event in changed}
    assert own(new.put(path, {"name": "other"}).json["lease"]) == changed
    assert own(new.put(path, {"events": []}).json["lease"]) == []
    reasons = [entry["reason"] for entry in new.get(f"{path}/history").json["history"]]
    assert "events: 2 of the owner's" in reasons


def test_shown_events_can_be_sent_back(new: Api) -> None:
    lease = new.book(start=1, hours=1, events=[HALF_TIME, NEARLY])
    sent = [{name: event[name] for name in ("id", "event_type", "time", "message")} for event in own(lease)]
    again = new.put(f"/v1/leases/{lease['id']}", {"events": sent})
    assert (again.status_code, own(again.json["lease"])) == (200, own(lease))


def test_a_notified_event_cannot_change(new: Api) -> None:
    sent: list[Message] = []
    rebuild(new.world, sink=sent.append)
    lease = new.book(start=1, hours=1, events=[HALF_TIME])
    new.world.pass_time(1.6 * HOUR)
    (event,) = own(new.get(f"/v1/leases/{lease['id']}").json["lease"])
    assert event["status"] == "DONE"
    assert [message.payload["event"]["id"] for message in sent if "event" in message.payload] == [event["id"]]  # type: ignore[index]
    refused = new.put(f"/v1/leases/{lease['id']}", {"events": [{**HALF_TIME, "id": event["id"], "message": "new"}]})
    assert (refused.status_code, refused.json["error_name"]) == (409, "InvalidState")


def test_events_move_into_the_lease_when_an_older_client_ends_it(api: Api, new: Api) -> None:
    lease = new.book(start=0, hours=2, events=[HALF_TIME], reservations=[HOSTS])
    new.world.pass_time(HOUR)
    ended = api.put(f"/v1/leases/{lease['id']}", {"end_date": "now"})
    assert ended.status_code == 200, ended.text
    assert own(ended.json["lease"])[0]["time"] == "2030-01-01T11:00:00.000000"
