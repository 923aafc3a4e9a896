"""A clock that is set back, by a time server or when a machine is resumed: old time stamps lie in the future then."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import LeaseStatus
from tenure.domain.resource import ResourceHealth
from tenure.engine.loop import Periodic
from tenure.planning.steps import ticks
from tenure.services.context import Rules
from tenure.services.notifications.outbox import Message
from tenure.services.planning.index import AvailabilityIndex
from tests.support.engines import (
    HOUR,
    MINUTE,
    POINTS,
    SECOND,
    Checkpoints,
    Killed,
    another,
    lease_of,
    rebuild,
    status_of,
)
from tests.support.simulated import HostHealth
from tests.support.waiting import wait_for
from tests.support.world import ADMIN, HOST, OWNER, World, open_world

BACK = 10 * MINUTE


def nothing(_point: str) -> None:
    """What another manager does at a named point."""


def health(world: World) -> ResourceHealth:
    return world.resources.get(ADMIN, HOST, "1").health


def test_a_failed_host_is_detected_at_once(world: World):
    for host_health in (HostHealth.DOWN, HostHealth.UP):
        world.cloud.world.mark_host("sim-host-001", host_health)
        world.service.health_check.run()
    world.clock.set(world.clock.now() - BACK)
    world.cloud.world.mark_host("sim-host-001", HostHealth.DOWN)
    world.service.health_check.run()
    assert health(world) is ResourceHealth.DOWN


def test_a_host_that_had_failed_before_is_replaced(tmp_path: Path):
    with open_world(tmp_path, hosts=2, rules=Rules(replace_after=5 * MINUTE)) as world:
        lease = world.book(1, hours=5)
        world.engine.settle()
        [host] = world.hosts_of(lease.id)
        world.cloud.world.mark_host(host, HostHealth.DOWN)
        world.service.health_check.run()
        world.clock.set(world.clock.now() - BACK)
        world.clock.advance(5 * MINUTE)
        world.service.health_check.run()
        world.engine.settle()
        assert host not in world.hosts_of(lease.id)


@pytest.mark.parametrize("point", POINTS)
def test_event_of_a_dead_manager_is_taken_over(world: World, checkpoints: Checkpoints, point: str):
    other = another(world, checkpoint=nothing)
    lease = world.book(1, hours=3)
    other.clock_watch.run()
    checkpoints.kill_at(f"start_lease:{point}")
    with pytest.raises(Killed):
        world.engine.settle()
    world.clock.set(world.clock.now() - BACK)
    other.clock_watch.run()
    world.clock.advance(SECOND)
    other.engine.settle()
    assert status_of(world, lease.id) is LeaseStatus.ACTIVE


def test_manager_started_later_takes_over_too(world: World, checkpoints: Checkpoints):
    lease = world.book(1, hours=3)
    checkpoints.kill_at("start_lease:after_claim")
    with pytest.raises(Killed):
        world.engine.settle()
    world.clock.set(world.clock.now() - BACK)
    world.restart()
    world.service.clock_watch.run()
    world.engine.settle()
    assert status_of(world, lease.id) is LeaseStatus.ACTIVE


def test_running_attempt_keeps_its_claim(world: World, checkpoints: Checkpoints):
    """A claim that was made by the new time lasts as long as any."""
    other = another(world, checkpoint=nothing)
    other.clock_watch.run()
    world.clock.set(world.clock.now() - BACK)
    taken: list[int] = []

    def let_the_other_try() -> None:
        other.clock_watch.run()
        taken.append(other.engine.settle())

    checkpoints.at("start_lease:after_claim", let_the_other_try)
    lease = world.book(1, hours=3)
    world.engine.settle()
    assert taken == [0]
    assert status_of(world, lease.id) is LeaseStatus.ACTIVE


def test_retry_is_not_delayed_by_the_set_back_clock(world: World):
    """Neither the teardown nor the message that failed before."""
    refuse = True
    messages: list[Message] = []

    def tell(message: Message) -> None:
        if refuse:
            raise ConnectionError
        messages.append(message)

    rebuild(world, sink=tell)
    lease = world.book(1, hours=1)
    world.engine.settle()
    world.service.clock_watch.run()
    refuse = False
    world.clock.set(world.clock.now() - BACK)
    world.service.clock_watch.run()
    world.engine.settle()
    assert "lease.create" in {message.topic for message in messages}
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE


def test_future_events_keep_their_time(world: World):
    later = world.book(1, start=1, hours=1)
    world.service.clock_watch.run()
    world.clock.set(world.clock.now() - BACK)
    world.service.clock_watch.run()
    world.pass_time(HOUR + BACK - SECOND)
    assert status_of(world, later.id) is LeaseStatus.PENDING
    world.pass_time(SECOND)
    assert status_of(world, later.id) is LeaseStatus.ACTIVE


@pytest.mark.parametrize("begun", [True, False])
def test_host_that_was_released_by_the_earlier_clock_is_free(tmp_path: Path, begun: bool):
    """A clock that was hours ahead has ended leases whose planned end lies in the future again."""
    cleaning = 5 * MINUTE
    with open_world(tmp_path, hosts=1, rules=Rules(cleaning_time=cleaning)) as world:
        before = world.clock.now()
        lease = world.book(1, start=0 if begun else 1, hours=4)
        world.engine.settle()
        index = AvailabilityIndex(world.db, world.clock)
        index.view()
        for _ in range(6):
            world.pass_time(HOUR)
        assert status_of(world, lease.id) is LeaseStatus.TERMINATED
        world.clock.set(before + 10 * MINUTE)
        world.service.clock_watch.run()
        free_at = world.clock.now() + cleaning
        busy = index.view().latest.uses
        assert set(busy.ends[busy.ends > ticks(world.clock.now())]) <= {ticks(free_at)}
        world.clock.set(free_at)
        world.book(1, hours=1)
        world.engine.settle()


def test_clock_that_was_not_set_back_leaves_the_cleaning_time(tmp_path: Path):
    with open_world(tmp_path, hosts=1, rules=Rules(cleaning_time=HOUR)) as world:
        lease = world.book(1, hours=4)
        world.engine.settle()
        world.leases.delete(OWNER, lease.id)
        world.engine.settle()
        world.restart()
        world.service.clock_watch.run()
        with pytest.raises(NotEnoughResources):
            world.book(1, start=0.5, hours=1)


def test_clock_that_jumps_forward_ends_and_starts_what_is_due(tmp_path: Path):
    """What ended comes before what starts, and a lease that was over before it could start gives its host back."""
    with open_world(tmp_path, hosts=1) as world:
        running, missed, later = world.book(1, hours=1), world.book(1, start=2), world.book(1, start=4, hours=40)
        world.engine.settle()
        world.clock.advance(10 * HOUR)
        world.service.clock_watch.run()
        world.engine.settle()
        assert status_of(world, running.id) is LeaseStatus.TERMINATED
        assert status_of(world, missed.id) in {LeaseStatus.TERMINATED, LeaseStatus.ERROR}
        assert status_of(world, later.id) is LeaseStatus.ACTIVE
        assert world.hosts_of(later.id) == ["sim-host-001"]


def test_periodic_task_is_not_delayed_by_a_clock_that_is_set_back_meanwhile(world: World):
    runs: list[datetime] = []
    engine = world.engine

    def run() -> None:
        runs.append(world.clock.now())
        if len(runs) == 1:
            world.clock.set(world.clock.now() - HOUR)

    engine.add(Periodic("test", run, MINUTE))
    engine.start()
    try:
        wait_for("the first run", lambda: runs)
        world.clock.advance(MINUTE)
        wait_for("the second run", lambda: len(runs) > 1)
    finally:
        engine.stop()
