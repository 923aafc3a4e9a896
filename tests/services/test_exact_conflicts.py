"""The exact search beside plans that are already in conflict: they may stay, and decide nothing about others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from tenure.domain.availability import OfferQuery
from tenure.domain.capacity import Capacity
from tenure.domain.errors import NotEnoughResources
from tenure.domain.request import LeaseRequest, Window
from tests.support.world import ADMIN, HOST, NOW, OWNER, World, instance_reservation, open_world, reservation

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
PLAY, OTHER = '["==", "$kind", "play"]', '["==", "$kind", "other"]'


def resize(world: World, last: int) -> None:
    amounts = (Capacity({"VCPU": count, "MEMORY_MB": 2**20, "DISK_GB": 1000}) for count in (4, 4, 6, 8, last))
    world.set_capacities(*amounts)


def prepare(world: World, trouble: str | None) -> None:
    """Let the fifth host, for which nothing asks later, be in conflict with a plan."""
    resize(world, 8)
    for host, kind in zip("12345", ("play",) * 4 + ("other",), strict=True):
        world.resources.update(ADMIN, HOST, host, {"kind": kind})
    if trouble == "shrunk":
        world.reserve(instance_reservation(1, vcpus=8, resource_properties=OTHER), start=3, hours=50)
        resize(world, 6)
    elif trouble is not None:
        whole = reservation(1, 1, resource_properties=OTHER)
        requested = whole if trouble == "overdue host" else instance_reservation(1, vcpus=8, resource_properties=OTHER)
        old = world.reserve(requested, start=0, hours=1)
        world.engine.settle()
        world.teardown_lasts(old, until=NOW + 99 * HOUR)
        world.reserve(requested, start=1 + 5 / 60, hours=1)
    world.clock.set(NOW + HOUR + MINUTE)
    world.engine.settle()


def outcomes(folder: Path, seed: int, trouble: str | None) -> list[str]:
    """Return whether random requests for instances on the other four hosts are accepted."""
    dice, found = Random(seed), []
    with open_world(folder, hosts=5) as world:
        prepare(world, trouble)
        for _ in range(12):
            start = NOW + dice.randint(4, 12) * HOUR
            end = start + dice.randint(1, 6) * HOUR
            asked = instance_reservation(
                dice.randint(1, 3),
                vcpus=dice.choice((1, 2, 3, 4)),
                affinity=dice.choice((None, None, True, False)),
                resource_properties=PLAY,
            )
            try:
                world.leases.create(OWNER, LeaseRequest("l", start, end, reservations=(asked,)))
                found.append("accepted")
            except NotEnoughResources as refusal:
                found.append(f"refused, proven: {refusal.is_proven}")
    return found


@pytest.mark.parametrize("seed", [9, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 20))])
@pytest.mark.parametrize("trouble", ["overdue host", "overdue instances", "shrunk"])
def test_a_host_in_conflict_decides_nothing_about_others(tmp_path: Path, seed: int, trouble: str):
    for name in ("well", "ill"):
        (tmp_path / name).mkdir()
    without, beside = outcomes(tmp_path / "well", seed, None), outcomes(tmp_path / "ill", seed, trouble)
    assert beside == without
    assert "refused, proven: True" in without


def test_a_period_is_found_beside_a_host_in_conflict(tmp_path: Path):
    """A host whose holder is overdue is taken once, also with a plan behind it: so a plan can move to the free host."""
    with open_world(tmp_path, hosts=3) as world:
        for host, kind in zip("123", ("play", "other", "other"), strict=True):
            world.resources.update(ADMIN, HOST, host, {"kind": kind})
        old = world.reserve_on(2, reservation(1, 1), start=0, hours=1)
        world.engine.settle()
        world.teardown_lasts(old, until=NOW + 99 * HOUR)
        world.reserve_on(2, reservation(1, 1, resource_properties=OTHER), start=1 + 5 / 60, hours=1)
        world.reserve_on(1, reservation(1, 1), start=1 + 5 / 60, hours=20)
        world.clock.set(NOW + HOUR + MINUTE)
        world.engine.settle()
        window = Window(HOUR, NOW + HOUR + 5 * MINUTE, NOW + HOUR + 10 * MINUTE)
        asked = (reservation(1, 1, resource_properties=PLAY),)
        [offer] = world.service.manager.offers.first(OWNER, OfferQuery(asked, window, 1)).offers
        assert offer.starts_at == NOW + HOUR + 5 * MINUTE
