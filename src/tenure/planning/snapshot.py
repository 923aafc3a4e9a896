"""The ledger at one moment, as a value: what planning reads, and what it returns with other allocations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tenure.domain.allocation import Allocation, Demand, Room, Use
from tenure.domain.capacity import Capacity
from tenure.domain.lease import AllocationState
from tenure.domain.listing import ListedResource, ListedUse
from tenure.domain.period import ENDLESS, OVERDUE_MATTERS, PAST_MATTERS, TICK, Period
from tenure.planning.catalogue import Catalogue
from tenure.planning.distinct import Distinct
from tenure.planning.steps import FOREVER, NEVER, Ints, Mask, moment, ticks
from tenure.planning.timeline import OVERDUE, STATES, Rows, Timeline, Uses

T = TypeVar("T", bound=np.generic)

#: Below this share of the resources, a search reads only the allocations of those that it is about.
FEW_SHARE = 0.02
#: Up to this share it does so as well, and they are remembered: to select them takes longer than to search once.
SOME_SHARE = 0.5

_NO_ROW = np.zeros(0, dtype=np.bool_)
_NUMBERS = {state: number for number, state in enumerate(AllocationState)}


@dataclass(frozen=True, slots=True)
class DistinctValues:
    """The values of allocations that their arrays have as numbers. The lists only grow; ``in_use_by`` shortens them."""

    amounts: Distinct[Capacity] = field(default_factory=Distinct)
    projects: Distinct[str] = field(default_factory=Distinct)

    @property
    def size(self) -> int:
        """Return the number of values."""
        return len(self.amounts) + len(self.projects)

    def in_use_by(self, uses: Uses) -> tuple[DistinctValues, Uses]:
        """Return lists of the values that these allocations have, and the allocations with the numbers of those."""
        amounts, new_amounts = self.amounts.shortened(uses.amounts)
        projects, new_projects = self.projects.shortened(uses.projects)
        return DistinctValues(amounts, projects), replace(uses, amounts=new_amounts, projects=new_projects)


@dataclass(frozen=True)
class Snapshot:
    """The resources and their allocations at one moment. It does not change; ``with_`` and ``without`` make another.

    ``base`` has the allocations of the resources that have not changed since it was made, ``latest`` those of the
    ``changed`` ones. Resources are rows of the catalogue.
    """

    catalogue: Catalogue
    base: Timeline
    latest: Timeline
    changed: Mask
    distinct: DistinctValues
    #: The versions of the resources.
    versions: Ints
    #: The allocations of the rows that are otherwise in this snapshot than in the ledger.
    replaced: Mapping[int, tuple[Allocation, ...]] = field(default_factory=dict)
    #: How many new allocations it has; their ids are -1, -2 and so on.
    added: int = 0
    #: The ids of overdue allocations.
    overdue: frozenset[int] = frozenset()
    #: What was read from the arrays already, by row; shared by all snapshots with the same arrays.
    _read: dict[int, tuple[Allocation, ...]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, resources: Iterable[ListedResource], uses: Iterable[ListedUse], now: datetime) -> Snapshot:
        """Return the snapshot of these resources and their allocations."""
        distinct, none = DistinctValues(), np.zeros(0, dtype=np.int32)
        versions: dict[int, int] = {}
        catalogue = Catalogue().changed(_with_versions(resources, versions))
        known = ((row, use) for use in uses if (row := catalogue.rows.get(use.resource_id)) is not None)
        base = Timeline(arrays_of(known, distinct, now), np.arange(len(catalogue), dtype=np.int32))
        latest = Timeline(arrays_of((), distinct, now), none)
        return cls(
            catalogue,
            base,
            latest,
            np.zeros(len(catalogue), dtype=np.bool_),
            distinct,
            _large([versions[resource_id] for resource_id in catalogue.ids]),
            overdue=_overdue_in(base.uses),
        )

    def following(
        self, changed: Collection[int], resources: Sequence[ListedResource], uses: Iterable[ListedUse], now: datetime
    ) -> Snapshot:
        """Return the snapshot after changes of these resources, by id: what there is of them now, and on them.

        A changed resource that is not among the ``resources`` does not exist any more.
        """
        gone = set(changed) - {resource.id for resource in resources}
        catalogue = self.catalogue.changed(resources, gone)
        size = len(catalogue)
        versions, is_changed, is_fresh = _grown(self.versions, size), _grown(self.changed, size), _grown(_NO_ROW, size)
        for resource in resources:
            versions[catalogue.rows[resource.id]] = resource.version
        rows = [catalogue.rows[resource_id] for resource_id in changed if resource_id in catalogue.rows]
        is_changed[rows] = is_fresh[rows] = True
        known = ((row, use) for use in uses if (row := catalogue.rows.get(use.resource_id)) is not None)
        before = self.latest.uses
        kept = before.select(~is_fresh[before.rows])
        latest = kept.beside(arrays_of(known, self.distinct, now))
        covered = np.flatnonzero(is_changed).astype(np.int32)
        unchanged = self.base.uses.select(~is_changed[self.base.uses.rows] & (self.base.uses.states == OVERDUE))
        return Snapshot(
            catalogue,
            self.base,
            Timeline(latest, covered),
            is_changed,
            self.distinct,
            versions,
            overdue=_overdue_in(unchanged) | _overdue_in(latest),
        )

    def extended(
        self, versions: Mapping[int, int], reservation_ids: Collection[str], uses: Iterable[ListedUse], now: datetime
    ) -> Snapshot:
        """Return the snapshot after resources have got allocations of these reservations, and nothing else has changed.

        ``versions`` are those of the resources by id, ``uses`` what the reservations have now, perhaps on others, too.
        """
        rows_of = self.catalogue.rows
        rows = {rows_of[resource_id]: version for resource_id, version in versions.items() if resource_id in rows_of}
        is_extended, new_versions = np.zeros(len(self.changed), dtype=np.bool_), self.versions.copy()
        for row, version in rows.items():
            is_extended[row], new_versions[row] = True, version
        known = ((rows_of[use.resource_id], use) for use in uses if rows_of.get(use.resource_id) in rows)
        before = self.latest.uses.beside(self.base.of(is_extended & ~self.changed).uses)
        there = np.flatnonzero(is_extended[before.rows])
        again = np.isin(before.reservations[there], np.array(sorted(reservation_ids), dtype=np.bytes_))
        kept = np.ones(len(before.rows), dtype=np.bool_)
        kept[there[again]] = False
        is_changed = self.changed | is_extended
        latest = before.select(kept).beside(arrays_of(known, self.distinct, now))
        return replace(
            self,
            latest=Timeline(latest, np.flatnonzero(is_changed).astype(np.int32)),
            changed=is_changed,
            versions=new_versions,
            _read={},
        )

    def consolidated(self, now: datetime) -> Snapshot:
        """Return the same snapshot with all allocations in ``base``, without those that have long been over."""
        base = self.base.uses
        uses = base.select(~self.changed[base.rows] & (base.ends > ticks(now - PAST_MATTERS))).beside(self.latest.uses)
        distinct, uses = self.distinct.in_use_by(uses)
        size, none = len(self.catalogue), np.zeros(0, dtype=np.int32)
        return replace(
            self,
            base=Timeline(uses, np.arange(size, dtype=np.int32)),
            latest=Timeline(arrays_of((), distinct, now), none),
            changed=np.zeros(size, dtype=np.bool_),
            distinct=distinct,
            _read={},
        )

    def timelines(self, chosen: Mask) -> Iterator[tuple[Timeline, Mask]]:
        """Yield the timelines, each with those of the chosen resources that it has.

        Unless most resources are chosen, the timelines have no others than these.
        """
        for timeline, mask in self._layers(chosen):
            if not len(timeline.covered):
                continue
            share = np.count_nonzero(mask) / len(timeline.covered)
            if share < FEW_SHARE:
                yield timeline.of(mask), mask
            elif timeline is self.base and share < SOME_SHARE:
                yield timeline.remembered(chosen), mask  # what has changed is left out by the mask
            else:
                yield timeline, mask

    def uses_where(self, holds: Callable[[Uses], Mask]) -> Uses:
        """Return the allocations for which the condition holds."""
        every = np.ones(len(self.changed), dtype=np.bool_)
        found = [
            timeline.uses.select(mask[timeline.uses.rows] & holds(timeline.uses))
            for timeline, mask in self._layers(every)
        ]
        return reduce(Uses.beside, found)

    def _layers(self, chosen: Mask) -> list[tuple[Timeline, Mask]]:
        """Return all timelines, each with those of the chosen resources whose allocations it has."""
        layers = [(self.base, chosen & ~self.changed), (self.latest, chosen & self.changed)]
        if self.replaced:
            kept = ~self._replaced_mask
            layers = [(timeline, mask & kept) for timeline, mask in layers]
            layers.append((self._replaced_timeline, chosen & self._replaced_mask))
        return layers

    def on(self, row: int) -> tuple[Allocation, ...]:
        """Return the allocations of a resource that have not long been over, the earliest first.

        An overdue one ends as late as it is expected to matter.
        """
        return self.replaced[row] if row in self.replaced else self.original_on(row)

    def original_on(self, row: int) -> tuple[Allocation, ...]:
        """Return the allocations of a resource as they are in the ledger; see ``on``."""
        found = self._read.get(row)
        if found is None:
            timeline = self.latest if self.changed[row] else self.base
            first, last = np.searchsorted(timeline.uses.rows, [row, row + 1])
            found = self._read[row] = tuple(self._allocation(timeline.uses, index) for index in range(first, last))
        return found

    @property
    def has_moved(self) -> bool:
        """Whether an allocation of the ledger is otherwise here."""
        return any(self._has_moved_on(row, there) for row, there in self.replaced.items())

    def _has_moved_on(self, row: int, there: tuple[Allocation, ...]) -> bool:
        after = {allocation.id: allocation for allocation in there}
        return any(
            (now := after.get(allocation.id)) is not allocation and now != allocation  # most are the same object
            for allocation in self.original_on(row)
        )

    def has(self, allocation: Allocation) -> bool:
        """Whether an allocation is on its resource, perhaps with fewer units."""
        return any(other.id == allocation.id for other in self.on(self.row_of(allocation.resource_id)))

    def resource_of(self, allocation: Allocation) -> int | None:
        """Return the resource to which planning has moved an allocation; one of several if its units have scattered."""
        new = None
        for row, there in self.replaced.items():
            for other in there:
                if other.id == allocation.id:
                    return other.resource_id
                if other.id < 0 and other.reservation_id == allocation.reservation_id:
                    new = self.catalogue.ids[row]
        return new

    def room_on(self, row: int, demand: Demand, period: Period, *, overdue: bool = True) -> int:
        """Return how many units of a demand fit on a resource during the whole period, whether they match or not.

        Without ``overdue``, as if overdue allocations were released: for what the resource is promised to already.
        """
        there = [allocation for allocation in self.on(row) if allocation.period.overlaps(period)]
        if not overdue:
            there = [allocation for allocation in there if allocation.id not in self.overdue]
        return self._units_beside(there, row, demand.amounts, demand.exclusive, period)

    def has_room_for(self, allocation: Allocation) -> bool:
        """Whether there is room for an allocation, as it is, on its resource."""
        row, period = self.row_of(allocation.resource_id), allocation.period
        there = [other for other in self.on(row) if other.period.overlaps(period)]
        return self._units_beside(there, row, allocation.amounts, allocation.exclusive, period) > 0

    def _units_beside(
        self, there: Sequence[Allocation], row: int, amounts: Capacity, exclusive: bool, period: Period
    ) -> int:
        """Return how many units of these amounts, or of the whole resource, fit beside these allocations."""
        if exclusive:
            return int(not there)
        uses = tuple(
            Use(allocation.id, allocation.amounts, allocation.exclusive, allocation.period) for allocation in there
        )
        return Room(self.catalogue.capacity_of(row), uses).units(amounts, period)

    def allocate(
        self,
        reservation_id: str,
        demand: Demand,
        period: Period,
        units: Mapping[int, int],
        *,
        state: AllocationState = AllocationState.PLANNED,
        booked_from: datetime | None = None,
    ) -> Snapshot:
        """Return the snapshot with new allocations of a reservation: so many units by resource id."""
        new = [
            Allocation(
                -(self.added + number),
                resource_id,
                reservation_id,
                period,
                state,
                demand.amounts.times(count),
                demand.exclusive,
                count,
                booked_from,
            )
            for number, (resource_id, count) in enumerate(units.items(), start=1)
        ]
        return replace(self.with_(new), added=self.added + len(new))

    def with_(self, allocations: Sequence[Allocation]) -> Snapshot:
        """Return the snapshot with these allocations besides; a new one has a negative id."""
        after = dict(self.replaced)
        for allocation in allocations:
            row = self.row_of(allocation.resource_id)
            there = after[row] if row in after else self.on(row)
            after[row] = (*there, allocation)
        return replace(self, replaced=after)

    def beside(self, allocations: Sequence[Allocation]) -> Snapshot:
        """Return the snapshot with allocations that others are about to get, and that do not move."""
        fixed = [
            replace(allocation, id=-(self.added + number), state=AllocationState.HELD)
            for number, allocation in enumerate(allocations, start=1)
            if allocation.resource_id in self.catalogue.rows
        ]
        return replace(self.with_(fixed), added=self.added + len(allocations))

    def with_longer(self, allocations: Sequence[Allocation], until: datetime) -> Snapshot:
        """Return the snapshot with these allocations lasting until a later end."""
        longer = [replace(allocation, period=Period(allocation.period.start, until)) for allocation in allocations]
        return self.without(allocations).with_(longer)

    def without(self, allocations: Iterable[Allocation]) -> Snapshot:
        """Return the snapshot without these allocations, which are found by resource and id."""
        after = dict(self.replaced)
        for allocation in allocations:
            row = self.row_of(allocation.resource_id)
            there = after[row] if row in after else self.on(row)
            after[row] = tuple(other for other in there if other.id != allocation.id)
        return replace(self, replaced=after)

    def row_of(self, resource_id: int) -> int:
        """Return the row of a resource; raise ``KeyError`` if it was never registered."""
        return self.catalogue.rows[resource_id]

    @cached_property
    def _replaced_rows(self) -> Rows:
        return np.array(sorted(self.replaced), dtype=np.int32)

    @cached_property
    def _replaced_mask(self) -> Mask:
        mask = np.zeros(len(self.changed), dtype=np.bool_)
        mask[self._replaced_rows] = True
        return mask

    @cached_property
    def _replaced_timeline(self) -> Timeline:
        uses = [(row, allocation) for row, allocations in self.replaced.items() for allocation in allocations]
        return Timeline(_arrays(uses, self.distinct), self._replaced_rows)

    def _allocation(self, uses: Uses, index: int) -> Allocation:
        end, booked_from = uses.ends[index], uses.booked_from[index]
        return Allocation(
            id=int(uses.ids[index]),
            resource_id=self.catalogue.ids[uses.rows[index]],
            reservation_id=uses.reservations[index].decode(),
            period=Period(moment(uses.starts[index]), ENDLESS if end >= FOREVER else moment(end)),
            state=STATES[uses.states[index]],
            amounts=self.distinct.amounts.values[uses.amounts[index]],
            exclusive=bool(uses.exclusive[index]),
            units=int(uses.units[index]),
            booked_from=None if booked_from == NEVER else moment(booked_from),
        )


def arrays_of(uses: Iterable[tuple[int, ListedUse]], distinct: DistinctValues, now: datetime) -> Uses:
    """Return allocations, with the rows of their resources, as arrays; new amounts and projects are added.

    An overdue allocation goes on for as long as it matters.
    """
    columns = _Columns()
    overdue_until = ticks(now + OVERDUE_MATTERS + TICK)
    for row, use in uses:
        columns.rows.append(row)
        columns.starts.append(ticks(use.starts_at))
        columns.ends.append(overdue_until if use.is_overdue(now) else _end(use.ends_at))
        columns.exclusive.append(use.exclusive)
        columns.states.append(OVERDUE if use.is_overdue(now) else _NUMBERS[use.state])
        columns.amounts.append(distinct.amounts.number(use.amounts))
        columns.projects.append(distinct.projects.number(use.project_id))
        columns.ids.append(use.allocation_id)
        columns.reservations.append(use.reservation_id)
        columns.units.append(use.units)
        columns.booked_from.append(NEVER if use.booked_from is None else ticks(use.booked_from))
    return columns.as_uses()


def _overdue_in(uses: Uses) -> frozenset[int]:
    """Return the ids of overdue allocations."""
    return frozenset(uses.ids[uses.states == OVERDUE].tolist())


def _arrays(allocations: Iterable[tuple[int, Allocation]], distinct: DistinctValues) -> Uses:
    """Return planned allocations as arrays; they belong to no project."""
    columns = _Columns()
    for row, allocation in allocations:
        columns.rows.append(row)
        columns.starts.append(ticks(allocation.period.start))
        columns.ends.append(_end(allocation.period.end))
        columns.exclusive.append(allocation.exclusive)
        columns.states.append(_NUMBERS[allocation.state])
        columns.amounts.append(distinct.amounts.number(allocation.amounts))
        columns.projects.append(-1)
        columns.ids.append(allocation.id)
        columns.reservations.append(allocation.reservation_id)
        columns.units.append(allocation.units)
        columns.booked_from.append(NEVER if allocation.booked_from is None else ticks(allocation.booked_from))
    return columns.as_uses()


def _with_versions(resources: Iterable[ListedResource], versions: dict[int, int]) -> Iterator[ListedResource]:
    """Yield the resources, and note their versions by id."""
    for resource in resources:
        versions[resource.id] = resource.version
        yield resource


def _grown(array: NDArray[T], size: int) -> NDArray[T]:
    """Return a copy of an array that has so many places; new ones are 0."""
    return np.append(array, np.zeros(size - len(array), dtype=array.dtype))


def _end(time: datetime) -> int:
    return FOREVER if time >= ENDLESS else ticks(time)


@dataclass(slots=True)
class _Columns:
    """The arrays of allocations while they are made."""

    rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    exclusive: list[bool] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    amounts: list[int] = field(default_factory=list)
    projects: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    reservations: list[str] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    booked_from: list[int] = field(default_factory=list)

    def as_uses(self) -> Uses:
        """Return them as arrays."""
        return Uses(
            _small(self.rows),
            _large(self.starts),
            _large(self.ends),
            np.array(self.exclusive, dtype=np.bool_),
            np.array(self.states, dtype=np.int8),
            _small(self.amounts),
            _small(self.projects),
            _large(self.ids),
            np.array(self.reservations, dtype="S36"),
            _small(self.units),
            _large(self.booked_from),
        )


def _small(numbers: list[int]) -> Rows:
    return np.array(numbers, dtype=np.int32)


def _large(numbers: list[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)
