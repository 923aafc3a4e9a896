"""The program itself, as its users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tenureclient.testing import FakeServer

PROGRAM = Path(sys.executable).with_name("tenure")
TIMEOUT = 60


def run(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    return subprocess.run(
        [str(PROGRAM), *arguments],
        env={**kept, "TZ": "Europe/Berlin", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@pytest.fixture
def live() -> FakeServer:
    """A server whose clock starts at the present, as the program uses the real time."""
    return FakeServer()


def test_a_lease_from_beginning_to_end(live: FakeServer) -> None:
    with live as server:
        server.add_host("c1")
        where = server.environment()
        made = run(where, "lease", "create", "bio", "--hosts", "1", "--for", "2h", "--wait", "-f", "json")
        assert made.returncode == 0, made.stderr
        assert json.loads(made.stdout)["status"] == "ACTIVE"
        assert "Lease bio: ACTIVE" in made.stderr
        refused = run(where, "lease", "create", "other", "--hosts", "1")
        assert refused.returncode == 1
        assert refused.stdout == ""
        assert "of those, free for the whole period  0" in refused.stderr
        listed = run(where, "lease", "list").stdout
        assert " CET " in listed or " CEST " in listed


def test_a_cloud_from_a_file(live: FakeServer, tmp_path: Path) -> None:
    with live as server:
        server.add_host("c1")
        clouds = tmp_path / "clouds.yaml"
        auth = {"endpoint": server.url, "token": server.token}
        cloud = {"auth_type": "admin_token", "auth": auth}
        clouds.write_text(json.dumps({"clouds": {"lab": cloud}}))  # JSON is YAML
        where = {"OS_CLIENT_CONFIG_FILE": str(clouds)}
        listed = run(where, "--os-cloud", "lab", "host", "list", "-f", "value", "-c", "hypervisor_hostname")
        assert (listed.returncode, listed.stdout) == (0, "c1\n"), listed.stderr


def test_an_address_and_a_token_on_the_command_line(live: FakeServer) -> None:
    with live as server:
        where = ("--os-endpoint", server.url, "--os-token", server.token)
        listed = run({}, *where, "lease", "list", "-f", "json")
        assert (listed.returncode, json.loads(listed.stdout)) == (0, []), listed.stderr


def test_another_address_of_the_service_in_the_cloud(live: FakeServer, tmp_path: Path) -> None:
    with live as server:
        clouds = tmp_path / "clouds.yaml"
        cloud = {
            "auth_type": "admin_token",
            "auth": {"endpoint": "http://127.0.0.1:9/", "token": server.token},
            "reservation_endpoint_override": server.url,
        }
        clouds.write_text(json.dumps({"clouds": {"lab": cloud}}))
        listed = run({"OS_CLIENT_CONFIG_FILE": str(clouds), "OS_CLOUD": "lab"}, "lease", "list", "-f", "json")
        assert (listed.returncode, listed.stdout) == (0, "[]\n"), listed.stderr


def test_without_a_command_it_prints_the_help() -> None:
    shown = run({})
    assert shown.returncode == 0
    assert "lease create" in shown.stdout
    assert run({}, "--version").stdout.startswith("tenure ")


def test_without_a_cloud_the_error_is_readable() -> None:
    refused = run({}, "lease", "list")
    assert refused.returncode == 1
    assert "auth" in refused.stderr
    assert "Traceback" not in refused.stderr
