"""Leases of several reservations: whether they fit does not depend on the order in which they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseChange, LeaseQuery, ReservationChange
from tests.support import ledger
from tests.support.world import ADMIN, HOST, OWNER, World, instance_reservation, open_world, reservation, url_in


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=4) as world:
        yield world
        assert ledger.faults(url_in(tmp_path)) == []


def change_all(world: World, lease: Lease, *changes: tuple[int, dict[str, object]]) -> Lease:
    """Change several reservations of the lease at once, in this order: the index of each, and its parameters."""
    requested = tuple(ReservationChange(lease.reservations[index].id, parameters) for index, parameters in changes)
    return world.leases.update(OWNER, lease.id, LeaseChange(reservations=requested))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_many_small_instances_leave_room_for_a_large_instance(world: World, order: tuple[int, int]):
    """The large instance would be put where it fits best, which one of the small ones needs."""
    world.resize(8, 8, 4, 1)
    world.reserve_on(2, instance_reservation(1, vcpus=4), start=1)
    asked = [instance_reservation(1, vcpus=4), instance_reservation(3, vcpus=3, affinity=False)]
    world.reserve(*(asked[index] for index in order), start=1)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the larger one first", "the smaller one first"])
@pytest.mark.parametrize("kind", ["hosts", "instances"])
def test_reservation_grows_by_resources_released_by_another_of_the_lease(
    world: World, kind: str, order: tuple[int, int]
):
    if kind == "hosts":
        world.book(1, start=1)
        lease = world.reserve(reservation(1, 1), reservation(2, 2), start=1)
        changes: list[dict[str, object]] = [{"min": 2, "max": 2}, {"min": 1, "max": 1}]
    else:
        world.resize(3, 1, 1, 1)
        for number in (2, 3, 4):
            world.reserve_on(number, instance_reservation(1), start=1)
        lease = world.reserve(instance_reservation(1), instance_reservation(2), start=1)
        changes = [{"amount": 2}, {"amount": 1}]
    change_all(world, lease, *((index, changes[index]) for index in order))


def racks(world: World, *names: str) -> None:
    """Put the hosts, in order, into these racks; those for which there is none are closed."""
    for number in range(1, 5):
        if number <= len(names):
            world.resources.update(ADMIN, HOST, str(number), {"rack": names[number - 1]})
            world.resources.enable(ADMIN, HOST, str(number))
        else:
            world.resources.disable(ADMIN, HOST, str(number), reason="not now")


IN_THE_RACK = {"resource_properties": '["==", "$rack", "r1"]'}
#: Which of two equal hosts is taken is a matter of chance.
attempts = pytest.mark.parametrize("attempt", range(6))


@attempts
def test_undemanding_reservation_leaves_special_hosts_to_others(world: World, attempt: int):
    racks(world, "r1", "r2")
    lease = world.reserve(reservation(1, 1), reservation(1, 1, **IN_THE_RACK), start=1)
    assert len(world.hosts_of(lease.id)) == 2


@attempts
def test_growing_undemanding_reservation_leaves_special_hosts_to_others(world: World, attempt: int):
    racks(world, "r1", "r2")
    lease = world.reserve(reservation(1, 1), reservation(1, 1, **IN_THE_RACK))
    world.engine.settle()
    racks(world, "r1", "r2", "r1", "r2")
    two: dict[str, object] = {"min": 2, "max": 2}
    change_all(world, lease, (0, two), (1, two))
    world.engine.settle()
    assert len(world.hosts_of(lease.id)) == 4


def test_refusal_names_the_reservation_without_room(world: World):
    with pytest.raises(NotEnoughResources) as caught:
        world.reserve(reservation(2, 2), reservation(3, 3), start=1)
    assert caught.value.shortfall.requested in {2, 3}
    assert world.leases.list(OWNER, LeaseQuery(limit=10)).items == ()
    world.book(4, start=1)
