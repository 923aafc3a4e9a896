"""What a refused request is told that it could have instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.services.manager import Manager
from tests.api.rig import HOSTS, Api, api_over, open_api, rfc3339
from tests.support.engines import rebuild

HOUR = timedelta(hours=1)
ADDRESS = {"resource_type": "virtual:floatingip", "network_id": "x", "amount": 1}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        yield api.using(version="1.3")


def refusal(api: Api, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of a refused request."""
    answer = api.post("/v1/leases", body)
    assert (answer.status_code, answer.json["error_name"]) == (409, "NotEnoughResources"), answer.text
    alternatives: list[dict[str, Any]] = answer.json["details"].get("alternatives", [])
    return alternatives


def changed(body: dict[str, Any], alternative: dict[str, Any]) -> dict[str, Any]:
    """Return the request with what the alternative changes."""
    after = deepcopy(body) | {"start_date": alternative["start_date"], "end_date": alternative["end_date"]}
    if alternative["reservation"] is not None:
        reservation = after["reservations"][alternative["reservation"]]
        if alternative["amount"] is not None:
            amount = alternative["amount"]
            reservation |= {"min": amount, "max": amount} if "min" in reservation else {"amount": amount}
        if alternative["resource_properties"] is not None:
            reservation["resource_properties"] = alternative["resource_properties"]
    return after


def hosts(count: int, properties: str = "") -> dict[str, Any]:
    return {**HOSTS, "min": count, "max": count, "resource_properties": properties}


def test_another_start_an_earlier_end_and_fewer_are_offered(api: Api):
    api.book(start=3, hours=2, reservations=[hosts(2)])
    body = api.lease_body(start=1, hours=3, reservations=[hosts(3)])
    found = refusal(api, body)
    assert [alternative["change"] for alternative in found] == ["start", "end", "amount"]
    assert found[0]["start_date"] == rfc3339(api.now + 5 * HOUR)
    assert found[1]["end_date"] == rfc3339(api.now + 3 * HOUR)
    assert (found[2]["reservation"], found[2]["amount"]) == (0, 2)
    for alternative in found:
        booked = api.post("/v1/leases", changed(body, alternative))
        assert booked.status_code == 201, alternative
        api.delete(f"/v1/leases/{booked.json['lease']['id']}")


def test_another_kind_is_offered(api: Api):
    admin = api.using("admin")
    for host, gpu in (("1", "a100"), ("2", "v100"), ("3", "v100")):
        admin.put(f"/v1/os-hosts/{host}", {"properties": {"gpu": gpu, "owner": f"o{host}"}})
    admin.patch("/v1/os-hosts/properties/owner", {"private": True})
    body = api.lease_body(reservations=[HOSTS, hosts(2, '["==", "$gpu", "a100"]')])
    found = refusal(api, body)
    kinds = [alternative for alternative in found if alternative["change"] == "kind"]
    assert [(kind["reservation"], kind["resource_properties"]) for kind in kinds] == [(1, '["==", "$gpu", "v100"]')]
    assert "owner" not in str(found)
    assert api.post("/v1/leases", changed(body, kinds[0])).status_code == 201


def test_a_refusal_without_alternatives_names_none(api: Api):
    assert refusal(api, api.lease_body(reservations=[hosts(9)]))[0]["change"] == "amount"
    for host in ("1", "2", "3", "4"):
        api.using("admin").post(f"/v1/os-hosts/{host}/disable", {"reason": "test"})
    assert refusal(api, api.lease_body(reservations=[hosts(9)])) == []


def test_alternatives_leave_no_trace(api: Api):
    api.book(start=3, hours=2, reservations=[hosts(2)])
    body = api.lease_body(start=1, hours=3, reservations=[hosts(3)])
    before = api.dump()
    assert refusal(api, body)
    assert api.dump() == before


def test_a_refusal_says_whether_it_is_proven(api: Api, tmp_path: Path):
    api.book(start=1, hours=2, reservations=[hosts(2)])
    size = {"vcpus": 1, "memory_mb": 1, "disk_gb": 0}
    apart = {"resource_type": "virtual:instance", "amount": 3, **size, "affinity": False}
    answer = api.post("/v1/leases", api.lease_body(start=1, reservations=[apart]))
    assert answer.json["details"]["proven"] is True
    (tmp_path / "plain").mkdir()
    rebuild(api.world, rules=replace(api.world.service.components.rules, exact_time=timedelta(0)))
    plain = api_over(api.world, tmp_path / "plain").using(version="1.3")
    answer = plain.post("/v1/leases", api.lease_body(start=1, reservations=[apart]))
    assert answer.json["details"]["proven"] is False
    for more in (3, 5):  # there are only four, and two of them are booked, wherever that lease moves
        answer = plain.post("/v1/leases", api.lease_body(start=1, reservations=[hosts(more)]))
        assert answer.json["details"]["proven"] is True


def test_a_dry_run_names_alternatives_and_older_versions_do_not(api: Api):
    api.book(start=3, hours=2, reservations=[hosts(2)])
    body = api.lease_body(start=1, hours=3, reservations=[hosts(3)])
    assert api.post("/v1/leases?dry_run=true", body).json["details"]["alternatives"] == refusal(api, body)
    for version in ("1.1", "1.2"):
        assert "alternatives" not in api.using(version=version).post("/v1/leases", body).json["details"]


def test_a_refusal_of_instances_of_a_flavor_names_alternatives(api: Api):
    flavor = {"resource_type": "flavor:instance", "flavor_id": "4", "amount": 500}
    found = refusal(api, api.lease_body(reservations=[flavor]))
    assert [alternative["change"] for alternative in found] == ["amount"]


def test_a_cloud_without_hosts_refuses_and_finds_nothing(tmp_path: Path):
    with open_api(tmp_path, hosts=0) as opened:
        api = opened.using(version="1.3")
        assert refusal(api, api.lease_body()) == []
        search = {"reservations": [HOSTS], "duration": 60}
        assert api.post("/v1/offers", search).json["offers"] == []
        assert api.post("/v1/offers/longest", {"reservations": [HOSTS]}).status_code == 409
        assert api.get("/v1/availability?resource_type=physical:host").json["groups"][0]["total"] == 0


class Troubled:
    """The service of alternatives, to which something happens before each of its searches."""

    def __init__(self, service: Any, trouble: Callable[[], object]) -> None:
        self._service = service
        self._trouble = trouble

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def search(*given: Any, **named: Any) -> Any:
            self._trouble()
            return getattr(self._service, name)(*given, **named)

        return search


@contextmanager
def troubled_api(tmp_path: Path, trouble: Callable[[Api], object]) -> Iterator[Api]:
    """An API to whose searches for alternatives something happens first."""
    held: list[Api] = []

    @contextmanager
    def reach(manager: Manager) -> Iterator[Manager]:
        alternatives: Any = Troubled(manager.alternatives, lambda: trouble(held[0]))
        yield replace(manager, alternatives=alternatives)

    with open_api(tmp_path, reach=reach) as api:
        held.append(api.using(version="1.3"))
        yield held[0]


def test_a_refusal_stays_a_refusal_if_the_end_passes_while_alternatives_are_sought(tmp_path: Path):
    def pass_the_end(api: Api) -> None:
        api.world.clock.advance(2 * HOUR)

    with troubled_api(tmp_path, pass_the_end) as api:
        api.book(start=0, hours=8, reservations=[{**HOSTS, "min": 4, "max": 4}])
        lease = api.book(start=9, hours=1, reservations=[HOSTS])
        assert refusal(api, api.lease_body(start=0, hours=1, reservations=[HOSTS]) | {"start_date": "now"}) == []
        moved = {"start_date": "now", "end_date": rfc3339(api.now + HOUR)}
        answer = api.put(f"/v1/leases/{lease['id']}", moved)
        assert (answer.status_code, answer.json["error_name"]) == (409, "NotEnoughResources"), answer.text


def test_a_refusal_stays_a_refusal_whatever_the_search_for_alternatives_raises(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def fail(_api: Api) -> None:
        raise ZeroDivisionError("of the search")

    with troubled_api(tmp_path, fail) as api:
        lease = api.book(start=0, hours=8, reservations=[{**HOSTS, "min": 4, "max": 4}])
        assert refusal(api, api.lease_body(start=0, hours=1, reservations=[HOSTS])) == []
        answer = api.post(f"/v1/leases/{lease['id']}/reservations", HOSTS)
        assert (answer.status_code, answer.json["error_name"]) == (409, "NotEnoughResources"), answer.text
    assert "ZeroDivisionError: of the search" in caplog.text
