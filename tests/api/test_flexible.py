"""Leases that leave open when they start, or what they consist of, on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.planning.snapshot import Snapshot
from tenure.services.limits.quotas import FixedLimits, Quotas
from tenure.services.search.flexible import ChosenLease, ChosenProposal
from tests.api.rig import HOSTS, INSTANCES, Api, api_over, open_api, rfc3339
from tests.support.engines import rebuild

HOUR = timedelta(hours=1)
THREE = {**HOSTS, "min": 3, "max": 3}
FOUR = {**HOSTS, "min": 4, "max": 4}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A service with three hosts; the clock shows ten o'clock on a Tuesday."""
    with open_api(tmp_path, hosts=3) as api:
        yield api.using(version="1.3")


def make(api: Api, *, status: int = 201, **fields: Any) -> Any:
    answer = api.post("/v1/leases", {"name": "open", **fields})
    assert answer.status_code == status, answer.text
    return answer.json["lease"] if status == 201 else answer.json


def period(api: Api, lease: dict[str, Any]) -> tuple[float, float]:
    """Return the period of a lease in hours from now."""
    start, end = ((datetime.fromisoformat(lease[name]) - api.now) / HOUR for name in ("start_date", "end_date"))
    return start, end


def test_a_lease_gets_the_first_period_in_its_window(api: Api):
    api.book(start=0, hours=2, reservations=[THREE])
    lease = make(api, reservations=[THREE], duration=3600, earliest="now", latest=rfc3339(api.now + 9 * HOUR))
    assert period(api, lease) == (2, 3)
    assert lease["choice"] is None
    assert period(api, make(api, reservations=[THREE], duration=7200, earliest="now")) == (3, 5)


def test_a_lease_starts_on_the_days_and_at_the_times_that_are_asked_for(api: Api):
    lease = make(api, reservations=[HOSTS], duration=3600, weekdays=["wed"], starts_after="08:00")
    assert period(api, lease) == (22, 23)


def test_a_lease_gets_the_first_choice_that_fits(api: Api):
    api.book(start=0, hours=2, reservations=[HOSTS])
    dates: dict[str, Any] = {"start_date": rfc3339(api.now), "end_date": rfc3339(api.now + HOUR)}
    two = {**HOSTS, "min": 2, "max": 2}
    choices = [{"reservations": [reservation]} for reservation in (THREE, two, HOSTS)]
    lease = make(api, any_of=choices, **dates)
    assert lease["choice"] == 1
    assert lease["reservations"][0]["min"] == 2
    assert api.get(f"/v1/leases/{lease['id']}").json["lease"]["choice"] == 1
    [listed] = [row for row in api.get("/v1/leases").json["leases"] if row["id"] == lease["id"]]
    assert listed["choice"] == 1


def test_an_earlier_choice_is_preferred_to_an_earlier_start(api: Api):
    api.book(start=0, hours=2, reservations=[HOSTS])
    choices = [{"reservations": [THREE]}, {"reservations": [HOSTS]}]
    lease = make(api, any_of=choices, duration=3600, earliest="now")
    assert (lease["choice"], period(api, lease)) == (0, (2, 3))
    soon = make(api, any_of=choices, duration=3600, earliest="now", latest=rfc3339(api.now + HOUR))
    assert (soon["choice"], period(api, soon)) == (1, (0, 1))


def test_choices_may_be_of_several_reservations_and_types(api: Api):
    choices = [{"reservations": [HOSTS, FOUR]}, {"reservations": [HOSTS, INSTANCES]}]
    lease = make(api, any_of=choices, duration=3600)
    assert lease["choice"] == 1
    assert [reservation["resource_type"] for reservation in lease["reservations"]] == [
        "physical:host",
        "virtual:instance",
    ]


def test_a_refusal_says_up_to_when_there_is_no_start(api: Api):
    api.book(start=0, hours=9, reservations=[HOSTS])
    latest = rfc3339(api.now + 5 * HOUR)
    refused = make(api, status=409, reservations=[THREE], duration=3600, earliest="now", latest=latest)
    assert refused["error_name"] == "NotEnoughResources"
    assert refused["error_message"] == (
        "Not enough hosts available: 3 asked for, 3 can be reserved, 3 match the properties asked for, "
        "2 are free for the whole period. No later start is possible until 2030-01-01 15:00 UTC."
    )
    assert refused["field"] == "reservations[0].min"
    alternatives = {alternative["change"]: alternative for alternative in refused["details"]["alternatives"]}
    assert period(api, alternatives["start"]) == (9, 10)
    assert alternatives["amount"]["amount"] == 2


def test_a_refusal_of_all_choices_is_that_of_the_first(api: Api):
    api.book(start=0, hours=9, reservations=[THREE])
    dates: dict[str, Any] = {"start_date": rfc3339(api.now), "end_date": rfc3339(api.now + HOUR)}
    refused = make(api, status=409, any_of=[{"reservations": [THREE]}, {"reservations": [HOSTS]}], **dates)
    assert refused["field"] == "any_of[0].reservations[0].min"
    assert refused["error_message"].startswith("Not enough hosts available: 3 asked for")
    assert refused["error_message"].endswith(" The other choices (1) are not possible either.")
    assert refused["details"]["alternatives"][0]["change"] == "start"


def test_a_choice_above_the_limits_of_the_project_is_passed_over(api: Api, tmp_path: Path):
    rebuild(api.world, quotas=Quotas(FixedLimits({"hosts": 2})))
    (tmp_path / "limited").mkdir()
    limited = api_over(api.world, tmp_path / "limited").using(version="1.3")
    choices = [{"reservations": [THREE]}, {"reservations": [HOSTS]}]
    refused = make(limited, status=403, any_of=choices[:1], duration=3600)
    assert refused["error_name"] == "OverQuota"
    assert make(limited, any_of=choices, duration=3600)["choice"] == 1


def test_a_dry_run_shows_the_period_and_the_choice(api: Api):
    api.book(start=0, hours=2, reservations=[THREE])
    body = {
        "name": "open",
        "any_of": [{"reservations": [FOUR]}, {"reservations": [THREE]}],
        "duration": 3600,
        "earliest": "now",
    }
    answer = api.post("/v1/leases?dry_run=true", body)
    assert answer.status_code == 200, answer.text
    lease = answer.json["lease"]
    assert (lease["choice"], period(api, lease)) == (1, (2, 3))
    assert len(api.get("/v1/leases").json["leases"]) == 1


@pytest.fixture
def another(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another request that books a host for two hours, between the plan of a request and its booking."""
    propose, hours = ChosenLease.propose, iter([2])

    def propose_before(request: ChosenLease, snapshot: Snapshot) -> ChosenProposal:
        found = propose(request, snapshot)
        for length in hours:
            api.book(start=0, hours=length, reservations=[HOSTS])
        return found

    monkeypatch.setattr(ChosenLease, "propose", propose_before)


@pytest.mark.usefixtures("another")
def test_a_period_that_is_taken_meanwhile_is_searched_again(api: Api):
    assert period(api, make(api, reservations=[THREE], duration=3600, earliest="now")) == (2, 3)


@pytest.mark.usefixtures("another")
def test_a_window_that_is_taken_meanwhile_is_a_refusal(api: Api):
    latest = rfc3339(api.now + HOUR)
    refused = make(api, status=409, reservations=[THREE], duration=3600, earliest="now", latest=latest)
    assert refused["error_message"].endswith("No later start is possible until 2030-01-01 11:00 UTC.")


def test_a_flexible_lease_can_be_held(api: Api):
    lease = make(api, reservations=[HOSTS], duration=3600, hold_for=60)
    assert lease["hold_until"] == rfc3339(api.now + timedelta(seconds=60))
    confirmed = api.post(f"/v1/leases/{lease['id']}/confirm", {})
    assert confirmed.json["lease"]["status"] == "PENDING"


DATES = {"start_date": "2030-01-01T12:00:00Z", "end_date": "2030-01-01T13:00:00Z"}
ONE = {"reservations": [HOSTS]}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({**ONE}, "end_date, start_date"),
        ({**ONE, "start_date": "now"}, "end_date"),
        ({**ONE, "earliest": "now"}, "duration"),
        ({**ONE, **DATES, "latest": "2030-01-01T13:00:00Z"}, "duration"),
        ({**ONE, **DATES, "time_zone": "Europe/Paris"}, "duration"),
        ({**ONE, **DATES, "duration": 60}, "start_date"),
        ({**ONE, "end_date": "2030-01-01T13:00:00Z", "duration": 60}, "end_date"),
        ({**ONE, "before_end_date": "2030-01-01T13:00:00Z", "duration": 60}, "before_end_date"),
        ({**ONE, "events": [{"time": "2030-01-01T13:00:00Z", "message": "go"}], "duration": 60}, "events"),
        ({**ONE, "duration": 0}, "duration"),
        ({**ONE, "duration": None}, "duration"),
        ({**ONE, "duration": 60, "earliest": "2029-01-01T00:00:00Z"}, "earliest"),
        ({**ONE, "duration": 60, "earliest": "2030-02-01T00:00:00Z", "latest": "2030-01-02T00:00:00Z"}, "latest"),
        ({**ONE, "duration": 60, "weekdays": ["mon"], "latest": "2030-01-02T00:00:00Z"}, "latest"),
        ({**ONE, "duration": 60, "weekdays": ["someday"]}, "weekdays[0]"),
        ({**ONE, "duration": 60, "any_of": [ONE]}, "any_of"),
        ({"duration": 60, "any_of": []}, "any_of"),
        ({"duration": 60, "any_of": None}, "any_of"),
        ({"duration": 60, "any_of": [ONE] * 11}, "any_of"),
        ({"duration": 60, "any_of": [ONE, {**ONE, "name": "two"}]}, "any_of[1].name"),
        ({"duration": 60, "any_of": [ONE, {"reservations": [{**HOSTS, "min": 0}]}]}, "any_of[1].reservations[0].min"),
        ({**DATES, "any_of": [{"reservations": [{**HOSTS, "resource_properties": '["==", "$gpu", "a"]'}]}]}, None),
    ],
)
def test_what_is_wrong_with_a_request_is_named(api: Api, fields: dict[str, Any], field: str | None):
    if field is None:  # a choice that nothing could ever meet is refused, like any other
        refused = make(api, status=409, **fields)
        assert refused["field"] == "any_of[0].reservations[0].min"
        return
    refused = make(api, status=400, **fields)
    assert refused.get("field") == field or refused["error_message"] == f"Missing parameter {field}", refused
    assert api.get("/v1/leases").json["leases"] == []


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_earlier_versions_know_no_windows_and_no_choices(api: Api, version: str):
    earlier = api.using(version=version)
    for name, value in {"duration": 60, "any_of": [ONE], "earliest": "now"}.items():
        refused = earlier.post("/v1/leases", {"name": "open", **ONE, **DATES, name: value})
        assert (refused.status_code, refused.json["field"]) == (400, name)
    shown = earlier.post("/v1/leases", {"name": "open", **ONE, **DATES})
    assert "choice" not in shown.json["lease"]


def test_a_refusal_of_all_choices_gives_the_reason_of_each(api: Api):
    unknown = {**HOSTS, "resource_properties": '["==", "$gpo", "a100"]'}
    choices = [{"reservations": [{**HOSTS, "min": 9, "max": 9}]}, {"reservations": [unknown]}]
    refused = make(api, status=409, duration=3600, any_of=choices)
    reasons = refused["details"]["choices"]
    assert ["9 asked for" in reasons[0], "No resource has the property gpo" in reasons[1]] == [True, True]
