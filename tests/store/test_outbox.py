"""The outbox: at least once, in order for each lease, and undeliverable messages stay visible."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import datetime, timedelta

import pytest
from sqlalchemy import bindparam, event, text

from tenure.store.conflict import Overtaken
from tenure.store.database import Database, Transaction
from tenure.store.outbox import Message
from tenure.store.tables import UtcDateTime
from tests.store.rows import Undone, new_id
from tests.support.world import NOW

SECOND = timedelta(seconds=1)


def add(db: Database, *messages: tuple[str, str]) -> None:
    """Write messages of (lease, topic) in one transaction."""

    def write(tx: Transaction) -> None:
        for lease_id, topic in messages:
            tx.outbox.add(key=new_id(), lease_id=lease_id, topic=topic, payload={"of": [lease_id, "ä"]}, now=NOW)

    db.write(write)


def take(db: Database, now: datetime = NOW, limit: int = 100) -> list[Message]:
    return db.write(lambda tx: tx.outbox.take(now, until=now + 60 * SECOND, limit=limit))


def topics(messages: Iterable[Message]) -> list[str]:
    return [message.topic for message in messages]


def test_only_the_oldest_message_of_each_lease_is_taken(db: Database):
    add(db, ("a", "a1"), ("b", "b1"), ("a", "a2"), ("a", "a3"))
    first = take(db)
    assert topics(first) == ["a1", "b1"]
    assert first[0].payload == {"of": ["a", "ä"]}
    assert take(db) == []
    assert db.write(lambda tx: tx.outbox.delivered(first[0], now=NOW))
    assert topics(take(db)) == ["a2"]


def test_take_respects_the_limit(db: Database):
    add(db, *((f"lease-{number}", str(number)) for number in range(5)))
    assert topics(take(db, limit=2)) == ["0", "1"]
    assert topics(take(db, limit=9)) == ["2", "3", "4"]


def test_unreported_message_is_taken_again_with_the_same_key(db: Database):
    add(db, ("a", "a1"), ("a", "a2"))
    [first] = take(db)
    assert take(db, NOW + 59 * SECOND) == []
    [again] = take(db, NOW + 60 * SECOND)
    assert (again.key, again.topic, again.attempts) == (first.key, "a1", 2)


def test_failed_message_waits_and_holds_back_later_ones(db: Database):
    add(db, ("a", "a1"), ("a", "a2"), ("b", "b1"))
    failing = take(db)[0]
    db.write(lambda tx: tx.outbox.failed(failing, error="refused", again_at=NOW + 5 * SECOND, now=NOW, refusals=1))
    assert take(db, NOW + 4 * SECOND) == []
    [again] = take(db, NOW + 5 * SECOND)
    assert (again.id, again.last_error, again.attempts) == (failing.id, "refused", 2)
    assert (again.failed_at, again.refusals) == (NOW, 1)


def test_undeliverable_message_holds_back_later_ones_until_retried(db: Database):
    add(db, ("a", "a1"), ("a", "a2"), ("b", "b1"))
    lost, other = take(db)
    give_up(db, lost)
    db.write(lambda tx: tx.outbox.delivered(other, now=NOW))
    much_later = NOW + timedelta(days=1)
    with db.read() as tx:
        assert [(message.id, message.last_error) for message in tx.outbox.undeliverable()] == [
            (lost.id, "gone for good")
        ]
        assert not tx.outbox.is_ready(much_later)
    assert take(db, much_later) == []
    assert db.write(lambda tx: tx.outbox.retry(now=much_later)) == 1
    [again] = take(db, much_later)
    assert (again.topic, again.attempts, again.failed_at, again.refusals) == ("a1", 1, None, 0)
    db.write(lambda tx: tx.outbox.delivered(again, now=much_later))
    assert topics(take(db, much_later)) == ["a2"]


def give_up(db: Database, message: Message) -> None:
    db.write(lambda tx: tx.outbox.failed(message, error="gone for good", again_at=None, now=NOW, refusals=20))


def test_has_delivered_since(db: Database):
    add(db, ("a", "a1"), ("b", "b1"))
    failing, other = take(db)
    db.write(lambda tx: tx.outbox.failed(failing, error="away", again_at=NOW + 5 * SECOND, now=NOW, refusals=0))
    with db.read() as tx:
        assert not tx.outbox.has_delivered_since(NOW)
    db.write(lambda tx: tx.outbox.delivered(other, now=NOW + SECOND))
    with db.read() as tx:
        assert tx.outbox.has_delivered_since(NOW)
        assert not tx.outbox.has_delivered_since(NOW + SECOND)


def test_oldest_waiting_message(db: Database):
    def oldest() -> datetime | None:
        with db.read() as tx:
            return tx.outbox.oldest_waiting()

    assert oldest() is None
    add(db, ("a", "a1"), ("a", "a2"))
    db.write(lambda tx: tx.outbox.add(key=new_id(), lease_id="b", topic="b1", payload={}, now=NOW + SECOND))
    [first, second] = take(db, NOW + SECOND)
    assert oldest() == NOW
    give_up(db, first)
    assert oldest() == NOW + SECOND
    db.write(lambda tx: tx.outbox.delivered(second, now=NOW + SECOND))
    assert oldest() is None  # a2 waits for an undeliverable message


def test_undeliverable_messages_are_all_counted(db: Database):
    add(db, *((f"lease-{number}", "lost") for number in range(150)), ("other", "arrives"), ("another", "waits"))
    taken = take(db, limit=151)

    def record(tx: Transaction) -> None:
        for message in taken:
            if message.topic == "lost":
                tx.outbox.failed(message, error="gone for good", again_at=None, now=NOW, refusals=20)
            else:
                tx.outbox.delivered(message, now=NOW)

    db.write(record)
    with db.read() as tx:
        assert tx.outbox.count_undeliverable() == 150


def test_is_ready(db: Database):
    with db.read() as tx:
        assert not tx.outbox.is_ready(NOW)
    add(db, ("a", "a1"))
    with db.read() as tx:
        assert tx.outbox.is_ready(NOW)
        assert not tx.outbox.is_ready(NOW - SECOND)


def before_a_claim_is_written(tx: Transaction, work: Callable[[], object]) -> None:
    """Do ``work`` once, between the search for messages and the first claim."""
    waiting = [work]

    def before(_connection, _cursor, statement: str, *_rest: object) -> None:
        if waiting and statement.startswith("UPDATE outbox"):
            waiting.pop()()

    event.listen(tx.session.connection(), "before_cursor_execute", before)


def assert_sqlite_lets_no_other_write(db: Database) -> None:
    path = db.engine.url.database
    assert path is not None
    with closing(sqlite3.connect(path, timeout=0)) as other, pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")


def test_concurrent_deliveries_never_take_the_same_message(db: Database):
    """On SQLite the second deliverer cannot search before the first has written its claims."""
    add(db, ("a", "a1"), ("b", "b1"))
    taken_by_other: list[Message] = []
    interruptions: list[str] = []

    def interfere() -> None:
        interruptions.append("other")
        if db.dialect == "sqlite":
            assert_sqlite_lets_no_other_write(db)
        else:
            taken_by_other.extend(take(db, limit=1))

    def take_with_interference(tx: Transaction) -> list[Message]:
        before_a_claim_is_written(tx, interfere)
        return tx.outbox.take(NOW, until=NOW + 60 * SECOND, limit=9)

    taken = db.write(take_with_interference)
    assert interruptions == ["other"]
    assert topics(taken_by_other) == ([] if db.dialect == "sqlite" else ["a1"])
    assert topics(taken) == (["a1", "b1"] if db.dialect == "sqlite" else ["b1"])
    assert [message.attempts for message in (*taken_by_other, *taken)] == [1, 1]
    assert take(db) == []


def test_message_that_changed_since_the_query_is_not_taken(db: Database):
    """On SQLite no other transaction can change it in between, so this one does."""
    add(db, ("a", "a1"), ("b", "b1"))

    def take_changing_messages(tx: Transaction) -> list[Message]:
        postpone = text("UPDATE outbox SET ready_at = :later WHERE topic = 'a1'").bindparams(
            bindparam("later", LATER, UtcDateTime())
        )
        before_a_claim_is_written(tx, lambda: tx.session.execute(postpone))
        return tx.outbox.take(NOW, until=NOW + 60 * SECOND, limit=9)

    assert topics(db.write(take_changing_messages)) == ["b1"]
    [changed] = take(db, LATER, limit=1)
    assert (changed.topic, changed.attempts) == ("a1", 1)


LATER = NOW + 61 * SECOND


@pytest.mark.parametrize(
    "too_late",
    [
        lambda tx, message: tx.outbox.delivered(message, now=LATER),
        lambda tx, message: tx.outbox.failed(message, error="slow", again_at=LATER + SECOND, now=LATER, refusals=1),
        lambda tx, message: tx.outbox.failed(message, error="slow", again_at=None, now=LATER, refusals=20),
        lambda tx, message: tx.outbox.give_back([message], now=LATER),
    ],
    ids=["delivered", "failed", "given up", "given back"],
)
@pytest.mark.parametrize("recorded", ["delivered", "failed", "nothing yet"])
def test_expired_claim_cannot_change_later_records(db: Database, too_late, recorded: str):
    add(db, ("a", "a1"))
    [first] = take(db)
    [second] = take(db, NOW + 60 * SECOND)
    if recorded == "delivered":
        db.write(lambda tx: tx.outbox.delivered(second, now=LATER))
    elif recorded == "failed":
        db.write(lambda tx: tx.outbox.failed(second, error="refused", again_at=LATER, now=LATER, refusals=1))
    before = rows_of(db)
    assert not db.write(lambda tx: too_late(tx, first))
    assert rows_of(db) == before


def rows_of(db: Database) -> list[tuple[object, ...]]:
    """The whole table."""
    with db.read() as tx:
        return [tuple(row) for row in tx.session.execute(text("SELECT * FROM outbox ORDER BY id"))]


def test_key_is_unique(db: Database):
    def write(tx: Transaction) -> None:
        tx.outbox.add(key="same", lease_id="a", topic="t", payload={}, now=NOW)

    def write_again(tx: Transaction) -> None:
        with pytest.raises(Overtaken):
            write(tx)
        raise Undone

    db.write(write)
    with pytest.raises(Undone):
        db.write(write_again)
    assert len(rows_of(db)) == 1
