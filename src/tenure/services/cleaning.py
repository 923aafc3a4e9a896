"""Giving back what reservations hold, and the time for cleaning after that."""

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
from tenure.services.context import Rules, columns_of, remember
from tenure.services.demands import demand_of
from tenure.services.naming import said_of
from tenure.services.planning import Planner
from tenure.store.database import Transaction
from tenure.store.events import StoredEvent

#: Which share of the time for cleaning may be lost because a resource was given back late: a teardown takes a moment.
TOLERANCE = 0.1
#: In the payload of a start: when its resources are clean.
NOT_BEFORE = "not_before"


def release(
    tx: Transaction,
    types: ResourceTypes,
    rules: Rules,
    reservation_ids: Collection[str],
    *,
    now: datetime,
    only: Collection[int] | None = None,
) -> None:
    """Give back what these reservations hold, or ``only`` some of these allocations; from now on it is cleaned.

    What is given back so late that it would be handed on before it is clean is kept from others for as long as it
    takes. Plans that are in the way move elsewhere; where there is no room for a plan, its lease starts later.
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
    alike: dict[tuple[str, datetime], list[Allocation]] = {}
    for allocation in late:
        if allocation.period.end != ENDLESS:
            alike.setdefault((allocation.reservation_id, allocation.period.end), []).append(allocation)
    for (reservation_id, end), allocations in alike.items():
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
    """Let allocations of a reservation last throughout the period, in which their resources are cleaned.

    All together where nothing else is there. One by one on the other resources, where plans are in the way: unless
    cleaning would take all the time of a lease behind it.
    """
    units = units_by_resource(allocations)
    # The allocations have ended by then, so that none of the reservation is to be left out.
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
    """Have a plan, and the start of its lease, wait until its resource is clean; not where the lease has begun."""
    reservation = tx.leases.reservations_by_ids([plan.reservation_id])[plan.reservation_id]
    lease = tx.leases.get(reservation.lease_id, lock=True)
    start = lease.event(EventType.START) if lease is not None else None
    if lease is None or start is None or start.status is not EventStatus.UNDONE:
        return
    stored = tx.events.get(start.id)
    payload = (stored.payload if stored is not None else None) or {}
    tx.allocations.shorten([plan.id], start=until)
    tx.events.change([start.id], now=now, ready_at=until, payload={**payload, NOT_BEFORE: until.isoformat()})
    [resource] = tx.resources.by_ids([plan.resource_id]).values()
    late = f"was given back late, and is cleaned until {until:%Y-%m-%d %H:%M:%S} UTC."
    reason = said_of(types, reservation, resource, late)
    tx.leases.change(lease, now=now, **columns_of(reason))
    remember(tx, lease.id, "wait", lease.status, lease.status, actor=ENGINE, now=now, reason=reason)


def cleaned_at(start: StoredEvent) -> datetime | None:
    """When what a lease starts on is clean, None where that was never asked for."""
    until = (start.payload or {}).get(NOT_BEFORE)
    return None if until is None else datetime.fromisoformat(until)
