"""The order of events: which comes first at the same instant, and which waits for which."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import timedelta

import pytest

from tenure.domain.lease import EventStatus, EventType, LeaseStatus
from tenure.domain.request import LeaseRequest
from tenure.drivers.contract import Command
from tenure.drivers.simulated import EffectKind
from tests.support.engines import (
    HOUR,
    MINUTE,
    Checkpoints,
    another,
    assert_all_in_pool,
    effects_of,
    event_of,
    lease_of,
    path_of,
    rebuild,
    wait_for_leases,
    watch,
)
from tests.support.world import NOW, OWNER, World, open_world, reservation


def topics_after(world: World, lease_id: str) -> list[str]:
    """Run the deliveries, and return the topics of a lease."""
    topics: list[str] = []
    rebuild(world, sink=lambda message: topics.append(message.topic) if message.lease_id == lease_id else None)
    world.engine.settle()
    return topics


def test_an_end_comes_before_a_start_at_the_same_instant(world: World):
    first = world.book(4, hours=1)
    second = world.book(4, start=1, hours=1)
    world.pass_time(HOUR)
    at_the_hour = [
        (effect.kind, effect.reservation_id)
        for effect in effects_of(world, EffectKind.HOST_TAKEN, EffectKind.HOST_RETURNED)
        if effect.at == NOW + HOUR
    ]
    assert (
        at_the_hour
        == [(EffectKind.HOST_RETURNED, first.reservations[0].id)] * 4
        + [(EffectKind.HOST_TAKEN, second.reservations[0].id)] * 4
    )
    assert event_of(world, second.id, EventType.START).attempts == 1


def test_an_end_comes_before_a_start_when_the_engine_was_down(world: World):
    """Both are late, by different times: no lease waits longer than it must."""
    first = world.book(4, hours=1)
    world.engine.settle()
    second = world.book(4, start=2, hours=3)
    world.clock.advance(4 * HOUR)
    world.engine.settle()
    assert lease_of(world, first.id).status is LeaseStatus.TERMINATED
    assert lease_of(world, second.id).status is LeaseStatus.ACTIVE


def test_before_the_end_comes_before_the_end_when_both_are_due(world: World):
    lease = world.book(1, hours=3, before_end="snapshot")
    world.engine.settle()
    world.boot(lease)
    world.clock.advance(4 * HOUR)
    topics = topics_after(world, lease.id)
    assert topics == ["lease.event.before_end_lease", "lease.event.end_lease"]
    assert [image.status for image in world.cloud.world.images()] == ["active"]
    assert_all_in_pool(world)


def test_start_and_before_end_at_the_same_instant(world: World):
    """The default notice of an hour, for a lease of an hour."""
    lease = world.book(1, start=1, hours=1)
    world.clock.advance(HOUR)
    assert event_of(world, lease.id, EventType.BEFORE_END).due_at == NOW + HOUR
    assert topics_after(world, lease.id) == ["lease.create", "lease.event.start_lease", "lease.event.before_end_lease"]
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE


def test_all_three_late_is_a_missed_start(world: World):
    lease = world.book(1, start=1, hours=1, before_end="snapshot")
    world.clock.advance(2 * HOUR)
    assert topics_after(world, lease.id) == ["lease.create", "lease.start_failed", "lease.event.end_lease"]
    after = lease_of(world, lease.id)
    assert after.status is LeaseStatus.TERMINATED
    assert after.status_reason == "The start was missed: the lease had ended before it could be started."
    assert {event.status for event in after.events} == {EventStatus.DONE}


def test_a_lease_may_start_up_to_its_last_moment(world: World):
    lease = world.book(1, start=1, hours=1)
    world.clock.set(NOW + 2 * HOUR - timedelta(microseconds=1))
    world.engine.settle()
    assert path_of(world, lease.id) == ["PENDING", "STARTING", "ACTIVE"]
    world.clock.advance(timedelta(microseconds=1))
    world.engine.settle()
    assert path_of(world, lease.id)[-1] == "TERMINATED"


def test_the_end_waits_for_running_events(world: World, checkpoints: Checkpoints):
    """The claims of one lease never overlap, whatever becomes due in between."""
    other = another(world, checkpoint=lambda _point: None)
    others_attempts: list[int] = []

    def end_is_due() -> None:
        world.clock.set(NOW + HOUR)
        others_attempts.append(other.engine.settle())

    checkpoints.at("start_lease:after_act", end_is_due)
    lease = world.book(1, hours=1)
    world.clock.set(NOW + HOUR - MINUTE / 2)
    world.engine.settle()
    assert others_attempts == [0]
    assert path_of(world, lease.id) == ["PENDING", "STARTING", "ACTIVE", "TERMINATING", "TERMINATED"]
    assert_all_in_pool(world)


@pytest.mark.slow
def test_calls_for_a_lease_never_overlap(tmp_path):
    """Two managers with threads; leases with several reservations whose events are all due at once."""
    guard = threading.Lock()
    inside: Counter[str] = Counter()
    crowded: list[str] = []

    def enter(_verb: str, command: object = None, *_: object) -> None:
        if isinstance(command, Command):
            with guard:
                inside[command.lease_id] += 1
                if inside[command.lease_id] > 1:
                    crowded.append(command.lease_id)
            time.sleep(0.002)  # as a cloud takes some time for everything

    def leave(_verb: str, command: object = None, *_: object) -> None:
        if isinstance(command, Command):
            with guard:
                inside[command.lease_id] -= 1

    with open_world(tmp_path, hosts=20, workers=8) as world:
        watch(world, enter, leave)
        other = another(world)
        leases = [
            world.leases.create(
                OWNER,
                LeaseRequest("lease", NOW + HOUR, NOW + 3 * HOUR, reservations=(reservation(1, 1), reservation(1, 1))),
            )
            for _ in range(10)
        ]
        for service in (world.service, other):
            service.engine.start()
        try:
            world.clock.set(NOW + HOUR)
            wait_for_leases(world, leases, {LeaseStatus.ACTIVE})
            world.clock.set(NOW + 3 * HOUR)
            for lease in leases[::2]:
                other.manager.leases.delete(OWNER, lease.id)
            wait_for_leases(world, leases, {LeaseStatus.TERMINATED, LeaseStatus.DELETED})
        finally:
            for service in (world.service, other):
                service.engine.stop()
        assert crowded == []
        assert_all_in_pool(world)
