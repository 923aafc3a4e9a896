"""Allocations that last longer, each on its own resource."""

from __future__ import annotations

from dataclasses import replace

from tenure.domain.allocation import Allocation
from tenure.domain.period import Period
from tenure.planning.moving import Vacancy, clear
from tenure.planning.outcomes import NoRoom
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import Extension
from tenure.planning.terms import Terms


def extend(snapshot: Snapshot, task: Extension, terms: Terms) -> Snapshot | NoRoom:
    """Return the snapshot with the allocations lasting longer; plans in the way move.

    First those that have room, then those that plans must make way for, so that no plan moves in the way of another.
    """
    longer, lost = snapshot, []
    for allocation in task.allocations:
        gained = task.gained(allocation)
        if gained is None:
            continue
        row, portion = snapshot.row_of(allocation.resource_id), task.demand.of_units(allocation.units)
        if not snapshot.catalogue.matching(task.demand.of_units(1), reservable=False)[row]:
            return NoRoom(task, snapshot)  # the resource is not any more what was asked for
        beside = longer.without([allocation])
        if beside.room_on(row, portion, gained, overdue=False) >= portion.units_together:
            longer = beside.with_([_lasting(allocation, task)])
        else:
            lost.append((allocation, Vacancy(portion, gained, task.reservation_id)))
    closed = frozenset(allocation.resource_id for allocation, _ in lost)
    for allocation, vacancy in lost:
        beside = longer.without([allocation])
        cleared = clear(beside, replace(vacancy, closed=closed), allocation.resource_id, terms)
        if cleared is None:
            return NoRoom(task, snapshot)
        longer = cleared.with_([_lasting(allocation, task)])
    return longer


def _lasting(allocation: Allocation, task: Extension) -> Allocation:
    return replace(allocation, period=Period(allocation.period.start, task.until))
