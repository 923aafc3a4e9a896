"""Events of owners: notified once and in time, also after changes of the lease and outages of the service."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

import pytest

from tenure.domain.errors import Conflict, InvalidParameter, InvalidState, LeaseBusy
from tenure.domain.lease import MAX_USER_EVENTS, Event, EventStatus, EventType, Lease, LeaseStatus
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationChange, UserEvent
from tenure.drivers.simulated import Fault, FaultKind
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
)
from tests.support.waiting import patience
from tests.support.world import NOW, OWNER, World, reservation

TOPIC = "lease.event.notify_lease"


def words(messages: list[Message]) -> list[str]:
    """The messages of owners' events, in order."""
    return [str(message.payload["event"]["message"]) for message in messages if message.topic == TOPIC]  # type: ignore[index]


def at(hours: float, message: str, event_id: str | None = None) -> UserEvent:
    return UserEvent(NOW + timedelta(hours=hours), message, event_id)


def book(world: World, *events: UserEvent, start: float = 0, end: float = 3, hosts: int = 1) -> Lease:
    request = LeaseRequest(
        "lease",
        NOW + timedelta(hours=start),
        NOW + timedelta(hours=end),
        reservations=(reservation(hosts, hosts),),
        events=events,
    )
    return world.leases.create(OWNER, request)


def own(lease: Lease) -> list[Event]:
    return [event for event in lease.events if event.event_type is EventType.NOTIFY]


def shown(lease: Lease) -> list[tuple[datetime, str | None, EventStatus]]:
    return sorted((event.due_at, event.message, event.status) for event in own(lease))


def put(world: World, lease: Lease, *events: UserEvent, **more: object) -> Lease:
    return world.leases.update(OWNER, lease.id, LeaseChange(events=events, **more))  # type: ignore[arg-type]


def test_notification_is_sent_at_its_time(world: World, messages: list[Message]):
    lease = book(world, at(2, "save your work"), at(1, "half time"), start=0.5)
    world.pass_time(HOUR - SECOND)
    assert words(messages) == []
    world.pass_time(SECOND)
    assert words(messages) == ["half time"]
    world.pass_time(HOUR)
    assert words(messages) == ["half time", "save your work"]
    message = next(message for message in messages if message.topic == TOPIC)
    event = min(own(lease), key=lambda event: event.due_at)
    assert message.payload["event"] == {
        "id": event.id,
        "event_type": "notify_lease",
        "time": "2030-01-01T11:00:00.000000",
        "message": "half time",
    }
    assert (message.payload["lease_id"], message.payload["status"]) == (lease.id, "ACTIVE")
    world.pass_time(2 * HOUR)
    assert len(words(messages)) == 2
    assert {status for _, _, status in shown(lease_of(world, lease.id))} == {EventStatus.DONE}


def test_event_does_not_change_the_lease(world: World):
    lease = book(world, at(1, "half time"))
    world.engine.settle()
    before = lease_of(world, lease.id).updated_at
    world.pass_time(HOUR)
    after = lease_of(world, lease.id)
    assert (own(after)[0].status, after.updated_at) == (EventStatus.DONE, before)


def test_the_first_and_the_last_moment_belong_to_the_lease(world: World, messages: list[Message]):
    book(world, at(1, "begins"), at(3, "is over"), start=1)
    world.pass_time(3 * HOUR)
    assert words(messages) == ["begins", "is over"]
    topics = [message.topic for message in messages]
    assert topics.index("lease.event.end_lease") > max(n for n, topic in enumerate(topics) if topic == TOPIC)


@pytest.mark.parametrize(("hours", "start"), [(0.9, 1), (3.1, 1), (-0.5, 0)])
def test_an_event_lies_within_the_lease(world: World, hours: float, start: float):
    with pytest.raises(InvalidParameter, match="between the start and the end") as refused:
        book(world, at(1, "fits"), at(hours, "does not"), start=start)
    assert refused.value.field == "events[1].time"
    lease = book(world, start=start)
    with pytest.raises(InvalidParameter):
        put(world, lease, at(hours, "does not"), name="other")
    assert lease_of(world, lease.id) == lease


def test_number_of_events_is_limited(world: World):
    many = [at(1, str(number)) for number in range(MAX_USER_EVENTS + 1)]
    with pytest.raises(InvalidParameter) as refused:
        book(world, *many)
    assert refused.value.field == "events"
    lease = book(world, *many[1:])
    with pytest.raises(InvalidParameter):
        put(world, lease, *many)


# --- changes


def test_change_replaces_all_events(world: World, messages: list[Message]):
    lease = book(world, at(1, "stays"), at(1, "moves"), at(1, "goes"), at(1, "says something else"))
    ids = {event.message: event.id for event in own(lease)}
    changed = put(
        world,
        lease,
        at(1, "stays", ids["stays"]),
        at(2, "moves", ids["moves"]),
        at(1, "new words", ids["says something else"]),
        at(1.5, "is new"),
    )
    assert [(when, what) for when, what, _ in shown(changed)] == [
        (NOW + HOUR, "new words"),
        (NOW + HOUR, "stays"),
        (NOW + 1.5 * HOUR, "is new"),
        (NOW + 2 * HOUR, "moves"),
    ]
    world.pass_time(3 * HOUR)
    assert sorted(words(messages)[:2]) == ["new words", "stays"]
    assert words(messages)[2:] == ["is new", "moves"]


def test_removed_events_send_nothing(world: World, messages: list[Message]):
    lease = book(world, at(1, "half time"))
    assert own(put(world, lease)) == []
    world.pass_time(3 * HOUR)
    assert words(messages) == []


def test_other_changes_leave_events_alone(world: World):
    lease = book(world, at(1, "half time"))
    changed = world.leases.update(OWNER, lease.id, LeaseChange(name="other", ends_at=NOW + 9 * HOUR))
    assert own(changed) == own(lease)


def test_sent_event_can_only_stay_or_be_removed(world: World, messages: list[Message]):
    lease = book(world, at(1, "half time"))
    world.pass_time(HOUR)
    event = own(lease)[0]
    with pytest.raises(InvalidState, match="is over"):
        put(world, lease, at(2, "half time", event.id))
    assert len(own(put(world, lease, at(1, "half time", event.id), at(2, "more")))) == 2
    assert len(own(put(world, lease, at(2, "more")))) == 1
    world.pass_time(2 * HOUR)
    assert words(messages) == ["half time", "more"]


def test_a_mistake_changes_nothing(world: World):
    lease = book(world, at(1, "half time"))
    (event,) = own(lease)
    start = next(event for event in lease.events if event.event_type is EventType.START)
    world.pass_time(30 * MINUTE)
    before = lease_of(world, lease.id)
    for wrong, field in (
        ((at(2, "x", start.id),), "events[0].id"),
        ((at(2, "x", "nothing"),), "events[0].id"),
        ((at(2, "x", event.id), at(2, "y", event.id)), "events[0].id"),
        ((at(2, "x"), at(0.2, "passed")), "events[1].time"),
        ((at(0.2, "passed", event.id),), "events[0].time"),
    ):
        with pytest.raises(InvalidParameter) as refused:
            put(world, lease, *wrong, name="half")
        assert refused.value.field == field
        assert lease_of(world, lease.id) == before


def test_events_outside_new_dates_move_to_their_edge(world: World, messages: list[Message]):
    lease = book(world, at(1, "early"), at(3, "late"), start=1)
    moved = world.leases.update(OWNER, lease.id, LeaseChange(starts_at=NOW + 1.5 * HOUR, ends_at=NOW + 2.5 * HOUR))
    assert [when for when, _, _ in shown(moved)] == [NOW + 1.5 * HOUR, NOW + 2.5 * HOUR]
    world.pass_time(2 * HOUR)
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=world.clock.now()))
    world.engine.settle()
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert words(messages) == ["early", "late"]


def test_events_are_judged_by_the_dates_of_the_same_change(world: World):
    lease = book(world, at(2, "late"))
    longer = put(world, lease, at(5, "later"), ends_at=NOW + 6 * HOUR)
    assert [when for when, _, _ in shown(longer)] == [NOW + 5 * HOUR]
    with pytest.raises(InvalidParameter):
        put(world, lease, at(5, "later"), ends_at=NOW + 4 * HOUR)
    assert lease_of(world, lease.id).ends_at == NOW + 6 * HOUR


@pytest.mark.parametrize("passed", [timedelta(0), HOUR])
def test_a_change_refused_by_the_cloud_leaves_the_events_unchanged(
    world: World, messages: list[Message], passed: timedelta
):
    lease = book(world, at(1, "half time"), at(2, "goes"), at(2.5, "says this"))
    world.pass_time(passed)
    before = shown(lease_of(world, lease.id))
    _, goes, says = sorted(own(lease), key=lambda event: event.due_at)
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", reason="no"))
    grown = ReservationChange(lease.reservations[0].id, {"min": 2, "max": 2})
    with pytest.raises(Conflict, match="undone"):
        put(world, lease, at(2.6, "says that", says.id), at(2, "is new"), reservations=(grown,))
    assert shown(lease_of(world, lease.id)) == before
    assert {goes.id, says.id} <= {event.id for event in own(lease_of(world, lease.id))}
    world.pass_time(3 * HOUR)
    assert words(messages) == ["half time", "goes", "says this"]


def test_events_are_removed_with_the_lease(world: World, messages: list[Message]):
    lease = book(world, at(2, "never"))
    planned = book(world, at(2, "neither"), start=1)
    world.pass_time(HOUR / 2)
    world.leases.delete(OWNER, lease.id)
    world.leases.delete(OWNER, planned.id)
    world.pass_time(3 * HOUR)
    assert words(messages) == []


# --- outages, hanging clouds and killed managers


def test_notification_neither_waits_nor_blocks(world: World, messages: list[Message]):
    """A hanging start delays no notification, and a claimed notification blocks no change of the lease."""
    lease = book(world, at(0, "begins"), at(1, "half time"))
    world.engine.settle()
    block = world.cloud.inject(Fault(FaultKind.BLOCK, verb="ensure_started"))
    grown = ReservationChange(lease.reservations[0].id, {"min": 2, "max": 2})
    change = threading.Thread(target=world.leases.update, args=(OWNER, lease.id, LeaseChange(reservations=(grown,))))
    change.start()
    try:
        assert world.cloud.wait_until_blocked(timeout_seconds=patience())
        world.clock.advance(HOUR)
        world.service.engine.round()
        world.service.engine.settle()
        assert words(messages) == ["begins", "half time"]
    finally:
        world.cloud.clear_faults(block)
        change.join(patience())


def test_change_succeeds_while_a_notification_is_sent(world: World, checkpoints: Checkpoints, messages: list[Message]):
    lease = book(world, at(1, "half time"))
    world.engine.settle()
    (event,) = own(lease)
    changes: list[Lease] = []
    grown = ReservationChange(lease.reservations[0].id, {"min": 2, "max": 2})
    checkpoints.at(
        "notify_lease:after_act",
        lambda: changes.append(put(world, lease, at(2, "later", event.id), reservations=(grown,))),
    )
    world.pass_time(HOUR)
    assert [lease.status for lease in changes] == [LeaseStatus.ACTIVE]
    assert words(messages) == []
    world.pass_time(HOUR)
    assert words(messages) == ["later"]


def test_running_lease_can_grow_while_a_notification_is_sent(
    world: World, checkpoints: Checkpoints, messages: list[Message]
):
    lease = book(world, at(1, "half time"))
    world.engine.settle()
    grown = LeaseChange(reservations=(ReservationChange(lease.reservations[0].id, {"min": 2, "max": 2}),))
    changes: list[Lease] = []
    checkpoints.at("notify_lease:after_act", lambda: changes.append(world.leases.update(OWNER, lease.id, grown)))
    world.pass_time(HOUR)
    assert [lease.status for lease in changes] == [LeaseStatus.ACTIVE]
    assert words(messages) == ["half time"]


@pytest.mark.parametrize("point", POINTS)
def test_the_end_waits_for_no_killed_manager(
    world: World, checkpoints: Checkpoints, messages: list[Message], point: str
):
    """The end sends the notification instead of the dead worker."""
    lease = book(world, at(3 - 10 / 3600, "nearly over"))
    checkpoints.kill_at(f"notify_lease:{point}")
    with pytest.raises(Killed):
        world.pass_time(3 * HOUR)
    rebuild(world)
    world.pass_until(NOW + 3 * HOUR)
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED
    assert words(messages) == ["nearly over"]
    world.pass_time(HOUR)
    assert words(messages) == ["nearly over"]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_manager_loses_and_repeats_no_event(
    world: World, checkpoints: Checkpoints, messages: list[Message], point: str
):
    lease = book(world, at(1, "half time"), at(1.5, "more"))
    checkpoints.kill_at(f"notify_lease:{point}")
    with pytest.raises(Killed):
        world.pass_time(2 * HOUR)
    other = another(world)
    other.engine.settle()
    assert words(messages) == []
    world.service = other
    world.pass_time(2 * MINUTE)
    assert words(messages) == ["half time"]
    world.pass_time(3 * HOUR)
    assert words(messages) == ["half time", "more"]
    assert lease_of(world, lease.id).status is LeaseStatus.TERMINATED


@pytest.mark.parametrize("point", POINTS)
def test_notification_under_way_at_the_end_is_sent_once(
    world: World, checkpoints: Checkpoints, messages: list[Message], point: str
):
    """The worker that had claimed it comes back after the end has sent it instead."""
    book(world, at(3, "is over"))
    other = another(world, checkpoint=lambda _point: None)

    def be_late() -> None:
        world.clock.advance(5 * MINUTE)
        other.engine.settle()

    checkpoints.at(f"notify_lease:{point}", be_late)
    world.pass_time(4 * HOUR)
    assert words(messages) == ["is over"]


def test_events_missed_during_an_outage_are_sent(world: World, messages: list[Message]):
    missed = book(world, at(1, "missed"), at(2, "as well"), start=1, end=2)
    running = book(world, at(1, "late"), end=9)
    world.clock.advance(4 * HOUR)
    world.engine.settle()
    assert sorted(words(messages)) == ["as well", "late", "missed"]
    assert lease_of(world, missed.id).status is LeaseStatus.TERMINATED
    assert lease_of(world, running.id).status is LeaseStatus.ACTIVE


def test_undelivered_notification_is_delivered_later(world: World):
    fails = [True]
    arrived: list[Message] = []

    def sink(message: Message) -> None:
        if fails[0]:
            raise ConnectionError("nobody is there")
        arrived.append(message)

    rebuild(world, sink=sink)
    book(world, at(1, "half time"))
    world.pass_time(HOUR)
    fails[0] = False
    world.pass_time(10 * MINUTE)
    assert words(arrived) == ["half time"]


def test_ended_lease_gets_no_events(world: World):
    lease = book(world)
    world.pass_time(4 * HOUR)
    with pytest.raises(InvalidState):
        put(world, lease, at(2, "x"))
    busy = book(world, start=5, end=9)
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=None))
    world.pass_time(HOUR)
    with pytest.raises(LeaseBusy):
        put(world, busy, at(8, "x"))
