"""Delivery of messages from the outbox."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta

from tenure.clock import Clock
from tenure.metrics import DELIVERIES
from tenure.services.notifications.outbox import DELIVERY_TIME, Message, OutboxService

LOG = logging.getLogger(__name__)

#: A receiver of messages. It may raise anything: the message is then delivered again later, with the same ``key``.
Sink = Callable[[Message], None]

BATCH = 100
#: How many seconds a delivery waits for further messages after those that were ready: each look takes a transaction.
GATHER_SECONDS = 0.1
#: How long after its arrival a message is recorded at most. If the process ends before, it is delivered again.
RECORDED_WITHIN = timedelta(seconds=0.5)


def log_message(message: Message) -> None:
    """The sink of a service without receivers: the log."""
    LOG.info("%s of lease %s (%s)", message.topic, message.lease_id, message.key)


class Delivery:
    """Delivers the messages of a channel to a sink: at least once, in order for each lease."""

    def __init__(self, outbox: OutboxService, clock: Clock, sink: Sink = log_message, *, channel: str = "") -> None:
        self._outbox = outbox
        self._clock = clock
        self._sink = sink
        self.channel = channel

    def deliver(self, stopping: threading.Event | None = None) -> int:
        """Deliver until no message is ready, or until ``stopping``; return how many messages arrived."""
        delivered = 0
        waits = stopping is not None
        stopping = stopping or threading.Event()
        while not stopping.is_set() and (messages := self._outbox.take(BATCH, channel=self.channel)):
            delivered += self._deliver_all(deque(messages), stopping)
            if waits and len(messages) < BATCH:
                stopping.wait(GATHER_SECONDS)
        return delivered

    def _deliver_all(self, waiting: deque[Message], stopping: threading.Event) -> int:
        """Deliver messages that were taken, and record what came of them; return how many arrived.

        Those that arrived are recorded together, but never later than ``RECORDED_WITHIN`` after they did.
        """
        arrived: list[Message] = []
        delivered = 0
        late = self._clock.now() + DELIVERY_TIME / 2  # stop before the claims expire and later messages overtake
        record_at = self._clock.now() + RECORDED_WITHIN
        try:
            while waiting and not stopping.is_set() and self._clock.now() <= late:
                message = waiting.popleft()
                if self._send(message):
                    arrived.append(message)
                    delivered += 1
                if self._clock.now() >= record_at:
                    self._record(arrived)
                    arrived = []
                    record_at = self._clock.now() + RECORDED_WITHIN
        finally:
            self._record(arrived)
            if waiting:
                self._outbox.give_back(waiting)
        return delivered

    def _send(self, message: Message) -> bool:
        """Send one message, and record it if that fails; return whether it arrived."""
        try:
            self._sink(message)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"[:1000]
            first = message.failed_at is None  # log the trace only once: a message bus may be away for days
            LOG.error("%s of lease %s was not delivered: %s", message.topic, message.lease_id, error, exc_info=first)
            DELIVERIES.labels("failed").inc()
            if not self._outbox.failed(message, error):
                _log_lost(message)
            return False
        DELIVERIES.labels("delivered").inc()
        return True

    def _record(self, arrived: Sequence[Message]) -> None:
        for message in self._outbox.delivered(arrived):
            _log_lost(message)


def _log_lost(message: Message) -> None:
    LOG.warning("%s of lease %s took too long: another worker has claimed it", message.topic, message.lease_id)
