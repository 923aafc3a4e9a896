"""Releasing allocations, and the cleaning time after that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from zlib import crc32

from tenure.domain.actor import ENGINE
from tenure.domain.allocation import Allocation, Demand
from tenure.domain.lease import AllocationState, EventStatus, EventType
from tenure.domain.period import ENDLESS, Period
from tenure.domain.requirement import Expression
from tenure.planning.changes import changes_of
from tenure.planning.moving import Vacancy, clear
from tenure.planning.snapshot import Snapshot
from tenure.planning.terms import Terms
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.services.events.late_starts import notify_late
from tenure.services.events.payloads import StartPayload
from tenure.services.notifications.records import columns_of, write_history
from tenure.services.planning.demands import demand_of
from tenure.services.planning.planning import Planning
from tenure.services.resources.naming import reason_about
from tenure.store.database import Transaction

#: The share of the cleaning time that a late release may cost: a teardown takes a moment.
TOLERANCE = 0.1


class Cleaner:
    """Releases allocations in the transactions of its callers."""

    def __init__(self, types: ResourceTypes, rules: Rules, planning: Planning) -> None:
        self._types = types
        self._rules = rules
        self._planning = planning

    def release(
        self, tx: Transaction, reservation_ids: Collection[str], *, now: datetime, only: Collection[int] | None = None
    ) -> None:
        """Release the allocations of these reservations, or ``only`` some of them; cleaning begins now.

        If a release is so late that the next lease would get the resource before it is clean, the cleaning time is
        extended. Plans in the way move elsewhere; if there is no room for a plan, its lease starts later.
        """
        until = now + self._rules.cleaning_time
        enough = until - self._rules.cleaning_time * TOLERANCE
        late = [
            allocation
            for allocation in tx.allocations.of_reservations(reservation_ids)
            if allocation.state is AllocationState.HELD
            and allocation.period.end < enough
            and (only is None or allocation.id in only)
        ]
        snapshot = self._planning.snapshot() if late and self._rules.cleaning_time else None
        tx.allocations.release(reservation_ids, until=until, only=only)
        if snapshot is not None:
            self._clean(tx, snapshot, late, until, now)

    def _clean(
        self, tx: Transaction, snapshot: Snapshot, late: Collection[Allocation], until: datetime, now: datetime
    ) -> None:
        """Lengthen released allocations until their resources are clean, as far as that is possible."""
        reservations = tx.leases.reservations_by_ids({allocation.reservation_id for allocation in late})
        seed = crc32(next(iter(late)).reservation_id.encode())
        terms = self._planning.terms(snapshot, (), now=now, seed=seed)
        before = after = snapshot.without(late)
        longer: list[Allocation] = []
        for allocation in late:
            if allocation.period.end == ENDLESS or allocation.resource_id not in snapshot.catalogue.rows:
                continue
            demand = demand_of(self._types, reservations[allocation.reservation_id]).of_units(allocation.units)
            demand = replace(demand, expression=Expression(), required=frozenset(), forbidden=frozenset())  # it matched
            period = Period(max(allocation.period.end, now), until)
            cleared = self._clear(tx, after, allocation, demand, period, terms)
            if cleared is not None:
                cleaned = replace(allocation, period=Period(allocation.period.start, until))
                after = cleared.with_([cleaned])
                longer.append(allocation)
        # What is released is not a plan: its row is lengthened as it is now, beside the changes of plans.
        changes = changes_of(before, after.without(longer))
        versions = {
            allocation.resource_id: int(after.versions[after.row_of(allocation.resource_id)]) for allocation in longer
        }
        tx.raise_versions({**versions, **changes.versions})
        tx.allocations.apply(changes, now=now)
        tx.allocations.lengthen(longer, until, now=now)

    def _clear(
        self,
        tx: Transaction,
        snapshot: Snapshot,
        allocation: Allocation,
        demand: Demand,
        period: Period,
        terms: Terms,
    ) -> Snapshot | None:
        """Return the snapshot with the resource of an allocation free for its cleaning.

        Plans in the way move, or start later. None if the cleaning would take all the time of a later lease.
        """
        resource_id = allocation.resource_id
        row = snapshot.row_of(resource_id)
        if snapshot.room_on(row, demand, period, overdue=False) >= demand.units_together:
            return snapshot
        vacancy = Vacancy(demand, period, closed=frozenset({resource_id}))
        cleared = clear(snapshot, vacancy, resource_id, terms)
        if cleared is not None:
            return cleared
        plans = sorted(
            (
                allocation
                for allocation in snapshot.on(row)
                if allocation.state is AllocationState.PLANNED and allocation.period.overlaps(period)
            ),
            key=lambda plan: (plan.period.start, plan.id),
        )
        if any(plan.period.end - self._rules.cleaning_time <= period.end for plan in plans):
            return None
        for plan in plans:
            if self._start_later(tx, plan, period.end, terms.now):
                delayed = replace(plan, period=Period(period.end, plan.period.end))
                delayed = replace(delayed, booked_from=plan.booked_from or plan.period.start)
                snapshot = snapshot.without([plan]).with_([delayed])
            if snapshot.room_on(row, demand, period, overdue=False) >= demand.units_together:
                return snapshot
        return None

    def _start_later(self, tx: Transaction, plan: Allocation, until: datetime, now: datetime) -> bool:
        """Delay the start of a plan's lease until its resource is clean; return False if the lease has started."""
        reservation = tx.leases.reservations_by_ids([plan.reservation_id])[plan.reservation_id]
        lease = tx.leases.get(reservation.lease_id, lock=True)
        start = lease.event(EventType.START) if lease is not None else None
        if lease is None or start is None or start.status is not EventStatus.UNDONE:
            return False
        stored = tx.events.get(start.id)
        payload = replace(StartPayload.of(stored), not_before=until)
        tx.events.change([start.id], now=now, ready_at=until, payload=payload.to_json())
        [resource] = tx.resources.by_ids([plan.resource_id]).values()
        late = f"was given back late, and is cleaned until {until:%Y-%m-%d %H:%M:%S} UTC."
        reason = reason_about(self._types, reservation, resource, late)
        tx.leases.change(lease, now=now, **columns_of(reason))
        write_history(tx, lease.id, "wait", lease.status, lease.status, actor=ENGINE, now=now, reason=reason)
        delayed = tx.leases.get(lease.id)
        if delayed is not None:
            notify_late(tx, start.id, delayed, now=now, until=until)
        return True
