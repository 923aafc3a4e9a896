"""A clock that is set back, by a time server or when a machine is resumed: old time stamps lie in the future then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.domain.lease import LeaseStatus
from tenure.domain.resource import ResourceHealth
from tenure.drivers.simulated import HostHealth
from tenure.services.context import Rules
from tenure.services.notifications.outbox import Message
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
from tests.support.world import ADMIN, HOST, World, open_world

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
