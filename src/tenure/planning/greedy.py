"""Allocating for many tasks beside each other as the plans are, with one search for all that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tenure.domain.allocation import Demand, Spread, order_of
from tenure.planning.candidates import SAMPLE, find
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import Ints
from tenure.planning.tasks import NewUnits, Task
from tenure.planning.terms import Terms

#: From how many tasks on it is worth while to look for those that are alike.
FEW = 4


@dataclass(frozen=True, slots=True)
class Alike:
    """A snapshot in which the tasks at these positions are done."""

    snapshot: Snapshot
    positions: frozenset[int]


def allocate_alike(snapshot: Snapshot, tasks: Mapping[int, Task], terms: Terms) -> Alike:
    """Allocate new units in this order, as far as there is room as the plans are, with one search for tasks alike.

    It ends before the first task without room: plans must move for it, or it is refused. Demands that name resources
    are left out, and what they name is not used: plans may have to move for them. Nothing is done if there are only a
    few tasks, or others than new units.
    """
    done: set[int] = set()
    new_units = {position: task for position, task in tasks.items() if isinstance(task, NewUnits)}
    if len(new_units) < max(FEW, len(tasks)):
        return Alike(snapshot, frozenset())
    names = {(task.demand.region, task.demand.named) for task in new_units.values()}
    named = frozenset(
        resource_id for region, these in names for resource_id in snapshot.catalogue.ids_named(region, these)
    )
    for alike in _group_alike({position: task for position, task in new_units.items() if not task.demand.named}):
        terms.check()
        for position, units in _side_by_side(snapshot, alike, terms, without=named):
            task = alike[position]
            if sum(units.values()) < task.demand.minimum:
                return Alike(snapshot, frozenset(done))
            snapshot = snapshot.allocate(task.reservation_id, task.demand, task.span, units, state=task.state)
            done.add(position)
    return Alike(snapshot, frozenset(done))


def _group_alike(tasks: Mapping[int, NewUnits]) -> Iterator[dict[int, NewUnits]]:
    """Yield the tasks whose demands differ in their numbers only, in order."""
    groups: dict[tuple[object, ...], dict[int, NewUnits]] = {}
    for position, task in tasks.items():
        alike = replace(task.demand, minimum=0, maximum=0), task.period, task.without, task.only
        groups.setdefault(alike, {})[position] = task
    yield from groups.values()


def _side_by_side(
    snapshot: Snapshot, alike: Mapping[int, NewUnits], terms: Terms, *, without: frozenset[int]
) -> Iterator[tuple[int, Mapping[int, int]]]:
    """Yield the units of each, by resource, beside those before it."""
    first = next(iter(alike.values()))
    smallest = min((task.demand for task in alike.values()), key=lambda demand: demand.units_together)
    limit = sum(task.demand.maximum for task in alike.values()) + SAMPLE
    found = find(
        snapshot,
        smallest,
        first.span,
        seed=terms.seed,
        without=without | first.without,
        only=first.only,
        limit=limit,
    )
    ordered = order_of(found, smallest, first.span, seed=terms.seed)
    ids = [candidate.resource_id for candidate in ordered]
    free = np.array([candidate.units for candidate in ordered], dtype=np.int64)
    for position, task in alike.items():
        taken = _take(free, task.demand)
        free = free - np.where(taken > 0, free, 0) if task.demand.exclusive else free - taken
        yield position, {ids[index]: int(taken[index]) for index in np.flatnonzero(taken)}


def _take(free: Ints, demand: Demand) -> Ints:
    """Return how many units of a demand each resource gets, in order, of those that have so much room left."""
    if demand.spread is Spread.AFFINITY:
        enough = free >= demand.maximum
        index = int(np.argmax(enough)) if enough.any() else int(np.argmax(free)) if len(free) else -1
        taken = np.zeros_like(free)
        if index >= 0 and free[index] >= demand.minimum:
            taken[index] = min(int(free[index]), demand.maximum)
        return taken
    units = np.minimum(free, 1) if demand.spread is Spread.ANTI_AFFINITY else free
    taken_in_order: Ints = np.diff(np.minimum(np.cumsum(units), demand.maximum), prepend=0)
    return taken_in_order
