"""Servers on the message bus: begun as soon as it lets them in, and ended within a limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

LOG = logging.getLogger(__name__)

#: The first pause before something is tried again, and the longest; each is twice as long as the one before.
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
#: How long a stop waits for what is under way, where nobody says.
STOP_SECONDS = 20.0
#: How long a stop waits for a connection that is being made.
CONNECT_SECONDS = 2.0


class Pauses:
    """Pauses between attempts, longer each time, that somebody can put an end to."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._next = FIRST_PAUSE_SECONDS

    def __str__(self) -> str:
        return f"{self._next:g} s"

    def wait(self) -> bool:
        """Wait for the next pause; whether it is time for another attempt, rather than to end."""
        pause, self._next = self._next, min(2 * self._next, LONGEST_PAUSE_SECONDS)
        return not self._ended.wait(pause)

    def begin_anew(self) -> None:
        """Let the next pause be a short one: an attempt has succeeded."""
        self._next = FIRST_PAUSE_SECONDS

    def end(self) -> None:
        """Let no pause last any longer."""
        self._ended.set()

    @property
    def are_over(self) -> bool:
        return self._ended.is_set()


class BusServer(Protocol):
    """What oslo.messaging's servers have in common."""

    def start(self, override_pool_size: int) -> None:
        """Connect and begin; a server whose start has failed is of no use any more."""

    def stop(self) -> None:
        """Take nothing new."""

    def wait(self) -> None:
        """Wait for what is under way, and disconnect."""


class Serving:
    """A server that is made anew until the message bus lets one in. To be started once."""

    def __init__(self, make: Callable[[], BusServer], *, threads: int, what: str) -> None:
        """``what`` is what does not work without the message bus, for the log."""
        self._make = make
        self._threads = threads
        self._what = what
        self._pauses = Pauses()
        self._guard = threading.Lock()
        self._server: BusServer | None = None
        self._ending: threading.Thread | None = None
        self._settled = threading.Event()
        self._settled.set()

    def start(self) -> None:
        """Begin to serve; returns when it does, or when it is stopped before.

        oslo.messaging waits for a message bus that cannot be reached, and logs that. One that refuses is tried again.
        """
        self._settled.clear()
        try:
            while not self._pauses.are_over and not self._begin():
                self._pauses.wait()
        finally:
            self._settled.set()
        if self._pauses.are_over:
            self.stop()  # who asked for it has not waited for the message bus

    def stop(self, seconds: float = STOP_SECONDS) -> bool:
        """Take nothing new, and wait so long for what is under way; whether all of it has ended."""
        self._pauses.end()
        self._settled.wait(min(seconds, CONNECT_SECONDS))
        with self._guard:
            if self._server is None:  # what is still to be connected serves nobody, and ends with the process
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
        except Exception as error:  # noqa: BLE001  # whatever a transport and a message bus can come up with
            LOG.warning("%s: %s; the next attempt comes in %s", self._what, in_one_line(error), self._pauses)
            return False
        with self._guard:
            self._server = server
        return True

    @staticmethod
    def _end(server: BusServer) -> None:
        server.stop()
        server.wait()


def in_one_line(error: Exception) -> str:
    """What an error says, for a line of a log."""
    return " ".join(f"{type(error).__name__}: {error}".split())
