"""Dry runs of leases: the answer of the request, without a trace in the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.config import new_config
from tenure.domain.errors import Denied
from tenure.enforcement.contract import EnforcementFilter
from tenure.services.limits.quotas import FixedLimits, Quotas
from tests.api.rig import HOSTS, Api, api_over, open_api, rfc3339
from tests.support.engines import rebuild

DRY = "?dry_run=true"
INSTANCES = {"resource_type": "virtual:instance", "amount": 2, "vcpus": 1, "memory_mb": 512, "disk_gb": 0}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        yield api.using(version="1.3")


def costs(answer: Any) -> dict[str, tuple[int, int, int]]:
    assert answer.status_code == 200, answer.text
    return {cost["name"]: (cost["amount"], cost["hours"], cost["hours_before"]) for cost in answer.json["cost"]}


def limits(answer: Any) -> dict[str, tuple[int, int, int]]:
    return {limit["name"]: (limit["limit"], limit["used"], limit["would_use"]) for limit in answer.json["limits"]}


def test_a_new_lease_is_shown_with_its_cost_and_leaves_no_trace(api: Api, tmp_path: Path):
    rebuild(api.world, quotas=Quotas(FixedLimits({"leases": 3, "hours_of_hosts": 100})))
    (tmp_path / "limited").mkdir()
    limited = api_over(api.world, tmp_path / "limited").using(version="1.3")
    limited.book(start=1, hours=2)
    body = limited.lease_body(start=4, hours=2.5, reservations=[{**HOSTS, "min": 2, "max": 3}, INSTANCES])
    before = api.dump()
    answer = limited.post(f"/v1/leases{DRY}", body)
    assert api.dump() == before
    assert answer.json["dry_run"] is True
    assert answer.json["unasked_filters"] == []
    assert answer.json["lease"]["status"] == "PENDING"
    assert answer.json["lease"]["start_date"] == body["start_date"]
    assert costs(answer) == {"hosts": (3, 8, 0), "instances": (2, 5, 0)}
    found = limits(answer)
    assert found["leases"] == (3, 1, 2)
    assert found["hours_of_hosts"] == (100, 2, 10)
    assert found["instances"] == (-1, 0, 2)
    booked = limited.post("/v1/leases", body)
    assert booked.status_code == 201
    assert [reservation["resource_type"] for reservation in booked.json["lease"]["reservations"]] == [
        reservation["resource_type"] for reservation in answer.json["lease"]["reservations"]
    ]


def test_a_refusal_is_that_of_the_request(api: Api):
    for body in (
        api.lease_body(reservations=[{**HOSTS, "min": 9, "max": 9}]),
        api.lease_body(hours=-1),
        api.lease_body(reservations=[{"resource_type": "virtual:instance"}]),
    ):
        dry, real = api.post(f"/v1/leases{DRY}", body), api.post("/v1/leases", body)
        assert dry.status_code == real.status_code >= 400
        assert dry.json == real.json


def test_a_limit_refuses_a_dry_run(api: Api, tmp_path: Path):
    rebuild(api.world, quotas=Quotas(FixedLimits({"hosts": 1})))
    (tmp_path / "limited").mkdir()
    limited = api_over(api.world, tmp_path / "limited").using(version="1.3")
    answer = limited.post(f"/v1/leases{DRY}", api.lease_body(reservations=[{**HOSTS, "min": 2, "max": 2}]))
    assert (answer.status_code, answer.json["error_name"]) == (403, "OverQuota")


@pytest.mark.parametrize("running", [False, True])
def test_a_change_is_shown_with_its_cost_and_leaves_no_trace(api: Api, running: bool):
    lease = api.book(start=0 if running else 1, hours=2)
    if running:
        api.world.pass_time(timedelta(minutes=1))
    url = f"/v1/leases/{lease['id']}"
    before = api.dump()
    longer = {"end_date": rfc3339(api.now + timedelta(hours=9))}
    answer = api.put(f"{url}{DRY}", longer)
    assert api.dump() == before
    assert answer.json["lease"]["end_date"] == longer["end_date"]
    assert costs(answer) == {"hosts": (1, 10 if running else 8, 2)}
    assert limits(answer)["hosts"] == (-1, 1, 1)
    refused = api.put(f"{url}{DRY}", {"reservations": [{"id": lease["reservations"][0]["id"], "min": 9, "max": 9}]})
    assert refused.status_code == 409
    assert api.dump() == before


@pytest.mark.parametrize("running", [False, True])
def test_adding_and_dropping_a_reservation_are_shown_and_leave_no_trace(api: Api, running: bool):
    lease = api.book(start=0 if running else 1, hours=2, reservations=[HOSTS, INSTANCES])
    if running:
        api.world.pass_time(timedelta(minutes=1))
    url = f"/v1/leases/{lease['id']}/reservations"
    before = api.dump()
    added = api.post(f"{url}{DRY}", {**HOSTS, "min": 2, "max": 2})
    assert costs(added) == {"hosts": (3, 6, 2), "instances": (2, 4, 4)}
    assert len(added.json["lease"]["reservations"]) == 3
    dropped = api.delete(f"{url}/{lease['reservations'][1]['id']}{DRY}")
    assert costs(dropped) == {"hosts": (1, 2, 2), "instances": (0, 0, 4)}
    assert api.dump() == before
    assert api.delete(f"{url}/nothing{DRY}").status_code == 404


def test_only_those_who_could_make_the_request_may_try_it(api: Api):
    lease = api.book(start=1)
    for user, status in (("reader", 403), ("other", 404)):
        stranger = api.using(user=user)
        assert stranger.put(f"/v1/leases/{lease['id']}{DRY}", {"name": "mine"}).status_code == status
        assert stranger.delete(f"/v1/leases/{lease['id']}/reservations/x{DRY}").status_code == status
    assert api.using(user="reader").post(f"/v1/leases{DRY}", api.lease_body()).status_code == 403


def test_older_versions_have_no_dry_run(api: Api):
    for version in ("1.1", "1.2"):
        old = api.using(version=version)
        answer = old.post(f"/v1/leases{DRY}", old.lease_body())
        assert (answer.status_code, answer.json["field"]) == (400, "dry_run")
    assert api.get("/v1/leases").json["leases"] == []


class Stern(EnforcementFilter):
    """A filter that refuses leases with the name ``refused``."""

    def __init__(self) -> None:
        self.conf = new_config()
        self.asked: list[str] = []

    def check_create(self, context: Mapping[str, Any], lease_values: Mapping[str, Any]) -> None:
        self.asked.append("create")
        if lease_values["name"] == "refused":
            raise Denied("not you")

    def check_update(
        self,
        context: Mapping[str, Any],
        current_lease_values: Mapping[str, Any],
        new_lease_values: Mapping[str, Any],
    ) -> None:
        self.asked.append("update")


class Keeping(Stern):
    """A filter that keeps accounts."""

    def on_end(self, context: Mapping[str, Any], lease_values: Mapping[str, Any], *, key: str) -> None:
        self.asked.append("end")


def test_filters_are_asked_unless_they_keep_accounts(tmp_path: Path):
    plain, keeping = Stern(), Keeping()
    with open_api(tmp_path, filters={"plain": plain, "keeping": keeping}) as opened:
        api = opened.using(version="1.3")
        answer = api.post(f"/v1/leases{DRY}", api.lease_body())
        assert answer.json["unasked_filters"] == ["keeping"]
        assert (plain.asked, keeping.asked) == (["create"], [])
        refused = api.post(f"/v1/leases{DRY}", api.lease_body(name="refused"))
        assert (refused.status_code, refused.json["error_name"]) == (400, "Denied")
        lease = api.book(start=1)
        before = api.dump()
        plain.asked, keeping.asked = [], []
        answer = api.put(f"/v1/leases/{lease['id']}{DRY}", {"end_date": rfc3339(api.now + timedelta(hours=9))})
        assert (plain.asked, keeping.asked) == (["update"], ["update"])
        assert answer.json["unasked_filters"] == []
        assert api.dump() == before
