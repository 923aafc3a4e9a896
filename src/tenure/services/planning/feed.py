"""The upkeep of the feed."""

from __future__ import annotations

from datetime import timedelta

from tenure.store.database import Database, Transaction
from tenure.store.feed import RETENTION


class FeedService:
    """Deletes old entries of the feed."""

    def __init__(self, db: Database, retention: timedelta = RETENTION) -> None:
        self._db = db
        self._retention = retention

    def prune(self) -> None:
        """Delete the entries that no reader needs any more."""
        self._db.write(_prune, self._retention)


def _prune(tx: Transaction, retention: timedelta) -> None:
    tx.feed.prune(tx.now() - retention)
