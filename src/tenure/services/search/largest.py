"""Searches for the largest amount and the latest end that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import numpy as np

from tenure import deadlines
from tenure.planning.room import starts
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import SECOND, moment, ticks, ticks_of
from tenure.services.leases.intake import Completed
from tenure.services.search.attempts import Attempts
from tenure.services.search.openings import Condition, concerned, conditions_of


def largest(fits: Callable[[int], bool], most: int, hint: int | None = None) -> int:
    """Return the largest number up to ``most`` that fits, 0 if none does; a number fits if a larger one does.

    With a hint, the numbers around it are tried first.
    """
    low, high = 0, most + 1  # the first fits, or is 0; the second does not
    if hint is not None and 0 < hint <= most:
        if not fits(hint):
            high = hint
        else:
            low = hint
            if hint < most and not fits(hint + 1):
                return hint
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def latest_end(
    attempts: Attempts, start: datetime, ends: Sequence[datetime], has_room: Callable[[datetime], bool]
) -> datetime | None:
    """Return the latest of these ends, which are in order, with which a request fits; None if it fits with none.

    ``has_room`` guesses whether it fits without moving plans.
    """
    hint = largest(lambda count: has_room(ends[count - 1]), len(ends))
    count = largest(lambda count: attempts.fits(start, ends[count - 1], direct=count <= hint), len(ends), hint)
    return ends[count - 1] if count else None


def room_until(
    view: Snapshot, completed: Completed, start: datetime, cleaning: timedelta
) -> Callable[[datetime], bool]:
    """Return whether there is room for a new lease from a start to an end, each reservation by itself."""
    conditions = list(conditions_of(view, completed.demands))
    begin = ticks(start)

    def has_room(end: datetime) -> bool:
        deadlines.check()
        length = ticks_of(end - start + cleaning)
        return all(
            starts(view, condition.demand, condition.chosen, length, begin, begin + 1).values[0] >= condition.needed
            for condition in conditions
        )

    return has_room


def possible_ends(
    view: Snapshot, completed: Completed, first: datetime, last: datetime, cleaning: timedelta
) -> list[datetime]:
    """Return the ends before ``last`` after which an allocation begins on a resource that is concerned, in order."""
    conditions: list[Condition] = list(conditions_of(view, completed.demands))
    chosen = concerned(view, conditions)
    begins = [timeline.uses.starts[mask[timeline.uses.rows]] for timeline, mask in view.timelines(chosen)]
    ends = np.unique(np.concatenate((np.zeros(0, dtype=np.int64), *begins))) - ticks_of(cleaning)
    ends = np.unique(ends // SECOND * SECOND)
    return [moment(end) for end in ends[(ends >= ticks(first)) & (ends < ticks(last))]]
