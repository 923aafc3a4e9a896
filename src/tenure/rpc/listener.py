"""Listening for compute services that fail, and for new and deleted servers, in Nova's versioned notifications."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import oslo_messaging
from oslo_config.cfg import ConfigOpts

from tenure.drivers.contract import Health
from tenure.rpc.bus import notification_transport
from tenure.rpc.serving import STOP_SECONDS, Pauses, Serving, in_one_line

LOG = logging.getLogger(__name__)

#: How many notifications are handled concurrently: one, so that the latest report about a host is stored last.
THREADS = 1

#: A report about a compute service: the name of its host, and its health.
Report = Callable[[str, Health], object]


class ServiceEndpoint:
    """Handles Nova's notifications of changed services; ignores all others."""

    filter_rule = oslo_messaging.NotificationFilter(event_type=r"^service\.update$")

    def __init__(self, report: Report) -> None:
        self._report = report
        self._pauses = Pauses()

    def close(self) -> None:
        """Requeue what cannot be recorded, without a pause."""
        self._pauses.end()

    def info(
        self,
        _context: object,
        publisher_id: str,
        event_type: str,
        payload: Mapping[str, Any],
        _metadata: object,
    ) -> object:
        """Report the state of a compute service; if it cannot be recorded, requeue it after a pause."""
        service = payload.get("nova_object.data") if isinstance(payload, Mapping) else None
        if not isinstance(service, Mapping) or not isinstance(service.get("host"), str):
            LOG.warning("%s of %s is not as Nova's versioned notifications are", event_type, publisher_id)
            return oslo_messaging.NotificationResult.HANDLED
        if service.get("binary") != "nova-compute":
            return oslo_messaging.NotificationResult.HANDLED
        try:
            self._report(service["host"], _health_of(service))
        except Exception as error:  # noqa: BLE001  # the notification must not be lost, whatever the reason
            LOG.warning(
                "what %s tells of %s cannot be recorded: %s; it is taken up again in %s",
                publisher_id,
                service["host"],
                in_one_line(error),
                self._pauses,
            )
            self._pauses.wait()
            return oslo_messaging.NotificationResult.REQUEUE
        self._pauses.begin_anew()
        return oslo_messaging.NotificationResult.HANDLED

    warn = info
    error = info


class ServerEndpoint:
    """Handles Nova's notifications of new and deleted servers: it only calls ``on_change``, which must not fail."""

    filter_rule = oslo_messaging.NotificationFilter(event_type=r"^instance\.(create|delete)\.end$")

    def __init__(self, on_change: Callable[[], object]) -> None:
        self._on_change = on_change

    def info(
        self, _context: object, _publisher_id: str, _event_type: str, _payload: object, _metadata: object
    ) -> object:
        self._on_change()
        return oslo_messaging.NotificationResult.HANDLED


def _health_of(service: Mapping[str, Any]) -> Health:
    if service.get("forced_down"):
        return Health(False, "The compute service was forced down.")
    if service.get("disabled"):
        reason = service.get("disabled_reason")
        return Health(False, f"The compute service is disabled{f': {reason}' if reason else '.'}", works=True)
    return Health(True)


class NovaListener:
    """Listens until it is stopped. If the message bus is away, it waits for it.

    It reads the topics' own queues, together with all other managers. With a pool of oslo.messaging it would get a
    copy, and the topics' own queues would grow without another reader.
    """

    def __init__(
        self,
        conf: ConfigOpts,
        report: Report | None,
        *,
        topics: Sequence[str],
        exchange: str,
        on_server: Callable[[], object] | None = None,
    ) -> None:
        """``report`` gets the health of compute services; ``on_server`` is called for new and deleted servers."""
        self._transport = notification_transport(conf)
        self._targets = [oslo_messaging.Target(topic=topic, exchange=exchange) for topic in topics]
        self._of_services = None if report is None else ServiceEndpoint(report)
        self._of_servers = None if on_server is None else ServerEndpoint(on_server)
        self._serving = Serving(self._new_server, threads=THREADS, problem="Nova's notifications cannot be heard")

    def start(self) -> None:
        """Begin to listen as soon as the message bus can be used; return at once."""
        threading.Thread(target=self._serving.start, name="tenure-nova-listener", daemon=True).start()

    def stop(self, seconds: float = STOP_SECONDS) -> bool:
        """Stop listening, and wait this long for running handlers; return whether all have ended."""
        if self._of_services is not None:
            self._of_services.close()
        return self._serving.stop(seconds)

    def _new_server(self) -> oslo_messaging.MessageHandlingServer:
        endpoints = [endpoint for endpoint in (self._of_services, self._of_servers) if endpoint is not None]
        return oslo_messaging.get_notification_listener(self._transport, self._targets, endpoints, allow_requeue=True)
