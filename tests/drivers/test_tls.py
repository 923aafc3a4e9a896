"""The driver of OpenStack clouds over TLS: which certificates it accepts, and its errors where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.config import new_config, read_config
from tenure.deployment import open_driver
from tenure.drivers.contract import CloudBusy, drivers_by_region
from tenure.drivers.openstack.http import connect
from tests.drivers.rigs import HOST, command_for, options_of, registered
from tests.support.certificates import ELSEWHERE, Authority, terminating_tls
from tests.support.openstack import OWNER, PASSWORD, FakeOpenStack
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long


@pytest.fixture
def secure(cloud: FakeOpenStack, authority: Authority) -> Iterator[FakeOpenStack]:
    """The cloud behind TLS: Keystone and every endpoint of the catalogue."""
    with terminating_tls(cloud.port, authority.certify()) as proxy:
        cloud.name_address(proxy.url)
        yield cloud


@pytest.fixture
def elsewhere(cloud: FakeOpenStack, authority: Authority) -> Iterator[FakeOpenStack]:
    """The cloud behind TLS, with a certificate for another host."""
    with terminating_tls(cloud.port, authority.certify(ELSEWHERE)) as proxy:
        cloud.name_address(proxy.url)
        yield cloud


def test_a_lease_starts_and_ends_where_the_authority_is_known(secure: FakeOpenStack, authority: Authority):
    with connect(options_of(secure, cafile=str(authority.cafile))) as driver:
        hosts = registered(driver, secure, 2)
        driver.ensure_started(command_for(*hosts))
        group = secure.aggregate("r-1")
        assert group is not None
        assert len(group.hosts) == 2
        assert secure.boot(group.hosts[0], OWNER, "r-1") is not None
        wait_for("the end of the reservation", lambda: driver.ensure_ended(command_for(*hosts)).done)
    assert secure.aggregate("r-1") is None
    assert secure.servers == {}
    assert {seen.service for seen in secure.seen} >= {"identity", "compute", "placement"}


def test_an_unknown_authority_is_refused_and_named(secure: FakeOpenStack, stranger: Authority):
    options = options_of(secure, cafile=str(stranger.cafile))
    refused = r"Keystone's certificate is not accepted: .*issuer certificate"
    with connect(options) as driver, pytest.raises(CloudBusy, match=refused) as caught:
        driver.check(HOST)
    assert PASSWORD not in str(caught.value)
    assert secure.seen == []


def test_without_a_file_the_authorities_of_the_system_count(secure: FakeOpenStack):
    with connect(options_of(secure)) as driver, pytest.raises(CloudBusy, match="certificate is not accepted"):
        driver.check(HOST)
    assert secure.seen == []


def test_a_certificate_for_another_host_is_refused_and_named(elsewhere: FakeOpenStack, authority: Authority):
    options = options_of(elsewhere, cafile=str(authority.cafile))
    refused = r"Keystone's certificate is not accepted: .*127\.0\.0\.1"
    with connect(options) as driver, pytest.raises(CloudBusy, match=refused):
        driver.check(HOST)
    assert elsewhere.seen == []


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
@pytest.mark.parametrize("server", ["secure", "elsewhere"])
def test_without_checks_every_certificate_is_accepted(
    server: str, request: pytest.FixtureRequest, stranger: Authority, monkeypatch: pytest.MonkeyPatch
):
    """Also where a file is named, and where the environment names authorities for ``requests``."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(stranger.cafile))
    cloud: FakeOpenStack = request.getfixturevalue(server)
    with connect(options_of(cloud, insecure=True, cafile=str(stranger.cafile))) as driver:
        assert len(driver.check(HOST)) == 6


def test_a_service_beside_keystone_is_named_by_its_own_certificate(
    cloud: FakeOpenStack, authority: Authority, stranger: Authority
):
    """Keystone's certificate is good, Nova's is not."""
    with (
        terminating_tls(cloud.port, authority.certify()) as good,
        terminating_tls(cloud.port, stranger.certify()) as bad,
    ):
        cloud.name_address(good.url)
        cloud.compute_url = f"{bad.url}/compute/v2.1"
        with connect(options_of(cloud, cafile=str(authority.cafile))) as driver:
            with pytest.raises(CloudBusy, match="Nova's certificate is not accepted"):
                driver.held(HOST)
            # It is worth another try: where an operator mends the certificate, no manager is restarted.
            bad.show(authority.certify())
            assert list(driver.held(HOST)) == []


def test_a_file_that_is_not_there_is_named(secure: FakeOpenStack, tmp_path: Path):
    missing = tmp_path / "missing.pem"
    options = options_of(secure, cafile=str(missing))
    with connect(options) as driver, pytest.raises(CloudBusy, match=f"Keystone cannot be used: .*{missing}"):
        driver.check(HOST)


@pytest.mark.parametrize("known", [True, False], ids=["its own", "that of all"])
def test_a_region_may_have_an_authority_of_its_own(
    cloud: FakeOpenStack, authority: Authority, stranger: Authority, tmp_path: Path, known: bool
):
    """The authority of the first region is named for all; another one has certified the second region."""
    own = f"cafile = {stranger.cafile}\n" if known else ""
    with (
        FakeOpenStack(hosts=2) as southern,
        terminating_tls(cloud.port, authority.certify()) as north,
        terminating_tls(southern.port, stranger.certify()) as south,
    ):
        cloud.name_address(north.url)
        southern.name_address(south.url)
        config = tmp_path / "tenure.conf"
        config.write_text(
            "[DEFAULT]\ndriver = openstack\nregions = north, south\n"
            f"[service_auth]\npassword = {PASSWORD}\ncafile = {authority.cafile}\n"
            f"[region:north]\nauth_url = {north.url}/identity\nos_region_name = r1\n"
            f"[region:south]\nauth_url = {south.url}/identity\nos_region_name = r1\n{own}"
        )
        conf = new_config()
        read_config(conf, [], files=[config], prog="test")
        parts = drivers_by_region(open_driver(conf), HOST)
        assert len(parts["north"].check(HOST)) == 6
        if known:
            assert len(parts["south"].check(HOST)) == 2
        else:
            with pytest.raises(CloudBusy, match="Keystone's certificate is not accepted"):
                parts["south"].check(HOST)
            assert southern.seen == []
