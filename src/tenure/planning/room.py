"""What a demand finds in the index: when it can start, and how much of it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tenure.domain.allocation import Demand, Spread
from tenure.domain.capacity import WHOLE, Capacity
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import FOREVER, Ints, Loads, Mask, Steps, no_loads
from tenure.planning.timeline import Rows, Stretches, Timeline, Uses, busy_in

#: More units than fit into any resource.
_ALL = 2**31


def used(
    view: Snapshot, chosen: Mask, resource_class: str, *, planned: bool = True, project_id: str | None = None
) -> Loads:
    """Return how much of a class the allocations of the chosen resources take, over time.

    An allocation of a whole resource takes all that the resource has. ``WHOLE`` counts the resources that are in use at
    all. Without ``planned``, plans do not count; with a project, only its allocations count.
    """
    found = no_loads()
    for timeline, mask in view.timelines(chosen):
        if resource_class == WHOLE and project_id is None:
            found = found.beside((timeline.busy if planned else timeline.held).loads(mask))
            continue
        uses = timeline.uses if planned else timeline.fixed
        counted = mask[uses.rows]
        if project_id is not None:
            counted &= uses.projects == view.distinct.projects.find(project_id)
        uses = uses.select(counted)
        if resource_class == WHOLE:
            found = found.beside(busy_in(uses).loads(mask))
            continue
        per_use = _table(view, [resource_class])[uses.amounts, 0]
        amounts = np.where(uses.exclusive, view.catalogue.capacity(resource_class)[uses.rows], per_use)
        found = found.beside(Loads.of(uses.starts, uses.ends, amounts))
    return found


def in_use(view: Snapshot, time: int) -> Uses:
    """Return the allocations of all resources at a time, plans included."""
    return view.uses_where(lambda uses: (uses.starts <= time) & (uses.ends > time))


def taken(view: Snapshot, uses: Uses, resource_class: str) -> int:
    """Return how much of a class allocations of one moment take, counted as ``used`` does."""
    if resource_class == WHOLE:
        return len(np.unique(uses.rows))
    per_use = _table(view, [resource_class])[uses.amounts, 0]
    return int(np.where(uses.exclusive, view.catalogue.capacity(resource_class)[uses.rows], per_use).sum())


def taken_as_whole(view: Snapshot, chosen: Mask) -> Loads:
    """Return how many of the chosen resources are taken as a whole, over time."""
    found = no_loads()
    for timeline, mask in view.timelines(chosen):
        found = found.beside(timeline.whole.loads(mask))
    return found


def most_taken_as_whole(view: Snapshot, chosen: Mask) -> int:
    """Return a number that ``taken_as_whole`` never exceeds; it is known at once if most resources are chosen."""
    return sum(timeline.most_whole for timeline, _ in view.timelines(chosen))


def starts(
    view: Snapshot, demand: Demand, chosen: Mask, duration: int, start: int, end: int, *, planned: bool = True
) -> Steps:
    """Return for each time in ``[start, end)`` how many units of the demand could begin then and stay for ``duration``.

    Only the chosen resources count, and no more than the demand's ``minimum`` on a single one. Without ``planned``, as
    if there were no plans. Units that stay together count only where there is room for all of them; then the value is
    the number of such resources. What lasts beyond its lease stays without an end, whatever the duration.
    """
    if demand.lasting:
        duration = FOREVER - end  # only what begins in a stretch without an end stays
    found = no_loads()
    for timeline, mask in view.timelines(chosen):
        for stretches, usable, weight in _levels(view, timeline, mask, demand, start, end + duration, planned=planned):
            found = found.beside(_beginnings(stretches, usable, duration, start, end, weight))
    return found.steps(start, end)


def enough(demand: Demand) -> int:
    """Return the value of ``starts`` from which on the demand fits."""
    return 1 if demand.spread is Spread.AFFINITY else demand.minimum


def units(
    view: Snapshot, demand: Demand, chosen: Mask, start: int, end: int, *, planned: bool = True
) -> tuple[Rows, Ints]:
    """Return which of the chosen resources have room in ``[start, end)``, and for how many units each.

    Without ``planned``, as if there were no plans. What lasts beyond its lease needs room without an end.
    """
    if demand.lasting:
        end = FOREVER
    rows, counts = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
    for timeline, mask in view.timelines(chosen):
        if demand.exclusive:
            gaps = timeline.gaps if planned else timeline.fixed_gaps
            covering = gaps.rows[mask[gaps.rows] & (gaps.starts <= start) & (gaps.ends >= end)]
            rows.append(covering)
            counts.append(np.ones(len(covering), dtype=np.int64))
            continue
        roomy, least = _least_units(view, timeline.uses if planned else timeline.fixed, mask, demand, start, end)
        rows.append(roomy)
        counts.append(least)
    return np.concatenate(rows), np.concatenate(counts)


def units_beside(
    view: Snapshot, demand: Demand, chosen: Mask, start: int, end: int, *, counts: Callable[[Uses], Mask]
) -> tuple[Rows, Ints]:
    """Return what ``units`` does, as if there were only the allocations that count."""
    if demand.lasting:
        end = FOREVER
    rows, found = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
    for timeline, mask in view.timelines(chosen):
        uses = timeline.uses.select(counts(timeline.uses))
        if demand.exclusive:
            free = mask.copy()
            free[uses.rows[(uses.starts < end) & (uses.ends > start)]] = False
            rows.append(np.flatnonzero(free).astype(np.int32))
            found.append(np.ones(len(rows[-1]), dtype=np.int64))
            continue
        roomy, least = _least_units(view, uses, mask, demand, start, end)
        rows.append(roomy)
        found.append(least)
    return np.concatenate(rows), np.concatenate(found)


def _least_units(view: Snapshot, uses: Uses, chosen: Mask, demand: Demand, start: int, end: int) -> tuple[Rows, Ints]:
    """Return which of the chosen resources have room beside these uses throughout, and for how many units each."""
    segments = _segments(view, uses, chosen, demand, start, end)
    first = np.flatnonzero(np.append(True, segments.rows[1:] != segments.rows[:-1])[: len(segments.rows)])
    least = np.minimum.reduceat(segments.units, first) if len(first) else segments.units
    return segments.rows[first][least > 0], least[least > 0]


def fitting(demand: Demand, counts: Ints) -> int:
    """Return how many units of the demand fit, if there is room for so many on each of some resources."""
    match demand.spread:
        case Spread.AFFINITY:
            return int(counts.max(initial=0))
        case Spread.ANTI_AFFINITY:
            return len(counts)
        case Spread.ANY:
            return int(counts.sum())


def count(view: Snapshot, demand: Demand, chosen: Mask, start: int, end: int, *, planned: bool = True) -> int:
    """Return how many units of the demand have room on the chosen resources in ``[start, end)``, as ``units``."""
    _, counts = units(view, demand, chosen, start, end, planned=planned)
    return fitting(demand, counts)


def is_served(view: Snapshot, demands: Sequence[Demand]) -> bool:
    """Whether the resources would be enough for each demand if nothing else used them; also those out of order count.

    Demands for whole resources must find different ones.
    """
    together: dict[tuple[str, str], tuple[Mask, int]] = {}
    for demand in demands:
        matching = view.catalogue.matching(demand, reservable=False)
        if demand.named and (view.catalogue.named(demand.region, demand.named) & matching).sum() < len(demand.named):
            return False
        if demand.exclusive or demand.spread is not Spread.ANY:
            found = int(matching.sum())
        else:
            per_unit = [view.catalogue.capacity(name) // amount for name, amount in demand.amounts.items() if amount]
            found = int(np.min(per_unit, axis=0)[matching].sum()) if per_unit else demand.minimum
        if found < enough(demand):
            return False
        if demand.exclusive:
            chosen, needed = together.get((demand.inventory, demand.region), (np.zeros_like(matching), 0))
            together[demand.inventory, demand.region] = chosen | matching, needed + demand.minimum
    return all(int(chosen.sum()) >= needed for chosen, needed in together.values())


def free_until(view: Snapshot, row: int, amounts: Capacity | None, time: int) -> int:
    """Return until when a resource, from this time on, has room for these amounts; for None, is free as a whole.

    Allocations that end at this time or before are ignored. ``FOREVER`` if nothing follows.
    """
    alone = np.zeros(len(view.changed), dtype=np.bool_)
    alone[row] = True
    [timeline] = [timeline.of(mask) for timeline, mask in view.timelines(alone) if mask[row]]
    uses = timeline.uses
    uses = uses.select(uses.ends > time)
    if amounts is None:
        return int(max(uses.starts.min(initial=FOREVER), time))
    limit = FOREVER
    if uses.exclusive.any():
        limit = int(max(uses.starts[uses.exclusive].min(), time))
    uses = uses.select(~uses.exclusive)
    for name, amount in amounts.items():
        loads = Loads.of(uses.starts, uses.ends, _table(view, [name])[uses.amounts, 0])
        times = np.unique(np.append(np.maximum(uses.starts, time), time))
        crowded = times[loads.at(times) + amount > view.catalogue.capacity(name)[row]]
        limit = min(limit, int(crowded.min(initial=FOREVER)))
    return limit


def _beginnings(stretches: Stretches, chosen: Mask, duration: int, start: int, end: int, weight: int) -> Loads:
    """Return the times in ``[start, end)`` at which a period of this length could begin within one of the stretches."""
    count = int(np.searchsorted(stretches.starts, end, side="left"))
    rows, begins, ends = stretches.rows[:count], stretches.starts[:count], stretches.ends[:count] - duration
    fits = chosen[rows] & (ends >= begins) & (ends >= start)
    begins, ends = begins[fits], ends[fits] + 1
    return Loads.of(begins, ends, np.full(len(begins), weight, dtype=np.int64))


def _levels(
    view: Snapshot, timeline: Timeline, chosen: Mask, demand: Demand, start: int, end: int, *, planned: bool
) -> Iterator[tuple[Stretches, Mask, int]]:
    """Yield stretches in which resources have room, each with the units that they add to those of the stretches before.

    They are valid in ``[start, end)``.
    """
    if demand.exclusive:
        yield timeline.gaps if planned else timeline.fixed_gaps, chosen, 1
        return
    segments = _segments(view, timeline.uses if planned else timeline.fixed, chosen, demand, start, end)
    if demand.spread is not Spread.ANY:
        yield segments.stretches(demand.units_together), chosen, 1
        return
    before = 0
    for level in np.unique(np.minimum(segments.units, demand.minimum)):
        if level > 0:
            yield segments.stretches(level), chosen, int(level) - before
            before = int(level)


@dataclass(frozen=True, slots=True)
class _Segments:
    """How many units have room on a resource, over time: ordered by resource and time, without holes."""

    rows: Rows
    starts: Ints
    ends: Ints
    units: Ints

    def stretches(self, level: int) -> Stretches:
        """Return the stretches in which there is room for this many units."""
        has_room = self.units >= level
        goes_on = has_room[1:] & has_room[:-1] & (self.rows[1:] == self.rows[:-1])
        begins = np.flatnonzero(has_room & ~np.concatenate(([False], goes_on))[: len(has_room)])
        ends = np.flatnonzero(has_room & ~np.concatenate((goes_on, [False]))[: len(has_room)])
        return Stretches.of(self.rows[begins], self.starts[begins], self.ends[ends])


def _segments(view: Snapshot, uses: Uses, chosen: Mask, demand: Demand, start: int, end: int) -> _Segments:
    """Return how many units of a demand for parts of resources have room on the chosen ones in ``[start, end)``."""
    if not chosen.any():  # the amounts may be larger than the numbers of arrays, which no resource has
        none = np.zeros(0, dtype=np.int64)
        return _Segments(none.astype(np.int32), none, none, none)
    uses = uses.select(chosen[uses.rows] & (uses.starts < end) & (uses.ends > start))
    classes = list(demand.amounts)
    taken = _table(view, classes)[uses.amounts]
    changes = np.column_stack((taken, uses.exclusive.astype(np.int64)))
    # Each resource begins with a change of nothing at the start, also if it has no allocations.
    every = np.flatnonzero(chosen).astype(np.int32)
    rows = np.concatenate((every, uses.rows, uses.rows))
    times = np.concatenate((np.full(len(every), start), np.maximum(uses.starts, start), np.minimum(uses.ends, end)))
    changes = np.concatenate((np.zeros((len(every), len(classes) + 1), dtype=np.int64), changes, -changes))
    order = np.lexsort((times, rows))
    rows, times, levels = rows[order], times[order], np.cumsum(changes[order], axis=0)
    until = np.append(times[1:], end)
    until[np.append(rows[1:] != rows[:-1], False)] = end
    lasts = until > times
    rows, times, until, levels = rows[lasts], times[lasts], until[lasts], levels[lasts]
    free = np.stack([view.catalogue.capacity(name)[rows] for name in classes], axis=1) - levels[:, :-1]
    fitting = np.min(free // np.array([demand.amounts[name] for name in classes], dtype=np.int64), axis=1)
    return _Segments(rows, times, until, np.where(levels[:, -1] > 0, 0, np.maximum(fitting, 0)))


def _table(view: Snapshot, classes: Sequence[str]) -> Ints:
    """Return how much of each of these classes the distinct amounts have; one row for each."""
    table = [[amounts[name] for name in classes] for amounts in view.distinct.amounts.values]
    return np.array(table, dtype=np.int64).reshape(-1, len(classes))
