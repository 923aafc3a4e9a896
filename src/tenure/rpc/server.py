"""The manager's end of RPC: carries out whole operations, and answers with plain values or one of our errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import oslo_messaging
from oslo_config.cfg import ConfigOpts

from tenure.clock import Clock, SystemClock
from tenure.deadlines import Arrival, arrived
from tenure.domain.actor import Actor
from tenure.domain.errors import Busy, TenureError
from tenure.rpc.bus import rpc_transport
from tenure.rpc.operations import TABLE
from tenure.rpc.serving import STOP_SECONDS, Serving
from tenure.rpc.wire import encode_error
from tenure.services.manager import Manager
from tenure.tracing import new_request_id, traced

LOG = logging.getLogger(__name__)

#: The version of the messages. Its first number changes when API and manager become incompatible, the second when a
#: manager must not be older than the API.
VERSION = "1.4"
#: The answer if an operation failed for a reason that is not the caller's business.
FAILED: Mapping[str, Any] = {"error": None}
#: The answers if an operation was not begun: no permit is free, the caller has given up, the manager is stopping.
BUSY: Mapping[str, Any] = {"refused": "busy"}
LATE: Mapping[str, Any] = {"refused": "late"}
STOPPING: Mapping[str, Any] = {"refused": "stopping"}
#: The answer if the lane of the operation was full.
CROWDED: Mapping[str, Any] = {"refused": "crowded"}

#: How far the clocks of an API and a manager may differ, in seconds.
SKEW = timedelta(seconds=2)
#: How long a call waits for a permit before it is refused, in seconds. It is longer than most calls last, so that
#: permits are refilled under load; and short, as another manager may be free.
BENCH_SECONDS = 0.25
#: How many threads are left to refuse calls while all permits, and all benches to wait on, are taken.
REFUSERS = 4


class Endpoint:
    """The RPC endpoint: one method, for the operations of the declared list."""

    target = oslo_messaging.Target(version=VERSION)

    def __init__(self, manager: Manager, *, permits: int = 1, clock: Clock | None = None) -> None:
        """Carry out up to ``permits`` operations concurrently."""
        self._calls = {name: (operation, operation.bound_to(manager)) for name, operation in TABLE.items()}
        self._permits = threading.BoundedSemaphore(permits)
        self._benches = threading.BoundedSemaphore(permits)
        self._clock = clock or SystemClock()
        self._closed = threading.Event()

    def close(self) -> None:
        """Begin nothing new."""
        self._closed.set()

    def perform(
        self,
        _context: object,
        *,
        operation: str,
        arguments: Mapping[str, Any],
        begin_by: float | None = None,
        age: float = 0.0,
    ) -> Mapping[str, Any]:
        """Carry out an operation: return ``{"result": …}``, or ``{"error": …}`` if it is refused or has failed.

        ``{"refused": …}`` means that it was not begun. ``begin_by`` is when the caller gives up, as Unix time; ``age``
        is for how many seconds the API had the request when it called.
        """
        if not self._acquire():
            return BUSY
        try:
            if self._closed.is_set():
                return STOPPING
            if begin_by is not None and (self._clock.now() - SKEW).timestamp() > begin_by:
                return LATE
            with arrived(Arrival(time.monotonic() - age)):
                return self._do(operation, arguments)
        finally:
            self._permits.release()

    def _acquire(self) -> bool:
        """Take a permit. If few others wait, wait for one briefly; return whether there is one."""
        if self._permits.acquire(blocking=False):
            return True
        if self._closed.is_set() or not self._benches.acquire(blocking=False):
            return False
        try:
            return self._permits.acquire(timeout=BENCH_SECONDS)
        finally:
            self._benches.release()

    def _do(self, operation: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            declared, use_case = self._calls[operation]
            given = declared.decode_arguments(arguments)
        except Exception as error:  # noqa: BLE001  # the sender may have sent anything
            # Do not log the error's text: it may quote what was sent, and a token with it.
            LOG.error("an API sent what this manager does not understand: %s: %s", operation, type(error).__name__)
            return FAILED
        actor = given.get("actor")
        ids = (actor.request_id, actor.global_request_id) if isinstance(actor, Actor) else (new_request_id(), None)
        with traced(*ids):
            try:
                return {"result": declared.encode_result(use_case(**given))}
            except Busy:
                return CROWDED
            except TenureError as error:
                return encode_error(error)
            except Exception:
                LOG.exception("%s failed", operation)
                return FAILED


class RpcServer:
    """Serves a manager's operations until it is stopped."""

    def __init__(
        self, conf: ConfigOpts, manager: Manager, *, topic: str, name: str, threads: int, clock: Clock | None = None
    ) -> None:
        """Serve ``threads`` operations concurrently.

        ``name`` distinguishes this manager's queue from those of others; nothing is ever sent to a single manager.
        """
        self._transport = rpc_transport(conf)
        self._target = oslo_messaging.Target(topic=topic, server=name)
        self._endpoint = Endpoint(manager, permits=threads, clock=clock)
        # oslo.messaging accepts all calls and queues them in memory, without a limit. So as many threads again wait for
        # a permit, and a few refuse at once what would have to wait for long, so that another manager can take it.
        self._serving = Serving(
            self._new_server, threads=2 * threads + REFUSERS, problem="no calls of the API can be taken"
        )

    def start(self) -> None:
        """Begin to serve; waits until the message bus can be used, or until ``stop``."""
        self._serving.start()

    def stop(self, seconds: float = STOP_SECONDS) -> bool:
        """Begin nothing new, and wait this long for running operations; return whether all have ended."""
        self._endpoint.close()
        if not self._serving.stop(seconds):
            return False
        self._transport.cleanup()
        return True

    def _new_server(self) -> oslo_messaging.MessageHandlingServer:
        return oslo_messaging.get_rpc_server(
            self._transport,
            self._target,
            [self._endpoint],
            access_policy=oslo_messaging.DefaultRPCAccessPolicy,
        )
