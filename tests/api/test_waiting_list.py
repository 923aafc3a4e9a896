"""Leases that wait for room, on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.api.rig import HOSTS, Api, open_api, rfc3339

HOUR = timedelta(hours=1)
THREE = {**HOSTS, "min": 3, "max": 3}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A service with three hosts."""
    with open_api(tmp_path, hosts=3) as api:
        yield api.using(version="1.3")


def ask(api: Api, *, status: int = 201, start: float = 1, hours: float = 1, **fields: Any) -> Any:
    """Ask for a lease of three hosts that waits if there is no room; by default for fixed dates."""
    dates = {"start_date": rfc3339(api.now + start * HOUR), "end_date": rfc3339(api.now + (start + hours) * HOUR)}
    given = {"name": "w", "reservations": [THREE], "if_full": "wait", **({} if "duration" in fields else dates)}
    answer = api.post("/v1/leases", given | fields)
    assert answer.status_code == status, answer.text
    return answer.json["lease"] if status == 201 else answer.json


def show(api: Api, lease: dict[str, Any]) -> Any:
    return api.get(f"/v1/leases/{lease['id']}").json["lease"]


def notifications(api: Api, lease: dict[str, Any]) -> list[str]:
    """Return the topics of the notifications of a lease, in order."""
    with api.world.db.engine.connect() as connection:
        found = text("SELECT topic FROM outbox WHERE lease_id = :id ORDER BY id").bindparams(id=lease["id"])
        return list(connection.execute(found).scalars())


def delete(api: Api, lease: dict[str, Any]) -> None:
    assert api.delete(f"/v1/leases/{lease['id']}").status_code == 204
    api.world.engine.settle()


def test_a_lease_for_which_there_is_room_does_not_wait(api: Api):
    lease = ask(api)
    assert lease["status"] == "PENDING"
    assert lease["waiting"] is None


def test_a_lease_waits_until_something_is_deleted(api: Api):
    taken = ask(api)
    lease = ask(api)
    assert lease["status"] == "WAITING"
    assert lease["reservations"] == []
    assert lease["events"] == []
    latest = rfc3339(api.now + HOUR)
    assert lease["waiting"]["latest"] == latest
    assert lease["waiting"]["confirm_within"] is None
    [[reservation]] = lease["waiting"]["choices"]
    assert (reservation["resource_type"], reservation["min"]) == ("physical:host", 3)
    api.world.engine.settle()
    assert show(api, lease)["status"] == "WAITING"
    delete(api, taken)
    booked = show(api, lease)
    assert booked["status"] == "PENDING"
    assert booked["waiting"] is None
    assert booked["reservations"][0]["min"] == 3
    assert {event["event_type"] for event in booked["events"]} == {"start_lease", "before_end_lease", "end_lease"}
    api.world.pass_time(HOUR)
    assert show(api, lease)["status"] == "ACTIVE"


def test_a_lease_with_fixed_dates_may_wait_for_any_start(api: Api):
    far = 1200 * 24.0
    taken, lease = ask(api, start=far), ask(api, start=far)
    assert (taken["status"], lease["status"]) == ("PENDING", "WAITING")
    delete(api, taken)
    assert show(api, lease)["status"] == "PENDING"


def test_a_refusal_names_a_field_that_was_sent(api: Api):
    far, farther = rfc3339(api.now + 1200 * 24 * HOUR), rfc3339(api.now + 1201 * 24 * HOUR)
    week = {"weekdays": ["sun"], "starts_after": "09:00", "starts_before": "10:00"}
    day = {"earliest": rfc3339(api.now), "latest": rfc3339(api.now + HOUR), **week}
    sent: list[tuple[dict[str, Any], str, str]] = [
        ({"earliest": far}, "earliest", "1200 days"),
        ({"earliest": far, "latest": farther}, "latest", "1201 days"),
        ({"latest": farther}, "latest", "1201 days"),
        ({"earliest": farther, "latest": far}, "latest", "before the earliest start"),
        (day, "latest", "No start up to this date"),
    ]
    for window, field, said in sent:
        body = {"name": "x", "reservations": [THREE], "duration": 3600, **window}
        for path in ("/v1/leases", "/v1/leases?dry_run=true"):
            answer = api.post(path, body | {"if_full": "wait"})
            assert (answer.status_code, answer.json["field"]) == (400, field), answer.text
            assert said in answer.json["error_message"]


def test_a_lease_gets_the_first_period_of_its_window_that_becomes_free(api: Api):
    taken = [ask(api, start=start, hours=2) for start in (1, 3, 5)]
    latest = rfc3339(api.now + 6 * HOUR)
    lease = ask(api, duration=3600, earliest=rfc3339(api.now + HOUR), latest=latest)
    assert (lease["status"], lease["start_date"]) == ("WAITING", rfc3339(api.now + HOUR))
    delete(api, taken[1])
    booked = show(api, lease)
    assert (booked["status"], booked["start_date"]) == ("PENDING", rfc3339(api.now + 3 * HOUR))
    assert booked["end_date"] == rfc3339(api.now + 4 * HOUR)


def test_a_lease_waits_for_a_start_at_its_days_and_times(api: Api):
    taken = ask(api, start=1, hours=48)
    lease = ask(api, duration=3600, latest=rfc3339(api.now + 40 * HOUR), weekdays=["wed"], starts_after="08:30")
    assert (lease["status"], lease["start_date"]) == ("WAITING", "2030-01-02T08:30:00Z")
    delete(api, taken)
    booked = show(api, lease)
    assert (booked["status"], booked["start_date"]) == ("PENDING", "2030-01-02T08:30:00Z")


def test_leases_are_served_in_the_order_of_their_requests(api: Api):
    taken = ask(api)
    first, second = ask(api), ask(api)
    assert show(api, first)["waiting"]["ahead"] == 0
    assert show(api, second)["waiting"]["ahead"] == 1
    delete(api, taken)
    assert [show(api, lease)["status"] for lease in (first, second)] == ["PENDING", "WAITING"]
    delete(api, first)
    assert show(api, second)["status"] == "PENDING"


def test_a_request_does_not_overtake_a_lease_that_waits(api: Api):
    taken = ask(api)
    lease = ask(api)
    assert api.delete(f"/v1/leases/{taken['id']}").status_code == 204  # and the engine has not served the list yet
    refused = ask(api, status=409, if_full="refuse")
    assert refused["error_name"] == "NotEnoughResources"
    assert show(api, lease)["status"] == "PENDING"


def test_a_change_does_not_overtake_a_lease_that_waits(api: Api):
    taken = ask(api)
    lease = ask(api)
    other = ask(api, start=2)
    assert api.delete(f"/v1/leases/{taken['id']}").status_code == 204
    answer = api.put(f"/v1/leases/{other['id']}", {"start_date": rfc3339(api.now + HOUR)})
    assert answer.status_code == 409, answer.text
    assert show(api, lease)["status"] == "PENDING"


def test_a_smaller_request_passes_a_lease_that_does_not_fit(api: Api):
    two = {**HOSTS, "min": 2, "max": 2}
    ask(api, reservations=[two])
    lease = ask(api)
    small = ask(api, reservations=[{**HOSTS, "min": 1, "max": 1}])
    assert (lease["status"], small["status"]) == ("WAITING", "PENDING")


def test_a_lease_that_fits_passes_an_earlier_one_that_does_not(api: Api):
    taken = [ask(api, reservations=[HOSTS]) for _ in range(3)]
    large, small = ask(api), ask(api, reservations=[HOSTS])
    delete(api, taken[0])
    assert [show(api, lease)["status"] for lease in (large, small)] == ["WAITING", "PENDING"]


def test_a_lease_fails_at_its_latest_start(api: Api):
    ask(api, start=1, hours=5)
    lease = ask(api)
    api.world.pass_time(HOUR)
    failed = show(api, lease)
    assert (failed["status"], failed["waiting"]) == ("ERROR", None)
    assert failed["status_reason"] == "No resources became free for it before its latest start."
    delete(api, lease)
    assert api.get(f"/v1/leases/{lease['id']}").status_code == 404


def test_a_waiting_lease_can_be_deleted_and_renamed_only(api: Api):
    taken = ask(api)
    lease = ask(api)
    path = f"/v1/leases/{lease['id']}"
    assert api.put(path, {"name": "new"}).json["lease"]["name"] == "new"
    for answer in (
        api.put(path, {"end_date": rfc3339(api.now + 9 * HOUR)}),
        api.post(f"{path}/reservations", HOSTS),
        api.post(f"{path}/confirm", {}),
    ):
        assert answer.status_code == 409, answer.text
        assert answer.json["error_name"] == "InvalidState"
    delete(api, lease)
    delete(api, taken)
    assert api.get(path).status_code == 404
    assert ask(api)["status"] == "PENDING"


def test_a_lease_is_held_for_its_confirmation(api: Api):
    taken = ask(api, start=5)
    lease = ask(api, start=5, confirm_within=1800)
    assert lease["waiting"]["confirm_within"] == 1800
    delete(api, taken)
    offered = show(api, lease)
    assert (offered["status"], offered["waiting"]) == ("CREATING", None)
    assert offered["hold_until"] == rfc3339(api.now + HOUR / 2)
    assert api.post(f"/v1/leases/{lease['id']}/confirm", {}).json["lease"]["status"] == "PENDING"


def test_the_next_lease_gets_what_was_not_confirmed(api: Api):
    taken = ask(api, start=5)
    first, second = ask(api, start=5, confirm_within=1800), ask(api, start=5)
    delete(api, taken)
    assert show(api, second)["status"] == "WAITING"
    api.world.pass_time(HOUR)
    assert api.get(f"/v1/leases/{first['id']}").status_code == 404
    assert show(api, second)["status"] == "PENDING"


def test_a_lease_waits_for_the_first_of_its_choices(api: Api):
    taken = ask(api, reservations=[{**HOSTS, "min": 1, "max": 1}])
    ask(api, reservations=[{**HOSTS, "min": 2, "max": 2}])
    choices = [{"reservations": [THREE]}, {"reservations": [HOSTS]}]
    lease = ask(api, reservations=[], any_of=choices)
    assert (lease["status"], len(lease["waiting"]["choices"])) == ("WAITING", 2)
    delete(api, taken)
    booked = show(api, lease)
    assert (booked["status"], booked["choice"]) == ("PENDING", 1)


def test_leases_are_told_of_by_notifications(api: Api):
    taken = ask(api)
    lease, held = ask(api), ask(api, confirm_within=60)
    delete(api, taken)
    delete(api, lease)
    api.world.pass_time(HOUR)
    assert notifications(api, lease) == ["lease.wait", "lease.create", "lease.delete"]
    assert notifications(api, held) == ["lease.wait", "lease.offer"]


def test_earlier_versions_show_a_waiting_lease_as_one_that_is_not_booked_yet(api: Api):
    ask(api)
    lease = ask(api)
    for version in (None, "1.1", "1.2"):
        shown = api.using(version=version).get(f"/v1/leases/{lease['id']}").json["lease"]
        assert (shown["status"], shown["reservations"]) == ("CREATING", [])
        assert "waiting" not in shown


def test_a_list_by_status_has_the_leases_that_are_shown_with_it(api: Api):
    booked, waiting = ask(api), ask(api)
    held = ask(api, start=5, hold_for=600, if_full="refuse")
    for version, by_status in (
        ("1.1", {"PENDING": [booked], "CREATING": [waiting, held], "ACTIVE": []}),
        ("1.2", {"PENDING": [booked], "CREATING": [waiting, held], "ACTIVE": []}),
        ("1.3", {"PENDING": [booked], "CREATING": [held], "WAITING": [waiting], "ACTIVE": []}),
    ):
        reader = api.using(version=version)
        for status, leases in by_status.items():
            page = reader.get(f"/v1/leases?status={status}&limit=1").json
            listed = page["leases"]
            while links := page.get("leases_links"):
                page = reader.get(links[0]["href"].removeprefix("http://falconframework.org")).json
                listed += page["leases"]
            assert {lease["id"] for lease in listed} == {lease["id"] for lease in leases}, (version, status)
            assert {lease["status"] for lease in listed} <= {status}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"if_full": "queue"}, "if_full"),
        ({"confirm_within": 60, "if_full": "refuse"}, "confirm_within"),
        ({"hold_for": 60}, "hold_for"),
        ({"confirm_within": 0}, "confirm_within"),
        ({"start_date": "now"}, "if_full"),
    ],
)
def test_requests_that_make_no_sense_are_refused(api: Api, fields: dict[str, Any], field: str):
    assert ask(api, status=400, **fields)["field"] == field
