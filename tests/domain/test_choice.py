"""Which resources are chosen, and how special a resource is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.allocation import Candidate, choose
from tenure.domain.period import Period
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


def chosen(found: list[Candidate], count: int, turn: int = 0) -> list[int]:
    return [candidate.resource_id for candidate in choose(found, PERIOD, count, turn=turn)]


def test_the_least_special_come_first():
    found = [candidate(1, scarcity=2, before=0, behind=0), candidate(2), candidate(3, scarcity=1)]
    assert chosen(found, 3) == [2, 3, 1]


def test_then_the_tightest_gap():
    found = [
        candidate(1),
        candidate(2, before=0),
        candidate(3, before=5, behind=5),
        candidate(4, before=0, behind=1),
        candidate(5, before=0, behind=0),
    ]
    assert chosen(found, 5) == [5, 4, 3, 2, 1]


def test_then_the_id_turned_by_the_request():
    found = [candidate(number) for number in (4, 2, 1, 3)]
    assert chosen(found, 4, turn=0) == [1, 2, 3, 4]
    assert chosen(found, 4, turn=3) == [3, 4, 1, 2]
    assert chosen(found, 4, turn=9) == [1, 2, 3, 4]


def test_fewer_where_there_are_not_so_many():
    assert chosen([candidate(1)], 3) == [1]
    assert chosen([], 3) == []
    assert chosen([candidate(1)], 0) == []


def test_every_resource_has_its_turn_first():
    found = [candidate(number) for number in range(1, 11)]
    assert {chosen(found, 1, turn)[0] for turn in range(1, 11)} == set(range(1, 11))


@given(candidates, st.integers(0, 12), st.integers(0, 60), st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_of_candidates(
    found: list[Candidate], count: int, turn: int, random: Random
):
    shuffled = list(found)
    random.shuffle(shuffled)
    assert choose(shuffled, PERIOD, count, turn=turn) == choose(found, PERIOD, count, turn=turn)


@given(candidates, st.integers(0, 12), st.integers(0, 60))
def test_the_choice_is_of_the_candidates_and_leaves_the_most_special(found: list[Candidate], count: int, turn: int):
    taken = choose(found, PERIOD, count, turn=turn)
    left = [candidate for candidate in found if candidate not in taken]
    assert len(taken) == min(count, len(found))
    assert len({candidate.resource_id for candidate in taken}) == len(taken)
    assert all(candidate in found for candidate in taken)
    if taken and left:
        assert max(one.scarcity for one in taken) <= min(one.scarcity for one in left)


@given(candidates, st.integers(0, 60))
def test_more_of_the_same_request_begins_with_the_same(found: list[Candidate], turn: int):
    every = choose(found, PERIOD, len(found), turn=turn)
    for count in range(len(found)):
        assert choose(found, PERIOD, count, turn=turn) == every[:count]


@pytest.mark.parametrize(
    ("properties", "traits", "special"),
    [
        ({}, set(), 0),
        ({"gpu": "a100"}, set(), 1),
        ({"gpu": "a100", "ssd": "True", "nodes": "4"}, set(), 3),
        ({"gpu": "False", "ssd": "0", "a": "", "b": " No ", "c": "NONE", "d": "off"}, set(), 0),
        ({}, {"CUSTOM_GPU_A100", "HW_CPU_X86_AVX2", "COMPUTE_NODE"}, 1),
        ({"gpu": "yes"}, {"CUSTOM_GPU_A100", "CUSTOM_NVME"}, 3),
    ],
)
def test_scarcity_counts_what_is_special(properties: dict[str, str], traits: set[str], special: int):
    assert scarcity(properties, frozenset(traits)) == special
