"""Two availability zones: a booking in a zone runs there, and every host returns to its own zone afterwards.

With our filter in Nova's scheduler, and with Blazar's, which lets no server wake on a reserved host. One host of each
zone can be reserved, and one is in general use.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from keystoneauth1.session import Session

from testbed.commands import FILTER_IN_USE
from tests.cloud.test_clients import runner
from tests.support.cloud import Cloud
from tests.support.commands import document
from tests.support.hints import NOVA_SECONDS, boot, lease_of_planned, made_for
from tests.support.site import FREE_POOL, HOSTS, Lease, Server, Site, answered, have_testbed, moment, open_site
from tests.support.waiting import wait_for

#: The zones of the hosts, by the aggregates of an operator.
RACKS = {"rack-1": ("east", ("compute-1", "compute-2")), "rack-2": ("west", ("compute-3", "compute-4"))}
ZONES = {host: zone for zone, hosts in RACKS.values() for host in hosts}
#: The hosts that can be reserved.
EAST, WEST = "compute-1", "compute-3"

NO_VALID_HOST = "No valid host was found"
#: How long after the answer of the API a manager dies; starts and ends take longer.
DELAY_SECONDS = 0.4

#: For what Blazar's filter does not know, or what no filter has a part in.
ours_only = pytest.mark.parametrize("scheduler_filter", ["tenure"], indirect=True)
#: For what shows every time that zones work under Blazar's filter; all other tests do so in a long run only.
under_both = pytest.mark.parametrize("scheduler_filter", ["tenure", "blazar"], indirect=True)


@pytest.fixture(scope="module", params=["tenure", pytest.param("blazar", marks=pytest.mark.long)])
def scheduler_filter(cloud: Cloud, request: pytest.FixtureRequest) -> Iterator[str]:
    """The filter that Nova's scheduler has while the tests of this module run."""
    before = FILTER_IN_USE.read_text()
    have_testbed("up", "--filter", request.param)
    yield request.param
    have_testbed("up", "--filter", before)


@pytest.fixture(scope="module")
def looking_often(scheduler_filter: str, cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Tenure that looks every second for servers of leases that are not there."""
    options = {"manager": {"reconcile_interval": 1}}
    with open_site(tmp_path_factory.mktemp("zones"), cloud, options=options) as site, racks(site):
        yield site


@pytest.fixture(scope="module")
def demo(looking_often: Site) -> Session:
    """A member of the project ``demo``, whose token is new: Nova keeps the catalogue of one that it has seen before."""
    return looking_often.cloud.session("demo")


@pytest.fixture
def site(looking_often: Site) -> Iterator[Site]:
    """Two hosts can be reserved. When all is over, every host is in the zone in which it was."""
    looking_often.register(EAST, WEST)
    assert zones(looking_often) == ZONES
    yield looking_often
    looking_often.nova.delete_booted()
    looking_often.delete_leases()
    assert zones(looking_often) == ZONES
    assert {EAST, WEST} <= (looking_often.nova.members(FREE_POOL) or set())
    looking_often.clear()
    assert zones(looking_often) == ZONES
    assert members(looking_often) == {name: set(hosts) for name, (_, hosts) in RACKS.items()}


@contextmanager
def racks(site: Site) -> Iterator[None]:
    """The aggregates of an operator, each with a zone."""
    nova = site.nova
    for name, (zone, hosts) in RACKS.items():
        body = {"aggregate": {"name": name, "availability_zone": zone}}
        made = nova.api.post("/os-aggregates", json=body).json()["aggregate"]["id"]
        for host in hosts:
            nova.api.post(f"/os-aggregates/{made}/action", json={"add_host": {"host": host}})
    try:
        yield
    finally:
        nova.delete_booted()
        site.clear()
        nova.release(RACKS.keys(), HOSTS)


def members(site: Site) -> dict[str, set[str] | None]:
    return {name: site.nova.members(name) for name in RACKS}


def zones(site: Site) -> dict[str, str]:
    """The zone of each host, as Nova tells it."""
    found = site.nova.api.get("/os-availability-zone/detail").json()["availabilityZoneInfo"]
    return {host: zone["zoneName"] for zone in found for host in zone["hosts"] or () if host in HOSTS}


def shown_zone(site: Site, host: str) -> str:
    """The zone of the host, as we tell it."""
    listed = answered(site.admin.get("/os-hosts"), 200)["hosts"]
    return next(str(found["availability_zone"]) for found in listed if found["hypervisor_hostname"] == host)


def reserve(site: Site, by: Session, asked: Mapping[str, object], status: int = 201) -> Lease:
    api = site.api(by, "1.2")
    times = {"start_date": "now", "end_date": moment(seconds=3600)}
    answer = answered(api.post("/leases", json={"name": "of-a-test", **times, "reservations": [asked]}), status)
    lease = answer.get("lease") or {"id": "", "reservations": []}
    return Lease(api, lease["id"], next((found["id"] for found in lease["reservations"]), ""))


def whole(**more: object) -> Mapping[str, object]:
    return {"resource_type": "physical:host", "min": 1, "max": 1, **more}


@under_both
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"availability_zone": "west"}, id="field"),
        pytest.param(
            {"resource_properties": '["==", "$availability_zone", "west"]'}, id="expression", marks=pytest.mark.long
        ),
    ],
)
def test_a_host_is_reserved_in_its_zone_and_returns_into_it(
    site: Site, demo: Session, other: Session, asked: Mapping[str, object]
):
    lease = reserve(site, demo, whole(**asked))
    lease.wait("ACTIVE")
    assert lease.hosts() == site.nova.members(lease.reservation) == {WEST}
    assert zones(site) == {**ZONES, WEST: f"blazar_{lease.reservation}"}
    assert shown_zone(site, WEST) == "west"
    reserve(site, other, whole(**asked), 409)  # the free one is in the other zone

    assert site.nova.boot(demo, reservation=lease.reservation).place() == WEST
    zone = f"blazar_{lease.reservation}"
    assert site.nova.boot(demo, zone=zone, reservation=lease.reservation).place() == WEST
    assert NO_VALID_HOST in site.nova.boot(other, reservation=lease.reservation).place()
    # General use goes on beside it, in either zone.
    assert site.nova.boot(other, zone="west").place() == "compute-4"
    assert site.nova.boot(other, zone="east").place() == "compute-2"

    lease.change(end_date="now")
    lease.wait("TERMINATED")
    assert zones(site) == ZONES
    assert site.nova.members(lease.reservation) is None


def test_the_zone_of_the_command_line_is_the_zone_of_the_lease(site: Site):
    openstack = runner(site, "tenure", "tenure")
    made = document(openstack("lease", "create", "near", "--hosts", "1", "--zone", "west", "--for", "1h", "-f", "json"))
    lease = Lease(site.api(site.nova.admin, "1.2"), made["id"], "")
    lease.wait("ACTIVE")
    assert lease.hosts() == {WEST}


def test_a_lease_grows_in_its_zone(site: Site, demo: Session):
    site.register("compute-4")
    lease = reserve(site, demo, whole(availability_zone="west"))
    lease.wait("ACTIVE")
    lease.change(reservations=[{"id": lease.reservation, "min": 2, "max": 2}])
    wait_for("a second host", lambda: site.nova.members(lease.reservation) == {WEST, "compute-4"})
    taken = f"blazar_{lease.reservation}"
    assert zones(site) == {**ZONES, WEST: taken, "compute-4": taken}
    assert lease.wait("ACTIVE")["status_reason"] is None


@ours_only
@pytest.mark.long
def test_no_zone_is_lost_when_the_manager_dies(site: Site, demo: Session):
    """In the middle of the start, and of the end; another one goes on when the claim has run out."""
    lease = reserve(site, demo, whole(availability_zone="west"))
    kill_manager(site)
    lease.wait("ACTIVE", seconds=NOVA_SECONDS)
    assert zones(site) == {**ZONES, WEST: f"blazar_{lease.reservation}"}
    lease.change(end_date="now")
    kill_manager(site)
    lease.wait("TERMINATED", seconds=NOVA_SECONDS)
    assert zones(site) == ZONES


def kill_manager(site: Site) -> None:
    """Have the manager die in a moment, and another one take its place."""
    time.sleep(DELAY_SECONDS)
    site.deployment.managers[0].kill()
    site.deployment.managers[0].start()
    site.deployment.wait_until_well()


@pytest.mark.parametrize("resource_type", ["virtual:instance", pytest.param("flavor:instance", marks=pytest.mark.long)])
def test_instances_run_in_the_zone_in_which_they_are_booked(site: Site, demo: Session, resource_type: str):
    sizes = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}
    size = sizes if resource_type == "virtual:instance" else {"flavor_id": site.nova.flavor("m1.tiny")}
    lease = reserve(site, demo, {"resource_type": resource_type, "amount": 3, "availability_zone": "west", **size})
    lease.wait("ACTIVE")
    assert site.nova.members(lease.reservation) == {WEST}
    assert zones(site) == ZONES
    assert NO_VALID_HOST in site.nova.boot(demo, zone="east", flavor=lease.reservation).place()
    servers = [site.nova.boot(demo, zone=zone, flavor=lease.reservation) for zone in (None, "west", None)]
    assert [server.place() for server in servers] == [WEST] * 3
    assert NO_VALID_HOST in site.nova.boot(demo, flavor=lease.reservation).place()
    lease.change(end_date="now")
    lease.wait("TERMINATED")
    assert [server.show() for server in servers] == [None] * 3
    assert zones(site) == ZONES


@ours_only
def test_a_server_runs_in_the_zone_in_which_it_is_booted_for_a_lease(site: Site, demo: Session):
    wanted = {"start": "now", "end": moment(seconds=3600)}
    answer = boot(site, demo, wanted, availability_zone="west")
    assert answer.status_code == 202, answer.text
    lease = lease_of_planned(site, demo, answer.json()["server"]["id"])
    assert lease.show_reservation()["availability_zone"] == "west"
    lease.wait("ACTIVE", seconds=NOVA_SECONDS)
    (server,) = made_for(site, lease.reservation)
    assert server.place() == WEST
    assert zones(site) == ZONES
    lease.change(end_date="now")
    lease.wait("TERMINATED", seconds=NOVA_SECONDS)
    server.wait_until_gone()


@ours_only
def test_a_shelved_server_is_woken_in_its_zone(site: Site, demo: Session):
    server: Server = site.nova.boot(demo, zone="west")
    assert server.place() == "compute-4"
    asked = {"resource_type": "virtual:server", "server_id": server.id, "availability_zone": "west"}
    lease = reserve(site, demo, asked)
    lease.wait("ACTIVE", seconds=NOVA_SECONDS)
    assert server.place() == WEST
    assert site.nova.members(lease.reservation) == {WEST}
    lease.change(end_date="now")
    lease.wait("TERMINATED", seconds=NOVA_SECONDS)
