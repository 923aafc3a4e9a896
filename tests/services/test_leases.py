"""Leases through the services: booking, changing, deleting, starting and ending them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta

import pytest

from tenure.domain.errors import (
    Forbidden,
    InvalidParameter,
    InvalidState,
    LeaseBusy,
    NotEnoughResources,
    NotFound,
)
from tenure.domain.lease import AllocationState, EventStatus, EventType, LeaseStatus, ReservationStatus
from tenure.domain.request import LeaseChange, LeaseQuery, LeaseRequest, Moment, ReservationChange
from tenure.drivers.simulated import Fault, FaultKind
from tenure.services.limits.quotas import Quotas
from tests.support.engines import rebuild
from tests.support.world import ADMIN, HOST, NOW, OWNER, READER, STRANGER, World, reservation

HOUR = timedelta(hours=1)


def history(world: World, lease_id: str) -> list[str]:
    return [entry.to_status for entry in world.leases.history(ADMIN, lease_id) if entry.from_status != entry.to_status]


def test_lease_starts_and_ends(world: World):
    lease = world.book(2, start=1, hours=2)
    assert lease.status is LeaseStatus.PENDING
    assert len(world.hosts_of(lease.id)) == 2
    assert world.cloud.world.groups() == {}

    world.pass_time(HOUR)
    lease = world.leases.get(OWNER, lease.id)
    assert lease.status is LeaseStatus.ACTIVE
    assert {reservation.status for reservation in lease.reservations} == {ReservationStatus.ACTIVE}
    [group] = world.cloud.world.groups().values()
    assert group.project_id == OWNER.project_id

    world.pass_time(2 * HOUR)
    lease = world.leases.get(OWNER, lease.id)
    assert lease.status is LeaseStatus.TERMINATED
    assert {reservation.status for reservation in lease.reservations} == {ReservationStatus.DELETED}
    assert {event.status for event in lease.events} == {EventStatus.DONE}
    assert world.cloud.world.groups() == {}
    assert len(world.cloud.world.pool()) == 4
    assert history(world, lease.id) == ["PENDING", "STARTING", "ACTIVE", "TERMINATING", "TERMINATED"]


def test_refusal_lists_the_stages_of_the_choice(world: World):
    world.book(3, hours=2)
    with pytest.raises(NotEnoughResources) as refused:
        world.book(2, hours=1)
    counts = {stage.stage: stage.count for stage in refused.value.shortfall.stages}
    assert counts == {"reservable": 4, "matching": 4, "free": 1}
    assert "Not enough hosts available" in refused.value.message
    assert len(world.leases.list(ADMIN, LeaseQuery(limit=10)).items) == 1


def test_back_to_back_leases_share_a_host(world: World):
    first = world.book(4, hours=1)
    second = world.book(4, start=1, hours=1)
    world.pass_time(HOUR)
    assert world.leases.get(OWNER, first.id).status is LeaseStatus.TERMINATED
    assert world.leases.get(OWNER, second.id).status is LeaseStatus.ACTIVE


def test_tightest_gap_is_used(world: World):
    first = world.book(1, start=0, hours=2)
    other = world.book(1, start=2, hours=2)
    assert world.hosts_of(first.id) == world.hosts_of(other.id)


def test_plans_move_to_make_room(world: World):
    """Four hosts, each planned for another hour; one host is free throughout only after moving plans."""
    for hour in range(4):
        world.book(4, start=hour * 2 + 10, hours=1)
    held = [world.book(1, start=1 + hour, hours=1) for hour in range(4)]
    whole = world.book(3, start=1, hours=4)
    assert len(world.hosts_of(whole.id)) == 3
    assert all(len(world.hosts_of(lease.id)) == 1 for lease in held)
    assert not set(world.hosts_of(whole.id)) & {name for lease in held for name in world.hosts_of(lease.id)}


def test_deleted_pending_lease_frees_its_hosts_at_once(world: World):
    lease = world.book(4, start=1)
    world.leases.delete(OWNER, lease.id)
    world.leases.delete(OWNER, lease.id)
    with pytest.raises(NotFound):
        world.leases.get(OWNER, lease.id)
    world.book(4, start=1)


def test_deleted_active_lease_is_taken_back(world: World):
    lease = world.book(4)
    world.engine.settle()
    world.leases.delete(OWNER, lease.id)
    with pytest.raises(NotFound):
        world.leases.get(OWNER, lease.id)
    assert world.cloud.world.groups() == {}
    world.book(4)


def test_lease_of_another_project_is_not_found(world: World):
    lease = world.book(1)
    for call in (
        lambda: world.leases.get(STRANGER, lease.id),
        lambda: world.leases.update(STRANGER, lease.id, LeaseChange(name="mine")),
        lambda: world.leases.delete(STRANGER, lease.id),
        lambda: world.leases.history(STRANGER, lease.id),
    ):
        with pytest.raises(NotFound):
            call()
    assert world.leases.list(STRANGER, LeaseQuery(limit=10)).items == ()
    with pytest.raises(Forbidden):
        world.leases.delete(READER, lease.id)


def test_prolonging_moves_plans_and_is_refused_without_room(world: World):
    mine = world.book(1, hours=1)
    world.engine.settle()
    neighbour = world.book(1, start=1, hours=1)
    assert world.hosts_of(neighbour.id) == world.hosts_of(mine.id)
    extended = world.leases.update(OWNER, mine.id, LeaseChange(ends_at=NOW + 2 * HOUR))
    assert extended.ends_at == NOW + 2 * HOUR
    assert world.hosts_of(neighbour.id) != world.hosts_of(mine.id)
    world.book(4, start=2, hours=1)
    with pytest.raises(NotEnoughResources):
        world.leases.update(OWNER, mine.id, LeaseChange(ends_at=NOW + 3 * HOUR))
    assert world.leases.get(OWNER, mine.id).ends_at == NOW + 2 * HOUR


def test_running_lease_grows_and_does_not_shrink(world: World):
    lease = world.book(1, hours=2)
    world.engine.settle()
    [reservation] = lease.reservations
    grown = world.leases.update(
        OWNER, lease.id, LeaseChange(reservations=(ReservationChange(reservation.id, {"min": 2, "max": 3}),))
    )
    assert grown.status is LeaseStatus.ACTIVE
    assert grown.reservations[0].parameters["max"] == 3
    assert len(world.hosts_of(lease.id)) == 3
    [group] = world.cloud.world.groups().values()
    assert len(group.hosts) == 3
    with pytest.raises(NotEnoughResources):
        world.leases.update(
            OWNER, lease.id, LeaseChange(reservations=(ReservationChange(reservation.id, {"min": 1, "max": 1}),))
        )
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.ACTIVE


def test_refused_growth_is_undone(world: World):
    lease = world.book(1, hours=2)
    world.engine.settle()
    [reservation] = lease.reservations
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started"))
    with pytest.raises(Exception, match="undone"):
        world.leases.update(
            OWNER, lease.id, LeaseChange(reservations=(ReservationChange(reservation.id, {"min": 2, "max": 3}),))
        )
    after = world.leases.get(OWNER, lease.id)
    assert after.status is LeaseStatus.ACTIVE
    assert after.reservations[0].parameters["max"] == 1
    assert len(world.hosts_of(lease.id)) == 1
    [group] = world.cloud.world.groups().values()
    assert len(group.hosts) == 1


def test_start_of_a_running_lease_cannot_change(world: World):
    """Also in its first minute: it runs, and cannot start again."""
    lease = world.book(1, hours=2)
    world.engine.settle()
    with pytest.raises(InvalidParameter, match="already started"):
        world.leases.update(OWNER, lease.id, LeaseChange(starts_at=NOW + HOUR))
    assert world.leases.get(OWNER, lease.id).starts_at == NOW


def test_changed_pending_lease_is_planned_anew(world: World):
    lease = world.book(1, start=1, hours=1)
    [reservation] = lease.reservations
    changed = world.leases.update(
        OWNER,
        lease.id,
        LeaseChange(
            starts_at=NOW + 3 * HOUR,
            ends_at=NOW + 5 * HOUR,
            reservations=(ReservationChange(reservation.id, {"min": 4, "max": 4}),),
        ),
    )
    assert changed.status is LeaseStatus.PENDING
    assert len(world.hosts_of(lease.id)) == 4
    assert changed.event(EventType.START).due_at == NOW + 3 * HOUR
    assert changed.event(EventType.BEFORE_END).due_at == NOW + 4 * HOUR
    world.book(4, start=1, hours=2)


def test_before_end_event_is_not_before_the_start(world: World):
    """It keeps its distance from the end unless it would be before the start."""
    request = LeaseRequest(
        "lease", NOW + HOUR, NOW + 6 * HOUR, before_end_at=NOW + 2 * HOUR, reservations=(reservation(1, 1),)
    )
    lease = world.leases.create(OWNER, request)
    for ends_at, notice_at in ((7, 3), (5.5, 1.5), (5, 1), (3, 1)):
        changed = world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + ends_at * HOUR))
        assert changed.event(EventType.BEFORE_END).due_at == NOW + notice_at * HOUR


def test_refused_change_changes_nothing(world: World):
    lease = world.book(1, start=1, hours=1)
    before = world.leases.get(OWNER, lease.id)
    [reservation] = lease.reservations
    for change in (
        LeaseChange(name="x", ends_at=NOW - HOUR),
        LeaseChange(name="x", starts_at=NOW - HOUR),
        LeaseChange(name="x", before_end_at=NOW + 5 * HOUR),
        LeaseChange(name="x", reservations=(ReservationChange("nope", {"max": 2}),)),
        LeaseChange(name="x", reservations=(ReservationChange(reservation.id, {"min": 3}),)),
        LeaseChange(name="x", reservations=(ReservationChange(reservation.id, {}, "virtual:instance"),)),
        LeaseChange(name="x", reservations=(ReservationChange(reservation.id, {"min": 9, "max": 9}),)),
    ):
        with pytest.raises((InvalidParameter, NotEnoughResources)):
            world.leases.update(OWNER, lease.id, change)
        assert world.leases.get(OWNER, lease.id) == before


def test_transient_failure_is_retried(world: World):
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=3, reason="the cloud is slow"))
    lease = world.book(1)
    world.engine.settle()
    waiting = world.leases.get(OWNER, lease.id)
    assert waiting.status is LeaseStatus.STARTING
    assert "the cloud is slow" in (waiting.status_reason or "")
    with pytest.raises(LeaseBusy):
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 2 * HOUR))
    world.pass_time(timedelta(seconds=30))
    started = world.leases.get(OWNER, lease.id)
    assert started.status is LeaseStatus.ACTIVE
    assert started.status_reason is None


def test_permanent_failure_releases_everything(world: World):
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", after_effects=1, reason="no"))
    lease = world.book(2)
    world.engine.settle()
    failed = world.leases.get(OWNER, lease.id)
    assert failed.status is LeaseStatus.ERROR
    assert "no" in (failed.status_reason or "")
    assert world.cloud.world.groups() == {}
    world.book(4)
    with pytest.raises(InvalidState):
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 2 * HOUR))
    world.leases.update(OWNER, lease.id, LeaseChange(name="broken"))
    world.leases.delete(OWNER, lease.id)


@pytest.mark.slow
def test_slow_end_delays_no_other_lease(world: World):
    slow = world.book(1, hours=1)
    world.engine.settle()
    world.cloud.inject(
        Fault(FaultKind.SLOW, verb="ensure_ended", reservation_id=slow.reservations[0].id, until=NOW + 1.5 * HOUR)
    )
    following = world.book(1, start=1, hours=1)
    assert world.hosts_of(following.id) == world.hosts_of(slow.id)
    world.pass_time(HOUR)
    assert world.leases.get(OWNER, slow.id).status is LeaseStatus.TERMINATING
    assert world.leases.get(OWNER, following.id).status is LeaseStatus.ACTIVE
    assert world.hosts_of(following.id) != world.hosts_of(slow.id)
    world.pass_time(0.6 * HOUR)
    assert world.leases.get(OWNER, slow.id).status is LeaseStatus.TERMINATED


@pytest.mark.slow
def test_start_waits_for_its_host_without_an_alternative(world: World):
    slow = world.book(4, hours=1)
    world.engine.settle()
    world.cloud.inject(Fault(FaultKind.SLOW, verb="ensure_ended", until=NOW + HOUR + timedelta(minutes=5)))
    following = world.book(4, start=1, hours=1)
    world.pass_time(HOUR)
    assert world.leases.get(OWNER, following.id).status is LeaseStatus.PENDING
    world.pass_time(timedelta(minutes=6))
    assert world.leases.get(OWNER, slow.id).status is LeaseStatus.TERMINATED
    assert world.leases.get(OWNER, following.id).status is LeaseStatus.ACTIVE


def test_missed_start_is_skipped_with_a_reason(world: World):
    lease = world.book(1, start=1, hours=1)
    world.clock.advance(3 * HOUR)
    world.engine.settle()
    missed = world.leases.get(OWNER, lease.id)
    assert missed.status is LeaseStatus.TERMINATED
    assert "missed" in (missed.status_reason or "")
    assert world.cloud.world.journal(lease.reservations[0].id) == []


def test_delete_stops_retries(world: World):
    world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_started", count=None, after_effects=1))
    lease = world.book(2, hours=5)
    world.engine.settle()
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.STARTING
    world.leases.delete(OWNER, lease.id)
    with pytest.raises(NotFound):
        world.leases.get(OWNER, lease.id)
    assert len(world.cloud.world.pool()) == 4


def test_dropped_reservation_frees_its_host(world: World):
    lease = world.book(2, hours=2)
    world.pass_time(timedelta(minutes=1))
    world.leases.drop_reservation(OWNER, lease.id, lease.reservations[0].id)
    world.leases.drop_reservation(OWNER, lease.id, lease.reservations[0].id)
    after = world.leases.get(OWNER, lease.id)
    assert after.status is LeaseStatus.ACTIVE
    assert after.reservations[0].status is ReservationStatus.DELETED
    assert world.cloud.world.groups() == {}
    world.book(4)
    held = world.leases.resources(OWNER, lease.id, HOST)
    assert {allocation.state for allocation in held} == {AllocationState.RELEASED}


def test_snapshot_is_created_once_before_each_end(world: World):
    lease = world.book(1, hours=3, before_end="snapshot")
    world.pass_time(HOUR)
    world.cloud.world.boot_server(OWNER.project_id, name="mine", reservation_id=lease.reservations[0].id)
    world.pass_time(HOUR + timedelta(minutes=1))
    assert len(world.cloud.world.images()) == 1
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 6 * HOUR))
    world.pass_time(7 * HOUR)
    assert len(world.cloud.world.images()) == 2
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.TERMINATED


def test_lease_can_end_now(world: World):
    lease = world.book(1, hours=5)
    world.pass_time(timedelta(minutes=10))
    world.leases.update(OWNER, lease.id, LeaseChange(ends_at=world.clock.now()))
    world.engine.settle()
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.TERMINATED
    world.book(4)


def test_server_of_others_is_not_deleted(world: World):
    lease = world.book(1, start=1)
    [host] = world.hosts_of(lease.id)
    world.cloud.world.force_server("somebody", host, name="foreign")
    world.pass_time(HOUR)
    assert world.leases.get(OWNER, lease.id).status is LeaseStatus.ACTIVE
    assert world.hosts_of(lease.id) != [host]
    assert len(world.cloud.world.servers()) == 1


def test_repair_takes_back_late_effects(world: World):
    lease = world.book(1, hours=1)
    world.engine.settle()
    [command] = world.commands(lease.id)
    world.pass_time(2 * HOUR)
    world.cloud.ensure_started(command)
    assert world.service.reconciler.run() == 1
    assert world.cloud.world.groups() == {}
    assert world.service.reconciler.run() == 0


def test_messages_are_delivered_in_order(world: World):
    topics: list[str] = []
    world.service.engine._delivery._sink = lambda message: topics.append(message.topic)
    lease = world.book(1, start=1, hours=2)
    world.pass_time(4 * HOUR)
    world.leases.delete(OWNER, lease.id)
    world.engine.settle()
    assert topics == [
        "lease.create",
        "lease.event.start_lease",
        "lease.event.before_end_lease",
        "lease.event.end_lease",
        "lease.delete",
    ]


class SlowLimits:
    """Limits that take their time to be read, in which something else happens."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile

    def of_project(self, _project_id: str, _names: Collection[str]) -> Mapping[str, int]:
        self._meanwhile()
        return {}


def test_host_that_is_given_back_after_a_request_came_is_not_booked_from_before(world: World):
    """A lease of now takes its hosts from when the request came, not from when planning looks at them."""
    before = world.book(4, hours=2)
    world.engine.settle()
    world.clock.advance(timedelta(seconds=20))
    now = LeaseRequest("now", Moment.NOW, NOW + HOUR, reservations=(reservation(1, 1),))

    def give_back() -> None:
        world.clock.advance(timedelta(seconds=1))
        world.leases.delete(OWNER, before.id)

    rebuild(world, quotas=Quotas(SlowLimits(give_back)))
    with pytest.raises(NotEnoughResources):
        world.leases.create(OWNER, now)
    rebuild(world, quotas=Quotas())
    world.leases.create(OWNER, now)
