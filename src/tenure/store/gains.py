"""The last check before a commit: what the transaction gives out must not be promised to others as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from tenure.domain.capacity import Capacity, peak
from tenure.domain.period import Period
from tenure.store import conditions
from tenure.store.amounts import AMOUNTS, capacities_of, capacity_of
from tenure.store.conflict import Overbooked
from tenure.store.feed import batched
from tenure.store.statements import run
from tenure.store.tables import AllocationRow

#: How many resources one statement counts.
_AT_ONCE = 500
_KIND = (AllocationRow.resource_id, AMOUNTS, AllocationRow.exclusive)
_COUNTED = (
    select(*_KIND, func.count())
    .where(
        AllocationRow.resource_id.in_(bindparam("ids", expanding=True)),
        AllocationRow.ends_at > bindparam("start"),
        AllocationRow.starts_at < bindparam("end"),
    )
    .group_by(*_KIND)
)


class _Use(NamedTuple):
    """An allocation, as far as it takes room from others."""

    reservation_id: str
    period: Period
    amounts: Capacity
    exclusive: bool


class Gains:
    """The resources that a transaction gives out, with their periods.

    Only code that writes allocations records gains: new allocations, moved allocations, and the time that is added to
    an allocation. Time that an allocation had before is not a gain, so that a host that has shrunk keeps what it had
    promised. A gain that was undone stays recorded. This does no harm: there was room for it, and all allocations in
    its time, consecutive or side by side, are checked for whether they leave each other room.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._gained: set[tuple[int, Period]] = set()

    def add(self, resource_ids: Iterable[int], period: Period) -> None:
        """Check these resources, in this period, before the commit."""
        self._gained.update((resource_id, period) for resource_id in resource_ids)

    @property
    def resource_ids(self) -> frozenset[int]:
        """The resources that are given out."""
        return frozenset(resource_id for resource_id, _ in self._gained)

    def verify(self) -> None:
        """Raise ``Overbooked`` if more is promised of a gained resource than it has.

        This happens only if the planning has a bug. PostgreSQL has such a guard for whole resources by its exclusion
        constraint. This one guards all databases, and parts of resources too, with one
        statement for whole resources that have a single use, a second for the capacities of all others, and a third
        only for those whose uses fit because they follow each other.
        """
        gained, self._gained = self._gained, set()
        if not gained:
            return
        window = Period(min(period.start for _, period in gained), max(period.end for _, period in gained))
        doubtful = self._doubtful({resource_id for resource_id, _ in gained}, window)
        if not doubtful:
            return
        uses: dict[int, list[_Use]] = {resource_id: [] for resource_id in doubtful}
        rows = select(
            AllocationRow.resource_id,
            AllocationRow.reservation_id,
            AllocationRow.starts_at,
            AllocationRow.ends_at,
            AMOUNTS,
            AllocationRow.exclusive,
        ).where(conditions.among(AllocationRow.resource_id, doubtful), conditions.overlaps(window))
        for resource_id, reservation_id, starts_at, ends_at, amounts, exclusive in self._session.execute(rows):
            use = _Use(reservation_id, Period(starts_at, ends_at), capacity_of(amounts), exclusive)
            uses[resource_id].append(use)
        for resource_id, period in gained:
            if resource_id not in doubtful:
                continue
            had = [use for use in uses[resource_id] if use.period.overlaps(period)]
            whole = [use for use in had if use.exclusive]
            if any(use.period.overlaps(other.period) for use in whole for other in had if other is not use):
                raise Overbooked(resource_id, [use.reservation_id for use in had])
            parts = [(use.period, use.amounts) for use in had if not use.exclusive]
            if parts and not doubtful[resource_id].fits(peak(parts, period)):
                raise Overbooked(resource_id, [use.reservation_id for use in had])

    def _doubtful(self, resource_ids: Collection[int], window: Period) -> dict[int, Capacity]:
        """Return the resources whose uses in the window may be too many at one instant, with their capacities.

        The others have a single use, or room for all uses at the same time. The database counts uses that are equal,
        so that a request for thousands of them is verified as fast as a small one.
        """
        totals: dict[int, Capacity] = {}
        numbers: Counter[int] = Counter()
        whole: set[int] = set()
        period = {"start": window.start, "end": window.end}
        counted = (
            row
            for ids in batched(sorted(resource_ids), _AT_ONCE)
            for row in run(self._session, _COUNTED, {**period, "ids": ids})
        )
        for resource_id, amounts, exclusive, number in counted:
            numbers[resource_id] += number
            totals[resource_id] = totals.get(resource_id, Capacity()) + capacity_of(amounts).times(number)
            if exclusive:
                whole.add(resource_id)
        unclear = {resource_id for resource_id in totals if resource_id not in whole or numbers[resource_id] > 1}
        capacities = capacities_of(self._session, unclear) if unclear else {}
        return {
            resource_id: capacity
            for resource_id, capacity in capacities.items()
            if resource_id in whole or not capacity.fits(totals[resource_id])
        }
