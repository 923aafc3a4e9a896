"""Our own clients against an API behind TLS: accepted certificates, and errors about others."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token
from tenureclient.client import Client
from tenureclient.errors import ConnectionFailed

from tests.support.certificates import ELSEWHERE, Authority, terminating_tls
from tests.support.forking import run_forked
from tests.support.standalone import Standalone, standalone

pytestmark = pytest.mark.long

PROGRAMS = (["tenure"], ["openstack", "reservation"])


@dataclass(frozen=True)
class Secured:
    """An API behind TLS, at an address where it has a good certificate and at another with one for another host."""

    service: Standalone
    authority: Authority
    stranger: Authority
    url: str
    elsewhere: str
    folder: Path

    def run(
        self, program: list[str], *options: str, url: str | None = None, **settings: object
    ) -> subprocess.CompletedProcess[str]:
        """List the hosts, as a cloud of ``clouds.yaml`` with these settings is reached."""
        auth = {"endpoint": url or self.url, "token": self.service.token("admin")}
        cloud = {"auth_type": "admin_token", "auth": auth, **settings}
        if program[0] == "openstack":
            cloud["reservation_endpoint_override"] = url or self.url
        clouds = self.folder / "clouds.yaml"
        clouds.write_text(json.dumps({"clouds": {"lab": cloud}}))  # JSON is YAML
        environ = {name: value for name, value in self.service.environment("lab").items() if "CA_BUNDLE" not in name}
        environ |= {"OS_CLIENT_CONFIG_FILE": str(clouds), "OS_RESERVATION_CLIENT": "tenure"}
        words = [*program[1:], "host", "list", "-f", "json"]
        return run_forked(program[0], "--os-cloud", "lab", *options, *words, env=environ)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority, stranger = Authority(folder), Authority(folder, "stranger")
    with standalone(folder / "data") as service:
        port = urlsplit(service.url).port
        assert port is not None
        with (
            terminating_tls(port, authority.certify()) as proxy,
            terminating_tls(port, authority.certify(ELSEWHERE)) as elsewhere,
        ):
            yield Secured(service, authority, stranger, f"{proxy.url}/v1", f"{elsewhere.url}/v1", folder)


def assert_lists(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 5


def assert_refuses(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert done.returncode == 1, done.stdout
    assert "certificate verify failed" in done.stderr
    assert why in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_a_known_authority_is_trusted(secured: Secured, program: list[str]):
    """Named on the command line, and named in the file of clouds."""
    assert_lists(secured.run(program, "--os-cacert", str(secured.authority.cafile)))
    assert_lists(secured.run(program, cacert=str(secured.authority.cafile)))


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_an_unknown_authority_is_refused(secured: Secured, program: list[str]):
    assert_refuses(secured.run(program, "--os-cacert", str(secured.stranger.cafile)), "issuer certificate")
    assert_refuses(secured.run(program), "issuer certificate")


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_a_certificate_for_another_host_is_refused(secured: Secured, program: list[str]):
    done = secured.run(program, "--os-cacert", str(secured.authority.cafile), url=secured.elsewhere)
    assert_refuses(done, "127.0.0.1")


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_without_checks_every_certificate_is_accepted(secured: Secured, program: list[str]):
    assert_lists(secured.run(program, "--insecure"))
    assert_lists(secured.run(program, "--insecure", url=secured.elsewhere))
    assert_lists(secured.run(program, verify=False))


def test_the_library_verifies_certificates_as_its_session_does(secured: Secured):
    auth = Token(secured.url, secured.service.token("admin"))
    trusting = Client(Session(auth, verify=str(secured.authority.cafile)), endpoint_override=secured.url)
    assert len(list(trusting.hosts.list())) == 5
    wary = Client(Session(auth, verify=str(secured.stranger.cafile)), endpoint_override=secured.url)
    with pytest.raises(ConnectionFailed, match="certificate verify failed"):
        list(wary.hosts.list())
