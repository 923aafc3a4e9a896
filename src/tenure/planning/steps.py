"""Step functions of time, as arrays. Times are whole microseconds since 1970, in UTC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: A half-open stretch of time.
Stretch = tuple[int, int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: A second, in microseconds.
SECOND = 1_000_000
#: Before and after all times that the ledger can hold. Their difference is within the range of the numbers.
NEVER, FOREVER = -(2**61), 2**61


def ticks(moment: datetime) -> int:
    """Return a time as microseconds since 1970."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def ticks_of(length: timedelta) -> int:
    """Return a length of time in microseconds."""
    return length // _MICROSECOND


def moment(time: int) -> datetime:
    """Return the time of so many microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=int(time))


@dataclass(frozen=True, slots=True)
class Steps:
    """A step function on ``[start, end)``: ``values[i]`` holds from ``times[i]`` until ``times[i + 1]``, or ``end``.

    ``times`` ascend strictly and begin with the start; both arrays have the same length, at least 1.
    """

    times: Ints
    values: Ints
    end: int

    def at(self, times: Ints) -> Ints:
        """Return the values at these times, which lie in ``[start, end)``."""
        found: Ints = self.values[np.searchsorted(self.times, times, side="right") - 1]
        return found

    def where(self, holds: Callable[[Ints], Mask]) -> list[Stretch]:
        """Return the longest stretches in which the condition holds for the value, in order."""
        held = np.concatenate(([False], holds(self.values), [False]))
        changes = np.flatnonzero(held[1:] != held[:-1])
        bounds = np.append(self.times, self.end)[changes]
        return [(int(start), int(end)) for start, end in zip(bounds[::2], bounds[1::2], strict=True)]


@dataclass(frozen=True, slots=True)
class Loads:
    """Intervals ``[start, end)`` that each add an amount; the two sides are in their own orders.

    ``starts`` ascend, with the amount of each in ``added``; ``ends`` ascend, with ``removed``.
    """

    starts: Ints
    added: Ints
    ends: Ints
    removed: Ints

    @classmethod
    def of(cls, starts: Ints, ends: Ints, amounts: Ints | None = None) -> Loads:
        """Return the intervals, which may be in any order; without amounts, each adds 1."""
        amounts = np.ones(len(starts), dtype=np.int64) if amounts is None else amounts
        by_start, by_end = np.argsort(starts, kind="stable"), np.argsort(ends, kind="stable")
        return cls(starts[by_start], amounts[by_start], ends[by_end], amounts[by_end])

    def beside(self, other: Loads) -> Loads:
        """Return the intervals of both."""
        if not len(self.starts) or not len(other.starts):
            return self if len(self.starts) else other
        starts, added = _merged(self.starts, self.added, other.starts, other.added)
        return Loads(starts, added, *_merged(self.ends, self.removed, other.ends, other.removed))

    def at(self, times: Ints) -> Ints:
        """Return the sum of the amounts at these times."""
        added = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.added)))
        removed = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.removed)))
        begun = np.searchsorted(self.starts, times, side="right")
        over = np.searchsorted(self.ends, times, side="right")
        found: Ints = added[begun] - removed[over]
        return found

    def changes(self, start: int, end: int) -> int:
        """Return how often the sum may change in ``(start, end)``."""
        inside = sum(
            int(np.searchsorted(times, end, side="left") - np.searchsorted(times, start, side="right"))
            for times in (self.starts, self.ends)
        )
        return inside

    def steps(self, start: int, end: int) -> Steps:
        """Return the sum as a step function on ``[start, end)``."""
        inside = [times[(times > start) & (times < end)] for times in (self.starts, self.ends)]
        times = np.unique(np.concatenate((np.array([start], dtype=np.int64), *inside)))
        values = self.at(times)
        changed = np.append(True, values[1:] != values[:-1])
        return Steps(times[changed], values[changed], end)

    def peaks(self, start: int, end: int, step: int) -> tuple[Ints, Ints]:
        """Return for each interval of length ``step`` in ``[start, end)`` an instant at which the sum is largest.

        Returns the beginnings of the intervals, and the instants. The sum grows at the starts only: so the instant is
        such a start, or the beginning of the interval.
        """
        begins = np.arange(start, end, step, dtype=np.int64)
        inside = slice(np.searchsorted(self.starts, start, "right"), np.searchsorted(self.starts, end, "left"))
        starts = self.starts[inside]
        times = np.concatenate((begins, starts))
        intervals = np.concatenate((np.arange(len(begins)), (starts - start) // step))
        # Of starts at the same time, the last one has the whole sum.
        removed = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.removed)))
        over = np.searchsorted(self.ends, starts, side="right")
        values = np.concatenate((self.at(begins), np.cumsum(self.added)[inside] - removed[over]))
        highest = np.full(len(begins), np.iinfo(np.int64).min)
        np.maximum.at(highest, intervals, values)
        indexes = np.flatnonzero(values == highest[intervals])
        _, first = np.unique(intervals[indexes], return_index=True)
        return begins, times[indexes[first]]


def no_loads() -> Loads:
    """Return no intervals."""
    nothing = np.zeros(0, dtype=np.int64)
    return Loads(nothing, nothing, nothing, nothing)


def _merged(times: Ints, amounts: Ints, more: Ints, more_amounts: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(both := np.concatenate((times, more)), kind="stable")
    return both[order], np.concatenate((amounts, more_amounts))[order]


def intersect(first: Sequence[Stretch], second: Sequence[Stretch]) -> list[Stretch]:
    """Return the stretches that lie in both lists; each list is in order and free of overlaps."""
    found, mine, theirs = [], 0, 0
    while mine < len(first) and theirs < len(second):
        start, end = max(first[mine][0], second[theirs][0]), min(first[mine][1], second[theirs][1])
        if start < end:
            found.append((start, end))
        if first[mine][1] < second[theirs][1]:
            mine += 1
        else:
            theirs += 1
    return found


def complement(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return the times outside of these stretches, which are in order of their starts and may overlap."""
    found, until = [], NEVER
    for start, end in stretches:
        if start > until:
            found.append((until, start))
        until = max(until, end)
    return [*found, (until, FOREVER)] if until < FOREVER else found
