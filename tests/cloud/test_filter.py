"""The filter in a real nova-scheduler: Nova's own calls alone, no reservation service.

The owner is no administrator. What a reservation service would do to a host is done here by hand, in the order that is
hardest for the scheduler: its last message before the boot is the one that the boot depends on.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from keystoneauth1.session import Session

from testbed.places import BIN
from testbed.processes import pid_of
from tests.support.lengths import times
from tests.support.waiting import COMMAND_SECONDS, wait_for

REPOSITORY = Path(__file__).parents[2]
FREE_POOL = "freepool"

#: How often a race with the scheduler is run: for one host, for several, and with a scheduler that stands still.
BOOTS, TOGETHER, BUSY = times(4, 20), times(3, 5), times(4, 10)


@dataclass
class Nova:
    """What the tests say to Nova, as its administrator or as a project."""

    accounts: dict[str, Session]
    booted: list[Server] = field(default_factory=list)
    """What was asked for and is not known to be gone."""

    def compute(self, method: str, path: str, body: object = None, *, by: str = "admin") -> Any:
        """What Nova answers: a document, or None where there is nothing or no such thing."""
        where = {"service_type": "compute", "interface": "public"}
        answer = self.accounts[by].request(
            path, method, json=body, endpoint_filter=where, microversion="2.87", raise_exc=False
        )
        if answer.status_code == 404 and method in {"GET", "DELETE"}:
            return None
        assert answer.status_code < 400, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def aggregates(self) -> dict[str, dict[str, Any]]:
        return {found["name"]: found for found in self.compute("GET", "/os-aggregates")["aggregates"]}

    def make_aggregate(self, name: str, zone: str | None, **metadata: str) -> int:
        body = {"aggregate": {"name": name, "availability_zone": zone}}
        made: int = self.compute("POST", "/os-aggregates", body)["aggregate"]["id"]
        if metadata:
            self.compute("POST", f"/os-aggregates/{made}/action", {"set_metadata": {"metadata": metadata}})
        return made

    def move(self, aggregate: int, verb: str, host: str) -> None:
        self.compute("POST", f"/os-aggregates/{aggregate}/action", {verb: {"host": host}})

    def boot(self, by: str, count: int = 1, zone: str | None = None, **hints: str) -> list[Server]:
        """Ask for servers in one request."""
        images = self.accounts["admin"].get("/v2/images?name=tiny", endpoint_filter={"service_type": "image"}).json()
        flavors = self.compute("GET", "/flavors")["flavors"]
        server = {
            "name": f"filtered-{uuid4()}",
            "imageRef": images["images"][0]["id"],
            "flavorRef": next(flavor["id"] for flavor in flavors if flavor["name"] == "m1.tiny"),
            "networks": "none",
            "min_count": count,
            **({"availability_zone": zone} if zone else {}),
        }
        self.compute("POST", "/servers", {"server": server, "os:scheduler_hints": hints}, by=by)

        def found() -> set[str] | None:
            listed = self.compute("GET", f"/servers?all_tenants=1&name={server['name']}")["servers"]
            ids = {server["id"] for server in listed}  # a server on its way to a cell may be listed twice
            return ids if len(ids) == count else None

        servers = [Server(self, server_id) for server_id in sorted(wait_for("the servers", found))]
        self.booted += servers
        return servers


@dataclass
class Server:
    nova: Nova
    id: str

    def place(self) -> str:
        """The host on which it runs, once it does, or why it does not."""

        def settled() -> dict[str, Any] | None:
            found: dict[str, Any] = self.nova.compute("GET", f"/servers/{self.id}")["server"]
            # Nova says what is wrong a moment after it says that something is.
            return found if found["status"] == "ACTIVE" or "fault" in found else None

        server = wait_for(f"server {self.id}", settled)
        if server["status"] == "ERROR":
            return str(server["fault"]["message"])
        return str(server["OS-EXT-SRV-ATTR:host"])

    def delete(self) -> None:
        self.nova.compute("DELETE", f"/servers/{self.id}")
        wait_for(f"the end of server {self.id}", lambda: self.nova.compute("GET", f"/servers/{self.id}") is None)
        self.nova.booted.remove(self)


@dataclass
class Reservation:
    """Hosts of the free pool that were moved into an aggregate of their own, and the servers that were put there."""

    nova: Nova
    name: str
    aggregate: int
    free_pool: int

    def take(self, host: str) -> None:
        self.nova.move(self.free_pool, "remove_host", host)
        self.nova.move(self.aggregate, "add_host", host)

    def give_back(self, host: str) -> None:
        self.nova.move(self.free_pool, "add_host", host)
        self.nova.move(self.aggregate, "remove_host", host)


@pytest.fixture(scope="module")
def nova(admin: Session, demo: Session, other: Session) -> Nova:
    return Nova({"admin": admin, "demo": demo, "other": other})


@pytest.fixture(scope="module")
def hosts(nova: Nova) -> Iterator[list[str]]:
    """Three hosts, in the free pool while this module runs."""
    services = nova.compute("GET", "/os-services?binary=nova-compute")["services"]
    used = {host for aggregate in nova.aggregates().values() for host in aggregate["hosts"]}
    chosen = sorted({service["host"] for service in services if service["state"] == "up"} - used)[:3]
    assert len(chosen) == 3, f"the tests need three compute hosts that are in no aggregate; {used} are in some"
    known = nova.aggregates().get(FREE_POOL)
    pool = known["id"] if known else nova.make_aggregate(FREE_POOL, None)
    for host in chosen:
        nova.move(pool, "add_host", host)
    yield chosen
    for host in set(nova.aggregates()[FREE_POOL]["hosts"]) & set(chosen):
        nova.move(pool, "remove_host", host)
    if known is None:
        nova.compute("DELETE", f"/os-aggregates/{pool}")


@contextmanager
def reservation(nova: Nova, owner: str) -> Iterator[Reservation]:
    """An aggregate as of a started reservation, yet without hosts. At the end the servers go, the hosts return."""
    name, project = str(uuid4()), nova.accounts[owner].get_project_id()
    assert project is not None
    aggregate = nova.make_aggregate(name, f"blazar_{name}", **{"blazar:owner": project})
    made = Reservation(nova, name, aggregate, nova.aggregates()[FREE_POOL]["id"])
    try:
        yield made
    finally:
        for server in list(nova.booted):
            server.delete()
        for host in nova.aggregates()[name]["hosts"]:
            made.give_back(host)
        nova.compute("DELETE", f"/os-aggregates/{aggregate}")


def test_the_first_boot_after_the_start_finds_the_host_every_time(nova: Nova, hosts: Sequence[str]):
    places = []
    for _ in range(BOOTS):
        with reservation(nova, "demo") as mine:
            mine.take(hosts[0])
            (server,) = nova.boot("demo", reservation=mine.name)
            places.append(server.place())
    assert places == [hosts[0]] * BOOTS


def test_no_host_is_found_without_the_hint_of_the_own_project(nova: Nova, hosts: Sequence[str]):
    with reservation(nova, "demo") as mine:
        assert_refused(nova.boot("demo", reservation=mine.name), "the reservation has not started")
        mine.take(hosts[0])
        assert_refused(nova.boot("other", reservation=mine.name), "another project's reservation")
        assert_refused(nova.boot("demo", reservation=str(uuid4())), "no such reservation")
        (server,) = nova.boot("demo", reservation=mine.name)
        assert server.place() == hosts[0]

        (server,) = nova.boot("demo")
        place = server.place()
        server.delete()
        assert place not in hosts, "neither the reserved host nor those in the free pool are open to all"


def test_the_zone_of_a_reservation_narrows_the_choice_but_opens_nothing(nova: Nova, hosts: Sequence[str]):
    with reservation(nova, "demo") as mine:
        mine.take(hosts[0])
        zone = f"blazar_{mine.name}"
        (server,) = nova.boot("demo", zone=zone, reservation=mine.name)
        assert server.place() == hosts[0]
        assert_refused(nova.boot("demo", zone=zone), "the zone without the hint")


def assert_refused(servers: Sequence[Server], why: str) -> None:
    places = [server.place() for server in servers]
    for server in servers:
        server.delete()
    assert all("No valid host" in place for place in places), f"{why}: {places}"


def test_hosts_that_were_added_at_the_same_time_are_all_found(nova: Nova, hosts: Sequence[str]):
    """The messages about them say each of another set of hosts, and the last one that comes is what is remembered."""
    places = []
    for _ in range(TOGETHER):
        with reservation(nova, "demo") as mine:
            with ThreadPoolExecutor() as pool:
                list(pool.map(mine.take, hosts))
            group = {"server_group": {"name": mine.name, "policy": "anti-affinity"}}
            apart = nova.compute("POST", "/os-server-groups", group, by="demo")["server_group"]["id"]
            servers = nova.boot("demo", len(hosts), reservation=mine.name, group=apart)
            places.append(sorted(server.place() for server in servers))
            for server in servers:
                server.delete()
        nova.compute("DELETE", f"/os-server-groups/{apart}", by="demo")
    assert places == [list(hosts)] * TOGETHER


def test_a_scheduler_that_was_busy_during_the_start_finds_the_host(nova: Nova, hosts: Sequence[str]):
    """What it should have heard of the start then waits for it together with the request."""
    places = []
    for _ in range(BUSY):
        with reservation(nova, "demo") as mine:
            scheduler = pid_of("nova-scheduler")
            assert scheduler is not None
            os.killpg(scheduler, signal.SIGSTOP)
            try:
                mine.take(hosts[0])
                (server,) = nova.boot("demo", reservation=mine.name)
            finally:
                os.killpg(scheduler, signal.SIGCONT)
            places.append(server.place())
    assert places == [hosts[0]] * BUSY


def test_the_filter_inside_nova_with_a_database_of_its_own():
    """What a host manager decides whose memory is late or wrong: `nova/tests_in_nova`, with the cloud's Python."""
    command = [str(BIN / "python"), "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", "tests_in_nova"]
    done = subprocess.run(
        command, cwd=REPOSITORY / "nova", capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
