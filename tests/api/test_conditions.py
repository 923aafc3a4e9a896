"""Changes of a lease on the condition that it is as it was read: ``ETag`` and ``If-Match``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.rig import HOSTS, Api, open_api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        yield api.using(version="1.3")


def tag(api: Api, lease: dict[str, Any]) -> str:
    return str(api.get(f"/v1/leases/{lease['id']}").headers["etag"])


@pytest.mark.parametrize("version", ["1.0", "1.3"])
def test_change_of_a_lease_that_has_changed_is_refused(api: Api, version: str) -> None:
    caller = api.using(version=version)
    lease = caller.book()
    path, seen = f"/v1/leases/{lease['id']}", tag(caller, lease)
    changed = caller.put(path, {"name": "a"}, headers={"If-Match": seen})
    assert changed.status_code == 200, changed.text
    for refused in (
        caller.put(path, {"name": "b"}, headers={"If-Match": seen}),
        caller.delete(path, headers={"If-Match": seen}),
    ):
        assert refused.status_code == 412, refused.text
        assert "has changed since it was read" in refused.json["error_message"]
    assert caller.get(path).json["lease"]["name"] == "a"
    assert caller.put(path, {"name": "c"}, headers={"If-Match": changed.headers["etag"]}).status_code == 200
    assert caller.delete(path, headers={"If-Match": tag(caller, lease)}).status_code == 204


def test_each_answer_with_a_lease_has_its_tag(api: Api) -> None:
    made = api.post("/v1/leases", api.lease_body(start=1, hours=2))
    lease = made.json["lease"]
    path = f"/v1/leases/{lease['id']}"
    assert made.headers["etag"] == tag(api, lease)
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("PUT", path, {"name": "other"}),
        ("PUT", path, {"end_date": "2030-01-01T14:00:00Z"}),
        ("PUT", path, {"events": [{"time": "2030-01-01T11:30:00Z", "message": "half"}]}),
        ("PUT", path, {}),
        ("POST", f"{path}/reservations", HOSTS),
    ]
    for method, url, body in changes:
        answer = api.call(method, url, body)
        assert answer.status_code in {200, 201}, answer.text
        assert answer.headers["etag"] == tag(api, lease)
    held = api.post("/v1/leases", {**api.lease_body(start=1), "hold_for": 60}).json["lease"]
    confirmed = api.post(f"/v1/leases/{held['id']}/confirm", {})
    assert confirmed.headers["etag"] == tag(api, held)


def test_every_change_has_another_tag(api: Api) -> None:
    lease = api.book(start=1, hours=2)
    path, tags = f"/v1/leases/{lease['id']}", [tag(api, lease)]
    changes: list[dict[str, Any]] = [
        {"name": "other"},
        {"end_date": "2030-01-01T14:00:00Z"},
        {"before_end_date": "2030-01-01T13:00:00Z"},
        {"events": [{"time": "2030-01-01T11:30:00Z", "message": "half"}]},
        {"events": []},
    ]
    for body in changes:
        assert api.put(path, body).status_code == 200
        tags.append(tag(api, lease))
    assert len(set(tags)) == len(tags)


def test_reservations_are_added_and_dropped_on_condition(api: Api) -> None:
    lease = api.book(start=1, hours=2)
    path, seen = f"/v1/leases/{lease['id']}", tag(api, lease)
    added = api.post(f"{path}/reservations", HOSTS, headers={"If-Match": seen})
    assert added.status_code == 201, added.text
    extra = added.json["lease"]["reservations"][1]["id"]
    for refused in (
        api.post(f"{path}/reservations", HOSTS, headers={"If-Match": seen}),
        api.delete(f"{path}/reservations/{extra}", headers={"If-Match": seen}),
        api.put(f"{path}?dry_run=true", {"name": "b"}, headers={"If-Match": seen}),
        api.post(f"{path}/reservations?dry_run=true", HOSTS, headers={"If-Match": seen}),
        api.delete(f"{path}/reservations/{extra}?dry_run=true", headers={"If-Match": seen}),
    ):
        assert (refused.status_code, refused.json["error_name"]) == (412, "PreconditionFailed"), refused.text
        assert refused.json["field"] == "If-Match"
    dropped = api.delete(f"{path}/reservations/{extra}", headers={"If-Match": added.headers["etag"]})
    assert dropped.status_code == 204, dropped.text


def test_held_lease_is_confirmed_on_condition(api: Api) -> None:
    held = api.post("/v1/leases", {**api.lease_body(start=1), "hold_for": 60}).json["lease"]
    path = f"/v1/leases/{held['id']}"
    assert api.post(f"{path}/confirm", {}, headers={"If-Match": '"1000"'}).status_code == 412
    assert api.post(f"{path}/confirm", {}, headers={"If-Match": tag(api, held)}).status_code == 200


@pytest.mark.parametrize("given", ['{tag}, "1000"', '"1000",{tag}', "*", " {tag} "])
def test_condition_may_name_several_tags_or_any(api: Api, given: str) -> None:
    lease = api.book()
    condition = {"If-Match": given.format(tag=tag(api, lease))}
    assert api.put(f"/v1/leases/{lease['id']}", {"name": "a"}, headers=condition).status_code == 200


@pytest.mark.parametrize("given", ['"1000"', '"another-form"', 'W/"1"', '"01"', '""'])
def test_other_tags_match_no_lease(api: Api, given: str) -> None:
    lease = api.book()
    answer = api.put(f"/v1/leases/{lease['id']}", {"name": "a"}, headers={"If-Match": given})
    assert answer.status_code == 412, answer.text


@pytest.mark.parametrize("given", ["7", '"7', "", '"7" "8"', "x" * 1000])
def test_malformed_condition_is_refused(api: Api, given: str) -> None:
    lease = api.book()
    answer = api.put(f"/v1/leases/{lease['id']}", {"name": "a"}, headers={"If-Match": given})
    assert (answer.status_code, answer.json["field"]) == (400, "If-Match"), answer.text


def test_missing_lease_is_missing_whatever_the_condition(api: Api) -> None:
    answer = api.put("/v1/leases/no-such", {"name": "a"}, headers={"If-Match": '"1"'})
    assert answer.status_code == 404
    lease = api.using("other").book()
    assert api.delete(f"/v1/leases/{lease['id']}", headers={"If-Match": '"1"'}).status_code == 404


def test_repeated_addition_needs_the_condition_once(api: Api) -> None:
    lease = api.book(start=1, hours=2)
    path, seen = f"/v1/leases/{lease['id']}/reservations", tag(api, lease)
    first, second = (api.post(path, HOSTS, headers={"If-Match": seen, "Idempotency-Key": "one more"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201), second.text
    assert len(second.json["lease"]["reservations"]) == 2
    assert api.post(path, HOSTS, headers={"If-Match": seen, "Idempotency-Key": "another"}).status_code == 412
