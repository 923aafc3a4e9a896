"""The feed of the ledger: which resources each transaction has changed, so that indexes in memory can follow.

A transaction writes one entry, at its end. An entry names what has changed, not how: the reader reads the present state
of the resources. So an entry may name too much, and may be read twice, without harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, delete, func, insert, or_, select
from sqlalchemy.orm import Session

from tenure.store import conditions
from tenure.store.tables import AllocationRow, FeedRow, FreedRow, ResourceRow

T = TypeVar("T")

#: How long entries are kept. A reader that has not read for longer must read the whole ledger again.
KEPT = timedelta(hours=1)
#: How much earlier than the newest entry others may still appear. Servers give an id when an entry is written, at the
#: end of a transaction; another transaction can get a later id and be committed before.
UNSETTLED = timedelta(seconds=15)
#: How many ids one statement selects; names are parameters, whose number is limited.
_AT_ONCE = 10_000
_NAMES_AT_ONCE = 500


class Feed:
    """What a transaction changes. Only the stores of resources and allocations add to it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._resources: set[int] = set()
        self._reservations: set[str] = set()
        self._allocations: set[int] = set()
        #: Where something may have become free.
        self._freed_resources: set[int] = set()
        self._freed_reservations: set[str] = set()
        self._freed_allocations: set[int] = set()

    def add_resources(self, ids: Iterable[int], *, frees: bool = False) -> None:
        """Record that these resources, or allocations on them, have changed, and whether this may free room."""
        ids = set(ids)
        self._resources |= ids
        self._freed_resources |= ids if frees else set()

    def add_reservations(self, ids: Iterable[str], *, frees: bool = False) -> None:
        """Record that allocations of these reservations have changed and exist, and whether this may free room."""
        ids = set(ids)
        self._reservations |= ids
        self._freed_reservations |= ids if frees else set()

    def add_allocations(self, ids: Iterable[int], *, frees: bool = False) -> None:
        """Record that these allocations have changed and still exist, and whether this may free room."""
        ids = set(ids)
        self._allocations |= ids
        self._freed_allocations |= ids if frees else set()

    def write(self, at: datetime | ColumnElement[datetime]) -> bool:
        """Write the entry of the transaction, if it has changed anything; return whether it has.

        ``at`` is the time of the database.
        """
        parts = {
            "resources": sorted(self._resources),
            "reservations": sorted(self._reservations),
            "allocations": sorted(self._allocations),
        }
        changed = {name: ids for name, ids in parts.items() if ids}
        if changed:
            self._session.execute(insert(FeedRow).values(at=at, changed=changed))
        self._write_freed()
        return bool(changed)

    def _write_freed(self) -> None:
        """Record in which inventories and regions something has become free, for the waiting list.

        That happens also if no lease waits: a lease may just be written to the list, which this transaction cannot see.
        """
        parts: list[ColumnElement[bool]] = []
        if self._freed_resources:
            parts.append(conditions.among(ResourceRow.id, self._freed_resources))
        if self._freed_reservations:
            parts.append(_has_allocations(AllocationRow.reservation_id.in_(sorted(self._freed_reservations))))
        if self._freed_allocations:
            parts.append(_has_allocations(conditions.among(AllocationRow.id, self._freed_allocations)))
        if parts:
            places = select(ResourceRow.resource_type, ResourceRow.region).where(or_(*parts)).distinct()
            self._session.execute(insert(FreedRow).from_select(["inventory", "region"], places))


class EntriesLost(Exception):
    """Entries were pruned before the reader has read them: it must read the whole ledger again."""


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """How far a reader has read: all entries up to the id ``settled``, and those later entries that it has ``seen``."""

    settled: int = 0
    seen: frozenset[int] = frozenset()

    def has(self, entry_id: int) -> bool:
        return entry_id <= self.settled or entry_id in self.seen


class FeedStore:
    """Reads and prunes the feed."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def newest(self) -> FeedPosition:
        """Return the position of a reader that reads the whole ledger in this transaction."""
        newest = self._session.execute(select(FeedRow.at).order_by(FeedRow.id.desc()).limit(1)).scalar_one_or_none()
        if newest is None:
            return FeedPosition()
        unsettled = self._session.execute(select(FeedRow.id).where(FeedRow.at >= newest - UNSETTLED)).scalars()
        seen = frozenset(unsettled)
        return FeedPosition(min(seen) - 1, seen)

    def after(self, position: FeedPosition) -> tuple[set[int], FeedPosition]:
        """Return the ids of the resources that have changed since the position, and the new position.

        Some of the resources may not exist any more. Raises ``EntriesLost``.
        """
        oldest = self._session.execute(select(func.min(FeedRow.id))).scalar_one_or_none()
        if oldest is None:
            return set(), position
        if not position.has(oldest):
            raise EntriesLost
        listed = self._session.execute(
            select(FeedRow.id, FeedRow.at).where(FeedRow.id > position.settled).order_by(FeedRow.id)
        ).all()
        new = [entry_id for entry_id, _ in listed if entry_id not in position.seen]
        if not new:
            return set(), position
        return self._resources_of(new), _position_after(listed, position)

    def prune(self, before: datetime) -> None:
        """Delete old entries. The newest of them stays, so that a reader notices that it has lost entries."""
        old = select(func.max(FeedRow.id)).where(FeedRow.at < before)
        newest = self._session.execute(old).scalar_one_or_none()
        if newest is not None:
            self._session.execute(delete(FeedRow).where(FeedRow.id < newest, FeedRow.at < before))

    def _resources_of(self, entry_ids: Sequence[int]) -> set[int]:
        """Return the ids of the resources that these entries name, directly or by what is on them."""
        parts: dict[str, set[Any]] = {"resources": set(), "reservations": set(), "allocations": set()}
        for ids in batched(entry_ids, _AT_ONCE):
            rows = self._session.execute(select(FeedRow.changed).where(conditions.among(FeedRow.id, ids)))
            for changed in rows.scalars():
                for name, changed_ids in changed.items():
                    parts[name].update(changed_ids)
        found: set[int] = parts["resources"]
        for reservation_ids in batched(sorted(parts["reservations"]), _NAMES_AT_ONCE):
            found.update(self._on(AllocationRow.reservation_id.in_(reservation_ids)))
        for allocation_ids in batched(sorted(parts["allocations"]), _AT_ONCE):
            found.update(self._on(conditions.among(AllocationRow.id, allocation_ids)))
        return found

    def _on(self, condition: ColumnElement[bool]) -> Iterable[int]:
        return self._session.execute(select(AllocationRow.resource_id).where(condition).distinct()).scalars()


def _position_after(listed: Sequence[Any], before: FeedPosition) -> FeedPosition:
    """Return the position after these entries. The latest stay unsettled, so that no entry between them is missed."""
    since = max(at for _, at in listed) - UNSETTLED
    first = next(index for index, (_, at) in enumerate(listed) if at >= since)
    settled = listed[first - 1][0] if first else before.settled
    return FeedPosition(settled, frozenset(entry_id for entry_id, _ in listed[first:]))


def _has_allocations(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a resource has allocations that meet the condition."""
    return ResourceRow.id.in_(select(AllocationRow.resource_id).where(condition))


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in parts of at most ``size``."""
    return (items[first : first + size] for first in range(0, len(items), size))
