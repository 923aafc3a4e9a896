"""The part of a large inventory that the exact search considers: resources for wishes, and for plans in their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tenure.domain.allocation import Allocation, Demand
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.resources.contract import ResourceTypes
from tenure.services.planning.demands import demand_of
from tenure.services.planning.wishes import Wish
from tenure.store.conditions import Fixed
from tenure.store.database import Transaction

#: How many free resources, and how many with plans in the way, are considered for all wishes together.
FOR_WISHES = 12
#: How many of each are considered for a plan in the way.
FOR_PLAN = 2
#: For how many wishes and plans resources are looked up.
MOST_LOOKED_UP = 24


@dataclass(frozen=True, slots=True)
class Affected:
    """Resources of an inventory, and the plans that are in the way of wishes: by reservation and period."""

    resource_ids: Sequence[int]
    plans: Collection[tuple[str, Period]]


def find_affected(
    tx: Transaction,
    types: ResourceTypes,
    wishes: Sequence[Wish],
    *,
    now: datetime,
    notice: timedelta,
    limit: int,
    is_over: Callable[[], bool],
) -> Affected:
    """Return a bounded number of resources for these wishes: free ones, and those that plans can make free.

    Plans on the latter must go elsewhere, so resources for these plans follow, level by level. All other plans stay. It
    ends early when the time ``is_over``.
    """
    chosen: dict[int, None] = {}
    wishing = {wish.reservation_id for wish in wishes}
    fixed = Fixed(now + notice if notice else None)
    places = max(1, FOR_WISHES // len(wishes))
    needs: deque[tuple[Demand, Period, int]] = deque()
    known: set[tuple[Demand, Period]] = set()
    in_the_way: set[tuple[str, Period]] = set()

    def make_way(plans: Iterable[Allocation]) -> None:
        """Look up resources for these plans, too."""
        moving = [plan for plan in plans if plan.reservation_id not in wishing]
        reservations = tx.leases.reservations_by_ids({plan.reservation_id for plan in moving})
        for plan in moving:
            in_the_way.add((plan.reservation_id, plan.period))
            demand = replace(demand_of(types, reservations[plan.reservation_id]), minimum=1, maximum=1, named=())
            if (demand, plan.period) not in known:
                known.add((demand, plan.period))
                needs.append((demand, plan.period, FOR_PLAN))

    allocations, _ = tx.allocations.with_versions(sorted(wishing))
    chosen.update((allocation.resource_id, None) for allocation in allocations)
    for wish in wishes:
        demand = wish.demand
        chosen.update(
            (named, None) for named in tx.resources.ids_of(demand.inventory, demand.named, region=demand.region)
        )
        needs.append((replace(demand, named=()), wish.span, places))
    make_way(
        allocation
        for allocation in tx.allocations.not_over(list(chosen), now=now)
        if allocation.state is AllocationState.PLANNED
        and allocation.period.start > now + notice
        and any(wish.span.overlaps(allocation.period) for wish in wishes)
    )
    looked_up = 0
    while needs and len(chosen) < limit and looked_up < MOST_LOOKED_UP and not is_over():
        demand, period, most = needs.popleft()
        looked_up += 1
        few = replace(demand, maximum=max(demand.minimum, min(demand.maximum, most)))
        free = tx.allocations.candidates(few, period, now=now, turn=0, without=chosen, limit=most)
        chosen.update((candidate.resource_id, None) for candidate in free[:most])
        is_for_wish = looked_up <= len(wishes)
        if is_for_wish or not free:
            blocked = tx.allocations.blocked_by_plans(few, period, now=now, without=chosen, fixed=fixed, limit=most)
            chosen.update(dict.fromkeys(blocked))
            make_way(plan for _, plans in blocked.values() for plan in plans)
    return Affected(list(chosen)[:limit], in_the_way)
