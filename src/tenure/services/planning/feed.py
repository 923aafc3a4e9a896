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

        def work(tx: Transaction) -> None:
            tx.feed.prune(tx.now() - self._keep)

        self._db.write(work)
