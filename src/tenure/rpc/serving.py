"""Servers on the message bus: started as soon as the bus accepts them, and stopped within a limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from oslo_messaging import MessageHandlingServer

LOG = logging.getLogger(__name__)

#: The first and the longest pause before another attempt, in seconds; each is twice the one before.
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
#: How long a stop waits for running work by default, in seconds.
STOP_SECONDS = 20.0
#: How long a stop waits for a connection that is being made, in seconds.
CONNECT_SECONDS = 2.0


class Pauses:
    """Growing pauses between attempts, which another thread can end."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._next = FIRST_PAUSE_SECONDS

    def __str__(self) -> str:
        return f"{self._next:g} s"

    def wait(self) -> bool:
        """Wait for the next pause; return whether to try again, rather than to end."""
        pause, self._next = self._next, min(2 * self._next, LONGEST_PAUSE_SECONDS)
        return not self._ended.wait(pause)

    def begin_anew(self) -> None:
        """Make the next pause a short one: an attempt has succeeded."""
        self._next = FIRST_PAUSE_SECONDS

    def end(self) -> None:
        """End all pauses, now and later."""
        self._ended.set()

    @property
    def are_over(self) -> bool:
        return self._ended.is_set()


class Serving:
    """A server that is created again until the message bus accepts one. Start it only once."""

    def __init__(self, make: Callable[[], MessageHandlingServer], *, threads: int, problem: str) -> None:
        """``problem`` says for the log what does not work without the message bus."""
        self._make = make
        self._threads = threads
        self._problem = problem
        self._pauses = Pauses()
        self._guard = threading.Lock()
        self._server: MessageHandlingServer | None = None
        self._ending: threading.Thread | None = None
        self._settled = threading.Event()
        self._settled.set()

    def start(self) -> None:
        """Begin to serve; return when it serves, or when it is stopped before.

        If the message bus cannot be reached, oslo.messaging waits and logs that. If it refuses, this tries again.
        """
        self._settled.clear()
        try:
            while not self._pauses.are_over and not self._begin():
                self._pauses.wait()
        finally:
            self._settled.set()
        if self._pauses.are_over:
            self.stop()  # stop() was called while this waited for the message bus

    def stop(self, seconds: float = STOP_SECONDS) -> bool:
        """Take nothing new, and wait this long for running work; return whether all of it has ended."""
        self._pauses.end()
        self._settled.wait(min(seconds, CONNECT_SECONDS))
        with self._guard:
            if self._server is None:  # a server that still connects serves no request, and ends with the process
                return True
            if self._ending is None:
                self._ending = threading.Thread(target=self._end, args=(self._server,), daemon=True)
                self._ending.start()
        self._ending.join(seconds)
        return not self._ending.is_alive()

    def _begin(self) -> bool:
        server = self._make()
        try:
            server.start(override_pool_size=self._threads)
        except Exception as error:  # noqa: BLE001  # transports and message buses raise errors of any kind
            LOG.warning("%s: %s; the next attempt comes in %s", self._problem, in_one_line(error), self._pauses)
            return False
        with self._guard:
            self._server = server
        return True

    @staticmethod
    def _end(server: MessageHandlingServer) -> None:
        server.stop()
        server.wait()


def in_one_line(error: Exception) -> str:
    """Return the type and text of an error as a single line for the log."""
    return " ".join(f"{type(error).__name__}: {error}".split())
