"""Revised plans: a reservation of a lease that has not started asks for something else, or for another time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tenure.domain.allocation import Allocation, Demand, Spread, units_by_resource
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.planning.moving import relocate
from tenure.planning.new_units import allocate
from tenure.planning.outcomes import NoRoom
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import NewUnits, Revision
from tenure.planning.terms import Terms


def revise(snapshot: Snapshot, revision: Revision, terms: Terms) -> Snapshot | NoRoom:
    """Return the snapshot with what a reservation asks for now.

    It keeps the resources that still fit, releases the others, and gets the missing ones. A change that asks for no
    more, and for no time that it did not have, keeps its resources even if they do not fit any more.
    """
    plans = _where_they_are(snapshot, revision)
    revision = replace(revision, plans=plans)
    beside = snapshot.without(plans)
    spans = {plan.id: revision.span_of(plan) for plan in plans}
    if revision.adds_no_time:
        periods = _within(revision.span, plans)
    else:
        periods = {plan.id: spans[plan.id] for plan in plans if plan.period.covers(spans[plan.id])}
    if plans and len(periods) == len(plans) and _has_enough(snapshot, revision):
        return _keep(snapshot, revision, periods, terms)
    if revision.demand.exclusive:
        return _keep_whole(beside, revision, terms)
    planned = allocate(beside, revision.anew, terms)  # on the same resources if these are still the best ones
    if (
        isinstance(planned, NoRoom)
        and plans
        and _has_enough(snapshot, revision)
        and _all_can_last(beside, revision, spans)
    ):
        return _keep(snapshot, revision, spans, terms)
    return planned


def _where_they_are(snapshot: Snapshot, revision: Revision) -> tuple[Allocation, ...]:
    """Return the plans of a revision, which may have moved for other reservations of its lease."""
    rows = {snapshot.row_of(plan.resource_id) for plan in revision.plans} | snapshot.replaced.keys()
    return tuple(
        allocation
        for row in sorted(rows)
        for allocation in snapshot.on(row)
        if allocation.reservation_id == revision.reservation_id and allocation.state is AllocationState.PLANNED
    )


def _all_can_last(beside: Snapshot, revision: Revision, spans: Mapping[int, Period]) -> bool:
    """Whether all plans can last so long where they are: also on resources that are given back late, or have shrunk.

    A new reservation could not have such a resource. Only the time that a plan gains needs room.
    """
    matching = beside.catalogue.matching(revision.demand.of_units(1))
    after = beside
    for plan in revision.plans:
        lasting = revision.revised(plan, spans[plan.id], plan.units)
        gained = [replace(lasting, period=period) for period in lasting.period.without(plan.period)]
        if not matching[beside.row_of(plan.resource_id)] or not all(map(after.has_room_for, gained)):
            return False
        after = after.with_([lasting])
    return True


def _has_enough(snapshot: Snapshot, revision: Revision) -> bool:
    """Whether the plans of a reservation meet the new demand, apart from the period."""
    before, demand = revision.before, revision.demand
    if sum(plan.units for plan in revision.plans) < demand.minimum or not demand.is_within(before):
        return False
    matching = snapshot.catalogue.matching(demand.of_units(1), reservable=False)  # a provider may refuse smaller units
    return demand.amounts == before.amounts or all(
        matching[snapshot.row_of(plan.resource_id)] for plan in revision.plans
    )


def _keep(snapshot: Snapshot, revision: Revision, periods: Mapping[int, Period], terms: Terms) -> Snapshot | NoRoom:
    """Keep as many units as the demand asks for, each plan for its period by id, and release the rest.

    Named resources are retained first, then those that fit. Plans on resources that do not fit move if there is room
    elsewhere, and stay otherwise. Further units are allocated for the whole time.
    """
    demand, beside = revision.demand, snapshot.without(revision.plans)
    longest = Period(min(period.start for period in periods.values()), max(period.end for period in periods.values()))
    good = _fitting(beside, revision, longest)
    named = _named(snapshot, demand)
    left = demand.maximum
    retained: list[Allocation] = []
    for plan in sorted(revision.plans, key=lambda plan: (plan.resource_id not in named, plan.resource_id not in good)):
        units = min(plan.units, left)
        left -= units
        if units:
            retained.append(revision.revised(plan, periods[plan.id], units))
    after = beside.with_(retained)
    taken = frozenset(plan.resource_id for plan in retained)
    for plan in retained:
        if plan.resource_id not in good and after.has(plan):  # it may have moved along with another one
            after = relocate(after, plan, demand, terms, without=taken) or after
    if not left or demand.spread is Spread.AFFINITY:
        return after
    more = replace(demand, minimum=0, maximum=left)
    return allocate(after, replace(revision.anew, demand=more, without=_resources_of(after, revision)), terms)


def _resources_of(snapshot: Snapshot, revision: Revision) -> frozenset[int]:
    """Return the resources on which planning has put allocations of the reservation."""
    there = (allocation for allocations in snapshot.replaced.values() for allocation in allocations)
    return frozenset(
        allocation.resource_id for allocation in there if allocation.reservation_id == revision.reservation_id
    )


def _keep_whole(beside: Snapshot, revision: Revision, terms: Terms) -> Snapshot | NoRoom:
    """Keep the whole resources that are free in the new time, release the others, and allocate missing ones.

    ``beside`` is the snapshot without the plans of the reservation.
    """
    demand = revision.demand
    mine = {plan.resource_id: plan for plan in revision.plans}
    spans = {resource_id: revision.span_of(plan) for resource_id, plan in mine.items()}
    start = max((span.start for span in spans.values()), default=revision.period.start)
    good = _fitting(beside, revision, replace(revision.period, start=start))
    named = _named(beside, demand)
    lost = len(demand.named) - len(named & good)  # there is room for them, so that a refusal says that they are missing
    retained = sorted(good, key=lambda resource_id: (resource_id not in named, resource_id))
    retained = retained[: max(0, demand.maximum - lost)]
    after = beside.with_([revision.revised(mine[resource_id], spans[resource_id], 1) for resource_id in retained])
    missing = demand.maximum - len(retained)
    if not missing:
        return after
    rest = NewUnits(
        revision.reservation_id,
        replace(demand, minimum=max(0, demand.minimum - len(retained)), maximum=missing),
        revision.period,
        without=frozenset(retained),
        position=revision.position,
        requested=demand.minimum,
    )
    return allocate(after, rest, terms)


def _fitting(beside: Snapshot, revision: Revision, period: Period) -> frozenset[int]:
    """Return the resources of the plans that a new reservation could have, with as many units, during a period."""
    portion = revision.demand.of_units(1)
    matching = beside.catalogue.matching(portion)
    return frozenset(
        resource_id
        for resource_id, units in units_by_resource(revision.plans).items()
        for row in [beside.row_of(resource_id)]
        if matching[row] and beside.room_on(row, portion, period, overdue=False) >= (1 if portion.exclusive else units)
    )


def _named(snapshot: Snapshot, demand: Demand) -> frozenset[int]:
    return frozenset(snapshot.catalogue.ids_named(demand.region, demand.named))


def _within(period: Period, plans: Iterable[Allocation]) -> dict[int, Period]:
    """Return the time of each plan that lies in a period, by id, if there is any."""
    times = {plan.id: (max(plan.period.start, period.start), min(plan.period.end, period.end)) for plan in plans}
    return {plan_id: Period(start, end) for plan_id, (start, end) in times.items() if start < end}
