"""The exact search for an arrangement by CP-SAT of OR-Tools, an optional extra of the distribution."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from tenure.domain.allocation import Spread
from tenure.domain.arrangement import FixedUse, Piece, Problem, Site, Solution, most_apart


def is_installed() -> bool:
    """Whether OR-Tools is installed."""
    return find_spec("ortools") is not None


class CpSatSolver:
    """Places all pieces with as few moves as it finds in time."""

    def __init__(self) -> None:
        """Load OR-Tools, which takes a part of a second."""
        from ortools.sat.python import cp_model

        self._cp: Any = cp_model

    def solve(self, problem: Problem, seconds: float) -> Solution:
        """Return an arrangement, or whether there is none. The time includes that for making the model."""
        deadline = time.monotonic() + seconds
        model = self._cp.CpModel()
        counts: list[dict[int, Any]] = []
        moved: list[Any] = []
        for piece in problem.pieces:
            if time.monotonic() >= deadline:
                return Solution(None, is_proven=False)
            if piece.demand.spread is Spread.AFFINITY:
                chosen = {resource_id: model.new_bool_var("") for resource_id in sorted(piece.may)}
                model.add_exactly_one(chosen.values())
                counts.append({resource_id: piece.units * there for resource_id, there in chosen.items()})
                moved += [1 - chosen[resource_id] for resource_id in piece.current if resource_id in chosen]
            else:
                is_apart = piece.demand.spread is Spread.ANTI_AFFINITY
                numbers = {
                    resource_id: model.new_int_var(0, most_apart(piece, resource_id) if is_apart else piece.units, "")
                    for resource_id in sorted(piece.may)
                }
                model.add(sum(numbers.values()) == piece.units)
                counts.append(dict(numbers))
                for resource_id, count in piece.current.items():
                    if resource_id in numbers:
                        less = model.new_int_var(0, count, "")
                        model.add(less >= count - numbers[resource_id])
                        moved.append(less)
                        model.add_hint(numbers[resource_id], count)
        for site in problem.sites:
            self._limit(model, site, problem, counts)
            if time.monotonic() >= deadline:
                return Solution(None, is_proven=False)
        model.minimize(sum(moved))
        solver = self._cp.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.0, deadline - time.monotonic())
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        status = solver.solve(model)
        if status in {self._cp.OPTIMAL, self._cp.FEASIBLE}:
            return Solution(
                tuple(
                    {resource_id: units for resource_id, count in solved.items() if (units := int(solver.value(count)))}
                    for solved in counts
                )
            )
        return Solution(None, is_proven=status == self._cp.INFEASIBLE)

    def _limit(self, model: Any, site: Site, problem: Problem, counts: list[dict[int, Any]]) -> None:
        """Let the uses of a site never take more than it has, unless they are there now, and nothing is added.

        What is taken grows only where something begins.
        """
        here = [
            (piece, numbers[site.resource_id])
            for piece, numbers in zip(problem.pieces, counts, strict=True)
            if site.resource_id in numbers
        ]
        starting = deque(sorted(here, key=lambda use: use[0].period.start))
        staying = deque(sorted(site.fixed, key=lambda use: use.period.start))
        instants = sorted({piece.period.start for piece, _ in here} | {use.period.start for use in site.fixed})
        current: list[tuple[Piece, Any]] = []
        beside: list[FixedUse] = []
        for instant, following in pairwise([*instants, None]):
            assert instant is not None
            current = [use for use in current if use[0].period.end > instant]
            beside = [use for use in beside if use.period.end > instant]
            while starting and starting[0][0].period.start <= instant:
                current.append(starting.popleft())
            while staying and staying[0].period.start <= instant:
                beside.append(staying.popleft())
            if not current:
                continue
            ends = [*(piece.period.end for piece, _ in current), *(use.period.end for use in beside)]
            if following is not None and min(ends) > following:
                continue  # all of these are there at the following instant as well
            fixed: dict[str, int] = defaultdict(int)
            for use in beside:
                for name, amount in site.taken(use.amounts, exclusive=use.exclusive).items():
                    fixed[name] += amount
            amounts = [
                (site.taken(piece.demand.amounts, exclusive=piece.demand.exclusive), count) for piece, count in current
            ]
            names = sorted({name for taken, _ in amounts for name in taken})
            planned = [piece.staying(site.resource_id) for piece, _ in current]
            is_in_conflict = any(
                sum(taken[name] * units for (taken, _), units in zip(amounts, planned, strict=True))
                > site.room[name] - fixed[name]
                for name in names
            )
            stays = model.new_bool_var("") if is_in_conflict else None
            if stays is not None:
                for (_, count), units in zip(current, planned, strict=True):
                    model.add(count <= units).only_enforce_if(stays)
            for name in names:
                used = sum(taken[name] * count for taken, count in amounts if taken[name])
                limit = model.add(used <= site.room[name] - fixed[name])
                if stays is not None:
                    limit.only_enforce_if(~stays)
