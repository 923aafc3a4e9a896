"""New units of a reservation: where there is room, or where plans make room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tenure.domain.allocation import Spread, choose
from tenure.planning.candidates import find
from tenure.planning.moving import Vacancy, add_units, clear, move_another_first
from tenure.planning.outcomes import NoRoom
from tenure.planning.shortfalls import is_hopeless
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import NewUnits
from tenure.planning.terms import Terms


def allocate(snapshot: Snapshot, task: NewUnits, terms: Terms) -> Snapshot | NoRoom:
    """Return the snapshot with the new units; plans move if that makes room for them."""
    demand, span = task.demand, task.span
    if not demand.maximum:
        return snapshot
    terms.check()
    cleared = _clear_named(snapshot, task, terms)
    found = find(cleared, demand, span, seed=terms.seed, without=task.without, only=task.only)
    units = Counter({slot.resource_id: slot.units for slot in choose(found, demand, span, seed=terms.seed)})
    if units.total() >= demand.minimum:
        return _with_all_named(cleared, task, units) or NoRoom(task, snapshot)
    moved = None if is_hopeless(snapshot, task) else _allocate_behind_plans(cleared, task, units, terms)
    return NoRoom(task, snapshot) if moved is None else _with_all_named(*moved) or NoRoom(task, snapshot)


def _clear_named(snapshot: Snapshot, task: NewUnits, terms: Terms) -> Snapshot:
    """Move plans off the resources that the demand names, as far as they are in the way and can move."""
    named = frozenset(snapshot.catalogue.ids_named(task.demand.region, task.demand.named)) - task.without
    if not named:
        return snapshot
    single = task.demand.of_units(1)
    free = {candidate.resource_id for candidate in find(snapshot, single, task.span, seed=terms.seed, only=named)}
    taken = named - free
    vacancy = Vacancy(single, task.span, without=task.without, only=taken, closed=task.without | named)
    for resource_id in sorted(taken):
        snapshot = clear(snapshot, vacancy, resource_id, terms) or snapshot
    return snapshot


def _allocate_behind_plans(
    snapshot: Snapshot, task: NewUnits, units: Mapping[int, int], terms: Terms
) -> tuple[Snapshot, NewUnits, Mapping[int, int]] | None:
    """Allocate these units, which are too few, and more units for which other plans move.

    If plans can move only to room that these units would take, a plan moves first, and the units are others.
    """
    demand = task.demand
    missing = demand.minimum - sum(units.values())
    full = task.without | units.keys() if demand.spread is Spread.ANTI_AFFINITY else task.without
    vacancy = Vacancy(demand, task.span, task.reservation_id, without=full, only=task.only, state=task.state)
    beside = snapshot.allocate(task.reservation_id, demand, task.span, units, state=task.state)
    added = add_units(beside, vacancy, missing, terms)
    if added is not None:
        return added, task, {}
    if demand.spread is not Spread.ANY or demand.minimum == 1:
        return None
    found = move_another_first(snapshot, replace(vacancy, without=task.without), terms)
    return None if found is None else (found[0], task, {slot.resource_id: slot.units for slot in found[1]})


def _with_all_named(snapshot: Snapshot, task: NewUnits, units: Mapping[int, int]) -> Snapshot | None:
    """Return the snapshot with these units besides; None if a resource that the demand names is not among its own."""
    after = snapshot.allocate(task.reservation_id, task.demand, task.span, units, state=task.state)
    named = after.catalogue.ids_named(task.demand.region, task.demand.named)
    has_all = all(
        any(allocation.reservation_id == task.reservation_id for allocation in after.on(after.row_of(resource_id)))
        for resource_id in named
        if resource_id not in task.without
    )
    return after if has_all and len(named) >= len(task.demand.named) else None
