"""External services and Keystone over TLS: a service with an unknown certificate gets no request."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from oslo_limit import limit

from tenure.config import new_config, read_config
from tenure.deployment import ConfigurationError, open_filters, open_quotas
from tenure.domain.errors import OverQuota, Unavailable
from tenure.domain.request import LeaseChange, LeaseQuery
from tenure.enforcement.external import AWAY
from tenure.services.limits.quotas import Quotas
from tests.support.certificates import ELSEWHERE, Authority, Certificate, Terminator, terminating_tls
from tests.support.credits import Credits, filter_for
from tests.support.engines import deliver_all, rebuild
from tests.support.openstack import FakeOpenStack
from tests.support.openstack.cloud import PASSWORD
from tests.support.world import ADMIN, OWNER, World, open_world

pytestmark = pytest.mark.long

HOUR = timedelta(hours=1)


@pytest.fixture
def proxy(credits: Credits, authority: Authority) -> Iterator[Terminator]:
    """The service of the site behind TLS."""
    port = urlsplit(credits.url).port
    assert port is not None
    with terminating_tls(port, authority.certify()) as proxy:
        yield proxy


def bad_certificate(kind: str, authority: Authority, stranger: Authority) -> Certificate:
    return stranger.certify() if kind == "unknown" else authority.certify(ELSEWHERE)


# --- a service of the site


def test_service_with_a_trusted_certificate_is_asked_and_notified(
    tmp_path: Path, credits: Credits, proxy: Terminator, authority: Authority
):
    external = filter_for(proxy.url, cafile=str(authority.cafile), bearer_token="a secret")
    with open_world(tmp_path, filters={"ExternalServiceFilter": external}) as world:
        lease = world.book(1, start=1, hours=1)
        world.pass_time(3 * HOUR)
        deliver_all(world)
    assert credits.order[lease.id] == ["commit-create", "on-end"]
    assert {call.headers["authorization"] for call in credits.calls} == {"Bearer a secret"}


@pytest.mark.parametrize("kind", ["unknown", "another host's"])
def test_service_with_an_untrusted_certificate_counts_as_unavailable(
    kind: str,
    tmp_path: Path,
    credits: Credits,
    proxy: Terminator,
    authority: Authority,
    stranger: Authority,
    caplog: pytest.LogCaptureFixture,
):
    """Nothing is sent and the reason is logged; notifications follow once the certificate is valid again."""
    external = filter_for(proxy.url, cafile=str(authority.cafile))
    with open_world(tmp_path, filters={"ExternalServiceFilter": external}) as world:
        lease = world.book(1, start=1)
        proxy.show(bad_certificate(kind, authority, stranger))
        with pytest.raises(Unavailable, match=AWAY):
            world.book(1, start=1)
        with pytest.raises(Unavailable):
            world.leases.update(OWNER, lease.id, LeaseChange(ends_at=lease.ends_at + HOUR))
        world.leases.delete(OWNER, lease.id)
        world.engine.settle()
        assert [call.path for call in credits.calls] == ["/v1/check-create"]
        assert len(world.leases.list(ADMIN, LeaseQuery(limit=100)).items) == 0
        assert "certificate verify failed" in caplog.text
        proxy.show(authority.certify())
        world.pass_time(HOUR)
        deliver_all(world)
    assert credits.order[lease.id] == ["commit-create", "on-end"]


def test_system_ca_certificates_are_the_default(tmp_path: Path, credits: Credits, proxy: Terminator):
    filters = {"ExternalServiceFilter": filter_for(proxy.url)}
    with open_world(tmp_path, filters=filters) as world, pytest.raises(Unavailable, match=AWAY):
        world.book(1)
    assert credits.calls == []


@pytest.mark.parametrize("content", [None, "no certificate\n"], ids=["missing", "no certificate"])
def test_manager_does_not_start_with_an_invalid_ca_file(tmp_path: Path, content: str | None):
    file = tmp_path / "authorities.pem"
    if content is not None:
        file.write_text(content)
    conf = new_config()
    conf.set_override("enabled_filters", ["ExternalServiceFilter"], group="enforcement")
    conf.set_override("external_service_base_endpoint", "https://credits.example.org/v1/", group="enforcement")
    conf.set_override("external_service_cafile", str(file), group="enforcement")
    with pytest.raises(ConfigurationError, match=f"external_service_cafile: {file}: .+"):
        open_filters(conf)


# --- limits that Keystone keeps


@pytest.fixture
def keystone() -> Iterator[FakeOpenStack]:
    with FakeOpenStack(hosts=0) as keystone:
        yield keystone


@pytest.fixture
def guarded(keystone: FakeOpenStack, authority: Authority) -> Iterator[Terminator]:
    """Keystone behind TLS."""
    with terminating_tls(keystone.port, authority.certify()) as proxy:
        keystone.name_address(proxy.url)
        yield proxy


def quotas(keystone: FakeOpenStack, folder: Path, monkeypatch: pytest.MonkeyPatch, cafile: Path) -> Quotas:
    """The quotas of a manager that has just been started, and that trusts the authorities of that file."""
    monkeypatch.setattr(limit, "_SDK_CONNECTION", None)
    file = folder / "tenure.conf"
    file.write_text(
        "[quota]\ndriver = unified\ncache_seconds = 0\n"
        f"[service_auth]\nauth_url = {keystone.url}/identity\npassword = {PASSWORD}\ncafile = {cafile}\n"
    )
    conf = new_config()
    read_config(conf, [], files=[file], prog="test")
    return open_quotas(conf)


def test_limits_of_a_trusted_keystone_apply(
    world: World,
    tmp_path: Path,
    keystone: FakeOpenStack,
    guarded: Terminator,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
):
    """The file is that of [service_auth]."""
    keystone.unified_limits.registered = {"leases": 1, "hosts": -1, "hours_of_hosts": -1}
    rebuild(world, quotas=quotas(keystone, tmp_path, monkeypatch, authority.cafile))
    world.book(1)
    with pytest.raises(OverQuota, match="leases: 1 of 1 used"):
        world.book(1)


@pytest.mark.parametrize("file", ["another authority", "missing"])
def test_untrusted_keystone_counts_as_unavailable(
    file: str,
    world: World,
    tmp_path: Path,
    keystone: FakeOpenStack,
    guarded: Terminator,
    stranger: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """Nothing is booked, and the log says why."""
    cafile = stranger.cafile if file == "another authority" else tmp_path / "missing.pem"
    keystone.unified_limits.registered = {"leases": -1, "hosts": -1, "hours_of_hosts": -1}
    rebuild(world, quotas=quotas(keystone, tmp_path, monkeypatch, cafile))
    with pytest.raises(Unavailable, match="The limits of the project cannot be read from Keystone right now"):
        world.book(1)
    assert world.leases.list(OWNER, LeaseQuery(limit=10)).items == ()
    assert ("certificate verify failed" if cafile == stranger.cafile else str(cafile)) in caplog.text
    assert keystone.seen == []
