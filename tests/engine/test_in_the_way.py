"""Obstacles to a start: servers of others, and hosts that are not released in time."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import EventStatus, EventType, Lease, LeaseStatus
from tenure.domain.request import LeaseChange, ReservationChange
from tenure.drivers.simulated import EffectKind, Fault, FaultKind
from tests.support.engines import (
    HOUR,
    MINUTE,
    SECOND,
    assert_all_in_pool,
    effects_of,
    event_of,
    lease_of,
    path_of,
    status_of,
)
from tests.support.world import NOW, OWNER, World, instance_reservation, open_world, reservation


def slow_end(world: World, lease, until) -> None:
    world.cloud.inject(Fault(FaultKind.SLOW, verb="ensure_ended", reservation_id=lease.reservations[0].id, until=until))


# --- other people's servers


def test_occupied_host_is_replaced_by_a_free_host(world: World):
    lease = world.book(2, start=1)
    occupied = world.hosts_of(lease.id)
    for host in occupied:
        world.cloud.world.force_server("somebody", host)
    world.pass_time(HOUR)
    after = lease_of(world, lease.id)
    assert after.status is LeaseStatus.ACTIVE
    assert not set(world.hosts_of(lease.id)) & set(occupied)
    assert len(world.cloud.world.servers()) == 2
    assert effects_of(world, EffectKind.SERVER_DELETED) == []


def test_start_without_a_free_host_is_retried_with_a_reason(world: World):
    lease = world.book(4, start=1)
    [host] = world.hosts_of(lease.id)[:1]
    server = world.cloud.world.force_server("somebody", host)
    world.pass_time(HOUR + 10 * SECOND)
    waiting = lease_of(world, lease.id)
    assert waiting.status is LeaseStatus.STARTING
    assert waiting.status_reason == "Resources of the lease are still used by others."
    assert waiting.status_detail == f"1: 1 servers of others run on {host}"
    assert effects_of(world, EffectKind.HOST_TAKEN) == []
    world.cloud.world.delete_server(server)
    world.pass_time(10 * SECOND)
    after = lease_of(world, lease.id)
    assert (after.status, after.status_reason) == (LeaseStatus.ACTIVE, None)


@pytest.mark.slow
def test_start_that_stays_blocked_is_given_up(world: World):
    lease = world.book(4, start=1, hours=3)
    world.cloud.world.force_server("somebody", world.hosts_of(lease.id)[0])
    world.pass_time(2 * HOUR + MINUTE)
    assert lease_of(world, lease.id).status is LeaseStatus.ERROR
    assert event_of(world, lease.id, EventType.START).status is EventStatus.ERROR
    assert_all_in_pool(world)


@pytest.mark.slow
def test_a_start_that_is_moved_again_and_again_comes_to_an_end(world: World):
    """Every host has a stranger on it: each is tried, then the failure is shown like any other."""
    lease = world.book(1, start=1, hours=3)
    for host in world.cloud.world.hosts():
        world.cloud.world.force_server("somebody", host.name)
    world.pass_time(2 * HOUR + MINUTE, leap=20 * SECOND)
    assert lease_of(world, lease.id).status is LeaseStatus.ERROR
    assert_all_in_pool(world)
    assert len(world.cloud.world.servers()) == 4


def test_change_replaces_occupied_hosts(world: World):
    lease = world.book(1, hours=3)
    world.engine.settle()
    free = sorted(world.cloud.world.pool())
    world.cloud.world.force_server("somebody", free[0])
    change = ReservationChange(lease.reservations[0].id, {"min": 3, "max": 3})
    world.leases.update(OWNER, lease.id, LeaseChange(reservations=(change,)))
    world.pass_time(5 * SECOND)
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
    [group] = world.cloud.world.groups().values()
    assert len(group.hosts) == 3
    assert free[0] not in group.hosts
    held = {
        leased.resource.external_id
        for leased in world.leases.resources(OWNER, lease.id, "physical:host")
        if leased.state.value == "held"
    }
    assert held == set(group.hosts)
    world.pass_time(3 * HOUR)
    assert_all_in_pool(world)


def test_occupied_until_after_its_end(world: World):
    """The lease ends while its start is being moved: nothing is left, and the end comes at its time."""
    lease = world.book(4, start=1, hours=0.02)
    world.cloud.world.force_server("somebody", world.hosts_of(lease.id)[0])
    world.pass_time(2 * HOUR)
    assert path_of(world, lease.id)[-1] == "TERMINATED"
    assert_all_in_pool(world)


# --- hosts that are not given back


@pytest.mark.slow
def test_a_start_waits_for_a_host_that_is_not_given_back(world: World):
    slow = world.book(4, hours=1)
    following = world.book(4, start=1, hours=2)
    world.engine.settle()
    slow_end(world, slow, NOW + HOUR + 10 * MINUTE)
    world.pass_time(HOUR + 9 * MINUTE)
    assert lease_of(world, following.id).status is LeaseStatus.PENDING
    assert event_of(world, following.id, EventType.START).attempts == 0
    world.pass_time(2 * MINUTE)
    assert lease_of(world, following.id).status is LeaseStatus.ACTIVE
    assert path_of(world, following.id) == ["PENDING", "STARTING", "ACTIVE"]


@pytest.mark.slow
def test_start_that_waits_until_its_end_is_missed(world: World):
    slow = world.book(4, hours=1)
    following = world.book(4, start=1, hours=0.1)
    world.engine.settle()
    slow_end(world, slow, NOW + HOUR + 10 * MINUTE)
    world.pass_time(2 * HOUR, leap=20 * SECOND)
    missed = lease_of(world, following.id)
    assert missed.status is LeaseStatus.TERMINATED
    assert "missed" in (missed.status_reason or "")
    assert path_of(world, following.id) == ["PENDING", "TERMINATING", "TERMINATED"]
    assert lease_of(world, slow.id).status is LeaseStatus.TERMINATED
    assert_all_in_pool(world)


def test_plan_on_an_overdue_host_moves_to_a_free_host(world: World):
    slow = world.book(2, hours=1)
    following = world.book(2, start=1, hours=2)
    world.engine.settle()
    assert world.hosts_of(following.id) == world.hosts_of(slow.id)
    slow_end(world, slow, NOW + 9 * HOUR)
    world.pass_time(HOUR)
    assert lease_of(world, following.id).status is LeaseStatus.ACTIVE
    assert not set(world.hosts_of(following.id)) & set(world.hosts_of(slow.id))
    assert event_of(world, following.id, EventType.START).attempts == 1


@pytest.mark.slow
def test_waiting_start_moves_as_soon_as_a_host_is_free(world: World):
    """It does not move where it would have to wait as well, and it waits no longer than it must."""
    slow = world.book(2, hours=1)
    other = world.book(2, hours=2)
    following = world.book(2, start=1, hours=4)
    world.engine.settle()
    assert world.hosts_of(following.id) == world.hosts_of(slow.id)
    slow_end(world, slow, NOW + 9 * HOUR)
    world.pass_time(HOUR + 5 * MINUTE)
    assert lease_of(world, following.id).status is LeaseStatus.PENDING
    world.leases.delete(OWNER, other.id)
    world.engine.settle()
    assert lease_of(world, following.id).status is LeaseStatus.ACTIVE
    assert not set(world.hosts_of(following.id)) & set(world.hosts_of(slow.id))


def test_overdue_host_is_not_promised_to_leases_that_start_soon(world: World):
    slow = world.book(4, hours=1)
    world.engine.settle()
    slow_end(world, slow, NOW + 9 * HOUR)
    world.pass_time(HOUR + MINUTE)
    with pytest.raises(NotEnoughResources) as refused:
        world.book(1, hours=1)
    assert {stage.stage: stage.count for stage in refused.value.shortfall.stages}["free"] == 0
    world.book(4, start=1, hours=1)


def instances(world: World, vcpus: int, *, start: float = 0, hours: float = 1) -> Lease:
    """A lease of one instance of this size; a host has 32 processors."""
    return world.reserve(instance_reservation(vcpus=vcpus), start=start, hours=hours)


@pytest.mark.slow
def test_overdue_parts_count_with_their_amounts(tmp_path: Path) -> None:
    """On the only host, just the leases that fit beside the overdue parts can start."""
    with open_world(tmp_path, hosts=1) as world:
        slow = instances(world, 8)
        small, large = instances(world, 12, start=1, hours=3), instances(world, 20, start=1, hours=3)
        world.engine.settle()
        slow_end(world, slow, NOW + HOUR + 10 * MINUTE)
        world.pass_time(HOUR + 9 * MINUTE, leap=20 * SECOND)
        statuses = Counter(lease_of(world, lease.id).status for lease in (small, large))
        assert statuses == {LeaseStatus.ACTIVE: 1, LeaseStatus.PENDING: 1}
        with pytest.raises(NotEnoughResources):
            instances(world, 1)
        world.pass_time(2 * MINUTE)
        assert {lease_of(world, lease.id).status for lease in (small, large)} == {LeaseStatus.ACTIVE}


@pytest.mark.slow
def test_the_whole_of_a_host_waits_for_parts_of_it(tmp_path: Path) -> None:
    with open_world(tmp_path, hosts=1) as world:
        slow = instances(world, 8)
        following = world.book(1, start=1.2)
        world.engine.settle()
        slow_end(world, slow, NOW + HOUR + 14 * MINUTE)
        world.pass_time(HOUR + MINUTE)
        with pytest.raises(NotEnoughResources):
            world.book(1, hours=0.1)
        world.pass_time(12 * MINUTE, leap=20 * SECOND)
        assert lease_of(world, following.id).status is LeaseStatus.PENDING
        world.pass_time(2 * MINUTE)
        assert lease_of(world, following.id).status is LeaseStatus.ACTIVE


@pytest.mark.slow
def test_a_deleted_lease_that_is_not_given_back_counts_as_taken(world: World):
    slow = world.book(4, hours=5)
    world.engine.settle()
    slow_end(world, slow, NOW + 10 * MINUTE)
    world.leases.delete(OWNER, slow.id)
    with pytest.raises(NotEnoughResources):
        world.book(1, hours=1)
    world.pass_time(11 * MINUTE)
    assert status_of(world, slow.id) is LeaseStatus.DELETED
    world.book(4, hours=1)
    world.engine.settle()
    assert len(world.cloud.world.groups()) == 1


def test_an_extension_is_refused_once_the_end_is_claimed(world: World):
    slow = world.book(1, hours=1)
    world.engine.settle()
    slow_end(world, slow, NOW + 9 * HOUR)
    world.pass_time(HOUR - SECOND)
    world.leases.update(OWNER, slow.id, LeaseChange(ends_at=NOW + 2 * HOUR))
    world.pass_time(HOUR + SECOND)
    with pytest.raises(Exception, match="TERMINATING"):
        world.leases.update(OWNER, slow.id, LeaseChange(ends_at=NOW + 3 * HOUR))


@pytest.mark.slow
def test_many_waiting_starts_delay_no_other(tmp_path):
    """Forty starts wait for hosts that do not come back; the fortieth-first has its own."""
    with open_world(tmp_path, hosts=41) as world:
        slow = world.book(40, hours=1)
        following = [world.book(1, start=1, hours=3) for _ in range(40)]
        own = world.book(1, start=1, hours=3)
        world.engine.settle()
        slow_end(world, slow, NOW + 9 * HOUR)
        world.pass_time(HOUR)
        active = [lease for lease in (*following, own) if lease_of(world, lease.id).status is LeaseStatus.ACTIVE]
        assert len(active) == 1
        assert {lease_of(world, lease.id).status for lease in following} <= {LeaseStatus.PENDING, LeaseStatus.ACTIVE}
        world.cloud.clear_faults()
        world.pass_time(timedelta(seconds=15))
        assert {lease_of(world, lease.id).status for lease in (*following, own)} == {LeaseStatus.ACTIVE}


@pytest.mark.slow
@pytest.mark.parametrize("obstacle", ["a late teardown", "a server of others"])
def test_blocked_start_makes_plans_move(tmp_path: Path, obstacle: str):
    """A new lease for the same time would get the host whose plan can move; the waiting lease comes first."""
    with open_world(tmp_path, hosts=3) as world:
        before = world.reserve_on(1, reservation(1, 1)) if obstacle == "a late teardown" else None
        running = world.reserve_on(3, reservation(1, 1), hours=2)
        world.engine.settle()
        lease = world.reserve_on(1, reservation(1, 1), start=1, hours=4)
        plan = world.reserve_on(2, reservation(1, 1), start=3)
        if before is not None:
            slow_end(world, before, None)
        else:
            world.cloud.world.force_server("somebody", "sim-host-001")
        world.pass_time(HOUR + 10 * MINUTE)
        assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
        assert world.hosts_of(lease.id) == ["sim-host-002"]
        assert world.hosts_of(plan.id) == world.hosts_of(running.id) == ["sim-host-003"]
