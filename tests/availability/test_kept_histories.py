"""Volumes that are kept after their leases, in random histories: they take room without an end.

What an offer leaves over can be booked beside it, and no more; and accounts of what is over stay as they are.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from tenure.domain.actor import Actor
from tenure.domain.availability import OfferQuery
from tenure.domain.capacity import Capacity
from tenure.domain.errors import NotEnoughResources, TenureError
from tenure.domain.request import LeaseRequest, ReservationRequest, Window
from tenure.domain.usage import MICROSECOND, UsageQuery
from tests.availability.test_alternatives import amount_of, resized
from tests.availability.test_offers import open_site
from tests.support.world import ADMIN, NOW, OWNER, World

HOUR = timedelta(hours=1)
VOLUME = "virtual:volume"
LENT = 100


@dataclass(frozen=True)
class Booked:
    """A lease of a project of its own."""

    project_id: str
    starts_at: datetime
    ends_at: datetime
    gigabytes: int

    def total(self, now: datetime) -> int:
        return self.gigabytes * (max(timedelta(0), min(now, self.ends_at) - self.starts_at) // MICROSECOND)


def draw(dice: Random) -> ReservationRequest:
    parameters = {
        "amount": dice.randint(1, 3),
        "size_gb": dice.choice((10, 20)),
        "volume_type": "fast",
        "at_end": dice.choice(("delete", "keep", "keep")),
        "before_end": "default",
    }
    return ReservationRequest(VOLUME, parameters)


class KeptHistory:
    """Leases of volumes, of which some are kept, and deleted later."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = Random(seed)
        self.booked: list[Booked] = []
        pool = world.cloud.world.volumes.fast
        world.resources.register(ADMIN, VOLUME, pool, {}, Capacity({"DISK_GB": LENT}))

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def kept(self) -> list[str]:
        """Return the volumes of leases that are over."""
        over = {booked.project_id for booked in self.booked if booked.ends_at <= self.now}
        volumes = self.world.cloud.world.volumes.all()
        return sorted(volume_id for volume_id, volume in volumes.items() if volume.project_id in over)

    def step(self) -> None:
        """Book volumes, or delete some that were kept."""
        dice, world = self.dice, self.world
        kept = self.kept()
        if kept and dice.random() < 0.4:
            for volume_id in kept[: dice.randint(1, 2)]:
                world.cloud.world.volumes.delete(volume_id)
            world.service.reconciler.run()
            world.engine.settle()
            return
        asked, actor = draw(dice), Actor("user", f"project-{len(self.booked)}", frozenset({"member", "reader"}))
        start, hours = dice.choice((0, 1, 2, 5, 9)), dice.choice((1, 2))
        with suppress(TenureError):
            lease = world.reserve(asked, start=start, hours=hours, actor=actor)
            size_gb = asked.parameters["size_gb"]
            assert isinstance(size_gb, int)
            size = amount_of(asked) * size_gb
            self.booked.append(Booked(actor.project_id, lease.starts_at, lease.ends_at, size))

    def fits(self, asked: ReservationRequest, start: datetime, end: datetime) -> bool:
        try:
            self.world.service.manager.dry_runs.create(OWNER, LeaseRequest("trial", start, end, reservations=(asked,)))
        except NotEnoughResources:
            return False
        return True


def check_left_over(history: KeptHistory) -> None:
    """What an offer leaves over can be booked beside it, and no more."""
    asked = draw(history.dice)
    start = history.now + history.dice.randint(0, 4) * HOUR
    query = OfferQuery((asked,), Window(HOUR, start, start + 12 * HOUR), 1)
    found = history.world.service.manager.offers.first(OWNER, query)
    assert found.is_complete
    for offer in found.offers:
        most = amount_of(asked) + offer.left[0]
        assert history.fits(resized(asked, most), offer.starts_at, offer.ends_at)
        assert not history.fits(resized(asked, most + 1), offer.starts_at, offer.ends_at)
    until = found.offers[0].starts_at if found.offers else start + 12 * HOUR
    assert not any(history.fits(asked, at, at + HOUR) for hour in range(12) if (at := start + hour * HOUR) < until)


def check_largest(history: KeptHistory) -> None:
    """The largest amount fits, and no larger one; it is also that of the zone in which the pool is, if any."""
    asked = draw(history.dice)
    start = history.now + history.dice.randint(0, 4) * HOUR
    found = history.world.service.manager.offers.largest(OWNER, asked, start, start + HOUR)
    assert found.is_complete
    assert not found.amount or history.fits(resized(asked, found.amount), start, start + HOUR)
    assert not history.fits(resized(asked, found.amount + 1), start, start + HOUR)
    assert set(found.zones.values()) <= {found.amount}


def check_accounts(history: KeptHistory) -> None:
    """A lease is booked for its period, whatever was kept after it, and deleted later."""
    now = history.now
    sums = history.world.service.manager.usage.show(ADMIN, UsageQuery(NOW, now)).sums if now > NOW else ()
    expected = {booked.project_id: booked.total(now) for booked in history.booked if booked.starts_at < now}
    assert {usage_sum.project_id: usage_sum.booked for usage_sum in sums} == expected


def run(folder: Path, seed: int, steps: int) -> None:
    with open_site(folder) as world:
        history = KeptHistory(world, seed)
        for _ in range(steps):
            history.step()
            for check in (check_left_over, check_largest, check_accounts):
                check(history)
            world.pass_time(history.dice.choice((0.5, 1, 3)) * HOUR, leap=timedelta(minutes=5))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 60))])
def test_kept_volumes_count_in_searches_and_accounts(tmp_path: Path, seed: int):
    run(tmp_path, seed, 6)
