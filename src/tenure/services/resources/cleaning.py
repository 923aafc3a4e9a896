"""Releasing allocations, and the cleaning time after that."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from zlib import crc32

from tenure.domain.actor import ENGINE
from tenure.domain.allocation import Allocation, Demand, units_by_resource
from tenure.domain.lease import AllocationState, EventStatus, EventType
from tenure.domain.period import ENDLESS, Period
from tenure.domain.requirement import Expression
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules, columns_of, write_history
from tenure.services.events.late_starts import notify_late
from tenure.services.events.payloads import StartPayload
from tenure.services.planning.demands import demand_of
from tenure.services.planning.planner import Planner
from tenure.services.resources.naming import reason_about
from tenure.store.database import Transaction

#: The share of the cleaning time that a late release may cost: a teardown takes a moment.
TOLERANCE = 0.1


def release(
    tx: Transaction,
    types: ResourceTypes,
    rules: Rules,
    reservation_ids: Collection[str],
    *,
    now: datetime,
    only: Collection[int] | None = None,
) -> None:
    """Release the allocations of these reservations, or ``only`` some of them; cleaning begins now.

    If a release is so late that the next lease would get the resource before it is clean, the cleaning time is
    extended. Plans in the way move elsewhere; if there is no room for a plan, its lease starts later.
    """
    until = now + rules.cleaning_time
    enough = until - rules.cleaning_time * TOLERANCE
    late = [
        allocation
        for allocation in tx.allocations.of_reservations(reservation_ids)
        if allocation.state is AllocationState.HELD
        and allocation.period.end < enough
        and (only is None or allocation.id in only)
    ]
    tx.allocations.release(reservation_ids, until=until, only=only)
    if not late or not rules.cleaning_time:
        return
    planner = Planner(tx, types, now=now, turn=crc32(late[0].reservation_id.encode()), notice=rules.preemption_notice)
    reservations = tx.leases.reservations_by_ids({allocation.reservation_id for allocation in late})
    allocations_by_end: dict[tuple[str, datetime], list[Allocation]] = {}
    for allocation in late:
        if allocation.period.end != ENDLESS:
            allocations_by_end.setdefault((allocation.reservation_id, allocation.period.end), []).append(allocation)
    for (reservation_id, end), allocations in allocations_by_end.items():
        demand = demand_of(types, reservations[reservation_id])
        demand = replace(demand, expression=Expression(), required=frozenset(), forbidden=frozenset())  # it has matched
        _clean(tx, types, planner, rules, allocations, demand, Period(max(end, now), until), now=now)


def _clean(
    tx: Transaction,
    types: ResourceTypes,
    planner: Planner,
    rules: Rules,
    allocations: Sequence[Allocation],
    demand: Demand,
    period: Period,
    *,
    now: datetime,
) -> None:
    """Lengthen allocations of a reservation throughout the period in which their resources are cleaned.

    All at once if nothing else is planned there. Otherwise one by one, unless cleaning would take all the time of a
    later lease.
    """
    units = units_by_resource(allocations)
    # The allocations have ended by then, so none of this reservation must be ignored.
    good = tx.allocations.still_good(demand, period, units, ignoring=None, keep_unreservable=True)
    planner.touch(good)
    free = [allocation for allocation in allocations if allocation.resource_id in good]
    tx.allocations.lengthen(free, period.end, now=now)
    for allocation in allocations:
        if allocation.resource_id not in good:
            _clean_behind_plans(tx, types, planner, rules, allocation, demand, period, now=now)


def _clean_behind_plans(
    tx: Transaction,
    types: ResourceTypes,
    planner: Planner,
    rules: Rules,
    allocation: Allocation,
    demand: Demand,
    period: Period,
    *,
    now: datetime,
) -> None:
    room = {allocation.resource_id: allocation.units}

    def is_free() -> bool:
        versions = tx.allocations.still_good(demand, period, room, ignoring=None, keep_unreservable=True)
        planner.touch(versions)
        return bool(versions)

    if not is_free() and not planner.clear(demand, period, room, ignoring=None, without=room):
        plans = tx.allocations.plans_on(allocation.resource_id, period)
        if any(plan.period.end - rules.cleaning_time <= period.end for plan in plans):
            return
        for plan in plans:
            _start_later(tx, types, plan, period.end, now=now)
            if is_free():
                break
    if is_free():
        tx.allocations.lengthen([allocation], period.end, now=now)


def _start_later(tx: Transaction, types: ResourceTypes, plan: Allocation, until: datetime, *, now: datetime) -> None:
    """Delay a plan, and the start of its lease, until its resource is clean; not if the lease has started."""
    reservation = tx.leases.reservations_by_ids([plan.reservation_id])[plan.reservation_id]
    lease = tx.leases.get(reservation.lease_id, lock=True)
    start = lease.event(EventType.START) if lease is not None else None
    if lease is None or start is None or start.status is not EventStatus.UNDONE:
        return
    stored = tx.events.get(start.id)
    payload = replace(StartPayload.of(stored), not_before=until)
    tx.allocations.delay(plan, until)
    tx.events.change([start.id], now=now, ready_at=until, payload=payload.to_json())
    [resource] = tx.resources.by_ids([plan.resource_id]).values()
    late = f"was given back late, and is cleaned until {until:%Y-%m-%d %H:%M:%S} UTC."
    reason = reason_about(types, reservation, resource, late)
    tx.leases.change(lease, now=now, **columns_of(reason))
    write_history(tx, lease.id, "wait", lease.status, lease.status, actor=ENGINE, now=now, reason=reason)
    delayed = tx.leases.get(lease.id)
    if delayed is not None:
        notify_late(tx, start.id, delayed, now=now, until=until)
