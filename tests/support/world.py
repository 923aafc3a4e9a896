"""A whole service to test against: a clock that is moved by hand, a simulated cloud, a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import MappingProxyType

from tenure.api.policies import Policies
from tenure.clock import SimulatedClock
from tenure.domain.actor import Actor
from tenure.domain.request import LeaseRequest, ReservationRequest
from tenure.domain.resource import Resource
from tenure.drivers.contract import ResourceRef
from tenure.drivers.simulated import SimulatedCloud
from tenure.enforcement.contract import EnforcementFilter
from tenure.factory import Parts, Service, build, load_types
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.store.database import Database
from tests.support import schemas

NOW = datetime(2030, 1, 1, 10, 0, 0, tzinfo=UTC)
HOST = "physical:host"
ADMIN = Actor("admin-user", "admin-project", frozenset({"admin", "member", "reader"}))
OWNER = Actor("demo-user", "demo-project", frozenset({"member", "reader"}))
READER = Actor("reading-user", "demo-project", frozenset({"reader"}))
STRANGER = Actor("other-user", "other-project", frozenset({"member", "reader"}))


@cache
def installed_types() -> ResourceTypes:
    """Return the resource types that are installed, the same for every world: they keep nothing."""
    return load_types()


@cache
def default_policies() -> Policies:
    """Return the policies that hold where an operator has configured none."""
    return Policies()


@dataclass
class World:
    """Everything that a scenario moves and looks at."""

    service: Service
    clock: SimulatedClock
    cloud: SimulatedCloud
    db: Database

    @property
    def leases(self):
        return self.service.manager.leases

    @property
    def resources(self):
        return self.service.manager.resources

    @property
    def engine(self):
        return self.service.engine

    def pass_time(self, step: timedelta) -> None:
        """Let time pass: the engine does everything that becomes due on the way, at its due time."""
        self.pass_until(self.clock.now() + step)

    def pass_until(self, end: datetime) -> None:
        self.engine.settle()
        while (due := self.engine.next_due_at()) is not None and due <= end:
            self.clock.set(max(due, self.clock.now()))
            self.engine.settle()
        self.clock.set(end)
        self.engine.settle()

    def book(self, hosts: int | tuple[int, int] = 1, *, start=0.0, hours=1.0, actor: Actor = OWNER, **parameters):
        """A lease of hosts, ``start`` hours from now."""
        minimum, maximum = hosts if isinstance(hosts, tuple) else (hosts, hosts)
        begin = self.clock.now() + timedelta(hours=start)
        request = LeaseRequest(
            name=parameters.pop("name", "lease"),
            starts_at=begin,
            ends_at=begin + timedelta(hours=hours),
            reservations=(reservation(minimum, maximum, **parameters),),
        )
        return self.leases.create(actor, request)

    def hosts_of(self, lease_id: str, actor: Actor = ADMIN) -> list[str]:
        return sorted(one.resource.name for one in self.leases.resources(actor, lease_id, HOST))

    def restart(self) -> None:
        """Build the service again, as after the end of its process."""
        self.service = build(self.service.parts)

    def register(self, name: str, **properties: str) -> Resource:
        return self.resources.register(ADMIN, HOST, name, properties)


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


@contextmanager
def open_world(
    url: str,
    *,
    hosts: int = 4,
    rules: Rules | None = None,
    checkpoint: Callable[[str], None] = lambda _point: None,
    database: Callable[..., Database] = Database,
    workers: int = 0,
    answer_seconds: float = 30.0,
    filters: Mapping[str, EnforcementFilter] = MappingProxyType({}),
) -> Iterator[World]:
    """A service on the database at ``url``, with ``hosts`` reservable hosts."""
    clock = SimulatedClock(NOW)
    db = database(url, clock=clock)
    schemas.lay_out(db)
    cloud = SimulatedCloud.create(hosts=hosts, clock=clock, sleep=lambda _seconds: None)
    parts = Parts(
        db=db,
        driver=cloud,
        types=installed_types(),
        authorize=default_policies().authorize,
        clock=clock,
        rules=rules or Rules(),
        checkpoint=checkpoint,
        workers=workers,
        answer_seconds=answer_seconds,
        filters=filters,
    )
    found = sorted(cloud.discover(HOST), key=lambda one: int(one.external_id))
    for one in found:
        cloud.ensure_registered(HOST, ResourceRef(one.external_id, one.name, one.region))
    db.write(lambda tx: tx.resources.add_many(found, [{} for _ in found], now=clock.now()))
    try:
        yield World(build(parts), clock, cloud, db)
    finally:
        db.close()
        cloud.close()
