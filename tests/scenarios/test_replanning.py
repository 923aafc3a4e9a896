"""Plans that move to make room, on every kind of database: no two leases ever share a host."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import LeaseChange, ReservationChange
from tenure.drivers.simulated import Fault, FaultKind
from tenure.store.database import Transaction
from tests.support import ledger
from tests.support.world import NOW, OWNER, World, open_world

HOUR = timedelta(hours=1)


def lay_out(world: World, *places: tuple[Lease, int, str]) -> None:
    """Put the allocation of each lease on the given host, in the given state, and tell the index that follows."""
    move = text("UPDATE allocations SET resource_id = :host, state = :state WHERE reservation_id = :reservation")

    def write(tx: Transaction) -> None:
        if world.db.dialect == "postgresql":
            tx.session.execute(text("SET CONSTRAINTS ALL DEFERRED"))
        for lease, host, state in places:
            values = {"host": host, "state": state, "reservation": lease.reservations[0].id}
            tx.session.execute(move, values)
        tx.changed.add_resources(range(1, 5))

    world.db.write(write)


def test_host_that_has_just_received_a_plan_gives_no_room(database_url: str):
    """The plan of the first host moves to the second host, whose own plan then must move.

    Three of four hosts are requested; the fourth has room for only one of the two plans.
    """
    with open_world(database_url, hosts=4) as world:
        first, second, in_the_way = (world.book(1, start=start, hours=1) for start in (10, 11, 10))
        lay_out(world, (first, 1, "planned"), (second, 2, "planned"), (in_the_way, 4, "held"))
        with pytest.raises(NotEnoughResources):
            world.book(3, start=10, hours=2)
        assert ledger.overlaps(database_url) == []
        lay_out(world, (in_the_way, 4, "planned"))
        world.pass_time(12 * HOUR)
        assert ledger.faults(database_url) == []


def test_plan_in_the_way_of_an_extension_never_moves_to_another_host_of_that_lease(database_url: str):
    with open_world(database_url, hosts=2) as world:
        running = world.book(2, hours=1)
        world.engine.settle()
        following = world.book(1, start=1, hours=1)
        with pytest.raises(NotEnoughResources):
            world.leases.update(OWNER, running.id, LeaseChange(ends_at=NOW + 2 * HOUR))
        assert world.leases.get(OWNER, running.id).ends_at == NOW + HOUR
        assert len(world.hosts_of(following.id)) == 1
        assert ledger.faults(database_url) == []


def test_lease_that_has_grown_can_be_extended(database_url: str):
    """An earlier lease on the added host does not matter."""
    with open_world(database_url, hosts=2) as world:
        short, long = world.book(1, hours=0.5), world.book(1, hours=3)
        world.pass_time(HOUR)
        grown = LeaseChange(reservations=(ReservationChange(long.reservations[0].id, {"min": 2, "max": 2}),))
        world.leases.update(OWNER, long.id, grown)
        assert set(world.hosts_of(short.id)) < set(world.hosts_of(long.id))
        world.leases.update(OWNER, long.id, LeaseChange(ends_at=NOW + 5 * HOUR))
        assert ledger.faults(database_url) == []


def test_late_start_moves_to_a_host_that_has_just_become_free(database_url: str):
    """The new allocation begins now, as the host had another lease before."""
    with open_world(database_url, hosts=2) as world:
        slow, other = world.book(1, hours=1), world.book(1, hours=2)
        world.engine.settle()
        following = world.book(1, start=1, hours=1)
        assert world.hosts_of(following.id) == world.hosts_of(slow.id)
        world.cloud.inject(Fault(FaultKind.SLOW, verb="ensure_ended", reservation_id=slow.reservations[0].id))
        world.pass_time(HOUR)
        assert world.leases.get(OWNER, following.id).status is LeaseStatus.PENDING
        world.clock.advance(timedelta(minutes=10))
        world.leases.delete(OWNER, other.id)
        world.engine.settle()
        assert world.leases.get(OWNER, following.id).status is LeaseStatus.ACTIVE
        assert world.hosts_of(following.id) != world.hosts_of(slow.id)
        assert ledger.faults(database_url) == []
