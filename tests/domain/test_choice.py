"""Which resources are chosen, and how special a resource is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.allocation import Candidate, Demand, Selection, Spread, choose
from tenure.domain.capacity import Capacity
from tenure.domain.period import Period
from tenure.domain.requirement import Expression
from tenure.domain.resource import scarcity

ORIGIN = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
PERIOD = Period(ORIGIN, ORIGIN + DAY)


def candidate(
    resource_id: int, *, scarcity: int = 0, before: int | None = None, behind: int | None = None
) -> Candidate:
    """A candidate with so many free days before and behind the period; None for no end."""
    return Candidate(
        resource_id,
        1,
        scarcity,
        None if before is None else PERIOD.start - before * DAY,
        None if behind is None else PERIOD.end + behind * DAY,
    )


days = st.none() | st.integers(0, 5)
candidates = st.lists(
    st.builds(candidate, st.integers(1, 50), scarcity=st.integers(0, 3), before=days, behind=days),
    unique_by=lambda candidate: candidate.resource_id,
    max_size=12,
)


def demand_for(units: int, spread: Spread | None = None) -> Demand:
    """So many whole resources, or units that lie so."""
    return Demand(
        inventory="physical:host",
        noun="hosts",
        minimum=units,
        maximum=units,
        expression=Expression(()),
        amounts=Capacity({"VCPU": 1}),
        exclusive=spread is None,
        spread=spread or Spread.ANTI_AFFINITY,
    )


def chosen(found: list[Candidate], count: int, seed: int = 0) -> list[int]:
    return [candidate.resource_id for candidate in choose(found, demand_for(count), PERIOD, seed=seed)]


def test_least_special_resources_come_first():
    found = [candidate(1, scarcity=2, before=0, behind=0), candidate(2), candidate(3, scarcity=1)]
    assert chosen(found, 3) == [2, 3, 1]


def test_tightest_gap_comes_second():
    found = [
        candidate(1),
        candidate(2, before=5, behind=5),
        candidate(3, behind=0),
        candidate(4, before=1, behind=0),
        candidate(5, before=0, behind=0),
        candidate(6, before=1, behind=1),
    ]
    assert chosen(found, 6) == [5, 4, 3, 6, 2, 1]


def test_rotated_id_decides_last():
    found = [candidate(number) for number in (4, 2, 1, 3)]
    assert chosen(found, 4, seed=0) == [1, 2, 3, 4]
    assert chosen(found, 4, seed=3) == [3, 4, 1, 2]
    assert chosen(found, 4, seed=9) == [1, 2, 3, 4]


def test_fewer_units_are_chosen_if_there_are_not_enough():
    assert chosen([candidate(1)], 3) == [1]
    assert chosen([], 3) == []
    assert chosen([candidate(1)], 0) == []


def test_every_resource_comes_first_for_some_seed():
    found = [candidate(number) for number in range(1, 11)]
    assert {chosen(found, 1, seed)[0] for seed in range(1, 11)} == set(range(1, 11))


@given(candidates, st.integers(0, 12), st.integers(0, 60), st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_of_candidates(
    found: list[Candidate], count: int, seed: int, random: Random
):
    shuffled = list(found)
    random.shuffle(shuffled)
    assert choose(shuffled, demand_for(count), PERIOD, seed=seed) == choose(found, demand_for(count), PERIOD, seed=seed)


@given(candidates, st.integers(0, 12), st.integers(0, 60))
def test_choice_takes_candidates_and_leaves_the_most_special(found: list[Candidate], count: int, seed: int):
    taken = choose(found, demand_for(count), PERIOD, seed=seed)
    ids = {selection.resource_id for selection in taken}
    left = [candidate for candidate in found if candidate.resource_id not in ids]
    assert len(taken) == min(count, len(found))
    assert len(ids) == len(taken)
    assert all(selection == Selection(selection.resource_id, 1) for selection in taken)
    if taken and left:
        assert max(candidate.scarcity for candidate in found if candidate.resource_id in ids) <= min(
            candidate.scarcity for candidate in left
        )


@given(candidates, st.integers(0, 60))
def test_larger_request_starts_with_the_same_resources(found: list[Candidate], seed: int):
    every = choose(found, demand_for(len(found)), PERIOD, seed=seed)
    for count in range(len(found)):
        assert choose(found, demand_for(count), PERIOD, seed=seed) == every[:count]


@pytest.mark.parametrize(
    ("properties", "traits", "capacity", "special"),
    [
        ({}, set(), {}, 0),
        ({"gpu": "a100"}, set(), {}, 1),
        ({"gpu": "a100", "ssd": "True", "nodes": "4"}, set(), {}, 3),
        ({"gpu": "False", "ssd": "0", "a": "", "b": " No ", "c": "NONE", "d": "off"}, set(), {}, 0),
        ({}, {"CUSTOM_GPU_A100", "HW_CPU_X86_AVX2", "COMPUTE_NODE"}, {}, 1),
        ({"gpu": "yes"}, {"CUSTOM_GPU_A100", "CUSTOM_NVME"}, {}, 3),
        ({}, set(), {"VCPU": 64, "PCPU": 8, "MEMORY_MB": 131_072, "DISK_GB": 960}, 0),
        ({}, set(), {"VCPU": 64, "VGPU": 4, "CUSTOM_FPGA": 1}, 2),
        ({}, set(), {"VCPU": 64, "VGPU": 0}, 0),
        ({}, set(), {"WHOLE": 1}, 0),
    ],
)
def test_scarcity_counts_special_properties_traits_and_classes(
    properties: dict[str, str], traits: set[str], capacity: dict[str, int], special: int
):
    assert scarcity(properties, frozenset(traits), Capacity(capacity)) == special


class TestParts:
    def room(
        self, resource_id: int, units: int, *, idle: int = 0, is_named: bool = False, before: int | None = None
    ) -> Candidate:
        return replace(candidate(resource_id, before=before), units=units, idle=idle * DAY, is_named=is_named)

    def selections(self, found: list[Candidate], demand: Demand) -> list[tuple[int, int]]:
        return [(selection.resource_id, selection.units) for selection in choose(found, demand, PERIOD, seed=0)]

    def test_shared_units_prefer_resources_that_are_always_in_use(self):
        found = [self.room(1, 8, idle=1), self.room(2, 8), self.room(3, 8, idle=1)]
        assert self.selections(found, demand_for(10, Spread.ANY)) == [(2, 8), (1, 2)]

    def test_shared_units_then_prefer_resources_without_a_gap(self):
        found = [self.room(1, 4, idle=1, before=0), self.room(2, 3, before=1), self.room(3, 8, before=0)]
        assert self.selections(found, demand_for(14, Spread.ANY)) == [(3, 8), (2, 3), (1, 3)]

    def test_the_tightest_room_that_is_large_enough_comes_first(self):
        found = [self.room(1, 8), self.room(2, 3), self.room(3, 4)]
        assert self.selections(found, demand_for(3, Spread.ANY)) == [(2, 3)]
        assert self.selections(found, demand_for(4, Spread.ANY)) == [(2, 3), (3, 1)]

    def test_apart_puts_each_unit_on_its_own_resource(self):
        found = [self.room(1, 8), self.room(2, 3), self.room(3, 4)]
        assert self.selections(found, demand_for(2, Spread.ANTI_AFFINITY)) == [(2, 1), (3, 1)]
        assert len(self.selections(found, demand_for(5, Spread.ANTI_AFFINITY))) == 3

    def test_together_puts_all_units_on_one_resource(self):
        found = [self.room(1, 8), self.room(2, 3), self.room(3, 4)]
        assert self.selections(found, demand_for(4, Spread.AFFINITY)) == [(3, 4)]
        # As many as possible, even if fewer would do.
        assert self.selections(found, replace(demand_for(9, Spread.AFFINITY), minimum=2)) == [(1, 8)]
        assert self.selections([], demand_for(1, Spread.AFFINITY)) == []

    def test_named_resources_come_first(self):
        found = [self.room(1, 1), self.room(2, 1, is_named=True), self.room(3, 1)]
        assert self.selections(found, demand_for(2, Spread.ANTI_AFFINITY)) == [(2, 1), (1, 1)]
