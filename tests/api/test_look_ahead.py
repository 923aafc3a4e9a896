"""Until when a lease may be prolonged, on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.api.rig import Api, api_over, open_api, rfc3339
from tests.support.engines import rebuild

HOUR = timedelta(hours=1)
INSTANCE = {"resource_type": "virtual:instance", "amount": 1, "vcpus": 4, "memory_mb": 512, "disk_gb": 0}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path, hosts=1) as api:
        yield api.using(version="1.3")


def may_end(api: Api, lease_id: str) -> float | None:
    """Return until when the lease may be prolonged, in hours from now."""
    date = api.get(f"/v1/leases/{lease_id}").json["lease"]["may_end_at"]
    return None if date is None else (datetime.fromisoformat(date) - api.now) / HOUR


@pytest.mark.parametrize("running", [False, True])
def test_a_lease_may_last_until_the_next_begins_on_its_host(api: Api, running: bool):
    lease = api.book(start=0 if running else 1, hours=1)
    if running:
        api.world.pass_time(timedelta(minutes=30))
    assert may_end(api, lease["id"]) is None
    api.book(start=5, hours=1)
    assert may_end(api, lease["id"]) == 5
    longer = {"end_date": api.get(f"/v1/leases/{lease['id']}").json["lease"]["may_end_at"]}
    assert api.put(f"/v1/leases/{lease['id']}", longer).status_code == 200
    later = {"end_date": rfc3339(api.now + 5.5 * HOUR)}
    assert api.put(f"/v1/leases/{lease['id']}", later).status_code == 409


def test_parts_of_a_host_may_last_as_long_as_there_is_room_beside_others(api: Api):
    [host] = api.using("admin").get("/v1/os-hosts").json["hosts"]
    lease = api.book(start=1, hours=1, reservations=[INSTANCE])
    api.book(start=1, hours=9, reservations=[INSTANCE])
    assert may_end(api, lease["id"]) is None
    rest = {**INSTANCE, "vcpus": host["vcpus"] - 7}
    api.book(start=4, hours=1, reservations=[rest])
    assert may_end(api, lease["id"]) == 4


def test_it_is_shown_only_for_a_single_lease_that_can_be_prolonged(api: Api):
    lease = api.book(start=1, hours=1)
    api.book(start=3, hours=1)
    assert lease["may_end_at"] is None
    assert {lease["may_end_at"] for lease in api.get("/v1/leases").json["leases"]} == {None}
    assert "may_end_at" not in api.using(version="1.2").get(f"/v1/leases/{lease['id']}").json["lease"]
    api.world.pass_time(2.5 * HOUR)
    assert api.get(f"/v1/leases/{lease['id']}").json["lease"]["status"] == "TERMINATED"
    assert may_end(api, lease["id"]) is None


def test_a_lease_lasts_no_longer_than_leases_may(api: Api, tmp_path: Path):
    rebuild(api.world, rules=replace(api.world.service.components.rules, longest_lease=timedelta(days=2)))
    (tmp_path / "limited").mkdir()
    limited = api_over(api.world, tmp_path / "limited").using(version="1.3")
    lease = limited.book(start=1, hours=1)
    assert may_end(limited, lease["id"]) == 49
    limited.book(start=30, hours=1)
    assert may_end(limited, lease["id"]) == 30


@pytest.mark.parametrize("running", [False, True])
def test_only_a_running_lease_is_prolonged_on_a_host_that_is_out_of_service(api: Api, running: bool):
    lease = api.book(start=0 if running else 1, hours=2)
    if running:
        api.world.pass_time(timedelta(minutes=30))
    api.using("admin").post("/v1/os-hosts/1/disable", {"reason": "test"})
    assert may_end(api, lease["id"]) == (None if running else 3)
    longer = api.put(f"/v1/leases/{lease['id']}", {"end_date": rfc3339(api.now + 4 * HOUR)})
    assert longer.status_code == (200 if running else 409)


@pytest.mark.parametrize("running", [False, True])
def test_parts_of_a_host_that_has_shrunk_below_them_may_not_last_longer(api: Api, running: bool):
    """Alone, each would still fit; together they are more than there is, though nothing is booked after them."""
    api.world.resize(8)
    lease = api.book(start=0 if running else 1, hours=2, reservations=[INSTANCE, {**INSTANCE, "vcpus": 3}])
    api.book(start=9, hours=1)
    api.world.pass_time(timedelta(minutes=30))
    api.world.resize(6)
    date = api.get(f"/v1/leases/{lease['id']}").json["lease"]["may_end_at"]
    assert date == lease["end_date"]
