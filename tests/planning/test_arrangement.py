"""Problems that counting decides."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tenure.domain.allocation import Demand, Spread
from tenure.domain.arrangement import FixedUse, Piece, Problem, Site
from tenure.domain.capacity import Capacity
from tenure.domain.period import Period
from tenure.domain.requirement import Expression
from tenure.planning.backtracking import BacktrackingSolver
from tenure.planning.cp_sat import CpSatSolver
from tenure.planning.exact import Solver

START = datetime(2030, 1, 1, tzinfo=UTC)
SIZE = Capacity({"VCPU": 4})
WHOLE_HOST = Demand("host", "host", 1, 1, Expression(()), Capacity({}), exclusive=True)
PART_OF_HOST = Demand("host", "host", 1, 1, Expression(()), Capacity({"VCPU": 1}), exclusive=False, spread=Spread.ANY)


def hours(start: int, end: int) -> Period:
    return Period(START + timedelta(hours=start), START + timedelta(hours=end))


def site(number: int, *used: Period) -> Site:
    return Site(number, 1, SIZE, tuple(FixedUse(period, Capacity({"VCPU": 1}), exclusive=False) for period in used))


def piece(period: Period, *may: int, units: int = 1, demand: Demand = WHOLE_HOST, current: int | None = None) -> Piece:
    there = {} if current is None else {current: units}
    return Piece("a", demand, period, units, frozenset(may), there, is_in_place=current is not None)


def part(demand: Demand, *may: int, current: int | None = None) -> Piece:
    return piece(hours(0, 4), *may, demand=demand, current=current)


@pytest.mark.parametrize(
    ("pieces", "is_overfull"),
    [
        ([piece(hours(0, 2), 1, 2), piece(hours(0, 2), 1, 2)], False),
        ([piece(hours(0, 2), 1, 2), piece(hours(0, 2), 1, 2), piece(hours(1, 3), 1, 2)], True),
        ([piece(hours(0, 2), 1, 2, units=3)], True),
        ([piece(hours(0, 2), 1, 2, current=1), piece(hours(0, 2), 1, 2, current=2), piece(hours(1, 3), 1, 2)], True),
        # not at the same time
        ([piece(hours(0, 2), 1, 2, units=2), piece(hours(2, 3), 1, 2, units=2)], False),
        # host 3 is in use from 0 to 2
        ([piece(hours(1, 3), 3)], True),
        ([piece(hours(2, 3), 3)], False),
        # there is no host that serves it
        ([piece(hours(0, 2))], True),
        # parts of hosts are not counted
        ([piece(hours(0, 2), 1, units=9, demand=PART_OF_HOST)], False),
    ],
)
def test_too_many_whole_hosts_are_counted(pieces: list[Piece], is_overfull: bool):
    problem = Problem((site(1), site(2), site(3, hours(0, 2))), tuple(pieces))
    assert problem.is_overfull() is is_overfull


FOUR, EIGHT = (replace(PART_OF_HOST, amounts=Capacity({"VCPU": count})) for count in (4, 8))
WHOLE_USE = FixedUse(hours(0, 2), Capacity({}), exclusive=True)


@pytest.mark.parametrize("solver", [BacktrackingSolver(), CpSatSolver()], ids=["backtracking", "cp-sat"])
@pytest.mark.parametrize(
    ("sites", "pieces", "expected"),
    [
        # host 1 has shrunk to 4 below its plan of 8: that stays, the new one goes to host 2, and nothing to host 1
        ([site(1), site(2)], [part(EIGHT, 1, current=1), part(FOUR, 1, 2)], [{1: 1}, {2: 1}]),
        ([site(1), site(2)], [part(EIGHT, 1, current=1), part(FOUR, 1)], None),
        # the plan that is too large moves to host 2, so that there is room on host 1
        (
            [site(1), replace(site(2), capacity=SIZE.times(2))],
            [part(EIGHT, 1, 2, current=1), part(FOUR, 1)],
            [{2: 1}, {1: 1}],
        ),
        # two plans are too large together: each may stay, but nothing may be added until they fit
        ([site(1)], [part(FOUR, 1, current=1), part(FOUR, 1, current=1)], [{1: 1}, {1: 1}]),
        ([site(1)], [part(FOUR, 1, current=1), part(FOUR, 1, current=1), part(PART_OF_HOST, 1)], None),
        # a holder is overdue on host 1, with a plan behind it
        (
            [Site(1, 1, SIZE, (WHOLE_USE,)), site(2)],
            [piece(hours(1, 3), 1, current=1), piece(hours(1, 3), 1, 2)],
            [{1: 1}, {2: 1}],
        ),
        ([Site(1, 1, SIZE, (WHOLE_USE,))], [piece(hours(1, 3), 1, current=1), piece(hours(1, 3), 1)], None),
        ([Site(1, 1, SIZE, (WHOLE_USE,))], [part(FOUR, 1, current=1), piece(hours(2, 3), 1)], None),
        # a changed reservation is planned there for another period: it finds no room
        ([Site(1, 1, SIZE, (WHOLE_USE,))], [replace(part(FOUR, 1, current=1), is_in_place=False)], None),
        # what stays is too much by itself
        ([Site(1, 1, SIZE, (WHOLE_USE, WHOLE_USE)), site(2)], [part(FOUR, 1, 2)], [{2: 1}]),
    ],
)
def test_plans_in_conflict_may_stay_and_get_nothing_beside_them(
    solver: Solver, sites: list[Site], pieces: list[Piece], expected: list[dict[int, int]] | None
):
    problem = Problem(tuple(sites), tuple(pieces))
    found = solver.solve(problem, 60.0)
    assert found.is_proven
    assert (None if found.units is None else [dict(units) for units in found.units]) == expected
    assert expected is None or not problem.is_overfull()


def test_what_is_overfull_has_no_arrangement():
    draw = random.Random(1)
    counted = 0
    for _ in range(400):
        sites = tuple(site(number, *(_period(draw) for _ in range(draw.randrange(2)))) for number in range(3))
        pieces = tuple(
            piece(
                _period(draw),
                *draw.sample(range(3), draw.randint(1, 3)),
                units=draw.randint(1, 2),
                demand=draw.choice([WHOLE_HOST, WHOLE_HOST, PART_OF_HOST]),
            )
            for _ in range(draw.randint(1, 4))
        )
        problem = Problem(sites, pieces)
        if problem.is_overfull():
            counted += 1
            assert BacktrackingSolver().solve(problem, 60).units is None
    assert counted > 100


def _period(draw: random.Random) -> Period:
    start = draw.randrange(3)
    return hours(start, start + draw.randint(1, 3))
