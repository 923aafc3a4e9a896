"""A small OpenStack with a driver on it, as the tests of that driver want it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.drivers.contract import Command, Progress, ResourceRef
from tenure.drivers.openstack.driver import OpenStackCloud
from tenure.drivers.openstack.http import HttpTransport
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.requests import Transport
from tenure.testing.breaking import Watched
from tenure.testing.rig import command_of
from tests.support.meddling import Wire, WireInProcess
from tests.support.openstack import NEIGHBOUR, OWNER, OWNER_KEY, PASSWORD, FakeOpenStack

HOST = "physical:host"
#: The ways from the driver to the small OpenStack.
HTTP, IN_PROCESS = "http", "in process"


def options_of(cloud: FakeOpenStack, **more: object) -> OpenStackOptions:
    given = {"auth_url": f"{cloud.url}/identity", "password": PASSWORD, "request_timeout": timedelta(seconds=5), **more}
    return OpenStackOptions(**given)  # type: ignore[arg-type]  # a test says what it means


def ref(cloud: FakeOpenStack, number: int) -> ResourceRef:
    host = list(cloud.hosts.values())[number - 1]
    return ResourceRef(host.id, host.name)


def registered(driver: OpenStackCloud, cloud: FakeOpenStack, count: int) -> list[ResourceRef]:
    """So many hosts, in the pool."""
    hosts = [ref(cloud, number) for number in range(1, count + 1)]
    for host in hosts:
        driver.ensure_registered(HOST, host)
    return hosts


def command_for(*hosts: ResourceRef, **more: str) -> Command:
    return command_of(*hosts, resource_type=HOST, **more)


def ended(driver: OpenStackCloud, command: Command) -> Progress:
    """How the end of the command stands when it is over, or after some attempts."""
    attempts = 10
    while not (progress := driver.ensure_ended(command)).done and attempts:
        attempts -= 1
    return progress


class FakeRig:
    """The small OpenStack, its driver, and the wire between them."""

    resource_type = HOST
    owner = OWNER
    neighbour = NEIGHBOUR
    patience = timedelta(seconds=30)
    pause = timedelta(0)

    def __init__(self, cloud: FakeOpenStack, transport: str = HTTP) -> None:
        self.cloud = cloud
        self.wire: Wire | WireInProcess = Wire() if transport == HTTP else WireInProcess(cloud, cloud.tokens.get)
        self.clock = SimulatedClock(datetime.now(UTC))
        self.open()

    def open(self) -> None:
        self._own = OpenStackCloud(options_of(self.cloud), self._transport(), clock=self.clock)
        self.driver = Watched.of(self._own, self.wire, self.patience, self.pause)

    def _transport(self) -> Transport:
        if isinstance(self.wire, WireInProcess):
            return self.wire
        transport = HttpTransport(options_of(self.cloud))
        transport.session.mount("http://", self.wire)
        return transport

    def close(self) -> None:
        self._own.close()
        assert self.cloud.surprises == []

    def reopen(self) -> None:
        self.close()
        self.open()

    def resources(self) -> list[ResourceRef]:
        found = sorted(self.cloud.hosts.values(), key=lambda host: host.id)
        return [ResourceRef(host.id, host.name) for host in found]

    def boot(self, resource: ResourceRef, project_id: str, reservation_id: str | None = None) -> str | None:
        return self.cloud.boot(self.service(resource), project_id, reservation_id)

    def force(self, resource: ResourceRef, project_id: str) -> str:
        return self.cloud.force(self.service(resource), project_id)

    def servers(self) -> set[str]:
        return set(self.cloud.servers)

    def images(self) -> list[str]:
        return [image["name"] for image in self.cloud.images.values()]

    def effects(self) -> int:
        return self.wire.effects

    def fail(self, verb: str, *, after_effects: int) -> None:
        self.wire.arm(verb, after_effects)

    def lose_reply(self, verb: str) -> None:
        self.wire.lose_reply(verb)

    def hold(self) -> None:
        self.cloud.held = True

    def let_go(self) -> None:
        self.cloud.let_go()

    def delete(self, server: str) -> None:
        del self.cloud.servers[server]

    def mark_down(self, resource: ResourceRef) -> None:
        self.cloud.host(resource.external_id).state = "down"

    def remove(self, resource: ResourceRef) -> None:
        self.cloud.remove_host(resource.external_id)

    def add_namesake(self, resource: ResourceRef) -> None:
        self.cloud.add_host(resource.name)

    def take_out(self, resource: ResourceRef) -> None:
        for aggregate in self.cloud.aggregates.values():
            aggregate.hosts = [host for host in aggregate.hosts if host != self.service(resource)]

    def drop_group(self, command: Command) -> None:
        group = self.cloud.aggregate(command.reservation_id)
        assert group is not None
        del self.cloud.aggregates[group.number]

    def put_in(self, resource: ResourceRef, command: Command) -> None:
        group = self.cloud.aggregate(command.reservation_id)
        assert group is not None
        group.hosts.append(self.service(resource))

    def change_owner(self, command: Command, project_id: str) -> None:
        group = self.cloud.aggregate(command.reservation_id)
        assert group is not None
        group.metadata[OWNER_KEY] = project_id

    def caller(self, project_id: str) -> Actor:
        roles = ("member", "reader")
        user = f"user-of-{project_id}"
        return Actor(user, project_id, frozenset(roles), token=self.cloud.issue(user, project_id, roles))

    def service(self, resource: ResourceRef) -> str:
        return self.cloud.host(resource.external_id).service_host
