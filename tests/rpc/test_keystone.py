"""What a caller is told where Keystone does not answer."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from falcon.testing import TestClient

from tenure.config import new_config, read_config
from tenure.deployment import open_api
from tests.support.deployment import free_port, write_config

PATIENCE_SECONDS = 10


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


def assert_away(client: TestClient) -> None:
    answers = []
    for version in ("1.0", "1.1"):
        headers = {"X-Auth-Token": "a-token", "OpenStack-API-Version": f"reservation {version}"}
        began = time.monotonic()
        answers.append(client.simulate_get("/v1/leases", headers=headers))
        assert time.monotonic() - began < PATIENCE_SECONDS
    assert [answer.status_code for answer in answers] == [503, 503]
    assert answers[1].json["error_code"] == 503


@pytest.mark.slow
def test_a_keystone_that_takes_connections_and_says_nothing_is_away(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert_away(client_of(tmp_path, silent.getsockname()[1]))


@pytest.mark.slow
def test_a_keystone_where_nobody_listens_is_away(tmp_path: Path):
    assert_away(client_of(tmp_path, free_port()))
