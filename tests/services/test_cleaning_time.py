"""Cleaning time: a resource stays unused for this time after each reservation, however it ended."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tenure.domain.errors import Conflict, NotEnoughResources
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.period import TICK
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationChange, ReservationRequest
from tenure.drivers.simulated import Fault, FaultKind
from tenure.services.context import Rules
from tests.support import ledger
from tests.support.engines import rebuild
from tests.support.simulated import HostHealth
from tests.support.world import (
    ADMIN,
    HOST,
    NOW,
    OWNER,
    World,
    instance_reservation,
    open_world,
    reservation,
    url_in,
)

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
CLEANING = timedelta(minutes=10)
#: The number of hosts in the simulated cloud.
ALL = 2
#: One instance on each host, so that a request for any host conflicts with it.
INSTANCES = ReservationRequest(
    "virtual:instance",
    {"amount": ALL, "vcpus": 1, "memory_mb": 512, "disk_gb": 1, "affinity": False, "resource_properties": ""},
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    rules = Rules(cleaning_time=CLEANING)
    with open_world(tmp_path, hosts=ALL, rules=rules) as world:
        yield world


def ask(world: World, hosts: int, starts_at: datetime, ends_at: datetime) -> Lease:
    request = LeaseRequest("next", starts_at, ends_at, reservations=(reservation(hosts, hosts),))
    return world.leases.create(OWNER, request)


def assert_free_from(world: World, hosts: int, moment: datetime) -> None:
    """Check that this number of hosts can be booked from this moment on, and not one microsecond earlier."""
    with pytest.raises(NotEnoughResources):
        ask(world, hosts, moment - TICK, moment + HOUR)
    world.leases.delete(OWNER, ask(world, hosts, moment, moment + HOUR).id)


def resize(lease: Lease, hosts: int) -> ReservationChange:
    return ReservationChange(lease.reservations[0].id, {"min": hosts, "max": hosts})


def running(world: World, hosts: int, *, hours: float) -> Lease:
    lease = world.book(hosts, hours=hours)
    world.engine.settle()
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.ACTIVE
    return lease


def test_new_lease_has_cleaning_time_after_it(world: World):
    world.book(ALL, start=1, hours=1)
    assert_free_from(world, 1, NOW + 2 * HOUR + CLEANING)


def test_new_lease_needs_cleaning_time_before_the_next(world: World):
    world.book(ALL, start=5, hours=1)
    latest = NOW + 5 * HOUR - CLEANING
    with pytest.raises(NotEnoughResources):
        ask(world, 1, NOW + HOUR, latest + TICK)
    ask(world, ALL, NOW + HOUR, latest)


@pytest.mark.parametrize("asked", [reservation(ALL, ALL), INSTANCES], ids=["hosts", "instances"])
def test_moved_plan_has_cleaning_time(world: World, asked: ReservationRequest):
    lease = world.leases.create(OWNER, LeaseRequest("lease", NOW + HOUR, NOW + 2 * HOUR, reservations=(asked,)))
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 3 * HOUR))
    assert_free_from(world, 1, NOW + 3 * HOUR + CLEANING)


def test_prolonged_running_lease_has_cleaning_time(world: World):
    lease = running(world, ALL, hours=1)
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 3 * HOUR))
    assert_free_from(world, 1, NOW + 3 * HOUR + CLEANING)


def test_added_reservation_has_cleaning_time(world: World):
    lease = world.book(1, start=1, hours=1)
    world.leases.add_reservation(OWNER, lease.id, reservation(1, 1))
    assert_free_from(world, 1, NOW + 2 * HOUR + CLEANING)


def test_added_hosts_have_cleaning_time_before_and_after_the_cloud_has_followed(world: World):
    lease = running(world, 1, hours=2)
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=1))
    world.leases.update(OWNER, lease.id, LeaseChange(reservations=(resize(lease, ALL),)))
    for status in (LeaseStatus.UPDATING, LeaseStatus.ACTIVE):
        assert world.leases.get(OWNER, lease.id).status is status
        assert_free_from(world, 1, NOW + 2 * HOUR + CLEANING)
        world.pass_time(timedelta(seconds=5))


def test_refused_change_restores_the_cleaning_time(world: World):
    lease = running(world, 1, hours=4)
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", count=1))
    longer = LeaseChange(ends_at=NOW + 6 * HOUR, reservations=(resize(lease, ALL),))
    with pytest.raises(Conflict, match="undone"):
        world.leases.update(OWNER, lease.id, longer)
    assert_free_from(world, ALL, NOW + 4 * HOUR + CLEANING)


def test_shortened_and_growing_lease_keeps_its_old_end_until_the_cloud_has_followed(world: World):
    """If the cloud refuses, the lease needs its host until the old end; a new host only until the new end."""
    lease = running(world, 1, hours=10)
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=1))
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 5 * HOUR, reservations=(resize(lease, ALL),)))
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.UPDATING
    assert_free_from(world, 1, NOW + 5 * HOUR + CLEANING)
    assert_free_from(world, ALL, NOW + 10 * HOUR + CLEANING)
    world.pass_time(timedelta(seconds=5))
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.ACTIVE
    assert_free_from(world, ALL, NOW + 5 * HOUR + CLEANING)


def test_prolonged_and_growing_lease_has_its_new_end_before_the_cloud_has_followed(world: World):
    """Other leases must not book what it needs once the cloud has agreed."""
    lease = running(world, 1, hours=2)
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=1))
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 5 * HOUR, reservations=(resize(lease, ALL),)))
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.UPDATING
    assert_free_from(world, 1, NOW + 5 * HOUR + CLEANING)


def test_dropped_reservation_is_cleaned_at_once(world: World):
    two = (reservation(1, 1), reservation(1, 1))
    lease = world.leases.create(OWNER, LeaseRequest("lease", NOW, NOW + 9 * HOUR, reservations=two))
    world.pass_time(HOUR)
    world.leases.drop_reservation(OWNER, lease.id, lease.reservations[0].id)
    assert_free_from(world, 1, NOW + HOUR + CLEANING)


def test_deleted_lease_is_cleaned_at_once(world: World):
    lease = running(world, ALL, hours=9)
    world.pass_time(HOUR)
    world.leases.delete(OWNER, lease.id)
    assert_free_from(world, 1, NOW + HOUR + CLEANING)


def test_ended_lease_is_cleaned_from_its_end_on(world: World):
    running(world, ALL, hours=1)
    world.pass_time(HOUR + CLEANING / 2)
    assert_free_from(world, 1, NOW + HOUR + CLEANING)


def test_replaced_host_is_cleaned_at_once_and_the_new_host_after_the_end(world: World):
    lease = running(world, 1, hours=9)
    world.pass_time(HOUR)
    [host] = [found for found in world.cloud.discover(HOST) if [found.name] == world.hosts_of(lease.id)]
    world.resources.reallocate(ADMIN, HOST, host.external_id, running=True)
    # Both hosts belong to the lease until the cloud has followed.
    assert_free_from(world, 1, NOW + 9 * HOUR + CLEANING)
    world.engine.settle()
    assert_free_from(world, 1, NOW + HOUR + CLEANING)
    assert_free_from(world, ALL, NOW + 9 * HOUR + CLEANING)


def test_owner_does_not_see_cleaning_time(world: World):
    waiting, lease = world.book(1, start=1, hours=1), running(world, 1, hours=1)
    for own_lease in (waiting, lease):
        [shown] = world.leases.resources(OWNER, own_lease.id, HOST)
        assert (shown.period.start, shown.period.end) == (own_lease.starts_at, own_lease.ends_at)


@pytest.mark.parametrize("how", ["dropped", "replaced", "refused"])
def test_running_lease_gets_no_more_cleaning_time_than_was_booked(database_url: str, how: str):
    """The operator lengthens the cleaning time when the time after the lease is already promised to another lease."""
    with open_world(database_url, hosts=ALL + 1) as world:
        lease = world.reserve(reservation(1, 1), reservation(1, 1))
        world.engine.settle()
        following = world.book(ALL + 1 if how == "dropped" else ALL, start=1)
        rebuild(world, rules=Rules(cleaning_time=CLEANING, replace_after=timedelta(0)))
        if how == "dropped":
            world.leases.drop_reservation(OWNER, lease.id, lease.reservations[0].id)
        elif how == "replaced":
            world.cloud.world.mark_host(world.hosts_of(lease.id)[0], HostHealth.DOWN)
            world.service.health_check.run()
            world.clock.advance(timedelta(seconds=1))
            world.service.health_check.run()
            world.engine.settle()
        else:
            world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", count=1))
            with pytest.raises(Conflict, match="undone"):
                world.change(lease, min=2, max=2)
        assert ledger.faults(database_url) == []
        assert world.leases.get(OWNER, lease.id).status is LeaseStatus.ACTIVE
        world.pass_time(HOUR + CLEANING)
        assert world.leases.get(OWNER, following.id).status is LeaseStatus.ACTIVE
        assert ledger.faults(database_url) == []


def end_late(world: World, lease: Lease, by: timedelta) -> None:
    """Let the teardown of the lease last until this time after its end."""
    world.teardown_lasts(lease, until=lease.ends_at + by)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "by"),
    [
        pytest.param(reservation(1, 1), CLEANING / 2, id="host-half"),
        pytest.param(reservation(1, 1), CLEANING, id="host-all"),
        pytest.param(reservation(1, 1), 2 * CLEANING, id="host-twice"),
        pytest.param(instance_reservation(1, vcpus=64), CLEANING / 2, id="instances-half", marks=pytest.mark.long),
        pytest.param(instance_reservation(1, vcpus=64), CLEANING, id="instances-all"),
        pytest.param(instance_reservation(1, vcpus=64), 2 * CLEANING, id="instances-twice", marks=pytest.mark.long),
    ],
)
def test_late_release_is_cleaned_before_the_next_lease_starts(tmp_path: Path, asked: ReservationRequest, by: timedelta):
    with open_world(tmp_path, hosts=1, rules=Rules(cleaning_time=CLEANING)) as world:
        world.resize(64)
        before = world.reserve(asked)
        world.engine.settle()
        after = world.reserve(asked, start=(HOUR + CLEANING) / HOUR, hours=3)
        end_late(world, before, by)
        world.pass_until(before.ends_at + by + timedelta(seconds=59))
        given_back = max(
            entry.at for entry in world.leases.history(OWNER, before.id) if entry.to_status == "TERMINATED"
        )
        waiting = world.leases.get(OWNER, after.id)
        assert waiting.status is LeaseStatus.PENDING
        assert "is cleaned until" in str(waiting.status_reason)
        assert ledger.faults(url_in(tmp_path)) == []
        world.pass_until(given_back + CLEANING)
        started = world.leases.get(OWNER, after.id)
        assert (started.status, started.status_reason) == (LeaseStatus.ACTIVE, None)
        assert ledger.faults(url_in(tmp_path)) == []


def test_lease_after_a_late_release_gets_another_host_if_possible(tmp_path: Path):
    with open_world(tmp_path, hosts=2, rules=Rules(cleaning_time=CLEANING)) as world:
        before = world.reserve_on(1, reservation(1, 1))
        world.engine.settle()
        after = world.reserve_on(1, reservation(1, 1), start=(HOUR + CLEANING) / HOUR)
        end_late(world, before, CLEANING)
        world.pass_until(after.starts_at + timedelta(minutes=1))
        assert world.leases.get(OWNER, after.id).status is LeaseStatus.ACTIVE
        assert world.hosts_of(after.id) == ["sim-host-002"]


def test_lease_waits_for_cleaning_after_a_restart(tmp_path: Path) -> None:
    with open_world(tmp_path, hosts=1, rules=Rules(cleaning_time=CLEANING)) as world:
        ending = world.reserve(reservation(1, 1))
        following = world.reserve(reservation(1, 1), start=(HOUR + CLEANING) / HOUR, hours=3)
        world.teardown_lasts(ending, until=ending.ends_at + CLEANING)
        world.pass_until(ending.ends_at + CLEANING + timedelta(minutes=1))
        world.restart()
        world.service.clock_watch.run()  # its first run cannot assume anything
        world.engine.settle()
        waiting = world.leases.get(OWNER, following.id)
        assert (waiting.status, "is cleaned until" in str(waiting.status_reason)) == (LeaseStatus.PENDING, True)
        world.pass_time(CLEANING)
        assert world.leases.get(OWNER, following.id).status is LeaseStatus.ACTIVE


def test_short_teardown_delays_no_start(tmp_path: Path):
    with open_world(tmp_path, hosts=1, rules=Rules(cleaning_time=CLEANING)) as world:
        before = world.reserve(reservation(1, 1))
        world.engine.settle()
        after = world.reserve(reservation(1, 1), start=(HOUR + CLEANING) / HOUR)
        end_late(world, before, CLEANING / 12)
        world.pass_until(after.starts_at)
        assert world.leases.get(OWNER, after.id).status is LeaseStatus.ACTIVE


@pytest.mark.slow
def test_cleaning_does_not_take_all_time_of_the_next_lease(tmp_path: Path):
    with open_world(tmp_path, hosts=1, rules=Rules(cleaning_time=CLEANING)) as world:
        before = world.reserve(reservation(1, 1))
        world.engine.settle()
        after = world.reserve(reservation(1, 1), start=(HOUR + CLEANING) / HOUR, hours=CLEANING / HOUR)
        end_late(world, before, CLEANING / 6 + CLEANING)
        world.pass_until(after.starts_at + CLEANING / 3)
        assert world.leases.get(OWNER, after.id).status is LeaseStatus.ACTIVE
        assert ledger.faults(url_in(tmp_path)) == []


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_lease_behind_a_late_teardown_is_prolonged_on_its_hosts(tmp_path: Path, hosts: int):
    """Until its hosts are clean its plan begins after its start date, also for the part that is added."""
    with open_world(tmp_path, hosts=hosts, rules=Rules(cleaning_time=30 * MINUTE)) as world:
        before = world.reserve(reservation(hosts, hosts), hours=0.5)
        world.engine.settle()
        world.teardown_lasts(before, until=NOW + 45 * MINUTE)
        lease = world.reserve(reservation(hosts, hosts), start=1)
        later = world.reserve(reservation(1, 1), start=5)
        for minute in (50, 65):  # before its start date, and after it
            world.pass_until(NOW + minute * MINUTE)
            seen = world.leases.get(OWNER, lease.id, look_ahead=True)
            assert (seen.status, seen.may_end_at) == (LeaseStatus.PENDING, NOW + 4.5 * HOUR)
            for end in (3 * HOUR, 2.5 * HOUR, 4.5 * HOUR):
                world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + end))
            with pytest.raises(NotEnoughResources):
                world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 5 * HOUR))
            world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 2 * HOUR))
        world.pass_until(NOW + 3 * HOUR)
        assert world.leases.get(OWNER, lease.id).status is LeaseStatus.TERMINATED
        assert world.leases.get(OWNER, later.id).status is LeaseStatus.PENDING
