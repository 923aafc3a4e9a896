"""The outbox: taking messages to deliver, and recording what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from tenure.services.context import Rules
from tenure.store.database import Database, Transaction
from tenure.store.outbox import Message

__all__ = ["Message", "OutboxService"]

#: How long a worker has to deliver what it took.
DELIVERY_TIME = timedelta(seconds=60)
#: How often a message may be refused until it is given up.
MAX_REFUSALS = 20


class OutboxService:
    """At least once, in order per lease; what cannot be delivered stays where the operator sees it.

    What follows such a message in its lease waits until that is tried again, so that the order holds.
    """

    def __init__(self, db: Database, rules: Rules) -> None:
        self._db = db
        self._rules = rules

    def take(self, limit: int, *, channel: str = "") -> list[Message]:
        """Messages of a channel to deliver now, of each lease the oldest only."""
        with self._db.read() as tx:
            soonest = tx.outbox.is_ready(tx.now(), channel=channel)
        if not soonest:
            return []
        return self._db.write(
            lambda tx: tx.outbox.take(tx.now(), until=tx.now() + DELIVERY_TIME, limit=limit, channel=channel)
        )

    def take_over(self) -> int:
        """Make every message ready now whose delivery was begun; return the number of messages.

        For a process that knows that it is the only manager: no other manager is delivering these messages.
        """
        return self._db.write(lambda tx: tx.outbox.expire_claims(tx.now()))

    def expire_late_claims(self) -> int:
        """Have delivered now what waits for longer than any delivery or delay lasts; how many messages.

        For who has seen that the clock was set back.
        """
        longest = max(DELIVERY_TIME, self._rules.max_delay)

        def expire(tx: Transaction) -> int:
            now = tx.now()
            return tx.outbox.expire_claims(now, after=now + longest)

        return self._db.write(expire)

    def give_back(self, messages: Iterable[Message]) -> None:
        """Let others deliver at once what was taken and not tried."""
        self._db.write(lambda tx: tx.outbox.give_back(messages, now=tx.now()))

    def delivered(self, message: Message) -> bool:
        """Note that a message has arrived; False, and nothing is noted, where another has taken it meanwhile."""
        return self._db.write(lambda tx: tx.outbox.delivered(message, now=tx.now()))

    def failed(self, message: Message, error: str) -> bool:
        """Note a delivery that failed: tried again later, and given up when it was refused many times.

        It was refused where others of its channel have arrived since it failed before: while none does, it is the way
        there that fails, and that may take as long as it likes. False, with nothing noted, where another has taken it
        meanwhile.
        """

        def record(tx: Transaction) -> bool:
            now, before = tx.now(), message.failed_at
            channel = message.channel
            arrive = before is not None and tx.outbox.has_delivered_since(before, channel=channel)
            refusals = message.refusals + arrive
            again_at = now + self._rules.delay_after(message.attempts) if refusals < MAX_REFUSALS else None
            return tx.outbox.failed(message, error=error, again_at=again_at, now=now, refusals=refusals)

        return self._db.write(record)

    def undeliverable(self) -> list[Message]:
        """What was given up, oldest first, no more than a hundred."""
        with self._db.read() as tx:
            return tx.outbox.undeliverable()

    def retry(self, key: str | None = None) -> int:
        """Have what was given up, or one message of it, delivered again; how many messages there are."""
        return self._db.write(lambda tx: tx.outbox.retry(now=tx.now(), key=key))

    def drop(self, key: str) -> bool:
        """Never deliver a message that was given up, and let what waits behind it go; False where there is none."""
        return self._db.write(lambda tx: tx.outbox.drop(key, now=tx.now()))

    def overdue(self) -> timedelta:
        """For how long the oldest message has waited that is not given up; zero where none waits."""
        with self._db.read() as tx:
            oldest = tx.outbox.oldest_waiting()
            return max(tx.now() - oldest, timedelta(0)) if oldest is not None else timedelta(0)

    def count_undeliverable(self) -> int:
        """How many messages were given up."""
        with self._db.read() as tx:
            return tx.outbox.count_undeliverable()
