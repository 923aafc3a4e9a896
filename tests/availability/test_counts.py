"""The counts of a refusal from the index, against those of the database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.domain.period import Period
from tenure.services.availability.counts import RoomCounts
from tenure.services.availability.index import AvailabilityIndex
from tenure.services.planning.demands import demand_of
from tests.availability.test_offers import History
from tests.support.world import World, open_world

HOUR = timedelta(hours=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=3) as world:
        world.resize(4, 4, 8)
        yield world


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_counts_equal_those_of_the_database(world: World, seed: int):
    history = History(world, seed)
    counts = RoomCounts(AvailabilityIndex(world.db, world.clock))
    for _ in range(60):
        history.step()
        start = history.now + history.dice.randint(0, 6) * HOUR
        period = Period(start, start + history.dice.randint(1, 5) * HOUR)
        for request in history.wanted():
            demand = demand_of(world.service.parts.types, request)
            with world.db.read() as tx:
                expected = tx.allocations.stages(demand, period, now=history.now, ignoring=None, without=())
            stages, loose = counts.stages(demand, period)
            assert stages == expected
            assert loose >= stages[-1].count
