"""The index of availability: the ledger in memory, kept in step with the database by the feed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np

from tenure.clock import Clock
from tenure.collection import spare_loaded_objects
from tenure.domain.capacity import Capacity
from tenure.domain.period import ENDLESS, TICK
from tenure.services.availability.catalogue import Catalogue, Distinct, V
from tenure.services.availability.steps import FOREVER, Mask, ticks
from tenure.services.availability.timeline import Rows, Timeline, Uses
from tenure.store.conditions import OVERDUE_MATTERS
from tenure.store.database import Database, Transaction
from tenure.store.feed import EntriesLost, FeedPosition
from tenure.store.ledger import ListedUse

LOG = logging.getLogger(__name__)

#: How many resources may have changed before the large arrays are made anew: a share of all, and at least a number.
CHANGED_SHARE = 0.05
CHANGED_LEAST = 1000
#: Lists that only grow are made anew when they have this many entries more than twice those that they began with.
SURPLUS = 1000
#: Below this share of the resources, a search reads only the allocations of those that it is about.
FEW_SHARE = 0.02
#: Up to this share it does so as well, and they are remembered: to select them takes longer than to search once.
SOME_SHARE = 0.5
#: From so many resources on, a garbage collection that visits them all is to be avoided: with 100,000 it takes 20 ms.
MANY_RESOURCES = 10_000


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
        amounts, new_amounts = _renumbered(self.amounts, uses.amounts)
        projects, new_projects = _renumbered(self.projects, uses.projects)
        return DistinctValues(amounts, projects), replace(uses, amounts=new_amounts, projects=new_projects)


@dataclass(frozen=True, slots=True)
class View:
    """The ledger at one moment. It does not change.

    ``base`` has the allocations of the resources that have not changed since it was made, ``latest`` those of the
    ``changed`` ones.
    """

    catalogue: Catalogue
    base: Timeline
    latest: Timeline
    changed: Mask
    distinct: DistinctValues

    def parts(self, chosen: Mask) -> Iterator[tuple[Timeline, Mask]]:
        """Yield both timelines, each with those of the chosen resources that it has.

        Unless most resources are chosen, the timelines have no others than these.
        """
        for timeline, mask in ((self.base, chosen & ~self.changed), (self.latest, chosen & self.changed)):
            if not len(timeline.covered):
                continue
            share = np.count_nonzero(mask) / len(timeline.covered)
            if share < FEW_SHARE:
                yield timeline.of(mask), mask
            elif timeline is self.base and share < SOME_SHARE:
                yield timeline.remembered(chosen), mask  # what has changed is left out by the mask
            else:
                yield timeline, mask


class AvailabilityIndex:
    """Follows the ledger. It proposes; only a transaction decides."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._lock = threading.Lock()
        self._position = FeedPosition()
        self._view: View | None = None
        #: When it was found to be the present state of the ledger.
        self._followed_at: datetime | None = None
        #: The allocations of the resources that have changed since the large arrays were made, by row.
        self._latest: dict[int, list[ListedUse]] = {}
        #: The first end of those of them that are not plans, by row.
        self._first_end: dict[int, datetime] = {}
        self._distinct = DistinctValues()
        #: How long the lists of values were, and those of the catalogue, when they were made anew.
        self._distinct_before = self._catalogue_before = 0

    @property
    def is_at_hand(self) -> bool:
        """Whether a view can be had at once: false while another thread reads the whole ledger for the first time."""
        return self._view is not None or not self._lock.locked()

    def latest(self, *, since: datetime) -> View | None:
        """Return the ledger as it was last read, if that was after a moment; the database is not asked."""
        view, at = self._view, self._followed_at
        return None if at is None or at < since else view

    def view(self) -> View:
        """Return the ledger as it is now: what has changed since the last call is read.

        Raises ``Unavailable`` if the database does not work.
        """
        with self._lock:
            return self._follow_now()

    def refresh(self) -> None:
        """Follow the ledger, and make anew what has grown or changed much: for a thread in the background."""
        with self._lock:
            view = self._follow_now()
            if _has_outgrown(view.catalogue.size, self._catalogue_before):
                with self._db.read() as tx:
                    view = self._read(tx, self._clock.now())
            much = len(self._latest) > max(CHANGED_LEAST, CHANGED_SHARE * len(view.catalogue))
            if much or _has_outgrown(self._distinct.size, self._distinct_before):
                self._consolidate(view)

    def _follow_now(self) -> View:
        now = self._clock.now()
        view = self._follow(now)
        self._followed_at = now
        return view

    def _follow(self, now: datetime) -> View:
        view = self._view
        with self._db.read() as tx:
            if view is None:
                return self._read(tx, now)
            try:
                changed, position = tx.feed.after(self._position)
            except EntriesLost:
                LOG.warning("the index of availability has missed changes; it reads the whole ledger again")
                return self._read(tx, now)
            changed |= self._overdue(view, now)
            resources = list(tx.ledger.resources(changed)) if changed else []
            uses = list(tx.ledger.uses(now, changed)) if changed else []
        if changed:
            gone = changed - {resource.id for resource in resources}
            catalogue = view.catalogue.changed(resources, gone)
            self._note(catalogue, changed, uses)
            view = self._with_latest(catalogue, view.base, now)
        self._position, self._view = position, view
        return view

    def _read(self, tx: Transaction, now: datetime) -> View:
        """Read the whole ledger."""
        self._position = tx.feed.newest()
        self._distinct, self._latest, self._first_end = DistinctValues(), {}, {}
        catalogue = Catalogue().changed(tx.ledger.resources())
        rows = ((catalogue.row_of(use.resource_id), use) for use in tx.ledger.uses(now))
        uses = arrays_of(((row, use) for row, use in rows if row is not None), self._distinct, now)
        base = Timeline(uses, np.arange(len(catalogue), dtype=np.int32))
        self._view = self._with_latest(catalogue, base, now)
        self._distinct_before, self._catalogue_before = self._distinct.size, catalogue.size
        if len(catalogue) >= MANY_RESOURCES:
            spare_loaded_objects()
        return self._view

    def _note(self, catalogue: Catalogue, changed: Collection[int], uses: Iterable[ListedUse]) -> None:
        """Keep the allocations of the changed resources."""
        for each in changed:
            row = catalogue.row_of(each)
            if row is not None:  # otherwise the resource was never registered
                self._latest[row] = []
                self._first_end.pop(row, None)
        for use in uses:
            row = catalogue.row_of(use.resource_id)
            if row is not None:
                self._latest[row].append(use)
                if not use.planned:
                    self._first_end[row] = min(use.ends_at, self._first_end.get(row, use.ends_at))

    def _with_latest(self, catalogue: Catalogue, base: Timeline, now: datetime) -> View:
        changed = np.zeros(len(catalogue), dtype=np.bool_)
        covered = np.array(sorted(self._latest), dtype=np.int32)
        changed[covered] = True
        uses = ((row, use) for row, uses in self._latest.items() for use in uses)
        latest = arrays_of(uses, self._distinct, now)
        return View(catalogue, base, Timeline(latest, covered), changed, self._distinct)

    def _consolidate(self, view: View) -> None:
        """Make the large arrays anew, without what is over."""
        now = ticks(self._clock.now())
        base, latest = view.base.uses, view.latest.uses
        uses = base.select(~view.changed[base.rows] & (base.ends > now)).beside(latest)
        self._distinct, uses = self._distinct.in_use_by(uses)
        self._distinct_before = self._distinct.size
        timeline = Timeline(uses, np.arange(len(view.catalogue), dtype=np.int32))
        self._latest, self._first_end = {}, {}
        self._view = self._with_latest(view.catalogue, timeline, self._clock.now())

    def _overdue(self, view: View, now: datetime) -> set[int]:
        """Return the resources with an allocation that should have been released.

        Their allocations are read again at each look: an overdue allocation counts as one that goes on for a while.
        """
        fixed, ids = view.base.fixed, view.catalogue.ids
        late = fixed.rows[(fixed.ends <= ticks(now)) & ~view.changed[fixed.rows]]
        rows = {int(row) for row in late}
        rows |= {row for row, end in self._first_end.items() if end <= now}
        return {ids[row] for row in rows}


def _has_outgrown(size: int, before: int) -> bool:
    """Whether lists that only grow are so much longer than when they were made that they are to be made anew."""
    return size > 2 * before + SURPLUS


def _renumbered(values: Distinct[V], numbers: Rows) -> tuple[Distinct[V], Rows]:
    """Return a list of the values of these numbers, and the numbers that they have there."""
    used, places = np.unique(numbers, return_inverse=True)
    shorter: Distinct[V] = Distinct()
    for number in used:
        shorter.number(values.values[number])
    return shorter, places.astype(np.int32).reshape(-1)


def arrays_of(uses: Iterable[tuple[int, ListedUse]], distinct: DistinctValues, now: datetime) -> Uses:
    """Return allocations, with the rows of their resources, as arrays; new amounts and projects are added.

    An overdue allocation goes on for as long as it matters.
    """
    rows: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    exclusive: list[bool] = []
    planned: list[bool] = []
    amounts: list[int] = []
    projects: list[int] = []
    overdue_until = ticks(now + OVERDUE_MATTERS + TICK)
    for row, use in uses:
        rows.append(row)
        starts.append(ticks(use.starts_at))
        if use.ends_at >= ENDLESS:
            ends.append(FOREVER)
        else:
            ends.append(overdue_until if use.ends_at <= now and not use.planned else ticks(use.ends_at))
        exclusive.append(use.exclusive)
        planned.append(use.planned)
        amounts.append(distinct.amounts.number(use.amounts))
        projects.append(distinct.projects.number(use.project_id))
    return Uses(
        _small(rows),
        np.array(starts, dtype=np.int64),
        np.array(ends, dtype=np.int64),
        np.array(exclusive, dtype=np.bool_),
        np.array(planned, dtype=np.bool_),
        _small(amounts),
        _small(projects),
    )


def _small(numbers: list[int]) -> Rows:
    return np.array(numbers, dtype=np.int32)
