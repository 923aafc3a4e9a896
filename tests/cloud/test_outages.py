"""Services of the cloud that are down, slow or lose answers while leases start and end; and parts of ours that are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from keystoneauth1.session import Session

from tests.support.cloud import Cloud
from tests.support.interception import Fault, Interception, interception
from tests.support.seeded import seeded_hosts
from tests.support.site import FREE_POOL, Lease, Site, answered, open_site
from tests.support.waiting import wait_for

#: So that a test need not wait for the time-outs of production.
REQUEST_SECONDS = 6
VERB_SECONDS = 20
HOSTS = 2


@dataclass(frozen=True)
class Rig:
    """A deployment that reaches its cloud through servers that fail on demand."""

    site: Site
    between: Interception
    hosts: tuple[str, ...]


@pytest.fixture(scope="module")
def far(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("far")
    with seeded_hosts(HOSTS) as names, interception(cloud) as between:
        options = {
            **between.options,
            "cloud": {"request_timeout": REQUEST_SECONDS, "verb_timeout": VERB_SECONDS},
            "manager": {"reconcile_interval": 3600, "max_attempts": 20},
            "physical:host": {"enable_polling_monitor": "false"},
        }
        with open_site(folder, cloud, options=options) as site:
            site.register(*names)
            yield Rig(site, between, tuple(names))


@pytest.fixture
def rig(far: Rig) -> Iterator[Rig]:
    """All is well and without leases before and after the test."""
    far.between.forget()
    yield far
    far.between.heal()
    manager = far.site.deployment.managers[0]
    if manager.process is None:
        manager.start()
    far.site.deployment.wait_until_well()
    far.site.delete_leases()
    assert set(far.hosts) <= (far.site.nova.members(FREE_POOL) or set())


Failing = Callable[[Interception], None]

#: The failures, and the status reason of the lease.
OUTAGES: dict[str, tuple[Failing, str]] = {
    "nova answers 500": (lambda between: between.compute.fail(Fault(status=500)), "Nova answers with HTTP 500."),
    "nova answers 503": (lambda between: between.compute.fail(Fault(status=503)), "Nova answers with HTTP 503."),
    "nova refuses": (lambda between: between.compute.refuse(), "Nova cannot be reached"),
    "nova is slow": (
        lambda between: between.compute.fail(Fault(delay=REQUEST_SECONDS + 1)),
        "Nova did not answer in time",
    ),
}


def _long(cases: Iterable[str], *, but: str) -> list[Any]:
    """Return the cases, all marked as long except for one."""
    return [case if case == but else pytest.param(case, marks=pytest.mark.long) for case in cases]


@pytest.mark.parametrize("outage", _long(OUTAGES, but="nova answers 503"))
def test_nova_is_away_at_the_start_and_at_the_end(rig: Rig, demo: Session, outage: str):
    begin, reason = OUTAGES[outage]
    begin(rig.between)
    lease = rig.site.book(demo)
    wait_until_reason(lease, "STARTING", reason)
    rig.between.heal()
    lease.wait("ACTIVE")
    (host,) = lease.hosts()
    assert lease.show()["status_reason"] is None
    assert rig.site.nova.members(lease.reservation) == {host}
    assert host not in (rig.site.nova.members(FREE_POOL) or set())

    begin(rig.between)
    lease.delete()
    wait_until_reason(lease, "DELETING", reason)
    rig.between.heal()
    wait_until_gone(lease)
    assert rig.site.nova.members(lease.reservation) is None


#: The same of Keystone.
WITHOUT_KEYSTONE: dict[str, tuple[Failing, str]] = {
    "answers 503": (lambda between: between.identity.fail(Fault(status=503)), "Keystone answers with HTTP 503."),
    "refuses": (lambda between: between.identity.refuse(), "Keystone cannot be reached"),
    "is slow": (
        lambda between: between.identity.fail(Fault(delay=REQUEST_SECONDS + 1)),
        "Keystone did not answer in time",
    ),
}


@pytest.mark.parametrize("outage", _long(WITHOUT_KEYSTONE, but="refuses"))
def test_keystone_is_away_when_a_manager_needs_a_token(rig: Rig, demo: Session, outage: str):
    """A manager with a token works on; a manager that has just started has none."""
    begin, reason = WITHOUT_KEYSTONE[outage]
    lease = rig.site.book(demo)
    lease.wait("ACTIVE")
    begin(rig.between)
    lease.delete()
    wait_until_gone(lease)

    manager = rig.site.deployment.managers[0]
    manager.kill()
    manager.start()
    rig.site.deployment.wait_until_well()
    lease = rig.site.book(demo)
    wait_until_reason(lease, "STARTING", reason)
    rig.between.heal()
    lease.wait("ACTIVE")
    assert rig.site.nova.members(lease.reservation) == lease.hosts()


@pytest.mark.long
@pytest.mark.parametrize("outage", ["answers 503", "refuses", "is slow"])
def test_hosts_start_and_end_without_placement(rig: Rig, demo: Session, outage: str):
    if outage == "refuses":
        rig.between.placement.refuse()
    else:
        rig.between.placement.fail(Fault(status=503) if outage == "answers 503" else Fault(delay=REQUEST_SECONDS + 1))
    lease = rig.site.book(demo)
    lease.wait("ACTIVE")
    assert rig.site.nova.members(lease.reservation) == lease.hosts()
    lease.delete()
    wait_until_gone(lease)


def test_the_answers_to_all_writing_calls_are_lost_once(rig: Rig, demo: Session):
    """Effects whose answers were lost are found, and not made again."""
    lost: set[tuple[str, str, bytes]] = set()

    def for_the_first_time(method: str, path: str, body: bytes) -> bool:
        if method == "GET" or (method, path, body) in lost:
            return False
        lost.add((method, path, body))
        return True

    rig.between.compute.fail(Fault(lose_answer=True, concerns=for_the_first_time))
    lease = rig.site.book(demo)
    lease.wait("ACTIVE", seconds=120)
    (host,) = lease.hosts()
    assert rig.site.nova.members(lease.reservation) == {host}
    assert host not in (rig.site.nova.members(FREE_POOL) or set())
    assert len(lost) >= 4, lost  # the aggregate, its metadata, the host into it, the host out of the pool
    lease.delete()
    wait_until_gone(lease, seconds=120)
    assert len(lost) >= 8, lost  # closed, the host into the pool, the host out of it, the aggregate
    made = [
        request for request in rig.between.compute.seen() if request.writes and request.path.endswith("/os-aggregates")
    ]
    assert [request.status for request in made] == [200]


@pytest.mark.parametrize("failing", _long(["compute", "placement"], but="placement"))
def test_a_host_is_not_registered_while_a_service_is_away(rig: Rig, failing: str):
    """The request is refused at once, and succeeds when the service is back."""
    (host,) = answered(rig.site.admin.get(f"/os-hosts?hypervisor_hostname={rig.hosts[0]}"), 200)["hosts"][:1]
    name = host["hypervisor_hostname"]
    answered(rig.site.admin.delete(f"/os-hosts/{host['id']}"), 204)
    getattr(rig.between, failing).fail(Fault(status=503))
    answer = rig.site.admin.post("/os-hosts", json={"name": name})
    assert answer.status_code == 503, answer.text
    assert "made to fail" in answer.json()["error_message"]
    assert name not in {host["hypervisor_hostname"] for host in answered(rig.site.admin.get("/os-hosts"), 200)["hosts"]}
    rig.between.heal()
    assert rig.site.register(name)


@pytest.mark.long
def test_a_booking_for_later_needs_no_cloud(rig: Rig, demo: Session):
    """A booking is a matter of the ledger: it makes no call, and works while every service is away."""
    rig.site.api(demo).get("/leases")  # the token of the user is cached now
    rig.between.forget()
    for proxy in rig.between.all:
        proxy.fail(Fault(status=503))
    lease = rig.site.book(demo, start="2040-01-01T00:00:00Z", end_date="2040-01-01T01:00:00Z")
    assert lease.show()["status"] == "PENDING"
    lease.delete()
    rig.between.heal()
    assert [request for proxy in rig.between.all for request in proxy.seen()] == []


@pytest.mark.long
def test_no_manager_is_there(rig: Rig, demo: Session):
    rig.site.deployment.managers[0].kill()
    answer = rig.site.api(demo).get("/leases")
    assert answer.status_code == 503, answer.text
    assert "later" in answer.json()["error_message"]


@pytest.mark.long
def test_keystone_is_away_for_an_unknown_user(rig: Rig, cloud: Cloud):
    """The token cannot be validated: the answer is 503, neither 401 nor 500."""
    stranger = cloud.session("other")
    stranger.get_token()
    rig.between.identity.fail(Fault(status=503))
    assert rig.site.api(stranger).get("/leases").status_code == 503
    rig.between.heal()
    wait_for("Keystone to be asked again", lambda: rig.site.api(stranger).get("/leases").status_code == 200)


def wait_until_reason(lease: Lease, status: str, reason: str) -> None:
    def has_reason() -> bool:
        found = lease.show()
        return found["status"] == status and reason in (found["status_reason"] or "")

    wait_for(f"{status} because of {reason!r}", has_reason)


def wait_until_gone(lease: Lease, *, seconds: float = 60) -> None:
    def gone() -> Any:
        return lease.api.get(f"/leases/{lease.id}").status_code == 404

    wait_for(f"the end of lease {lease.id}", gone, seconds=seconds)
