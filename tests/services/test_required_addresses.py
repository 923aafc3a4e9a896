"""Addresses that a reservation requires: it gets exactly these, or a reason."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import Lease, LeaseStatus
from tenure.domain.request import LeaseChange, ReservationChange
from tests.support.engines import lease_of
from tests.support.world import ADMIN, OWNER, World, address_reservation, open_world

ADDRESS = "virtual:floatingip"
FIRST, SECOND, THIRD = "203.0.113.10", "203.0.113.11", "203.0.113.12"
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=1) as world:
        for address in (FIRST, SECOND, THIRD):
            world.resources.register(ADMIN, ADDRESS, f"{world.cloud.world.addresses.public}/{address}", {})
        yield world


def book(world: World, amount: int, *required: str, start: float = 1) -> Lease:
    lease = world.reserve(address_reservation(amount, *required), start=start)
    world.engine.settle()
    return lease


def addresses(world: World, lease: Lease) -> set[str]:
    return {
        resource.resource.name
        for resource in world.leases.resources(OWNER, lease.id, ADDRESS)
        if resource.state.value != "released"
    }


def steal(world: World, address: str) -> None:
    """Give this address to another project."""
    world.cloud.world.addresses.release(address)
    world.cloud.world.addresses.take(address, "thief-project")
    world.service.health_check.run()


def test_required_address_in_use_is_refused(world: World):
    """The first plan requires the address, too, and does not move."""
    first = book(world, 1, THIRD)
    with pytest.raises(NotEnoughResources):
        book(world, 1, THIRD)
    assert addresses(world, first) == {THIRD}
    book(world, 1, THIRD, start=2)


def test_plan_moves_off_a_required_address(world: World):
    any_two, third = book(world, 2), None
    [free] = {FIRST, SECOND, THIRD} - addresses(world, any_two)
    requested = sorted(addresses(world, any_two))[0]
    third = book(world, 1, requested)
    assert addresses(world, third) == {requested}
    assert addresses(world, any_two) == {FIRST, SECOND, THIRD} - {requested}
    assert free in addresses(world, any_two)


@pytest.mark.parametrize("planned", [FIRST, SECOND, THIRD])
def test_two_required_addresses_are_freed_by_moving_plans(world: World, planned: str):
    """The plan moves to the address that is not required."""
    for second in sorted({FIRST, SECOND, THIRD} - {planned}):
        other = book(world, 1, planned)
        any_will_do = ReservationChange(other.reservations[0].id, {"required_floatingips": []})
        world.leases.update(OWNER, other.id, LeaseChange(reservations=(any_will_do,)))
        both = book(world, 2, planned, second)
        assert addresses(world, both) == {planned, second}
        world.leases.delete(OWNER, both.id)
        world.leases.delete(OWNER, other.id)


def test_reduced_reservation_keeps_required_addresses(world: World):
    lease = book(world, 3, THIRD)
    [reservation] = lease.reservations
    world.leases.update(OWNER, lease.id, LeaseChange(reservations=(ReservationChange(reservation.id, {"amount": 1}),)))
    assert addresses(world, lease) == {THIRD}


def test_reduced_reservation_keeps_a_required_address_that_fails(world: World):
    """A required address is kept while it does not work, unless the owner requires it no longer."""
    lease = book(world, 3, THIRD)
    steal(world, THIRD)
    [reservation] = lease.reservations
    smaller = LeaseChange(reservations=(ReservationChange(reservation.id, {"amount": 2}),))
    world.leases.update(OWNER, lease.id, smaller)
    assert THIRD in addresses(world, lease)
    assert len(addresses(world, lease)) == 2
    without = LeaseChange(reservations=(ReservationChange(reservation.id, {"amount": 2, "required_floatingips": []}),))
    world.leases.update(OWNER, lease.id, without)
    assert addresses(world, lease) == {FIRST, SECOND}


def test_lease_is_degraded_without_its_required_address(world: World):
    lease = book(world, 1, THIRD)
    steal(world, THIRD)
    assert addresses(world, lease) == {THIRD}
    assert lease_of(world, lease.id).degraded
    world.cloud.world.addresses.release(THIRD)
    world.service.health_check.run()
    assert not lease_of(world, lease.id).degraded
    world.pass_time(HOUR)
    assert set(world.cloud.world.addresses.floating_ips()) == {THIRD}


@pytest.mark.slow
def test_start_fails_without_its_required_address(world: World):
    lease = book(world, 1, THIRD)
    world.cloud.world.addresses.take(THIRD, "thief-project")
    world.pass_time(2 * HOUR)
    found = lease_of(world, lease.id)
    assert found.status is LeaseStatus.TERMINATED
    assert "The start was missed" in str(found.status_reason)
    assert THIRD in str(found.status_detail)


def test_running_lease_waits_for_its_required_address(world: World):
    lease = book(world, 1, THIRD, start=0)
    steal(world, THIRD)
    world.clock.advance(20 * MINUTE)
    world.service.health_check.run()
    world.engine.settle()
    assert addresses(world, lease) == {THIRD}
    assert lease_of(world, lease.id).degraded
