"""The resources that have room for a demand, as far as a choice among them needs to know them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta

import numpy as np

from tenure.domain.allocation import Candidate, Demand
from tenure.domain.period import ENDLESS, Period
from tenure.planning.room import units
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import FOREVER, NEVER, Ints, Mask, moment, ticks
from tenure.planning.timeline import Rows, busy_in

#: How many resources with room are found beyond those needed, so that there is a choice of the tightest gaps.
SAMPLE = 24
#: How many shared allocations on either side of the end of a period are looked at, to find resources that are in use.
SHARED_SAMPLE = 64
#: For how many resources at first the room for parts is computed at once; then for four times as many each time.
FIRST_BLOCK = 256


def find(
    snapshot: Snapshot,
    demand: Demand,
    period: Period,
    *,
    seed: int,
    without: Collection[int] = (),
    only: Collection[int] | None = None,
    limit: int | None = None,
) -> list[Candidate]:
    """Return reservable resources that match and have room for the whole period.

    Their number is bounded: what the demand needs at most plus a sample, or ``limit``; never all of a cloud. Named
    resources and, for parts, those that are in use near the end of the period come in addition. The walk through the
    ids begins at ``seed``. Resources in ``without`` are left out, and so are resources that are not in ``only``.
    """
    limit = demand.maximum + SAMPLE if limit is None else limit
    chosen = eligible(snapshot, snapshot.catalogue.matching(demand), without=without, only=only)
    start, end = bounds_of(period)
    named = chosen & snapshot.catalogue.named(demand.region, demand.named) if demand.named else np.zeros_like(chosen)
    if demand.exclusive:
        free = chosen & ~_in_use(snapshot, chosen, start, end)
        rows = np.union1d(_walk(snapshot, free, seed)[:limit], np.flatnonzero(free & named))
        counts = np.ones(len(rows), dtype=np.int64)
    else:
        rows, counts = _roomy(snapshot, demand, chosen, start, end, seed=seed, limit=limit)
        more = named.copy()
        if only is None:
            more |= chosen & _in_use_near(snapshot, start, end)
        more[rows] = False
        other_rows, other_counts = _with_room(snapshot, demand, more, start, end)
        rows, counts = np.concatenate((rows, other_rows)), np.concatenate((counts, other_counts))
    return _candidates(snapshot, rows, counts, named, period, exclusive=demand.exclusive)


def eligible(
    snapshot: Snapshot, chosen: Mask, *, without: Collection[int] = (), only: Collection[int] | None = None
) -> Mask:
    """Return the chosen resources but those of the ids ``without``; with ``only``, just those of these ids."""
    rows_of = snapshot.catalogue.rows
    if only is not None:
        kept = np.zeros_like(chosen)
        kept[[rows_of[resource_id] for resource_id in only if resource_id in rows_of]] = True
        chosen = chosen & kept
    if without:
        chosen = chosen.copy()
        chosen[[rows_of[resource_id] for resource_id in without if resource_id in rows_of]] = False
    return chosen


def bounds_of(period: Period) -> tuple[int, int]:
    """Return start and end of a period as whole microseconds."""
    return ticks(period.start), FOREVER if period.end >= ENDLESS else ticks(period.end)


def _in_use(snapshot: Snapshot, chosen: Mask, start: int, end: int) -> Mask:
    """Return which of the chosen resources are in use, or planned to be, in ``[start, end)``."""
    found = np.zeros_like(chosen)
    for timeline, mask in snapshot.timelines(chosen):
        uses = timeline.uses
        rows = uses.rows[(uses.starts < end) & (uses.ends > start)]
        found[rows[mask[rows]]] = True
    return found


def _walk(snapshot: Snapshot, chosen: Mask, seed: int) -> Rows:
    """Return the chosen resources, the least scarce first, then by id, beginning at the id ``seed``."""
    by_id = snapshot.catalogue.by_id
    rows = by_id[chosen[by_id]]
    first = np.searchsorted(snapshot.catalogue.id_array[rows], seed)
    rotated = np.concatenate((rows[first:], rows[:first]))
    walked: Rows = rotated[np.argsort(snapshot.catalogue.scarcities[rotated], kind="stable")]
    return walked


def _roomy(
    snapshot: Snapshot, demand: Demand, chosen: Mask, start: int, end: int, *, seed: int, limit: int
) -> tuple[Rows, Ints]:
    """Return the first resources of the walk that have room, and for how many units; ``limit`` of them at most."""
    walked = _walk(snapshot, chosen, seed)
    rows, counts = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
    found = 0
    for block in _blocks(walked):
        mask = np.zeros_like(chosen)
        mask[block] = True
        roomy, room = _with_room(snapshot, demand, mask, start, end)
        rows.append(roomy)
        counts.append(room)
        found += len(roomy)
        if found >= limit:
            break
    positions = np.empty(len(chosen), dtype=np.int64)
    positions[walked] = np.arange(len(walked))
    all_rows, all_counts = np.concatenate(rows), np.concatenate(counts)
    order = np.argsort(positions[all_rows], kind="stable")[:limit]
    return all_rows[order], all_counts[order]


def _blocks(walked: Rows) -> Iterator[Rows]:
    """Yield the resources in order, in blocks that become larger."""
    first, size = 0, FIRST_BLOCK
    while first < len(walked):
        yield walked[first : first + size]
        first, size = first + size, 4 * size


def _with_room(snapshot: Snapshot, demand: Demand, chosen: Mask, start: int, end: int) -> tuple[Rows, Ints]:
    """Return which of the chosen resources have room for units of the demand, and for how many."""
    if not chosen.any():
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    rows, counts = units(snapshot, demand, chosen, start, end)
    enough = counts >= demand.units_together
    return rows[enough], counts[enough]


def _in_use_near(snapshot: Snapshot, start: int, end: int) -> Mask:
    """Return resources of which parts are in use in ``[start, end)``, by the nearest ends; a bounded number."""
    found = np.zeros(len(snapshot.changed), dtype=np.bool_)
    uses = snapshot.uses_where(lambda uses: ~uses.exclusive & (uses.starts < end) & (uses.ends > start))
    for side in (uses.ends >= end, uses.ends < end):
        rows, distance = uses.rows[side], np.abs(uses.ends[side] - end)
        near = np.argpartition(distance, SHARED_SAMPLE)[:SHARED_SAMPLE] if len(rows) > SHARED_SAMPLE else slice(None)
        found[rows[near]] = True
    return found


def _candidates(
    snapshot: Snapshot, rows: Rows, counts: Ints, named: Mask, period: Period, *, exclusive: bool
) -> list[Candidate]:
    """Return the resources with what the choice among them needs to know."""
    if not len(rows):
        return []
    start, end = bounds_of(period)
    chosen = np.zeros(len(snapshot.changed), dtype=np.bool_)
    chosen[rows] = True
    since, until = np.full(len(chosen), NEVER), np.full(len(chosen), FOREVER)
    busy = np.zeros(len(chosen), dtype=np.int64)
    for timeline, mask in snapshot.timelines(chosen):
        uses = timeline.uses
        uses = uses.select(mask[uses.rows])
        before, behind = uses.ends <= start, uses.starts >= end
        np.maximum.at(since, uses.rows[before], uses.ends[before])
        np.minimum.at(until, uses.rows[behind], uses.starts[behind])
        if not exclusive:
            stretches = busy_in(uses.select(~before & ~behind))
            lengths = np.minimum(stretches.ends, end) - np.maximum(stretches.starts, start)
            np.add.at(busy, stretches.rows, lengths)
    ids, scarcities, versions = snapshot.catalogue.ids, snapshot.catalogue.scarcities, snapshot.versions
    return [
        Candidate(
            ids[row],
            int(versions[row]),
            int(scarcities[row]),
            None if since[row] == NEVER else moment(since[row]),
            None if until[row] == FOREVER else moment(until[row]),
            count,
            timedelta(0) if exclusive else period.length - timedelta(microseconds=int(busy[row])),
            bool(named[row]),
        )
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True)
    ]
