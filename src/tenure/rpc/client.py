"""The API's end of RPC: the manager's operations, carried to whichever manager is free."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import oslo_messaging
from oslo_config.cfg import ConfigOpts

from tenure.domain.errors import Unavailable
from tenure.rpc.bus import rpc_transport
from tenure.rpc.operations import TABLE, Operation
from tenure.rpc.server import VERSION
from tenure.rpc.wire import decode_error
from tenure.services.leases import LeaseService
from tenure.services.manager import Manager
from tenure.services.resources import ResourceService

LOG = logging.getLogger(__name__)

#: How long a manager may say nothing while it works: it sends a sign of life twice in this time.
SILENCE_SECONDS = 6
#: How long to wait for the first connection to the message bus, and for a manager's answer about its health.
FIRST_SECONDS = 5.0
HEALTH_SECONDS = 5
#: How often to try to send again when the connection is lost.
RETRIES = 2

_AWAY = "No manager of the reservation service can be reached right now; try again later."
_SILENT = (
    "The manager of the reservation service has not answered. What was asked may have been done or not; "
    "look before you try again later."
)


class ManagerFailed(Exception):
    """The manager could not do it and has logged why."""


class RpcClient:
    """Calls operations of a manager. Safe for any number of threads."""

    def __init__(self, conf: ConfigOpts, *, topic: str) -> None:
        self._client = oslo_messaging.get_rpc_client(
            rpc_transport(conf),
            oslo_messaging.Target(topic=topic, version=VERSION),
            retry=RETRIES,
            call_monitor_timeout=SILENCE_SECONDS,
            transport_options=oslo_messaging.TransportOptions(at_least_once=True),  # a refusal where nobody listens
        )
        self._guard = threading.Lock()
        self._connecting: threading.Thread | None = None

    def call(self, operation: Operation, *positional: object, **named: object) -> Any:
        """The result of the operation, by whichever manager takes it.

        Raises what it raises, ``Unavailable`` where no manager can be reached, or where none has answered in time,
        and ``ManagerFailed``.
        """
        arguments = operation.encode_arguments(*positional, **named)
        self._connect()
        answer = self._send(operation, arguments, seconds=HEALTH_SECONDS if operation.name == "health" else None)
        if "result" in answer:
            return operation.decode_result(answer["result"])
        if answer["error"] is None:
            raise ManagerFailed(f"{operation.name} failed; the manager's log says why")
        raise decode_error(answer)

    def _send(self, operation: Operation, arguments: dict[str, Any], *, seconds: float | None) -> Any:
        client = self._client.prepare(timeout=seconds) if seconds else self._client
        try:
            return client.call({}, "perform", operation=operation.name, arguments=arguments)
        except oslo_messaging.MessagingTimeout as error:
            LOG.warning("no answer to %s: %s", operation.name, error)
            raise Unavailable(_SILENT) from None
        except (oslo_messaging.MessageDeliveryFailure, oslo_messaging.MessageUndeliverable) as error:
            LOG.warning("%s reaches no manager: %s", operation.name, type(error).__name__)
            raise Unavailable(_AWAY) from None

    def _connect(self) -> None:
        """Wait for the first connection, a little; raises ``Unavailable`` as long as there is none.

        oslo.messaging waits for it for ever, in the thread that calls first. What is asked meanwhile must not be done
        when the bus comes back and nobody waits for it any more, so that thread asks for nothing.
        """
        with self._guard:
            if self._connecting is None:
                self._connecting = threading.Thread(target=self._first_call, name="tenure-rpc-connect", daemon=True)
                self._connecting.start()
        self._connecting.join(FIRST_SECONDS)
        if self._connecting.is_alive():
            raise Unavailable(_AWAY)

    def _first_call(self) -> None:
        try:
            self._send(TABLE["health"], {}, seconds=HEALTH_SECONDS)
        except Unavailable:
            LOG.info("the message bus is there, and no manager answers yet")
        except Exception:
            LOG.exception("the message bus cannot be used")


class _Remote:
    """A service of the manager, called from afar."""

    def __init__(self, client: RpcClient, service: str) -> None:
        for operation in TABLE.values():
            if operation.service == service:
                call: Callable[..., Any] = partial(client.call, operation)
                setattr(self, operation.verb, call)


def remote_manager(client: RpcClient) -> Manager:
    """The manager as the API knows it, reached by RPC."""
    return Manager(
        leases=cast(LeaseService, _Remote(client, "leases")),
        resources=cast(ResourceService, _Remote(client, "resources")),
        health=partial(client.call, TABLE["health"]),
    )
