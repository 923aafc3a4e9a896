"""Bookings beside leases whose start is late: while no manager is there, nothing starts."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from tenure.domain.errors import NotEnoughResources
from tests.support import ledger
from tests.support.lengths import times
from tests.support.world import World, instance_reservation, open_world, reservation, url_in


def test_plans_whose_starts_are_late_change_places(tmp_path: Path):
    """The instances and a host of the first lease change places, so that the second finds room beside these."""
    with open_world(tmp_path, hosts=4) as world:
        late = world.reserve(reservation(1, 2), instance_reservation(3, vcpus=32), hours=3)
        world.clock.advance(timedelta(minutes=49))
        lease = world.reserve(instance_reservation(1, vcpus=32, affinity=False), start=1, hours=2)
        assert len(world.units(late)) + len(world.units(lease)) >= 5
    assert ledger.faults(url_in(tmp_path)) == []


def book(world: World, dice: Random) -> None:
    """Send a request for hosts and instances, from now on or for later, that may be refused."""
    requested = [
        reservation(1, dice.choice((1, 1, 2)))
        if dice.random() < 0.4
        else instance_reservation(
            dice.randint(1, 3), vcpus=dice.choice((1, 4, 32)), affinity=dice.choice((False, True, None))
        )
        for _ in range(dice.choice((1, 1, 2)))
    ]
    with suppress(NotEnoughResources):
        world.reserve(*requested, start=dice.choice((0, 0.3, 0.5, 1, 2)), hours=dice.choice((0.5, 1, 2, 3)))


@pytest.mark.parametrize("seed", range(times(8, 100)))
def test_bookings_beside_late_starts_promise_nothing_twice(tmp_path: Path, seed: int):
    dice = Random(seed)
    with open_world(tmp_path, hosts=dice.randint(2, 4)) as world:
        for _ in range(25):
            world.clock.advance(timedelta(minutes=dice.randint(0, 40)))
            book(world, dice)
            assert ledger.faults(url_in(tmp_path), now=world.clock.now()) == []
