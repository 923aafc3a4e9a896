"""Plans of random situations, without a database: nothing is promised twice, and nothing moves that must not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.domain.allocation import Spread
from tenure.planning.moving import duplicate, is_named, relocate
from tenure.planning.outcomes import Plan
from tenure.planning.plan import plan
from tenure.planning.tasks import Task
from tests.planning.situations import PLANNED, carry_out, extensions, growth, new_units, revisions, situation
from tests.support.plain_ledger import PlainLedger

seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("tasks", [new_units, growth, extensions, revisions])
def test_a_plan_keeps_all_promises(tasks: Callable[[Random, PlainLedger], Sequence[Task]]):
    outcomes: Counter[str] = Counter()

    @settings(max_examples=400)
    @given(seed=seeds)
    def keeps(seed: int) -> None:
        found = situation(Random(seed), tasks)
        before = found.ledger.snapshot()
        rows = [before.on(row) for row in range(len(before.catalogue))]
        outcome = plan(before, found.tasks, found.terms)
        assert [before.on(row) for row in range(len(before.catalogue))] == rows
        if isinstance(outcome, Plan):
            assert carry_out(found, before, outcome.snapshot) == []
            outcomes[outcome.way] += 1
        else:
            assert outcome.task.reservation_id in found.names
            outcomes["refused"] += 1

    keeps()
    assert outcomes.keys() == {"greedy", "moved", "refused"}


def test_a_plan_that_leaves_its_host_finds_another():
    moved = 0

    @settings(max_examples=200)
    @given(seed=seeds)
    def keeps(seed: int) -> None:
        nonlocal moved
        dice = Random(seed)
        found = situation(dice, lambda _dice, _ledger: ())
        plans = [allocation for allocation in found.ledger.allocations.values() if allocation.state is PLANNED]
        if not plans:
            return
        chosen, before = dice.choice(plans), found.ledger.snapshot()
        demand = found.ledger.demands[chosen.reservation_id]
        taken = frozenset(
            allocation.resource_id for allocation in plans if allocation.reservation_id == chosen.reservation_id
        )
        after = relocate(before, chosen, demand, found.terms, without=taken)
        if after is None:
            return
        moved += 1
        assert not is_named(before, chosen, demand)
        assert not after.has(chosen)
        assert carry_out(found, before, after, moving=chosen) == []

    keeps()
    assert moved > 20


def test_a_running_allocation_is_doubled_on_another_host():
    """As for a host that has failed: the reservation gets as many units elsewhere before it loses these."""
    doubled = 0

    @settings(max_examples=200)
    @given(seed=seeds)
    def keeps(seed: int) -> None:
        nonlocal doubled
        dice = Random(seed)
        found = situation(dice, lambda _dice, _ledger: ())
        running = [allocation for allocation in found.ledger.allocations.values() if allocation.state is not PLANNED]
        running = [allocation for allocation in running if allocation.period.end > found.ledger.now]
        if not running:
            return
        chosen, before = dice.choice(running), found.ledger.snapshot()
        demand = found.ledger.demands[chosen.reservation_id]
        rest = type(chosen.period)(found.ledger.now, chosen.period.end)
        had = found.ledger.of_reservation(chosen.reservation_id)
        result = duplicate(before, chosen, demand, rest, found.terms)
        if result is None:
            return
        doubled += 1
        after, number = result
        assert number != chosen.resource_id
        assert carry_out(found, before, after, growing=chosen.reservation_id) == []
        has = found.ledger.of_reservation(chosen.reservation_id)
        assert set(had) <= set(has)
        new = [allocation for allocation in has if allocation not in had]
        assert {allocation.resource_id for allocation in new} == {number}
        assert {allocation.period for allocation in new} == {rest}
        together = [allocation.units for allocation in had if allocation.resource_id == chosen.resource_id]
        assert sum(allocation.units for allocation in new) == (
            sum(together) if demand.spread is Spread.AFFINITY else chosen.units
        )

    keeps()
    assert doubled > 20
