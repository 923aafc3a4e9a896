"""Events: what is due, and who is at it."""

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
    insert,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased

from tenure.domain.lease import AllocationState, Event, EventStatus, EventType, LeaseStatus
from tenure.store.conflict import Overtaken
from tenure.store.leases import event_of
from tenure.store.tables import AllocationRow, EventRow, LeaseRow, ReservationRow, UtcDateTime

#: How long a start that is due waits for resources that are being given back, before it looks for others.
PATIENCE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with what only the engine needs of it."""

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
        """Write new events; with ``claim`` (token and expiry) already claimed."""
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
        if rows:
            self._session.execute(insert(EventRow), rows)

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
        """The ids of events that a worker may claim now: only starts or only others.

        The longest ready first, at the same instant an end before others. Starts whose resources are not given back
        are left out: only they wait for anybody.
        """
        statement = _READY_STARTS if starts else _READY_OTHERS
        return list(self._session.execute(statement, {**_times(now), "limit": limit}).scalars())

    def oldest_ready_at(self, now: datetime) -> datetime | None:
        """Since when that has been ready which is the longest of all that a worker may claim now."""
        return self._session.execute(_OLDEST_READY_AT, _times(now)).scalar_one_or_none()

    def waiting(self, now: datetime, limit: int) -> list[str]:
        """The ids of starts that are due and whose resources somebody has not given back, nor is about to.

        Whether they can go on all the same, ``AllocationStore.predecessors`` says.
        """
        return list(self._session.execute(_WAITING, {**_times(now), "limit": limit}).scalars())

    def next_ready_at(self, after: datetime) -> datetime | None:
        return self._session.execute(
            select(func.min(EventRow.ready_at)).where(EventRow.ready_at > after)
        ).scalar_one_or_none()

    def is_claimable(self, event_id: str, now: datetime) -> bool:
        """Whether a worker may take the event now, but for the resources that a start may have to wait for."""
        return self._session.execute(_IS_CLAIMABLE, {**_times(now), "event_id": event_id}).first() is not None

    def claim(self, stored: StoredEvent, *, token: str, until: datetime, now: datetime) -> int:
        """Take the event, where it still is what was read; raises ``Overtaken`` where it is not.

        Which attempt that is, from 1. Who takes it over from somebody else goes on with that one's: nothing has failed.
        """
        attempts = stored.event.attempts + (stored.claim_token is None)
        seen_token = (
            EventRow.claim_token.is_(None) if stored.claim_token is None else EventRow.claim_token == stored.claim_token
        )
        claimed = self._session.execute(
            update(EventRow)
            .where(EventRow.id == stored.event.id, EventRow.ready_at == stored.ready_at, seen_token)
            .values(
                claim_token=token,
                ready_at=until,
                status=EventStatus.IN_PROGRESS.value,
                attempts=attempts,
                updated_at=now,
            )
            .execution_options(synchronize_session=False)
        )
        if claimed.rowcount != 1:  # type: ignore[attr-defined]  # an UPDATE's result counts rows
            raise Overtaken
        return attempts

    def renew(self, event_id: str, *, token: str, until: datetime) -> bool:
        """Keep a claim for longer; False when it is somebody else's by now."""
        renewed = self._session.execute(
            update(EventRow).where(EventRow.id == event_id, EventRow.claim_token == token).values(ready_at=until)
        )
        return bool(renewed.rowcount)  # type: ignore[attr-defined]  # an UPDATE's result counts rows

    def expire_claims(self, now: datetime) -> int:
        """Let every claim be over now, whoever has it; how many there were."""
        return self._have_ready(now, and_(EventRow.claim_token.is_not(None), EventRow.ready_at > now))

    def expire_late(self, now: datetime, *, claims_after: datetime, delays_after: datetime) -> int:
        """Have ready now what is claimed, or was put off, until after these moments; how many events there are.

        What may be left of leases that were held is looked for in its own time.
        """
        claimed = and_(EventRow.claim_token.is_not(None), EventRow.ready_at > claims_after)
        put_off = and_(
            EventRow.claim_token.is_(None),
            EventRow.ready_at > EventRow.due_at,
            EventRow.ready_at > delays_after,
            EventRow.rank != EventType.HOLD.rank,
        )
        return self._have_ready(now, and_(EventRow.ready_at > min(claims_after, delays_after), or_(claimed, put_off)))

    def _have_ready(self, now: datetime, concerned: ColumnElement[bool]) -> int:
        changed = self._session.execute(
            update(EventRow).where(concerned).values(ready_at=now).execution_options(synchronize_session=False)
        )
        return int(changed.rowcount)  # type: ignore[attr-defined]  # an UPDATE's result counts rows

    def finish(self, event_id: str, *, token: str, now: datetime, **values: Any) -> bool:
        """Give a claim back with an outcome; False when it is somebody else's by now."""
        finished = self._session.execute(
            update(EventRow)
            .where(EventRow.id == event_id, EventRow.claim_token == token)
            .values(claim_token=None, updated_at=now, **values)
            .execution_options(synchronize_session=False)
        )
        return bool(finished.rowcount)  # type: ignore[attr-defined]  # an UPDATE's result counts rows

    def remove(self, event_id: str, *, token: str) -> bool:
        """Forget an event that was claimed and is done with; False when it is somebody else's by now."""
        removed = self._session.execute(
            delete(EventRow)
            .where(EventRow.id == event_id, EventRow.claim_token == token)
            .execution_options(synchronize_session=False)
        )
        return bool(removed.rowcount)  # type: ignore[attr-defined]  # a DELETE's result counts rows

    def discard(self, event_ids: Collection[str]) -> None:
        """Forget events, whoever has claimed them. The caller has locked the lease."""
        if event_ids:
            self._session.execute(
                delete(EventRow).where(EventRow.id.in_(sorted(event_ids))).execution_options(synchronize_session=False)
            )

    def change(self, event_ids: Collection[str], *, now: datetime, **values: Any) -> None:
        """Write values to events that nobody has claimed. The caller has compared and swapped the lease."""
        if event_ids:
            self._session.execute(
                update(EventRow)
                .where(EventRow.id.in_(sorted(event_ids)))
                .values(updated_at=now, **values)
                .execution_options(synchronize_session=False)
            )


# All of this is made once: making it anew takes longer than the statements, and the engine asks all the time.
_NOW, _LATELY = (bindparam(name, type_=UtcDateTime()) for name in ("now", "lately"))
_OTHER = aliased(EventRow)
_MINE, _THEIRS = aliased(AllocationRow), aliased(AllocationRow)
_RESERVATION = aliased(ReservationRow)
#: The reservation that a lease waits for.
_HOLDER = aliased(ReservationRow)


def _starts() -> ColumnElement[bool]:
    """Whether it is a start whose resources are there."""
    return and_(EventRow.rank == EventType.START.rank, not_(_waits()))


def _others() -> ColumnElement[bool]:
    return EventRow.rank != EventType.START.rank


def _claimable() -> ColumnElement[bool]:
    """Whether the order of a lease's own events lets a worker take this one."""
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
    # What nobody has confirmed does not run; where its time is over it is unmade, and nothing else.
    held = exists().where(
        _OTHER.lease_id == EventRow.lease_id, _OTHER.rank == EventType.HOLD.rank, _OTHER.ready_at.is_not(None)
    )
    preparing = [LeaseStatus.CREATING.value, LeaseStatus.PENDING.value]
    holding = [LeaseStatus.CREATING.value, LeaseStatus.DELETED.value, LeaseStatus.ERROR.value]
    starting = [LeaseStatus.PENDING.value, LeaseStatus.STARTING.value]
    telling = [*starting, LeaseStatus.ACTIVE.value, LeaseStatus.UPDATING.value]
    return and_(
        # Not by the time of the deletion: SQLite would walk its index through all leases that there are.
        or_(LeaseRow.status != LeaseStatus.DELETED.value, EventRow.rank == EventType.HOLD.rank),
        or_(
            # To tell others is no work on the lease: it waits for none, and none waits for it.
            and_(EventRow.rank == EventType.NOTIFY.rank, LeaseRow.status.in_(telling)),
            and_(
                not_(at_work),
                or_(
                    and_(EventRow.rank == EventType.END.rank, not_(notice_due), not_(held)),
                    and_(EventRow.rank == EventType.START.rank, LeaseRow.ends_at > _NOW, LeaseRow.status.in_(starting)),
                    # Also when it is over: what was made in its time is looked for.
                    and_(EventRow.rank == EventType.HOLD.rank, LeaseRow.status.in_(holding)),
                    and_(EventRow.rank == EventType.UPDATE.rank, LeaseRow.status == LeaseStatus.UPDATING.value),
                    and_(EventRow.rank == EventType.PREPARE.rank, LeaseRow.status.in_(preparing)),
                    and_(EventRow.rank == EventType.BEFORE_END.rank, LeaseRow.status == LeaseStatus.ACTIVE.value),
                    # What is about to end need not be mended.
                    and_(
                        EventRow.rank == EventType.MEND.rank,
                        LeaseRow.status == LeaseStatus.ACTIVE.value,
                        LeaseRow.ends_at > _NOW,
                    ),
                ),
            ),
        ),
    )


def _waits() -> ColumnElement[bool]:
    """Whether somebody before has not given back a resource that this lease is planned on.

    Parts of one resource are had side by side: only who should be gone counts, and where there is room beside him the
    start need not wait all the same. That is found out for each by itself, see ``waiting``.
    """
    whole = or_(_THEIRS.exclusive, _MINE.exclusive)
    # Not by the index of starts: SQLite would walk through all that the resource was ever booked for.
    before = func.coalesce(_THEIRS.starts_at, _THEIRS.starts_at) < _MINE.starts_at
    return _is_held_where(or_(and_(whole, before), _THEIRS.ends_at <= _NOW))


def _is_being_given_back() -> ColumnElement[bool]:
    """Whether somebody is about to give back what he should have before the start of this lease.

    Nobody else: on what many have parts of, there may always be one who is about to.
    """
    whole = or_(_THEIRS.exclusive, _MINE.exclusive)
    before = func.coalesce(_THEIRS.starts_at, _THEIRS.starts_at) < _MINE.starts_at
    about_to = exists().where(_HOLDER.id == _THEIRS.reservation_id, _giving_back())
    return _is_held_where(before, or_(whole, _THEIRS.ends_at <= _MINE.starts_at), about_to)


def _is_held_where(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether others hold, as is said, ``_THEIRS`` of what is planned for this lease, ``_MINE``."""
    # One within the other, from the lease outwards: SQLite would begin a join with all that is planned by anybody.
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


def _giving_back() -> ColumnElement[bool]:
    """Whether a holder's end is about to be tried for the first time, or somebody has just begun with it."""
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


def _times(now: datetime) -> dict[str, object]:
    """Return the parameters of the statements below."""
    return {"now": now, "lately": now - PATIENCE}


def _claimable_where(*conditions: ColumnElement[bool], of: Any = EventRow.id) -> Select[Any]:
    """Return a query of the events that are ready, that a worker may claim, and of which the conditions are true."""
    return (
        select(of)
        .join(LeaseRow, LeaseRow.id == EventRow.lease_id)
        .where(*conditions, EventRow.ready_at <= _NOW, _claimable())
    )


def _first(query: Select[Any]) -> Select[Any]:
    """Return the first rows of the query: the longest ready first, at the same instant an end before others."""
    order = (EventRow.ready_at, EventRow.rank.desc(), EventRow.id)
    return query.order_by(*order).limit(bindparam("limit", type_=Integer()))


_READY_STARTS = _first(_claimable_where(_starts()))
_READY_OTHERS = _first(_claimable_where(_others()))
_WAITING = _first(_claimable_where(EventRow.rank == EventType.START.rank, _waits(), not_(_is_being_given_back())))
_OLDEST_READY_AT = _claimable_where(or_(_others(), not_(_waits())), of=func.min(EventRow.ready_at))
_IS_CLAIMABLE = _claimable_where(EventRow.id == bindparam("event_id"))
