"""Problems of one lease that must not affect another: in the ledger, in a round, in the reconciliation pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from tenure.domain.errors import Conflict, NotEnoughResources
from tenure.domain.lease import LeaseStatus
from tenure.domain.request import LeaseChange, LeaseRequest, Moment, ReservationChange
from tenure.drivers.simulated import Fault, FaultKind
from tests.support import ledger
from tests.support.engines import HOUR, MINUTE, SECOND, Checkpoints, Killed, assert_all_in_pool, lease_of, status_of
from tests.support.ledger import overlaps
from tests.support.world import ADMIN, HOST, NOW, OWNER, World, instance_reservation, open_world, reservation, url_in


def test_resources_of_a_refused_change_are_released_in_time(database_url: str):
    """The lease has the resource until the cloud has it back, but others can book it from the new end on."""
    with open_world(database_url, hosts=2) as world:
        running = world.book(1, hours=10)
        world.engine.settle()
        following = world.book(1, start=5, hours=5)
        world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_started", count=None))
        more = ReservationChange(running.reservations[0].id, {"min": 2, "max": 2})
        with pytest.raises(Conflict):
            world.leases.update(OWNER, running.id, LeaseChange(ends_at=NOW + 5 * HOUR, reservations=(more,)))
        assert overlaps(database_url) == []
        world.cloud.clear_faults()
        world.pass_time(5 * HOUR)
        after = lease_of(world, running.id)
        assert (after.status, after.ends_at) == (LeaseStatus.ACTIVE, NOW + 10 * HOUR)
        assert lease_of(world, following.id).status is LeaseStatus.ACTIVE
        assert overlaps(database_url) == []


def test_late_change_takes_nothing_from_the_next_lease(database_url: str):
    checkpoints = Checkpoints()
    with open_world(database_url, hosts=2, checkpoint=checkpoints) as world:
        running = world.book(1, hours=1)
        world.engine.settle()
        following = world.book(2, start=1)
        world.clock.advance(HOUR - MINUTE)
        checkpoints.at("update_lease:before_record", lambda: world.clock.advance(MINUTE + SECOND))
        more = ReservationChange(running.reservations[0].id, {"min": 2, "max": 2})
        world.leases.update(OWNER, running.id, LeaseChange(reservations=(more,)))
        assert overlaps(database_url) == []
        world.engine.settle()
        assert lease_of(world, running.id).status is LeaseStatus.TERMINATED
        assert lease_of(world, following.id).status is LeaseStatus.ACTIVE


def test_a_change_to_an_end_in_the_minute_of_the_start_is_recorded(world: World, tmp_path: Path):
    """A host that it got after its new end is held for no time beyond that, and not for less than no time."""
    world.clock.advance(30 * SECOND)
    two = (reservation(1, 1), reservation(1, 1))
    lease = world.leases.create(OWNER, LeaseRequest("lease", Moment.NOW, NOW + HOUR, reservations=two))
    world.engine.settle()
    world.clock.advance(10 * SECOND)
    more = ReservationChange(lease.reservations[0].id, {"min": 2, "max": 2})
    world.leases.update(OWNER, lease.id, LeaseChange(reservations=(more,)))
    world.clock.advance(10 * SECOND)
    ended = world.leases.update(OWNER, lease.id, LeaseChange(ends_at=Moment.THIS_MINUTE))
    assert (ended.status, ended.ends_at) == (LeaseStatus.ACTIVE, NOW + 30 * SECOND)
    world.leases.drop_reservation(OWNER, lease.id, lease.reservations[1].id)
    assert ledger.faults(url_in(tmp_path), now=world.clock.now()) == []
    world.engine.settle()
    assert status_of(world, lease.id) is LeaseStatus.TERMINATED
    assert_all_in_pool(world)


def test_resources_given_up_by_an_update_stay_booked_until_the_cloud_follows(world: World, tmp_path: Path):
    """The update shortens a lease and makes it larger, for which the plan of another lease would have to move.

    That plan would have room beside the first lease if its new end held already; the cloud may still refuse it. It
    cannot change places with the plan there, which does not fit beside one that must stay on the second host.
    """
    world.resize(8, 4, 1, 1)
    world.resources.update(ADMIN, HOST, "2", {"rack": "b"})
    four = instance_reservation(1, vcpus=4)
    running = world.reserve_on(1, four, hours=10)
    world.reserve_on(1, four, hours=2)
    world.engine.settle()
    world.reserve_on(1, four, start=5, hours=5)
    other = world.reserve_on(2, four, start=3, hours=5)
    world.reserve(instance_reservation(1, vcpus=4, resource_properties='["==", "$rack", "b"]'), start=9)
    more = ReservationChange(running.reservations[0].id, {"amount": 2})
    with pytest.raises(NotEnoughResources):
        world.leases.update(OWNER, running.id, LeaseChange(ends_at=NOW + 5 * HOUR, reservations=(more,)))
    assert ledger.faults(url_in(tmp_path)) == []
    assert world.units(other) == [("sim-host-002", 1)]
    assert lease_of(world, running.id).ends_at == NOW + 10 * HOUR


def test_lease_deleted_under_a_dead_claim_leaves_no_events(world: World, checkpoints: Checkpoints):
    """Its start was missed, and the manager that was about to record that has died."""
    lease = world.book(1, start=1, hours=1)
    world.clock.advance(3 * HOUR)
    checkpoints.kill_at("end_lease:after_claim")
    with pytest.raises(Killed):
        world.engine.settle()
    world.leases.delete(OWNER, lease.id)
    world.clock.advance(HOUR)
    assert world.engine.round() == 0
    assert status_of(world, lease.id) is LeaseStatus.DELETED


def test_plan_stays_if_the_previous_lease_releases_in_time(world: World):
    """A handover at one instant moves no plan: it may be better to keep the other host free."""
    first = world.book(1, hours=1)
    second = world.book(1, start=1, hours=1)
    [host] = world.hosts_of(first.id)
    assert world.hosts_of(second.id) == [host]
    world.engine.settle()
    world.pass_time(HOUR)
    assert world.hosts_of(second.id) == [host]
    assert status_of(world, second.id) is LeaseStatus.ACTIVE


def test_start_that_cannot_be_replanned_blocks_no_other(world: World, caplog: pytest.LogCaptureFixture):
    slow = world.book(4, hours=1)
    world.engine.settle()
    waiting = world.book(4, start=1, hours=1)
    world.cloud.inject(Fault(FaultKind.SLOW, verb="ensure_ended", until=NOW + 2 * HOUR))
    with world.db.engine.begin() as connection:
        connection.execute(
            text("UPDATE reservations SET resource_type = 'virtual:gone' WHERE lease_id = :lease"),
            {"lease": waiting.id},
        )
    world.pass_time(HOUR + MINUTE)
    world.cloud.clear_faults()
    world.pass_time(MINUTE)
    assert status_of(world, slow.id) is LeaseStatus.TERMINATED
    assert "could not be planned anew" in caplog.text


def test_stuck_leftover_blocks_no_other(world: World):
    """The reconciliation pass takes back the other leftovers."""
    leases = [world.book(1), world.book(1)]
    world.engine.settle()
    for lease in leases:
        [command] = world.commands(lease.id)
        world.leases.delete(OWNER, lease.id)
        world.cloud.ensure_started(replace(command, resources=()))
    stays, goes = sorted(lease.reservations[0].id for lease in leases)
    assert set(world.cloud.world.groups()) == {stays, goes}
    world.cloud.inject(Fault(FaultKind.REFUSED, verb="ensure_ended", reservation_id=stays, count=None))
    assert world.service.reconciler.run() == 2
    assert set(world.cloud.world.groups()) == {stays}
    assert (world.service.reconciler.tally.found[HOST], world.service.reconciler.tally.reconciled[HOST]) == (2, 1)


def test_unknown_reservation_in_the_cloud_is_left_alone(world: World, caplog: pytest.LogCaptureFixture):
    """Others may use the same cloud, and the same names. It is logged once."""
    lease = world.book(1)
    world.engine.settle()
    [command] = world.commands(lease.id)
    world.cloud.ensure_started(replace(command, reservation_id="somebody's", resources=()))
    for _ in range(3):
        assert world.service.reconciler.run() == 0
    assert set(world.cloud.world.groups()) == {"somebody's", command.reservation_id}
    assert caplog.text.count("somebody's looks like a reservation") == 1
