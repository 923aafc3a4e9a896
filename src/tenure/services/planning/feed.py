"""The upkeep of the feed."""

from __future__ import annotations

from datetime import timedelta

from tenure.store.database import Database, Transaction
from tenure.store.feed import KEPT


class FeedService:
    """Deletes old entries of the feed."""

    def __init__(self, db: Database, keep: timedelta = KEPT) -> None:
        self._db = db
        self._keep = keep

    def prune(self) -> None:
        """Delete the entries that no reader needs any more."""
        self._db.write(_prune, self._keep)


def _prune(tx: Transaction, keep: timedelta) -> None:
    tx.feed.prune(tx.now() - keep)
