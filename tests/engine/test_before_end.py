"""What is done before reservations end: each its own, awaited before anything of it is deleted, none twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.errors import Conflict, InvalidState
from tenure.domain.lease import EventStatus, EventType, Lease, LeaseStatus, ReservationStatus
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationChange, ReservationRequest
from tenure.drivers.simulated import EffectKind, Fault, FaultKind
from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tenure.services.context import Rules
from tenure.services.notifications.outbox import Message
from tests.support.engines import (
    HOUR,
    MINUTE,
    POINTS,
    SECOND,
    Checkpoints,
    Killed,
    assert_all_in_pool,
    effects_of,
    event_of,
    lease_of,
    rebuild,
)
from tests.support.world import (
    ADMIN,
    NOW,
    OWNER,
    World,
    address_reservation,
    instance_reservation,
    open_world,
    reservation,
)

NOTIFIED = "lease.reservation.before_end"
NOTICE = "lease.event.before_end_lease"
ADDRESS = "203.0.113.10"


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[World]:
    """A cloud whose operator has configured no event before the end."""
    with open_world(f"sqlite:///{tmp_path / 'hasty.db'}", rules=Rules(notice_before_end=timedelta(0))) as world:
        yield world


def instances(action: str) -> ReservationRequest:
    return instance_reservation(before_end=action)


def flavors(action: str) -> ReservationRequest:
    parameters = {"flavor_id": "1", "amount": 1, "affinity": None, "before_end": action}
    return ReservationRequest("flavor:instance", parameters)


def addresses(world: World, action: str) -> ReservationRequest:
    world.resources.register(ADMIN, "virtual:floatingip", f"{PUBLIC_NETWORK}/{ADDRESS}", {})
    return address_reservation(before_end=action)


def hosts(action: str, amount: int = 1) -> ReservationRequest:
    return reservation(amount, amount, before_end=action)


def book(world: World, *reservations: ReservationRequest, notice: timedelta | None = None) -> Lease:
    """A lease of three hours that has begun; the event comes ``notice`` before its end."""
    at = NOW + 3 * HOUR - notice if notice else None
    lease = world.reserve(*reservations, hours=3, before_end_at=at)
    world.engine.settle()
    return lease_of(world, lease.id)


def notified(messages: list[Message]) -> list[object]:
    """The reservations in notifications, in order."""
    return [message.payload["reservation_id"] for message in messages if message.topic == NOTIFIED]


def images(world: World) -> list[tuple[str, str]]:
    return [(image.reservation_id, image.status.value) for image in world.cloud.world.images()]


def end_of(world: World, lease: Lease, index: int = 0) -> ReservationStatus:
    return lease_of(world, lease.id).reservations[index].status


# --- which action


def test_each_reservation_has_its_own_action(world: World, messages: list[Message]):
    lease = book(world, hosts("snapshot"), instances("notify"), flavors("none"), addresses(world, "notify"), hosts(""))
    for index in (0, 1, 2, 4):
        world.boot(lease, index)
    ids = [reservation.id for reservation in lease.reservations]
    world.pass_time(2 * HOUR)
    assert images(world) == [(ids[0], "active")]
    assert notified(messages) == [ids[1], ids[3]]
    assert [message.topic for message in messages].count(NOTICE) == 1
    assert event_of(world, lease.id, EventType.BEFORE_END).status is EventStatus.DONE
    world.pass_time(HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert (len(images(world)), len(notified(messages))) == (1, 2)


@pytest.mark.parametrize("make", [hosts, instances, flavors])
def test_servers_of_every_type_are_imaged(world: World, make: Callable[[str], ReservationRequest]):
    lease = book(world, make("snapshot"))
    world.boot(lease)
    world.pass_time(3 * HOUR)
    assert images(world) == [(lease.reservations[0].id, "active")]
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED


def test_a_notification_has_the_lease_and_the_reservation(world: World, messages: list[Message]):
    lease = book(world, hosts("notify"))
    world.pass_time(2 * HOUR)
    (message,) = [message for message in messages if message.topic == NOTIFIED]
    assert message.payload["reservation_id"] == lease.reservations[0].id
    assert (message.payload["lease_id"], message.payload["status"]) == (lease.id, "ACTIVE")
    assert message.payload["end_date"] == "2030-01-01T13:00:00.000000"


def test_notify_action_needs_no_trust(world: World):
    book(world, hosts("notify"))
    assert world.cloud.world.trusts() == frozenset()
    changed = book(world, hosts("none"))
    world.change(changed, before_end="notify")
    assert world.cloud.world.trusts() == frozenset()
    world.change(changed, before_end="snapshot")
    assert len(world.cloud.world.trusts()) == 1


@pytest.mark.parametrize("make", [hosts, instances, flavors, addresses])
def test_action_of_a_running_reservation_can_be_changed(
    world: World, messages: list[Message], make: Callable[..., ReservationRequest]
):
    lease = book(world, make(world, "none") if make is addresses else make("none"))
    assert world.change(lease, before_end="notify").reservations[0].parameters["before_end"] == "notify"
    world.pass_time(2 * HOUR)
    assert notified(messages) == [lease.reservations[0].id]


def test_action_set_after_the_event_runs_at_the_end(world: World, messages: list[Message]):
    lease = book(world, hosts("none"), hosts("snapshot"))
    world.boot(lease)
    world.boot(lease, 1)
    world.pass_time(2 * HOUR)
    world.change(lease, before_end="snapshot")
    grown = world.leases.add_reservation(OWNER, lease.id, hosts("notify"))
    world.pass_time(HOUR - SECOND)
    assert images(world) == [(lease.reservations[1].id, "active")]
    world.pass_time(SECOND)
    assert images(world) == [(lease.reservations[1].id, "active"), (lease.reservations[0].id, "active")]
    assert notified(messages) == [grown.reservations[2].id]


# --- the end moves


def topics(messages: list[Message]) -> list[str]:
    """The topics of the notifications about the event before the end, in order."""
    return [message.topic for message in messages if message.topic.startswith(NOTICE)]


def prolong(world: World, lease: Lease, until: timedelta) -> None:
    """Move the end to so long after the start."""
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + until))


def test_finished_action_runs_again_before_a_later_end(world: World, messages: list[Message]):
    lease = book(world, hosts("snapshot"), hosts("notify"))
    world.boot(lease)
    world.pass_time(2 * HOUR)
    prolong(world, lease, 9 * HOUR)
    event = event_of(world, lease.id, EventType.BEFORE_END)
    assert (event.status, event.due_at) == (EventStatus.UNDONE, NOW + 8 * HOUR)
    world.pass_time(6 * HOUR - SECOND)
    assert len(images(world)) == len(notified(messages)) == 1
    world.pass_time(SECOND)
    assert images(world) == [(lease.reservations[0].id, "active")] * 2
    assert len(notified(messages)) == 2
    world.pass_time(HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert len(images(world)) == len(notified(messages)) == 2
    assert topics(messages) == [NOTICE, f"{NOTICE}.stop", NOTICE]


def test_action_runs_again_at_once_if_the_new_moment_has_passed(world: World, messages: list[Message]):
    lease = book(world, hosts("notify"))
    world.pass_time(2 * HOUR + 30 * MINUTE)
    prolong(world, lease, 3 * HOUR + 15 * MINUTE)
    world.engine.settle()
    assert len(notified(messages)) == 2
    assert messages[-1].payload["end_date"] == "2030-01-01T13:15:00.000000"


def test_finished_action_is_not_repeated_before_an_earlier_end(world: World, messages: list[Message]):
    lease = book(world, hosts("snapshot"), hosts("notify"))
    world.boot(lease)
    world.pass_time(2 * HOUR)
    prolong(world, lease, 2 * HOUR + 30 * MINUTE)
    world.pass_time(HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert len(images(world)) == len(notified(messages)) == 1


def test_action_that_is_running_when_the_end_moves_runs_again(world: World):
    lease = book(world, hosts("snapshot"))
    world.boot(lease)
    slow = Fault(FaultKind.SLOW, verb="before_end", until=NOW + 2 * HOUR + 10 * MINUTE, reason="saving")
    world.cloud.inject(slow)
    world.pass_time(2 * HOUR + MINUTE)
    prolong(world, lease, 9 * HOUR)
    world.pass_time(6 * HOUR)
    assert images(world) == [(lease.reservations[0].id, "active")] * 2


def test_action_that_was_given_up_is_tried_again_before_a_later_end(world: World):
    lease = book(world, hosts("snapshot"))
    world.boot(lease)
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="before_end", reason="quota"))
    world.pass_time(2 * HOUR)
    assert event_of(world, lease.id, EventType.BEFORE_END).status is EventStatus.ERROR
    prolong(world, lease, 9 * HOUR)
    world.pass_time(6 * HOUR)
    assert event_of(world, lease.id, EventType.BEFORE_END).status is EventStatus.DONE
    assert images(world) == [(lease.reservations[0].id, "active")]


def test_moment_of_an_action_that_has_run_can_be_set_again(world: World):
    lease = book(world, hosts("snapshot"))
    world.boot(lease)
    world.pass_time(2 * HOUR)
    same = LeaseChange(before_end_at=NOW + 2 * HOUR)
    world.leases.update(OWNER, lease.id, same)
    assert event_of(world, lease.id, EventType.BEFORE_END).status is EventStatus.DONE
    with pytest.raises(InvalidState, match="has run already"):
        world.leases.update(OWNER, lease.id, LeaseChange(before_end_at=NOW + HOUR))
    world.leases.update(OWNER, lease.id, LeaseChange(before_end_at=NOW + 2 * HOUR + 30 * MINUTE))
    world.pass_time(30 * MINUTE)
    assert len(images(world)) == 2


# --- the cloud refuses the change that moves the end


def grow_in_vain(world: World, lease: Lease, change: LeaseChange) -> None:
    """Change the lease so, and ask for a host more that the cloud refuses."""
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", reason="no"))
    grown = ReservationChange(lease.reservations[0].id, {"min": 2, "max": 2})
    with pytest.raises(Conflict, match="undone"):
        world.leases.update(OWNER, lease.id, replace(change, reservations=(grown,)))
    assert lease_of(world, lease.id).ends_at == lease.ends_at


LATER = pytest.mark.parametrize(
    "change", [LeaseChange(ends_at=NOW + 9 * HOUR), LeaseChange(before_end_at=NOW + 2 * HOUR + 30 * MINUTE)]
)


@LATER
def test_finished_action_does_not_run_again_after_a_refused_change(
    world: World, messages: list[Message], change: LeaseChange
):
    lease = book(world, hosts("snapshot"), hosts("notify"))
    world.boot(lease)
    world.pass_time(2 * HOUR + MINUTE)
    before = event_of(world, lease.id, EventType.BEFORE_END)
    grow_in_vain(world, lease, change)
    event = event_of(world, lease.id, EventType.BEFORE_END)
    assert (event.status, event.due_at) == (before.status, before.due_at) == (EventStatus.DONE, NOW + 2 * HOUR)
    world.pass_time(HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert len(images(world)) == len(notified(messages)) == 1
    assert topics(messages) == [NOTICE]


def test_action_that_was_given_up_stays_so_after_a_refused_change(world: World):
    lease = book(world, hosts("snapshot"))
    world.boot(lease)
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="before_end", reason="quota"))
    world.pass_time(2 * HOUR + MINUTE)
    grow_in_vain(world, lease, LeaseChange(ends_at=NOW + 9 * HOUR))
    assert event_of(world, lease.id, EventType.BEFORE_END).status is EventStatus.ERROR
    world.pass_time(HOUR)
    ended = lease_of(world, lease.id)
    assert ended.status is LeaseStatus.TERMINATED
    assert ended.reason is not None
    assert "quota" in ended.reason.text


@LATER
def test_action_that_is_running_goes_on_after_a_refused_change(world: World, change: LeaseChange):
    lease = book(world, hosts("snapshot"))
    world.boot(lease)
    slow = Fault(FaultKind.SLOW, verb="before_end", until=NOW + 2 * HOUR + 10 * MINUTE, reason="saving")
    world.cloud.inject(slow)
    world.pass_time(2 * HOUR + MINUTE)
    grow_in_vain(world, lease, change)
    world.pass_time(20 * MINUTE)
    assert event_of(world, lease.id, EventType.BEFORE_END).status is EventStatus.DONE
    assert images(world) == [(lease.reservations[0].id, "active")]
    world.pass_time(HOUR)
    assert len(images(world)) == 1


def test_distance_of_a_short_lease_stays_after_a_refused_change(world: World):
    lease = world.reserve(hosts("none"), hours=1 / 2)
    world.engine.settle()
    grow_in_vain(world, lease, LeaseChange(ends_at=NOW + 9 * HOUR))
    prolong(world, lease, 3 * HOUR)
    assert event_of(world, lease.id, EventType.BEFORE_END).due_at == NOW + 2 * HOUR


def test_moment_of_a_refused_change_is_not_added_to_a_lease_without(hasty: World):
    lease = book(hasty, hosts("notify"))
    grow_in_vain(hasty, lease, LeaseChange(before_end_at=NOW + 2 * HOUR))
    assert lease_of(hasty, lease.id).event(EventType.BEFORE_END) is None


def test_others_are_notified_of_actions_that_run_again_when_the_change_is_done(world: World, messages: list[Message]):
    lease = book(world, hosts("notify"))
    world.pass_time(2 * HOUR + MINUTE)
    grown = ReservationChange(lease.reservations[0].id, {"min": 2, "max": 2})
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 9 * HOUR, reservations=(grown,)))
    world.pass_time(MINUTE)
    assert topics(messages) == [NOTICE, f"{NOTICE}.stop"]


# --- short leases


def test_servers_that_have_no_image_at_the_end_are_saved_then(world: World):
    """A lease that is shorter than the notice has its moment before the end at its start, before it has servers."""
    lease = world.reserve(hosts("snapshot"), hours=0.5)
    world.engine.settle()
    assert event_of(world, lease.id, EventType.BEFORE_END).status is EventStatus.DONE
    world.boot(lease)
    world.pass_time(30 * MINUTE)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert images(world) == [(lease.reservations[0].id, "active")]


def test_server_that_is_booted_after_the_action_is_saved_at_the_end(world: World):
    lease = book(world, hosts("snapshot", 2))
    world.boot(lease)
    world.pass_time(2 * HOUR)
    world.boot(lease)
    world.pass_time(HOUR)
    assert images(world) == [(lease.reservations[0].id, "active")] * 2


def test_short_lease_that_is_prolonged_has_its_notice_an_hour_before_the_end(world: World, messages: list[Message]):
    lease = world.reserve(hosts("notify"), hours=1 / 3)
    world.engine.settle()
    prolong(world, lease, 48 * HOUR)
    event = event_of(world, lease.id, EventType.BEFORE_END)
    assert (event.status, event.due_at) == (EventStatus.UNDONE, NOW + 47 * HOUR)
    world.pass_time(47 * HOUR)
    assert len(notified(messages)) == 2


def test_distance_that_the_owner_has_set_survives_a_short_time(world: World):
    """The lease is shortened, so that the moment is cut to its start, and prolonged again."""
    lease = world.reserve(hosts("none"), start=1, hours=10, before_end_at=NOW + 3 * HOUR)
    for until, due in ((5, 1), (12, 4), (11, 3)):
        prolong(world, lease, until * HOUR)
        assert event_of(world, lease.id, EventType.BEFORE_END).due_at == NOW + due * HOUR


# --- the end waits for it


@pytest.mark.slow
def test_end_waits_for_an_image_without_blocking_other_leases(world: World):
    lease = book(world, hosts("snapshot"), hosts("none", 3), notice=5 * MINUTE)
    world.boot(lease)
    world.cloud.inject(Fault(FaultKind.SLOW, verb="before_end", until=NOW + 3 * HOUR + 20 * MINUTE, reason="saving"))
    after = world.leases.create(
        OWNER, LeaseRequest("next", NOW + 3 * HOUR, NOW + 5 * HOUR, reservations=(hosts("none", 3),))
    )
    world.pass_time(3 * HOUR)
    waiting = lease_of(world, lease.id)
    assert (waiting.status, waiting.status_reason) == (LeaseStatus.TERMINATING, "Images are being saved of server.")
    assert [reservation.status for reservation in waiting.reservations] == [
        ReservationStatus.ACTIVE,
        ReservationStatus.DELETED,
    ]
    assert lease_of(world, after.id).status is LeaseStatus.ACTIVE
    assert (images(world), effects_of(world, EffectKind.SERVER_DELETED)) == (
        [(lease.reservations[0].id, "saving")],
        [],
    )
    world.pass_time(20 * MINUTE + 30 * SECOND, leap=20 * SECOND)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert images(world) == [(lease.reservations[0].id, "active")]
    assert len(effects_of(world, EffectKind.SERVER_DELETED)) == 1


def test_an_early_end_waits_for_the_action(world: World, messages: list[Message]):
    lease = book(world, instances("snapshot"), hosts("notify"))
    world.boot(lease)
    world.cloud.inject(Fault(FaultKind.SLOW, verb="before_end", until=NOW + HOUR + MINUTE, reason="saving"))
    world.pass_time(HOUR)
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + HOUR))
    world.engine.settle()
    assert lease_of(world, lease.id).status_reason == "Images are being saved of server."
    assert effects_of(world, EffectKind.SERVER_DELETED) == []
    world.pass_time(2 * MINUTE)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert images(world) == [(lease.reservations[0].id, "active")]
    topics = [message.topic for message in messages]
    assert (topics.count(NOTICE), topics.count(NOTIFIED), topics.count("lease.event.end_lease")) == (1, 1, 1)


def test_action_without_an_event_runs_at_the_end(hasty: World):
    lease = book(hasty, hosts("snapshot"))
    assert lease.event(EventType.BEFORE_END) is None
    hasty.boot(lease)
    hasty.cloud.inject(Fault(FaultKind.SLOW, verb="before_end", until=NOW + 3 * HOUR + MINUTE, reason="saving"))
    hasty.pass_time(3 * HOUR)
    assert lease_of(hasty, lease.id).status is LeaseStatus.TERMINATING
    hasty.pass_time(2 * MINUTE)
    assert lease_of(hasty, lease.id).status is LeaseStatus.TERMINATED
    assert images(hasty) == [(lease.reservations[0].id, "active")]


def test_action_that_fails_during_an_outage_is_retried_at_the_end(world: World):
    lease = book(world, hosts("snapshot"), hosts("none", 3))
    world.boot(lease)
    fault = world.cloud.inject(Fault(FaultKind.BUSY, verb="before_end", count=None, reason="away"))
    world.pass_time(2 * HOUR + 10 * MINUTE)
    assert event_of(world, lease.id, EventType.BEFORE_END).status is EventStatus.ERROR
    world.cloud.clear_faults(fault)
    world.pass_time(HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert images(world) == [(lease.reservations[0].id, "active")]


def test_action_that_fails_at_the_end_too_is_given_up(world: World):
    """It had been tried for minutes an hour before, and once more: then the end comes."""
    lease = book(world, hosts("snapshot"))
    world.boot(lease)
    world.cloud.inject(Fault(FaultKind.BUSY, verb="before_end", count=None, reason="away"))
    world.pass_time(3 * HOUR)
    after = lease_of(world, lease.id)
    assert (after.status, after.status_reason) == (LeaseStatus.TERMINATED, "before_end: away (busy)")
    assert_all_in_pool(world)


def test_action_that_first_fails_at_the_end_is_retried_for_minutes(world: World):
    lease = book(world, hosts("snapshot"), hosts("none", 3), notice=SECOND)
    world.boot(lease)
    world.cloud.inject(Fault(FaultKind.BUSY, verb="before_end", count=8, reason="away"))
    world.pass_time(3 * HOUR)
    waiting = lease_of(world, lease.id)
    assert (waiting.status, end_of(world, lease), end_of(world, lease, 1)) == (
        LeaseStatus.TERMINATING,
        ReservationStatus.ACTIVE,
        ReservationStatus.DELETED,
    )
    world.pass_time(10 * MINUTE)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert images(world) == [(lease.reservations[0].id, "active")]


def test_refused_action_does_not_stop_other_reservations(world: World, messages: list[Message]):
    lease = book(world, hosts("snapshot"), hosts("snapshot"), hosts("notify"))
    world.boot(lease)
    world.boot(lease, 1)
    first, second, third = (reservation.id for reservation in lease.reservations)
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="before_end", reservation_id=first, count=None, reason="quota"))
    world.pass_time(2 * HOUR)
    after = lease_of(world, lease.id)
    assert (after.status, after.status_reason) == (LeaseStatus.ACTIVE, "before_end: quota (refused)")
    assert event_of(world, lease.id, EventType.BEFORE_END).status is EventStatus.ERROR
    assert (images(world), notified(messages)) == ([(second, "active")], [third])
    world.pass_time(HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED


@pytest.mark.slow
def test_trust_is_kept_while_an_action_still_needs_it(world: World):
    """The end of another reservation fails for good, and the lease is in ERROR, while an image is being saved."""
    lease = book(world, hosts("snapshot"), hosts("none"))
    world.boot(lease)
    saved = NOW + 3 * HOUR + 5 * MINUTE
    world.cloud.inject(Fault(FaultKind.SLOW, verb="before_end", until=saved, reason="saving"))
    refused = world.cloud.inject(
        Fault(FaultKind.REFUSED, verb="ensure_ended", reservation_id=lease.reservations[1].id, count=None, reason="no")
    )
    world.pass_time(3 * HOUR + 2 * MINUTE, leap=20 * SECOND)
    assert lease_of(world, lease.id).status is LeaseStatus.ERROR
    world.service.reconciler.run()
    assert len(world.cloud.world.trusts()) == 1
    world.pass_time(5 * MINUTE, leap=20 * SECOND)
    assert images(world) == [(lease.reservations[0].id, "active")]
    world.cloud.clear_faults(refused)
    world.pass_time(5 * MINUTE, leap=20 * SECOND)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    world.service.reconciler.run()
    assert world.cloud.world.trusts() == frozenset()


def test_delete_does_not_wait_for_the_action(world: World):
    lease = book(world, hosts("snapshot"))
    world.boot(lease)
    world.leases.delete(OWNER, lease.id)
    assert images(world) == []
    assert_all_in_pool(world)


# --- kills


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("event", [EventType.BEFORE_END, EventType.END])
def test_action_runs_once_despite_kills(
    world: World, messages: list[Message], checkpoints: Checkpoints, event: EventType, point: str
):
    if event is EventType.END:  # nothing is done before
        rebuild(world, rules=replace(world.service.components.rules, notice_before_end=timedelta(0)))
    lease = book(world, hosts("snapshot"), instances("notify"), hosts("snapshot"))
    world.boot(lease)
    world.boot(lease, 2)
    checkpoints.kill_at(f"{event.value}:{point}")
    with pytest.raises(Killed):
        world.pass_time(4 * HOUR)
    rebuild(world)
    world.pass_time(4 * HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert sorted(images(world)) == sorted((lease.reservations[index].id, "active") for index in (0, 2))
    assert notified(messages) == [lease.reservations[1].id]
    assert len(effects_of(world, EffectKind.IMAGE_MADE)) == 2
    assert_all_in_pool(world)
