"""A complete service for tests: a clock that is moved by hand, a simulated cloud, and a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.domain.capacity import Capacity
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationChange, ReservationRequest, ResourceQuery
from tenure.domain.resource import DiscoveredResource, Resource
from tenure.drivers.contract import Command, ResourceRef
from tenure.drivers.openstack.pci_aliases import PciAlias
from tenure.drivers.simulated import Fault, FaultKind
from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tenure.enforcement.contract import EnforcementFilter
from tenure.factory import Components, build
from tenure.services.context import Rules
from tenure.services.events.commands import commands_of
from tenure.simulation import Simulation, default_policies, installed_types
from tenure.store.database import Database, Transaction
from tests.support import schemas
from tests.support.simulated import SimulatedCloud

NOW = datetime(2030, 1, 1, 10, 0, 0, tzinfo=UTC)
HOST = "physical:host"
ADMIN = Actor("admin-user", "admin-project", frozenset({"admin", "member", "reader"}))
OWNER = Actor("demo-user", "demo-project", frozenset({"member", "reader"}))
READER = Actor("reading-user", "demo-project", frozenset({"reader"}))
STRANGER = Actor("other-user", "other-project", frozenset({"member", "reader"}))


@dataclass
class World(Simulation):
    """A service with its clock, clouds and database."""

    clouds: Mapping[str, SimulatedCloud]

    @property
    def cloud(self) -> SimulatedCloud:
        """The only cloud, or that of the home region."""
        return next(iter(self.clouds.values()))

    @property
    def leases(self):
        return self.service.manager.leases

    @property
    def resources(self):
        return self.service.manager.resources

    @property
    def engine(self):
        return self.service.engine

    def book(self, hosts: int | tuple[int, int] = 1, *, start=0.0, hours=1.0, actor: Actor = OWNER, **parameters):
        """Book a lease of hosts that starts in ``start`` hours."""
        minimum, maximum = hosts if isinstance(hosts, tuple) else (hosts, hosts)
        name = parameters.pop("name", "lease")
        requested = reservation(minimum, maximum, **parameters)
        return self.reserve(requested, start=start, hours=hours, actor=actor, name=name)

    def reserve(
        self,
        *reservations: ReservationRequest,
        start: float = 0.0,
        hours: float = 1.0,
        actor: Actor = OWNER,
        name: str = "lease",
        **fields: Any,
    ) -> Lease:
        """Book a lease of these reservations that starts in ``start`` hours.

        ``fields`` are further fields of the request.
        """
        begin = self.clock.now() + timedelta(hours=start)
        end = begin + timedelta(hours=hours)
        return self.leases.create(actor, LeaseRequest(name, begin, end, reservations=reservations, **fields))

    def reserve_on(self, number: int, *reservations: ReservationRequest, **fields: Any) -> Lease:
        """Book a lease as ``reserve`` does, on the host with that number; it stays there until something moves it."""
        with self.db.read() as tx:
            others = [resource.external_id for resource in tx.resources.page(ResourceQuery(HOST, 100))]
        others = [other for other in others if other != str(number)]
        for other in others:
            self.resources.disable(ADMIN, HOST, other, reason="not now")
        lease = self.reserve(*reservations, **fields)
        for other in others:
            self.resources.enable(ADMIN, HOST, other)
        return lease

    def resize(self, *vcpus: int) -> None:
        """Set the VCPUs of the hosts, in order, with more memory than any test needs."""
        self.set_capacities(*(Capacity({"VCPU": count, "MEMORY_MB": 2**20, "DISK_GB": 1000}) for count in vcpus))

    def set_capacities(self, *capacities: Capacity) -> None:
        """Set the capacities of the hosts, in order."""
        with self.db.read() as tx:
            found = sorted(tx.resources.page(ResourceQuery(HOST, 100)), key=lambda resource: resource.id)
        for host, capacity in zip(found, capacities, strict=True):
            described = DiscoveredResource(HOST, host.external_id, host.name, capacity, host.facts)
            self.db.write(partial(_describe, host=host, described=described, now=self.clock.now()))

    def units(self, lease: Lease) -> list[tuple[str, int]]:
        """Return the hosts and units of the lease's allocations."""
        with self.db.read() as tx:
            allocations = tx.allocations.of_reservations([reservation.id for reservation in lease.reservations])
            known = tx.resources.by_ids({allocation.resource_id for allocation in allocations})
        return sorted((known[allocation.resource_id].name, allocation.units) for allocation in allocations)

    def change(self, lease: Lease, index: int = 0, **parameters: object) -> Lease:
        """Change parameters of the lease's reservation at that position, as its owner."""
        changes = (ReservationChange(lease.reservations[index].id, parameters),)
        return self.leases.update(OWNER, lease.id, LeaseChange(reservations=changes))

    def boot(self, lease: Lease, index: int = 0, *, host: str | None = None) -> str:
        """Boot a server of the lease's owner in the reservation at that position; return its id."""
        chosen = lease.reservations[index]
        if chosen.resource_type == HOST:
            return self.cloud.world.boot_server(lease.project_id, reservation_id=chosen.id, host=host)
        return self.cloud.world.instances.boot(lease.project_id, chosen.id, host=host)

    def teardown_lasts(self, lease: Lease, *, until: datetime) -> None:
        """Let the cloud take until then to take back the lease's first reservation."""
        slow = Fault(FaultKind.SLOW, verb="ensure_ended", reservation_id=lease.reservations[0].id, until=until)
        self.cloud.inject(slow)

    def hosts_of(self, lease_id: str, actor: Actor = ADMIN) -> list[str]:
        return sorted(resource.resource.name for resource in self.leases.resources(actor, lease_id, HOST))

    def commands(self, lease_id: str) -> list[Command]:
        """Return the lease's reservations as commands for a driver."""
        with self.db.read() as tx:
            lease = tx.leases.get(lease_id)
            return list(commands_of(tx, [lease], pinned_only=False)) if lease else []

    def restart(self) -> None:
        """Build the service again, as after the end of its process."""
        self.service = build(self.service.components)

    def register(self, name: str, **properties: str) -> Resource:
        return self.resources.register(ADMIN, HOST, name, properties)


def _describe(tx: Transaction, host: Resource, described: DiscoveredResource, now: datetime) -> None:
    tx.resources.describe(host, described, now=now)


def reservation(minimum: int, maximum: int, **parameters: object) -> ReservationRequest:
    return ReservationRequest(
        HOST,
        {
            "min": minimum,
            "max": maximum,
            "hypervisor_properties": "",
            "resource_properties": "",
            "before_end": "default",
            **parameters,
        },
    )


def instance_reservation(amount: int = 1, **parameters: object) -> ReservationRequest:
    """Return a request for instances, by default of one VCPU and 1 GiB."""
    size = {"vcpus": 1, "memory_mb": 1024, "disk_gb": 0, "affinity": None, "resource_properties": ""}
    return ReservationRequest("virtual:instance", {**size, "amount": amount, **parameters})


def flavor_reservation(flavor_id: str, amount: int = 1, **parameters: object) -> ReservationRequest:
    """Return a request for instances of a flavor of the cloud."""
    requested = {"flavor_id": flavor_id, "amount": amount, "affinity": None}
    return ReservationRequest("flavor:instance", {**requested, **parameters})


def address_reservation(amount: int = 1, *required: str, **parameters: object) -> ReservationRequest:
    """Return a request for floating IPs of the simulated cloud's public network, with these required ones."""
    requested = {"network_id": PUBLIC_NETWORK, "amount": amount, "required_floatingips": list(required)}
    return ReservationRequest("virtual:floatingip", {**requested, **parameters})


def url_in(location: str | Path) -> str:
    """Return the URL of a database: ``location`` itself, or for a folder, of an SQLite database in it."""
    return location if isinstance(location, str) else f"sqlite:///{location / 'tenure.db'}"


#: How long a request may look for room in tests. On a busy machine a process may stand still for seconds.
UNHURRIED = timedelta(minutes=5)


@contextmanager
def open_world(
    location: str | Path,
    *,
    hosts: int = 4,
    rules: Rules | None = None,
    planning_time: timedelta = UNHURRIED,
    turn_time: timedelta | None = None,
    checkpoint: Callable[[str], None] = lambda _point: None,
    database: Callable[..., Database] = Database,
    workers: int = 0,
    answer_seconds: float = 30.0,
    filters: Mapping[str, EnforcementFilter] = MappingProxyType({}),
    pci_aliases: Sequence[PciAlias] = (),
) -> Iterator[World]:
    """Open a service with ``hosts`` reservable hosts, on the database at a URL or on an SQLite database in a folder.

    ``planning_time`` is that of the rules, and so are the times of searches and of turns of waiting leases by default.
    ``pci_aliases`` are those of the cloud and of the service.
    """
    clock = SimulatedClock(NOW)
    db = database(url_in(location), clock=clock)
    schemas.lay_out(db)
    cloud = SimulatedCloud.create(hosts=hosts, clock=clock, sleep=lambda _seconds: None, pci_aliases=pci_aliases)
    components = Components(
        db=db,
        driver=cloud,
        types=installed_types(),
        authorize=default_policies().authorize,
        clock=clock,
        rules=replace(
            rules or Rules(),
            planning_time=planning_time,
            search_time=planning_time,
            turn_time=turn_time or planning_time,
        ),
        checkpoint=checkpoint,
        workers=workers,
        answer_seconds=answer_seconds,
        filters=filters,
    )
    found = sorted(cloud.discover(HOST), key=lambda host: int(host.external_id))
    for host in found:
        cloud.ensure_registered(HOST, ResourceRef(host.external_id, host.name, host.region))
    db.write(lambda tx: tx.resources.add_many(found, [{} for _ in found], now=clock.now()))
    try:
        yield World(build(components), clock, {"": cloud}, db)
    finally:
        db.close()
        cloud.close()
