"""The allocations of resources as arrays, and the stretches in which resources are free or in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tenure.domain.lease import AllocationState
from tenure.planning.steps import FOREVER, NEVER, Ints, Loads, Mask

#: Numbers of resources in the catalogue, and of entries in lists of distinct values.
Rows = NDArray[np.int32]

#: The states of allocations by the numbers that arrays have; the last one is that of overdue allocations.
STATES = (*AllocationState, AllocationState.HELD)
OVERDUE = len(STATES) - 1
_HELD = STATES.index(AllocationState.HELD)


@dataclass(frozen=True, slots=True)
class Uses:
    """Allocations, one in each place of the arrays. Amounts and projects are numbers in lists of distinct values."""

    rows: Rows
    starts: Ints
    ends: Ints
    #: Whether it takes the whole resource.
    exclusive: Mask
    #: The numbers of their states in ``STATES``.
    states: NDArray[np.int8]
    amounts: Rows
    projects: Rows
    ids: Ints
    #: The ids of their reservations.
    reservations: NDArray[np.bytes_]
    units: Rows
    #: Since when they are booked for accounts if they were delayed, else ``NEVER``.
    booked_from: Ints

    @property
    def planned(self) -> Mask:
        """Which are plans, which may move."""
        found: Mask = self.states == 0
        return found

    @property
    def in_use(self) -> Mask:
        """Which have a resource that is to be given back."""
        found: Mask = (self.states == _HELD) | (self.states == OVERDUE)
        return found

    def select(self, chosen: Mask | Ints) -> Uses:
        """Return the chosen allocations."""
        return Uses(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def beside(self, other: Uses) -> Uses:
        """Return the allocations of both."""
        return Uses(
            *(np.concatenate((getattr(self, column.name), getattr(other, column.name))) for column in fields(self))
        )


@dataclass(frozen=True)
class Stretches:
    """Stretches of time of resources, ordered by their starts."""

    rows: Rows
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, rows: Rows, starts: Ints, ends: Ints) -> Stretches:
        """Return the stretches, which may be in any order."""
        order = np.argsort(starts, kind="stable")
        return cls(rows[order], starts[order], ends[order])

    @cached_property
    def by_end(self) -> Rows:
        """The indexes of the stretches in the order of their ends."""
        return np.argsort(self.ends, kind="stable").astype(np.int32)

    @property
    def most(self) -> int:
        """The largest number of stretches at one time."""
        over = np.searchsorted(self.ends[self.by_end], self.starts, side="right")
        return int(np.max(np.arange(1, len(self.starts) + 1) - over, initial=0))

    def loads(self, chosen: Mask, weights: Ints | None = None) -> Loads:
        """Return the stretches of the chosen resources; each adds 1, or the weight of its resource."""
        begin, end = chosen[self.rows], self.by_end[chosen[self.rows[self.by_end]]]
        starts, ends = self.starts[begin], self.ends[end]
        if weights is None:
            ones = np.ones(len(starts), dtype=np.int64)
            return Loads(starts, ones, ends, ones)
        return Loads(starts, weights[self.rows[begin]], ends, weights[self.rows[end]])


class Timeline:
    """The allocations of some resources. It does not change."""

    def __init__(self, uses: Uses, covered: Rows, *, sorted_already: bool = False) -> None:
        """``covered`` are the resources, in ascending order; those without allocations are free at all times.

        The allocations are sorted by resource and start, unless they are so already.
        """
        self.uses = uses if sorted_already else uses.select(np.lexsort((uses.starts, uses.rows)))
        self.covered = covered
        self._lock = threading.Lock()
        #: The timelines of some of the resources, the one that was used last at the end.
        self._remembered: OrderedDict[bytes, Timeline] = OrderedDict()

    def of(self, chosen: Mask) -> Timeline:
        """Return the timeline of the chosen resources alone, which must be among those that this one covers.

        It takes a time that depends on their number only, once the resources are known.
        """
        rows = np.flatnonzero(chosen).astype(np.int32)
        first, last = np.searchsorted(self.uses.rows, rows), np.searchsorted(self.uses.rows, rows, side="right")
        counts = last - first
        # The indexes of the allocations of each resource, one resource after the other.
        indexes = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return Timeline(self.uses.select(indexes), rows, sorted_already=True)

    def remembered(self, chosen: Mask) -> Timeline:
        """Return what ``of`` does, and keep it for later calls: members ask for the same kinds again and again.

        Those that were used last are kept, as long as they are no larger together than this one.
        """
        key = chosen.tobytes()
        with self._lock:
            found = self._remembered.pop(key, None) or self.of(chosen)
            self._remembered[key] = found
            while sum(kept.size for kept in self._remembered.values()) > self.size:
                self._remembered.popitem(last=False)
        return found

    @property
    def size(self) -> int:
        """The number of resources and allocations."""
        return len(self.covered) + len(self.uses.rows)

    @cached_property
    def fixed(self) -> Uses:
        """The allocations that are not plans."""
        return self.uses.select(~self.uses.planned)

    @cached_property
    def busy(self) -> Stretches:
        """The stretches in which resources are in use, or planned to be."""
        return busy_in(self.uses)

    @cached_property
    def held(self) -> Stretches:
        """The stretches in which resources are in use by allocations that are not plans."""
        return busy_in(self.fixed)

    @cached_property
    def whole(self) -> Stretches:
        """The stretches in which resources are taken as a whole, also those in conflict once."""
        return self._whole()

    @cached_property
    def most_whole(self) -> int:
        """The largest number of resources that are taken as a whole at one time."""
        return self._whole().most  # few clouds are so crowded that the allocations themselves are needed

    def _whole(self) -> Stretches:
        return busy_in(self.uses.select(self.uses.exclusive))

    @cached_property
    def gaps(self) -> Stretches:
        """The stretches in which resources are free."""
        return _gaps(self.uses, self.covered)

    @cached_property
    def fixed_gaps(self) -> Stretches:
        """The stretches in which resources would be free if there were no plans."""
        return _gaps(self.fixed, self.covered)


def _joined(uses: Uses) -> tuple[Mask, Ints]:
    """Return which uses begin a new stretch of their resource, and the latest end of the uses up to each of them.

    The uses are ordered by resource and start. The running maximum is taken over ranks of ends, raised by the number of
    uses from resource to resource: so it begins anew with each resource.
    """
    count = len(uses.rows)
    order = np.argsort(uses.ends, kind="stable")
    ranks = np.empty(count, dtype=np.int64)
    ranks[order] = np.arange(count)
    base = uses.rows.astype(np.int64) * count
    latest: Ints = uses.ends[order][np.maximum.accumulate(base + ranks) - base]
    begins = np.ones(count, dtype=np.bool_)
    begins[1:] = (uses.rows[1:] != uses.rows[:-1]) | (uses.starts[1:] > latest[:-1])
    return begins, latest


def busy_in(uses: Uses) -> Stretches:
    """Return the stretches in which resources are in use; the uses are ordered by resource and start."""
    if not len(uses.rows):
        return Stretches(uses.rows, uses.starts, uses.ends)
    begins, latest = _joined(uses)
    last = np.append(np.flatnonzero(begins)[1:] - 1, len(begins) - 1)
    return Stretches.of(uses.rows[begins], uses.starts[begins], latest[last])


def _gaps(uses: Uses, covered: Rows) -> Stretches:
    """Return the stretches in which the covered resources are free; the uses are ordered by resource and start."""
    idle = np.setdiff1d(covered, uses.rows).astype(np.int32)
    rows, starts, ends = [idle], [np.full(len(idle), NEVER)], [np.full(len(idle), FOREVER)]
    if len(uses.rows):
        begins, latest = _joined(uses)
        indexes = np.flatnonzero(begins)
        is_first = np.append(True, uses.rows[indexes[1:]] != uses.rows[indexes[1:] - 1])
        last = np.append(indexes[1:] - 1, len(begins) - 1)
        is_last = np.append(is_first[1:], True) & (latest[last] < FOREVER)
        rows += [uses.rows[indexes], uses.rows[last[is_last]]]
        starts += [np.where(is_first, NEVER, latest[indexes - 1]), latest[last[is_last]]]
        ends += [uses.starts[indexes], np.full(int(is_last.sum()), FOREVER)]
    return Stretches.of(np.concatenate(rows), np.concatenate(starts), np.concatenate(ends))
