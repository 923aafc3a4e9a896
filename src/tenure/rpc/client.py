"""The API's end of RPC: calls the manager's operations on any manager that is free."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import oslo_messaging
from oslo_config.cfg import ConfigOpts

from tenure.clock import Clock, SystemClock
from tenure.deadlines import arrival
from tenure.domain.errors import Busy, Unavailable
from tenure.rpc.bus import rpc_transport
from tenure.rpc.operations import TABLE, Operation
from tenure.rpc.server import CROWDED, VERSION
from tenure.rpc.serving import in_one_line
from tenure.rpc.wire import decode_error
from tenure.services.manager import Manager

LOG = logging.getLogger(__name__)

#: How long a manager may be silent while it works, in seconds: it sends a heartbeat twice in this time. A manager that
#: has not begun by then must not begin any more.
SILENCE_SECONDS = 6
#: How long to wait for the first connection to the message bus, and for a manager's health, in seconds.
FIRST_SECONDS = 5.0
HEALTH_SECONDS = 5
#: How often to try to send again if the connection is lost.
RETRIES = 2
#: The first and the longest pause before asking for a free manager again, in seconds; each is twice the one before.
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.2

_AWAY = "No manager of the reservation service can be reached right now; try again later."
_SILENT = (
    "The manager of the reservation service has not answered. What was asked may have been done or not; "
    "look before you try again later."
)
_FULL = "The managers of the reservation service have no room for more right now; try again later."


class ManagerFailed(Exception):
    """The operation failed in the manager, and the manager has logged why."""


class RpcClient:
    """Calls operations of a manager. Thread-safe."""

    def __init__(self, conf: ConfigOpts, *, topic: str, clock: Clock | None = None) -> None:
        self._client = oslo_messaging.get_rpc_client(
            rpc_transport(conf),
            oslo_messaging.Target(topic=topic, version=VERSION),
            retry=RETRIES,
            call_monitor_timeout=SILENCE_SECONDS,
            transport_options=oslo_messaging.TransportOptions(at_least_once=True),  # fail at once without a listener
        )
        self._conf = conf
        self._clock = clock or SystemClock()
        self._guard = threading.Lock()
        self._connecting: threading.Thread | None = None
        self._connected = False

    def call(self, operation: Operation, *positional: object, **named: object) -> Any:
        """Call the operation on any free manager, and return its result.

        Raises the operation's errors; ``Busy`` if no manager has room; ``Unavailable`` if none can be reached, or has
        answered in time; and ``ManagerFailed``.
        """
        arguments = operation.encode_arguments(*positional, **named)
        self._connect()
        answer = self._ask(operation, arguments)
        if "result" in answer:
            return operation.decode_result(answer["result"])
        if answer["error"] is None:
            raise ManagerFailed(f"{operation.name} failed; the manager's log says why")
        raise decode_error(answer)

    def close(self) -> None:
        """Disconnect from the message bus; nothing can be called any more."""
        self._client.transport.cleanup()

    def _ask(self, operation: Operation, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Return the answer of a manager that has begun. Busy managers are asked in turn, up to ``SILENCE_SECONDS``."""
        patience = time.monotonic() + SILENCE_SECONDS
        pause = FIRST_PAUSE_SECONDS
        while True:
            answer = self._send(operation, arguments)
            refused = answer.get("refused")
            if refused is None:
                return answer
            if refused == CROWDED["refused"]:
                raise Busy
            if refused == "late":
                LOG.warning(
                    "a manager says that %s comes too late: do its clock and the clock of this machine agree?",
                    operation.name,
                )
            if time.monotonic() + pause > patience:
                LOG.warning("no manager has begun %s within %d s: %s", operation.name, SILENCE_SECONDS, refused)
                raise Busy(_FULL)
            time.sleep(random.uniform(pause / 2, pause))  # spread the calls; randomness is not for security
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _send(self, operation: Operation, arguments: dict[str, Any]) -> Mapping[str, Any]:
        try:
            return self._exchange(operation, arguments)
        except oslo_messaging.RemoteError as error:
            raise ManagerFailed(f"{operation.name} failed: {error.exc_type}") from None
        except oslo_messaging.MessageUndeliverable:
            LOG.warning("%s reaches no manager", operation.name)
            raise Unavailable(_AWAY) from None
        except Exception as error:  # noqa: BLE001  # transports and message buses raise errors of any kind
            LOG.warning("no answer to %s: %s", operation.name, in_one_line(error))
            raise Unavailable(_SILENT) from None

    def _exchange(self, operation: Operation, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Return a manager's answer; raise the errors of the transport."""
        seconds = HEALTH_SECONDS if operation.name == "health" else self._conf.rpc_response_timeout
        begin_by = self._clock.now().timestamp() + min(seconds, SILENCE_SECONDS)
        client = self._client.prepare(timeout=seconds)
        answer: Mapping[str, Any] = client.call(
            {},
            "perform",
            operation=operation.name,
            arguments=arguments,
            begin_by=begin_by,
            age=max(0.0, time.monotonic() - arrival().at),
        )
        return answer

    def _connect(self) -> None:
        """Wait briefly for the first connection; raise ``Unavailable`` until there is one.

        oslo.messaging waits for it without end, in the thread that calls first. An operation sent by that thread might
        be carried out when the bus comes back, long after its caller has given up. So that thread only asks for
        health. If the message bus refuses, the next call tries again.
        """
        with self._guard:
            if self._connected:
                return
            if self._connecting is None or not self._connecting.is_alive():
                self._connecting = threading.Thread(target=self._first_call, name="tenure-rpc-connect", daemon=True)
                self._connecting.start()
            connecting = self._connecting
        connecting.join(FIRST_SECONDS)
        if not self._connected:
            raise Unavailable(_AWAY)

    def _first_call(self) -> None:
        try:
            self._exchange(TABLE["health"], {})
        except (oslo_messaging.MessageUndeliverable, oslo_messaging.MessagingTimeout, oslo_messaging.RemoteError):
            LOG.info("the message bus is there, and no manager answers yet")
        except Exception as error:  # noqa: BLE001  # transports and message buses raise errors of any kind
            LOG.warning("the message bus cannot be used: %s", in_one_line(error))
            return
        self._connected = True


class _Remote:
    """A remote service of the manager."""

    def __init__(self, client: RpcClient, service: str) -> None:
        for operation in TABLE.values():
            if operation.service == service:
                call: Callable[..., Any] = partial(client.call, operation)
                setattr(self, operation.verb, call)


def remote_manager(client: RpcClient) -> Manager:
    """Return the manager as the API sees it, called by RPC."""
    return Manager.of(partial(_Remote, client), partial(client.call, TABLE["health"]))
