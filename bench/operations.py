"""What is measured: what users and the engine do, through the services."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select

from bench.ledger import (
    GRAIN,
    HOST,
    LEASES_OF_PROJECT,
    RACK,
    Size,
    full_times,
    grain_of,
    parameters,
    project_name,
    rush_times,
    usual_times,
    write_ledger,
)
from bench.measure import Call, Operation
from tenure.api.policies import Policies
from tenure.collection import spare_loaded_objects
from tenure.domain.actor import Actor
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import EventType, Lease
from tenure.domain.request import (
    BookingQuery,
    LeaseChange,
    LeaseOrder,
    LeaseQuery,
    LeaseRequest,
    Moment,
    Page,
    ReservationChange,
    ReservationRequest,
    ResourceQuery,
    When,
)
from tenure.engine.delivery import Delivery
from tenure.factory import Components, Service, build
from tenure.resources.contract import load_types
from tenure.store import schema
from tenure.store.database import Database
from tenure.store.tables import EventRow, LeaseRow
from tests.support.simulated import SimulatedCloud

ADMIN = Actor("admin-user", "admin-project", frozenset({"admin", "member", "reader"}))
PAGE = 100
HOUR = timedelta(hours=1)


def member(number: int) -> Actor:
    """A member of one of the projects of the ledger."""
    return Actor(f"user-{number:05d}", project_name(number), frozenset({"member", "reader"}))


@dataclass(frozen=True, slots=True)
class Times:
    """When leases are asked for: the same on both sites."""

    now: datetime
    #: A bit more than half of the hosts is booked, and there is room for what is asked.
    usual: Sequence[datetime]
    #: Nine hosts of ten are booked.
    rush: Sequence[datetime]
    #: All hosts are booked.
    full: Sequence[datetime]


def times_of(size: Size, now: datetime) -> Times:
    """The times for a cloud of that size and for larger ones."""

    def enough(free: Sequence[int]) -> bool:
        return sum(number % 4 == 0 for number in free) >= 4 and any(number // RACK == 1 for number in free)

    return Times(now, usual_times(size, now, enough), rush_times(now), full_times(now))


@dataclass(frozen=True, slots=True)
class Site:
    """A service with a ledger of a certain size behind it."""

    size: Size
    times: Times
    db: Database
    service: Service
    #: The lease in the middle of all, and of the first project's, by the order of the list.
    middle: Mapping[LeaseOrder, str]
    middle_of_project: str
    lease_ids: Sequence[str] = field(repr=False)

    def create(self, request: LeaseRequest) -> Lease:
        return self.service.manager.leases.create(member(0), request)

    def delete(self, lease: Lease) -> None:
        self.service.manager.leases.delete(member(0), lease.id)


@dataclass(frozen=True, slots=True)
class HostRequest:
    """The hosts of a lease."""

    minimum: int = 1
    maximum: int = 1
    hypervisor: str = ""
    resource: str = ""

    def lease(self, start: When, end: When) -> LeaseRequest:
        request = parameters(self.minimum, self.maximum, hypervisor=self.hypervisor, resource=self.resource)
        return LeaseRequest("bench", start, end, reservations=(ReservationRequest(HOST, request),))


ONE = HostRequest()


@contextmanager
def open_site(url: str, size: Size, times: Times) -> Iterator[Site]:
    """A site on an empty database: as in production, but for the engine, which does not run."""
    db = Database(url)
    cloud = SimulatedCloud()
    try:
        schema.upgrade(db)
        write_ledger(db, size, times.now)
        service = build(Components(db, cloud, load_types(), Policies().authorize))
        site = _site(size, times, db, service)
        spare_loaded_objects()
        yield site
    finally:
        db.close()
        cloud.close()


def _site(size: Size, times: Times, db: Database, service: Service) -> Site:
    keys = {
        LeaseOrder.CREATED_AT: LeaseRow.created_at,
        LeaseOrder.NAME: LeaseRow.name,
        LeaseOrder.STARTS_AT: LeaseRow.starts_at,
    }
    with db.read() as tx:
        ids = {
            order: list(tx.session.execute(select(LeaseRow.id).order_by(key, LeaseRow.id)).scalars())
            for order, key in keys.items()
        }
        by_age = select(LeaseRow.id).order_by(LeaseRow.created_at, LeaseRow.id)
        of_project = list(tx.session.execute(by_age.where(LeaseRow.project_id == project_name(0))).scalars())
    middle = {order: found[len(found) // 3] for order, found in ids.items()}
    return Site(size, times, db, service, middle, of_project[len(of_project) // 3], ids[LeaseOrder.CREATED_AT])


# --- leases


def creating(hosts: HostRequest = ONE, when: str = "usual") -> Callable[[Site, random.Random], Call]:
    """A lease of eight hours."""

    def prepare(site: Site, rng: random.Random) -> Call:
        start = rng.choice(getattr(site.times, when)) + HOUR
        request = hosts.lease(start, start + 8 * HOUR)
        return Call(lambda: site.create(request), site.delete)

    return prepare


def creating_soon(site: Site, rng: random.Random) -> Call:
    start = grain_of(site.times.now) + GRAIN + HOUR
    request = ONE.lease(start, start + 8 * HOUR)
    return Call(lambda: site.create(request), site.delete)


def creating_now(site: Site, rng: random.Random) -> Call:
    request = ONE.lease(Moment.NOW, grain_of(site.times.now) + GRAIN + 8 * HOUR)
    return Call(lambda: site.create(request), site.delete)


def creating_late(site: Site, rng: random.Random) -> Call:
    """Behind everything that is booked, where every host is free."""
    start = grain_of(site.times.now) + GRAIN * rng.randrange(800, 1000) + HOUR
    request = ONE.lease(start, start + 8 * HOUR)
    return Call(lambda: site.create(request), site.delete)


def refused(hosts: HostRequest, when: str = "usual") -> Callable[[Site, random.Random], Call]:
    """A lease that cannot be had."""

    def prepare(site: Site, rng: random.Random) -> Call:
        start = rng.choice(getattr(site.times, when)) + HOUR
        request = hosts.lease(start, start + 8 * HOUR)

        def act() -> None:
            try:
                site.create(request)
            except NotEnoughResources:
                return
            raise AssertionError("the request was to be refused")

        return Call(act)

    return prepare


def lease_to_come(site: Site, rng: random.Random) -> Lease:
    start = rng.choice(site.times.usual) + HOUR
    return site.create(ONE.lease(start, start + 8 * HOUR))


def changing(change: Callable[[Lease], LeaseChange]) -> Callable[[Site, random.Random], Call]:
    """A change of a lease that has not started."""

    def prepare(site: Site, rng: random.Random) -> Call:
        lease = lease_to_come(site, rng)
        request = change(lease)
        return Call(lambda: site.service.manager.leases.update(member(0), lease.id, request), site.delete)

    return prepare


def extended(lease: Lease) -> LeaseChange:
    return LeaseChange(ends_at=lease.ends_at + HOUR)


def grown(lease: Lease) -> LeaseChange:
    return LeaseChange(reservations=(ReservationChange(lease.reservations[0].id, {"min": 1, "max": 4}),))


def renamed(lease: Lease) -> LeaseChange:
    return LeaseChange(name="renamed")


def deleting(site: Site, rng: random.Random) -> Call:
    lease = lease_to_come(site, rng)
    return Call(lambda: site.delete(lease))


def showing(site: Site, rng: random.Random) -> Call:
    lease_id = rng.choice(site.lease_ids)
    return Call(lambda: site.service.manager.leases.get(ADMIN, lease_id))


# --- lists


def listing(
    query: LeaseQuery, *, actor: Actor = ADMIN, from_middle: bool = False
) -> Callable[[Site, random.Random], Call]:
    """A page of leases, the first one or one in the middle."""

    def prepare(site: Site, rng: random.Random) -> Call:
        middle = site.middle_of_project if actor is not ADMIN else site.middle[query.order]
        asked = replace(query, marker=middle) if from_middle else query
        return Call(lambda: _full(site.service.manager.leases.list(actor, asked), PAGE))

    return prepare


def _full(page: Page[Any], length: int) -> None:
    if len(page.items) != length:
        raise AssertionError(f"a page of {len(page.items)} and not of {length}")


#: The pages of what even the small cloud has less than a hundred of.
SHORT = 2


def listing_some(query: LeaseQuery) -> Callable[[Site, random.Random], Call]:
    """A short page of the leases with something in common."""
    return lambda site, _: Call(lambda: _full(site.service.manager.leases.list(ADMIN, query), SHORT))


def listing_window(site: Site, rng: random.Random) -> Call:
    """What runs in a certain hour."""
    begin = rng.choice(site.times.usual)
    query = LeaseQuery(limit=SHORT, order=LeaseOrder.STARTS_AT, starts_before=begin + HOUR, ends_after=begin)
    return Call(lambda: _full(site.service.manager.leases.list(ADMIN, query), SHORT))


def listing_hosts(site: Site, rng: random.Random) -> Call:
    query = ResourceQuery(HOST, SHORT, marker=str(site.size.hosts // 2))
    return Call(lambda: _full(site.service.manager.resources.list(ADMIN, query), SHORT))


def showing_host(site: Site, rng: random.Random) -> Call:
    number = str(rng.randrange(1, site.size.hosts + 1))
    return Call(lambda: site.service.manager.resources.get(ADMIN, HOST, number))


def listing_bookings(site: Site, rng: random.Random) -> Call:
    return Call(lambda: site.service.manager.resources.bookings(ADMIN, BookingQuery(HOST, PAGE)))


def listing_bookings_of_lease(site: Site, rng: random.Random) -> Call:
    query = BookingQuery(HOST, PAGE, lease_id=rng.choice(site.lease_ids), only_booked=True)
    return Call(lambda: site.service.manager.resources.bookings(ADMIN, query))


def showing_bookings(site: Site, rng: random.Random) -> Call:
    number = str(rng.randrange(1, site.size.hosts + 1))
    return Call(lambda: site.service.manager.resources.bookings_of(ADMIN, HOST, number))


def listing_properties(site: Site, rng: random.Random) -> Call:
    return Call(lambda: site.service.manager.resources.properties(ADMIN, HOST, include_private=True))


# --- what the engine asks


def looking(site: Site, rng: random.Random) -> Call:
    """What a round of an engine with nothing to do asks."""

    def act() -> None:
        assert not site.service.events.waiting(200)
        site.service.events.ready(200, starts=False)
        site.service.events.ready(200, starts=True)
        site.service.events.ready_in()

    return Call(act)


def looking_at_a_start(site: Site, rng: random.Random) -> Call:
    """What a round asks when the next start has come."""
    with site.service.components.db.read() as tx:
        at = tx.session.scalar(
            select(func.min(EventRow.ready_at)).where(
                EventRow.rank == EventType.START.rank, EventRow.ready_at > tx.now()
            )
        )
    assert at is not None

    def act() -> None:
        with site.service.components.db.read() as tx:
            assert len(tx.events.ready(at, 1, starts=True)) == 1

    return Call(act)


def looking_for_messages(site: Site, rng: random.Random) -> Call:
    """What a delivery with nothing to do asks."""
    Delivery(site.service.outbox, site.service.components.clock, lambda _message: None).deliver()
    return Call(lambda: site.service.outbox.take(100))


def checking_health(site: Site, rng: random.Random) -> Call:
    return Call(site.service.manager.health)


BY_AGE = LeaseQuery(limit=PAGE)
BY_NAME = LeaseQuery(limit=PAGE, order=LeaseOrder.NAME)
PENDING_OF_PROJECT = LeaseQuery(limit=SHORT, statuses=("PENDING",), project_id=project_name(0))
BY_START = LeaseQuery(limit=PAGE, order=LeaseOrder.STARTS_AT, descending=True)
LARGE = '["and", [">=", "$vcpus", "64"], [">=", "$memory_mb", "262144"]]'
GPU = '["==", "$gpu", "a100"]'
RACK_1 = '["==", "$rack", "r1"]'
NOT_THERE = '["==", "$gpu", "h100"]'

CREATES: Sequence[Operation[Site]] = (
    Operation("create: 1 host", creating()),
    Operation("create: 2 to 4 large hosts", creating(HostRequest(2, 4, LARGE))),
    Operation("create: 2 to 4 large hosts with a GPU", creating(HostRequest(2, 4, LARGE, GPU))),
    Operation("create: 1 host of one rack", creating(HostRequest(resource=RACK_1))),
    Operation("create: starts now", creating_now),
    Operation("create: starts today", creating_soon),
    Operation("create: starts behind all bookings", creating_late),
    Operation("create: 1 to 2 large hosts, 92 % booked", creating(HostRequest(1, 2, LARGE), "rush")),
)
REFUSALS: Sequence[Operation[Site]] = (
    Operation("refused: 2 to 4 large hosts, all booked", refused(HostRequest(2, 4, LARGE), "full"), limit=None),
    Operation("refused: no such host", refused(HostRequest(resource=NOT_THERE)), limit=None),
)
CHANGES: Sequence[Operation[Site]] = (
    Operation("update: an hour longer", changing(extended)),
    Operation("update: 4 hosts instead of 1", changing(grown)),
    Operation("update: another name", changing(renamed)),
    Operation("delete", deleting),
    Operation("show", showing),
)
LISTS: Sequence[Operation[Site]] = (
    Operation("list: first page, admin", listing(BY_AGE)),
    Operation("list: page in the middle, admin", listing(BY_AGE, from_middle=True)),
    Operation("list: first page, member", listing(BY_AGE, actor=member(0))),
    Operation("list: page in the middle, member", listing(BY_AGE, actor=member(0), from_middle=True)),
    Operation("list: first page by name", listing(BY_NAME)),
    Operation("list: page in the middle by name", listing(BY_NAME, from_middle=True)),
    Operation("list: page in the middle by start, descending", listing(BY_START, from_middle=True)),
    Operation("list: what is active", listing_some(LeaseQuery(limit=SHORT, statuses=("ACTIVE",)))),
    Operation("list: what is pending in a project", listing_some(PENDING_OF_PROJECT)),
    Operation("list: what runs in an hour to come", listing_window, limit=None),
)
HOSTS: Sequence[Operation[Site]] = (
    Operation("hosts: page in the middle", listing_hosts),
    Operation("hosts: show", showing_host),
    Operation("allocations: first page", listing_bookings),
    Operation("allocations: of one host", showing_bookings),
    Operation("allocations: of one lease", listing_bookings_of_lease),
    Operation("hosts: properties and their values", listing_properties, limit=None),
)
ENGINE: Sequence[Operation[Site]] = (
    Operation("engine: a look when nothing is due", looking),
    Operation("engine: a look when a start is due", looking_at_a_start),
    Operation("engine: a look for messages", looking_for_messages),
    Operation("health", checking_health),
)
OPERATIONS: Sequence[Operation[Site]] = (*CREATES, *REFUSALS, *CHANGES, *LISTS, *HOSTS, *ENGINE)
assert LEASES_OF_PROJECT > PAGE * 4 / 3
