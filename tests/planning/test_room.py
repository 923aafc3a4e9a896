"""The room in a snapshot, against counting minute by minute with the types of the domain."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from tenure.domain.allocation import Demand, Room, Spread, Use
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.lease import AllocationState
from tenure.domain.listing import ListedResource, ListedUse
from tenure.domain.period import Period
from tenure.domain.requirement import Expression
from tenure.planning.catalogue import Catalogue
from tenure.planning.room import (
    enough,
    most_taken_as_whole,
    starts,
    taken_as_whole,
    units,
    used,
)
from tenure.planning.snapshot import DistinctValues, Snapshot, arrays_of
from tenure.planning.steps import ticks, ticks_of
from tenure.planning.timeline import Timeline, Uses

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HORIZON = 30
CLASSES = ("VCPU", "MEMORY_MB")


def at(minute: int) -> datetime:
    return NOW + minute * MINUTE


class Ledger:
    """A few resources with random allocations; some of the resources have changed since the large arrays were made."""

    def __init__(self, seed: int, *, exclusive_only: bool) -> None:
        self.random = random.Random(seed)  # a test's randomness is not for security
        self.capacities = {
            number: Capacity({"VCPU": self.random.randint(1, 6), "MEMORY_MB": self.random.randint(1, 6)})
            for number in range(1, 5)
        }
        self.uses: dict[int, list[ListedUse]] = {number: [] for number in self.capacities}
        for number in self.capacities:
            for _ in range(self.random.randint(0, 6)):
                start = self.random.randint(-3, HORIZON)
                exclusive = exclusive_only or self.random.random() < 0.3
                amounts = {WHOLE: 1} if exclusive else {name: self.random.randint(0, 3) for name in CLASSES}
                use = ListedUse(
                    len(self.uses[number]) + 100 * number,
                    number,
                    "reservation",
                    "demo",
                    at(start),
                    at(start + self.random.randint(1, 8)),
                    AllocationState.PLANNED if self.random.random() < 0.5 else AllocationState.HELD,
                    exclusive,
                    1,
                    Capacity(amounts),
                )
                self.uses[number].append(use)

    def room(self, number: int, *, planned: bool = True) -> Room:
        uses = (
            Use(index, use.amounts, use.exclusive, Period(use.starts_at, use.ends_at))
            for index, use in enumerate(self.uses[number])
            if planned or not use.planned
        )
        return Room(self.capacities[number], tuple(uses))

    def view(self) -> Snapshot:
        catalogue = Catalogue().changed(
            ListedResource(number, "host", "", str(number), f"h{number}", capacity, {}, frozenset(), {}, True, 1, 0)
            for number, capacity in self.capacities.items()
        )
        changed = np.array([self.random.random() < 0.3 for _ in self.capacities], dtype=np.bool_)
        distinct = DistinctValues()
        base, latest = (
            arrays_of(
                (
                    (row, use)
                    for row, number in enumerate(self.capacities)
                    if changed[row] == is_latest or not is_latest
                    for use in self.uses[number]
                ),
                distinct,
                at(-100),
            )
            for is_latest in (False, True)
        )
        rows = np.arange(len(self.capacities), dtype=np.int32)
        versions = np.ones(len(rows), dtype=np.int64)
        return Snapshot(catalogue, Timeline(base, rows), Timeline(latest, rows[changed]), changed, distinct, versions)


def fitting(room: Room, demand: Demand, period: Period) -> int:
    """How many units have room on a resource during the whole period."""
    uses = tuple(use for use in room.uses if use.period.overlaps(period))
    if demand.exclusive:
        return 0 if uses else 1
    return Room(room.capacity, uses).units(demand.amounts, period)


def demand(spread: Spread, *, minimum: int, exclusive: bool = False, amounts: Capacity | None = None) -> Demand:
    return Demand("host", "hosts", minimum, minimum, Expression(), amounts or Capacity({WHOLE: 1}), exclusive, spread)


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("spread", [*Spread, None])
def test_starts_equal_counting(spread: Spread | None, *, planned: bool) -> None:
    for seed in range(40):
        ledger = Ledger(seed, exclusive_only=False)
        dice = ledger.random
        amounts = Capacity({name: dice.randint(0, 3) for name in CLASSES} | {"VCPU": dice.randint(1, 3)})
        wanted = (
            demand(Spread.ANTI_AFFINITY, minimum=dice.randint(1, 4), exclusive=True)
            if spread is None
            else demand(spread, minimum=dice.randint(1, 5), amounts=amounts)
        )
        length = dice.randint(1, 6)
        view = ledger.view()
        matching = view.catalogue.matching(wanted)
        found = starts(
            view, wanted, matching, ticks_of(length * MINUTE), ticks(at(0)), ticks(at(HORIZON)), planned=planned
        )
        for minute in range(HORIZON):
            counts = [
                fitting(ledger.room(number, planned=planned), wanted, Period(at(minute), at(minute + length)))
                for number in ledger.capacities
            ]
            expected = sum(
                {
                    Spread.ANTI_AFFINITY: count > 0,
                    Spread.ANY: min(count, wanted.minimum),
                    Spread.AFFINITY: count >= wanted.minimum,
                }[wanted.spread]
                for count in counts
            )
            assert found.at(np.array([ticks(at(minute))]))[0] == expected, (seed, minute)
            fits = sum(counts) if wanted.spread is not Spread.AFFINITY else max(counts)
            if wanted.spread is not Spread.ANTI_AFFINITY:
                assert (expected >= enough(wanted)) == (fits >= wanted.minimum)


@pytest.mark.parametrize("exclusive", [True, False])
def test_units_equal_counting(*, exclusive: bool) -> None:
    for seed in range(60):
        ledger = Ledger(seed, exclusive_only=False)
        amounts = Capacity({"VCPU": ledger.random.randint(1, 3)})
        wanted = demand(
            Spread.ANTI_AFFINITY if exclusive else Spread.ANY,
            minimum=1,
            exclusive=exclusive,
            amounts=None if exclusive else amounts,
        )
        view = ledger.view()
        start = ledger.random.randint(0, HORIZON)
        end = start + ledger.random.randint(1, 10)
        rows, counts = units(view, wanted, view.catalogue.of_type("host"), ticks(at(start)), ticks(at(end)))
        found = {view.catalogue.ids[row]: count for row, count in zip(rows, counts, strict=True)}
        assert found == {
            number: count
            for number in ledger.capacities
            if (count := fitting(ledger.room(number), wanted, Period(at(start), at(end))))
        }


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("resource_class", [WHOLE, "VCPU"])
def test_use_equals_the_sum_over_the_ledger(resource_class: str, *, planned: bool) -> None:
    for seed in range(60):
        ledger = Ledger(seed, exclusive_only=False)
        view = ledger.view()
        loads = used(view, view.catalogue.of_type("host"), resource_class, planned=planned)
        steps = loads.steps(ticks(at(0)), ticks(at(HORIZON)))
        expected = []
        for minute in range(HORIZON):
            current = {
                number: [
                    use for use in uses if use.starts_at <= at(minute) < use.ends_at and (planned or not use.planned)
                ]
                for number, uses in ledger.uses.items()
            }
            expected.append(
                sum(bool(uses) for uses in current.values())
                if resource_class == WHOLE
                else sum(
                    ledger.capacities[number]["VCPU"] if use.exclusive else use.amounts["VCPU"]
                    for number, uses in current.items()
                    for use in uses
                )
            )
            assert steps.at(np.array([ticks(at(minute))]))[0] == expected[-1], (seed, minute)
        begins, instants = loads.peaks(ticks(at(0)), ticks(at(HORIZON)), ticks_of(7 * MINUTE))
        assert list(loads.at(instants)) == [max(expected[first : first + 7]) for first in range(0, HORIZON, 7)]
        assert all(
            begin <= instant < begin + ticks_of(7 * MINUTE) for begin, instant in zip(begins, instants, strict=True)
        )


def test_whole_resources_are_counted_and_never_more_than_the_most() -> None:
    for seed in range(60):
        ledger = Ledger(seed, exclusive_only=False)
        view = ledger.view()
        every = view.catalogue.of_type("host")
        steps = taken_as_whole(view, every).steps(ticks(at(-10)), ticks(at(HORIZON + 10)))
        for minute in range(HORIZON):
            taken = sum(
                any(use.exclusive and use.starts_at <= at(minute) < use.ends_at for use in uses)
                for uses in ledger.uses.values()
            )
            assert steps.at(np.array([ticks(at(minute))]))[0] == taken, (seed, minute)
        assert steps.values.max() <= most_taken_as_whole(view, every)


@pytest.mark.parametrize("uses", [6, 0])
def test_timelines_of_some_resources_are_kept_up_to_the_size_of_the_whole(uses: int) -> None:
    rows = np.repeat(np.arange(4, dtype=np.int32), uses)
    begins = np.tile(np.arange(uses, dtype=np.int64), 4)
    no = np.zeros(len(rows), dtype=np.bool_)
    numbers = np.zeros(len(rows), dtype=np.int32)
    uses_of_all = Uses(
        rows,
        begins,
        begins + 1,
        no,
        numbers.astype(np.int8),
        numbers,
        numbers,
        begins,
        np.full(len(rows), b"reservation"),
        numbers,
        begins,
    )
    timeline = Timeline(uses_of_all, np.arange(4, dtype=np.int32))
    masks = [np.arange(4) == row for row in range(4)]
    kept = [timeline.remembered(mask) for mask in masks]
    assert [set(found.covered) for found in kept] == [{0}, {1}, {2}, {3}]
    assert [timeline.remembered(mask) is found for mask, found in zip(masks, kept, strict=True)] == [True] * 4
    pair = timeline.remembered(masks[0] | masks[1])  # in place of the two that were not used for the longest time
    assert (set(pair.covered), len(pair.uses.rows)) == ({0, 1}, 2 * uses)
    assert timeline.remembered(masks[3]) is kept[3]
    assert timeline.remembered(masks[2]) is kept[2]
    assert timeline.remembered(masks[0]) is not kept[0]
