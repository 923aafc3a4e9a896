"""A consumer of the notifications on the message bus."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from amqp.exceptions import NotFound
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from tests.support.bus import RABBITMQ_URL, amqp
from tests.support.waiting import wait_for


@dataclass
class Consumer:
    """Takes notifications off a queue, and reconnects when the connection is lost."""

    queue: str
    heard: list[dict[str, Any]] = field(default_factory=list)

    def listen(self) -> None:
        """Take the notifications that are there now."""
        with Connection(amqp(RABBITMQ_URL), connect_timeout=5) as bus:
            channel = bus.default_channel
            while (message := channel.basic_get(self.queue)) is not None:
                envelope = json.loads(message.body)
                assert envelope["oslo.version"] == "2.0"
                self.heard.append(json.loads(envelope["oslo.message"]))
                channel.basic_ack(message.delivery_tag)

    def types(self, lease_id: str) -> list[str]:
        """Return the types of a lease's notifications in order; repetitions count once."""
        keys: dict[str, str] = {}
        for message in self.heard:
            if message["payload"]["lease_id"] == lease_id:
                keys.setdefault(message["message_id"], message["event_type"])
        return list(keys.values())

    def wait(self, lease_id: str, *types: str) -> None:
        """Wait for exactly these notifications of a lease, in this order."""

        def complete() -> bool:
            try:
                self.listen()
            except (OperationalError, OSError):
                return False  # the message bus is not back yet
            except NotFound:
                return False  # the first message makes the queue, also after the message bus was away
            return len(self.types(lease_id)) >= len(types)

        wait_for(f"{', '.join(types)} after {', '.join(self.types(lease_id))}", complete, pause=0.25)
        assert self.types(lease_id) == list(types)
