"""The exact search for an arrangement without OR-Tools: backtracking, for small cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tenure.domain.allocation import Spread
from tenure.domain.arrangement import Piece, Problem, Site, Solution, most_apart
from tenure.domain.capacity import Capacity, peak
from tenure.domain.period import Period


class _TimeOver(Exception):
    """The search did not end in time."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Units of a piece that are assigned in one step: all of them if they stay together, otherwise one."""

    piece: int
    count: int


class BacktrackingSolver:
    """Assigns unit after unit, those with the fewest possible sites first, and goes back where one finds none."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds

    def solve(self, problem: Problem, seconds: float) -> Solution:
        """Return an arrangement, or whether there is none."""
        search = _Search(problem, lambda: self._seconds() >= deadline)
        deadline = self._seconds() + seconds
        try:
            is_assigned = search.assign(0)
        except _TimeOver:
            return Solution(None, is_proven=False)
        return Solution(tuple(search.assigned)) if is_assigned else Solution(None)


class _Search:
    """The state of a search."""

    def __init__(self, problem: Problem, is_over: Callable[[], bool]) -> None:
        self._problem = problem
        self._is_over = is_over
        self._sites = {site.resource_id: site for site in problem.sites}
        self._uses: dict[int, list[tuple[Period, Capacity]]] = {
            site.resource_id: [(use.period, site.taken(use.amounts, exclusive=use.exclusive)) for use in site.fixed]
            for site in problem.sites
        }
        self.assigned: list[dict[int, int]] = [{} for _ in problem.pieces]
        self._units = sorted(_units(problem), key=lambda unit: self._hardness(problem.pieces[unit.piece], unit))

    def assign(self, position: int) -> bool:
        """Assign this unit and all after it; return whether that worked."""
        if position == len(self._units):
            return True
        if self._is_over():
            raise _TimeOver
        unit = self._units[position]
        piece = self._problem.pieces[unit.piece]
        for resource_id in self._choices(position):
            site = self._sites[resource_id]
            taken = site.taken(piece.demand.amounts, exclusive=piece.demand.exclusive).times(unit.count)
            if not self._has_room(site, piece.period, taken) and not self._may_stay(site, unit, taken):
                continue
            assigned, uses = self.assigned[unit.piece], self._uses[resource_id]
            assigned[resource_id] = assigned.get(resource_id, 0) + unit.count
            uses.append((piece.period, taken))
            if self.assign(position + 1):
                return True
            uses.pop()
            assigned[resource_id] -= unit.count
            if not assigned[resource_id]:
                del assigned[resource_id]
        return False

    def _choices(self, position: int) -> Iterator[int]:
        """Yield the sites for a unit, those where it is planned now first.

        The units of a piece are alike: each goes to the site of the one before it, or to a later one.
        """
        unit = self._units[position]
        piece, assigned = self._problem.pieces[unit.piece], self.assigned[unit.piece]
        order = sorted(piece.may, key=lambda resource_id: (resource_id not in piece.current, resource_id))
        first = 0
        if assigned:
            first = max(order.index(resource_id) for resource_id in assigned)
            if piece.demand.spread is Spread.ANTI_AFFINITY:
                last = order[first]
                first += assigned[last] >= most_apart(piece, last)
        yield from order[first:]

    def _has_room(self, site: Site, period: Period, taken: Capacity) -> bool:
        return site.room.fits(peak(self._uses[site.resource_id], period) + taken)

    def _may_stay(self, site: Site, unit: _Unit, taken: Capacity) -> bool:
        """Whether a site without room has at these instants nothing but what stays there, these units included."""
        piece = self._problem.pieces[unit.piece]
        if not self._is_current(unit.piece, site, more=unit.count):
            return False
        uses = [(period, amounts) for period, amounts in self._uses[site.resource_id] if period.overlaps(piece.period)]
        for instant in {piece.period.start, *(period.start for period, _ in uses if period.start > piece.period.start)}:
            there = sum((amounts for period, amounts in uses if period.contains(instant)), taken)
            if not site.room.fits(there) and not all(
                self._is_current(position, site)
                for position, other in enumerate(self._problem.pieces)
                if other.period.contains(instant)
            ):
                return False
        return True

    def _is_current(self, position: int, site: Site, *, more: int = 0) -> bool:
        """Whether no more units of a piece are on a site, with so many more, than are planned there now."""
        assigned = self.assigned[position].get(site.resource_id, 0) + more
        return assigned <= self._problem.pieces[position].staying(site.resource_id)

    def _hardness(self, piece: Piece, unit: _Unit) -> tuple[int, bool, int, int]:
        size = sum(piece.demand.amounts.values()) * unit.count
        return len(piece.may), not piece.demand.exclusive, -size, unit.piece


def _units(problem: Problem) -> Iterator[_Unit]:
    for position, piece in enumerate(problem.pieces):
        if piece.demand.spread is Spread.AFFINITY:
            yield _Unit(position, piece.units)
        else:
            yield from (_Unit(position, 1) for _ in range(piece.units))
