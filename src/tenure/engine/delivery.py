"""Delivery of messages from the outbox."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from tenure.clock import Clock
from tenure.metrics import DELIVERIES
from tenure.services.notifications.outbox import DELIVERY_TIME, Message, OutboxService

LOG = logging.getLogger(__name__)

#: A receiver of messages. It may raise anything: the message is then delivered again later, with the same ``key``.
Sink = Callable[[Message], None]

BATCH = 100


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
        stopping = stopping or threading.Event()
        delivered = 0
        while not stopping.is_set() and (messages := self._outbox.take(BATCH, channel=self.channel)):
            waiting = deque(messages)
            late = self._clock.now() + DELIVERY_TIME / 2  # stop before the claims expire and later messages overtake
            try:
                while waiting and not stopping.is_set() and self._clock.now() <= late:
                    delivered += self._deliver(waiting.popleft())
            finally:
                if waiting:
                    self._outbox.give_back(waiting)
        return delivered

    def _deliver(self, message: Message) -> bool:
        """Deliver one message and record the outcome; return whether it arrived."""
        error = None
        try:
            self._sink(message)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"[:1000]
            first = message.failed_at is None  # log the trace only once: a message bus may be away for days
            LOG.error("%s of lease %s was not delivered: %s", message.topic, message.lease_id, error, exc_info=first)
        DELIVERIES.labels("delivered" if error is None else "failed").inc()
        recorded = self._outbox.delivered(message) if error is None else self._outbox.failed(message, error)
        if not recorded:
            LOG.warning("%s of lease %s took too long: another worker has claimed it", message.topic, message.lease_id)
        return error is None
