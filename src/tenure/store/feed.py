"""The feed of the ledger: which resources each transaction has changed, so that indexes in memory can follow.

A transaction writes one entry, at its end. An entry names what has changed, not how: the reader reads the present state
of the resources. So an entry may name too much, and may be read twice, without harm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, bindparam, delete, func, insert, or_, select
from sqlalchemy.orm import Session, aliased

from tenure.store import conditions
from tenure.store.statements import insert_rows, run
from tenure.store.tables import AllocationRow, FeedRow, FreedRow, ResourceRow

T = TypeVar("T")

#: How long entries are kept. A reader that has not read for longer must read the whole ledger again.
RETENTION = timedelta(hours=1)
#: How much earlier than the newest entry others may still appear. Servers give an id when an entry is written, at the
#: end of a transaction; another transaction can get a later id and be committed before.
UNSETTLED = timedelta(seconds=15)
#: How many ids before the newest may be missing: more are taken within ``UNSETTLED`` by no site.
MOST_MISSING = 10_000
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
        #: Which resources have got allocations, and of which reservations.
        self._extended: set[int] = set()
        self._extended_by: set[str] = set()
        #: Where something may have become free.
        self._freed_resources: set[int] = set()
        self._freed_reservations: set[str] = set()
        self._freed_allocations: set[int] = set()

    def add_resources(self, ids: Iterable[int], *, frees: bool = False) -> None:
        """Record that these resources, or allocations on them, have changed, and whether this may free room."""
        ids = set(ids)
        self._resources |= ids
        self._freed_resources |= ids if frees else set()

    def add_new(self, resource_ids: Iterable[int], reservation_ids: Iterable[str]) -> None:
        """Record that these reservations have got allocations on these resources."""
        self._extended |= set(resource_ids)
        self._extended_by |= set(reservation_ids)

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
        ids_by_name = {
            "resources": sorted(self._resources),
            "reservations": sorted(self._reservations),
            "allocations": sorted(self._allocations),
            "extended": sorted(self._extended),
            "extended_by": sorted(self._extended_by),
        }
        changed = {name: ids for name, ids in ids_by_name.items() if ids}
        if changed:
            if isinstance(at, datetime):
                insert_rows(self._session, FeedRow, [{"at": at, "changed": changed}])
            else:
                self._session.execute(insert(FeedRow).values(at=at, changed=changed))
        self._write_freed()
        return bool(changed)

    def _write_freed(self) -> None:
        """Record in which inventories and regions something has become free, for the waiting list.

        That happens also if no lease waits: a lease may just be written to the list, which this transaction cannot see.
        """
        freed: list[ColumnElement[bool]] = []
        if self._freed_resources:
            freed.append(conditions.among(ResourceRow.id, self._freed_resources))
        if self._freed_reservations:
            freed.append(_has_allocations(AllocationRow.reservation_id.in_(sorted(self._freed_reservations))))
        if self._freed_allocations:
            freed.append(_has_allocations(conditions.among(AllocationRow.id, self._freed_allocations)))
        if freed:
            pools = select(ResourceRow.resource_type, ResourceRow.region).where(or_(*freed)).distinct()
            self._session.execute(insert(FreedRow).from_select(["inventory", "region"], pools))


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """What has changed in the ledger.

    The ``resources`` have changed in any way, or what is on them. The ``extended`` ones, which are others, have got
    allocations of the ``reservations``; nothing else of them has changed.
    """

    resources: frozenset[int] = frozenset()
    extended: frozenset[int] = frozenset()
    reservations: frozenset[str] = frozenset()

    @property
    def every(self) -> frozenset[int]:
        """All resources of which something has changed."""
        return self.resources | self.extended


class EntriesLost(Exception):
    """Entries were pruned before the reader has read them: it must read the whole ledger again."""


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """How far a reader has read: all entries up to the id ``last``, but those with ids that were ``missing``.

    Each of the latter with the time of the newest entry when it was missed first: it may still be committed.
    """

    last: int = 0
    missing: Mapping[int, datetime] = field(default_factory=dict)

    def after(self, entries: Mapping[int, datetime]) -> FeedPosition:
        """Return the position after entries were read, by id, each with its time."""
        last, newest = max(entries), max(entries.values())
        skipped = range(max(self.last + 1, last - MOST_MISSING), last)
        missing = {**dict.fromkeys(skipped, newest), **self.missing}
        return FeedPosition(
            max(self.last, last),
            {
                entry_id: since
                for entry_id, since in missing.items()
                if entry_id not in entries and newest - since <= UNSETTLED
            },
        )


_NEWEST = select(FeedRow.id, FeedRow.at).order_by(FeedRow.id.desc()).limit(1)
_SINCE = select(FeedRow.id).where(FeedRow.at >= bindparam("since"))
_AFTER = select(
    FeedRow.id, FeedRow.at, FeedRow.changed, select(func.min(aliased(FeedRow).id)).scalar_subquery().label("oldest")
).where(or_(FeedRow.id > bindparam("last"), FeedRow.id.in_(bindparam("missing", expanding=True))))


class FeedStore:
    """Reads and prunes the feed."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def newest(self) -> FeedPosition:
        """Return the position of a reader that reads the whole ledger in this transaction."""
        newest = run(self._session, _NEWEST).first()
        if newest is None:
            return FeedPosition()
        there = set(run(self._session, _SINCE, {"since": newest.at - UNSETTLED}).scalars())
        first = max(min(there), newest.id - MOST_MISSING)
        return FeedPosition(newest.id, dict.fromkeys(set(range(first, newest.id)) - there, newest.at))

    def after(self, position: FeedPosition) -> tuple[LedgerChanges, FeedPosition]:
        """Return what has changed since the position, and the new position.

        Some of the resources may not exist any more. Raises ``EntriesLost``.
        """
        found = run(self._session, _AFTER, {"last": position.last, "missing": list(position.missing)}).all()
        if not found:
            return LedgerChanges(), position
        if found[0].oldest > position.last:
            raise EntriesLost
        return self._changes_of(entry.changed for entry in found), position.after(
            {entry.id: entry.at for entry in found}
        )

    def prune(self, before: datetime) -> None:
        """Delete old entries. The newest of them stays, so that a reader notices that it has lost entries."""
        old = select(func.max(FeedRow.id)).where(FeedRow.at < before)
        newest = self._session.execute(old).scalar_one_or_none()
        if newest is not None:
            self._session.execute(delete(FeedRow).where(FeedRow.id < newest, FeedRow.at < before))

    def _changes_of(self, entries: Iterable[Mapping[str, Iterable[Any]]]) -> LedgerChanges:
        """Return what entries name: resources directly or by what is on them."""
        ids_by_name: defaultdict[str, set[Any]] = defaultdict(set)
        for changed in entries:
            for name, changed_ids in changed.items():
                ids_by_name[name].update(changed_ids)
        found: set[int] = ids_by_name["resources"]
        for reservation_ids in batched(sorted(ids_by_name["reservations"]), _NAMES_AT_ONCE):
            found.update(self._on(AllocationRow.reservation_id.in_(reservation_ids)))
        for allocation_ids in batched(sorted(ids_by_name["allocations"]), _AT_ONCE):
            found.update(self._on(conditions.among(AllocationRow.id, allocation_ids)))
        extended = ids_by_name["extended"] - found
        return LedgerChanges(frozenset(found), frozenset(extended), frozenset(ids_by_name["extended_by"]))

    def _on(self, condition: ColumnElement[bool]) -> Iterable[int]:
        return self._session.execute(select(AllocationRow.resource_id).where(condition).distinct()).scalars()


def _has_allocations(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a resource has allocations that meet the condition."""
    return ResourceRow.id.in_(select(AllocationRow.resource_id).where(condition))


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in parts of at most ``size``."""
    return (items[first : first + size] for first in range(0, len(items), size))
