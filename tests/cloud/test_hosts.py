"""Host reservations from the registration of a host to the end of a lease, as Nova and Placement see them.

The owner is ``demo``, who is no administrator. All hosts that a test does not register are open to everybody.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from keystoneauth1.session import Session

from tests.support.lengths import times
from tests.support.site import FREE_POOL, HOSTS, Lease, Site, answered, moment
from tests.support.waiting import patience, wait_for

#: How soon after a lease is ACTIVE its owner asks for a server, and how often that is tried.
AT_ONCE_SECONDS = 1.0
BOOTS = times(4, 20)

NO_VALID_HOST = "No valid host was found"


def assert_given_back(site: Site, lease: Lease, *hosts: str) -> None:
    assert lease.reservation not in site.nova.aggregates()
    assert set(hosts) <= (site.nova.members(FREE_POOL) or set())


def test_a_host_is_registered_changed_and_given_back(site: Site):
    pooled = site.nova.members(FREE_POOL) or set()
    number = site.register("compute-4")["compute-4"]
    assert site.nova.members(FREE_POOL) == pooled | {"compute-4"}
    providers = site.nova.providers()
    assert providers["blazar_compute-4"]["parent_provider_uuid"] == providers["compute-4"]["uuid"]
    shown = answered(site.admin.get(f"/os-hosts/{number}"), 200)["host"]
    assert (shown["hypervisor_hostname"], shown["service_name"]) == ("compute-4", "compute-4")
    assert (shown["vcpus"], shown["memory_mb"], shown["local_gb"]) == (8, 16384, 200)
    assert {"CUSTOM_NVME_SCRATCH", "CUSTOM_LIQUID_COOLED"} <= set(shown["traits"])
    assert (shown["reservable"], shown["availability_zone"]) == (True, "nova")

    answered(site.admin.put(f"/os-hosts/{number}", json={"properties": {"rack": "r7"}}), 200)
    (listed,) = answered(site.admin.get("/os-hosts"), 200)["hosts"]
    assert (listed["id"], listed["properties"]) == (number, {"rack": "r7"})

    answered(site.admin.delete(f"/os-hosts/{number}"), 204)
    assert site.nova.members(FREE_POOL) == pooled
    assert answered(site.admin.get("/os-hosts"), 200)["hosts"] == []


def test_a_host_with_servers_is_not_registered(site: Site, admin: Session):
    server = site.nova.boot(admin, zone="nova:compute-2")
    assert server.place() == "compute-2"
    refused = answered(site.admin.post("/os-hosts", json={"name": "compute-2"}), 409)
    assert "compute-2" in refused["error_message"]
    assert "compute-2" not in (site.nova.members(FREE_POOL) or ())
    assert server.show() is not None


def test_a_host_that_nova_does_not_have_is_not_registered(site: Site):
    answered(site.admin.post("/os-hosts", json={"name": "compute-77"}), 404)


@dataclass(frozen=True)
class Boot:
    """A server that was asked for right after the start of a lease."""

    place: str
    #: From the last answer that said that the lease was not ACTIVE yet to the request for the server.
    seconds_after: float


def boot_at_once(site: Site, owner: Session, host: str) -> Boot:
    lease = site.book(owner, on=host)
    seen = time.monotonic()

    def active() -> bool:
        nonlocal seen
        asked = time.monotonic()
        if lease.show()["status"] == "ACTIVE":
            return True
        seen = asked
        return False

    wait_for("the start", active, pause=0.05)
    after = time.monotonic() - seen
    server = site.nova.boot(owner, reservation=lease.reservation)
    boot = Boot(server.place(), after)
    lease.delete()
    lease.wait_until_gone()
    assert server.show() is None
    return boot


def test_the_first_boot_after_the_start_finds_the_host_every_time(site: Site, demo: Session):
    """Two hosts side by side: what the scheduler hears of the one is not lost in what it hears of the other."""
    hosts = HOSTS[:2]
    site.register(*hosts)

    def one_after_the_other(host: str) -> list[Boot]:
        return [boot_at_once(site, demo, host) for _ in range(BOOTS // len(hosts))]

    with ThreadPoolExecutor(len(hosts)) as threads:
        booted = dict(zip(hosts, threads.map(one_after_the_other, hosts), strict=True))
    assert {host: [boot.place for boot in boots] for host, boots in booted.items()} == {
        host: [host] * (BOOTS // len(hosts)) for host in hosts
    }
    after = sorted(boot.seconds_after for boots in booted.values() for boot in boots)
    print(f"{len(after)} servers were asked for {after[0]:.2f} to {after[-1]:.2f} s after the start")
    assert after[-1] < patience(AT_ONCE_SECONDS)


def test_a_reserved_host_is_open_only_to_its_owner_during_the_lease(site: Site, demo: Session, other: Session):
    """All hosts are registered, so that no other host could take a server."""
    site.register(*HOSTS)
    later = site.book(demo, on="compute-1", start=moment(hours=1), seconds=7200)
    too_soon = site.nova.boot(demo, reservation=later.reservation)
    assert NO_VALID_HOST in too_soon.place()
    lease = site.book(demo, on="compute-2")
    lease.wait("ACTIVE")
    assert lease.hosts() == {"compute-2"}
    inside = site.nova.boot(demo, reservation=lease.reservation)
    outside = {
        "without the hint": site.nova.boot(demo),
        "for another lease": site.nova.boot(demo, reservation=later.reservation),
        "from another project": site.nova.boot(other, reservation=lease.reservation),
    }
    assert inside.place() == "compute-2"
    assert [what for what, server in outside.items() if NO_VALID_HOST not in server.place()] == []


def test_the_end_takes_back_only_the_hosts_and_servers_of_the_lease(site: Site, demo: Session):
    site.register("compute-1", "compute-2")
    elsewhere = site.nova.boot(demo)
    assert elsewhere.place() in {"compute-3", "compute-4"}
    neighbour = site.book(demo, on="compute-2")
    lease = site.book(demo, on="compute-1", seconds=12)
    for booked in (neighbour, lease):
        booked.wait("ACTIVE")
    server, theirs = (site.nova.boot(demo, reservation=booked.reservation) for booked in (lease, neighbour))
    assert (server.place(), theirs.place()) == ("compute-1", "compute-2")
    ended = lease.wait("TERMINATED")
    assert [reservation["status"] for reservation in ended["reservations"]] == ["deleted"]
    assert server.show() is None
    assert_given_back(site, lease, "compute-1")
    for kept in (elsewhere, theirs):
        assert (kept.show() or {}).get("status") == "ACTIVE"
    assert neighbour.show()["status"] == "ACTIVE"


def test_a_running_lease_is_deleted_with_its_servers(site: Site, demo: Session):
    site.register("compute-1")
    lease = site.book(demo)
    lease.wait("ACTIVE")
    servers = [site.nova.boot(demo, reservation=lease.reservation) for _ in range(2)]
    assert [server.place() for server in servers] == ["compute-1"] * 2
    lease.delete()
    lease.wait_until_gone()
    assert [server.show() for server in servers] == [None, None]
    assert_given_back(site, lease, "compute-1")


def test_a_running_lease_grows(site: Site, demo: Session):
    site.register("compute-1", "compute-2", "compute-3")
    lease = site.book(demo)
    lease.wait("ACTIVE")
    (first,) = lease.hosts()
    server = site.nova.boot(demo, reservation=lease.reservation)
    assert server.place() == first

    lease.change(reservations=[{"id": lease.reservation, "min": 3, "max": 3}])
    lease.wait("ACTIVE")
    assert lease.hosts() == site.nova.members(lease.reservation) == {"compute-1", "compute-2", "compute-3"}
    assert not lease.hosts() & (site.nova.members(FREE_POOL) or set())
    assert (server.show() or {}).get("status") == "ACTIVE"

    group = {"server_group": {"name": "of-a-test", "policy": "anti-affinity"}}
    owner = site.cloud.service(demo, "compute", "2.64")
    apart = owner.post("/os-server-groups", json=group).json()["server_group"]["id"]
    try:
        spread = [site.nova.boot(demo, reservation=lease.reservation, group=apart) for _ in range(3)]
        assert {server.place() for server in spread} == lease.hosts()
    finally:
        owner.delete(f"/os-server-groups/{apart}")
    refused = lease.change(409, reservations=[{"id": lease.reservation, "min": 1, "max": 1}])
    assert "A started reservation keeps the hosts it holds (3)" in refused["error_message"]
    assert len(site.nova.members(lease.reservation) or ()) == 3


def test_a_reservation_of_a_running_lease_is_dropped(site: Site, demo: Session):
    site.register("compute-1", "compute-2")
    reservation = {"resource_type": "physical:host", "min": 1, "max": 1}
    lease = site.book(demo, reservations=[reservation, reservation])
    kept, dropped = (reservation["id"] for reservation in lease.wait("ACTIVE")["reservations"])
    ours, theirs = (site.nova.boot(demo, reservation=reservation_id) for reservation_id in (kept, dropped))
    places = [ours.place(), theirs.place()]
    assert sorted(places) == ["compute-1", "compute-2"]
    answered(lease.api.delete(f"/leases/{lease.id}/reservations/{dropped}"), 204)
    lease.wait("ACTIVE")
    wait_for("the host to be given back", lambda: dropped not in site.nova.aggregates())
    assert theirs.show() is None
    assert places[1] in (site.nova.members(FREE_POOL) or ())
    assert (ours.show() or {}).get("status") == "ACTIVE"
    assert site.nova.members(kept) == {places[0]}


def test_a_lease_that_is_extended_keeps_its_servers(site: Site, demo: Session):
    site.register("compute-1")
    lease = site.book(demo, seconds=12)
    over = time.monotonic() + 12
    lease.wait("ACTIVE")
    server = site.nova.boot(demo, reservation=lease.reservation)
    assert server.place() == "compute-1"
    lease.change(end_date=moment(seconds=3600))
    wait_for("the end that there was", lambda: time.monotonic() > over + 3)
    assert lease.show()["status"] == "ACTIVE"
    assert (server.show() or {}).get("status") == "ACTIVE"
    assert site.nova.members(lease.reservation) == {"compute-1"}
    lease.change(end_date="now")
    lease.wait("TERMINATED")
    assert server.show() is None
    assert_given_back(site, lease, "compute-1")


def test_a_server_forced_onto_a_free_host_moves_the_start_to_another_host(site: Site, demo: Session, admin: Session):
    site.register("compute-1", "compute-2")
    forced = site.nova.boot(admin, zone="nova:compute-1")
    assert forced.place() == "compute-1"
    lease = site.book(demo, hosts=1)
    lease.wait("ACTIVE")
    assert lease.hosts() == site.nova.members(lease.reservation) == {"compute-2"}
    stuck = site.book(demo, on="compute-1")
    by_operator = stuck.seen_by(site.api(admin, "1.2"))
    said = wait_for("the reason", lambda: by_operator.show()["detail"])
    assert "compute-1" in said
    assert "compute-1" not in stuck.show()["status_reason"]
    assert stuck.show()["status"] != "ACTIVE"
    stuck.delete()
    assert (forced.show() or {}).get("status") == "ACTIVE"


def test_a_server_that_was_forced_into_a_lease_outlives_it(site: Site, demo: Session, admin: Session):
    site.register("compute-1")
    lease = site.book(demo)
    lease.wait("ACTIVE")
    own = site.nova.boot(demo, reservation=lease.reservation)
    forced = site.nova.boot(admin, zone=f"blazar_{lease.reservation}:compute-1")
    assert (own.place(), forced.place()) == ("compute-1", "compute-1")
    lease.change(end_date="now")
    own.wait_until_gone()
    by_operator = lease.seen_by(site.api(admin, "1.2"))
    wait_for("the reason", lambda: forced.id in (by_operator.show()["detail"] or ""))
    assert forced.id not in (lease.show()["status_reason"] or "")
    assert (forced.show() or {}).get("status") == "ACTIVE"
    forced.delete()
    lease.wait("TERMINATED")
    assert_given_back(site, lease, "compute-1")
