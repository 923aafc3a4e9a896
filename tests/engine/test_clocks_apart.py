"""Managers whose clocks differ: only the database's clock decides what is due, and how long a claim lasts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import partial

import pytest

from tenure.clock import Clock, SystemClock
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import EventType, Lease
from tenure.domain.request import LeaseChange, LeaseRequest, Moment
from tenure.drivers.contract import ResourceRef
from tenure.drivers.simulated import EffectKind
from tenure.factory import Components, Service, build
from tenure.services.execution.at_once import POLL
from tenure.simulation import default_policies, installed_types
from tenure.store.database import Database
from tests.support import ledger, schemas
from tests.support.engines import HOUR, SECOND, Checkpoints, another, assert_all_in_pool, event_of, path_of, status_of
from tests.support.simulated import SimulatedCloud
from tests.support.waiting import wait_for
from tests.support.world import HOST, OWNER, World, open_world, reservation

OFFSETS = (-40 * SECOND, 0 * SECOND, 40 * SECOND)
CLAIM = timedelta(seconds=60)


class ClockApart:
    """A clock that differs from another by as much at any time; it notes how long the engine was to wait."""

    def __init__(self, true: Clock, offset: timedelta) -> None:
        self._true = true
        self._offset = offset
        self.engine_waits: list[timedelta] = []

    def now(self) -> datetime:
        return self._true.now() + self._offset

    def wait(self, wake: threading.Event, until: datetime) -> None:
        if threading.current_thread().name == "tenure-engine":
            self.engine_waits.append(until - self.now())
        self._true.wait(wake, until - self._offset)


def nothing(_point: str) -> None:
    """What a manager does at a named point."""


def managers(world: World) -> dict[timedelta, Service]:
    """Return a manager for each clock, all on the world's database and cloud."""
    return {offset: another(world, clock=ClockApart(world.clock, offset), checkpoint=nothing) for offset in OFFSETS}


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_lease_starts_and_ends_at_its_time_by_the_database(world: World, offset: timedelta):
    manager = managers(world)[offset]
    lease = world.book(1, start=1, hours=1)
    for moment, before, after in ((1, "PENDING", "ACTIVE"), (2, "ACTIVE", "TERMINATED")):
        world.clock.set(lease.created_at + moment * HOUR - SECOND)
        assert manager.engine.settle() == 0
        assert status_of(world, lease.id) == before
        world.clock.advance(SECOND)
        assert manager.engine.settle() > 0
        assert status_of(world, lease.id) == after
    assert_all_in_pool(world)


@pytest.mark.parametrize("taker", OFFSETS)
@pytest.mark.parametrize("holder", OFFSETS)
def test_a_claim_lasts_as_long_for_every_clock(
    world: World, checkpoints: Checkpoints, holder: timedelta, taker: timedelta
):
    """A manager that lives keeps its event, however far ahead another's clock is; a manager that died loses it."""
    holding = another(world, clock=ClockApart(world.clock, holder))
    taking = managers(world)[taker]
    taken: list[int] = []

    def let_others_try() -> None:
        world.clock.advance(CLAIM - SECOND)
        taken.append(taking.engine.settle())
        world.clock.advance(SECOND)
        taken.append(taking.engine.settle())

    lease = world.book(1, hours=3)
    checkpoints.at("start_lease:after_claim", let_others_try)
    holding.engine.settle()
    assert taken == [0, 1]
    assert path_of(world, lease.id) == ["PENDING", "STARTING", "ACTIVE"]
    assert event_of(world, lease.id, EventType.START).attempts == 1


@pytest.mark.parametrize("offset", OFFSETS)
def test_an_engine_sleeps_until_the_next_event_and_never_not_at_all(world: World, offset: timedelta):
    """By its own clock, an engine that is ahead would never sleep, and an engine that is behind would be late."""
    clock = ClockApart(world.clock, offset)
    manager = another(world, clock=clock, checkpoint=nothing)
    world.reserve(reservation(1, 1), start=SECOND / HOUR, hours=1)
    manager.engine.start()
    try:
        wait_for("the engine to sleep", lambda: clock.engine_waits)
        assert clock.engine_waits == [SECOND]
        world.clock.advance(SECOND)
        wait_for("the engine to sleep again", lambda: clock.engine_waits[-1] == POLL)
    finally:
        manager.engine.stop()
    assert min(clock.engine_waits) > timedelta(0)


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_booking_from_now_never_shares_a_host(one_database_url: str, offset: timedelta):
    """``now`` is that of the manager that books. Where its clock is behind, the hosts may have been another's then."""
    with open_world(one_database_url, hosts=1) as world:
        manager = managers(world)[offset]
        before = world.book(1, hours=2)
        world.pass_time(HOUR)
        world.leases.delete(OWNER, before.id)
        world.pass_time(20 * SECOND)
        request = LeaseRequest("now", Moment.NOW, world.clock.now() + HOUR, reservations=(reservation(1, 1),))
        book = partial(manager.manager.leases.create, OWNER, request)
        if offset < timedelta(0):
            with pytest.raises(NotEnoughResources):  # by its clock, the host is not free yet
                book()
            world.pass_time(20 * SECOND)
        lease = book()
        for seconds in range(0, 41, 20):  # not before the manager's own now has come by the database's clock
            starts = max(world.clock.now(), lease.starts_at)
            manager.engine.settle()
            assert (status_of(world, lease.id) == "ACTIVE") == (starts <= world.clock.now()), seconds
            world.pass_time(20 * SECOND)
        assert status_of(world, lease.id) == "ACTIVE"
        assert ledger.faults(one_database_url) == []


@contextmanager
def open_managers(url: str, *, hosts: int) -> Iterator[list[Service]]:
    """Managers with their own threads and connections on one database, which has its own clock."""
    schemas_of = Database(url)
    schemas.lay_out(schemas_of)
    schemas_of.close()
    with SimulatedCloud.create(hosts=hosts) as cloud, ExitStack() as stack:
        found = cloud.discover(HOST)
        for host in found:
            cloud.ensure_registered(HOST, ResourceRef(host.external_id, host.name, host.region))
        databases = [Database(url) for _ in OFFSETS]
        services = []
        for db, offset in zip(databases, OFFSETS, strict=True):
            stack.callback(db.close)
            clock = ClockApart(SystemClock(), offset)
            authorize = default_policies().authorize
            services.append(build(Components(db, cloud, installed_types(), authorize, clock=clock, workers=4)))
        databases[0].write(lambda tx: tx.resources.add_many(found, [{} for _ in found], now=SystemClock().now()))
        for service in services:
            service.engine.start()
            stack.callback(service.engine.stop)
        yield services


@pytest.mark.races
@pytest.mark.long
def test_engines_side_by_side_start_and_end_each_lease_once_and_not_too_soon(database_url: str):
    """By the clock of the machine, which is the database's here."""
    with open_managers(database_url, hosts=12) as services:
        leases, cloud = services[1].manager.leases, services[1].components.driver
        assert isinstance(cloud, SimulatedCloud)
        now = SystemClock().now()
        begins = [now + (1 + index % 3) * SECOND for index in range(12)]
        booked = [
            leases.create(OWNER, LeaseRequest("lease", begin, begin + HOUR, reservations=(reservation(1, 1),)))
            for begin in begins
        ]
        wait_for("all to be started", lambda: statuses(services, booked) == {"ACTIVE"})
        now = SystemClock().now()
        ends = [now + (1 + index % 3) * SECOND for index in range(12)]
        for lease, end in zip(booked, ends, strict=True):
            leases.update(OWNER, lease.id, LeaseChange(ends_at=end))
        wait_for("all to be ended", lambda: statuses(services, booked) == {"TERMINATED"})
        for lease, begin, end in zip(booked, begins, ends, strict=True):
            effects = cloud.world.journal(lease.reservations[0].id)
            [taken] = [effect.at for effect in effects if effect.kind == EffectKind.HOST_TAKEN]
            [returned] = [effect.at for effect in effects if effect.kind == EffectKind.HOST_RETURNED]
            assert begin <= taken < returned
            assert end <= returned
            events = leases.get(OWNER, lease.id).events
            assert {event.attempts for event in events if event.event_type in {EventType.START, EventType.END}} == {1}
        assert ledger.faults(database_url) == []


def statuses(services: list[Service], booked: list[Lease]) -> set[str]:
    return {services[1].manager.leases.get(OWNER, lease.id).status.value for lease in booked}
