"""What goes wrong in a cloud: tried again later and later, up to a limit, and shown; an end never gives up."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tenure.domain.errors import Conflict, LeaseBusy, NotFound, Unavailable
from tenure.domain.lease import EventStatus, EventType, Lease, LeaseStatus, ReservationStatus
from tenure.domain.reason import Reason
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationChange
from tenure.drivers.contract import CloudBusy, Progress
from tenure.drivers.simulated import EffectKind, Fault, FaultKind
from tenure.services.context import Rules
from tenure.services.execution.handler import Claims, Work
from tenure.services.notifications.outbox import Message
from tests.support.engines import (
    HOUR,
    MINUTE,
    SECOND,
    assert_all_in_pool,
    effects_of,
    event_of,
    lease_of,
    path_of,
    rebuild,
    status_of,
    taken_and_returned,
    watch,
)
from tests.support.world import NOW, OWNER, World, reservation

#: How long an end waits for before-end actions, in tests of that wait.
PATIENCE = 5 * MINUTE


#: Those of a site that gives up a start after so many attempts, however early in the lease that is.
IMPATIENT = Rules(start_patience=timedelta(0), start_share=0)


def attempts_of(world: World, verb: str, **parts: Any) -> list[float]:
    """Have every call of a verb fail, and note when it comes, in seconds from now."""
    began = world.clock.now()
    attempts: list[float] = []

    def fail(called: str, *_: object) -> None:
        if called == verb:
            attempts.append((world.clock.now() - began).total_seconds())
            raise CloudBusy(Reason("the cloud is busy"))

    watch(world, fail, **parts)
    return attempts


def test_a_start_is_tried_at_growing_intervals_and_given_up(world: World):
    attempts = attempts_of(world, "ensure_started", rules=IMPATIENT)
    lease = world.book(1, hours=5)
    world.pass_time(4 * HOUR)
    assert attempts == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]
    failed = lease_of(world, lease.id)
    assert (failed.status, failed.status_reason) == (LeaseStatus.ERROR, "the cloud is busy")
    assert {reservation.status for reservation in failed.reservations} == {ReservationStatus.ERROR}
    assert event_of(world, lease.id, EventType.START).status is EventStatus.ERROR
    assert path_of(world, lease.id) == ["PENDING", "STARTING", "ERROR"]
    assert_all_in_pool(world)
    world.book(4)


@pytest.mark.parametrize(
    ("hours", "patience"),
    [
        pytest.param(5, HOUR, id="an hour"),
        pytest.param(20, 2 * HOUR, id="a tenth", marks=pytest.mark.slow),
    ],
)
def test_a_start_is_given_up_when_a_good_part_of_the_lease_is_over(world: World, hours: float, patience: timedelta):
    attempts = attempts_of(world, "ensure_started")
    lease = world.book(1, hours=hours)
    world.pass_time(patience)
    assert lease_of(world, lease.id).status is LeaseStatus.STARTING
    world.pass_time(MINUTE)
    assert lease_of(world, lease.id).status is LeaseStatus.ERROR
    assert {later - earlier for earlier, later in pairwise(attempts[7:])} == {60}


@pytest.mark.slow
def test_an_outage_of_the_cloud_costs_no_lease_that_is_longer(world: World):
    leases = [world.book(1, start=start, hours=2) for start in (0, 0.2, 0.4)]
    outage = world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=None))
    world.pass_time(HOUR / 2)
    world.cloud.clear_faults(outage)
    world.pass_time(MINUTE)
    assert {status_of(world, lease.id) for lease in leases} == {LeaseStatus.ACTIVE}


def test_the_lease_shows_the_reason_of_a_delay_until_it_is_over(world: World):
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", reason="no answer", count=1))
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", reason="no connection", count=1))
    lease = world.book(1, hours=5)
    world.engine.settle()
    assert (lease_of(world, lease.id).status, lease_of(world, lease.id).status_reason) == (
        LeaseStatus.STARTING,
        "ensure_started: no answer (busy)",
    )
    world.pass_time(SECOND)
    assert lease_of(world, lease.id).status_reason == "ensure_started: no connection (busy)"
    world.pass_time(2 * SECOND)
    assert (lease_of(world, lease.id).status, lease_of(world, lease.id).status_reason) == (LeaseStatus.ACTIVE, None)
    reasons = [entry.reason for entry in world.leases.history(OWNER, lease.id) if entry.reason]
    assert reasons == ["ensure_started: no answer (busy)", "ensure_started: no connection (busy)"]


def test_unexpected_error_is_retried(world: World):
    failures = [ValueError("odd"), OSError()]

    def fail(verb: str, *_: object) -> None:
        if verb == "ensure_started" and failures:
            raise failures.pop(0)

    watch(world, fail)
    lease = world.book(1)
    world.engine.settle()
    assert lease_of(world, lease.id).status_detail == "odd"
    world.pass_time(SECOND)
    assert lease_of(world, lease.id).status_detail == "OSError"
    world.pass_time(2 * SECOND)
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE


@pytest.mark.slow
def test_end_is_retried_without_limit(world: World):
    lease = world.book(2, hours=1)
    world.engine.settle()
    world.clock.set(NOW + HOUR - SECOND)
    attempts = attempts_of(world, "ensure_ended")
    world.pass_time(HOUR / 2)
    assert attempts[:9] == [1, 2, 4, 8, 16, 32, 64, 124, 184]
    assert {later - earlier for earlier, later in pairwise(attempts[7:])} == {60}
    stuck = lease_of(world, lease.id)
    assert (stuck.status, stuck.status_reason) == (LeaseStatus.ERROR, "the cloud is busy")
    assert len(world.hosts_of(lease.id)) == 2
    assert len(world.cloud.world.pool()) == 2

    watch(world, lambda *_: None)
    world.pass_time(MINUTE)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    # However many attempts there were: the history has only changes.
    assert path_of(world, lease.id) == ["PENDING", "STARTING", "ACTIVE", "TERMINATING", "ERROR", "TERMINATED"]
    assert_all_in_pool(world)
    world.book(4)


def test_a_permanent_refusal_of_an_end_is_shown_and_tried_again(world: World):
    lease = world.book(1, hours=1)
    world.engine.settle()
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_ended", reason="locked"))
    world.pass_time(HOUR)
    stuck = lease_of(world, lease.id)
    assert (stuck.status, stuck.status_reason) == (LeaseStatus.ERROR, "ensure_ended: locked (refused)")
    world.pass_time(SECOND)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert_all_in_pool(world)


def test_the_cleanup_of_a_deleted_lease_is_retried_until_it_succeeds(world: World):
    lease = world.book(1, hours=9)
    world.engine.settle()
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_ended", count=20))
    world.leases.delete(OWNER, lease.id)
    world.leases.delete(OWNER, lease.id)
    assert status_of(world, lease.id) is LeaseStatus.DELETING
    world.pass_time(HOUR)
    assert status_of(world, lease.id) is LeaseStatus.DELETED
    assert_all_in_pool(world)


def test_the_end_comes_while_a_start_still_fails(world: World):
    world.cloud.inject(Fault(FaultKind.LOST_REPLY, verb="ensure_started", count=None))
    lease = world.book(2, hours=0.05)
    world.pass_time(HOUR)
    assert path_of(world, lease.id) == ["PENDING", "STARTING", "TERMINATING", "TERMINATED"]
    assert [kind for kind, _ in taken_and_returned(world, lease)] == ["host taken"] * 2 + ["host returned"] * 2
    assert_all_in_pool(world)


#: The effects of a start of one host: its group is made and keeps its zone, the host leaves that and comes, and the
#: group gets its owner.
START = 5
#: After so many of them it has the host.
TAKEN = 4


@pytest.mark.parametrize("after_effects", range(START + 2))
def test_a_permanent_refusal_gives_back_started_reservations(world: World, after_effects: int):
    """Several reservations start together: the first two are taken back when the third is refused."""
    lease = world.leases.create(
        OWNER, LeaseRequest("lease", NOW, NOW + 3 * HOUR, reservations=(reservation(1, 1),) * 3)
    )
    refused = lease.reservations[2].id
    world.cloud.inject(
        Fault(
            FaultKind.REFUSED, verb="ensure_started", reservation_id=refused, reason="no", after_effects=after_effects
        )
    )
    world.engine.settle()
    after = lease_of(world, lease.id)
    if after_effects > START:
        assert after.status is LeaseStatus.ACTIVE
        return
    assert (after.status, after.status_reason) == (LeaseStatus.ERROR, "ensure_started: no (refused)")
    assert len(taken_and_returned(world, lease)) == 2 * (2 + (after_effects >= TAKEN))
    assert_all_in_pool(world)
    assert lease_of(world, lease.id).event(EventType.BEFORE_END).status is EventStatus.DONE  # type: ignore[union-attr]
    world.pass_time(4 * HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.ERROR


@pytest.mark.parametrize("verb", ["ensure_started", "before_end", "ensure_ended"])
def test_a_lost_reply_repeats_no_effect(world: World, verb: str):
    lease = world.book(2, hours=3, before_end="snapshot")
    world.cloud.inject(Fault(FaultKind.LOST_REPLY, verb=verb, count=3))
    world.pass_time(HOUR)
    world.boot(lease)
    world.pass_time(4 * HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert len(world.cloud.world.images()) == 1
    assert [kind for kind, _ in taken_and_returned(world, lease)] == ["host taken"] * 2 + ["host returned"] * 2
    assert_all_in_pool(world)


def test_a_lost_reply_to_a_change_repeats_no_effect(world: World):
    lease = world.book(1, hours=3)
    world.engine.settle()
    world.cloud.inject(Fault(FaultKind.LOST_REPLY, verb="ensure_started"))
    change = ReservationChange(lease.reservations[0].id, {"min": 3, "max": 3})
    busy = world.leases.update(OWNER, lease.id, LeaseChange(reservations=(change,)))
    assert busy.status is LeaseStatus.UPDATING
    with pytest.raises(LeaseBusy):
        world.leases.update(OWNER, lease.id, LeaseChange(reservations=(change,)))
    world.pass_time(SECOND)
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
    assert len(effects_of(world, EffectKind.HOST_TAKEN)) == 3


def test_permanently_failing_before_end_action_does_not_block_the_end(world: World):
    lease = world.book(1, hours=3, before_end="snapshot")
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="before_end", reason="quota"))
    world.pass_time(2 * HOUR)
    after = lease_of(world, lease.id)
    assert (after.status, after.status_reason) == (LeaseStatus.ACTIVE, "before_end: quota (refused)")
    assert event_of(world, lease.id, EventType.BEFORE_END).status is EventStatus.ERROR
    world.pass_time(HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED


@pytest.mark.slow
def test_an_endless_before_end_action_delays_the_end_for_a_limited_time(world: World):
    request = LeaseRequest(
        "lease",
        NOW,
        NOW + HOUR,
        before_end_at=NOW + HOUR - 5 * MINUTE,
        reservations=(reservation(1, 1, before_end="snapshot"),),
    )
    rebuild(world, rules=Rules(before_end_patience=PATIENCE))
    lease = world.leases.create(OWNER, request)
    world.engine.settle()
    world.boot(lease)
    world.cloud.inject(Fault(FaultKind.SLOW, verb="before_end", until=NOW + 9 * HOUR))
    world.pass_time(HOUR - SECOND)
    assert lease_of(world, lease.id).status_reason == "Images are being saved of server."
    world.pass_time(PATIENCE)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATING
    world.pass_time(MINUTE)
    after = lease_of(world, lease.id)
    assert (after.status, after.status_reason) == (
        LeaseStatus.TERMINATED,
        "Images are being saved of server. This was not waited for any longer.",
    )


@pytest.mark.slow
def test_slow_is_not_failing(world: World):
    """An end that reports that it is not done uses up no attempts, however long it takes."""
    lease = world.book(1, hours=1)
    world.engine.settle()
    world.cloud.inject(Fault(FaultKind.SLOW, verb="ensure_ended", until=NOW + HOUR + 10 * MINUTE))
    world.pass_time(HOUR + 9 * MINUTE)
    slow = lease_of(world, lease.id)
    assert (slow.status, slow.status_reason) == (LeaseStatus.TERMINATING, "1 server is still being deleted.")
    assert event_of(world, lease.id, EventType.END).attempts <= 1
    world.pass_time(2 * MINUTE)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert path_of(world, lease.id)[-2:] == ["TERMINATING", "TERMINATED"]


# --- changes that the cloud refuses


def test_a_refused_change_leaves_nothing_changed(world: World):
    """Its new dates and its new name neither: all of it or nothing."""
    lease = world.book(1, hours=2)
    world.engine.settle()
    before = lease_of(world, lease.id)
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", reason="no"))
    with pytest.raises(Conflict, match="undone"):
        world.leases.update(
            OWNER,
            lease.id,
            LeaseChange(
                name="other",
                ends_at=NOW + 5 * HOUR,
                reservations=(ReservationChange(lease.reservations[0].id, {"min": 2, "max": 2}),),
            ),
        )
    after = lease_of(world, lease.id)
    assert (after.name, after.ends_at) == (before.name, before.ends_at)
    assert [reservation.parameters for reservation in after.reservations] == [
        reservation.parameters for reservation in before.reservations
    ]
    assert event_of(world, lease.id, EventType.END).due_at == NOW + 2 * HOUR
    assert event_of(world, lease.id, EventType.BEFORE_END).due_at == NOW + HOUR
    world.pass_time(2 * HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert_all_in_pool(world)


@pytest.mark.parametrize("kind", [FaultKind.BUSY, FaultKind.REFUSED, FaultKind.LOST_REPLY])
def test_refused_change_is_undone_in_the_cloud(world: World, kind: FaultKind):
    """The change takes one host before it is refused, and taking that back fails at first as well."""
    lease = world.book(1, hours=5)
    world.engine.settle()
    mine = world.cloud.world.groups()[lease.reservations[0].id].hosts
    calls: list[str] = []

    def fail_again(verb: str, *_: object) -> None:
        calls.append(verb)
        if verb == "ensure_started" and calls.count(verb) == 2:
            world.cloud.inject(Fault(kind, verb=verb, count=2))

    watch(world, fail_again)
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", after_effects=1, reason="no"))
    change = ReservationChange(lease.reservations[0].id, {"min": 3, "max": 3})
    with pytest.raises(Conflict, match="undone"):
        world.leases.update(OWNER, lease.id, LeaseChange(reservations=(change,)))
    world.pass_time(5 * MINUTE)
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE
    assert world.cloud.world.groups()[lease.reservations[0].id].hosts == mine
    other = world.book(3, hours=1)
    world.engine.settle()
    assert lease_of(world, other.id).status is LeaseStatus.ACTIVE


# --- busy leases


def test_update_is_refused_while_the_lease_is_busy(world: World):
    lease = world.book(1, hours=5)
    refused: list[str] = []

    def change(verb: str, *_: object) -> None:
        if verb in {"ensure_started", "ensure_ended"}:
            with pytest.raises(LeaseBusy) as busy:
                world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 9 * HOUR))
            refused.append(busy.value.status)

    watch(world, change)
    world.pass_time(5 * HOUR)
    assert refused == ["STARTING", "TERMINATING"]
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED


@pytest.mark.slow
def test_a_change_of_hosts_is_refused_while_the_action_before_the_end_runs(world: World):
    """Only one thing happens to a lease at a time: a snapshot of a host that is being released would be lost."""
    lease = world.book(2, hours=3, before_end="snapshot")
    refused: list[str] = []

    def change(verb: str, *_: object) -> None:
        if verb == "before_end":
            with pytest.raises(LeaseBusy):
                world.leases.drop_reservation(OWNER, lease.id, lease.reservations[0].id)
            grown = ReservationChange(lease.reservations[0].id, {"min": 3, "max": 3})
            with pytest.raises(LeaseBusy):
                world.leases.update(OWNER, lease.id, LeaseChange(reservations=(grown,)))
            refused.append(verb)

    watch(world, change)
    world.pass_time(2 * HOUR)
    assert refused == ["before_end"]
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE


def test_a_delete_waits_for_the_call_under_way_and_then_takes_over(world: World):
    lease = world.book(2, hours=5)

    def delete(verb: str, *_: object) -> None:
        if verb == "ensure_started":
            world.leases.delete(OWNER, lease.id)
            assert status_of(world, lease.id) is LeaseStatus.DELETING

    watch(world, delete)
    world.engine.settle()
    assert path_of(world, lease.id) == ["PENDING", "STARTING", "DELETING", "DELETED"]
    assert [kind for kind, _ in taken_and_returned(world, lease)] == ["host taken"] * 2 + ["host returned"] * 2
    with pytest.raises(NotFound):
        world.leases.get(OWNER, lease.id)


def test_delete_during_an_end_is_finished_by_that_worker(world: World):
    lease = world.book(2, hours=1)

    def delete(verb: str, *_: object) -> None:
        if verb == "ensure_ended":
            world.leases.delete(OWNER, lease.id)

    world.engine.settle()
    rebuild(world, answer_seconds=0.1)  # the delete waits for the end, which waits for the delete
    watch(world, delete)
    world.pass_time(HOUR)
    assert path_of(world, lease.id)[2:] == ["ACTIVE", "TERMINATING", "DELETING", "DELETED"]
    assert_all_in_pool(world)


def test_a_delete_takes_over_a_change_that_fails(world: World):
    lease = world.book(1, hours=5)
    world.engine.settle()
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=None, after_effects=1))
    change = ReservationChange(lease.reservations[0].id, {"min": 3, "max": 3})
    world.leases.update(OWNER, lease.id, LeaseChange(reservations=(change,)))
    assert lease_of(world, lease.id).status is LeaseStatus.UPDATING
    world.leases.delete(OWNER, lease.id)
    assert status_of(world, lease.id) is LeaseStatus.DELETED
    assert_all_in_pool(world)
    world.pass_time(6 * HOUR)
    assert_all_in_pool(world)


def test_the_end_takes_over_a_change_that_fails(world: World):
    lease = world.book(1, hours=1)
    world.pass_time(59 * MINUTE)
    world.cloud.inject(Fault(FaultKind.LOST_REPLY, verb="ensure_started", count=None))
    change = ReservationChange(lease.reservations[0].id, {"min": 3, "max": 3})
    world.leases.update(OWNER, lease.id, LeaseChange(reservations=(change,)))
    world.pass_time(timedelta(minutes=1))
    assert path_of(world, lease.id)[-3:] == ["UPDATING", "TERMINATING", "TERMINATED"]
    assert_all_in_pool(world)


@pytest.mark.parametrize("seconds", [(9, 4), (4, 9)])
def test_waiting_event_is_checked_when_the_first_reservation_may_be_done(
    world: World, seconds: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    lease = world.leases.create(
        OWNER, LeaseRequest("lease", NOW, NOW + HOUR, reservations=(reservation(1, 1), reservation(1, 1)))
    )
    world.engine.settle()
    waits = {waiting.id: wait * SECOND for waiting, wait in zip(lease.reservations, seconds, strict=True)}
    monkeypatch.setattr(
        world.cloud, "ensure_ended", lambda order: Progress(False, waits[order.reservation_id], Reason("slow"))
    )
    world.clock.advance(HOUR)
    world.engine.settle()
    assert world.engine.next_due_at() == NOW + HOUR + 4 * SECOND


def test_a_database_that_is_away_is_no_failure_of_the_cloud(world: World, monkeypatch: pytest.MonkeyPatch):
    """However often: it uses up no attempts, and the lease does not show it."""
    lease = world.book(1)

    def fail(_claims: Claims, _work: Work[Any]) -> bool:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(Claims, "renew", fail)
        for _ in range(12):
            world.engine.round()
            assert lease_of(world, lease.id).status_reason is None
            world.clock.advance(2 * MINUTE)
    assert lease_of(world, lease.id).status is LeaseStatus.STARTING
    world.engine.settle()
    assert lease_of(world, lease.id).status is LeaseStatus.ACTIVE


# --- what others are told


def told(messages: list[Message], lease: Lease) -> list[tuple[str, object]]:
    """The topics of a lease's notifications after its creation, with the reason in each, in order."""
    mine = [message for message in messages if message.payload["lease_id"] == lease.id]
    return [(message.topic, message.payload["status_reason"]) for message in mine if message.topic != "lease.create"]


def test_a_late_start_is_notified_once_with_its_reason(world: World, messages: list[Message]):
    fault = world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", reason="away", count=None))
    lease = world.book(1, hours=5)
    world.pass_time(50 * SECOND)
    assert told(messages, lease) == []
    world.pass_time(10 * MINUTE)
    assert told(messages, lease) == [("lease.late", "ensure_started: away (busy)")]
    world.cloud.clear_faults(fault)
    world.pass_time(5 * HOUR)
    assert told(messages, lease) == [
        ("lease.late", "ensure_started: away (busy)"),
        ("lease.event.start_lease", None),
        ("lease.event.before_end_lease", None),
        ("lease.event.end_lease", None),
    ]


def test_a_start_that_is_given_up_is_notified_with_its_reason(world: World, messages: list[Message]):
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", reason="no"))
    lease = world.book(1, hours=5)
    world.pass_time(2 * HOUR)
    reason = "ensure_started: no (refused)"
    assert told(messages, lease) == [("lease.start_failed", reason), ("lease.event.end_lease", reason)]
    assert {message.payload["status"] for message in messages[-2:]} == {"ERROR"}


def test_a_start_that_waits_for_an_earlier_lease_is_late_with_a_reason(world: World, messages: list[Message]):
    slow = world.book(4, hours=1)
    following = world.book(4, start=1, hours=0.1)
    world.engine.settle()
    world.teardown_lasts(slow, until=NOW + HOUR + 10 * MINUTE)
    world.pass_time(HOUR + 2 * MINUTE, leap=10 * SECOND)
    waiting = lease_of(world, following.id)
    reason = "What the lease is to have was not given back in time."
    assert (waiting.status, waiting.status_reason) == (LeaseStatus.PENDING, reason)
    world.pass_time(HOUR, leap=20 * SECOND)
    missed = "The start was missed: the lease had ended before it could be started."
    late, failed, ended = told(messages, following)
    assert late == ("lease.late", reason)
    assert (failed[0], ended[0]) == ("lease.start_failed", "lease.event.end_lease")
    assert str(failed[1]).startswith(missed)
    assert failed[1] == ended[1] == lease_of(world, following.id).status_reason


def test_a_lease_that_has_ended_keeps_no_reason_of_its_end(world: World, messages: list[Message]):
    lease = world.book(1)
    world.engine.settle()
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_ended", reason="away", count=3))
    world.pass_time(HOUR)
    assert lease_of(world, lease.id).status_reason == "ensure_ended: away (busy)"
    world.pass_time(HOUR)
    after = lease_of(world, lease.id)
    assert (after.status, after.status_reason) == (LeaseStatus.TERMINATED, None)
    assert told(messages, lease)[-1] == ("lease.event.end_lease", None)
