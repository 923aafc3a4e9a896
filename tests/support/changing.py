"""Changes of single allocations, as a plan makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from tenure.domain.allocation import Allocation, Demand
from tenure.domain.changes import Changes
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period


def moved(allocation: Allocation, resource_id: int, *, start: datetime | None = None) -> Changes:
    """Return the change to another resource, from then on. What was delayed is booked from then on, too."""
    period = allocation.period if start is None else Period(start, allocation.period.end)
    booked_from = None if allocation.booked_from is None else period.start
    return Changes(
        changed=[(allocation, replace(allocation, resource_id=resource_id, period=period, booked_from=booked_from))]
    )


def shrunk(allocation: Allocation, units: int, demand: Demand) -> Changes:
    """Return the change to fewer units."""
    return Changes(changed=[(allocation, replace(allocation, units=units, amounts=demand.amounts.times(units)))])


def rescheduled(*allocations: Allocation, to: Period) -> Changes:
    """Return the change to another period."""
    return Changes(changed=[(allocation, replace(allocation, period=to)) for allocation in allocations])


def delayed(plan: Allocation, until: datetime) -> Changes:
    """Return the change to a later start on the same resource; the plan stays booked from its first start on."""
    later = replace(plan, period=Period(until, plan.period.end), booked_from=plan.booked_from or plan.period.start)
    return Changes(changed=[(plan, later)])


def dropped(*allocations: Allocation) -> Changes:
    """Return the change that allocations go."""
    return Changes(dropped=allocations)


def added(
    reservation_id: str,
    units: Mapping[int, int],
    period: Period,
    demand: Demand,
    *,
    state: AllocationState = AllocationState.PLANNED,
    booked_from: datetime | None = None,
) -> Changes:
    """Return new allocations of a reservation: so many units by resource id."""
    return Changes(
        [
            Allocation(
                -number,
                resource_id,
                reservation_id,
                period,
                state,
                demand.amounts.times(count),
                demand.exclusive,
                count,
                booked_from,
            )
            for number, (resource_id, count) in enumerate(units.items(), start=1)
        ]
    )


def together(*several: Changes) -> Changes:
    """Return all of these changes."""
    return Changes(
        [allocation for changes in several for allocation in changes.added],
        [pair for changes in several for pair in changes.changed],
        [allocation for changes in several for allocation in changes.dropped],
    )
