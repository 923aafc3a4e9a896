"""What everybody may read, the headers of every answer, and versions."""

from __future__ import annotations

import logging
import re
import sqlite3
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest

from tenure.domain.errors import Unavailable
from tenure.domain.request import ComponentHealth
from tests.api.rig import Api, open_api

REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
def stranger(shared_api: Api) -> Api:
    return shared_api.using("nobody at all")


@pytest.mark.parametrize("path", ["/", "/versions"])
def test_the_versions_are_listed_without_a_token(stranger: Api, path: str) -> None:
    result = stranger.get(path)
    assert result.status_code == 300
    assert result.json == {
        "versions": [
            {
                "id": "v1.0",
                "status": "CURRENT",
                "links": [{"href": "http://falconframework.org/v1", "rel": "self"}],
                "min_version": "1.0",
                "max_version": "1.4",
            }
        ]
    }


def test_the_version_has_a_document(stranger: Api) -> None:
    for path in ("/v1", "/v1/"):
        result = stranger.get(path)
        assert result.status_code == 200
        assert result.json["version"]["id"] == "v1.0"


def test_links_have_the_address_used_by_the_client(stranger: Api) -> None:
    def href(**how: object) -> str:
        link: str = stranger.get("/", **how).json["versions"][0]["links"][0]["href"]
        return link

    assert href(root_path="/reservation") == "http://falconframework.org/reservation/v1"
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "cloud:8443", "X-Forwarded-Prefix": "/booking"}
    assert href(headers=forwarded) == "https://cloud:8443/booking/v1"
    nonsense = {"X-Forwarded-Proto": "javascript", "X-Forwarded-Host": 'a"b', "X-Forwarded-Prefix": "//evil"}
    assert href(headers=nonsense) == "http://falconframework.org/v1"


def test_the_operator_may_configure_the_address_in_links(tmp_path: Path) -> None:
    with open_api(tmp_path, hosts=0, public_url="https://cloud.example/reservation/") as api:
        link = api.get("/", headers={"X-Forwarded-Host": "elsewhere"}).json["versions"][0]["links"][0]
        assert link["href"] == "https://cloud.example/reservation/v1"


def test_health_names_each_part(stranger: Api) -> None:
    result = stranger.get("/healthcheck")
    assert result.status_code == 200
    assert result.json["status"] == "well"
    assert {"part": "database", "well": True, "reason": None} in result.json["parts"]


def test_health_names_the_reason_without_passwords(stranger: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (
        ComponentHealth("database", False, "cannot reach mysql://tenure:secret@db/tenure"),
        ComponentHealth("engine", True),
    )
    manager = type(stranger.world.service.manager)
    monkeypatch.setattr(manager, "health", lambda self: parts)
    result = stranger.get("/healthcheck")
    assert (result.status_code, result.json["status"]) == (503, "unwell")
    assert result.json["parts"][0]["reason"] == "cannot reach mysql://***@db/tenure"


def test_undelivered_notifications_are_shown_and_leave_the_service_healthy(api: Api) -> None:
    api.book()
    with closing(sqlite3.connect(api.database)) as database, database:
        assert database.execute("UPDATE outbox SET ready_at = NULL, delivered_at = NULL").rowcount == 1
    result = api.get("/healthcheck")
    assert {"part": "notifications", "well": False, "reason": "1 could not be delivered"} in result.json["parts"]
    assert (result.status_code, result.json["status"]) == (200, "well")


def test_a_manager_that_does_not_answer_is_unwell(stranger: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise TimeoutError("no reply")

    monkeypatch.setattr(type(stranger.world.service.manager), "health", fail)
    assert stranger.get("/healthcheck").status_code == 503


def test_a_manager_that_is_away_is_a_line_in_the_log(
    stranger: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: object) -> None:
        raise Unavailable("No manager can be reached.")

    monkeypatch.setattr(type(stranger.world.service.manager), "health", fail)
    result = stranger.get("/healthcheck")
    assert result.status_code == 503
    assert result.json["parts"] == [{"part": "manager", "well": False, "reason": "does not answer"}]
    [record] = [record for record in caplog.records if record.name == "tenure.api.discovery"]
    assert record.getMessage() == "The manager does not say whether it is well: No manager can be reached."
    assert record.exc_info is None


@pytest.mark.parametrize("path", ["/v2", "/v2/leases", "/v1x", "/nothing", "/v1/plugins", "/v1/nothing", "/v1/leases/"])
def test_other_urls_lead_nowhere(shared_api: Api, path: str) -> None:
    for version in ("1.0", "1.1", "1.2", "1.3", "1.4"):
        assert shared_api.using("nobody at all", version).get(path).status_code == 401
        result = shared_api.using(version=version).get(path)
        assert result.status_code == 404
        assert result.headers["content-type"] == "application/json"
        assert result.json["error_message"] == "The requested URL was not found on the server."


def test_every_answer_has_an_id_of_its_own(shared_api: Api) -> None:
    seen = set()
    for path in ("/", "/v1", "/v1/leases", "/v1/nothing", "/v1/leases/x", "/healthcheck", "/openapi.json"):
        for user in ("demo", "nobody at all"):
            result = shared_api.using(user).get(path)
            assert REQUEST_ID.fullmatch(result.headers["x-openstack-request-id"])
            seen.add(result.headers["x-openstack-request-id"])
    assert len(seen) == 14


def test_the_id_of_a_request_is_that_of_the_history(api: Api) -> None:
    made = api.post("/v1/leases", api.lease_body(), headers={"X-Openstack-Request-Id": "req-" + "a" * 36})
    request_id = made.headers["x-openstack-request-id"]
    history = api.using(version="1.1").get(f"/v1/leases/{made.json['lease']['id']}/history").json["history"]
    assert history[0]["request_id"] == request_id


def test_an_id_that_the_client_brings_is_in_the_log(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tenure.api")
    theirs = "req-0a0b0c0d-0000-4000-8000-00000000002a"
    answer = api.get("/v1/leases", headers={"X-Openstack-Request-Id": theirs})
    ours = answer.headers["x-openstack-request-id"]
    assert ours != theirs
    assert [record.getMessage() for record in caplog.records] == [f"{ours} {theirs} GET '/v1/leases' -> 200"]
    caplog.clear()
    api.get("/v1/leases", headers={"X-Openstack-Request-Id": "req-1\nforged"})
    assert "forged" not in caplog.text
    assert len(caplog.records) == 1


def test_the_allow_header_lists_exactly_the_methods_of_the_url(shared_api: Api) -> None:
    described = shared_api.get("/openapi.json?version=1.4").json["paths"]
    assert len(described) > 10
    api = shared_api.using("admin", "1.4")
    for path in described:
        url = path.replace("{", "").replace("}", "")
        refused = api.call("TRACE", url)
        assert refused.status_code == 405, (path, refused.status_code)
        allowed = [method.strip() for method in refused.headers["Allow"].split(",")]
        assert len(set(allowed)) == len(allowed)
        assert ("HEAD" in allowed) == ("GET" in allowed) == ("get" in described[path])
        assert {method.upper() for method in described[path]} <= set(allowed)
        head = api.call("HEAD", url)
        assert (head.status_code == 405) == ("HEAD" not in allowed), (path, head.status_code)
        assert head.text == ""
        if head.status_code != 405:
            assert head.status_code == api.get(url).status_code
        options = api.call("OPTIONS", url).headers["Allow"].split(", ")
        assert {*options, "OPTIONS"} == set(allowed)


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        (None, "1.0"),
        ("reservation 1.0", "1.0"),
        ("reservation 1.1", "1.1"),
        ("reservation 1.2", "1.2"),
        ("reservation 1.3", "1.3"),
        ("reservation 1.4", "1.4"),
        ("reservation latest", "1.4"),
        ("Reservation LATEST", "1.4"),
        ("compute 2.1", "1.0"),
        ("compute 2.1, reservation 1.1", "1.1"),
        ("", "1.0"),
        ("1.1", "1.0"),
    ],
)
def test_the_version_is_agreed_upon(shared_api: Api, asked: str | None, served: str) -> None:
    headers = {} if asked is None else {"OpenStack-API-Version": asked}
    result = shared_api.get("/v1/leases", headers=headers)
    assert result.status_code == 200
    assert result.headers["OpenStack-API-Version"] == f"reservation {served}"
    assert result.headers["Vary"] == "OpenStack-API-Version"


@pytest.mark.parametrize(
    ("asked", "status"),
    [("1.5", 406), ("2.0", 406), ("9.9", 406), ("1." + "9" * 5000, 406)]
    + [(bad, 400) for bad in ("x", "", "1", "0.9", "01.0", "1.00", "1.0.0", "1.0 1.1", "-1.0", "1.\u0661")],
)
def test_a_version_that_is_not_spoken_is_refused(shared_api: Api, asked: str, status: int) -> None:
    asked = asked.encode().decode("latin-1")
    for method, path in (("GET", "/v1/leases"), ("POST", "/v1/leases"), ("GET", "/v1/nothing")):
        result = shared_api.call(method, path, headers={"OpenStack-API-Version": f"reservation {asked}"})
        assert result.status_code == status
        assert result.json["error"] == result.json["error_code"] == status
        assert "OpenStack-API-Version" not in result.headers
        assert len(result.text) < 500


def test_an_unknown_method_is_refused_with_the_allowed_methods(shared_api: Api) -> None:
    old = shared_api.call("PATCH", "/v1/leases", {})
    assert (old.status_code, old.json["error"]) == (405, 405)
    assert "OpenStack-API-Version" not in old.headers
    new = shared_api.using(version="1.1").call("PATCH", "/v1/leases", {})
    assert (new.status_code, new.json["error_name"]) == (405, "MethodNotAllowed")
    assert new.headers["OpenStack-API-Version"] == "reservation 1.1"
    assert {"GET", "POST"} <= set(new.headers["Allow"].split(", "))
    assert shared_api.call("POST", "/", {}).status_code == 405


def test_head_is_get_without_a_body(shared_api: Api) -> None:
    for path in ("/", "/v1/leases", "/v1/leases/x", "/healthcheck"):
        head, get = shared_api.call("HEAD", path), shared_api.get(path)
        assert head.text == ""
        assert (head.status_code, head.headers["content-length"]) == (get.status_code, get.headers["content-length"])
    assert shared_api.using("nobody at all").call("HEAD", "/v1/leases").status_code == 401


def test_any_accept_header_or_none_gets_json(shared_api: Api) -> None:
    for accept in ("text/html", "*/*", "", "nonsense"):
        result = shared_api.get("/v1/leases", headers={"Accept": accept})
        assert (result.status_code, result.headers["content-type"]) == (200, "application/json")


def test_the_description_names_the_release_of_the_server(shared_api: Api) -> None:
    assert shared_api.get("/openapi.json").json["info"]["x-server-version"] == metadata.version("tenure")
