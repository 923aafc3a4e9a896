"""Leases that are held until they are confirmed, from 1.2 on, and as older versions see them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.api.rig import HOSTS, Api


def hold(new: Api, seconds: int = 120) -> dict[str, Any]:
    return new.book(start=1, hours=1, hold_for=seconds, reservations=[HOSTS])


def test_a_held_lease_shows_until_when(new: Api) -> None:
    lease = hold(new)
    assert (lease["status"], lease["hold_until"]) == ("CREATING", "2030-01-01T10:02:00Z")
    assert "hold_lease" not in [event["event_type"] for event in lease["events"]]
    path = f"/v1/leases/{lease['id']}"
    assert new.get(path).json["lease"] == lease
    confirmed = new.post(f"{path}/confirm", {})
    assert confirmed.status_code == 200
    assert (confirmed.json["lease"]["status"], confirmed.json["lease"]["hold_until"]) == ("PENDING", None)
    assert new.post(f"{path}/confirm", {}).json == confirmed.json
    assert [entry["action"] for entry in new.get(f"{path}/history").json["history"]] == ["create", "confirm"]


def test_a_confirmation_may_change_the_reservations(new: Api) -> None:
    lease = hold(new)
    path, (reservation,) = f"/v1/leases/{lease['id']}/confirm", lease["reservations"]
    body = {"reservations": [{"id": reservation["id"], "max": 2}]}
    confirmed = new.post(path, body)
    assert confirmed.json["lease"]["reservations"][0]["max"] == 2
    assert new.post(path, body).status_code == 200
    refused = new.post(path, {"reservations": [{"id": reservation["id"], "max": 3}]})
    assert (refused.status_code, refused.json["field"]) == (409, "reservations[0].max")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x"}, "name"),
        ({"reservations": [{"max": 2}]}, "reservations[0].id"),
        ({"reservations": [{"id": "unknown"}]}, "reservations[0].id"),
        ({"reservations": [{"id": "ID", "max": 0}]}, "reservations[0].max"),
        ({"reservations": [{"id": "ID", "resource_type": "virtual:instance"}]}, "reservations[0].resource_type"),
    ],
)
def test_the_wrong_field_of_a_confirmation_is_named(new: Api, body: dict[str, Any], field: str) -> None:
    lease = hold(new)
    for changed in body.get("reservations", []):
        if changed.get("id") == "ID":
            changed["id"] = lease["reservations"][0]["id"]
    refused = new.post(f"/v1/leases/{lease['id']}/confirm", body)
    assert (refused.status_code, refused.json["field"]) == (400, field)
    assert new.get(f"/v1/leases/{lease['id']}").json["lease"] == lease


@pytest.mark.parametrize("seconds", [0, 3601, -1, 1.5, "60", True])
def test_a_hold_has_a_length_in_seconds(new: Api, seconds: object) -> None:
    refused = new.post("/v1/leases", new.lease_body(start=1, hours=1, hold_for=seconds))
    assert (refused.status_code, refused.json["field"]) == (400, "hold_for")


def test_a_hold_that_is_over_leaves_nothing(new: Api) -> None:
    lease = hold(new)
    new.world.pass_time(timedelta(minutes=2))
    assert new.get(f"/v1/leases/{lease['id']}").status_code == 404
    assert new.post(f"/v1/leases/{lease['id']}/confirm", {}).status_code == 404
    assert new.get("/v1/leases").json["leases"] == []


def test_older_versions_know_nothing_of_holds(api: Api, new: Api) -> None:
    lease = hold(new)
    old = api.using(version="1.1")
    shown = old.get(f"/v1/leases/{lease['id']}").json["lease"]
    assert shown["status"] == "CREATING"
    assert "hold_until" not in shown
    assert old.post(f"/v1/leases/{lease['id']}/confirm", {}).status_code == 404
    refused = old.post("/v1/leases", old.lease_body(start=1, hours=1, hold_for=60))
    assert (refused.status_code, refused.json["field"]) == (400, "hold_for")
    assert api.book(start=1, hours=1, hold_for=60)["status"] == "PENDING"  # 1.0 takes it, as all that it does not know
