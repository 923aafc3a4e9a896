"""Servers that are booted for a lease: our filter before a small Nova, and the real API, over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from tenurenova.ledger import Ledger
from tenurenova.middleware import filter_factory

from tests.api.rig import USERS, Api, open_api
from tests.api.test_reserved_servers import LARGE, PROJECT, TINY, found, pass_hours, server, status


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Killed(BaseException):
    """Nova's API ends where it is."""


class Nova:
    """A Nova that makes servers in the simulated cloud, behind our filter."""

    def __init__(self, api: Api, endpoint: str, folder: Path) -> None:
        self._api = api
        self._options = {"endpoint": endpoint, "hold_seconds": "60", "lock_folder": str(folder)}
        self._options["make_servers"] = "at_once"
        self.be_filtered()
        #: Called when a server is made, before Nova answers.
        self.made: Callable[[str], None] = lambda _server_id: None

    def be_filtered(self, **more: str) -> None:
        self._filtered = filter_factory({}, **self._options, **more)(self)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        requested = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))["server"]
        world = self._api.world.cloud.world.instances
        server_id = world.boot(PROJECT, requested["flavorRef"], metadata=requested.get("metadata", {}))
        self.made(server_id)
        start_response("202 Accepted", [("Content-Type", "application/json")])
        return [json.dumps({"server": {"id": server_id}}).encode()]

    def boot(self, lease: dict[str, str] | None, *, flavor: str = TINY) -> tuple[int, Any]:
        body: dict[str, Any] = {"server": {"name": "web", "flavorRef": flavor}}
        if lease is not None:
            body["os:scheduler_hints"] = {"reserved": "True", "lease_params": json.dumps(lease)}
        data = json.dumps(body).encode()
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/servers",
            "CONTENT_LENGTH": str(len(data)),
            "wsgi.input": BytesIO(data),
            "HTTP_X_AUTH_TOKEN": USERS["demo"].token,
        }
        said: list[int] = []
        answer = self._filtered(environ, lambda line, _headers: said.append(int(line[:3])))
        return said[0], json.loads(b"".join(answer))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as opened:
        opened.world.cloud.world.add_host("general")
        yield opened.using(version="1.2")


@pytest.fixture
def nova(api: Api, tmp_path: Path) -> Iterator[Nova]:
    with make_server("127.0.0.1", 0, api.app, handler_class=Quiet) as service:
        thread = threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield Nova(api, f"http://127.0.0.1:{service.server_port}", tmp_path / "permits")
        service.shutdown()
        thread.join()


def leases(api: Api) -> list[dict[str, Any]]:
    return list(api.get("/v1/leases").json["leases"])


def servers(api: Api) -> list[str]:
    return [known.id for known in api.world.cloud.world.servers()]


LATER = {"name": "lease1", "start": "2030-01-1 11:00", "end": "2030-1-1 12:00"}


def test_a_server_is_shelved_until_its_lease_starts_and_deleted_at_its_end(api: Api, nova: Nova) -> None:
    code, answer = nova.boot(LATER)
    assert code == 202, answer
    server_id = answer["server"]["id"]
    (lease,) = leases(api)
    assert (lease["name"], lease["status"], lease["reservations"][0]["server_id"]) == ("lease1", "PENDING", server_id)
    assert found(api, server_id).shelved
    assert nova.boot(None)[0] == 202
    pass_hours(api, 1.5)
    assert status(api, lease) == "ACTIVE"
    assert not found(api, server_id).shelved
    assert api.world.cloud.world.host(found(api, server_id).host).belongs_to == "freepool"
    pass_hours(api, 1)
    assert server(api, server_id) is None
    assert len(servers(api)) == 1


def test_without_room_no_server_is_made_and_the_counts_are_named(api: Api, nova: Nova) -> None:
    api.book(start=0, hours=9, reservations=[{**api.lease_body()["reservations"][0], "min": 4, "max": 4}])
    code, answer = nova.boot(LATER, flavor=LARGE)
    assert code == 409
    assert "0" in answer["conflictingRequest"]["message"]
    assert (servers(api), len(leases(api))) == ([], 1)


def test_a_flavor_that_is_not_there_is_a_bad_request(api: Api, nova: Nova) -> None:
    code, answer = nova.boot(LATER, flavor="999")
    assert (code, "flavor" in answer["badRequest"]["message"]) == (400, True)
    assert (servers(api), leases(api)) == ([], [])


def test_a_nova_in_another_region_requests_leases_in_its_region(api: Api, nova: Nova) -> None:
    nova.be_filtered(lease_region="elsewhere")
    code, answer = nova.boot(LATER)
    assert (code, "elsewhere" in answer["badRequest"]["message"]) == (400, True), answer
    assert (servers(api), leases(api)) == ([], [])


def test_a_nova_killed_before_its_answer_leaves_neither_lease_nor_server(
    api: Api, nova: Nova, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without even a word to the reservation service: the filter is gone with it."""

    def kill(_server_id: str) -> None:
        raise Killed

    nova.made = kill
    monkeypatch.setattr(Ledger, "release", lambda _ledger, _held: None)
    with pytest.raises(Killed):
        nova.boot(LATER)
    assert len(servers(api)) == 1
    (lease,) = leases(api)
    assert lease["hold_until"]
    api.world.pass_time(timedelta(minutes=1))
    assert leases(api) == []
    api.world.service.reconciler.run()
    assert servers(api) == []
