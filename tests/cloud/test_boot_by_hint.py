"""Servers that are booted at once for a lease, by hints to the real Nova, with our filter before its API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import requests
from keystoneauth1.exceptions import ConnectFailure
from keystoneauth1.session import Session

from tests.cloud.test_clients import runner
from tests.cloud.test_identity import hanging
from tests.cloud.test_servers import is_shelved
from tests.support import hints
from tests.support.cloud import Cloud
from tests.support.commands import document, in_minutes
from tests.support.hints import (
    COMPUTE,
    NOVA_SECONDS,
    compute,
    kill_nova_api,
    later,
    lease_of_planned,
    made_for,
    plain_status,
    stand_in,
    statuses,
)
from tests.support.site import HOSTS, Lease, Server, Site, answered, have_testbed, moment, open_site
from tests.support.waiting import patience, wait_for

#: The last microversions of Nova's at which servers are booted without tags.
COMPUTE_WITHOUT_TAGS = "2.51"
RESERVED = "compute-1"
#: In which Nova has the hosts that are in no other.
ZONE = "nova"
HOLD_SECONDS = 15


@pytest.fixture(scope="module")
def at_once(cloud: Cloud) -> Iterator[None]:
    """Nova has our filter make these servers at once, while the tests of this module run."""
    have_testbed("make-servers", "at_once")
    yield
    have_testbed("make-servers", "at_start")


@pytest.fixture(scope="module")
def looking_often(at_once: None, cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tenure that looks every second for servers of leases that are not there."""
    options = {"manager": {"reconcile_interval": 1}}
    with open_site(tmp_path_factory.mktemp("hints"), cloud, options=options) as site:
        yield site


@pytest.fixture(scope="module")
def demo(looking_often: Site) -> Session:
    """A member of the project ``demo``, whose token is new: Nova keeps the catalogue of one that it has seen before."""
    return looking_often.cloud.session("demo")


@pytest.fixture
def site(looking_often: Site) -> Iterator[Site]:
    looking_often.register(RESERVED)
    yield looking_often
    looking_often.nova.delete_booted()
    looking_often.clear()


def boot(
    site: Site, by: Session, lease: dict[str, str] | str | None, version: str = COMPUTE, /, **more: object
) -> requests.Response:
    """The answer of Nova to a request to boot a server, with hints for a lease; its server goes at the end."""
    answer = hints.boot(site, by, lease, version, **more)
    if answer.status_code == 202:
        site.nova.booted.append(Server(site.nova, answer.json()["server"]["id"]))
    return answer


def servers_of(site: Site, by: Session) -> set[str]:
    return {server["id"] for server in compute(site, by).get("/servers").json()["servers"]}


def lease_of(site: Site, by: Session, server: Server) -> Lease:
    """The lease that the server names in its metadata and in a tag, with the server in it."""
    found = server.show()
    assert found is not None
    marks = found["metadata"]
    lease = Lease(site.api(by, "1.2"), marks["tenure:lease"], marks["tenure:reservation"])
    (reservation,) = lease.show()["reservations"]
    assert (reservation["id"], reservation["server_id"]) == (lease.reservation, server.id)
    assert f"tenure:lease={lease.id}" in found["tags"]
    return lease


def status(site: Site, by: Session, server: Server) -> str:
    """As the account is shown it."""
    return str(answered(compute(site, by).get(f"/servers/{server.id}"), 200)["server"]["status"])


def test_a_server_of_the_command_line_is_shelved_until_its_lease_and_deleted_with_it(site: Site, demo: Session):
    """By the clock; a server booted beside it without hints is left alone."""
    openstack = runner(site, "tenure", "openstack", "--os-compute-api-version", COMPUTE)
    wanted = json.dumps({"name": "lease1", "start": in_minutes(60), "end": in_minutes(120)})
    given = ("--hint", "reserved=True", "--hint", f"lease_params={wanted}")
    common = ("--flavor", "m1.tiny", "--image", "tiny", "--no-network", "-f", "json")
    made = document(openstack("server", "create", "by-hint", *common, *given, by="demo"))
    server = Server(site.nova, made["id"])
    site.nova.booted.append(server)
    assert boot(site, demo, None).status_code == 202
    other = site.nova.booted[-1]
    lease = lease_of(site, demo, server)
    assert lease.wait("PENDING")["name"] == "lease1"
    wait_for("the server to sleep", lambda: is_shelved(server))
    assert (status(site, demo, server), (server.show() or {})["status"]) == ("RESERVED", "RESERVED")
    assert plain_status(server) == "SHELVED_OFFLOADED"  # as Tenure is told
    assert site.nova.members("freepool") == {RESERVED}
    assert lease.show()["status"] == "PENDING"

    start = datetime.now(UTC) + timedelta(seconds=patience(3))
    lease.change(start_date=f"{start:%Y-%m-%dT%H:%M:%S.%fZ}")
    lease.wait("ACTIVE", seconds=NOVA_SECONDS)
    assert datetime.now(UTC) >= start
    assert server.place() == RESERVED
    place = other.place()
    assert place.startswith("compute-")
    assert place != RESERVED
    lease.change(end_date="now")
    lease.wait("TERMINATED")
    server.wait_until_gone()
    assert (status(site, demo, other), other.place()) == ("ACTIVE", place)
    assert not (other.show() or {})["metadata"]


def test_a_lease_from_now_to_a_short_date_is_shelved_at_its_end(site: Site, demo: Session):
    wanted = {"name": "lease1", "start": "now", "end": "2027-12-1 16:07", "at_end": "shelve"}
    answer = boot(site, demo, wanted, availability_zone=ZONE)
    assert answer.status_code == 202, answer.text
    server = site.nova.booted[-1]
    lease = lease_of(site, demo, server)
    assert lease.show()["end_date"] == "2027-12-01T16:07:00Z"
    assert lease.show()["reservations"][0]["availability_zone"] == ZONE
    lease.wait("ACTIVE", seconds=120)
    assert server.place() == RESERVED
    lease.change(end_date="now")
    lease.wait("TERMINATED")
    wait_for("the server to be shelved", lambda: (server.show() or {})["status"] == "SHELVED_OFFLOADED")
    assert status(site, demo, server) == "SHELVED_OFFLOADED"  # and not reserved any more
    assert (server.show() or {})["metadata"] == {}


def test_without_room_no_server_is_made_and_the_reason_is_named(site: Site, demo: Session):
    site.book(demo, on=RESERVED, start=moment(seconds=1800))
    before = servers_of(site, demo)
    refused = boot(site, demo, {"start": "now", "end": moment(seconds=3600)})
    assert refused.status_code == 409, refused.text
    assert "0 have room for the whole period" in refused.json()["conflictingRequest"]["message"]
    assert servers_of(site, demo) == before
    leases = answered(site.api(demo, "1.2").get("/leases"), 200)["leases"]
    assert [lease["name"] for lease in leases] == ["of-a-test"]


def test_a_boot_that_is_not_confirmed_leaves_neither_lease_nor_server(site: Site, cloud: Cloud, demo: Session):
    """Where nova-api is killed before it hears of the confirmation, and where the confirmation is refused."""
    wanted = later()
    before = servers_of(site, demo)
    with stand_in(site, hold_seconds=HOLD_SECONDS) as service, ThreadPoolExecutor(1) as user:
        owner = cloud.session("demo")  # whose catalogue names it
        answer = user.submit(boot, site, owner, wanted, COMPUTE_WITHOUT_TAGS)
        assert service.confirmation_came.wait(NOVA_SECONDS)
        (confirmation,) = service.confirmation["reservations"]
        server = Server(site.nova, confirmation["server_id"])
        site.nova.booted.append(server)
        found = server.show() or {}
        assert (found["metadata"]["tenure:reservation"], found["tags"]) == (confirmation["id"], [])
        lease = Lease(site.api(demo, "1.2"), found["metadata"]["tenure:lease"], confirmation["id"])
        kill_nova_api()
        with pytest.raises(ConnectFailure):
            answer.result(NOVA_SECONDS)

        service.refuses = True
        refused = boot(site, owner, wanted)
        assert refused.status_code == 409, refused.text
        assert "is deleted again: It is said so." in refused.json()["conflictingRequest"]["message"]
    lease.wait_until_gone()
    wait_for("the end of both servers", lambda: servers_of(site, demo) <= before, seconds=NOVA_SECONDS, pause=0.5)
    assert answered(site.api(demo, "1.2").get("/leases"), 200)["leases"] == []


def close_all_hosts(site: Site) -> None:
    """Make every host reservable, so that none is open to a server without a reservation."""
    site.register(*(name for name in HOSTS if name != RESERVED))


def test_a_server_without_a_host_before_confirmation_is_booked_for_the_start(site: Site, cloud: Cloud, demo: Session):
    close_all_hosts(site)
    before = servers_of(site, demo)
    with stand_in(site, hold_seconds=300) as service:
        owner = cloud.session("demo")  # whose catalogue names it

        def wait_for_nova() -> None:
            server = Server(site.nova, service.confirmation["reservations"][0]["server_id"])
            wait_for("Nova to look for a host", lambda: (server.show() or {})["status"] == "ERROR")

        service.before_confirmation = wait_for_nova
        answer = hints.boot(site, owner, later())
    assert answer.status_code == 202, answer.text
    reservation = answer.json()["server"]["id"]
    server = Server(site.nova, service.confirmation["reservations"][0]["server_id"])
    server.wait_until_gone()
    assert servers_of(site, demo) == before | {reservation}
    assert statuses(site, demo)[reservation] == "RESERVED"
    assert made_for(site, reservation) == []
    lease = lease_of_planned(site, demo, reservation)
    wait_for("the end of the lease that was held", lambda: [found["id"] for found in site.leases()] == [lease.id])
    assert lease.show()["status"] == "PENDING"


def test_a_server_without_a_host_after_confirmation_sets_its_lease_to_error(site: Site, demo: Session):
    close_all_hosts(site)
    with hanging("nova-scheduler"):
        answer = boot(site, demo, later())
    assert answer.status_code == 202, answer.text
    server = site.nova.booted[-1]
    assert server.place().startswith("No valid host")
    found = server.show() or {}
    assert found["status"] == "ERROR"
    lease = Lease(site.api(demo, "1.2"), found["metadata"]["tenure:lease"], found["metadata"]["tenure:reservation"])
    assert "is in ERROR" in lease.wait("ERROR")["status_reason"]
    assert servers_of(site, demo) >= {server.id}

    flavor = {"resource_type": "virtual:server", "flavor_id": site.nova.flavor("m1.tiny")}
    assert site.reserve(demo, flavor, start=moment(seconds=1800)).show()["status"] == "PENDING"


def test_only_boots_with_a_lease_fail_while_tenure_is_down(site: Site, demo: Session):
    (api,) = site.deployment.apis
    api.stop()
    try:
        lease = {"start": "now", "end": moment(seconds=3600)}
        before = servers_of(site, demo)
        refused = boot(site, demo, lease)
        assert (refused.status_code, "serviceUnavailable" in refused.json()) == (503, True)
        wrong = boot(site, demo, "{")
        assert (wrong.status_code, "lease_params" in wrong.json()["badRequest"]["message"]) == (400, True)
        assert servers_of(site, demo) == before
        assert boot(site, demo, None).status_code == 202
        assert site.nova.booted[-1].place().startswith("compute-")
        assert compute(site, demo).get("/servers/detail").status_code == 200
    finally:
        api.start()
        site.deployment.wait_until_well()


def test_boots_with_hints_never_take_all_of_nova(site: Site, cloud: Cloud):
    """Tenure asks the very Nova that waits for it, which has two processes here: one boot at a time may wait."""
    wanted = later()
    others_are_done = threading.Event()
    with stand_in(site, hold_seconds=300) as service, ThreadPoolExecutor(1) as user:
        owner = cloud.session("demo")  # whose catalogue names it
        service.before_confirmation = lambda: others_are_done.wait(NOVA_SECONDS)
        first = user.submit(boot, site, owner, wanted)
        assert service.confirmation_came.wait(NOVA_SECONDS)
        for _ in range(2):
            refused = boot(site, owner, wanted)
            assert refused.status_code == 503, refused.text
            assert "right now" in refused.json()["serviceUnavailable"]["message"]
        assert compute(site, owner).get("/servers").status_code == 200
        others_are_done.set()
        answer = first.result(NOVA_SECONDS)
    assert answer.status_code == 202, answer.text
    lease_of(site, owner, site.nova.booted[-1]).wait("PENDING")
