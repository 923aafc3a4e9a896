"""Delivering messages from the outbox."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tenure.clock import Clock
from tenure.services.outbox import DELIVERY_TIME, Message, OutboxService

LOG = logging.getLogger(__name__)

#: Where messages go. May raise anything; the message is delivered again later then. ``Message.key`` stays the same.
Sink = Callable[[Message], None]

BATCH = 100


def log_message(message: Message) -> None:
    """The sink of a service that has nobody to tell: the log."""
    LOG.info("%s of lease %s (%s)", message.topic, message.lease_id, message.key)


class Delivery:
    """Hands messages to a sink: at least once, in order per lease."""

    def __init__(self, outbox: OutboxService, clock: Clock, sink: Sink = log_message) -> None:
        self._outbox = outbox
        self._clock = clock
        self._sink = sink

    def deliver(self) -> int:
        """Deliver what is ready, until nothing is; how many messages arrived."""
        delivered = 0
        while messages := self._outbox.take(BATCH):
            late = self._clock.now() + DELIVERY_TIME / 2
            for position, message in enumerate(messages):
                if self._clock.now() > late:  # before the claims run out, and what follows overtakes these
                    self._outbox.give_back(messages[position:])
                    break
                try:
                    self._sink(message)
                except Exception as error:
                    LOG.exception("%s of lease %s was not delivered", message.topic, message.lease_id)
                    recorded = self._outbox.failed(message, f"{type(error).__name__}: {error}"[:1000])
                else:
                    recorded = self._outbox.delivered(message)
                    delivered += 1
                if not recorded:
                    LOG.warning(
                        "%s of lease %s took so long that another has taken it by now", message.topic, message.lease_id
                    )
        return delivered
