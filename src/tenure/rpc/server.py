"""The manager's end of RPC: takes whole operations, and answers with plain values or one of our errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import oslo_messaging
from oslo_config.cfg import ConfigOpts

from tenure.domain.actor import Actor
from tenure.domain.errors import TenureError
from tenure.rpc.bus import rpc_transport
from tenure.rpc.operations import TABLE
from tenure.rpc.wire import encode_error
from tenure.services.manager import Manager
from tenure.tracing import new_request_id, traced

LOG = logging.getLogger(__name__)

#: The version of the messages; its first number changes when an API and a manager cannot talk to each other any more.
VERSION = "1.0"
#: The answer to what failed for no reason that the caller should know.
FAILED: Mapping[str, Any] = {"error": None}


class Endpoint:
    """What can be called: one method, for the operations of the declared list."""

    target = oslo_messaging.Target(version=VERSION)

    def __init__(self, manager: Manager) -> None:
        self._calls = {name: (operation, operation.bound_to(manager)) for name, operation in TABLE.items()}

    def perform(self, _context: object, *, operation: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do an operation: ``{"result": …}``, or ``{"error": …}`` for what is refused and for what failed."""
        try:
            declared, use_case = self._calls[operation]
            given = declared.decode_arguments(arguments)
        except Exception as error:  # noqa: BLE001  # whatever was sent
            # Not the error's text: it may quote what was sent, and a token with it.
            LOG.error("an API asks for what this manager does not understand: %s: %s", operation, type(error).__name__)
            return FAILED
        actor = given.get("actor")
        ids = (actor.request_id, actor.global_request_id) if isinstance(actor, Actor) else (new_request_id(), None)
        with traced(*ids):
            try:
                return {"result": declared.encode_result(use_case(**given))}
            except TenureError as error:
                return encode_error(error)
            except Exception:
                LOG.exception("%s failed", operation)
                return FAILED


class RpcServer:
    """Serves a manager's operations until it is stopped."""

    def __init__(self, conf: ConfigOpts, manager: Manager, *, topic: str, name: str, threads: int) -> None:
        """Serve ``threads`` operations side by side.

        ``name`` tells this manager's queue from those of others; nothing is ever sent to one of them alone.
        """
        self._threads = threads
        self._transport = rpc_transport(conf)
        self._server = oslo_messaging.get_rpc_server(
            self._transport,
            oslo_messaging.Target(topic=topic, server=name),
            [Endpoint(manager)],
            access_policy=oslo_messaging.DefaultRPCAccessPolicy,
        )

    def start(self) -> None:
        """Begin to take operations; waits for the message bus as long as it cannot be reached."""
        self._server.start(override_pool_size=self._threads)

    def stop(self) -> None:
        """Take no more operations, and end those that were taken."""
        self._server.stop()
        self._server.wait()
        self._transport.cleanup()
