"""What a refused change of a lease is told that it could be instead."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.services.limits.quotas import FixedLimits, Quotas
from tests.api.rig import HOSTS, INSTANCES, Api, api_over, open_api, rfc3339
from tests.api.test_alternatives import hosts
from tests.support.engines import rebuild

HOUR = timedelta(hours=1)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """Four hosts; a lease of all of them runs from 5 to 7."""
    with open_api(tmp_path) as opened:
        api = opened.using(version="1.3")
        api.using("other").book(start=5, hours=2, reservations=[hosts(4)])
        yield api


def at(api: Api, hours: float) -> str:
    return rfc3339(api.now + hours * HOUR)


def refusal(api: Api, method: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of a refused change, and check that its dry run has the same and that nothing changes."""
    before = api.dump()
    answer = api.call(method, path, body)
    assert (answer.status_code, answer.json["error_name"]) == (409, "NotEnoughResources"), answer.text
    alternatives: list[dict[str, Any]] = answer.json["details"].get("alternatives", [])
    assert len(alternatives) <= 3
    if not path.endswith("/confirm"):
        previewed = api.call(method, f"{path}?dry_run=true", body)
        assert previewed.json["details"].get("alternatives", []) == alternatives
    assert api.dump() == before
    return alternatives


def changed(body: dict[str, Any], alternative: dict[str, Any]) -> dict[str, Any]:
    """Return the change with what the alternative changes."""
    after = dict(body)
    if alternative["change"] in {"start", "end"}:
        after |= {"start_date": alternative["start_date"], "end_date": alternative["end_date"]}
    if alternative["change"] == "amount":
        amount = alternative["amount"]
        asked = after["reservations"][alternative["reservation"]]
        asked |= {"amount": amount} if "amount" in asked else {"min": amount, "max": amount}
    if alternative["change"] == "kind":
        asked = after["reservations"][alternative["reservation"]]
        asked["resource_properties"] = alternative["resource_properties"]
    return after


def short(alternatives: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """Return what each alternative changes, and to what."""
    values = {"start": "start_date", "end": "end_date", "amount": "amount", "kind": "resource_properties"}
    return [(alternative["change"], alternative[values[alternative["change"]]]) for alternative in alternatives]


def test_a_waiting_lease_is_prolonged_for_less_or_moved(api: Api):
    lease = api.book(start=2, hours=1, reservations=[hosts(2)])
    path, body = f"/v1/leases/{lease['id']}", {"end_date": at(api, 6)}
    found = refusal(api, "PUT", path, body)
    assert short(found) == [("start", at(api, 7)), ("end", at(api, 5))]
    assert [api.put(path, changed(body, alternative)).status_code for alternative in found] == [200, 200]


def test_a_lease_that_fills_the_limit_of_its_project_is_offered_what_it_may_have(api: Api, tmp_path: Path):
    rebuild(api.world, quotas=Quotas(FixedLimits({"hosts": 2, "leases": 1}, ("other-project",))))
    (tmp_path / "limited").mkdir()
    limited = api_over(api.world, tmp_path / "limited").using(version="1.3")
    lease = limited.book(start=2, hours=1, reservations=[hosts(2)])
    path, body = f"/v1/leases/{lease['id']}", {"end_date": at(api, 6)}
    found = refusal(limited, "PUT", path, body)
    assert short(found) == [("start", at(api, 7)), ("end", at(api, 5))]
    assert [limited.put(path, changed(body, alternative)).status_code for alternative in found] == [200, 200]
    moved = {"start_date": at(api, 5), "end_date": at(api, 6)}
    assert limited.put(path, {"start_date": at(api, 7), "end_date": at(api, 9)}).status_code == 200
    # Its own units at that time are no reason against a shorter lease.
    assert short(refusal(limited, "PUT", path, moved)) == [("start", at(api, 7))]


def test_a_lease_is_not_prolonged_into_another_one(api: Api):
    api.using("other").book(start=3, hours=1, reservations=[hosts(2)])
    lease = api.book(start=2, hours=1, reservations=[hosts(3)])
    path, body = f"/v1/leases/{lease['id']}", {"end_date": at(api, 6)}
    assert short(refusal(api, "PUT", path, body)) == [("start", at(api, 7))]


def test_a_running_lease_is_prolonged_for_less(api: Api):
    lease = api.book(start=0, hours=2, reservations=[hosts(1), INSTANCES])
    api.world.engine.settle()
    path, body = f"/v1/leases/{lease['id']}", {"end_date": at(api, 6)}
    assert api.get(path).json["lease"]["status"] == "ACTIVE"
    found = refusal(api, "PUT", path, body)
    assert short(found) == [("end", at(api, 5))]
    assert api.put(path, changed(body, found[0])).status_code == 200
    # Now there is nothing left to offer.
    assert refusal(api, "PUT", path, body) == []


def test_a_lease_is_moved_to_another_time(api: Api):
    lease = api.book(start=7, hours=2, reservations=[hosts(1)])
    path = f"/v1/leases/{lease['id']}"
    body = {"start_date": at(api, 4), "end_date": at(api, 6)}
    found = refusal(api, "PUT", path, body)
    # It begins at 7 already, which is no other start.
    assert [alternative["change"] for alternative in found] == ["start", "end"]
    assert found[0]["start_date"] > at(api, 7)
    assert found[1]["end_date"] == at(api, 5)
    for alternative in found:
        assert api.put(path, changed(body, alternative)).status_code == 200
        assert api.put(path, {"start_date": at(api, 7), "end_date": at(api, 9)}).status_code == 200


def test_a_lease_grows_by_less(api: Api):
    api.using("other").book(start=2, hours=1, reservations=[hosts(1)])
    lease = api.book(start=2, hours=1, reservations=[hosts(1), hosts(1)])
    path = f"/v1/leases/{lease['id']}"
    body = {"reservations": [{"id": lease["reservations"][1]["id"], "min": 4, "max": 4}]}
    found = refusal(api, "PUT", path, body)
    assert short(found) == [("amount", 2)]
    assert found[0]["reservation"] == 0  # in the change
    assert api.put(path, changed(body, found[0])).status_code == 200
    assert refusal(api, "PUT", path, body | {"reservations": [body["reservations"][0] | {"min": 3, "max": 3}]}) == []


def test_a_lease_is_prolonged_with_fewer_hosts(api: Api):
    api.using("other").book(start=3, hours=1, reservations=[hosts(2)])
    lease = api.book(start=2, hours=1, reservations=[hosts(1)])
    path = f"/v1/leases/{lease['id']}"
    body = {"end_date": at(api, 4), "reservations": [{"id": lease["reservations"][0]["id"], "min": 3, "max": 3}]}
    found = refusal(api, "PUT", path, body)
    assert short(found) == [("start", at(api, 7)), ("end", at(api, 3)), ("amount", 2)]
    assert [api.put(path, changed(body, found[2])).status_code] == [200]


def test_a_lease_gets_another_kind(api: Api):
    admin = api.using("admin")
    for host, gpu in (("1", "a100"), ("2", "v100"), ("3", "v100")):
        admin.put(f"/v1/os-hosts/{host}", {"properties": {"gpu": gpu}})
    lease = api.book(start=2, hours=1, reservations=[hosts(2)])
    path = f"/v1/leases/{lease['id']}"
    asked = {"id": lease["reservations"][0]["id"], "resource_properties": '["==", "$gpu", "a100"]'}
    body = {"reservations": [asked]}
    found = refusal(api, "PUT", path, body)
    assert short(found) == [("kind", '["==", "$gpu", "v100"]')]
    assert api.put(path, changed(body, found[0])).status_code == 200


def test_a_reservation_is_added_with_fewer_units_or_of_another_kind(api: Api):
    admin = api.using("admin")
    for host, gpu in (("1", "a100"), ("2", "v100"), ("3", "v100")):
        admin.put(f"/v1/os-hosts/{host}", {"properties": {"gpu": gpu}})
    lease = api.book(start=2, hours=1, reservations=[INSTANCES])
    path = f"/v1/leases/{lease['id']}/reservations"
    body = hosts(2, '["==", "$gpu", "a100"]')
    found = refusal(api, "POST", path, body)
    assert short(found) == [("amount", 1), ("kind", '["==", "$gpu", "v100"]')]
    assert {alternative["reservation"] for alternative in found} == {0}
    assert api.post(path, body | {"min": 1, "max": 1}).status_code == 201
    assert api.post(path, body | {"resource_properties": found[1]["resource_properties"]}).status_code == 201


def test_a_held_lease_is_confirmed_with_less(api: Api):
    api.using("other").book(start=2, hours=1, reservations=[hosts(1)])
    lease = api.book(start=2, hours=1, hold_for=600, reservations=[hosts(1)])
    path = f"/v1/leases/{lease['id']}/confirm"
    body = {"reservations": [{"id": lease["reservations"][0]["id"], "min": 4, "max": 4}]}
    found = refusal(api, "POST", path, body)
    assert short(found) == [("amount", 3)]
    assert api.post(path, changed(body, found[0])).status_code == 200


def test_older_versions_and_other_errors_name_no_alternatives(api: Api):
    lease = api.book(start=2, hours=1, reservations=[hosts(2)])
    path = f"/v1/leases/{lease['id']}"
    for version in ("1.1", "1.2"):
        refused = api.using(version=version).put(path, {"end_date": at(api, 6)})
        assert refused.status_code == 409
        assert "alternatives" not in refused.json["details"]
    assert api.put(path, {"end_date": at(api, -1)}).json["error_name"] != "NotEnoughResources"
    assert api.using("other").put(path, {"end_date": at(api, 6)}).status_code == 404


def test_without_permission_to_ask_what_is_free_no_refusal_names_alternatives(api: Api, tmp_path: Path):
    lease = api.book(start=2, hours=1, reservations=[hosts(2)])
    permitted = api.world.service.components.authorize
    rebuild(api.world, authorize=lambda rule, *given: rule != "tenure:availability:get" and permitted(rule, *given))
    (tmp_path / "denied").mkdir()
    denied = api_over(api.world, tmp_path / "denied").using(version="1.3")
    path, four = f"/v1/leases/{lease['id']}", hosts(4)
    for method, url, body in (
        ("POST", "/v1/leases", api.lease_body(start=2, reservations=[four])),
        ("PUT", path, {"end_date": at(api, 6)}),
        ("POST", f"{path}/reservations", four),
    ):
        assert api.call(method, url, body).json["details"]["alternatives"] != []
        refused = denied.call(method, url, body)
        assert refused.json["error_name"] == "NotEnoughResources"
        assert "alternatives" not in refused.json["details"]
    assert denied.post("/v1/offers", {"reservations": [four], "duration": 60}).status_code == 403


def test_fewer_instances_are_offered_for_an_added_reservation(api: Api):
    lease = api.book(start=2, hours=1, reservations=[HOSTS])
    path = f"/v1/leases/{lease['id']}/reservations"
    found = refusal(api, "POST", path, INSTANCES | {"amount": 10_000})
    [(change, amount)] = short(found)
    assert change == "amount"
    assert 0 < int(str(amount)) < 10_000
    assert api.post(path, INSTANCES | {"amount": amount}).status_code == 201
