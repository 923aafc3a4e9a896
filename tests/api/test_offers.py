"""Searches for periods, lengths and amounts, on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tenure.services.limits.quotas import FixedLimits, Quotas
from tests.api.rig import HOSTS, Api, api_over, open_api, rfc3339
from tests.support.engines import rebuild

HOUR = timedelta(hours=1)
THREE = {**HOSTS, "min": 3, "max": 3}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        yield api.using(version="1.3")


def search(api: Api, *reservations: dict[str, Any], hours: float = 1, **more: Any) -> dict[str, Any]:
    body = {"reservations": list(reservations), "duration": int(hours * 3600), **more}
    answer = api.post("/v1/offers", body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json
    return document


def periods(api: Api, found: dict[str, Any]) -> list[tuple[float, float]]:
    """Return the periods of offers in hours from now."""
    return [(hours(api, offer["start_date"]), hours(api, offer["end_date"])) for offer in found["offers"]]


def hours(api: Api, date: str) -> float:
    return (datetime.fromisoformat(date) - api.now) / HOUR


def test_the_first_periods_are_found(api: Api):
    api.book(start=0, hours=2, reservations=[{**HOSTS, "min": 2, "max": 2}])
    api.book(start=3, hours=2, reservations=[{**HOSTS, "min": 2, "max": 2}])
    found = search(api, THREE, earliest="now", limit=2)
    assert found["is_complete"]
    assert periods(api, found) == [(2, 3), (5, 6)]
    assert [offer["left_over"] for offer in found["offers"]] == [[1], [1]]
    assert periods(api, search(api, THREE, hours=2, earliest="now", limit=1)) == [(5, 7)]
    assert periods(api, search(api, HOSTS, hours=2, earliest="now", limit=1)) == [(0, 2)]


def test_an_offer_can_be_booked(api: Api):
    api.book(start=0, hours=2, reservations=[THREE])
    [offer, *_] = search(api, THREE)["offers"]
    body = {"name": "taken", "reservations": [THREE], "start_date": offer["start_date"], "end_date": offer["end_date"]}
    assert api.post("/v1/leases", body).status_code == 201


def test_without_an_earliest_start_the_search_begins_with_the_next_minute(api: Api):
    api.world.clock.set(api.now + timedelta(seconds=20))
    [offer, *_] = search(api, HOSTS)["offers"]
    assert offer["start_date"] == rfc3339((api.now + timedelta(minutes=1)).replace(second=0))


def test_a_query_asks_the_same_as_a_body(api: Api):
    api.book(start=0, hours=2, reservations=[THREE])
    query = {"reservations": json.dumps([THREE]), "duration": 3600, "limit": 2, "weekdays": "mon,tue,wed,thu,fri"}
    answer = api.get("/v1/offers?" + urlencode(query))
    assert answer.json == search(api, THREE, limit=2, weekdays=["mon", "tue", "wed", "thu", "fri"])
    refused = api.get("/v1/offers?" + urlencode({**query, "reservations": "[{"}))
    assert (refused.status_code, refused.json["field"]) == (400, "reservations")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[{"resource_type":"\\ud800","min":1,"max":1}]', "reservations[0].resource_type holds half of a character"),
        ('[{"resource_type":"physical:host","min":1,"max":1,"availability_zone":"\\u0000"}]', "holds a NUL character"),
        ('[{"resource_type":"physical:host","min":1,"min":2,"max":2}]', "the field min more than once"),
        ('[{"resource_type":"physical:host","min":NaN,"max":1}]', "NaN is no number"),
        ('[{"resource_type":"physical:host","min":1e30,"max":1}]', "the number 1e30 is too large"),
        ("[" * 40 + "]" * 40, "nested deeper than 32 levels"),
        ("[" + "[]," * 2700 + "[]]", "at most 100 items"),
        ('"\\ud800"', "reservations holds half of a character"),
    ],
)
def test_the_reservations_of_a_query_are_read_like_a_body(api: Api, text: str, fault: str):
    asked = api.get("/v1/offers?" + urlencode({"reservations": text, "duration": 3600}))
    sent = api.post("/v1/offers", raw='{"duration": 3600, "reservations": ' + text + "}")
    assert (asked.status_code, sent.status_code) == (400, 400), asked.text
    assert fault in asked.json["error_message"]
    assert fault in sent.json["error_message"]


def test_a_lease_starts_on_the_days_and_at_the_times_that_are_asked_for(api: Api):
    # The clock shows ten o'clock on a Tuesday.
    found = search(api, HOSTS, weekdays=["wed", "fri"], starts_after="09:00", starts_before="10:30", limit=4)
    days = [datetime.fromisoformat(offer["start_date"]) for offer in found["offers"]]
    assert [(day.strftime("%a"), day.hour, day.minute) for day in days] == [
        ("Wed", 9, 0),
        ("Wed", 10, 0),
        ("Fri", 9, 0),
        ("Fri", 10, 0),
    ]
    [offer] = search(api, HOSTS, starts_after="09:00", starts_before="09:00", time_zone="America/New_York", limit=1)[
        "offers"
    ]
    assert datetime.fromisoformat(offer["start_date"]).hour == 14


def test_a_night_belongs_to_the_day_on_which_it_begins(api: Api):
    found = search(api, HOSTS, hours=3, weekdays=["wed"], starts_after="22:00", starts_before="02:00", limit=3)
    nights = [datetime.fromisoformat(offer["start_date"]) for offer in found["offers"]]
    assert [(night.strftime("%a"), night.hour) for night in nights] == [("Wed", 22), ("Thu", 1), ("Wed", 22)]


def test_a_server_that_exists_is_counted_once(api: Api):
    api.world.cloud.world.add_host("general")
    server_id = api.world.cloud.world.instances.boot("demo-project", "1")
    server = {"resource_type": "virtual:server", "server_id": server_id}
    body = {"reservation": server, "start_date": "now", "end_date": rfc3339(api.now + HOUR)}
    answer = api.post("/v1/offers/largest", body)
    assert answer.status_code == 200, answer.text
    assert answer.json["amount"] == 1
    assert search(api, server, limit=1)["offers"][0]["left_over"] == [0]


def test_a_search_that_finds_nothing_has_no_offers(api: Api):
    found = search(api, {**HOSTS, "min": 9, "max": 9})
    assert (found["offers"], found["is_complete"]) == ([], True)
    latest = rfc3339(api.now + HOUR)
    api.book(start=0, hours=5, reservations=[THREE])
    assert search(api, THREE, latest=latest)["offers"] == []


def test_reservations_that_fit_only_one_by_one_get_no_offer(api: Api):
    apart = {"resource_type": "virtual:instance", "amount": 2, "vcpus": 1, "memory_mb": 64, "disk_gb": 0}
    together = [THREE, {**apart, "affinity": False}]
    assert search(api, together[0])["offers"]
    assert search(api, together[1])["offers"]
    found = search(api, *together)
    assert (found["offers"], found["is_complete"]) == ([], True)


def test_a_project_gets_no_offers_above_its_limits(api: Api, tmp_path: Path):
    rebuild(api.world, quotas=Quotas(FixedLimits({"hosts": 2})))
    (tmp_path / "limited").mkdir()
    limited = api_over(api.world, tmp_path / "limited").using(version="1.3")
    limited.book(start=0, hours=2, reservations=[HOSTS])
    assert periods(limited, search(limited, {**HOSTS, "min": 2, "max": 2}, earliest="now", limit=1)) == [(2, 3)]
    assert search(limited, THREE)["offers"] == []


def test_the_longest_lease_from_a_start(api: Api):
    api.book(start=4, hours=2, reservations=[{**HOSTS, "min": 2, "max": 2}])
    answer = api.post("/v1/offers/longest", {"reservations": [THREE], "start_date": "now"})
    assert answer.status_code == 200, answer.text
    assert (hours(api, answer.json["end_date"]), answer.json["is_complete"]) == (4, True)
    endless = api.post("/v1/offers/longest", {"reservations": [HOSTS]})
    assert endless.json["end_date"] is None
    start = rfc3339(api.now + 5 * HOUR)
    refused = api.post("/v1/offers/longest", {"reservations": [THREE], "start_date": start})
    assert (refused.status_code, refused.json["error_name"]) == (409, "NotEnoughResources")


def test_the_largest_amount_in_a_period(api: Api):
    api.book(start=1, hours=2)
    end = rfc3339(api.now + 2 * HOUR)
    body = {"reservation": HOSTS, "start_date": "now", "end_date": end}
    answer = api.post("/v1/offers/largest", body)
    assert answer.status_code == 200, answer.text
    assert answer.json["amount"] == 3
    assert sum(answer.json["availability_zones"].values()) == 3
    instances = {"resource_type": "virtual:instance", "amount": 1, "vcpus": 4, "memory_mb": 512, "disk_gb": 0}
    many = api.post("/v1/offers/largest", {**body, "reservation": instances}).json["amount"]
    booked = api.post(
        "/v1/leases",
        {
            "name": "all",
            "start_date": "now",
            "end_date": end,
            "reservations": [{**instances, "amount": many}],
        },
    )
    assert booked.status_code == 201
    assert api.post("/v1/offers/largest", {**body, "reservation": instances}).json["amount"] == 0


KEPT = {"resource_type": "virtual:volume", "amount": 1, "size_gb": 20, "volume_type": "fast", "at_end": "keep"}


def test_what_is_kept_after_a_lease_takes_its_room_from_later_leases_too(api: Api):
    pool = {"name": "sim-storage@fast#nvme", "capacity_gb": 60}
    assert api.using("admin").post("/v1/volume-pools", pool).status_code == 201
    api.book(start=24, hours=1, reservations=[{**KEPT, "at_end": "delete"}])  # takes a third of the pool tomorrow
    [offer] = search(api, KEPT, earliest="now", limit=1)["offers"]
    assert offer["left_over"] == [1]
    [offer] = search(api, {**KEPT, "at_end": "delete"}, earliest="now", limit=1)["offers"]
    assert offer["left_over"] == [2]
    body = {"reservation": KEPT, "start_date": "now", "end_date": rfc3339(api.now + HOUR)}
    found = api.post("/v1/offers/largest", body).json
    assert found["amount"] == 2
    assert sum(found["availability_zones"].values()) in {0, 2}  # a pool without a zone is in none
    dates = {"start_date": offer["start_date"], "end_date": offer["end_date"]}
    refused = api.post("/v1/leases", {"name": "all", "reservations": [{**KEPT, "amount": 3}], **dates})
    assert refused.status_code == 409
    [fewer] = [
        alternative for alternative in refused.json["details"]["alternatives"] if alternative["change"] == "amount"
    ]
    assert fewer["amount"] == 2
    api.book(start=0, hours=1, reservations=[{**KEPT, "amount": 2}])


def test_searches_leave_no_trace(api: Api):
    api.book(start=1, hours=2, reservations=[THREE])
    before = api.dump()
    search(api, THREE, HOSTS, limit=3)
    api.post("/v1/offers/longest", {"reservations": [THREE]})
    api.post("/v1/offers/largest", {"reservation": HOSTS, "end_date": rfc3339(api.now + HOUR)})
    assert api.dump() == before


def test_a_private_property_is_not_searched_for(api: Api):
    admin = api.using("admin")
    admin.put("/v1/os-hosts/1", {"properties": {"owner": "x"}})
    admin.patch("/v1/os-hosts/properties/owner", {"private": True})
    asked = {**HOSTS, "resource_properties": '["==", "$owner", "x"]'}
    refused = api.post("/v1/offers", {"reservations": [asked], "duration": 60})
    assert (refused.status_code, refused.json["field"]) == (400, "reservations[0].resource_properties")
    assert search(admin, asked)["offers"]


def test_members_see_public_properties(api: Api):
    admin = api.using("admin")
    admin.put("/v1/os-hosts/1", {"properties": {"owner": "x", "rack": "r1"}})
    admin.patch("/v1/os-hosts/properties/owner", {"private": True})
    url = "/v1/os-hosts/properties?detail=true"
    assert api.get(url).json == {"resource_properties": [{"property": "rack", "private": False, "values": ["r1"]}]}
    assert api.get(f"{url}&all=true").json == api.get(url).json
    for version in ("1.0", "1.1", "1.2"):
        assert api.using(version=version).get(url).status_code == 403


def test_searches_for_a_lease_that_would_be_over_find_what_is_still_to_come(api: Api):
    """A start in the present minute is allowed; a lease that ends before now is not."""
    start = api.now
    api.world.clock.set(start + timedelta(seconds=30))
    [offer] = search(api, HOSTS, hours=10 / 3600, earliest=rfc3339(start), limit=1)["offers"]
    assert offer["start_date"] == rfc3339(start + timedelta(minutes=1))
    flexible = {"name": "x", "reservations": [HOSTS], "duration": 10, "earliest": rfc3339(start)}
    assert api.post("/v1/leases?dry_run=true", flexible).status_code == 200
    made = api.post("/v1/leases", flexible)
    assert (made.status_code, made.json["lease"]["start_date"]) == (201, rfc3339(start + timedelta(minutes=1)))
    waits = {**flexible, "reservations": [{**HOSTS, "min": 4, "max": 4}], "if_full": "wait"}
    assert api.post("/v1/leases", waits).status_code == 201
    largest = {"reservation": HOSTS, "start_date": rfc3339(start), "end_date": rfc3339(start + timedelta(seconds=10))}
    refused = api.post("/v1/offers/largest", largest)
    assert (refused.status_code, refused.json["field"]) == (400, "end_date")


def test_the_longest_lease_from_a_start_before_now_is_still_to_come(api: Api):
    start = api.now
    api.world.clock.set(start + timedelta(seconds=30))
    body = {"reservations": [HOSTS], "start_date": rfc3339(start)}
    api.book(start=15 / 3600, hours=1, reservations=[{**HOSTS, "min": 4, "max": 4}])
    found = api.post("/v1/offers/longest", body)
    assert (found.status_code, found.json["end_date"]) == (200, rfc3339(api.now + timedelta(seconds=15)))
    everything = {**HOSTS, "min": 4, "max": 4}
    api.post(
        "/v1/leases",
        {
            "name": "all",
            "reservations": [everything],
            "start_date": "now",
            "end_date": rfc3339(api.now + timedelta(seconds=10)),
        },
    )
    refused = api.post("/v1/offers/longest", body)
    assert (refused.status_code, refused.json["error_name"]) == (409, "NotEnoughResources")


@pytest.mark.parametrize(
    ("busy_until", "hours_of_day", "expected"),
    [
        # the clock skips the time from 02:00 to 03:00
        ("2030-03-31T01:10:00Z", {"starts_before": "02:15"}, ["2030-03-31T22:00:00Z"]),
        # it shows the time from 02:00 to 03:00 twice
        ("2030-10-27T00:50:00Z", {"starts_after": "02:30", "starts_before": "03:15"}, ["2030-10-27T00:50:00Z"]),
        ("2030-10-27T01:00:00Z", {"starts_after": "02:30", "starts_before": "03:15"}, ["2030-10-27T01:30:00Z"]),
    ],
)
def test_starts_are_at_the_times_that_the_clock_shows_when_it_changes(
    api: Api, busy_until: str, hours_of_day: dict[str, Any], expected: list[str]
):
    until = datetime.fromisoformat(busy_until)
    api.world.clock.set(until - 12 * HOUR)
    everything = [{**HOSTS, "min": 4, "max": 4}]
    api.book(start=1, hours=11, reservations=everything)
    found = search(api, HOSTS, limit=1, earliest=rfc3339(until - 4 * HOUR), time_zone="Europe/Paris", **hours_of_day)
    assert [offer["start_date"] for offer in found["offers"]] == expected


@pytest.mark.parametrize("zone", ["right/Europe/Paris", "posix/Europe/Paris", "posixrules", "localtime", "Factory"])
def test_only_zones_of_iana_are_zones(api: Api, zone: str):
    refused = api.post("/v1/offers", {"reservations": [HOSTS], "duration": 3600, "time_zone": zone})
    assert (refused.status_code, refused.json["field"]) == (400, "time_zone")


def test_a_longest_lease_in_days_may_have_the_hour_of_an_autumn_change(api: Api, tmp_path: Path):
    rebuild(api.world, rules=replace(api.world.service.components.rules, longest_lease=timedelta(days=10)))
    (tmp_path / "limited").mkdir()
    api = api_over(api.world, tmp_path / "limited").using(version="1.3")
    body = {"name": "ten days", "reservations": [HOSTS], "start_date": "2030-10-19T22:00:00Z"}
    assert api.post("/v1/leases", {**body, "end_date": "2030-10-29T23:00:01Z"}).status_code == 400
    longest = api.post("/v1/offers/longest", {"reservations": [HOSTS], "start_date": body["start_date"]})
    assert longest.json["end_date"] == "2030-10-29T23:00:00Z", longest.text
    assert api.post("/v1/leases", {**body, "end_date": "2030-10-29T23:00:00Z"}).status_code == 201
    offers = {"reservations": [HOSTS], "duration": 10 * 86400, "earliest": body["start_date"], "limit": 1}
    [offer] = api.post("/v1/offers", offers).json["offers"]  # a length is in days of 24 hours
    assert (offer["start_date"], offer["end_date"]) == (body["start_date"], "2030-10-29T22:00:00Z")
    assert api.post("/v1/leases", {**body, "end_date": offer["end_date"]}).status_code == 201
    begun = api.post("/v1/leases", {**body, "end_date": "2030-10-20T22:00:00Z"}).json["lease"]
    shown = api.get(f"/v1/leases/{begun['id']}").json["lease"]
    assert shown["may_end_at"] == "2030-10-29T23:00:00Z"
    assert api.put(f"/v1/leases/{begun['id']}", {"end_date": shown["may_end_at"]}).status_code == 200


def test_a_search_that_finds_nothing_gives_the_reason_of_a_refusal(api: Api):
    many = {**HOSTS, "min": 9, "max": 9}
    asked: dict[str, Any] = {"earliest": rfc3339(api.now + HOUR), "latest": rfc3339(api.now + 2 * HOUR)}
    refused = api.post("/v1/leases", {"name": "many", "reservations": [many], "duration": 3600, **asked})
    assert search(api, many, **asked)["reason"] == refused.json["error_message"]
    unknown = {**HOSTS, "resource_properties": '["==", "$gpo", "a100"]'}
    assert "No resource has the property gpo" in search(api, unknown)["reason"]
    assert search(api, HOSTS)["reason"] is None
    no_day = search(api, HOSTS, earliest=rfc3339(api.now), latest=rfc3339(api.now + HOUR), weekdays=["sun"])
    assert no_day["reason"] == "No start up to this date is on these days, at these times."


def largest(api: Api, reservation: dict[str, Any]) -> Any:
    """Search for the largest amount in the next hour."""
    dates = {"start_date": "now", "end_date": rfc3339(api.now + HOUR)}
    return api.post("/v1/offers/largest", {"reservation": reservation, **dates}).json


def test_a_largest_amount_of_none_gives_the_reason_of_a_refusal(api: Api, tmp_path: Path):
    assert largest(api, HOSTS)["reason"] is None
    unknown = {**HOSTS, "resource_properties": '["==", "$gpo", "a100"]'}
    assert "No resource has the property gpo" in largest(api, unknown)["reason"]
    rebuild(api.world, quotas=Quotas(FixedLimits({"hosts": 0})))
    (tmp_path / "limited").mkdir()
    limited = api_over(api.world, tmp_path / "limited").using(version="1.3")
    found = largest(limited, {**HOSTS, "min": 3, "max": 3})
    assert (found["amount"], found["reason"]) == (0, "Quota exceeded for hosts: 0 of 0 used, 1 more requested.")


def test_a_search_beyond_a_limit_gives_the_reason_of_a_refusal(api: Api, tmp_path: Path):
    rebuild(api.world, quotas=Quotas(FixedLimits({"hosts": 2})))
    (tmp_path / "limited").mkdir()
    limited = api_over(api.world, tmp_path / "limited").using(version="1.3")
    assert search(limited, THREE)["reason"] == "Quota exceeded for hosts: 0 of 2 used, 3 more requested."
