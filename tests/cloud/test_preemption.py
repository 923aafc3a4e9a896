"""Preemptible servers on reserved hosts: notified, stopped and deleted before a lease starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from keystoneauth1.session import Session

from testbed.openstack import extra_names
from tests.support.cloud import Cloud
from tests.support.consumer import Consumer
from tests.support.lengths import times
from tests.support.site import FREE_POOL, HOSTS, Lease, Server, Site, have_testbed, moment, open_site
from tests.support.waiting import wait_for

NOTICE_SECONDS = times(20, 60)
#: Hosts beside those of the testbed, and servers on all of them.
EXTRA, SERVERS = times(3, 6), times(24, 50)
#: What a start may take with everybody gone, on a machine that does more than this.
LATE = timedelta(seconds=30)


@pytest.fixture(scope="module")
def noticing(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    options = {"manager": {"preemption_notice": NOTICE_SECONDS}}
    with open_site(tmp_path_factory.mktemp("preemption"), cloud, managers=2, options=options) as site:
        yield site


@pytest.fixture
def preemptible(noticing: Site) -> Iterator[dict[int, str]]:
    """Flavors of servers that others may displace, by their memory in MiB."""
    api, made = noticing.nova.api, {}
    for memory in (256, 4096):
        flavor = {"name": f"preemptible-{memory}-{uuid4().hex[:8]}", "vcpus": 1, "ram": memory, "disk": 1}
        made[memory] = api.post("/flavors", json={"flavor": flavor}).json()["flavor"]["id"]
        specs = {"extra_specs": {"blazar:preemptible": "true"}}
        api.post(f"/flavors/{made[memory]}/os-extra_specs", json=specs)
    yield made
    noticing.nova.delete_booted()
    noticing.clear()
    for flavor in made.values():
        api.delete(f"/flavors/{flavor}")


@dataclass
class Watch:
    """The states of servers, as a user sees them who looks again and again."""

    site: Site
    servers: list[Server]
    places: dict[str, str]
    #: The times of leaving in the metadata of each server.
    leave_times: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    stopped: set[str] = field(default_factory=set)

    def look(self) -> set[str]:
        """The ids of the servers that are there."""
        found = self.site.nova.api.get("/servers/detail?all_tenants=1").json()["servers"]
        mine = {server["id"]: server for server in found if server["id"] in self.places}
        for server in mine.values():
            if leave_time := server["metadata"].get("tenure:leaves_at"):
                self.leave_times[server["id"]].add(leave_time)
            if server["status"] == "SHUTOFF":
                self.stopped.add(server["id"])
        return set(mine)

    def on(self, hosts: set[str]) -> set[str]:
        """The servers that were booted on these hosts."""
        return {server for server, place in self.places.items() if place in hosts}


def watch(site: Site, servers: list[Server]) -> Watch:
    return Watch(site, servers, {server.id: server.place() for server in servers})


def started(lease: Lease, watched: Watch, start: datetime) -> None:
    """Look on until the lease has started; raises ``AssertionError`` where that is late."""

    def active() -> bool:
        watched.look()
        return bool(lease.show()["status"] == "ACTIVE")

    wait_for("the start", active, seconds=3 * NOTICE_SECONDS, pause=1)
    assert datetime.now(UTC) - start < LATE


def actions(site: Site, server: str) -> dict[str, datetime]:
    """What was done to a server and when, from the first on; Nova knows it of those that are gone as well."""
    done: list[dict[str, Any]] = site.nova.api.get(f"/servers/{server}/os-instance-actions").json()["instanceActions"]
    times = {action["action"]: datetime.fromisoformat(action["start_time"]).replace(tzinfo=UTC) for action in done}
    return dict(sorted(times.items(), key=lambda item: item[1]))


@pytest.mark.long
def test_exactly_the_servers_in_the_way_are_notified_and_gone_at_the_start(
    noticing: Site, preemptible: dict[int, str], demo: Session, other: Session
):
    site = noticing
    have_testbed("extra", str(EXTRA))
    try:
        hosts = {*HOSTS, *extra_names(EXTRA)}
        site.register(*sorted(hosts))
        assert hosts <= (site.nova.members(FREE_POOL) or set())
        watched = watch(site, site.nova.boot_many(other, SERVERS, flavor=preemptible[256]))
        assert set(watched.places.values()) <= hosts
        start = datetime.now(UTC) + timedelta(seconds=NOTICE_SECONDS + 15)
        lease = site.book(demo, 4, start=f"{start:%Y-%m-%dT%H:%M:%SZ}")
        planned = lease.seen_by(site.admin).hosts("planned")
        in_the_way = watched.on(planned)
        assert len(planned) == 4
        assert in_the_way
        assert watched.look() == set(watched.places)
        assert not watched.leave_times

        started(lease, watched, start.replace(microsecond=0))

        assert site.nova.members(lease.reservation) == planned
        assert watched.look() == set(watched.places) - in_the_way
        assert set(watched.leave_times) == in_the_way
        assert {len(times) for times in watched.leave_times.values()} == {1}
        assert {datetime.fromisoformat(time) for times in watched.leave_times.values() for time in times} == {
            start.replace(microsecond=0)
        }
        for server in in_the_way:
            done = actions(site, server)
            assert list(done) == ["create", "stop", "delete"]
            assert done["delete"] < start
        consumer = Consumer(f"{site.topic}.info")
        consumer.listen()
        heard = [
            server["payload"]["server_id"] for server in consumer.heard if server["event_type"] == "lease.preemption"
        ]
        assert set(heard) == in_the_way
        lease.delete()
        lease.wait_until_gone()
    finally:
        site.nova.delete_booted()
        site.clear()
        have_testbed("extra", "0")


def wait_until_older(server: Server) -> None:
    """Wait until a server that is booted next is younger. Nova keeps only the second in which a server was made."""
    found = server.show()
    assert found is not None
    next_second = datetime.fromisoformat(found["created"]) + timedelta(seconds=1)
    wait_for("the next second", lambda: datetime.now(UTC) >= next_second)


def test_instances_displace_no_more_servers_than_needed(
    noticing: Site, preemptible: dict[int, str], demo: Session, other: Session
):
    """Three servers of 4 GiB on a host of 16: one has to go for an instance of 5."""
    site = noticing
    site.register("compute-1")
    servers = []
    for _ in range(3):
        servers.append(site.nova.boot(other, flavor=preemptible[4096]))
        assert servers[-1].place() == "compute-1"
        wait_until_older(servers[-1])
    watched = watch(site, servers)
    start = datetime.now(UTC) + timedelta(seconds=NOTICE_SECONDS + 10)
    asked = {"resource_type": "virtual:instance", "amount": 1, "vcpus": 1, "memory_mb": 5120, "disk_gb": 1}
    lease = site.reserve(demo, asked, start=f"{start:%Y-%m-%dT%H:%M:%SZ}")
    started(lease, watched, start.replace(microsecond=0))
    assert site.nova.boot(demo, flavor=lease.reservation).place() == "compute-1"
    assert watched.look() == {server.id for server in servers[:2]}
    assert set(watched.leave_times) == {servers[2].id}
    assert watched.stopped == {servers[2].id}


def test_a_lease_that_ends_before_the_next_displaces_no_server(
    noticing: Site, preemptible: dict[int, str], demo: Session, other: Session
):
    """A lease from now until the next one, and a preemptible server beside both."""
    site = noticing
    site.register("compute-1", "compute-2")
    later = site.book(demo, on="compute-1", start=moment(hours=5), seconds=6 * 3600)
    soon = site.book(demo, on="compute-1", seconds=3600)
    soon.wait("ACTIVE")
    server = site.nova.boot(other, flavor=preemptible[256])
    assert server.place() == "compute-2"
    assert soon.hosts() == {"compute-1"}
    assert later.show()["status"] == "PENDING"
    found = server.show()
    assert found is not None
    assert found["metadata"] == {}
