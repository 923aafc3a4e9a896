"""Purging: deleting ended leases and delivered messages, in small transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenure.store.database import Database, Transaction
from tenure.store.upkeep import LEASES_PURGED

#: How many leases, and how many messages, one transaction deletes.
LEASES_AT_ONCE = 100
MESSAGES_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class PurgeTerms:
    """What is purged from time to time; None for what is kept for ever."""

    #: How long ended and deleted leases are kept, with their history.
    ended_leases: timedelta | None = None
    #: How long delivered messages are kept.
    delivered_messages: timedelta | None = timedelta(days=7)
    #: How many deleted leases that never began are kept of each project.
    unbegun_leases: int | None = 1000


@dataclass(frozen=True, slots=True)
class Purged:
    """How much was deleted, or would be."""

    leases: int = 0
    messages: int = 0


class PurgeService:
    """Deletes what is over. It may be interrupted at any time, and several may run at once."""

    def __init__(self, db: Database, terms: PurgeTerms | None = None) -> None:
        self._db = db
        self._terms = terms or PurgeTerms()

    def preview(self, before: datetime) -> Purged:
        """Return what ``purge`` would delete."""
        with self._db.read() as tx:
            return Purged(tx.purge.count_ended(before), tx.purge.count_messages(before))

    def purge(self, before: datetime) -> Purged:
        """Delete the leases that were over before a moment, and the messages that arrived before it.

        From then on, accounts of periods that begin earlier say that they are incomplete.
        """
        return Purged(self._purge_leases(before), self._purge_messages(before))

    def run(self) -> Purged:
        """Purge what the terms say."""
        with self._db.read() as tx:
            now = tx.now()
        terms = self._terms
        leases = messages = 0
        if terms.unbegun_leases is not None:
            leases += self.bound_unbegun(terms.unbegun_leases)
        if terms.ended_leases is not None:
            leases += self._purge_leases(now - terms.ended_leases)
        if terms.delivered_messages is not None:
            messages = self._purge_messages(now - terms.delivered_messages)
        return Purged(leases, messages)

    def bound_unbegun(self, count: int) -> int:
        """Delete leases that were deleted before they began, but for the newest of each project; return their number.

        They have no part in accounts. Raises what ``Database.write`` raises.
        """
        with self._db.read() as tx:
            projects = tx.purge.projects_with_more(count)
        return sum(self._delete_unbegun(project, but=count) for project in projects)

    def _delete_unbegun(self, project_id: str, *, but: int) -> int:
        return sum(self._in_batches(lambda tx: tx.purge.unbegun(project_id, but=but, limit=LEASES_AT_ONCE)))

    def _purge_leases(self, before: datetime) -> int:
        with self._db.read() as tx:
            if not tx.purge.ended(before, 1):
                return 0
        self._db.write(_note_purged, before)  # before anything is missing
        return sum(self._in_batches(lambda tx: tx.purge.ended(before, LEASES_AT_ONCE)))

    def _in_batches(self, find: Callable[[Transaction], list[str]]) -> Iterator[int]:
        """Delete the leases that are found, until none is; yield how many each transaction deletes."""
        while count := self._db.write(_delete_found, find):
            yield count

    def _purge_messages(self, before: datetime) -> int:
        total = 0
        while count := self._db.write(lambda tx: tx.purge.delete_messages(before, MESSAGES_AT_ONCE)):
            total += count
        return total


def _delete_found(tx: Transaction, find: Callable[[Transaction], list[str]]) -> int:
    ids = find(tx)
    if ids:
        tx.purge.delete_leases(ids)
    return len(ids)


def _note_purged(tx: Transaction, before: datetime) -> None:
    known = tx.upkeep.at(LEASES_PURGED)
    tx.upkeep.record(LEASES_PURGED, before if known is None else max(known, before))
