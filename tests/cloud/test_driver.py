"""The driver of OpenStack clouds keeps the contract of drivers on a real one.

All four hosts of the testbed are the test's alone. What Nova cannot be made to do is left out here and is in
``tests/drivers/test_openstack.py``: two hosts of one name, a host that is gone for good, and a reservation's aggregate
that somebody deletes while servers run there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast

import pytest
from keystoneauth1.adapter import Adapter
from keystoneauth1.exceptions import NotFound

from tenure.domain.actor import Actor
from tenure.drivers.contract import Command, ResourceRef
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.http import HttpTransport
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.testing.breaking import Watched
from testbed.processes import pid_of
from tests.drivers.contracts.hosts import DriverContract, Rig
from tests.support.cloud import Cloud
from tests.support.meddling import Wire
from tests.support.waiting import wait_for

HOST: Final = "physical:host"
POOL: Final = "freepool"
#: What the suite calls its reservations.
RESERVATIONS: Final = frozenset({"r-1", "r-2"})
#: What a cloud that is not real could get wrong: what Nova shows and does, and what its callers make of its answers.
EVERY_TIME: Final = frozenset(
    {
        "test_discovers_everything_in_order",
        "test_a_registered_resource_is_closed_to_everybody",
        "test_a_start_opens_exactly_its_resources_to_the_owner_alone",
        "test_foreign_servers_stop_a_start_and_survive",
        "test_a_start_that_broke_off_is_undone",
        "test_a_snapshot_makes_one_image_of_each_server",
        "test_an_end_deletes_the_servers_and_closes_the_resources",
        "test_sees_a_removed_host_and_a_start_mends_it",
    }
)
#: A compute service of the testbed may stand still for a minute while its machine is busy.
SECONDS: Final = 150.0


class RealRig:
    """The testbed. An administrator boots in the name of the owners' projects, so as to say on which host."""

    resource_type = HOST
    patience = timedelta(seconds=SECONDS)
    pause = timedelta(seconds=0.3)

    def __init__(self, cloud: Cloud) -> None:
        self._users = {_project(cloud, name): cloud.session(name) for name in ("demo", "other")}
        self.owner, self.neighbour = self._users
        self._by = {
            self.owner: cloud.service(cloud.session("admin", "demo"), "compute", "2.74"),
            self.neighbour: cloud.service(cloud.session("admin", "other"), "compute", "2.74"),
        }
        self._nova = cloud.service(cloud.session(), "compute", "2.53")
        self._glance = cloud.service(cloud.session("admin", "demo"), "image")
        self._image = next(image["id"] for image in self._glance.get("/v2/images?name=tiny").json()["images"])
        self._flavor = next(
            flavor["id"] for flavor in self._nova.get("/flavors").json()["flavors"] if flavor["name"] == "m1.tiny"
        )
        self._booted: set[str] = set()
        self._paused: list[int] = []
        self._down: list[str] = []
        self.wire = Wire()
        self._options = OpenStackOptions(
            auth_url=cloud.openrc["OS_AUTH_URL"],
            password=cloud.openrc["OS_PASSWORD"],
            region=cloud.openrc["OS_REGION_NAME"],
        )
        # Logging in takes a while and is no business of these tests: all drivers share the account and its token.
        self._account = HttpTransport(self._options).session.auth
        self.open()

    def open(self) -> None:
        transport = HttpTransport(self._options)
        transport.session.auth = self._account
        transport.session.mount("http://", self.wire)
        self._own = OpenStackCloud(self._options, transport)
        self.driver = Watched.of(self._own, self.wire, self.patience, self.pause)

    def reopen(self) -> None:
        self._own.close()
        self.open()

    def resources(self) -> list[ResourceRef]:
        found = self._nova.get("/os-hypervisors", microversion="2.33").json()["hypervisors"]
        names = {str(hypervisor["id"]): hypervisor["hypervisor_hostname"] for hypervisor in found}
        return [ResourceRef(external_id, names[external_id]) for external_id in sorted(names)]

    # Servers

    def boot(self, resource: ResourceRef, project_id: str, reservation_id: str | None = None) -> str | None:
        hints = {} if reservation_id is None else {"reservation": reservation_id}
        return self._boot(project_id, {"host": resource.name}, hints)

    def force(self, resource: ResourceRef, project_id: str) -> str:
        server = self._boot(project_id, {"availability_zone": f":{resource.name}"}, {})
        assert server is not None
        return server

    def _boot(self, project_id: str, where: dict[str, str], hints: dict[str, str]) -> str | None:
        server = {"name": "web", "imageRef": self._image, "flavorRef": self._flavor, "networks": "none", **where}
        made = self._by[project_id].post("/servers", json={"server": server, "os:scheduler_hints": hints}).json()
        server_id: str = made["server"]["id"]
        self._booted.add(server_id)

        def settled() -> dict[str, Any] | None:
            found: dict[str, Any] = self._nova.get(f"/servers/{server_id}").json()["server"]
            return found if found["status"] in ("ACTIVE", "ERROR") else None

        if wait_for(f"server {server_id} to run", settled, seconds=SECONDS)["status"] != "ERROR":
            return server_id
        self.delete(server_id)
        return None

    def delete(self, server: str) -> None:
        with suppress(NotFound):
            self._nova.post(f"/servers/{server}/action", json={"forceDelete": None})
        wait_for(f"the end of server {server}", lambda: server not in self.servers(), seconds=SECONDS)

    def servers(self) -> set[str]:
        return {server["id"] for server in self._nova.get("/servers?all_tenants=1").json()["servers"]}

    def images(self) -> list[str]:
        return [image["name"] for image in self._snapshots()]

    def _snapshots(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._glance.get(f"/v2/images?owner={self.owner}").json()["images"]
        return [image for image in found if image.get("tenure_reservation_id") in RESERVATIONS]

    # Trouble

    def effects(self) -> int:
        return self.wire.effects

    def fail(self, verb: str, *, after_effects: int) -> None:
        self.wire.arm(verb, after_effects)

    def lose_reply(self, verb: str) -> None:
        self.wire.lose_reply(verb)

    def hold(self) -> None:
        """The computes that have servers stand still; no server gets to a host whose compute does."""
        found = self._nova.get("/servers/detail?all_tenants=1").json()["servers"]
        for host in {server["OS-EXT-SRV-ATTR:host"] for server in found}:
            pid = pid_of(host)
            assert pid is not None
            self._paused.append(pid)
            os.kill(pid, signal.SIGSTOP)

    def let_go(self) -> None:
        for pid in self._paused:
            os.kill(pid, signal.SIGCONT)
        self._paused.clear()

    def mark_down(self, resource: ResourceRef) -> None:
        self._down.append(resource.name)
        self._force_down(resource.name, True)

    def _force_down(self, host: str, forced: bool) -> None:
        services = self._nova.get(f"/os-services?binary=nova-compute&host={host}").json()["services"]
        self._nova.put(f"/os-services/{services[0]['id']}", json={"forced_down": forced})

    def remove(self, resource: ResourceRef) -> None:
        raise NotImplementedError

    add_namesake = remove

    # Changes of aggregates by others

    def take_out(self, resource: ResourceRef) -> None:
        for aggregate in self._aggregates():
            if resource.name in aggregate["hosts"]:
                self._act(aggregate, "remove_host", host=resource.name)

    def drop_group(self, command: Command) -> None:
        self._drop(self._group(command.reservation_id))

    def put_in(self, resource: ResourceRef, command: Command) -> None:
        self._act(self._group(command.reservation_id), "add_host", host=resource.name)

    def change_owner(self, command: Command, project_id: str) -> None:
        self._act(self._group(command.reservation_id), "set_metadata", metadata={"blazar:owner": project_id})

    def _aggregates(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._nova.get("/os-aggregates").json()["aggregates"]
        return found

    def _group(self, reservation_id: str) -> dict[str, Any]:
        return next(aggregate for aggregate in self._aggregates() if aggregate["name"] == reservation_id)

    def _drop(self, aggregate: dict[str, Any]) -> None:
        for host in aggregate["hosts"]:
            self._act(aggregate, "remove_host", host=host)
        self._nova.delete(f"/os-aggregates/{aggregate['id']}")

    def _act(self, aggregate: dict[str, Any], action: str, **values: object) -> None:
        self._nova.post(f"/os-aggregates/{aggregate['id']}/action", json={action: values})

    def caller(self, project_id: str) -> Actor:
        session = self._users[project_id]
        access = cast(Any, session.auth).get_access(session)
        return Actor(access.user_id, project_id, frozenset(access.role_names), token=access.auth_token)

    # Before and after

    def ensure_pool(self) -> None:
        if not self._aggregates():
            self._nova.post("/os-aggregates", json={"aggregate": {"name": POOL}})

    def refuse_a_used_cloud(self) -> None:
        """Refuse a cloud in use: these tests cannot tell their own servers from others."""
        assert self.servers() == set(), "there are servers in the cloud"
        assert {
            aggregate["name"] for aggregate in self._aggregates() if aggregate["hosts"] or aggregate["name"] != POOL
        } == set()

    def clean(self) -> None:
        """Take away what the test has made, and nothing else."""
        self.let_go()
        for host in self._down:
            self._force_down(host, False)
        self._down.clear()
        for server in self._booted:
            with suppress(NotFound):
                self._nova.post(f"/servers/{server}/action", json={"forceDelete": None})
        wait_for("the end of all servers", lambda: not self._booted & self.servers(), seconds=SECONDS)
        self._booted.clear()
        registered = {resource.name for resource in self.resources()[:3]}
        for aggregate in self._aggregates():
            if aggregate["name"] in RESERVATIONS:
                self._drop(aggregate)
            if aggregate["name"] == POOL:
                for host in registered & set(aggregate["hosts"]):
                    self._act(aggregate, "remove_host", host=host)
        for image in self._snapshots():
            self._glance.delete(f"/v2/images/{image['id']}")

    def close(self) -> None:
        self._own.close()


def _project(cloud: Cloud, name: str) -> str:
    session = cloud.session(name)
    return cast(str, session.get_project_id())


@pytest.fixture(scope="module")
def administered(cloud: Cloud, admin: Any) -> Iterator[Cloud]:
    """The cloud, with its administrator in the projects of the owners as well."""
    identity: Adapter = cloud.service(admin, "identity")
    base = f"{cloud.openrc['OS_AUTH_URL'].removesuffix('/v3')}/v3"
    (role,) = identity.get(f"{base}/roles?name=admin").json()["roles"]
    user = admin.get_user_id()
    grants = [f"{base}/projects/{_project(cloud, name)}/users/{user}/roles/{role['id']}" for name in ("demo", "other")]
    for grant in grants:
        identity.put(grant)
    yield cloud
    for grant in grants:
        identity.delete(grant)


@pytest.fixture(scope="module")
def testbed(administered: Cloud) -> Iterator[RealRig]:
    rig = RealRig(administered)
    yield rig
    rig.close()


class TestOpenStackCloud(DriverContract):
    sees_servers_without_group = False
    moves_occupied_hosts = False

    @pytest.fixture
    def rig(self, testbed: RealRig) -> Iterator[Rig]:
        testbed.refuse_a_used_cloud()
        testbed.reopen()
        try:
            testbed.ensure_pool()
            yield testbed
        finally:
            testbed.clean()

    def effects_of_a_start(self, resources: int) -> int:
        """The aggregate, its owner, and for each host two moves."""
        return 2 + 2 * resources

    # Faults that a real Nova cannot simulate.
    test_refuses_a_name_that_fits_several = None  # type: ignore[assignment]
    test_a_resource_that_is_gone_counts_as_given_back = None  # type: ignore[assignment]
    test_a_start_hands_over_all_hosts_except_missing_ones = None  # type: ignore[assignment]
    test_a_start_repairs_changes_by_others = None  # type: ignore[assignment]
    test_an_end_succeeds_after_hosts_and_group_are_removed = None  # type: ignore[assignment]
    test_missing_hosts_and_leftovers_are_no_drift = None  # type: ignore[assignment]

    # Each takes a dozen seconds here, and all of them run on the fake.

    @pytest.mark.parametrize(("effects", "reopened"), [(1, True), (4, False)])
    def test_a_start_that_broke_off_is_completed(
        self, rig: Rig, hosts: list[ResourceRef], effects: int, reopened: bool
    ):
        super().test_a_start_that_broke_off_is_completed(rig, hosts, effects, reopened)

    @pytest.mark.parametrize("effects", [3])
    def test_a_start_that_broke_off_is_undone(self, rig: Rig, hosts: list[ResourceRef], effects: int):
        super().test_a_start_that_broke_off_is_undone(rig, hosts, effects)

    @pytest.mark.parametrize("effects", [2, 6])
    def test_an_end_that_broke_off_is_completed(self, rig: Rig, hosts: list[ResourceRef], effects: int):
        super().test_an_end_that_broke_off_is_completed(rig, hosts, effects)
