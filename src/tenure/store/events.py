"""Events: which are due, and who has claimed them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased

from tenure.domain.lease import AllocationState, Event, EventStatus, EventType, LeaseStatus
from tenure.store.leases import event_of
from tenure.store.statements import insert_rows
from tenure.store.tables import AllocationRow, EventRow, LeaseRow, ReservationRow, UtcDateTime
from tenure.store.writing import change_row, count_changed, try_change_row

#: How long a due start waits for resources that are being released, before it looks for others.
PATIENCE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with the columns that only the engine needs."""

    event: Event
    ready_at: datetime | None
    claim_token: str | None
    payload: Mapping[str, Any] | None = None


class EventStore:
    """The table of events."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(
        self,
        events: Iterable[Event],
        *,
        claim: tuple[str, datetime] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        """Write new events; with ``claim`` (token and expiry) they are claimed already."""
        rows = [
            {
                "id": event.id,
                "lease_id": event.lease_id,
                "event_type": event.event_type.value,
                "rank": event.event_type.rank,
                "due_at": event.due_at,
                "status": event.status.value,
                "ready_at": claim[1] if claim else event.due_at,
                "claim_token": claim[0] if claim else None,
                "attempts": event.attempts,
                "payload": payload if event.message is None else {"message": event.message},
                "created_at": event.created_at,
            }
            for event in events
        ]
        insert_rows(self._session, EventRow, rows)

    def get(self, event_id: str) -> StoredEvent | None:
        row = self._session.get(EventRow, event_id, populate_existing=True)
        return StoredEvent(event_of(row), row.ready_at, row.claim_token, row.payload) if row else None

    def of_lease(self, lease_id: str) -> list[StoredEvent]:
        rows = self._session.execute(
            select(EventRow)
            .where(EventRow.lease_id == lease_id)
            .order_by(EventRow.rank, EventRow.created_at, EventRow.id)
            .execution_options(populate_existing=True)
        ).scalars()
        return [StoredEvent(event_of(row), row.ready_at, row.claim_token, row.payload) for row in rows]

    def ready(self, now: datetime, limit: int, *, starts: bool) -> list[str]:
        """Return the ids of events that a worker may claim now: either only starts, or only the others.

        Events that have been ready longest come first; at the same instant, ends come before others. Starts whose
        resources are not released yet are left out: only starts wait for other leases.
        """
        statement = _READY_STARTS if starts else _READY_OTHERS
        return list(self._session.execute(statement, {**_time_parameters(now), "limit": limit}).scalars())

    def oldest_ready_at(self, now: datetime) -> datetime | None:
        """Return since when the event that has been claimable for the longest time is ready."""
        return self._session.execute(_OLDEST_READY_AT, _time_parameters(now)).scalar_one_or_none()

    def waiting(self, now: datetime, limit: int) -> list[str]:
        """Return the ids of due starts whose resources other leases still hold, without a release in progress.

        ``AllocationStore.predecessors`` tells whether such a start can go on all the same.
        """
        return list(self._session.execute(_WAITING, {**_time_parameters(now), "limit": limit}).scalars())

    def next_ready_at(self, after: datetime) -> datetime | None:
        return self._session.execute(
            select(func.min(EventRow.ready_at)).where(EventRow.ready_at > after)
        ).scalar_one_or_none()

    def is_claimable(self, event_id: str, now: datetime) -> bool:
        """Whether a worker may claim the event now; ignores the resources that a start may have to wait for."""
        return self._session.execute(_IS_CLAIMABLE, {**_time_parameters(now), "event_id": event_id}).first() is not None

    def claim(self, stored: StoredEvent, *, token: str, until: datetime, now: datetime) -> int:
        """Claim the event and return the number of the attempt, from 1; raise ``Overtaken`` if it has changed.

        Taking over an expired claim continues the same attempt, because nothing has failed.
        """
        attempts = stored.event.attempts + (stored.claim_token is None)
        seen_token = (
            EventRow.claim_token.is_(None) if stored.claim_token is None else EventRow.claim_token == stored.claim_token
        )
        change_row(
            self._session,
            update(EventRow)
            .where(EventRow.id == stored.event.id, EventRow.ready_at == stored.ready_at, seen_token)
            .values(
                claim_token=token,
                ready_at=until,
                status=EventStatus.IN_PROGRESS.value,
                attempts=attempts,
                updated_at=now,
            )
            .execution_options(synchronize_session=False),
        )
        return attempts

    def renew(self, event_id: str, *, token: str, until: datetime) -> bool:
        """Extend a claim; return False if another worker has it now."""
        return try_change_row(
            self._session,
            update(EventRow).where(EventRow.id == event_id, EventRow.claim_token == token).values(ready_at=until),
        )

    def expire_claims(self, now: datetime) -> int:
        """Expire all claims now; return their number."""
        return self._make_ready(now, and_(EventRow.claim_token.is_not(None), EventRow.ready_at > now))

    def expire_late(self, now: datetime, *, claims_after: datetime, delays_after: datetime) -> int:
        """Make ready now the events whose claims, or delays, last beyond these moments; return their number.

        Checks for remains of held leases keep their time.
        """
        claimed = and_(EventRow.claim_token.is_not(None), EventRow.ready_at > claims_after)
        put_off = and_(
            EventRow.claim_token.is_(None),
            EventRow.ready_at > EventRow.due_at,
            EventRow.ready_at > delays_after,
            EventRow.rank != EventType.HOLD.rank,
        )
        return self._make_ready(now, and_(EventRow.ready_at > min(claims_after, delays_after), or_(claimed, put_off)))

    def _make_ready(self, now: datetime, concerned: ColumnElement[bool]) -> int:
        return count_changed(
            self._session,
            update(EventRow).where(concerned).values(ready_at=now).execution_options(synchronize_session=False),
        )

    def finish(self, event_id: str, *, token: str, now: datetime, **values: Any) -> bool:
        """Release a claim with an outcome; return False if another worker has it now."""
        return try_change_row(
            self._session,
            update(EventRow)
            .where(EventRow.id == event_id, EventRow.claim_token == token)
            .values(claim_token=None, updated_at=now, **values)
            .execution_options(synchronize_session=False),
        )

    def remove(self, event_id: str, *, token: str) -> bool:
        """Delete a claimed event that is finished; return False if another worker has it now."""
        return try_change_row(
            self._session,
            delete(EventRow)
            .where(EventRow.id == event_id, EventRow.claim_token == token)
            .execution_options(synchronize_session=False),
        )

    def discard(self, event_ids: Collection[str]) -> None:
        """Delete events, claimed or not. The caller has locked the lease."""
        if event_ids:
            self._session.execute(
                delete(EventRow).where(EventRow.id.in_(sorted(event_ids))).execution_options(synchronize_session=False)
            )

    def change(self, event_ids: Collection[str], *, now: datetime, **values: Any) -> None:
        """Write values to unclaimed events. The caller has compared and swapped the lease."""
        if event_ids:
            self._session.execute(
                update(EventRow)
                .where(EventRow.id.in_(sorted(event_ids)))
                .values(updated_at=now, **values)
                .execution_options(synchronize_session=False)
            )


# All of these are created once: that takes longer than the statements, and the engine runs them all the time.
_NOW, _LATELY = (bindparam(name, type_=UtcDateTime()) for name in ("now", "lately"))
_OTHER = aliased(EventRow)
_MINE, _THEIRS = aliased(AllocationRow), aliased(AllocationRow)
_RESERVATION = aliased(ReservationRow)
#: Aliases: the reservation that another lease waits for.
_HOLDER = aliased(ReservationRow)


def _is_free_start() -> ColumnElement[bool]:
    """Whether the event is a start whose resources are free."""
    return and_(EventRow.rank == EventType.START.rank, not_(_waits_for_resources()))


def _is_no_start() -> ColumnElement[bool]:
    return EventRow.rank != EventType.START.rank


def _claimable() -> ColumnElement[bool]:
    """Whether the order of a lease's own events lets a worker claim this one."""
    at_work = exists().where(
        _OTHER.lease_id == EventRow.lease_id,
        _OTHER.id != EventRow.id,
        _OTHER.rank != EventType.NOTIFY.rank,
        _OTHER.claim_token.is_not(None),
        _OTHER.ready_at > _NOW,
    )
    notice_due = and_(
        LeaseRow.status == LeaseStatus.ACTIVE.value,
        exists().where(
            _OTHER.lease_id == EventRow.lease_id,
            _OTHER.rank == EventType.BEFORE_END.rank,
            _OTHER.ready_at <= _NOW,
        ),
    )
    # A lease that is not confirmed does not run. When its hold expires it is removed, and nothing else happens to it.
    held = exists().where(
        _OTHER.lease_id == EventRow.lease_id, _OTHER.rank == EventType.HOLD.rank, _OTHER.ready_at.is_not(None)
    )
    preparing = [LeaseStatus.CREATING.value, LeaseStatus.PENDING.value]
    holding = [LeaseStatus.CREATING.value, LeaseStatus.DELETED.value, LeaseStatus.ERROR.value]
    starting = [LeaseStatus.PENDING.value, LeaseStatus.STARTING.value]
    telling = [*starting, LeaseStatus.ACTIVE.value, LeaseStatus.UPDATING.value]
    return and_(
        # Not by the deletion time: SQLite would walk through its index over all leases.
        or_(LeaseRow.status != LeaseStatus.DELETED.value, EventRow.rank == EventType.HOLD.rank),
        or_(
            # A notification does no work on the lease: it waits for no event, and no event waits for it.
            and_(EventRow.rank == EventType.NOTIFY.rank, LeaseRow.status.in_(telling)),
            and_(
                not_(at_work),
                or_(
                    and_(EventRow.rank == EventType.END.rank, not_(notice_due), not_(held)),
                    and_(EventRow.rank == EventType.START.rank, LeaseRow.ends_at > _NOW, LeaseRow.status.in_(starting)),
                    # Also when the lease is over: remains from its time are looked for.
                    and_(EventRow.rank == EventType.HOLD.rank, LeaseRow.status.in_(holding)),
                    and_(EventRow.rank == EventType.UPDATE.rank, LeaseRow.status == LeaseStatus.UPDATING.value),
                    and_(EventRow.rank == EventType.PREPARE.rank, LeaseRow.status.in_(preparing)),
                    and_(EventRow.rank == EventType.WAIT.rank, LeaseRow.status == LeaseStatus.WAITING.value),
                    and_(EventRow.rank == EventType.BEFORE_END.rank, LeaseRow.status == LeaseStatus.ACTIVE.value),
                    # A lease that is about to end needs no reconciliation.
                    and_(
                        EventRow.rank == EventType.RECONCILE.rank,
                        LeaseRow.status == LeaseStatus.ACTIVE.value,
                        LeaseRow.ends_at > _NOW,
                    ),
                ),
            ),
        ),
    )


def _waits_for_resources() -> ColumnElement[bool]:
    """Whether another lease still holds a resource that this lease is planned on.

    Allocations of parts can coexist: only overdue ones count, and the start need not wait if there is room beside them.
    ``waiting`` finds that out for each start.
    """
    whole = or_(_THEIRS.exclusive, _MINE.exclusive)
    # Not by the index of starts: SQLite would walk through all past bookings of the resource.
    before = func.coalesce(_THEIRS.starts_at, _THEIRS.starts_at) < _MINE.starts_at
    return _is_held_where(or_(and_(whole, before), _THEIRS.ends_at <= _NOW))


def _is_being_released() -> ColumnElement[bool]:
    """Whether the holder that must release the resource before this lease's start is about to do so.

    Other holders do not count: on a resource with many parts, one of them may always be about to release.
    """
    whole = or_(_THEIRS.exclusive, _MINE.exclusive)
    before = func.coalesce(_THEIRS.starts_at, _THEIRS.starts_at) < _MINE.starts_at
    about_to = exists().where(_HOLDER.id == _THEIRS.reservation_id, _end_is_imminent())
    return _is_held_where(before, or_(whole, _THEIRS.ends_at <= _MINE.starts_at), about_to)


def _is_held_where(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether held allocations of others, ``_THEIRS``, meet the conditions for this lease's plans, ``_MINE``."""
    # Nested subqueries, from the lease outwards: with a join, SQLite would begin with all plans of all leases.
    held = exists().where(
        _THEIRS.resource_id == _MINE.resource_id,
        _THEIRS.state == AllocationState.HELD.value,
        _THEIRS.reservation_id != _MINE.reservation_id,
        *conditions,
    )
    planned = exists().where(
        _MINE.reservation_id == _RESERVATION.id, _MINE.state == AllocationState.PLANNED.value, held
    )
    return exists().where(_RESERVATION.lease_id == EventRow.lease_id, planned)


def _end_is_imminent() -> ColumnElement[bool]:
    """Whether the end of a holder is about to be tried for the first time, or has just been claimed."""
    event = _OTHER
    return exists().where(
        event.lease_id == _HOLDER.lease_id,
        or_(
            and_(
                event.rank == EventType.END.rank,
                event.claim_token.is_(None),
                event.ready_at <= _NOW,
                event.ready_at > _LATELY,
            ),
            and_(event.claim_token.is_not(None), event.ready_at > _NOW, event.updated_at > _LATELY),
        ),
    )


def _time_parameters(now: datetime) -> dict[str, object]:
    """Return the parameters of the statements below."""
    return {"now": now, "lately": now - PATIENCE}


def _claimable_where(*conditions: ColumnElement[bool], of: Any = EventRow.id) -> Select[Any]:
    """Return a query of the events that are ready and claimable, and that meet the conditions."""
    return (
        select(of)
        .join(LeaseRow, LeaseRow.id == EventRow.lease_id)
        .where(*conditions, EventRow.ready_at <= _NOW, _claimable())
    )


def _longest_ready_first(query: Select[Any]) -> Select[Any]:
    """Return the first rows of the query: longest ready first; at the same instant, ends first."""
    order = (EventRow.ready_at, EventRow.rank.desc(), EventRow.id)
    return query.order_by(*order).limit(bindparam("limit", type_=Integer()))


_READY_STARTS = _longest_ready_first(_claimable_where(_is_free_start()))
_READY_OTHERS = _longest_ready_first(_claimable_where(_is_no_start()))
_WAITING = _longest_ready_first(
    _claimable_where(EventRow.rank == EventType.START.rank, _waits_for_resources(), not_(_is_being_released()))
)
_OLDEST_READY_AT = _claimable_where(or_(_is_no_start(), not_(_waits_for_resources())), of=func.min(EventRow.ready_at))
_IS_CLAIMABLE = _claimable_where(EventRow.id == bindparam("event_id"))
