"""What a refusal says is left after each step, and counts that show that there can be no room."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.domain.allocation import Allocation, Demand, Spread
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.planning.outcomes import NoRoom
from tenure.planning.plan import plan
from tenure.planning.shortfalls import is_hopeless, most_units, stages
from tenure.planning.tasks import NewUnits
from tests.planning.situations import (
    NOW,
    PLANNED,
    book,
    demand,
    fits,
    host,
    hours,
    parts,
    period,
    serves,
    site,
    whole,
)
from tests.planning.test_exact import crowded, is_possible
from tests.support.plain_ledger import PlainLedger

seeds = st.integers(0, 2**32 - 1)


def units_on(ledger: PlainLedger, number: int, asked: Demand, span: Period) -> int:
    """Return how many units have room on a host throughout, one by one."""
    there = [allocation for allocation in ledger.allocations.values() if allocation.resource_id == number]
    for count in range(10):
        more = asked.amounts.times(count + 1)
        one_more = Allocation(0, number, "", span, PLANNED, more, asked.exclusive, count + 1)
        if not fits(ledger, number, [*there, one_more]) or (asked.exclusive and count):
            return count
    raise AssertionError("more than any host has")


def test_the_stages_equal_counting():
    @settings(max_examples=300)
    @given(seed=seeds)
    def agrees(seed: int) -> None:
        dice = Random(seed)
        ledger = site(dice)
        asked, span = demand(dice, list(ledger.resources.values())), period(dice)
        reservable = [resource for resource in ledger.resources.values() if resource.reservable]
        matching = [
            resource
            for resource in reservable
            if serves(resource, asked) and resource.capacity["VCPU"] >= asked.amounts["VCPU"]
        ]
        counts = [count for resource in matching if (count := units_on(ledger, resource.id, asked, span))]
        expected = [("reservable", len(reservable)), ("matching", len(matching))]
        if asked.exclusive:
            expected.append(("free", len(counts)))
        else:
            total = {
                Spread.ANY: sum(counts),
                Spread.ANTI_AFFINITY: len(counts),
                Spread.AFFINITY: max(counts, default=0),
            }
            expected += [("roomy", len(counts)), ("fitting", total[asked.spread])]
        found = stages(ledger.snapshot(), asked, span)
        assert [(stage.stage, stage.count) for stage in found] == expected

    agrees()


def test_what_is_hopeless_is_impossible_however_plans_move():
    outcomes: Counter[tuple[bool, bool]] = Counter()

    @settings(max_examples=400)
    @given(seed=seeds)
    def agrees(seed: int) -> None:
        found = crowded(seed)
        snapshot = found.ledger.snapshot()
        hopeless = any(isinstance(task, NewUnits) and is_hopeless(snapshot, task) for task in found.tasks)
        outcome = plan(snapshot, found.tasks, found.terms)
        assert hopeless is (isinstance(outcome, NoRoom) and outcome.is_hopeless)
        outcomes[hopeless, is_possible(found)] += 1

    agrees()
    assert not outcomes[True, True]
    assert outcomes[True, False] > outcomes[False, False] // 4


def test_plans_take_what_they_find_no_place_for_elsewhere():
    ledger = PlainLedger.of([host(1), host(2), host(3, rack="b")], NOW)
    for number in (1, 2):
        book(ledger, f"booked-{number}", whole(), hours(1, 4), {number: 1})
    snapshot = ledger.snapshot()
    assert most_units(snapshot, whole(rack="a"), hours(2, 3)) == 1  # one of the two plans goes to host 3
    assert most_units(snapshot, whole(), hours(2, 3)) == 1
    assert most_units(snapshot, whole(), hours(4, 5)) == 3
    book(ledger, "held", parts(), hours(-1, 9), {3: 1}, AllocationState.HELD)
    assert most_units(ledger.snapshot(), whole(), hours(4, 5)) == 2
    assert is_hopeless(ledger.snapshot(), NewUnits("new", whole(3), hours(4, 5)))
    assert not is_hopeless(ledger.snapshot(), NewUnits("new", whole(2), hours(4, 5)))
