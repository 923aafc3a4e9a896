"""The outbox: messages to others, written in the transaction of the change that they report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, delete, exists, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from tenure.store.conflict import Overtaken
from tenure.store.statements import insert_rows, run
from tenure.store.tables import OutboxRow
from tenure.store.writing import count_changed, try_change_row

_TABLE: Any = OutboxRow.__table__


@dataclass(frozen=True, slots=True)
class Message:
    """A message to others. ``key`` is the same in every repetition."""

    id: int
    key: str
    lease_id: str
    topic: str
    payload: Mapping[str, object]
    created_at: datetime
    attempts: int
    last_error: str | None = None
    #: When a delivery failed last.
    failed_at: datetime | None = None
    #: How often a delivery failed while other messages arrived.
    refusals: int = 0
    #: The receiver; empty for listeners to notifications.
    channel: str = ""


class OutboxStore:
    """The table of messages."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(
        self,
        *,
        key: str,
        lease_id: str,
        topic: str,
        payload: Mapping[str, object],
        now: datetime,
        channel: str = "",
        ready_at: datetime | None = None,
        only_noted: bool = False,
    ) -> None:
        """Write a message, for now or for later; raise ``Overtaken`` if its key has just been written by another.

        A message for later counts as written at that time. One that is ``only_noted`` is never delivered; later
        messages refer to it.
        """
        message = {
            "key": key,
            "lease_id": lease_id,
            "topic": topic,
            "payload": dict(payload),
            "channel": channel,
            "created_at": ready_at or now,
            "ready_at": None if only_noted else ready_at or now,
            "delivered_at": now if only_noted else None,
            "attempts": 0,
        }
        try:
            insert_rows(self._session, OutboxRow, [message])
        except IntegrityError as error:
            raise Overtaken from error

    def known(self, keys: Iterable[str]) -> set[str]:
        """Return those of the keys for which there are messages."""
        return set(self._session.execute(select(OutboxRow.key).where(OutboxRow.key.in_(sorted(keys)))).scalars())

    def latest(self, lease_id: str, *, channel: str, topics: Collection[str]) -> Message | None:
        """Return the newest message about a lease on a channel with one of these topics, delivered or not."""
        row = self._session.execute(
            select(OutboxRow)
            .where(OutboxRow.lease_id == lease_id, OutboxRow.channel == channel, OutboxRow.topic.in_(sorted(topics)))
            .order_by(OutboxRow.id.desc())
            .limit(1)
        ).scalar_one_or_none()
        return None if row is None else _message(row)

    def waiting(self, lease_id: str, *, topic: str) -> dict[str, list[str]]:
        """Return the keys of messages about a lease whose delivery was never tried, by channel."""
        keys: dict[str, list[str]] = {}
        untried = select(OutboxRow.channel, OutboxRow.key).where(
            OutboxRow.lease_id == lease_id, OutboxRow.topic == topic, OutboxRow.attempts == 0
        )
        for channel, key in self._session.execute(untried):
            keys.setdefault(channel, []).append(key)
        return keys

    def cancel(self, keys: Collection[str]) -> int:
        """Delete messages whose delivery was never tried; return their number."""
        return count_changed(
            self._session,
            delete(OutboxRow)
            .where(OutboxRow.key.in_(sorted(keys)), OutboxRow.attempts == 0)
            .execution_options(synchronize_session=False),
        )

    def hurry(self, keys: Collection[str], *, now: datetime) -> None:
        """Deliver messages at once whose delivery was never tried."""
        self._session.execute(
            update(OutboxRow)
            .where(OutboxRow.key.in_(sorted(keys)), OutboxRow.attempts == 0)
            .values(ready_at=now, created_at=now)
            .execution_options(synchronize_session=False)
        )

    def is_ready(self, now: datetime, *, channel: str = "") -> bool:
        """Whether there is anything to deliver."""
        return run(self._session, _any_due(), {"now": now, "channel": channel}).first() is not None

    def take(self, now: datetime, *, until: datetime, limit: int, channel: str = "") -> list[Message]:
        """Claim messages of a channel to deliver: only the oldest of each lease, so that they arrive in order.

        A message that was given up holds back the later ones, until it is retried and arrives.
        """
        taken = []
        for row in run(self._session, _due_messages(), {"now": now, "channel": channel, "most": limit}).all():
            claim = {"message_id": row.id, "seen": row.ready_at, "until": until}
            if run(self._session, _CLAIM, claim).rowcount == 1:
                taken.append(_message(row, attempts=row.attempts + 1))
        return taken

    def expire_claims(self, now: datetime, *, after: datetime | None = None) -> int:
        """Make every message ready now whose delivery was begun; return the number of messages.

        A message whose delivery was never begun keeps its time. With ``after`` so does a message that is ready by then.
        """
        return count_changed(
            self._session,
            update(OutboxRow)
            .where(OutboxRow.ready_at > (after or now), OutboxRow.attempts > 0)
            .values(ready_at=now)
            .execution_options(synchronize_session=False),
        )

    def give_back(self, messages: Iterable[Message], *, now: datetime) -> None:
        """Release claimed messages, if they are still claimed by the same worker."""
        for message in messages:
            self._record(message, ready_at=now, attempts=message.attempts - 1)

    def delivered(self, message: Message, *, now: datetime) -> bool:
        """Record that a message has arrived; return whether the claim was still valid.

        The text of a notification is not kept. Messages to services that keep accounts are compared with later ones.
        """
        statement = _DELIVERED if message.channel else _DELIVERED_AND_EMPTIED
        found = run(self._session, statement, {"message_id": message.id, "seen": message.attempts, "at": now})
        return bool(found.rowcount == 1)

    def failed(self, message: Message, *, error: str, again_at: datetime | None, now: datetime, refusals: int) -> bool:
        """Record a failed delivery; return whether the claim was still valid.

        Without ``again_at`` the message is given up, and stays for the operator to see. ``refusals`` is how often its
        delivery has failed while other messages arrived.
        """
        return self._record(message, ready_at=again_at, last_error=error, failed_at=now, refusals=refusals)

    def has_delivered_since(self, moment: datetime, *, channel: str = "") -> bool:
        """Whether any message of a channel has arrived after that moment."""
        delivered = select(OutboxRow.id).where(
            OutboxRow.delivered_at > moment, OutboxRow.channel == channel, OutboxRow.attempts > 0
        )
        return self._session.execute(delivered.limit(1)).first() is not None

    def oldest_waiting(self) -> datetime | None:
        """Return when the oldest message that is still to be delivered was written; None if there is none.

        Messages that were given up, and those they hold back, do not count.
        """
        waiting = select(func.min(OutboxRow.created_at)).where(
            OutboxRow.ready_at.is_not(None), _is_oldest_undelivered()
        )
        return self._session.execute(waiting).scalar_one()

    def _record(self, message: Message, **values: Any) -> bool:
        """Write values unless the message was claimed again: each claim is another attempt."""
        return try_change_row(
            self._session,
            update(OutboxRow)
            .where(OutboxRow.id == message.id, OutboxRow.attempts == message.attempts)
            .values(**values)
            .execution_options(synchronize_session=False),
        )

    def undeliverable(self, limit: int = 100) -> list[Message]:
        """Return messages that were given up, oldest first, at most ``limit``."""
        rows = self._session.execute(select(OutboxRow).where(*_GIVEN_UP).order_by(OutboxRow.id).limit(limit)).scalars()
        return [_message(row) for row in rows]

    def retry(self, *, now: datetime, key: str | None = None) -> int:
        """Retry messages that were given up, or one of them, from the first attempt on; return their number."""
        with_key = () if key is None else (OutboxRow.key == key,)
        return count_changed(
            self._session,
            update(OutboxRow)
            .where(*_GIVEN_UP, *with_key)
            .values(ready_at=now, attempts=0, failed_at=None, refusals=0)
            .execution_options(synchronize_session=False),
        )

    def drop(self, key: str, *, now: datetime) -> bool:
        """Mark a message that was given up as delivered; return False if it was not given up."""
        return try_change_row(
            self._session,
            update(OutboxRow)
            .where(*_GIVEN_UP, OutboxRow.key == key)
            .values(delivered_at=now)
            .execution_options(synchronize_session=False),
        )

    def count_undeliverable(self) -> int:
        """Count the messages that were given up."""
        return self._session.execute(select(func.count()).select_from(OutboxRow).where(*_GIVEN_UP)).scalar_one()


#: In the column order of the index.
_GIVEN_UP = (OutboxRow.delivered_at.is_(None), OutboxRow.ready_at.is_(None))


def _is_oldest_undelivered() -> ColumnElement[bool]:
    """Whether all older messages of the same lease and channel have arrived."""
    older = aliased(OutboxRow)
    return ~exists().where(
        older.lease_id == OutboxRow.lease_id,
        older.channel == OutboxRow.channel,
        older.id < OutboxRow.id,
        older.delivered_at.is_(None),
    )


_CLAIM = (
    update(_TABLE)
    .where(_TABLE.c.id == bindparam("message_id"), _TABLE.c.ready_at == bindparam("seen"))
    .values(ready_at=bindparam("until"), attempts=_TABLE.c.attempts + 1)
)
#: Each claim is another attempt, so one that was claimed again is not recorded.
_DELIVERED = (
    update(_TABLE)
    .where(_TABLE.c.id == bindparam("message_id"), _TABLE.c.attempts == bindparam("seen"))
    .values(ready_at=None, delivered_at=bindparam("at"), last_error=None)
)
_DELIVERED_AND_EMPTIED = _DELIVERED.values(payload={})


@cache
def _any_due() -> Select[Any]:
    return select(OutboxRow.id).where(*_due()).limit(1)


@cache
def _due_messages() -> Select[Any]:
    return select(_TABLE).where(*_due()).order_by(OutboxRow.id).limit(bindparam("most"))


def _due() -> tuple[ColumnElement[bool], ...]:
    is_ready, is_of_channel = OutboxRow.ready_at <= bindparam("now"), OutboxRow.channel == bindparam("channel")
    return is_ready, is_of_channel, _is_oldest_undelivered()


def _message(row: Any, *, attempts: int | None = None) -> Message:
    return Message(
        id=row.id,
        key=row.key,
        lease_id=row.lease_id,
        topic=row.topic,
        payload=row.payload,
        created_at=row.created_at,
        attempts=row.attempts if attempts is None else attempts,
        last_error=row.last_error,
        failed_at=row.failed_at,
        refusals=row.refusals,
        channel=row.channel,
    )
