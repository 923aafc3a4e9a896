"""A slow end does not delay other leases: a teardown hangs, and all other events proceed."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import ComponentHealth, LeaseChange, LeaseRequest
from tenure.drivers.simulated import Fault, FaultKind
from tenure.engine import loop
from tenure.services.context import Rules
from tenure.services.execution.workers import Lane
from tenure.store.events import PATIENCE
from tests.support import ledger
from tests.support.engines import HOUR, MINUTE, SECOND, assert_all_in_pool, running, status_of, wait_for_leases
from tests.support.waiting import patience
from tests.support.world import NOW, OWNER, World, open_world, reservation, url_in

ENDED = NOW + HOUR


def book(world: World, starts_at: datetime, ends_at: datetime) -> Lease:
    return world.leases.create(OWNER, LeaseRequest("lease", starts_at, ends_at, reservations=(reservation(1, 1),)))


def active_since(world: World, lease: Lease) -> datetime:
    return next(entry.at for entry in world.leases.history(OWNER, lease.id) if entry.to_status == "ACTIVE")


def hang(world: World, lease: Lease) -> int:
    """Let the teardown of the lease hang from now on."""
    return world.cloud.inject(
        Fault(FaultKind.BLOCK, verb="ensure_ended", reservation_id=lease.reservations[0].id, count=None)
    )


@pytest.mark.slow
def test_teardown_that_hangs_ten_minutes_delays_none_of_two_hundred_starts(tmp_path):
    """The call hangs for longer than its claim lasts. 200 leases start in the same minute, spread over its seconds.

    One of them was planned on the host that hangs: it waits for the usual time, and gets another host.
    """
    url = url_in(tmp_path)
    with open_world(url, hosts=201, workers=16) as world:
        slow = book(world, NOW, ENDED)
        world.engine.round()
        others = [book(world, ENDED + (index % 60) * SECOND, ENDED + HOUR) for index in range(200)]
        [host] = world.hosts_of(slow.id)
        [successor] = [lease for lease in others if host in world.hosts_of(lease.id)]
        fault = hang(world, slow)
        with running(world):
            wait_for_leases(world, [slow], {LeaseStatus.ACTIVE})
            world.clock.set(ENDED)
            assert world.cloud.wait_until_blocked(timeout_seconds=patience())
            for second in range(60):
                now = ENDED + second * SECOND
                world.clock.set(now)
                on_time = {lease.id: lease for lease in others if lease.starts_at <= now}
                if now < successor.starts_at + PATIENCE:
                    on_time.pop(successor.id, None)
                wait_for_leases(world, on_time.values(), {LeaseStatus.ACTIVE})
            assert status_of(world, slow.id) is LeaseStatus.TERMINATING
            delays = {lease.id: active_since(world, lease) - lease.starts_at for lease in others}
            assert delays.pop(successor.id) <= PATIENCE + SECOND
            assert max(delays.values()) <= SECOND
            world.clock.set(ENDED + 10 * MINUTE)
            world.cloud.clear_faults(fault)
            wait_for_leases(world, [slow], {LeaseStatus.TERMINATED})
            world.clock.set(ENDED + HOUR)
            wait_for_leases(world, others, {LeaseStatus.TERMINATED})
        assert_all_in_pool(world)
    assert ledger.faults(url) == []


@pytest.mark.slow
@pytest.mark.parametrize("separate", [True, False], ids=["separate workers for starts", "shared workers"])
def test_hanging_teardowns_delay_starts_only_with_shared_workers(
    tmp_path, monkeypatch: pytest.MonkeyPatch, separate: bool
):
    """More teardowns hang than there are workers, and than the engine claims in a round."""
    monkeypatch.setattr(loop, "BATCH", 6)
    with open_world(tmp_path, hosts=20, workers=4) as world:
        if not separate:
            workers = world.engine._workers  # without the guard
            monkeypatch.setitem(workers._free, Lane.STARTS, workers._free[Lane.OTHERS])
        slow = [book(world, NOW, ENDED + HOUR) for _ in range(10)]
        others = [book(world, ENDED + MINUTE, ENDED + HOUR) for _ in range(10)]  # on other hosts
        for lease in slow:
            world.leases.update(OWNER, lease.id, LeaseChange(ends_at=ENDED))
        with running(world):
            wait_for_leases(world, slow, {LeaseStatus.ACTIVE})
            for lease in slow:
                hang(world, lease)
            world.clock.set(ENDED)
            assert world.cloud.wait_until_blocked(4, timeout_seconds=patience())
            world.clock.set(ENDED + MINUTE)
            if separate:
                wait_for_leases(world, others, {LeaseStatus.ACTIVE})
                assert {active_since(world, lease) for lease in others} == {ENDED + MINUTE}
            else:
                assert world.engine.round() == 0
                assert {status_of(world, lease.id) for lease in others} == {LeaseStatus.PENDING}


def test_health_reports_due_events_without_a_worker(tmp_path):
    """Claimed events do not count, and the first half minute is tolerated."""
    rules = Rules(notice_before_end=timedelta(0))
    with open_world(tmp_path, hosts=4, workers=2, rules=rules) as world:
        slow = [book(world, NOW, ENDED) for _ in range(2)]
        with running(world):
            wait_for_leases(world, slow, {LeaseStatus.ACTIVE})
            for lease in slow:
                hang(world, lease)
            world.clock.set(ENDED)
            assert world.cloud.wait_until_blocked(2, timeout_seconds=patience())
            third = book(world, ENDED, ENDED + HOUR)
            wait_for_leases(world, [third], {LeaseStatus.ACTIVE})
            world.clock.set(ENDED + 50 * SECOND)
            assert engine_of(world) == ComponentHealth("engine", True)
            world.leases.update(OWNER, third.id, LeaseChange(ends_at=ENDED + 50 * SECOND))
            world.clock.set(ENDED + 55 * SECOND)
            assert engine_of(world).well
            world.clock.set(ENDED + 10 * MINUTE)
            health = engine_of(world)
            assert not health.well
            assert "has been due for 550 seconds" in (health.reason or "")
            world.cloud.clear_faults()
            wait_for_leases(world, [*slow, third], {LeaseStatus.TERMINATED})
            assert engine_of(world).well
        assert engine_of(world) == ComponentHealth("engine", False, "it does not run")


def engine_of(world: World) -> ComponentHealth:
    """Return the health of the engine."""
    return next(component for component in world.service.manager.health() if component.component == "engine")


@pytest.mark.slow
def test_servers_that_are_slow_to_vanish_occupy_no_worker(tmp_path):
    """More teardowns are slow than there are workers, and are retried for ten minutes: other leases start on time."""
    with open_world(tmp_path, hosts=60, workers=4) as world:
        slow = [book(world, NOW, ENDED) for _ in range(20)]
        others = [book(world, ENDED, ENDED + HOUR) for _ in range(40)]
        for lease in slow:
            world.cloud.inject(
                Fault(
                    FaultKind.SLOW,
                    verb="ensure_ended",
                    reservation_id=lease.reservations[0].id,
                    until=ENDED + 10 * MINUTE,
                )
            )
        with running(world):
            wait_for_leases(world, slow, {LeaseStatus.ACTIVE})
            world.clock.set(ENDED)
            wait_for_leases(world, others, {LeaseStatus.ACTIVE})
            assert {active_since(world, lease) for lease in others} == {ENDED}
            assert {status_of(world, lease.id) for lease in slow} == {LeaseStatus.TERMINATING}
            world.clock.set(ENDED + 10 * MINUTE)
            wait_for_leases(world, slow, {LeaseStatus.TERMINATED})
