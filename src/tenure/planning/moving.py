"""Moving plans: what is planned and has not begun makes room on its resource for something else.

Each function returns the snapshot after its moves, or None if it finds none. What is considered is bounded:
``ROOM_SAMPLE`` resources or plans at each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

import numpy as np

from tenure.domain.allocation import Allocation, Candidate, Demand, Selection, Spread, choose
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.planning.candidates import bounds_of, eligible, find
from tenure.planning.room import units_beside
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import Mask, ticks
from tenure.planning.terms import Terms
from tenure.planning.timeline import Uses

#: How many resources are considered when plans must move to make room.
ROOM_SAMPLE = 32


@dataclass(frozen=True, slots=True)
class Vacancy:
    """Room for units of a demand in a period.

    Plans of the reservation ``asking`` do not move for it, and its new units get the ``state``. No room is made on the
    resources ``without``; with ``only``, just on these. No plan moves to the resources that are ``closed``.
    """

    demand: Demand
    period: Period
    asking: str = ""
    without: frozenset[int] = frozenset()
    only: frozenset[int] | None = None
    closed: frozenset[int] = frozenset()
    state: AllocationState = AllocationState.PLANNED

    @property
    def has_a_single_unit(self) -> bool:
        """Whether a resource serves a single unit at most."""
        return self.demand.exclusive or self.demand.spread is Spread.ANTI_AFFINITY


def blocked_by_plans(snapshot: Snapshot, vacancy: Vacancy, terms: Terms) -> list[int]:
    """Return the resources that would have room if plans moved, those with the fewest allocations in the way first."""
    catalogue, (start, end) = snapshot.catalogue, bounds_of(vacancy.period)
    matching = catalogue.matching(vacancy.demand)
    chosen = eligible(snapshot, matching, without=vacancy.without, only=vacancy.only)
    asking = vacancy.asking.encode()

    def may_move(uses: Uses) -> Mask:
        found: Mask = uses.planned & (uses.reservations != asking)
        return found if terms.fixed_until is None else found & (uses.starts > ticks(terms.fixed_until))

    overlapping = snapshot.uses_where(lambda uses: (uses.starts < end) & (uses.ends > start))
    counts = np.bincount(overlapping.rows, minlength=len(chosen))
    chosen &= np.bincount(overlapping.rows[may_move(overlapping)], minlength=len(chosen)) > 0
    rows, units = units_beside(snapshot, vacancy.demand, chosen, start, end, counts=lambda uses: ~may_move(uses))
    rows = rows[units >= vacancy.demand.units_together]
    ids = catalogue.id_array[rows]
    return [int(resource_id) for resource_id in ids[np.lexsort((ids, counts[rows]))]]


def add_units(snapshot: Snapshot, vacancy: Vacancy, missing: int, terms: Terms) -> Snapshot | None:
    """Return the snapshot with so many more units for the reservation that is asking, for which plans have moved."""
    for resource_id in islice(blocked_by_plans(snapshot, vacancy, terms), ROOM_SAMPLE + missing):
        while missing > 0:
            terms.check()
            cleared = clear(snapshot, vacancy, resource_id, terms)
            if cleared is None:
                break
            count = min(missing, units_on(cleared, vacancy, resource_id))
            snapshot = cleared.allocate(
                vacancy.asking, vacancy.demand, vacancy.period, {resource_id: count}, state=vacancy.state
            )
            missing -= count
            if vacancy.has_a_single_unit:
                break
        if not missing:
            return snapshot
    return None


def clear(snapshot: Snapshot, vacancy: Vacancy, resource_id: int, terms: Terms) -> Snapshot | None:
    """Move plans off a resource until a unit has room there, or as many units as must be together."""
    plans = [
        allocation
        for allocation in sorted(snapshot.on(snapshot.row_of(resource_id)), key=_age)
        if terms.may_move(allocation)
        and allocation.reservation_id != vacancy.asking
        and allocation.period.overlaps(vacancy.period)
    ]
    if not _has_room(snapshot.without(plans), vacancy, resource_id):
        return None
    demands = terms.demands_of({plan.reservation_id for plan in plans})
    closed = vacancy.closed
    if vacancy.demand.exclusive:
        for plan in plans:
            if snapshot.has(plan):
                moved = move(snapshot, plan, demands[plan.reservation_id], terms, without=closed)
                if moved is None:
                    return None
                snapshot = moved
        return snapshot
    if len(plans) > 1:
        for plan in plans[:ROOM_SAMPLE]:
            if _has_room(snapshot.without([plan]), vacancy, resource_id):
                moved = move(snapshot, plan, demands[plan.reservation_id], terms, without=closed)
                if moved is not None:
                    return moved
    for plan in plans:
        if not snapshot.has(plan):
            continue
        moved = _move_some(snapshot, plan, demands[plan.reservation_id], terms, without=closed)
        if moved is not None:
            snapshot = moved
            if _has_room(snapshot, vacancy, resource_id):
                return snapshot
    return None


def units_on(snapshot: Snapshot, vacancy: Vacancy, resource_id: int) -> int:
    """Return how many units of the demand may go to a resource and have room there."""
    room = snapshot.room_on(snapshot.row_of(resource_id), vacancy.demand, vacancy.period)
    return min(room, 1) if vacancy.demand.spread is Spread.ANTI_AFFINITY else room


def move(
    snapshot: Snapshot, plan: Allocation, demand: Demand, terms: Terms, *, without: Collection[int] = ()
) -> Snapshot | None:
    """Move a plan as a whole to another resource that has room for it from now on, but to none ``without``."""
    moving = moving_with(snapshot, plan, demand)
    selections = _best(_targets(snapshot, moving, demand, terms, without=without), moving, demand, terms)
    return _put(snapshot, moving, selections[0].resource_id, terms) if selections else None


def move_behind_others(
    snapshot: Snapshot, plan: Allocation, demand: Demand, terms: Terms, *, without: Collection[int] = ()
) -> Snapshot | None:
    """Move a plan as a whole to a resource where other plans make room for it."""
    if plan.period.end <= terms.now or is_named(snapshot, plan, demand):
        return None
    moving = moving_with(snapshot, plan, demand)
    closed = frozenset({plan.resource_id, *without})
    vacancy = Vacancy(
        demand.of_units(_units(moving)),
        rest_of(moving, terms),
        without=closed | _apart_from(snapshot, plan, demand),
        closed=closed,
    )
    for resource_id in islice(blocked_by_plans(snapshot, vacancy, terms), ROOM_SAMPLE + _units(moving)):
        terms.check()
        cleared = clear(snapshot, vacancy, resource_id, terms)
        if cleared is not None:
            return _put(cleared, moving, resource_id, terms)
    return None


def scatter(
    snapshot: Snapshot,
    plan: Allocation,
    demand: Demand,
    terms: Terms,
    *,
    without: Collection[int] = (),
    at_least: int | None = None,
) -> Snapshot | None:
    """Move the units of a plan to several resources: all of them, or as many as have room but ``at_least`` so many.

    Only units that may lie anywhere scatter.
    """
    if demand.spread is not Spread.ANY or not terms.is_open(plan):
        return None
    terms.check()
    rest = rest_of([plan], terms)
    some = replace(demand, minimum=1, maximum=plan.units, named=())
    found = find(snapshot, some, rest, seed=terms.seed, without={plan.resource_id, *without})
    units = {selection.resource_id: selection.units for selection in choose(found, some, rest, seed=terms.seed)}
    count = sum(units.values())
    if count < (plan.units if at_least is None else at_least):
        return None
    return _take_off(snapshot, plan, count, demand, terms).allocate(
        plan.reservation_id, demand, rest, units, booked_from=_booked_from(plan, terms)
    )


def scatter_behind_others(
    snapshot: Snapshot, plan: Allocation, demand: Demand, terms: Terms, *, without: Collection[int] = ()
) -> Snapshot | None:
    """Move the units of a plan to several resources, to some of them where other plans make room."""
    if demand.spread is not Spread.ANY or not terms.is_open(plan):
        return None
    some = scatter(snapshot, plan, demand, terms, without=without, at_least=1)
    beside = some or snapshot
    left = next(
        (allocation for allocation in beside.on(beside.row_of(plan.resource_id)) if allocation.id == plan.id), None
    )
    if left is None:
        return some
    closed = frozenset({plan.resource_id, *without})
    rest = rest_of([left], terms)
    vacancy = Vacancy(
        replace(demand, minimum=1, maximum=left.units, named=()),
        rest,
        plan.reservation_id,
        without=closed,
        closed=closed,
    )
    added = add_units(beside, vacancy, left.units, terms)
    if added is not None:
        return added.without([left])
    whole = replace(
        vacancy, demand=replace(demand, minimum=plan.units, maximum=plan.units, named=()), period=rest_of([plan], terms)
    )
    found = move_another_first(snapshot, whole, terms)
    if found is None:
        return None
    moved, selections = found
    units = {selection.resource_id: selection.units for selection in selections}
    return moved.without([plan]).allocate(
        plan.reservation_id, demand, whole.period, units, booked_from=_booked_from(plan, terms)
    )


def relocate(
    snapshot: Snapshot, plan: Allocation, demand: Demand, terms: Terms, *, without: Collection[int]
) -> Snapshot | None:
    """Move a plan as a whole, or its units to several resources, or either of these by moving other plans."""
    for way in (move, scatter, move_behind_others, scatter_behind_others):
        moved = way(snapshot, plan, demand, terms, without=without)
        if moved is not None:
            return moved
    return None


def duplicate(
    snapshot: Snapshot,
    allocation: Allocation,
    demand: Demand,
    period: Period,
    terms: Terms,
    *,
    without: Collection[int] = (),
) -> tuple[Snapshot, int] | None:
    """Allocate as many units again, in use at once, on another resource for a period; other plans move for that.

    Units that stay together are allocated again together. Returns the snapshot and the resource, or None without room.
    """
    if is_named(snapshot, allocation, demand):
        return None
    moving = moving_with(snapshot, allocation, demand)
    portion, span = demand.of_units(_units(moving)), demand.span(period)
    closed = frozenset({allocation.resource_id, *without})
    excluded = closed | _apart_from(snapshot, allocation, demand)
    found = find(snapshot, portion, span, seed=terms.seed, without=excluded)
    for slot in choose(found, portion, span, seed=terms.seed):
        return _allocate_again(snapshot, moving, demand, span, slot.resource_id), slot.resource_id
    vacancy = Vacancy(portion, span, without=excluded, closed=closed)
    for resource_id in islice(blocked_by_plans(snapshot, vacancy, terms), ROOM_SAMPLE):
        terms.check()
        cleared = clear(snapshot, vacancy, resource_id, terms)
        if cleared is not None:
            return _allocate_again(cleared, moving, demand, span, resource_id), resource_id
    return None


def _allocate_again(
    snapshot: Snapshot, allocations: Sequence[Allocation], demand: Demand, span: Period, resource_id: int
) -> Snapshot:
    for allocation in allocations:
        snapshot = snapshot.allocate(
            allocation.reservation_id, demand, span, {resource_id: allocation.units}, state=AllocationState.HELD
        )
    return snapshot


def move_another_first(
    snapshot: Snapshot, vacancy: Vacancy, terms: Terms
) -> tuple[Snapshot, Sequence[Selection]] | None:
    """Move a plan so that all units of the demand fit; return the snapshot, and the selections of the units.

    The plan may take the room of some units if it makes room for more elsewhere. A bounded number of plans is
    considered, each with the target that has room for the fewest units.
    """
    demand, period = vacancy.demand, vacancy.period
    blocked = list(islice(blocked_by_plans(snapshot, vacancy, terms), ROOM_SAMPLE))
    if not blocked:
        return None
    found = find(snapshot, demand, period, seed=terms.seed, without=vacancy.without, only=vacancy.only)
    free = Counter({candidate.resource_id: candidate.units for candidate in found})
    missing = demand.minimum - free.total()
    sufficient = list(islice(_plans_that_gain(snapshot, vacancy, blocked, free, missing, terms), ROOM_SAMPLE))
    demands = terms.demands_of({plan.reservation_id for plan, _ in sufficient})
    for plan, gain in sufficient:
        plan_demand = demands[plan.reservation_id]
        moving = moving_with(snapshot, plan, plan_demand)
        target, loss = _cheapest_target(snapshot, moving, plan_demand, vacancy, free, terms)
        if target is None or gain - loss < missing:
            continue
        moved = _put(snapshot, moving, target.resource_id, terms)
        again = find(moved, demand, period, seed=terms.seed, without=vacancy.without, only=vacancy.only)
        selections = choose(again, demand, period, seed=terms.seed)
        if sum(selection.units for selection in selections) >= demand.minimum:
            return moved, selections
    return None


def _plans_that_gain(
    snapshot: Snapshot, vacancy: Vacancy, blocked: Collection[int], free: Counter[int], missing: int, terms: Terms
) -> Iterator[tuple[Allocation, int]]:
    """Yield the plans on these resources whose moving alone makes room for so many units, and for how many each."""
    for resource_id in blocked:
        row = snapshot.row_of(resource_id)
        for plan in sorted(snapshot.on(row), key=_age):
            if not (
                terms.may_move(plan) and plan.reservation_id != vacancy.asking and plan.period.overlaps(vacancy.period)
            ):
                continue
            gain = snapshot.without([plan]).room_on(row, vacancy.demand, vacancy.period) - free[resource_id]
            if gain >= missing:
                yield plan, gain


def _cheapest_target(
    snapshot: Snapshot,
    moving: Sequence[Allocation],
    demand: Demand,
    vacancy: Vacancy,
    free: Counter[int],
    terms: Terms,
) -> tuple[Candidate | None, int]:
    """Return the target of plans that takes the room of the fewest units that are needed, and their number."""

    def loss(target: Candidate) -> int:
        before = free[target.resource_id]
        row = snapshot.row_of(target.resource_id)
        there = [replace(plan, resource_id=target.resource_id, period=rest_of([plan], terms)) for plan in moving]
        return before - min(before, snapshot.with_(there).room_on(row, vacancy.demand, vacancy.period))

    targets = _targets(snapshot, moving, demand, terms, without=vacancy.closed)
    target = min(targets, key=loss, default=None)
    return target, 0 if target is None else loss(target)


def _has_room(snapshot: Snapshot, vacancy: Vacancy, resource_id: int) -> bool:
    row = snapshot.row_of(resource_id)
    return snapshot.room_on(row, vacancy.demand, vacancy.period) >= vacancy.demand.units_together


def _move_some(
    snapshot: Snapshot, plan: Allocation, demand: Demand, terms: Terms, *, without: Collection[int]
) -> Snapshot | None:
    """Move a plan; or some of its units, if they may lie anywhere."""
    if demand.spread is not Spread.ANY:
        return move(snapshot, plan, demand, terms, without=without)
    return scatter(snapshot, plan, demand, terms, without=without, at_least=1)


def moving_with(snapshot: Snapshot, plan: Allocation, demand: Demand) -> list[Allocation]:
    """Return the plans that move with a plan, itself included: all on its resource of units that stay together."""
    if demand.spread is not Spread.AFFINITY:
        return [plan]
    there = snapshot.on(snapshot.row_of(plan.resource_id))
    return [
        allocation
        for allocation in there
        if allocation.reservation_id == plan.reservation_id and allocation.state is plan.state
    ]


def _targets(
    snapshot: Snapshot, moving: Sequence[Allocation], demand: Demand, terms: Terms, *, without: Collection[int]
) -> list[Candidate]:
    """Return a bounded number of other resources that have room for plans that move together, from now on."""
    plan = moving[0]
    if plan.period.end <= terms.now or is_named(snapshot, plan, demand):
        return []
    terms.check()
    closed = {plan.resource_id, *without, *_apart_from(snapshot, plan, demand)}
    return find(snapshot, demand.of_units(_units(moving)), rest_of(moving, terms), seed=terms.seed, without=closed)


def _best(
    targets: Sequence[Candidate], moving: Sequence[Allocation], demand: Demand, terms: Terms
) -> Sequence[Selection]:
    return choose(targets, demand.of_units(_units(moving)), rest_of(moving, terms), seed=terms.seed) if targets else ()


def _put(snapshot: Snapshot, moving: Sequence[Allocation], resource_id: int, terms: Terms) -> Snapshot:
    """Return the snapshot with these plans, from now on, on another resource, which has room for them."""
    there = [
        replace(
            allocation,
            resource_id=resource_id,
            period=rest_of([allocation], terms),
            booked_from=_booked_from(allocation, terms),
        )
        for allocation in moving
    ]
    return snapshot.without(moving).with_(there)


def _take_off(snapshot: Snapshot, plan: Allocation, count: int, demand: Demand, terms: Terms) -> Snapshot:
    """Return the snapshot with so many units less of a plan."""
    left = plan.units - count
    rest = snapshot.without([plan])
    if not left:
        return rest
    return rest.with_(
        [replace(plan, units=left, amounts=demand.amounts.times(left), booked_from=_booked_from(plan, terms))]
    )


def _units(moving: Sequence[Allocation]) -> int:
    return sum(allocation.units for allocation in moving)


def rest_of(moving: Sequence[Allocation], terms: Terms) -> Period:
    """Return the time from now on in which these plans take their resource."""
    return Period(
        max(terms.now, min(allocation.period.start for allocation in moving)),
        max(allocation.period.end for allocation in moving),
    )


def _booked_from(plan: Allocation, terms: Terms) -> datetime | None:
    """Return since when a plan in place of this one is booked, if this one was delayed; its past has lapsed."""
    return None if plan.booked_from is None else terms.now


def is_named(snapshot: Snapshot, plan: Allocation, demand: Demand) -> bool:
    """Whether the reservation names the resource of the plan, so that no other resource will do."""
    return bool(demand.named) and bool(
        snapshot.catalogue.named(demand.region, demand.named)[snapshot.row_of(plan.resource_id)]
    )


def _apart_from(snapshot: Snapshot, plan: Allocation, demand: Demand) -> frozenset[int]:
    """Return the resources of the reservation's other allocations if its units must be apart."""
    if demand.exclusive or demand.spread is not Spread.ANTI_AFFINITY:
        return frozenset()
    reservation = plan.reservation_id.encode()
    mine = snapshot.uses_where(lambda uses: (uses.reservations == reservation) & (uses.ids != plan.id))
    return frozenset(snapshot.catalogue.ids[row] for row in mine.rows)


def _age(allocation: Allocation) -> tuple[bool, int]:
    """Return a sort key: the order in which allocations were made, those of this search last."""
    return allocation.id < 0, abs(allocation.id)
