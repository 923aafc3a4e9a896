"""Servers that are booked at Nova's own address for later: shown as RESERVED, and made at the start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from tests.cmd.test_small_openstack import COMPUTE, FLAVOR, IMAGE, ask
from tests.support.standalone import Standalone, standalone
from tests.support.waiting import wait_for

SERVERS = f"{COMPUTE}/servers"
NEW = {"OpenStack-API-Version": "compute 2.90"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A service all of whose hosts are set aside: none is open to a server without a lease."""
    with standalone(tmp_path_factory.mktemp("booked") / "data", hosts=2) as service:
        yield service


@pytest.fixture(autouse=True)
def nothing_is_left(service: Standalone) -> Iterator[None]:
    yield
    for server in listed(service, "?all_tenants=1", user="admin"):
        assert ask(service, "DELETE", f"{SERVERS}/{server['id']}", user="admin")[0] == 204


def boot(service: Standalone, name: str, *, hours: float = 24, flavor: str = FLAVOR, **more: Any) -> tuple[int, Any]:
    """Boot a server for a lease of an hour that starts in so many hours."""
    start = datetime.now(UTC) + timedelta(hours=hours)
    dates = {
        "start": f"{start:%Y-%m-%d %H:%M}" if hours else "now",
        "end": f"{start + timedelta(hours=1):%Y-%m-%d %H:%M}",
    }
    hints = {"reserved": "True", "lease_params": json.dumps({"name": f"lease of {name}", **dates})}
    server = {"name": name, "flavorRef": flavor, "imageRef": IMAGE, "user_data": "c2VjcmV0", **more}
    return ask(service, "POST", SERVERS, {"server": server, "os:scheduler_hints": hints}, named=NEW)


def listed(service: Standalone, query: str = "", *, user: str = "demo", named: Any = NEW) -> list[dict[str, Any]]:
    status, answer = ask(service, "GET", f"{SERVERS}/detail{query}", user=user, named=named)
    assert status == 200, answer
    servers: list[dict[str, Any]] = answer["servers"]
    return servers


def shown(service: Standalone, server_id: str, *, user: str = "demo") -> dict[str, Any]:
    status, answer = ask(service, "GET", f"{SERVERS}/{server_id}", user=user, named=NEW)
    assert status == 200, answer
    server: dict[str, Any] = answer["server"]
    return server


def test_a_server_for_later_is_shown_as_reserved(service: Standalone):
    status, answer = boot(service, "web", metadata={"by": "me"})
    assert status == 202, answer
    server_id = answer["server"]["id"]
    for user, query in (("demo", ""), ("demo", "?status=RESERVED"), ("demo", "?name=^we"), ("admin", "?all_tenants=1")):
        [server] = listed(service, query, user=user)
        assert (server["id"], server["name"], server["status"]) == (server_id, "web", "RESERVED")
    for query in ("?status=ACTIVE", "?name=^x", "?host=node-1", "?changes-since=2020-01-01T00:00:00Z", "?flavor=4"):
        assert listed(service, query, user="admin" if "host" in query else "demo") == []
    assert listed(service, user="admin") == []  # of the administrator's own project
    found = shown(service, server_id)
    assert (found["OS-EXT-STS:power_state"], found["OS-EXT-STS:task_state"]) == (0, None)
    assert found["flavor"]["original_name"] == "m1.tiny"
    plain = ask(service, "GET", SERVERS, named=NEW)[1]["servers"]
    assert [server.keys() for server in plain] == [{"id", "name", "links"}]
    assert listed(service, named={**NEW, "X-Tenure-Plain": "true"}) == []


def test_a_server_can_be_renamed_and_given_up(service: Standalone):
    server_id = boot(service, "web")[1]["server"]["id"]
    address = f"{SERVERS}/{server_id}"
    assert ask(service, "PUT", address, {"server": {"name": "front"}}, named=NEW)[1]["server"]["name"] == "front"
    assert shown(service, server_id)["name"] == "front"
    assert ask(service, "GET", f"{address}/os-interface", named=NEW) == (200, {"interfaceAttachments": []})
    assert ask(service, "POST", f"{address}/action", {"os-stop": None}, named=NEW)[0] == 409
    assert ask(service, "DELETE", address)[0] == 204
    assert ask(service, "GET", address)[0] == 404
    assert listed(service) == []


def test_a_server_is_made_at_the_start_and_known_by_both_ids(service: Standalone):
    """Though no host is open to servers without a lease."""
    status, answer = boot(service, "now", hours=0)
    assert status == 202, answer
    reserved_id = answer["server"]["id"]
    wait_for("the server", lambda: shown(service, reserved_id)["status"] == "ACTIVE")
    made = shown(service, reserved_id)
    assert made["id"] != reserved_id
    assert [server["id"] for server in listed(service)] == [made["id"]]
    assert shown(service, made["id"])["name"] == "now"
    assert ask(service, "POST", f"{SERVERS}/{reserved_id}/action", {"os-stop": None}, named=NEW)[0] == 202
    assert ask(service, "DELETE", f"{SERVERS}/{reserved_id}", named=NEW)[0] == 204
    wait_for("the end of the server", lambda: listed(service) == [])


def test_minimum_and_maximum_make_one_lease(service: Standalone):
    status, answer = boot(service, "many", min_count=2, max_count=5)
    assert status == 202, answer
    servers = listed(service)
    assert sorted(server["name"] for server in servers) == [f"many-{number}" for number in range(1, 6)]
    assert len({server["metadata"]["tenure:lease"] for server in servers}) == 1
    assert ask(service, "DELETE", f"{SERVERS}/{servers[0]['id']}")[0] == 204
    assert len(listed(service)) == 4


def test_pages_of_reserved_servers_have_each_once(service: Standalone):
    boot(service, "many", min_count=5)
    seen, query = [], "?limit=2"
    while query:
        status, answer = ask(service, "GET", f"{SERVERS}/detail{query}", named=NEW)
        assert status == 200
        seen += [server["name"] for server in answer["servers"]]
        links = answer.get("servers_links")
        query = f"?{links[0]['href'].partition('?')[2]}" if links else ""
    assert sorted(seen) == [f"many-{number}" for number in range(1, 6)]


def test_boots_at_the_same_time_are_limited_by_the_ledger_only(service: Standalone):
    """Two hosts have 128 processors: sixteen servers of 8 fit on them."""
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(partial(boot, service, flavor="5"), [f"web-{number}" for number in range(20)]))
    refused = [answer for status, answer in answers if status != 202]
    assert {status for status, _ in answers} <= {202, 409}
    room = len(listed(service))
    assert (len(refused), room) == (20 - room, room)
    assert all("Not enough" in answer["conflictingRequest"]["message"] for answer in refused)


def test_what_nova_or_the_ledger_refuses_is_not_booked(service: Standalone):
    assert boot(service, "web", flavor="none")[0] == 404
    assert boot(service, "many", min_count=100, max_count=100, flavor="5")[0] == 409
    assert listed(service) == []
