"""Held leases: booked for a limited time, until they are confirmed or expire."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from tenure.domain.errors import (
    Conflict,
    Forbidden,
    InvalidParameter,
    InvalidState,
    NotEnoughResources,
    NotFound,
)
from tenure.domain.lease import EventType, Lease, LeaseStatus
from tenure.domain.reason import Reason
from tenure.domain.request import LeaseChange, LeaseRequest, ReservationChange, ReservationRequest
from tenure.drivers.contract import CloudRefused
from tenure.drivers.simulated import Fault, FaultKind
from tenure.services.notifications.outbox import Message
from tests.support import ledger
from tests.support.engines import HOUR, Checkpoints, Killed, another, lease_of, path_of, rebuild, status_of, watch
from tests.support.simulated import HostHealth
from tests.support.waiting import patience
from tests.support.world import NOW, OWNER, READER, STRANGER, World, open_world, reservation

MINUTE = timedelta(minutes=1)
POINTS = ["after_claim", "after_act", "before_record"]
TOGETHER = ReservationRequest(
    "virtual:instance",
    {"vcpus": 1, "memory_mb": 512, "disk_gb": 1, "resource_properties": "", "amount": 1, "affinity": True},
)


def hold(
    world: World,
    *reservations: ReservationRequest,
    start: float = 1,
    end: float = 2,
    hold_for: timedelta = 10 * MINUTE,
) -> Lease:
    request = LeaseRequest(
        "lease",
        NOW + start * HOUR,
        NOW + end * HOUR,
        reservations=reservations or (reservation(4, 4),),
        hold_for=hold_for,
    )
    return world.leases.create(OWNER, request)


def is_free(world: World) -> bool:
    """Whether all hosts can be had in the time of the lease."""
    request = LeaseRequest("probe", NOW + HOUR, NOW + 2 * HOUR, reservations=(reservation(4, 4),))
    try:
        probe = world.leases.create(OWNER, request)
    except NotEnoughResources:
        return False
    world.leases.delete(OWNER, probe.id)
    return True


def changed(lease: Lease, **parameters: object) -> tuple[ReservationChange, ...]:
    return (ReservationChange(lease.reservations[0].id, parameters),)


def test_held_resources_are_taken_until_the_hold_expires(world: World, messages: list[Message]):
    lease = hold(world)
    assert (lease.status, lease.hold_until) == (LeaseStatus.CREATING, NOW + 10 * MINUTE)
    assert not is_free(world)
    world.pass_time(9 * MINUTE)
    assert world.leases.get(OWNER, lease.id).hold_until == NOW + 10 * MINUTE
    world.pass_time(MINUTE)
    with pytest.raises(NotFound):
        world.leases.get(OWNER, lease.id)
    with pytest.raises(NotFound):
        world.leases.confirm(OWNER, lease.id)
    assert path_of(world, lease.id) == ["CREATING", "DELETING", "DELETED"]
    world.pass_time(5 * HOUR)
    assert messages == []


def test_resources_of_an_expired_hold_are_free_at_once(world: World):
    hold(world)
    world.pass_time(10 * MINUTE)
    assert is_free(world)


def test_a_confirmed_lease_is_like_any_other(world: World, messages: list[Message]):
    lease = hold(world)
    world.pass_time(5 * MINUTE)
    assert messages == []
    confirmed = world.leases.confirm(OWNER, lease.id)
    assert (confirmed.status, confirmed.hold_until) == (LeaseStatus.PENDING, None)
    world.engine.settle()
    assert [message.topic for message in messages] == ["lease.create"]
    world.pass_until(NOW + HOUR)
    assert status_of(world, lease.id) is LeaseStatus.ACTIVE
    world.pass_until(NOW + 2 * HOUR)
    assert path_of(world, lease.id) == ["CREATING", "PENDING", "STARTING", "ACTIVE", "TERMINATING", "TERMINATED"]


def test_confirming_twice_is_harmless(world: World, messages: list[Message]):
    lease = hold(world, reservation(1, 2))
    change = changed(lease, max=3)
    first = world.leases.confirm(OWNER, lease.id, change)
    assert first.reservations[0].parameters["max"] == 3
    assert world.leases.confirm(OWNER, lease.id, change) == first
    with pytest.raises(Conflict, match="confirmed already") as refused:
        world.leases.confirm(OWNER, lease.id, changed(lease, max=4))
    assert refused.value.field == "reservations[0].max"
    world.engine.settle()
    assert [message.topic for message in messages] == ["lease.create"]
    plain = world.leases.create(OWNER, LeaseRequest("plain", NOW + 5 * HOUR, NOW + 6 * HOUR))
    assert world.leases.confirm(OWNER, plain.id) == plain


def test_confirmation_books_its_parameters_or_the_lease_stays_held(world: World):
    lease = hold(world, reservation(2, 2))
    other = hold(world, reservation(1, 1))
    with pytest.raises(NotEnoughResources) as refused:
        world.leases.confirm(OWNER, lease.id, changed(lease, min=4, max=4))
    assert refused.value.shortfall.reservation == 0
    assert lease_of(world, lease.id).hold_until is not None
    world.leases.delete(OWNER, other.id)
    world.leases.confirm(OWNER, lease.id, changed(lease, min=4, max=4))
    assert len(world.hosts_of(lease.id)) == 4


def test_a_confirmation_names_reservations_of_the_lease(world: World):
    lease = hold(world)
    unknown = (ReservationChange("unknown", {"max": 4}),)
    with pytest.raises(InvalidParameter) as before:
        world.leases.confirm(OWNER, lease.id, unknown)
    assert lease_of(world, lease.id).hold_until is not None
    world.leases.confirm(OWNER, lease.id)
    with pytest.raises(InvalidParameter) as after:
        world.leases.confirm(OWNER, lease.id, unknown)
    assert before.value.field == after.value.field == "reservations[0].id"


def test_confirmation_needs_the_right_to_change_the_lease(world: World):
    lease = hold(world)
    with pytest.raises(NotFound):
        world.leases.confirm(STRANGER, lease.id)
    with pytest.raises(Forbidden):
        world.leases.confirm(READER, lease.id)


def test_a_held_lease_does_not_start_and_a_confirmation_starts_it(world: World):
    lease = hold(world, start=0, hold_for=30 * MINUTE)
    world.pass_time(20 * MINUTE)
    assert status_of(world, lease.id) is LeaseStatus.CREATING
    world.leases.confirm(OWNER, lease.id)
    world.engine.settle()
    assert status_of(world, lease.id) is LeaseStatus.ACTIVE


def test_a_held_lease_changes_only_by_its_confirmation(world: World):
    lease = hold(world)
    with pytest.raises(InvalidState, match="confirm it first, or delete it"):
        world.leases.update(OWNER, lease.id, LeaseChange(ends_at=NOW + 3 * HOUR))
    with pytest.raises(InvalidState, match="confirm it first, or delete it"):
        world.leases.add_reservation(OWNER, lease.id, reservation(1, 1))
    world.leases.delete(OWNER, lease.id)
    assert is_free(world)
    world.pass_time(HOUR)
    assert status_of(world, lease.id) is LeaseStatus.DELETED


def test_released_hold_sends_no_notification(world: World, messages: list[Message]):
    """The owner releases the hold if the server is not booted after all."""
    world.leases.delete(OWNER, hold(world).id)
    world.engine.settle()
    assert messages == []
    confirmed = hold(world)
    world.leases.confirm(OWNER, confirmed.id)
    world.leases.delete(OWNER, confirmed.id)
    world.engine.settle()
    assert [message.topic for message in messages] == ["lease.create", "lease.delete"]


def test_a_hold_is_no_longer_than_the_lease(world: World):
    """A caller that holds a lease for a boot need not know the service's time."""
    lease = hold(world, start=0, end=0.1, hold_for=7 * MINUTE)
    assert lease.hold_until == lease.ends_at
    world.pass_time(6 * MINUTE)
    assert path_of(world, lease.id) == ["CREATING", "DELETING", "DELETED"]


def test_hold_that_expired_before_an_outage_is_removed_and_not_ended(world: World, messages: list[Message]):
    """The service was down at the end of the hold, and of the lease: nothing of it has ever been."""
    lease = hold(world, start=0, end=0.5)
    world.clock.advance(2 * HOUR)
    with pytest.raises(InvalidState):
        world.leases.confirm(OWNER, lease.id)
    end = next(event.id for event in lease.events if event.event_type == "end_lease")
    assert world.service.events.claim(end) is None
    world.engine.settle()
    assert path_of(world, lease.id) == ["CREATING", "DELETING", "DELETED"]
    assert messages == []


def test_held_lease_moves_off_a_failed_host_without_notification(world: World, messages: list[Message]):
    lease = hold(world, reservation(1, 1))
    before = world.hosts_of(lease.id)
    world.cloud.world.mark_host(before[0], HostHealth.DOWN)
    world.service.health_check.run()
    assert world.hosts_of(lease.id) not in ([], before)
    for host in world.cloud.world.hosts():
        world.cloud.world.mark_host(host.id, HostHealth.DOWN)
    world.service.health_check.run()
    assert messages == []
    assert lease_of(world, lease.id).degraded is False
    world.leases.confirm(OWNER, lease.id)
    world.service.health_check.run()
    world.engine.settle()
    assert [message.topic for message in messages] == ["lease.create", "lease.degraded"]


# --- in the cloud


def test_nothing_is_made_in_the_cloud_before_the_confirmation(world: World):
    groups = world.cloud.world.instances.server_groups
    lease = hold(world, TOGETHER)
    assert (groups(), len(set(world.cloud.world.trusts()))) == ({}, 1)
    confirmed = world.leases.confirm(OWNER, lease.id)
    assert confirmed.status is LeaseStatus.PENDING
    assert [reservation.effects["server_group_id"] for reservation in confirmed.reservations] == list(groups())


def test_trust_is_deleted_with_an_expired_hold(world: World):
    hold(world, TOGETHER)
    world.pass_time(10 * MINUTE)
    world.service.reconciler.run()
    assert set(world.cloud.world.trusts()) == set()


def test_confirmation_that_needs_a_trust_creates_it(world: World):
    lease = hold(world)
    assert set(world.cloud.world.trusts()) == set()
    world.leases.confirm(OWNER, lease.id, changed(lease, before_end="snapshot"))
    assert len(set(world.cloud.world.trusts())) == 1


def test_no_lease_is_created_if_the_cloud_refuses(world: World, messages: list[Message]):
    def refuse(verb: str, *_: object) -> None:
        if verb == "ensure_prepared":
            raise CloudRefused(Reason("Quota exceeded, too many server groups."))

    lease = hold(world, TOGETHER)
    watch(world, refuse)
    with pytest.raises(Conflict, match="Quota exceeded"):
        world.leases.confirm(OWNER, lease.id)
    world.engine.settle()
    assert status_of(world, lease.id) is LeaseStatus.DELETED
    assert messages == []


# --- races


@pytest.mark.parametrize("point", POINTS)
def test_confirmation_wins_against_a_running_expiry(
    world: World, checkpoints: Checkpoints, messages: list[Message], point: str
):
    lease = hold(world)
    confirmed: list[Lease] = []
    checkpoints.at(f"hold_lease:{point}", lambda: confirmed.append(world.leases.confirm(OWNER, lease.id)))
    world.pass_time(20 * MINUTE)
    assert [lease.status for lease in confirmed] == [LeaseStatus.PENDING]
    assert status_of(world, lease.id) is LeaseStatus.PENDING
    world.pass_until(NOW + HOUR)
    assert status_of(world, lease.id) is LeaseStatus.ACTIVE
    assert [message.topic for message in messages][:2] == ["lease.create", "lease.event.start_lease"]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_manager_leaves_no_lease_held(world: World, checkpoints: Checkpoints, point: str):
    lease = hold(world)
    checkpoints.kill_at(f"hold_lease:{point}")
    with pytest.raises(Killed):
        world.pass_time(11 * MINUTE)
    other = another(world)
    world.service = other
    world.pass_time(2 * MINUTE)
    assert status_of(world, lease.id) is LeaseStatus.DELETED
    assert is_free(world)


@pytest.mark.parametrize("point", POINTS)
def test_a_manager_killed_after_a_confirmation_loses_nothing(
    world: World, checkpoints: Checkpoints, messages: list[Message], point: str
):
    lease = hold(world, TOGETHER)
    checkpoints.kill_at(f"prepare_lease:{point}")
    with pytest.raises(Killed):
        world.leases.confirm(OWNER, lease.id)
    rebuild(world, sink=messages.append)
    world.pass_time(30 * MINUTE)
    found = lease_of(world, lease.id)
    assert found.status is LeaseStatus.PENDING
    assert list(world.cloud.world.instances.server_groups()) == [found.reservations[0].effects["server_group_id"]]
    assert [message.topic for message in messages] == ["lease.create"]


def boot_for(world: World, lease: Lease) -> None:
    """Boot a server for a held lease like Nova's API; only its metadata refers to the lease."""
    marks = {"tenure:lease": lease.id, "tenure:reservation": lease.reservations[0].id}
    world.cloud.world.instances.boot("demo-project", "1", metadata=marks)


ONE_SERVER = ReservationRequest("virtual:server", {"vcpus": 1, "memory_mb": 512, "disk_gb": 1})


@pytest.mark.parametrize("away", [timedelta(), 5 * HOUR], ids=["there", "away for hours"])
@pytest.mark.parametrize("busy", [0, 20])
def test_a_late_server_of_an_expired_hold_is_found(world: World, away: timedelta, busy: int):
    """The ledger remembers to look for it; the list of servers is not read."""
    world.cloud.world.add_host("general")
    lease = hold(world, ONE_SERVER, start=6, end=7)
    if away:
        boot_for(world, lease)
        world.clock.advance(away)
        world.restart()
    else:
        world.pass_time(15 * MINUTE)
        boot_for(world, lease)
    if busy:
        world.cloud.inject(Fault(FaultKind.BUSY, verb="ensure_ended", count=busy))
    version = path_of(world, lease.id)
    world.pass_time(HOUR)
    assert world.cloud.world.servers() == []
    assert path_of(world, lease.id) == version or away
    with world.db.read() as tx:  # the search for the server is over
        ready_at = {
            stored_event.event.event_type: stored_event.ready_at for stored_event in tx.events.of_lease(lease.id)
        }
    assert EventType.HOLD not in ready_at
    assert set(ready_at.values()) == {None}


@pytest.mark.parametrize("point", POINTS)
def test_search_for_the_server_survives_a_killed_manager(world: World, checkpoints: Checkpoints, point: str):
    world.cloud.world.add_host("general")
    lease = hold(world, ONE_SERVER)
    boot_for(world, lease)
    world.leases.delete(OWNER, lease.id)
    checkpoints.kill_at(f"hold_lease:{point}")
    with pytest.raises(Killed):
        world.engine.settle()
    world.service = another(world)
    world.pass_time(2 * MINUTE)
    assert world.cloud.world.servers() == []


@pytest.mark.races
@pytest.mark.parametrize("first", ["confirmation", "end of the hold", "either"])
def test_first_of_confirmation_and_expiry_wins(database_url: str, first: str):
    """Both have read that the lease is held before either writes; it is confirmed and has its host, or is gone."""
    checkpoints = Checkpoints()
    with open_world(database_url, hosts=4, checkpoint=checkpoints) as world, ThreadPoolExecutor(1) as pool:
        meeting, first_is_done = threading.Barrier(2), threading.Event()

        def before_writing(name: str) -> None:
            meeting.wait(patience())
            if first not in {name, "either"}:
                assert first_is_done.wait(patience())

        def before_a_call(verb: str, *_: object) -> None:
            if verb == "delegate":
                before_writing("confirmation")

        def end_hold() -> None:
            world.engine.settle()
            if first == "end of the hold":
                first_is_done.set()

        watch(world, before_a_call)
        for _ in range(5 if first == "either" else 1):
            start = (world.clock.now() - NOW) / HOUR + 1
            lease = hold(world, reservation(1, 1), start=start, end=start + 1, hold_for=MINUTE)
            checkpoints.at("hold_lease:before_record", lambda: before_writing("end of the hold"))
            world.clock.advance(MINUTE)
            ended = pool.submit(end_hold)
            try:
                world.leases.confirm(OWNER, lease.id, changed(lease, before_end="snapshot"))
                confirmed = True
            except NotFound:
                confirmed = False
            if first == "confirmation":
                first_is_done.set()
            ended.result(patience())
            assert first == "either" or confirmed is (first == "confirmation")
            assert status_of(world, lease.id) is (LeaseStatus.PENDING if confirmed else LeaseStatus.DELETED)
            assert ledger.faults(database_url, now=world.clock.now()) == []
            assert len(ledger.leases(database_url)[lease.id].hosts) == confirmed
            assert len(world.cloud.world.trusts()) == confirmed
            if confirmed:
                world.leases.delete(OWNER, lease.id)
                world.service.reconciler.run()
