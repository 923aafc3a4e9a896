"""A slow end delays nobody: one teardown hangs, and all the others go on as if it did not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import LeaseRequest
from tenure.drivers.simulated import Fault, FaultKind
from tests.support import ledger
from tests.support.engines import HOUR, MINUTE, SECOND, assert_all_in_pool, status_of, wait_for
from tests.support.world import NOW, OWNER, World, open_world, reservation

ENDED = NOW + HOUR


@contextmanager
def running(world: World) -> Iterator[None]:
    world.engine.start()
    try:
        yield
    finally:
        world.cloud.clear_faults()
        world.engine.stop()


def book(world: World, starts_at: datetime, ends_at: datetime) -> Lease:
    return world.leases.create(OWNER, LeaseRequest("lease", starts_at, ends_at, reservations=(reservation(1, 1),)))


def active_since(world: World, lease: Lease) -> datetime:
    return next(entry.at for entry in world.leases.history(OWNER, lease.id) if entry.to_status == "ACTIVE")


def hang(world: World, lease: Lease) -> int:
    """From now on the lease's teardown does not return."""
    return world.cloud.inject(
        Fault(FaultKind.BLOCK, verb="ensure_ended", reservation_id=lease.reservations[0].id, count=None)
    )


@pytest.mark.slow
def test_a_teardown_that_hangs_ten_minutes_delays_none_of_two_hundred(tmp_path):
    """The call itself hangs, for longer than its claim lasts. 200 leases start in the same minute, at its seconds."""
    url = f"sqlite:///{tmp_path / 'tenure.db'}"
    with open_world(url, hosts=201, workers=16) as world:
        slow = book(world, NOW, ENDED)
        world.engine.round()
        others = [book(world, ENDED + (number % 60) * SECOND, ENDED + HOUR) for number in range(200)]
        fault = hang(world, slow)
        with running(world):
            wait_for(world, [slow], {LeaseStatus.ACTIVE})
            world.clock.set(ENDED)
            assert world.cloud.wait_until_blocked()
            for second in range(60):
                world.clock.set(ENDED + second * SECOND)
                wait_for(world, [one for one in others if one.starts_at <= world.clock.now()], {LeaseStatus.ACTIVE})
            assert status_of(world, slow.id) is LeaseStatus.TERMINATING
            assert max(active_since(world, one) - one.starts_at for one in others) <= 2 * SECOND
            world.clock.set(ENDED + 10 * MINUTE)
            world.cloud.clear_faults(fault)
            wait_for(world, [slow], {LeaseStatus.TERMINATED})
            world.clock.set(ENDED + HOUR)
            wait_for(world, others, {LeaseStatus.TERMINATED})
        assert_all_in_pool(world)
    assert ledger.faults(url) == []


def test_without_workers_side_by_side_it_would_delay_everybody(tmp_path):
    """What the test above rests on: with a single worker the starts come when the teardown is over."""
    with open_world(f"sqlite:///{tmp_path / 'tenure.db'}", hosts=6, workers=1) as world:
        slow = book(world, NOW, ENDED)
        others = [book(world, ENDED, ENDED + HOUR) for _ in range(5)]
        fault = hang(world, slow)
        with running(world):
            wait_for(world, [slow], {LeaseStatus.ACTIVE})
            world.clock.set(ENDED)
            assert world.cloud.wait_until_blocked()
            world.clock.set(ENDED + 10 * MINUTE)
            world.cloud.clear_faults(fault)
            wait_for(world, others, {LeaseStatus.ACTIVE})
            assert {active_since(world, one) for one in others} == {ENDED + 10 * MINUTE}


def test_servers_that_do_not_vanish_hold_no_worker(tmp_path):
    """More slow teardowns than workers, each asked for again and again for ten minutes: the others start on time."""
    with open_world(f"sqlite:///{tmp_path / 'tenure.db'}", hosts=60, workers=4) as world:
        slow = [book(world, NOW, ENDED) for _ in range(20)]
        others = [book(world, ENDED, ENDED + HOUR) for _ in range(40)]
        for one in slow:
            world.cloud.inject(
                Fault(
                    FaultKind.SLOW,
                    verb="ensure_ended",
                    reservation_id=one.reservations[0].id,
                    until=ENDED + 10 * MINUTE,
                )
            )
        with running(world):
            wait_for(world, slow, {LeaseStatus.ACTIVE})
            world.clock.set(ENDED)
            wait_for(world, others, {LeaseStatus.ACTIVE})
            assert {active_since(world, one) for one in others} == {ENDED}
            assert {status_of(world, one.id) for one in slow} == {LeaseStatus.TERMINATING}
            world.clock.set(ENDED + 10 * MINUTE)
            wait_for(world, slow, {LeaseStatus.TERMINATED})
