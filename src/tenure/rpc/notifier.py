"""Notifications about leases, sent by oslo.messaging."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from importlib import metadata

import oslo_messaging
from oslo_config.cfg import ConfigOpts

from tenure.clock import Clock
from tenure.rpc.bus import Misconfigured, notification_transport
from tenure.services.notifications.outbox import Message

#: How often one attempt tries to send again if the connection is lost. The outbox makes the next attempt.
RETRIES = 1
#: The drivers of oslo.messaging that send to a message bus, with the version of their envelope.
_BUSES: Mapping[str, float] = {"messagingv2": 2.0, "messaging": 1.0}


class NotificationSink:
    """Sends messages of the outbox as notifications of priority INFO, with the configured drivers.

    It raises if that fails, so that the message is sent again later. oslo.messaging's own notifier would log and lose a
    message that the bus does not take. ``message_id`` is the message's key, the same in every repetition.
    """

    def __init__(self, conf: ConfigOpts, *, publisher_id: str, clock: Clock) -> None:
        """Raise ``Misconfigured`` for invalid options, also for an unknown driver, which the library would ignore."""
        self._transport = notification_transport(conf)
        self._publisher_id = publisher_id
        self._clock = clock
        configured = conf.oslo_messaging_notifications
        _check_drivers(configured.driver)
        self._topics = [f"{topic}.info" for topic in configured.topics]
        self._versions = [_BUSES[driver] for driver in configured.driver if driver in _BUSES]
        self._others = [
            oslo_messaging.Notifier(self._transport, publisher_id, driver=driver, topics=configured.topics)
            for driver in configured.driver
            if driver not in _BUSES
        ]

    def __call__(self, message: Message) -> None:
        """Send one message; raise the errors of the message bus."""
        document = {
            "message_id": str(uuid.uuid5(uuid.NAMESPACE_OID, message.key)),
            "publisher_id": self._publisher_id,
            "event_type": message.topic,
            "priority": "INFO",
            "payload": message.payload,
            "timestamp": f"{self._clock.now():%Y-%m-%d %H:%M:%S.%f}",
        }
        for version in self._versions:
            for topic in self._topics:
                # The notifier's drivers call this method of the transport too, but swallow its errors.
                self._transport._send_notification(
                    oslo_messaging.Target(topic=topic), {}, document, version=version, retry=RETRIES
                )
        for notifier in self._others:
            notifier.info({}, message.topic, message.payload)


def _check_drivers(drivers: Iterable[str]) -> None:
    """Raise ``Misconfigured`` for a driver that cannot be loaded."""
    known = metadata.entry_points(group="oslo.messaging.notify.drivers")
    for name in drivers:
        if name not in known.names:
            raise Misconfigured(
                f"[oslo_messaging_notifications] driver: there is no {name!r}, only {', '.join(sorted(known.names))}"
            )
        try:
            known[name].load()
        except (ImportError, AttributeError) as error:
            raise Misconfigured(f"[oslo_messaging_notifications] driver: {name!r} cannot be loaded: {error}") from None
