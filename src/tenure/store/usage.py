"""Reading the ledger of a period as a whole, to add up what projects have had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.lease import AllocationState, LeaseStatus
from tenure.domain.period import Period
from tenure.domain.usage import UsageShare
from tenure.store.amounts import AMOUNTS, capacity_of
from tenure.store.tables import AllocationRow, HistoryRow, LeaseRow, ReservationRow

#: The states of what is booked and not had.
_NEVER_HAD = (AllocationState.PLANNED.value, AllocationState.LAPSED.value)
#: How many rows are fetched at a time.
_AT_ONCE = 10_000


class UsageStore:
    """The ledger of the past, the present and the future, with deleted leases."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def shares(
        self, period: Period, *, now: datetime, project_id: str | None = None, resource_type: str | None = None
    ) -> Iterator[UsageShare]:
        """Yield what leases have within the period; equal allocations of a reservation are one share.

        A share is booked from its start to the end of its lease, or until it was given back: the time in which
        resources are cleaned after the lease does not count. It is held from when the lease has become active, up to
        now.

        Two statements read everything, whatever the number of leases.
        """
        leases = _leases_in(period, project_id)
        if resource_type is not None:
            leases.append(ReservationRow.resource_type == resource_type)
        active_since = self._active_since(leases)
        alike = (
            LeaseRow.project_id,
            LeaseRow.id,
            LeaseRow.ends_at.label("lease_ends_at"),
            LeaseRow.deleted_at,
            ReservationRow.resource_type,
            ReservationRow.region,
            AllocationRow.starts_at,
            AllocationRow.booked_from,
            AllocationRow.ends_at,
            AllocationRow.state,
            AllocationRow.exclusive,
            AMOUNTS,
        )
        # A lease that is deleted before it starts has nothing else, and counts for nothing.
        lapsed, others = AllocationState.LAPSED.value, aliased(AllocationRow)
        has_others = exists().where(others.reservation_id == AllocationRow.reservation_id, others.state != lapsed)
        counts = func.sum(AllocationRow.units).label("units"), func.count().label("allocations")
        rows = self._session.execute(
            select(*alike, *counts)
            .select_from(LeaseRow)
            .join(ReservationRow, ReservationRow.lease_id == LeaseRow.id)
            .join(AllocationRow, AllocationRow.reservation_id == ReservationRow.id)
            .where(*leases, *_booked_in(period), or_(AllocationRow.state != lapsed, has_others))
            .group_by(*alike[:-1], AMOUNTS.element)
            .execution_options(yield_per=_AT_ONCE)
        )
        for row in rows:
            end = min(row.ends_at, row.lease_ends_at, row.deleted_at or row.ends_at)
            booked_from = row.booked_from or row.starts_at
            if booked_from >= end:
                continue
            amounts = Capacity({WHOLE: int(row.units)}) if row.exclusive else _times(row.amounts, row.allocations)
            held_from = None if row.state in _NEVER_HAD else active_since.get(row.id)
            yield UsageShare(
                row.project_id,
                row.resource_type,
                row.region,
                amounts,
                Period(booked_from, end),
                None if held_from is None else _between(max(row.starts_at, held_from), min(end, now)),
            )

    def _active_since(self, leases: Sequence[ColumnElement[bool]]) -> dict[str, datetime]:
        """Return when the leases have become active for the first time, by id."""
        rows = self._session.execute(
            select(LeaseRow.id, func.min(HistoryRow.at).label("at"))
            .join(ReservationRow, ReservationRow.lease_id == LeaseRow.id)
            .join(HistoryRow, HistoryRow.lease_id == LeaseRow.id)
            .where(*leases, HistoryRow.to_status == LeaseStatus.ACTIVE.value)
            .group_by(LeaseRow.id)
        )
        return {row.id: row.at for row in rows}


def _booked_in(period: Period) -> list[ColumnElement[bool]]:
    """Return the conditions that an allocation is booked in a part of the period."""
    booked_from = func.coalesce(AllocationRow.booked_from, AllocationRow.starts_at)
    return [booked_from < period.end, AllocationRow.ends_at > period.start]


def _leases_in(period: Period, project_id: str | None) -> list[ColumnElement[bool]]:
    """Return the condition that a lease has a part in the period."""
    found = [
        LeaseRow.starts_at < period.end,
        LeaseRow.ends_at > period.start,
        or_(LeaseRow.deleted_at.is_(None), LeaseRow.deleted_at > period.start),
    ]
    return found if project_id is None else [*found, LeaseRow.project_id == project_id]


def _between(start: datetime, end: datetime) -> Period | None:
    return Period(start, end) if start < end else None


def _times(amounts: str, count: int) -> Capacity:
    return capacity_of(amounts).times(count)
