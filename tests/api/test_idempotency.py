"""Requests that are repeated with one ``Idempotency-Key``: they are carried out once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.services.repetition import MOST_KEYS
from tests.api.rig import ADDRESS, HOSTS, NETWORK, Api, api_over, open_api
from tests.support.engines import rebuild

KEY = {"Idempotency-Key": "booking of Tuesday"}
ALL = {**HOSTS, "min": 4, "max": 4}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        yield api.using(version="1.3")


def leases(api: Api) -> list[str]:
    return [lease["id"] for lease in api.using("admin", "1.3").get("/v1/leases").json["leases"]]


def keys(api: Api) -> int:
    with closing(sqlite3.connect(api.database)) as connection:
        [count] = connection.execute("SELECT count(*) FROM idempotency_keys").fetchone()
    return int(count)


@pytest.mark.parametrize("version", ["1.0", "1.3"])
def test_a_repeated_request_gets_the_lease_of_the_first(api: Api, version: str):
    caller = api.using(version=version)
    body = caller.lease_body(start=1, hours=1)
    first, second = (caller.post("/v1/leases", body, headers=KEY) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json == second.json
    assert leases(api) == [first.json["lease"]["id"]]
    assert caller.post("/v1/leases", body).json["lease"]["id"] != first.json["lease"]["id"]


def test_the_order_of_fields_does_not_matter(api: Api):
    body = api.lease_body(start=1, hours=1)
    first = api.post("/v1/leases", body, headers=KEY)
    assert api.post("/v1/leases", dict(reversed(body.items())), headers=KEY).json == first.json


@pytest.mark.parametrize(("version", "status"), [("1.0", 400), ("1.3", 409)])
def test_a_key_with_another_body_is_refused(api: Api, version: str, status: int):
    caller = api.using(version=version)
    lease = caller.post("/v1/leases", caller.lease_body(start=1, hours=1), headers=KEY).json["lease"]
    refused = caller.post("/v1/leases", caller.lease_body(start=1, hours=2), headers=KEY)
    assert refused.status_code == status
    assert "Idempotency-Key" in refused.json["error_message"]
    assert "another request" in refused.json["error_message"]
    elsewhere = api.post(f"/v1/leases/{lease['id']}/reservations", HOSTS, headers=KEY)
    assert elsewhere.status_code == 409
    assert leases(api) == [lease["id"]]


def test_keys_are_those_of_a_user_in_a_project(api: Api):
    body = api.lease_body(start=1, hours=1)
    made = {user: api.using(user).post("/v1/leases", body, headers=KEY).json for user in ("demo", "other", "admin")}
    assert len({document["lease"]["id"] for document in made.values()}) == 3
    changed = api.using("other").post("/v1/leases", api.lease_body(start=1, hours=1), headers=KEY)
    assert changed.json == made["other"]


def test_a_key_is_honoured_for_a_day(api: Api):
    body = api.lease_body(start=72, hours=1)
    first = api.post("/v1/leases", body, headers=KEY).json["lease"]
    api.world.clock.advance(timedelta(hours=23, minutes=59))
    assert api.post("/v1/leases", body, headers=KEY).json["lease"]["id"] == first["id"]
    api.world.clock.advance(timedelta(minutes=2))
    assert api.post("/v1/leases", body, headers=KEY).json["lease"]["id"] != first["id"]
    assert keys(api) == 1


def test_a_refused_request_may_be_repeated(api: Api):
    taken = api.book(start=1, hours=1, reservations=[ALL])
    body = api.lease_body(start=1, hours=1)
    assert api.post("/v1/leases", body, headers=KEY).status_code == 409
    assert api.delete(f"/v1/leases/{taken['id']}").status_code == 204
    assert api.post("/v1/leases", body, headers=KEY).status_code == 201
    assert api.post("/v1/leases", body, headers=KEY).status_code == 201
    assert len(leases(api)) == 1


def test_a_lease_that_waits_waits_once(api: Api):
    api.book(start=1, hours=1, reservations=[ALL])
    body = {**api.lease_body(start=1, hours=1), "if_full": "wait"}
    first, second = (api.post("/v1/leases", body, headers=KEY).json["lease"] for _ in range(2))
    assert (first["status"], first["id"]) == ("WAITING", second["id"])
    assert len(leases(api)) == 2


def test_a_reservation_is_added_once(api: Api):
    lease = api.book(start=1, hours=1)
    path = f"/v1/leases/{lease['id']}/reservations"
    first, second = (api.post(path, HOSTS, headers=KEY) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert len(second.json["lease"]["reservations"]) == 2


def test_several_managers_know_a_key(api: Api, tmp_path: Path):
    body = api.lease_body(start=1, hours=1)
    first = api.post("/v1/leases", body, headers=KEY).json["lease"]
    rebuild(api.world)
    (tmp_path / "other").mkdir()
    other = api_over(api.world, tmp_path / "other").using(version="1.3")
    assert other.post("/v1/leases", body, headers=KEY).json["lease"]["id"] == first["id"]


def test_simultaneous_requests_with_a_key_make_one_lease(api: Api):
    body = api.lease_body(start=1, hours=1)

    def post(_number: int) -> Any:
        return api.post("/v1/leases", body, headers=KEY)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(post, range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert {answer.json["lease"]["id"] for answer in answers} == set(leases(api))
    assert len(leases(api)) == 1


def test_a_dry_run_takes_no_key(api: Api):
    assert api.post("/v1/leases?dry_run=true", api.lease_body(), headers=KEY).status_code == 200
    assert keys(api) == 0


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "a\x7fb"])
def test_an_invalid_key_is_refused(api: Api, key: str):
    refused = api.post("/v1/leases", api.lease_body(), headers={"Idempotency-Key": key})
    assert (refused.status_code, refused.json["field"]) == (400, "Idempotency-Key")
    assert "1 to 255 printable characters" in refused.json["error_message"]
    assert leases(api) == []


def test_a_project_has_a_limited_number_of_keys(api: Api):
    now = api.world.clock.now().replace(tzinfo=None).isoformat(" ")
    rows = [(f"{number:036d}", "demo-project", "x", "x", now) for number in range(MOST_KEYS)]
    api.post("/v1/leases", api.lease_body(start=72), headers={"Idempotency-Key": "before"})
    with closing(sqlite3.connect(api.database)) as connection, connection:
        columns = "id, project_id, digest, made_id, created_at"
        connection.executemany(f"INSERT INTO idempotency_keys ({columns}) VALUES (?, ?, ?, ?, ?)", rows)
    refused = api.post("/v1/leases", api.lease_body(start=72), headers=KEY)
    assert refused.status_code == 409
    assert str(MOST_KEYS) in refused.json["error_message"]
    assert api.using("other").post("/v1/leases", api.lease_body(start=72), headers=KEY).status_code == 201
    api.world.clock.advance(timedelta(days=1, seconds=1))
    assert api.post("/v1/leases", api.lease_body(start=72), headers=KEY).status_code == 201
    assert keys(api) < MOST_KEYS


#: The path and the body of a registration for each resource type.
REGISTRATIONS = [
    ("/v1/os-hosts", {"name": "extra-1"}),
    ("/v1/floatingips", {"floating_network_id": NETWORK, "floating_ip_address": ADDRESS}),
    ("/v1/volume-pools", {"name": "sim-storage@fast#nvme", "capacity_gb": 10}),
]


@pytest.fixture
def admin(api: Api) -> Api:
    api.world.cloud.world.add_host("extra-1")
    return api.using("admin")


@pytest.mark.parametrize(("path", "body"), REGISTRATIONS)
def test_a_repeated_registration_gets_the_resource_of_the_first(admin: Api, path: str, body: dict[str, Any]):
    first, second = (admin.post(path, body, headers=KEY) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201), second.text
    assert first.json == second.json
    assert admin.post(path, body).status_code == 409
    assert admin.post(path, body, headers={"Idempotency-Key": "another"}).status_code == 409


@pytest.mark.parametrize(("path", "body"), REGISTRATIONS)
def test_a_key_registers_nothing_again_that_was_taken_back(admin: Api, path: str, body: dict[str, Any]):
    [shown] = admin.post(path, body, headers=KEY).json.values()
    assert admin.delete(f"{path}/{shown['id']}").status_code == 204
    refused = admin.post(path, body, headers=KEY)
    assert refused.status_code == 409, refused.text
    assert "taken back since" in refused.json["error_message"]
    admin.world.clock.advance(timedelta(seconds=1))
    assert admin.post(path, body).status_code == 201
    assert admin.post(path, body, headers=KEY).status_code == 409


def test_a_refused_registration_may_be_repeated_with_its_key(admin: Api):
    assert admin.post("/v1/os-hosts", {"name": "extra-2"}, headers=KEY).status_code == 404
    admin.world.cloud.world.add_host("extra-2")
    first, second = (admin.post("/v1/os-hosts", {"name": "extra-2"}, headers=KEY) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json == second.json


def test_a_key_of_a_registration_belongs_to_its_request(admin: Api):
    assert admin.post("/v1/os-hosts", {"name": "extra-1"}, headers=KEY).status_code == 201
    assert admin.post("/v1/os-hosts", {"name": "extra-1", "properties": {"ssd": "yes"}}, headers=KEY).status_code == 409
    assert admin.post("/v1/leases", admin.lease_body(), headers=KEY).status_code == 409


def test_simultaneous_registrations_with_a_key_make_one_resource(admin: Api):
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _number: admin.post("/v1/os-hosts", {"name": "extra-1"}, headers=KEY), range(8)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    made = {answer.json["host"]["id"] for answer in answers if answer.status_code == 201}
    assert len(made) == 1
    assert admin.post("/v1/os-hosts", {"name": "extra-1"}, headers=KEY).json["host"]["id"] in made
