"""The fake server itself: what it shows and changes that a running Tenure does not."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
import requests

from conftest import BEGINNING
from tenureclient import NOW, Forbidden, NotFound, ReservationRequest, __version__
from tenureclient.testing import FakeServer

HOUR = timedelta(hours=1)


def get(server: FakeServer, path: str, header: str | None) -> requests.Response:
    """Send a request with this header for the version."""
    headers: Mapping[str, str | bytes] = {"X-Auth-Token": server.token, "OpenStack-API-Version": header or ""}
    return requests.get(server.url + path, headers=headers, timeout=30)


def test_missing_server_is_explained() -> None:
    code = "import sys; sys.modules['tenure'] = None; import tenureclient; import tenureclient.testing"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = imported.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "pip install 'tenure-client[testing]'" in last


def test_the_extra_names_the_server_of_the_same_version() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["testing"] == [f"tenure=={__version__}"]
    assert not [name for name in project["dependencies"] if name.startswith("tenure")]
    assert version("tenure") == __version__


@pytest.mark.parametrize(
    ("versions", "header", "served"),
    [
        (("1.0", "1.1"), "reservation latest", "1.1"),
        (("1.0", "1.1"), "reservation 1.1", "1.1"),
        (("1.0", "1.1"), "compute 2.1, reservation 1.1", "1.1"),
        (("1.0", "1.1"), None, "1.0"),
        (("1.0", "1.1"), "compute latest", "1.0"),
        (("1.0",), "reservation latest", "1.0"),
        (("1.0", "1.1", "1.2"), "reservation latest", "1.2"),
        (("1.0", "1.1", "1.2", "1.3"), "reservation latest", "1.3"),
        (("1.0", "1.1", "1.2", "1.3", "1.4"), "reservation latest", "1.4"),
    ],
)
def test_latest_is_the_newest_known_version(versions: tuple[str, ...], header: str, served: str) -> None:
    with FakeServer(versions=versions) as server:
        answer = get(server, "/leases", header)
        assert (answer.status_code, answer.headers["OpenStack-API-Version"]) == (200, f"reservation {served}")


def test_unknown_version_is_refused() -> None:
    with FakeServer(versions=("1.0", "1.1")) as server:
        refused = get(server, "/leases", "reservation 1.2")
        assert refused.status_code == 406
        assert "Minimum is 1.0 and maximum is 1.1." in refused.json()["error_message"]
        newer = get(server, "/leases", "reservation 7.0")
        assert (newer.status_code, newer.json()) == (
            406,
            {**refused.json(), "error_message": refused.json()["error_message"].replace("1.2", "7.0")},
        )
        assert get(server, "/leases", "reservation x").status_code == 400


def test_events_happen_at_their_times(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    lease = client.leases.create(
        "bio",
        start=BEGINNING + HOUR,
        end=BEGINNING + 2 * HOUR,
        reservations=[ReservationRequest.hosts(1)],
    )
    server.advance(10 * HOUR)
    assert server.now == BEGINNING + 10 * HOUR
    times = {entry.action: entry.at for entry in client.leases.history(lease.id)}
    assert (times["started"], times["ended"]) == (BEGINNING + HOUR, BEGINNING + 2 * HOUR)


def test_own_requests_are_not_recorded(server: FakeServer) -> None:
    host = server.add_host("c1")
    assert (list(server.hosts), server.leases, server.floatingips, server.volume_pools) == (
        [host.id],
        {},
        {},
        {},
    )
    assert server.requests == []
    server.fail_next(503)
    assert list(server.hosts) == [host.id]
    assert get(server, "/leases", None).status_code == 503


def test_planned_lease_moves_off_a_host_that_fails(server: FakeServer) -> None:
    first = server.add_host("c1")
    client = server.client()
    lease = client.leases.create(
        "bio", start=BEGINNING + HOUR, end=BEGINNING + 2 * HOUR, reservations=[ReservationRequest.hosts(1)]
    )
    second = server.add_host("c2")
    server.mark_host("c1", "down")
    assert server.hosts[first.id].health == "down"
    assert [host.id for host in client.leases.hosts(lease.id)] == [second.id]
    server.mark_host("c1", "up")
    assert server.hosts[first.id].health == "well"


def test_lease_gets_the_status_of_the_test(server: FakeServer) -> None:
    server.add_host("c1")
    client = server.client()
    end = BEGINNING + HOUR
    lease = client.leases.create("bio", start=NOW, end=end, reservations=[ReservationRequest.hosts(1)])
    server.set_status(lease.id, "ERROR", "the switch is on fire")
    entry = list(client.leases.history(lease.id))[-1]
    assert (entry.to_status, entry.reason) == ("ERROR", "the switch is on fire")
    with pytest.raises(LookupError):
        server.set_status("nosuch", "ERROR")


def test_unregistered_host_is_registered_by_the_client(server: FakeServer) -> None:
    client = server.client()
    with pytest.raises(NotFound):
        client.hosts.create("c1")
    server.add_hypervisor("c1", vcpus=4)
    assert server.hosts == {}
    assert client.hosts.create("c1").vcpus == 4


def test_token_of_a_member_has_no_more_rights() -> None:
    with FakeServer(roles=("member", "reader")) as server:
        host = server.add_host("c1", properties={"gpu": "a100"})
        assert list(server.hosts) == [host.id]
        with pytest.raises(Forbidden):
            server.client().hosts.get(host.id)
        assert [found.name for found in server.client().properties.list()] == ["gpu"]
