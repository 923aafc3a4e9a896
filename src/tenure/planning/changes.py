"""The difference between two snapshots: what a plan changes in the ledger."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from tenure.domain.allocation import Allocation
from tenure.domain.changes import Changes
from tenure.domain.period import OVERDUE_MATTERS, TICK, Period
from tenure.planning.snapshot import Snapshot


def changes_of(before: Snapshot, after: Snapshot) -> Changes:
    """Return what differs between a snapshot and another one that planning has made of it.

    Allocations with negative ids are new. The versions are those of the resources that must not change meanwhile: on
    which something is taken.
    """
    old = {allocation.id: allocation for row in after.replaced for allocation in before.on(row)}
    new: dict[int, Allocation] = {}
    for allocation in chain.from_iterable(after.replaced.values()):
        if allocation.id in new:
            resource_ids = f"{new[allocation.id].resource_id} and {allocation.resource_id}"
            raise RuntimeError(f"the plan has allocation {allocation.id} twice, on resources {resource_ids}")
        new[allocation.id] = allocation
    added = [allocation for allocation in new.values() if allocation.id not in old]
    for allocation in added:
        if allocation.id >= 0:
            raise RuntimeError(
                f"the plan copies allocation {allocation.id}, which is of a resource that it has not changed"
            )
    changed = [
        (_as_booked(was, before), allocation)
        for allocation in new.values()
        if (was := old.get(allocation.id)) is not None
        and was is not allocation
        and was != allocation  # most are the same object
    ]
    taken_on = {allocation.resource_id for allocation in added}
    taken_on |= {now.resource_id for was, now in changed if _takes_more(was, now)}
    return Changes(
        added,
        changed,
        [allocation for allocation in old.values() if allocation.id not in new],
        {resource_id: int(after.versions[after.row_of(resource_id)]) for resource_id in sorted(taken_on)},
    )


def _as_booked(allocation: Allocation, before: Snapshot) -> Allocation:
    """Return an allocation without the time for which it counts although it is overdue."""
    if allocation.id not in before.overdue:
        return allocation
    period = allocation.period
    return replace(allocation, period=Period(period.start, period.end - OVERDUE_MATTERS - TICK))


def _takes_more(before: Allocation, after: Allocation) -> bool:
    """Whether an allocation takes something that it did not take before."""
    return (
        after.resource_id != before.resource_id
        or not before.amounts.fits(after.amounts)
        or not before.period.covers(after.period)
    )
