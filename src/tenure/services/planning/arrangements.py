"""Rearranging plans for a new lease: the exact search, when neither room nor moves of single plans are found."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Protocol

from tenure.domain.allocation import Allocation, Demand, Spread, units_by_resource
from tenure.domain.arrangement import FixedUse, Piece, Problem, Site, Solution
from tenure.domain.lease import AllocationState
from tenure.domain.period import TICK, Period
from tenure.domain.regions import ids_in
from tenure.domain.request import ResourceQuery
from tenure.domain.resource import Resource
from tenure.resources.contract import ResourceTypes
from tenure.services.planning.demands import demand_of
from tenure.store.conditions import OVERDUE_MATTERS
from tenure.store.database import Database, Transaction
from tenure.store.resources import attributes_of

#: The largest number of resources, and of pieces, of an exact search.
MOST_SITES = 64
MOST_PIECES = 400


class Solver(Protocol):
    """Searches for an arrangement."""

    def solve(self, problem: Problem, seconds: float) -> Solution:
        """Return an arrangement, or whether there is none."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The plans of a reservation, and where its units are to be instead."""

    plans: tuple[Allocation, ...]
    demand: Demand
    units: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The plans that move, the places of the new demands by position, and the versions of the resources concerned."""

    moved: tuple[Moved, ...]
    places: Mapping[int, Mapping[int, int]]
    versions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search: an arrangement, or whether it is proven that there is none."""

    arrangement: Arrangement | None
    is_proven: bool


class Arrangements:
    """Searches for arrangements of all plans that may move, beside everything that stays."""

    def __init__(
        self, db: Database, types: ResourceTypes, solver: Solver, allowed: timedelta, notice: timedelta
    ) -> None:
        """``allowed`` is the time of a search. Plans that begin within ``notice`` stay."""
        self._db = db
        self._types = types
        self._solver = solver
        self._seconds = allowed.total_seconds()
        self._notice = notice

    def find(self, demands: Sequence[Demand], period: Period, *, now: datetime) -> Search:
        """Return an arrangement with room for all demands of a new lease, each with its least amount."""
        grouped: dict[tuple[str, str], dict[int, Demand]] = defaultdict(dict)
        for position, demand in enumerate(demands):
            grouped[demand.inventory, demand.region][position] = demand
        moved: list[Moved] = []
        places: dict[int, Counter[int]] = defaultdict(Counter)
        versions: dict[int, int] = {}
        for (inventory, region), wanted in sorted(grouped.items()):
            with self._db.read() as tx:
                part = _read_part(tx, self._types, inventory, region, now=now, notice=self._notice)
            if part is None:
                return Search(None, is_proven=False)
            new = [piece for position, demand in wanted.items() for piece in part.new_pieces(position, demand, period)]
            problem = Problem(tuple(part.sites.values()), (*(piece for piece, _ in part.plans), *new))
            if len(problem.pieces) > MOST_PIECES:
                return Search(None, is_proven=False)
            solution = self._solver.solve(problem, self._seconds)
            if solution.units is None:
                return Search(None, solution.is_proven)
            planned = len(part.plans)
            for (piece, plans), units in zip(part.plans, solution.units, strict=False):
                if dict(piece.current) != dict(units):
                    moved.append(Moved(plans, piece.demand, units))
                    touched = units.keys() | piece.current.keys()
                    versions |= {resource_id: part.sites[resource_id].version for resource_id in touched}
            for piece, units in zip(new, solution.units[planned:], strict=True):
                places[int(piece.reservation_id)].update(units)
                versions |= {resource_id: part.sites[resource_id].version for resource_id in units}
        return Search(Arrangement(tuple(moved), places, versions), is_proven=True)


@dataclass(frozen=True, slots=True)
class _Part:
    """The resources of an inventory in a region, and the plans on them that may move, by their pieces."""

    resources: Mapping[int, Resource]
    sites: Mapping[int, Site]
    plans: Sequence[tuple[Piece, tuple[Allocation, ...]]]

    def new_pieces(self, position: int, demand: Demand, period: Period) -> Iterator[Piece]:
        """Yield the pieces of a new demand: one for each resource that it names, and one for the rest."""
        span, may = demand.span(period), self.serving(demand)
        ids = ids_in(demand.region, demand.named)
        named = {resource_id for resource_id in may if self.resources[resource_id].external_id in ids}
        for resource_id in sorted(named):
            yield Piece(str(position), demand, span, 1, frozenset({resource_id}), _NOWHERE)
        if len(named) < len(demand.named):
            yield Piece(str(position), demand, span, 1, frozenset(), _NOWHERE)  # there is no such resource
        rest = demand.minimum - len(named)
        if rest > 0:
            yield Piece(str(position), demand, span, rest, may - named, _NOWHERE)

    def serving(self, demand: Demand) -> frozenset[int]:
        """Return the reservable resources that serve a demand if nothing else uses them."""
        return frozenset(
            resource_id
            for resource_id, resource in self.resources.items()
            if resource.reservable and _serves(resource, demand)
        )


_NOWHERE: Mapping[int, int] = MappingProxyType({})


def _serves(resource: Resource, demand: Demand) -> bool:
    """Whether a resource serves a demand if nothing else uses it; ``conditions.matching`` is the same in SQL."""
    return (
        demand.expression.matches(attributes_of(resource.external_id, resource.facts, resource.properties))
        and demand.required <= resource.traits
        and not demand.forbidden & resource.traits
        and demand.has_size(resource.capacity)
        and demand.is_admitted_by(resource.limits)
    )


def _read_part(
    tx: Transaction, types: ResourceTypes, inventory: str, region: str, *, now: datetime, notice: timedelta
) -> _Part | None:
    """Read the resources of an inventory in a region with their allocations; None if there are too many."""
    found = tx.resources.page(ResourceQuery(inventory, MOST_SITES, region=region))
    if len(found) > MOST_SITES:
        return None
    resources = {resource.id: resource for resource in found}
    allocations = tx.allocations.not_over(resources, now=now)
    movable = [
        each for each in allocations if each.state is AllocationState.PLANNED and each.period.start > now + notice
    ]
    reservations = tx.leases.reservations_by_ids({allocation.reservation_id for allocation in movable})
    demands = {reservation_id: demand_of(types, each) for reservation_id, each in reservations.items()}
    named = {
        reservation_id: set(tx.resources.ids_of(inventory, demand.named, region=region))
        for reservation_id, demand in demands.items()
        if demand.named
    }
    grouped: dict[tuple[str, Period], list[Allocation]] = defaultdict(list)
    for allocation in movable:
        if allocation.resource_id not in named.get(allocation.reservation_id, ()):
            grouped[allocation.reservation_id, allocation.period].append(allocation)
    moving = {allocation.id for plans in grouped.values() for allocation in plans}
    fixed: dict[int, list[FixedUse]] = defaultdict(list)
    stay: dict[str, set[int]] = defaultdict(set)
    for allocation in allocations:
        if allocation.id not in moving:
            fixed[allocation.resource_id].append(_fixed(allocation, now))
            stay[allocation.reservation_id].add(allocation.resource_id)
    sites = {
        resource.id: Site(resource.id, resource.version, resource.capacity, tuple(fixed[resource.id]))
        for resource in found
    }
    part = _Part(resources, sites, [])
    plans = []
    for (reservation_id, period), these in grouped.items():
        demand = demands[reservation_id]
        current = units_by_resource(these)
        may = part.serving(demand) | current.keys()
        if demand.spread is Spread.APART:
            may -= stay[reservation_id]
        plans.append((Piece(reservation_id, demand, period, current.total(), frozenset(may), current), tuple(these)))
    return replace(part, plans=plans)


def _fixed(allocation: Allocation, now: datetime) -> FixedUse:
    """Return an allocation that stays; an overdue one goes on for as long as it matters."""
    period = allocation.period
    if period.end <= now:
        period = Period(period.start, now + OVERDUE_MATTERS + TICK)
    return FixedUse(period, allocation.amounts, allocation.exclusive)
