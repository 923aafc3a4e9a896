"""The outbox: taking messages for delivery, and recording the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from tenure.services.context import Rules
from tenure.store.database import Database, Transaction
from tenure.store.outbox import Message

__all__ = ["Message", "OutboxService"]

#: How long a worker may take to deliver the messages that it took.
DELIVERY_TIME = timedelta(seconds=60)
#: After how many refusals a message is given up.
MAX_REFUSALS = 20


class OutboxService:
    """Delivers at least once, in order per lease. A message that cannot be delivered stays until the operator decides.

    The later messages of its lease wait until then, so that the order is kept.
    """

    def __init__(self, db: Database, rules: Rules) -> None:
        self._db = db
        self._rules = rules

    def take(self, limit: int, *, channel: str = "") -> list[Message]:
        """Take messages of a channel for delivery, only the oldest of each lease."""
        with self._db.read() as tx:
            soonest = tx.outbox.is_ready(tx.now(), channel=channel)
        if not soonest:
            return []
        return self._db.write(
            lambda tx: tx.outbox.take(tx.now(), until=tx.now() + DELIVERY_TIME, limit=limit, channel=channel)
        )

    def take_over(self) -> int:
        """Make every message ready whose delivery was begun; return the number of messages.

        For a process that knows that it is the only manager: no other manager is delivering these messages.
        """
        return self._db.write(lambda tx: tx.outbox.expire_claims(tx.now()))

    def expire_late_claims(self) -> int:
        """Make ready now the messages that wait for longer than any delivery or delay lasts; return their number.

        For a manager that has noticed that the clock was set back.
        """
        longest = max(DELIVERY_TIME, self._rules.max_delay)
        return self._db.write(lambda tx: tx.outbox.expire_claims(tx.now(), after=tx.now() + longest))

    def give_back(self, messages: Iterable[Message]) -> None:
        """Return messages that were taken and not tried, so that other workers deliver them at once."""
        self._db.write(lambda tx: tx.outbox.give_back(messages, now=tx.now()))

    def delivered(self, messages: Sequence[Message]) -> list[Message]:
        """Record that messages were delivered; return those for which nothing is recorded.

        These have been taken by another worker meanwhile.
        """
        return self._db.write(self._record_delivered, messages) if messages else []

    def _record_delivered(self, tx: Transaction, messages: Sequence[Message]) -> list[Message]:
        now = tx.now()
        return [message for message in messages if not tx.outbox.delivered(message, now=now)]

    def failed(self, message: Message, error: str) -> bool:
        """Record a failed delivery. The message is retried later, and given up after too many refusals.

        It counts as refused if the channel has delivered another message since it failed before. Otherwise the receiver
        is unavailable, and the message is retried without limit. Returns False, and records nothing, if another worker
        has taken it meanwhile.
        """
        return self._db.write(self._record_failed, message, error)

    def _record_failed(self, tx: Transaction, message: Message, error: str) -> bool:
        now, before = tx.now(), message.failed_at
        others_delivered = before is not None and tx.outbox.has_delivered_since(before, channel=message.channel)
        refusals = message.refusals + others_delivered
        again_at = now + self._rules.delay_after(message.attempts) if refusals < MAX_REFUSALS else None
        return tx.outbox.failed(message, error=error, again_at=again_at, now=now, refusals=refusals)

    def undeliverable(self) -> list[Message]:
        """Return the messages that were given up, oldest first, a hundred at most."""
        with self._db.read() as tx:
            return tx.outbox.undeliverable()

    def retry(self, key: str | None = None) -> int:
        """Deliver the messages that were given up again, or only one of them; return their number."""
        return self._db.write(lambda tx: tx.outbox.retry(now=tx.now(), key=key))

    def drop(self, key: str) -> bool:
        """Delete a message that was given up, so that the later ones are delivered; return False if there is none."""
        return self._db.write(lambda tx: tx.outbox.drop(key, now=tx.now()))

    def overdue(self) -> timedelta:
        """Return how long the oldest message has waited, without those that were given up; zero if none waits."""
        with self._db.read() as tx:
            oldest = tx.outbox.oldest_waiting()
            return max(tx.now() - oldest, timedelta(0)) if oldest is not None else timedelta(0)

    def count_undeliverable(self) -> int:
        """Return how many messages were given up."""
        with self._db.read() as tx:
            return tx.outbox.count_undeliverable()
