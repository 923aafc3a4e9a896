"""Until when a lease may be prolonged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime

from tenure.domain.allocation import Allocation
from tenure.domain.capacity import Capacity
from tenure.domain.lease import AllocationState, Lease, LeaseStatus
from tenure.domain.period import ENDLESS
from tenure.domain.zones import latest_within_days
from tenure.planning.room import free_until
from tenure.planning.steps import FOREVER, SECOND, moment, ticks, ticks_of
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.services.planning.demands import demand_of
from tenure.services.planning.index import AvailabilityIndex


class LookAhead:
    """Looks for what follows the allocations of a lease on their resources."""

    def __init__(self, index: AvailabilityIndex, types: ResourceTypes, rules: Rules) -> None:
        self._index = index
        self._types = types
        self._rules = rules

    def may_end_at(self, lease: Lease, allocations: Collection[Allocation]) -> datetime | None:
        """Return until when a lease can last on the resources that it has, while nothing else changes.

        None if nothing limits it, and for a lease that cannot be prolonged. More may be possible if plans move. A
        resource that does not serve its reservation any more limits it to its end, unless a running lease has it and it
        only takes no new leases. A lease whose plans have all lapsed has nothing that could last.
        """
        if lease.status not in {LeaseStatus.PENDING, LeaseStatus.ACTIVE}:
            return None
        if lease.reservations and not allocations:
            return lease.ends_at
        until = FOREVER
        view = self._index.view()
        demands = {
            reservation.id: demand_of(self._types, reservation).of_units(1) for reservation in lease.reservations
        }
        serving = {
            (reservation_id, state): view.catalogue.matching(demand, reservable=state is AllocationState.PLANNED)
            for reservation_id, demand in demands.items()
            for state in {allocation.state for allocation in allocations if allocation.reservation_id == reservation_id}
        }
        for allocation in allocations:
            row = view.catalogue.rows.get(allocation.resource_id)
            is_ending = allocation.state is not AllocationState.RELEASED and allocation.period.end != ENDLESS
            if row is not None and is_ending and not serving[allocation.reservation_id, allocation.state][row]:
                until = min(until, ticks(allocation.period.end + self._rules.cleaning_time))
        for (resource_id, end), (amounts, exclusive) in _ending(allocations).items():
            row = view.catalogue.rows.get(resource_id)
            if row is not None:
                until = min(until, free_until(view, row, None if exclusive else amounts, ticks(end)))
        limits = []
        if until != FOREVER:
            last = until - ticks_of(self._rules.cleaning_time)
            limits.append(moment(last // SECOND * SECOND))
        if self._rules.longest_lease is not None:
            limits.append(latest_within_days(lease.starts_at, self._rules.longest_lease))
        return max(lease.ends_at, min(limits)) if limits else None


def _ending(allocations: Collection[Allocation]) -> dict[tuple[int, datetime], tuple[Capacity, bool]]:
    """Return what the allocations that end take of each resource until when, and whether it is the whole resource."""
    taken: dict[tuple[int, datetime], tuple[Capacity, bool]] = defaultdict(lambda: (Capacity(), False))
    for allocation in allocations:
        if allocation.state is not AllocationState.RELEASED and allocation.period.end != ENDLESS:
            amounts, exclusive = taken[allocation.resource_id, allocation.period.end]
            both = amounts + allocation.amounts, exclusive or allocation.exclusive
            taken[allocation.resource_id, allocation.period.end] = both
    return taken
