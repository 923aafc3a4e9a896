"""What a caller is told where Keystone does not answer."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import TestClient
from requests.adapters import HTTPAdapter

from tenure.config import new_config, read_config
from tenure.deployment import open_api
from tests.support.deployment import free_port, write_config

#: How long a caller waits at most for a Keystone that says nothing.
LONGEST_SECONDS = 10


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How many seconds each attempt to ask Keystone may last."""
    send, found = HTTPAdapter.send, []

    def note(adapter: HTTPAdapter, *request: Any, **options: Any) -> Any:
        found.append(options["timeout"])
        return send(adapter, *request, **options)

    monkeypatch.setattr(HTTPAdapter, "send", note)
    return found


def client_of(folder: Path, port: int) -> TestClient:
    """An API whose Keystone would be at that port."""
    address = f"http://127.0.0.1:{port}/v3"
    account = {"auth_type": "password", "username": "tenure", "password": "secret", "project_name": "service"}
    domains = {"user_domain_name": "Default", "project_domain_name": "Default"}
    keystone = {"auth_url": address, "www_authenticate_uri": address, **account, **domains}
    options = {"DEFAULT": {"transport_url": "fake://"}, "keystone_authtoken": keystone}
    conf = new_config()
    read_config(conf, [], files=[write_config(folder / "tenure.conf", options)], prog="test")
    return TestClient(open_api(conf))


def assert_away(client: TestClient, waits: list[float]) -> None:
    answers = []
    for version in ("1.0", "1.1"):
        headers = {"X-Auth-Token": "a-token", "OpenStack-API-Version": f"reservation {version}"}
        waits.clear()
        answers.append(client.simulate_get("/v1/leases", headers=headers))
        assert 0 < sum(waits) <= LONGEST_SECONDS
    assert [answer.status_code for answer in answers] == [503, 503]
    assert answers[1].json["error_code"] == 503


@pytest.mark.slow
def test_a_keystone_that_takes_connections_and_says_nothing_is_away(tmp_path: Path, waits: list[float]):
    """It still says nothing when its caller has been told."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert_away(client_of(tmp_path, silent.getsockname()[1]), waits)


@pytest.mark.slow
def test_a_keystone_where_nobody_listens_is_away(tmp_path: Path, waits: list[float]):
    assert_away(client_of(tmp_path, free_port()), waits)
