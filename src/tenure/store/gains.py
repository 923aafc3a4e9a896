"""The last look before a commit: that nothing which a transaction gives out is promised to others as well."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from tenure.domain.capacity import Capacity, peak
from tenure.domain.period import Period
from tenure.store import conditions
from tenure.store.amounts import AMOUNTS, capacities_of, capacity_of
from tenure.store.conflict import Overbooked
from tenure.store.tables import AllocationRow


class _Use(NamedTuple):
    """An allocation, as far as it takes room from others."""

    reservation_id: str
    period: Period
    amounts: Capacity
    exclusive: bool


class Gains:
    """Which resources a transaction gives out, and when.

    Only what writes allocations records gains: new allocations, moved ones, and the time by which one lasts longer.
    Time that an allocation had before is none, so that a host that has shrunk keeps what it had promised. A gain that
    was taken back stays recorded. That does no harm: there was room for it, and others that have its time by now, one
    after another or side by side, are judged by whether they leave each other room.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._gained: set[tuple[int, Period]] = set()

    def add(self, resource_ids: Iterable[int], period: Period) -> None:
        """Have these resources looked at before the commit, in this period."""
        self._gained.update((resource_id, period) for resource_id in resource_ids)

    def verify(self) -> None:
        """Raise ``Overbooked`` where more is promised of what was given out than there is.

        Nothing comes to that unless the planning is wrong. It is the guard that PostgreSQL has for whole resources by
        its exclusion constraint, for all databases and for parts of resources, in two statements.
        """
        gained, self._gained = self._gained, set()
        if not gained:
            return
        window = Period(min(period.start for _, period in gained), max(period.end for _, period in gained))
        uses: dict[int, list[_Use]] = {resource_id: [] for resource_id, _ in gained}
        rows = select(
            AllocationRow.resource_id,
            AllocationRow.reservation_id,
            AllocationRow.starts_at,
            AllocationRow.ends_at,
            AMOUNTS,
            AllocationRow.exclusive,
        ).where(conditions.among(AllocationRow.resource_id, uses), conditions.overlaps(window))
        for resource_id, reservation_id, starts_at, ends_at, amounts, exclusive in self._session.execute(rows):
            use = _Use(reservation_id, Period(starts_at, ends_at), capacity_of(amounts), exclusive)
            uses[resource_id].append(use)
        shared = [resource_id for resource_id, had in uses.items() if not all(use.exclusive for use in had)]
        capacities = capacities_of(self._session, shared)
        for resource_id, period in gained:
            had = [use for use in uses[resource_id] if use.period.overlaps(period)]
            whole = [use for use in had if use.exclusive]
            if any(use.period.overlaps(other.period) for use in whole for other in had if other is not use):
                raise Overbooked(resource_id, [use.reservation_id for use in had])
            parts = [(use.period, use.amounts) for use in had if not use.exclusive]
            if parts and not capacities[resource_id].fits(peak(parts, period)):
                raise Overbooked(resource_id, [use.reservation_id for use in had])
