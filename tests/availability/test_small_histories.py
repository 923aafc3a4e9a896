"""Searches on small sites, where a few bookings decide: the first start that is found is the first that can be booked.

Every possible start is tried, so what is found is compared with what is, not with a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from tenure.domain.availability import OfferQuery
from tenure.domain.errors import NotEnoughResources, OverQuota, TenureError
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseRequest, ReservationRequest, Window
from tenure.services.limits.quotas import FixedLimits, Quotas
from tests.availability.test_offers import open_site
from tests.support.engines import rebuild
from tests.support.world import ADMIN, HOST, NOW, OWNER, World, instance_reservation, reservation

HOUR = timedelta(hours=1)
#: The hours at which leases are booked, and the half hours at which searches look for a start.
BOOKED, SEARCHED = range(1, 6), range(2, 17)
RACKS = ("r1", "r1", "r2", "r2")


@dataclass(frozen=True)
class Site:
    """Hosts in two racks, the limits of the project, and the requests that are drawn: for bookings and for searches."""

    vcpus: tuple[int, ...]
    book: Callable[[Random], tuple[ReservationRequest, ...]]
    draw: Callable[[Random], tuple[ReservationRequest, ...]]
    limits: Mapping[str, int] = field(default_factory=dict)
    #: How far ahead hours count: later a lease may start, though it would last longer than hours are left.
    horizon: timedelta = 24 * HOUR


def several(dice: Random) -> tuple[ReservationRequest, ...]:
    """Return two or three reservations for parts of the hosts."""
    return tuple(instance_reservation(1, vcpus=dice.choice((2, 3, 4, 5))) for _ in range(dice.choice((2, 2, 3))))


def one(dice: Random) -> tuple[ReservationRequest, ...]:
    """Return a reservation for a part of a host."""
    return (instance_reservation(1, vcpus=dice.choice((2, 3, 4))),)


def in_a_rack(dice: Random) -> tuple[ReservationRequest, ...]:
    """Return a reservation of hosts in one of the racks."""
    count = dice.randint(1, 2)
    return (reservation(count, count, resource_properties=f'["==", "$rack", "{dice.choice(RACKS)}"]'),)


SITES = {
    "several demands on one host": Site((8,), one, several),
    "several demands on two hosts": Site((6, 8), several, several),
    "a limit that other hosts fill": Site((8, 8, 8, 8), in_a_rack, in_a_rack, {"hosts": 2}),
    "hours that count for five hours": Site((8, 8, 8, 8), in_a_rack, in_a_rack, {"hours_of_hosts": 6}, 5 * HOUR),
}


def is_bookable(world: World, request: LeaseRequest) -> bool:
    try:
        world.service.manager.dry_runs.create(OWNER, request)
    except (NotEnoughResources, OverQuota):
        return False
    return True


def check_first(world: World, requested: tuple[ReservationRequest, ...], length: timedelta) -> None:
    """Search for the first periods, and try each start."""
    starts = [NOW + index * HOUR / 2 for index in SEARCHED]
    requests = [LeaseRequest("trial", start, start + length, reservations=requested) for start in starts]
    first = next((request.starts_at for request in requests if is_bookable(world, request)), None)
    window = Window(length, starts[0], starts[-1])
    found = world.service.manager.offers.first(OWNER, OfferQuery(requested, window, 1))
    assert found.is_complete
    assert next((offer.starts_at for offer in found.offers), None) == first


def run(folder: Path, site: Site, seed: int, steps: int) -> None:
    dice = Random(seed)
    with open_site(folder, hosts=len(site.vcpus)) as world:
        world.resize(*site.vcpus)
        for number, rack in enumerate(RACKS[: len(site.vcpus)], start=1):
            world.resources.update(ADMIN, HOST, str(number), {"rack": rack})
        rebuild(world, quotas=Quotas(FixedLimits(site.limits), horizon=site.horizon))
        leases: list[Lease] = []
        for _ in range(steps):
            with suppress(TenureError):
                if len(leases) > dice.randint(0, 4):
                    world.leases.delete(OWNER, leases.pop(dice.randrange(len(leases))).id)
                else:
                    booked = site.book(dice)
                    leases.append(world.reserve(*booked, start=dice.choice(BOOKED), hours=dice.randint(1, 4)))
            check_first(world, site.draw(dice), dice.randint(1, 3) * HOUR)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 60))])
@pytest.mark.parametrize("name", SITES)
def test_the_first_start_that_is_found_is_the_first_that_can_be_booked(tmp_path: Path, name: str, seed: int):
    run(tmp_path, SITES[name], seed, 8)
