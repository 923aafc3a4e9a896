"""The exact search on small sites, against trying out every arrangement."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.domain.allocation import Allocation, Demand, Spread
from tenure.domain.arrangement import Problem, Solution
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.planning.backtracking import BacktrackingSolver
from tenure.planning.cp_sat import CpSatSolver
from tenure.planning.exact import MOST_SITES, Solver, arrange
from tenure.planning.outcomes import Plan
from tenure.planning.plan import plan
from tenure.planning.tasks import NewUnits
from tests.planning.situations import (
    NOW,
    PLANNED,
    Situation,
    book,
    carry_out,
    demand,
    distributions,
    fits,
    host,
    hours,
    parts,
    period,
    serves,
    site,
    terms_of,
    whole,
)
from tests.support.plain_ledger import PlainLedger

SECONDS = 60.0


@dataclass(frozen=True)
class Piece:
    """Units that are to lie somewhere, and where they are planned now."""

    demand: Demand
    period: Period
    units: int
    current: Mapping[int, int] = field(default_factory=dict)


def is_possible(found: Situation) -> bool:
    """Whether there is an arrangement in which all tasks have the least that they ask for."""
    ledger = found.ledger
    there: dict[int, list[Allocation]] = defaultdict(list)
    groups: dict[tuple[str, Period], dict[int, int]] = defaultdict(dict)
    for allocation in ledger.allocations.values():
        is_named = str(allocation.resource_id) in ledger.demands[allocation.reservation_id].named
        fixed_until = found.terms.fixed_until
        is_fixed = fixed_until is not None and allocation.period.start <= fixed_until
        if allocation.state is PLANNED and not is_fixed and not is_named:
            units = groups[allocation.reservation_id, allocation.period]
            units[allocation.resource_id] = units.get(allocation.resource_id, 0) + allocation.units
        else:
            there[allocation.resource_id].append(allocation)
    pieces = [
        Piece(ledger.demands[name], span, sum(units.values()), units) for (name, span), units in groups.items()
    ] + [Piece(task.demand, task.period, task.demand.minimum) for task in found.tasks if isinstance(task, NewUnits)]
    return _can_be_placed(ledger, there, pieces)


def _can_be_placed(ledger: PlainLedger, there: Mapping[int, list[Allocation]], pieces: Sequence[Piece]) -> bool:
    if not pieces:
        return True
    first, *others = pieces
    numbers = [
        resource.id
        for resource in ledger.resources.values()
        if resource.id in first.current or serves(resource, first.demand)
    ]
    named = set(map(int, first.demand.named)) if not first.current else set()
    for units in distributions(first.demand, first.units, numbers):
        if not named <= units.keys():
            continue
        after = {number: list(allocations) for number, allocations in there.items()}
        for number, count in units.items():
            amounts = first.demand.amounts.times(count)
            placed = Allocation(0, number, "", first.period, PLANNED, amounts, first.demand.exclusive, count)
            after.setdefault(number, []).append(placed)
        if all(fits(ledger, number, after[number]) for number in units) and _can_be_placed(ledger, after, others):
            return True
    return False


def crowded(seed: int) -> Situation:
    """Draw a small site, and one or two new reservations."""
    dice = Random(seed)
    ledger = site(dice, most_hosts=3, most_bookings=5)
    hosts = list(ledger.resources.values())
    tasks = [NewUnits(f"new-{number}", demand(dice, hosts), period(dice)) for number in range(dice.randint(1, 2))]
    for task in tasks:
        ledger.demands[task.reservation_id] = task.demand
    return Situation(ledger, tasks, terms_of(ledger, fixed_until=dice.choice((None, NOW + timedelta(hours=3)))))


@pytest.mark.parametrize(
    ("solver", "cases"), [(BacktrackingSolver(), 400), (CpSatSolver(), 100)], ids=["backtracking", "cp-sat"]
)
def test_an_answer_is_that_of_trying_out_everything(solver: Solver, cases: int):
    outcomes: Counter[bool] = Counter()

    @settings(max_examples=cases)
    @given(seed=st.integers(0, 2**32 - 1))
    def agrees(seed: int) -> None:
        found = crowded(seed)
        before = found.ledger.snapshot()
        expected = is_possible(found)
        answer = arrange(before, found.tasks, found.terms, solver, seconds=SECONDS)
        assert (answer.snapshot is not None) is expected
        assert answer.is_proven
        outcomes[expected] += 1
        if answer.snapshot is not None:
            assert carry_out(found, before, answer.snapshot) == []

    agrees()
    assert min(outcomes[True], outcomes[False]) > cases // 10


def test_moves_of_single_plans_admit_nothing_that_is_impossible():
    outcomes: Counter[tuple[bool, bool]] = Counter()

    @settings(max_examples=300)
    @example(seed=1442059667)  # the plans of a reservation that stays together are two allocations
    @example(seed=3662844118)
    @given(seed=st.integers(0, 2**32 - 1))
    def agrees(seed: int) -> None:
        found = crowded(seed)
        is_planned = isinstance(plan(found.ledger.snapshot(), found.tasks, found.terms), Plan)
        outcomes[is_planned, is_possible(found)] += 1

    agrees()
    assert not outcomes[True, False]
    assert outcomes[True, True] > outcomes[False, True]


class Recorder:
    """A solver that finds nothing, and remembers what it was asked."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def solve(self, problem: Problem, seconds: float) -> Solution:
        self.problems.append(problem)
        return Solution(None, is_proven=True)


def large_site() -> PlainLedger:
    """Return three times as many hosts as are considered, each with a plan."""
    ledger = PlainLedger.of((host(number) for number in range(1, 3 * MOST_SITES + 1)), NOW)
    for number in ledger.resources:
        book(ledger, f"booked-{number}", parts(1, 4), hours(2, 4), {number: 1})
    return ledger


def test_of_a_large_site_a_part_is_considered_that_proves_nothing():
    ledger, solver = large_site(), Recorder()
    task = NewUnits("new", whole(2), hours(1, 3))
    answer = arrange(ledger.snapshot(), [task], terms_of(ledger), solver, seconds=SECONDS)
    assert answer.snapshot is None
    assert not answer.is_proven
    [problem] = solver.problems
    assert 0 < len(problem.sites) <= MOST_SITES


def test_without_time_nothing_is_asked_and_nothing_is_proven():
    ledger, solver = large_site(), Recorder()
    answer = arrange(ledger.snapshot(), [NewUnits("new", whole(), hours(1, 3))], terms_of(ledger), solver, seconds=0.0)
    assert answer.snapshot is None
    assert not answer.is_proven
    assert solver.problems == []


def test_what_stays_is_not_touched():
    """The plan on host 1 must go elsewhere; those on hosts 2 and 3 are as they were, to the last field."""
    ledger = PlainLedger.of([host(1), host(2), host(3, 8, rack="b")], NOW)
    book(ledger, "first", parts(1, 4), hours(2, 4), {1: 1})
    stays = book(ledger, "second", parts(1, 2), hours(2, 4), {2: 1})
    held = book(ledger, "held", parts(1, 2), hours(-1, 4), {3: 1}, AllocationState.HELD)
    before, task = ledger.snapshot(), NewUnits("new", whole(named=[1]), hours(3, 5))
    answer = arrange(before, [task], terms_of(ledger), CpSatSolver(), seconds=SECONDS)
    assert answer.snapshot is not None
    ledger.demands["new"] = task.demand
    assert carry_out(Situation(ledger, [task], terms_of(ledger)), before, answer.snapshot) == []
    assert {*stays, *held} <= set(ledger.allocations.values())
    assert [allocation.resource_id for allocation in ledger.of_reservation("first")] == [3]


@pytest.mark.parametrize("solver", [CpSatSolver(), BacktrackingSolver()], ids=["cp-sat", "backtracking"])
@pytest.mark.parametrize("hosts", [3, 4])
def test_units_that_are_to_be_apart_stay_apart_if_they_start_at_different_times(solver: Solver, hosts: int):
    """A plan whose start is late moves for its remaining time only, so others of the reservation have another start."""
    ledger = PlainLedger.of([host(number) for number in range(1, hosts + 1)], NOW)
    apart = parts(2, spread=Spread.ANTI_AFFINITY)
    book(ledger, "apart", apart, hours(-1, 3), {1: 1})
    book(ledger, "apart", apart, hours(0, 3), {2: 1})
    task = NewUnits("new", whole(2, named=[1, 2]), hours(1, 2))
    ledger.demands["new"] = task.demand
    answer = arrange(ledger.snapshot(), [task], terms_of(ledger), solver, seconds=SECONDS)
    if hosts == 3:
        assert answer.snapshot is None
    else:
        assert answer.snapshot is not None
        moved = [allocation for number in (3, 4) for allocation in answer.snapshot.on(answer.snapshot.row_of(number))]
        assert [(allocation.resource_id, allocation.period) for allocation in moved] == [
            (3, hours(0, 3)),
            (4, hours(0, 3)),
        ]


def test_a_refusal_is_not_proven_if_units_apart_would_have_to_begin_earlier():
    """The search places them for all of their time, so what it does not find may be there."""
    ledger = PlainLedger.of([host(number) for number in (1, 2, 3)], NOW)
    apart = parts(2, spread=Spread.ANTI_AFFINITY)
    book(ledger, "apart", apart, hours(0, 3), {1: 1})
    book(ledger, "apart", apart, hours(1, 3), {2: 1})
    task = NewUnits("new", whole(2, named=[1, 2]), hours(1, 2))
    ledger.demands["new"] = task.demand
    answer = arrange(ledger.snapshot(), [task], terms_of(ledger), BacktrackingSolver(), seconds=SECONDS)
    assert answer.snapshot is None
    assert not answer.is_proven


def test_a_plan_that_is_over_stays_where_it_is():
    ledger = PlainLedger.of([host(1), host(2)], NOW)
    [over] = book(ledger, "over", whole(), hours(-3, -1), {1: 1})
    book(ledger, "booked", whole(), hours(1, 3), {1: 1})
    task = NewUnits("new", whole(named=[1]), hours(1, 2))
    ledger.demands["new"] = task.demand
    answer = arrange(ledger.snapshot(), [task], terms_of(ledger), BacktrackingSolver(), seconds=SECONDS)
    assert answer.snapshot is not None
    assert over in answer.snapshot.on(answer.snapshot.row_of(1))
