"""Claims: every event is carried out once, whatever happens to the worker."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from datetime import timedelta

import pytest

from tenure.domain.lease import EventStatus, EventType, LeaseStatus
from tenure.domain.request import LeaseRequest
from tenure.drivers.simulated import EffectKind, Fault, FaultKind
from tests.support.engines import (
    HOUR,
    SECOND,
    Checkpoints,
    another,
    assert_all_in_pool,
    effects_of,
    event_of,
    lease_of,
    path_of,
    status_of,
    taken_and_returned,
    wait_for_leases,
    watch,
)
from tests.support.waiting import patience
from tests.support.world import OWNER, World, open_world, reservation

CLAIM = timedelta(seconds=60)


def nothing(_point: str) -> None:
    """What another manager does at a named point."""


@pytest.mark.slow
def test_two_managers_carry_out_each_event_once(tmp_path):
    with open_world(tmp_path, hosts=30, workers=4) as world, ExitStack() as stack:
        other = another(world)
        leases = [world.book(1, start=1, hours=2) for _ in range(30)]
        for service in (world.service, other):
            service.engine.start()
            stack.callback(service.engine.stop)
        for hours, wanted in ((1, {LeaseStatus.ACTIVE}), (2, {LeaseStatus.TERMINATED})):
            world.clock.advance(hours * HOUR)
            wait_for_leases(world, leases, wanted)
        for lease in leases:
            [host] = {host for _, host in taken_and_returned(world, lease)}
            assert taken_and_returned(world, lease) == [("host taken", host), ("host returned", host)]
            assert path_of(world, lease.id) == ["PENDING", "STARTING", "ACTIVE", "TERMINATING", "TERMINATED"]
            assert {event.attempts for event in lease_of(world, lease.id).events} == {1}


def test_claimed_event_is_not_claimed_by_another(world: World, checkpoints: Checkpoints):
    other = another(world, checkpoint=nothing)
    others_attempts: list[int] = []
    checkpoints.at("start_lease:after_claim", lambda: others_attempts.append(other.engine.settle()))
    lease = world.book(1)
    world.engine.settle()
    assert others_attempts == [0]
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE


@pytest.mark.parametrize("point", ["after_claim", "after_act", "before_record"])
def test_a_claim_that_expired_is_taken_up_by_another(world: World, checkpoints: Checkpoints, point: str):
    other = another(world, checkpoint=nothing)

    def take_over() -> None:
        world.clock.advance(CLAIM - SECOND)
        assert other.engine.settle() == 0
        world.clock.advance(SECOND)
        assert other.engine.settle() == 1
        assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE

    checkpoints.at(f"start_lease:{point}", take_over)
    lease = world.book(2, hours=3)
    world.engine.settle()
    assert path_of(world, lease.id) == ["PENDING", "STARTING", "ACTIVE"]
    assert len(effects_of(world, EffectKind.HOST_TAKEN)) == 2
    start = event_of(world, lease.id, EventType.START)
    assert (start.status, start.attempts) == (EventStatus.DONE, 1)


def test_killed_managers_do_not_count_as_failed_attempts(world: World):
    """The next worker continues the same attempt: nothing has failed."""
    lease = world.book(1, start=1, hours=3)
    start = event_of(world, lease.id, EventType.START)
    world.clock.advance(HOUR)
    events = world.service.events
    for _ in range(world.service.components.rules.max_attempts + 1):
        assert events.claim(start.id) is not None
        world.clock.advance(CLAIM)
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", reason="no answer", count=1))
    world.engine.settle()
    assert lease_of(world, lease.id).status is LeaseStatus.STARTING
    world.pass_time(CLAIM)
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
    assert event_of(world, lease.id, EventType.START).attempts == 2


@pytest.mark.parametrize("point", ["after_act", "before_record"])
def test_a_late_worker_records_nothing(world: World, checkpoints: Checkpoints, point: str):
    """The lease is deleted while its first worker hangs; the worker must not make it active afterwards."""
    other = another(world, checkpoint=nothing)

    def delete() -> None:
        world.clock.advance(CLAIM)
        other.manager.leases.delete(OWNER, lease.id)
        assert status_of(world, lease.id) is LeaseStatus.DELETED

    checkpoints.at(f"start_lease:{point}", delete)
    lease = world.book(1, hours=3)
    world.engine.settle()
    assert path_of(world, lease.id) == ["PENDING", "STARTING", "DELETING", "DELETED"]
    assert_all_in_pool(world)


def test_a_worker_that_lost_its_claim_stops_before_the_next_call(world: World, checkpoints: Checkpoints):
    other = another(world, checkpoint=nothing)

    def delete() -> None:
        world.clock.advance(CLAIM)
        other.manager.leases.delete(OWNER, lease.id)

    checkpoints.at("start_lease:after_claim", delete)
    lease = world.book(1, hours=3)
    world.engine.settle()
    assert effects_of(world, EffectKind.HOST_TAKEN, EffectKind.GROUP_MADE) == []


def test_late_effects_are_undone_by_the_reconciliation_pass(world: World):
    """A call hangs longer than its claim; the lease is over when it continues, and its result is ignored."""
    lease = world.book(2, hours=3)
    fault = world.cloud.inject(Fault(FaultKind.BLOCK, verb="ensure_started"))
    late = threading.Thread(target=world.engine.settle)
    late.start()
    assert world.cloud.wait_until_blocked(timeout_seconds=patience())
    world.clock.advance(CLAIM)
    other = another(world, checkpoint=nothing)
    other.manager.leases.delete(OWNER, lease.id)
    assert status_of(world, lease.id) is LeaseStatus.DELETED
    world.cloud.clear_faults(fault)
    late.join()
    assert len(effects_of(world, EffectKind.HOST_TAKEN)) == 2
    assert status_of(world, lease.id) is LeaseStatus.DELETED
    assert other.reconciler.run() == 1
    assert_all_in_pool(world)
    assert other.reconciler.run() == 0


def test_reconciliation_pass_leaves_live_reservations_alone(world: World, checkpoints: Checkpoints):
    """Also a lease that is just being started: its claim was written before the first effect."""
    other = another(world, checkpoint=nothing)
    reconciled: list[int] = []
    checkpoints.at("start_lease:before_record", lambda: reconciled.append(other.reconciler.run()))
    lease = world.book(2, hours=1)
    world.engine.settle()
    reconciled.append(other.reconciler.run())
    assert reconciled == [0, 0]
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE


def test_failed_reconciliation_pass_is_repeated(world: World):
    lease = world.book(1, hours=1)
    world.engine.settle()
    [command] = world.commands(lease.id)
    world.pass_time(2 * HOUR)
    world.cloud.ensure_started(command)
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_ended"))
    assert world.service.reconciler.run() == 1
    assert world.cloud.world.groups() != {}
    assert world.service.reconciler.run() == 1
    assert_all_in_pool(world)


def test_a_claim_is_renewed_before_each_call(world: World):
    """Three calls of 40 seconds take longer than a claim, but each is shorter: no worker takes over."""
    other = another(world)
    others_attempts: list[int] = []

    def take_long(verb: str, *_: object) -> None:
        if verb == "ensure_started":
            world.clock.advance(40 * SECOND)
            others_attempts.append(other.engine.settle())

    watch(world, take_long)
    begin = world.clock.now()
    lease = world.leases.create(
        OWNER, LeaseRequest("lease", begin, begin + 3 * HOUR, reservations=(reservation(1, 1),) * 3)
    )
    world.engine.settle()
    assert others_attempts == [0, 0, 0]
    assert world.clock.now() - begin == 2 * CLAIM
    after = lease_of(world, lease.id)
    assert after.status is LeaseStatus.ACTIVE
    assert event_of(world, lease.id, EventType.START).attempts == 1
