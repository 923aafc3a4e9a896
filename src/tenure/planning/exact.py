"""The exact search: an arrangement of all plans that may move, beside what stays, in which everything has room.

It is asked if neither free room nor moves of single plans are found. Of a large inventory it considers a subproblem
only.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import numpy as np

from tenure.domain.allocation import Allocation, Demand, Spread, units_by_resource
from tenure.domain.arrangement import FixedUse, Piece, Problem, Site, Solution
from tenure.domain.period import Period
from tenure.planning.candidates import find
from tenure.planning.moving import Vacancy, blocked_by_plans, rest_of
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import Extension, NewUnits, Revision, Task
from tenure.planning.terms import Terms

LOG = logging.getLogger(__name__)

#: The largest number of resources, and of pieces, of a search.
MOST_SITES = 64
MOST_PIECES = 400
#: Of a large inventory: how many free resources, and how many with plans in the way, are considered for all that is
#: requested together; how many of each for a plan in the way; and for how many demands resources are looked up.
FOR_REQUESTED = 12
FOR_PLAN = 2
MOST_LOOKED_UP = 24


class Solver(Protocol):
    """Searches for an arrangement."""

    def solve(self, problem: Problem, seconds: float) -> Solution:
        """Return an arrangement, or whether there is none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A snapshot in which everything has room; or None, and whether it is proven that there is none."""

    snapshot: Snapshot | None
    is_proven: bool = True


@dataclass(frozen=True, slots=True)
class _Subproblem:
    """What is considered of an inventory: its resources, and the plans that may move, each group with its piece."""

    resource_ids: frozenset[int]
    plans: Sequence[tuple[Piece, tuple[Allocation, ...]]]
    #: Whether these are all resources, and all plans that may move; otherwise a search proves nothing.
    is_whole: bool


def arrange(snapshot: Snapshot, tasks: Sequence[Task], terms: Terms, solver: Solver, *, seconds: float) -> Answer:
    """Return a snapshot with all tasks done, each with the least units that it asks for.

    Half of the time is for finding out what is considered, the rest for the solver.
    """
    began = time.monotonic()

    def is_over() -> bool:
        return time.monotonic() >= began + seconds / 2

    snapshot = snapshot.without(plan for task in tasks if isinstance(task, Revision) for plan in task.plans)
    grouped: dict[tuple[str, str], list[Task]] = defaultdict(list)
    for task in tasks:
        grouped[task.demand.inventory, task.demand.region].append(task)
    for _, of_inventory in sorted(grouped.items()):
        subproblem = _subproblem_for(snapshot, of_inventory, terms, is_over)
        pieces = [(task, piece) for task in of_inventory for piece in _pieces(snapshot, task, subproblem)]
        problem = Problem(
            _sites(snapshot, subproblem), (*(piece for piece, _ in subproblem.plans), *(piece for _, piece in pieces))
        )
        left = began + seconds - time.monotonic()
        if len(problem.pieces) > MOST_PIECES or left <= 0:
            return Answer(None, is_proven=False)
        solution = Solution(None) if problem.is_overfull() else solver.solve(problem, left)
        if solution.units is None:
            return Answer(None, solution.is_proven and subproblem.is_whole)
        if not all(map(_answers, problem.pieces, solution.units)):
            LOG.error("the solver of the exact search has returned a wrong answer")
            return Answer(None, is_proven=False)
        moved, placed = solution.units[: len(subproblem.plans)], solution.units[len(subproblem.plans) :]
        for (piece, plans), units in zip(subproblem.plans, moved, strict=True):
            snapshot = _moved(snapshot, piece, plans, units, terms)
        for (task, piece), units in zip(pieces, placed, strict=True):
            snapshot = _done(snapshot, task, piece, units)
    return Answer(snapshot)


def _answers(piece: Piece, units: Mapping[int, int]) -> bool:
    """Whether these are the units of a piece, where they may be. Whether they fit is verified when they are written."""
    return sum(units.values()) == piece.units and units.keys() <= piece.may | piece.current.keys()


def _subproblem_for(
    snapshot: Snapshot, tasks: Sequence[Task], terms: Terms, is_over: Callable[[], bool]
) -> _Subproblem:
    """Return what is considered for these tasks of an inventory."""
    catalogue, demand = snapshot.catalogue, tasks[0].demand
    every = np.flatnonzero(catalogue.of_type(demand.inventory, demand.region))
    is_whole = len(every) <= MOST_SITES
    if is_whole:
        resource_ids, affected = frozenset(catalogue.ids[row] for row in every), None
    else:
        resource_ids, affected = _affected(snapshot, tasks, terms, is_over)
    requesting = {task.reservation_id for task in tasks}
    moving: dict[str, list[Allocation]] = defaultdict(list)
    staying: dict[str, set[int]] = defaultdict(set)
    for resource_id in sorted(resource_ids):
        for allocation in snapshot.on(snapshot.row_of(resource_id)):
            reservation_id = allocation.reservation_id
            is_affected = affected is None or reservation_id in affected
            if reservation_id not in requesting and is_affected and _may_move(allocation, terms):
                moving[reservation_id].append(allocation)
            else:
                staying[reservation_id].add(resource_id)
    demands = terms.demands_of(moving.keys())
    plans: list[tuple[Piece, tuple[Allocation, ...]]] = []
    for reservation_id, of_reservation in sorted(moving.items()):
        demand = demands[reservation_id]
        named = set(catalogue.ids_named(demand.region, demand.named))
        stays = staying[reservation_id] | {plan.resource_id for plan in of_reservation if plan.resource_id in named}
        unnamed = [plan for plan in of_reservation if plan.resource_id not in named]
        groups = _by_period(unnamed, demand, terms)
        # Units that are to be apart may take more time than they have now, so they may fit where this search says no.
        is_whole &= len(groups) == len({rest_of([plan], terms) for plan in unnamed})
        for period, group in sorted(groups.items(), key=lambda item: (item[0].start, item[0].end)):
            current = units_by_resource(group)
            may = _serving(snapshot, demand, resource_ids) | current.keys()
            if demand.spread is Spread.ANTI_AFFINITY:
                may -= stays - current.keys()
            piece = Piece(reservation_id, demand, period, current.total(), frozenset(may), current, is_in_place=True)
            plans.append((piece, tuple(group)))
    return _Subproblem(resource_ids, plans, is_whole)


def _may_move(allocation: Allocation, terms: Terms) -> bool:
    """Whether an allocation is a plan that may move, and some of its time is still to come."""
    return terms.may_move(allocation) and terms.is_open(allocation)


def _by_period(plans: Sequence[Allocation], demand: Demand, terms: Terms) -> Mapping[Period, Sequence[Allocation]]:
    """Return plans of a reservation by their time to come; those that are to be apart together, for all of their time.

    Starts differ if one was late or delayed.
    """
    rests = [rest_of([plan], terms) for plan in plans]
    if rests and demand.spread is Spread.ANTI_AFFINITY:
        return {Period(min(rest.start for rest in rests), max(rest.end for rest in rests)): plans}
    grouped: dict[Period, list[Allocation]] = defaultdict(list)
    for rest, plan in zip(rests, plans, strict=True):
        grouped[rest].append(plan)
    return grouped


def _sites(snapshot: Snapshot, subproblem: _Subproblem) -> tuple[Site, ...]:
    """Return the resources with what stays on them."""
    moving = {allocation.id for _, plans in subproblem.plans for allocation in plans}
    sites = []
    for resource_id in sorted(subproblem.resource_ids):
        row = snapshot.row_of(resource_id)
        fixed = tuple(
            FixedUse(allocation.period, allocation.amounts, allocation.exclusive)
            for allocation in snapshot.on(row)
            if allocation.id not in moving
        )
        sites.append(Site(resource_id, int(snapshot.versions[row]), snapshot.catalogue.capacity_of(row), fixed))
    return tuple(sites)


def _pieces(snapshot: Snapshot, task: Task, subproblem: _Subproblem) -> Iterator[Piece]:
    """Yield the pieces of a task: of new units, one for each resource that is named, and one for the rest."""
    if isinstance(task, Extension):
        for allocation in task.allocations:
            gained = task.gained(allocation)
            if gained is not None:
                demand = task.demand.of_units(allocation.units)
                may = _serving(snapshot, demand, {allocation.resource_id}, reservable=False)
                yield Piece(task.reservation_id, demand, gained, allocation.units, may, {})
        return
    demand, current = task.demand, Counter[int]()
    may = _serving(snapshot, demand, subproblem.resource_ids)
    if isinstance(task, Revision):
        current = units_by_resource(task.plans)
        may |= current.keys() if task.keeps else frozenset()
    else:
        may -= task.without
        may = may if task.only is None else may & task.only
    ids = snapshot.catalogue.ids_named(demand.region, demand.named)
    named = {*ids} - (task.without if isinstance(task, NewUnits) else frozenset())
    for resource_id in sorted(named):
        yield Piece(task.reservation_id, demand, task.span, 1, frozenset({resource_id}) & may, {})
    if len(ids) < len(demand.named):
        yield Piece(task.reservation_id, demand, task.span, 1, frozenset(), {})  # there is no such resource
    rest = demand.minimum - len(named)
    if rest > 0:
        may -= named
        stays = {resource_id: units for resource_id, units in current.items() if resource_id in may}
        yield Piece(task.reservation_id, demand, task.span, rest, may, stays)


def _serving(
    snapshot: Snapshot, demand: Demand, resource_ids: Collection[int], *, reservable: bool = True
) -> frozenset[int]:
    """Return which of these resources serve a demand if nothing else uses them."""
    matching = snapshot.catalogue.matching(demand, reservable=reservable)
    return frozenset(resource_id for resource_id in resource_ids if matching[snapshot.row_of(resource_id)])


def _moved(
    snapshot: Snapshot, piece: Piece, plans: Sequence[Allocation], units: Mapping[int, int], terms: Terms
) -> Snapshot:
    """Return the snapshot with the plans of a piece at their new places from now on; what stays is not touched."""
    remaining = dict(units)
    leaving: list[Allocation] = []
    for plan in plans:
        if remaining.get(plan.resource_id, 0) >= plan.units:
            remaining[plan.resource_id] -= plan.units
        else:
            leaving.append(plan)
    new = {resource_id: count for resource_id, count in remaining.items() if count}
    if not leaving and not new:
        return snapshot
    was_delayed = any(plan.booked_from is not None for plan in leaving)
    return snapshot.without(leaving).allocate(
        piece.reservation_id, piece.demand, piece.period, new, booked_from=terms.now if was_delayed else None
    )


def _done(snapshot: Snapshot, task: Task, piece: Piece, units: Mapping[int, int]) -> Snapshot:
    """Return the snapshot with a piece of a task at its places."""
    if isinstance(task, Extension):
        [resource_id] = units
        return snapshot.with_longer(
            [allocation for allocation in task.allocations if allocation.resource_id == resource_id], task.until
        )
    new_units = task.anew if isinstance(task, Revision) else task
    return snapshot.allocate(task.reservation_id, task.demand, task.span, units, state=new_units.state)


def _affected(
    snapshot: Snapshot, tasks: Sequence[Task], terms: Terms, is_over: Callable[[], bool]
) -> tuple[frozenset[int], Collection[str]]:
    """Return a bounded number of resources for these tasks, and the reservations whose plans are in the way.

    The resources are free ones, and those that plans can make free. Plans on the latter must go elsewhere, so resources
    for these plans follow, level by level. All other plans stay. It ends early when the time ``is_over``.
    """
    requesting = {task.reservation_id for task in tasks}
    candidates = max(1, FOR_REQUESTED // len(tasks))
    chosen: dict[int, None] = {}
    vacancies: deque[tuple[Demand, Period, int]] = deque()
    known: set[tuple[Demand, Period]] = set()
    in_the_way: set[str] = set()

    def make_way(plans: Iterable[Allocation]) -> None:
        """Look up resources for these plans, too."""
        moving = [plan for plan in plans if plan.reservation_id not in requesting]
        demands = terms.demands_of({plan.reservation_id for plan in moving})
        for plan in moving:
            in_the_way.add(plan.reservation_id)
            demand, rest = replace(demands[plan.reservation_id], minimum=1, maximum=1, named=()), rest_of([plan], terms)
            if (demand, rest) not in known:
                known.add((demand, rest))
                vacancies.append((demand, rest, FOR_PLAN))

    spans = []
    for task in tasks:
        if isinstance(task, Extension):
            chosen.update((allocation.resource_id, None) for allocation in task.allocations)
            spans += [gained for allocation in task.allocations if (gained := task.gained(allocation)) is not None]
            continue
        spans.append(task.span)
        if isinstance(task, Revision):
            chosen.update((plan.resource_id, None) for plan in task.plans)
        chosen.update(dict.fromkeys(snapshot.catalogue.ids_named(task.demand.region, task.demand.named)))
        vacancies.append((replace(task.demand, named=()), task.span, candidates))
    make_way(_plans_on(snapshot, chosen, spans, terms))
    for looked_up in range(MOST_LOOKED_UP):
        if not vacancies or len(chosen) >= MOST_SITES or is_over():
            break
        demand, period, most = vacancies.popleft()
        few = replace(demand, maximum=max(demand.minimum, min(demand.maximum, most)))
        free = find(snapshot, few, period, seed=0, without=chosen, limit=most)[:most]
        chosen.update((candidate.resource_id, None) for candidate in free)
        if looked_up < len(tasks) or not free:
            vacancy = Vacancy(few, period, without=frozenset(chosen))
            blocked = list(islice(blocked_by_plans(snapshot, vacancy, terms), most))
            chosen.update(dict.fromkeys(blocked))
            make_way(_plans_on(snapshot, blocked, [period], terms))
    return frozenset(islice(chosen, MOST_SITES)), in_the_way


def _plans_on(
    snapshot: Snapshot, resource_ids: Iterable[int], spans: Sequence[Period], terms: Terms
) -> list[Allocation]:
    """Return the plans on these resources that may move and overlap one of the periods."""
    return [
        allocation
        for resource_id in resource_ids
        for allocation in snapshot.on(snapshot.row_of(resource_id))
        if _may_move(allocation, terms) and any(allocation.period.overlaps(span) for span in spans)
    ]
