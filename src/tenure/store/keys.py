"""The keys by which clients mark requests that they repeat."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from tenure.store.tables import IdempotencyKeyRow

#: How many outdated keys a transaction deletes at most. Each adds one, so that outdated keys do not pile up.
BATCH = 100


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key with the digest of its request, and the id of what the request makes."""

    digest: str
    made_id: str


class KeyStore:
    """The table of keys."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, key_id: str, *, since: datetime) -> StoredKey | None:
        """Return the key with this id; None if there is none that was written since a date."""
        row = self._session.get(IdempotencyKeyRow, key_id)
        return None if row is None or row.created_at < since else StoredKey(row.digest, row.made_id)

    def count(self, project_id: str, *, since: datetime) -> int:
        """Return how many keys a project has written since a date."""
        counted = select(func.count()).where(
            IdempotencyKeyRow.project_id == project_id, IdempotencyKeyRow.created_at >= since
        )
        return self._session.execute(counted).scalar_one()

    def put(self, key_id: str, project_id: str, key: StoredKey, now: datetime) -> None:
        """Write a key, in place of an older one with this id."""
        self._delete([key_id])
        row = {
            "id": key_id,
            "project_id": project_id,
            "digest": key.digest,
            "made_id": key.made_id,
            "created_at": now,
        }
        self._session.execute(insert(IdempotencyKeyRow), [row])

    def prune(self, before: datetime) -> None:
        """Delete keys that were written before a date: up to ``BATCH`` of them, the oldest first."""
        outdated = (
            select(IdempotencyKeyRow.id)
            .where(IdempotencyKeyRow.created_at < before)
            .order_by(IdempotencyKeyRow.created_at)
            .limit(BATCH)
        )
        self._delete(list(self._session.scalars(outdated)))

    def _delete(self, key_ids: Collection[str]) -> None:
        if key_ids:
            self._session.execute(
                delete(IdempotencyKeyRow)
                .where(IdempotencyKeyRow.id.in_(key_ids))
                .execution_options(synchronize_session=False)
            )
