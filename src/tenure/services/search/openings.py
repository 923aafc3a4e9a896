"""The times at which a lease could start, from the index."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter

import numpy as np

from tenure import deadlines
from tenure.domain.allocation import Demand
from tenure.planning.exact import MOST_SITES
from tenure.planning.room import enough, most_taken_as_whole, starts, taken_as_whole
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import FOREVER, Mask, Stretch, complement, intersect

Times = np.ndarray[tuple[int], np.dtype[np.int64]]
#: How far ahead openings are computed at first; each further part is so many times longer.
FIRST_REACH = 86_400 * 1_000_000
GROWTH = 4


@dataclass(frozen=True, slots=True)
class Opening:
    """A time at which a lease may have room: ``direct`` if each demand, taken alone, has room as the plans are."""

    start: int
    direct: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """So many units of a demand, or so many resources if its units stay together, need room on the chosen resources."""

    demand: Demand
    chosen: Mask
    needed: int


def conditions_of(view: Snapshot, demands: Sequence[Demand]) -> Iterator[Condition]:
    """Yield conditions that hold whenever all demands fit side by side; those of equal demands once."""
    for demand in dict.fromkeys(demands):
        deadlines.check()
        matching = view.catalogue.matching(demand)
        yield Condition(demand, matching, enough(demand))
        if demand.named:
            named = matching & view.catalogue.named(demand.region, demand.named)
            yield Condition(demand.of_units(1), named, len(demand.named))
    whole = sorted((demand for demand in demands if demand.exclusive), key=pool_of)
    for _, several in groupby(whole, key=pool_of):
        alike = list(several)
        if len(alike) > 1:
            chosen = np.any([view.catalogue.matching(demand) for demand in dict.fromkeys(alike)], axis=0)
            together = sum(demand.minimum for demand in alike)
            yield Condition(replace(alike[0], minimum=together, named=()), chosen, together)


def concerned(view: Snapshot, conditions: Sequence[Condition]) -> Mask:
    """Return the resources whose allocations can decide when there is room, if plans move.

    These are the resources that serve a demand. In an inventory for which the exact search arranges all plans anew,
    they are all resources: a plan that is elsewhere now may move to a resource that serves the demand.
    """
    found: Mask = np.any([condition.chosen for condition in conditions], axis=0)
    for inventory, region in {pool_of(condition.demand) for condition in conditions}:
        every = view.catalogue.of_type(inventory, region)
        if every.sum() <= MOST_SITES:
            found |= every
    return found


class Openings:
    """The times at which it is worth trying to book a lease.

    At other times there is no room, however the plans are arranged.
    """

    def __init__(self, view: Snapshot, demands: Sequence[Demand], duration: int, allowed: Sequence[Stretch]) -> None:
        """``duration`` is how long the resources are taken, ``allowed`` the times at which the lease may start."""
        self._view = view
        self._demands = demands
        self._conditions = list(conditions_of(view, demands))
        self._duration = duration
        self._allowed = allowed
        self._reach = FIRST_REACH
        self._known_until = allowed[0][0] if allowed else FOREVER
        self._end = allowed[-1][1] if allowed else FOREVER
        #: The known openings, in order: those with room as the plans are, and those with room if plans moved.
        self._direct: list[Stretch] = []
        self._loose: list[Stretch] = []
        #: The known times at which room may appear, and those computed since, without the ends of plans.
        self._changes: list[int] = []
        self._changes_since: list[tuple[int, int, Times]] = []

    def at_or_after(self, time: int) -> Opening | None:
        """Return the first opening from this time on; None if there is none."""
        while True:
            found = [
                Opening(max(start, time), is_direct)
                for stretches, is_direct in ((self._direct, True), (self._loose, False))
                for index in [bisect_right(stretches, time, key=itemgetter(1))]
                for start, _ in stretches[index : index + 1]
            ]
            first = min(found, key=lambda opening: (opening.start, not opening.direct), default=None)
            if first is not None or not self._extend():
                return first

    def next_change(self, time: int) -> int | None:
        """Return the first time after this one at which room may appear; None if there is none."""
        while True:
            self._add_changes()
            index = bisect_right(self._changes, time)
            if index < len(self._changes):
                return self._changes[index]
            if not self._extend():
                return None

    def _add_changes(self) -> None:
        """Make the times at which room may appear known, as far as openings are.

        Demands that have room one by one may lack it together until any allocation ends, on any resource concerned.
        """
        for start, end, times in self._changes_since:
            changes = np.unique(np.concatenate((times, self._plan_ends(start, end))))
            self._changes += [int(time) for time in changes]
        self._changes_since.clear()

    def _extend(self) -> bool:
        """Compute the openings of the next part of the time; return False if there is no more of it."""
        if self._known_until >= self._end:
            return False
        start, end = self._known_until, min(self._end, self._known_until + self._reach)
        self._known_until, self._reach = end, self._reach * GROWTH
        allowed = intersect(self._allowed, [(start, end)])
        direct, changes = allowed, [np.array([begin for begin, _ in allowed], dtype=np.int64)]
        for condition in self._conditions if allowed else ():
            deadlines.check()
            steps = starts(self._view, condition.demand, condition.chosen, self._duration, start, end)
            direct = intersect(direct, steps.where(partial(np.less_equal, condition.needed)))
            changes.append(steps.times)
        loose = self._loose_in(allowed, start, end) if direct != allowed else []
        self._direct += direct
        self._loose += loose
        if direct or loose:
            self._changes_since.append((start, end, np.concatenate(changes)))
        return True

    def _loose_in(self, allowed: list[Stretch], start: int, end: int) -> list[Stretch]:
        """Return the times at which the demands may have room if plans move."""
        for condition in self._conditions:
            deadlines.check()
            steps = starts(self._view, condition.demand, condition.chosen, self._duration, start, end, planned=False)
            allowed = intersect(allowed, steps.where(partial(np.less_equal, condition.needed)))
        whole = sorted((demand for demand in self._demands if demand.exclusive), key=pool_of)
        for (inventory, region), several in groupby(whole, key=pool_of):
            # However the plans are arranged, as many resources are taken as a whole: those in conflict may stay there.
            needed = sum(demand.minimum for demand in several)
            chosen = self._view.catalogue.of_type(inventory, region) & self._view.catalogue.reservable
            left = int(chosen.sum()) - needed
            if not allowed or most_taken_as_whole(self._view, chosen) <= left:
                continue
            taken = taken_as_whole(self._view, chosen).steps(start, end + self._duration)
            crowded = taken.where(partial(np.less, left))
            allowed = intersect(allowed, complement([(begin - self._duration + 1, stop) for begin, stop in crowded]))
        return allowed

    def _plan_ends(self, start: int, end: int) -> Times:
        """Return when plans and allocations end in ``[start, end)`` on resources that are concerned."""
        chosen = concerned(self._view, self._conditions)
        found = [np.zeros(0, dtype=np.int64)]
        for timeline, mask in self._view.timelines(chosen):
            ends = timeline.uses.ends[mask[timeline.uses.rows]]
            found.append(ends[(ends > start) & (ends < end)])
        return np.unique(np.concatenate(found))


def pool_of(demand: Demand) -> tuple[str, str]:
    """Return what demands share that may get the same resources."""
    return demand.inventory, demand.region
