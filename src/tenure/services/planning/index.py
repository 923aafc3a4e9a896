"""The index of availability: the ledger in memory, kept in step with the database by the feed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime

import numpy as np

from tenure.clock import Clock
from tenure.collection import spare_loaded_objects
from tenure.domain.listing import ListedUse
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import ticks
from tenure.store.database import Database, Transaction
from tenure.store.feed import EntriesLost, FeedPosition

LOG = logging.getLogger(__name__)

#: How many resources may have changed before the large arrays are made anew: a share of all, and at least a number.
CHANGED_SHARE = 0.05
CHANGED_LEAST = 1000
#: Lists that only grow are made anew when they have this many entries more than twice those that they began with.
SURPLUS = 1000
#: From so many resources on, a garbage collection that visits them all is to be avoided: with 100,000 it takes 20 ms.
MANY_RESOURCES = 10_000


class AvailabilityIndex:
    """Follows the ledger. It proposes; only a transaction decides."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._lock = threading.Lock()
        self._position = FeedPosition()
        self._view: Snapshot | None = None
        #: When it was found to be the present state of the ledger.
        self._followed_at: datetime | None = None
        #: The resources with overdue allocations, as they were read last.
        self._late: set[int] = set()
        #: How long the lists of values were, and those of the catalogue, when they were made anew.
        self._distinct_before = self._catalogue_before = 0

    @property
    def is_at_hand(self) -> bool:
        """Whether a view can be had at once: false while another thread reads the whole ledger for the first time."""
        return self._view is not None or not self._lock.locked()

    def latest(self, *, since: datetime) -> Snapshot | None:
        """Return the ledger as it was last read, if that was after a moment; the database is not asked."""
        view, at = self._view, self._followed_at
        return None if at is None or at < since else view

    def view(self) -> Snapshot:
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
            much = np.count_nonzero(view.changed) > max(CHANGED_LEAST, CHANGED_SHARE * len(view.catalogue))
            if much or _has_outgrown(view.distinct.size, self._distinct_before):
                self._view = view.consolidated(self._clock.now())
                self._distinct_before = self._view.distinct.size

    def _follow_now(self) -> Snapshot:
        now = self._clock.now()
        view = self._follow(now)
        self._followed_at = now
        return view

    def _follow(self, now: datetime) -> Snapshot:
        view = self._view
        with self._db.read() as tx:
            if view is None:
                return self._read(tx, now)
            try:
                changes, position = tx.feed.after(self._position)
            except EntriesLost:
                LOG.warning("the index of availability has missed changes; it reads the whole ledger again")
                return self._read(tx, now)
            changed = changes.resources | self._overdue(view, now)
            resources = list(tx.ledger.resources(changed)) if changed else []
            uses = list(tx.ledger.uses(now, changed)) if changed else []
            extended = changes.extended - changed
            versions = tx.ledger.versions(extended) if extended else {}
            added = list(tx.ledger.uses_of(now, changes.reservations)) if extended else []
        if extended:
            view = view.extended(versions, changes.reservations, added, now)
        if changed:
            view = view.following(changed, resources, uses, now)
            self._late = self._late - changed | _late_in(uses, now)
        self._position, self._view = position, view
        return view

    def _read(self, tx: Transaction, now: datetime) -> Snapshot:
        """Read the whole ledger."""
        self._position = tx.feed.newest()
        self._late = set()
        self._view = Snapshot.of(tx.ledger.resources(), self._noting_late(tx.ledger.uses(now), now), now)
        self._distinct_before, self._catalogue_before = self._view.distinct.size, self._view.catalogue.size
        if len(self._view.catalogue) >= MANY_RESOURCES:
            spare_loaded_objects()
        return self._view

    def _noting_late(self, uses: Iterable[ListedUse], now: datetime) -> Iterator[ListedUse]:
        for use in uses:
            if use.is_overdue(now):
                self._late.add(use.resource_id)
            yield use

    def _overdue(self, view: Snapshot, now: datetime) -> set[int]:
        """Return the resources with an allocation that should have been released.

        Their allocations are read again at each look: an overdue allocation counts as one that goes on for a while.
        """
        over = view.uses_where(lambda uses: uses.in_use & (uses.ends <= ticks(now)))
        return self._late | {view.catalogue.ids[row] for row in over.rows}


def _late_in(uses: Iterable[ListedUse], now: datetime) -> set[int]:
    """Return the resources with overdue allocations."""
    return {use.resource_id for use in uses if use.is_overdue(now)}


def _has_outgrown(size: int, before: int) -> bool:
    """Whether lists that only grow are so much longer than when they were made that they are to be made anew."""
    return size > 2 * before + SURPLUS
