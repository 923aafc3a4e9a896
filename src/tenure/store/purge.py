"""Deleting what is not needed any more: ended leases with all that belongs to them, and delivered messages."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from tenure.domain.lease import LeaseStatus
from tenure.store.conditions import IS_PAST
from tenure.store.feed import Feed
from tenure.store.tables import (
    AllocationRow,
    BootRow,
    EventRow,
    HistoryRow,
    LeaseRow,
    OutboxRow,
    ReservationRow,
    WaitingLineRow,
    WaitingRow,
)
from tenure.store.writing import count_changed

_OVER = (LeaseStatus.TERMINATED.value, LeaseStatus.ERROR.value, LeaseStatus.DELETED.value)


class PurgeStore:
    """Finds and deletes leases that are over, and messages that have arrived.

    A lease is over once it has ended or was deleted, nothing is left of it in the cloud or to be done there, and all
    its messages have arrived.
    """

    def __init__(self, session: Session, changed: Feed) -> None:
        self._session = session
        self._changed = changed

    def count_ended(self, before: datetime) -> int:
        """Count the leases that were over before a moment."""
        return self._session.execute(select(func.count()).select_from(LeaseRow).where(_ended(before))).scalar_one()

    def ended(self, before: datetime, limit: int) -> list[str]:
        """Return ids of leases that were over before a moment."""
        return list(self._session.execute(select(LeaseRow.id).where(_ended(before)).limit(limit)).scalars())

    def projects_with_more(self, count: int) -> list[str]:
        """Return the projects that have more deleted leases than this, whether they began or not."""
        rows = self._session.execute(
            select(LeaseRow.project_id)
            .where(LeaseRow.deleted_at.is_not(None))
            .group_by(LeaseRow.project_id)
            .having(func.count() > count)
        )
        return list(rows.scalars())

    def unbegun(self, project_id: str, *, but: int, limit: int) -> list[str]:
        """Return deleted leases of a project that never began, without the newest of them, ``but`` many."""
        rows = self._session.execute(
            select(LeaseRow.id)
            .where(LeaseRow.project_id == project_id, _is_unbegun(), _is_done())
            .order_by(LeaseRow.deleted_at.desc(), LeaseRow.id.desc())
            .offset(but)
            .limit(limit)
        )
        return list(rows.scalars())

    def delete_leases(self, ids: Collection[str]) -> None:
        """Delete leases with their reservations, allocations, events, history and messages.

        The feed names their resources: a reader may not have read that something of theirs was given back.
        """
        reservations = select(ReservationRow.id).where(ReservationRow.lease_id.in_(ids))
        theirs = AllocationRow.reservation_id.in_(reservations)
        resources = self._session.execute(select(AllocationRow.resource_id).where(theirs).distinct()).scalars().all()
        self._changed.add_resources(resources)
        lines = select(WaitingRow.number).where(WaitingRow.lease_id.in_(ids))
        for table, condition in (
            (AllocationRow, theirs),
            (EventRow, EventRow.lease_id.in_(ids)),
            (HistoryRow, HistoryRow.lease_id.in_(ids)),
            (WaitingLineRow, WaitingLineRow.number.in_(lines)),
            (WaitingRow, WaitingRow.lease_id.in_(ids)),
            (BootRow, BootRow.lease_id.in_(ids)),
            (OutboxRow, OutboxRow.lease_id.in_(ids)),
            (ReservationRow, ReservationRow.lease_id.in_(ids)),
            (LeaseRow, LeaseRow.id.in_(ids)),
        ):
            self._session.execute(delete(table).where(condition).execution_options(synchronize_session=False))

    def count_messages(self, before: datetime) -> int:
        """Count the messages that arrived before a moment and that nothing refers to any more."""
        return self._session.execute(select(func.count()).select_from(OutboxRow).where(_unneeded(before))).scalar_one()

    def delete_messages(self, before: datetime, limit: int) -> int:
        """Delete so many of these messages at most; return their number."""
        ids = self._session.execute(select(OutboxRow.id).where(_unneeded(before)).limit(limit)).scalars().all()
        if not ids:
            return 0
        deleting = delete(OutboxRow).where(OutboxRow.id.in_(ids)).execution_options(synchronize_session=False)
        return count_changed(self._session, deleting)


def _ended(before: datetime) -> ColumnElement[bool]:
    """Whether a lease was over before a moment."""
    return and_(
        or_(
            LeaseRow.deleted_at < before,
            and_(LeaseRow.deleted_at.is_(None), LeaseRow.status.in_(_OVER), LeaseRow.ends_at < before),
        ),
        # An ended lease that was changed later, such as by a late teardown, was over only then.
        or_(LeaseRow.updated_at.is_(None), LeaseRow.updated_at < before),
        _is_done(),
        ~_has_allocations(or_(~IS_PAST, AllocationRow.ends_at >= before)),
    )


def _is_done() -> ColumnElement[bool]:
    """Whether nothing of a lease that is over is left to be done."""
    return and_(
        LeaseRow.status.in_(_OVER),
        LeaseRow.trust_id.is_(None),
        ~exists().where(EventRow.lease_id == LeaseRow.id, EventRow.ready_at.is_not(None)),
        ~exists().where(OutboxRow.lease_id == LeaseRow.id, OutboxRow.delivered_at.is_(None)),
        ~exists().where(ReservationRow.lease_id == LeaseRow.id, ReservationRow.subject.is_not(None)),
    )


def _is_unbegun() -> ColumnElement[bool]:
    """Whether a lease was deleted before it had anything: plans are deleted with it, the rest stays."""
    return and_(
        LeaseRow.deleted_at.is_not(None),
        LeaseRow.status == LeaseStatus.DELETED.value,
        ~_has_allocations(AllocationRow.id.is_not(None)),
    )


def _has_allocations(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return (
        select(AllocationRow.id)
        .join(ReservationRow, ReservationRow.id == AllocationRow.reservation_id)
        .where(ReservationRow.lease_id == LeaseRow.id, condition)
        .exists()
    )


def _unneeded(before: datetime) -> ColumnElement[bool]:
    """Whether a message arrived before a moment, and no later message is compared with it.

    Messages to services that keep accounts are needed while their lease lasts.
    """
    living = exists().where(
        LeaseRow.id == OutboxRow.lease_id, LeaseRow.deleted_at.is_(None), LeaseRow.status.not_in(_OVER)
    )
    return and_(OutboxRow.delivered_at < before, or_(OutboxRow.channel == "", ~living))
