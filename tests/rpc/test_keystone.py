"""The answers to callers if Keystone does not answer, or cannot be trusted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import TestClient
from requests.adapters import HTTPAdapter

from tenure.config import new_config, read_config
from tenure.deployment import open_api
from tests.support.certificates import Authority, terminating_tls
from tests.support.deployment import Options, free_port, write_config
from tests.support.openstack import FakeOpenStack

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


def client_of(folder: Path, address: str, **more: object) -> TestClient:
    """A client of an API whose Keystone is at this URL."""
    account = {"auth_type": "password", "username": "tenure", "password": "secret", "project_name": "service"}
    domains = {"user_domain_name": "Default", "project_domain_name": "Default"}
    keystone = {"auth_url": address, "www_authenticate_uri": address, **account, **domains, **more}
    options: Options = {"DEFAULT": {"transport_url": "fake://"}, "keystone_authtoken": keystone}
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
def test_silent_keystone_is_unavailable(tmp_path: Path, waits: list[float]):
    """It is still silent when its caller has got an answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert_away(client_of(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}/v3"), waits)


@pytest.mark.slow
def test_keystone_without_a_listener_is_unavailable(tmp_path: Path, waits: list[float]):
    assert_away(client_of(tmp_path, f"http://127.0.0.1:{free_port()}/v3"), waits)


# --- over TLS


@dataclass(frozen=True)
class Certified:
    """A Keystone behind TLS, and the CA that a client must trust."""

    cloud: FakeOpenStack
    authority: Authority
    stranger: Authority

    def ask(self, folder: Path, **options: object) -> int:
        """Return the status for a request with a good token that needs no manager: 404, as there is no such page."""
        client = client_of(folder, f"{self.cloud.url}/identity/v3", **options)
        token = self.cloud.issue("user-1", "project-1", ("member", "reader"))
        return int(client.simulate_get("/v2", headers={"X-Auth-Token": token}).status_code)


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[Certified]:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    with FakeOpenStack(hosts=0) as cloud, terminating_tls(cloud.port, authority.certify()) as proxy:
        cloud.name_address(proxy.url)
        yield Certified(cloud, authority, stranger)


def checked_tokens(cloud: FakeOpenStack) -> int:
    return sum((seen.method, seen.path) == ("GET", "/v3/auth/tokens") for seen in cloud.seen)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_a_keystone_with_a_known_certificate_is_asked(certified: Certified, tmp_path: Path):
    assert certified.ask(tmp_path, cafile=certified.authority.cafile) == 404
    assert certified.ask(tmp_path, cafile=certified.stranger.cafile, insecure="true") == 404
    assert checked_tokens(certified.cloud) == 2
    assert certified.cloud.surprises == []


@pytest.mark.long
@pytest.mark.parametrize("named", [True, False], ids=["another authority", "those of the system"])
def test_keystone_with_an_unknown_certificate_is_unavailable(
    certified: Certified, tmp_path: Path, caplog: pytest.LogCaptureFixture, named: bool
):
    """The log says why, and no password and no token has gone out."""
    options = {"cafile": certified.stranger.cafile} if named else {}
    assert certified.ask(tmp_path, **options) == 503
    assert "certificate verify failed" in caplog.text
    assert certified.cloud.seen == []
