"""A relay of a message bus that refuses logins, loses connections or disappears on demand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

from tests.support.refusing import refuse
from tests.support.waiting import patience


class Relay:
    """Passes everything between clients and the message bus at ``url`` unless told otherwise."""

    def __init__(self, url: str) -> None:
        self._bus = urlsplit(url)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._cut_after: bytes | None = None
        #: Whether logins are refused.
        self.refuses = False
        #: How many connections were closed because of a message.
        self.cuts = 0

    @property
    def url(self) -> str:
        """Return the relay's URL for clients."""
        address = f"{self._bus.username}:{self._bus.password}@127.0.0.1:{self._server.getsockname()[1]}"
        return urlunsplit(("rabbit", address, self._bus.path, "", ""))

    @property
    def connections(self) -> int:
        """Return the number of connected clients."""
        return sum(client.fileno() >= 0 for client in self._open[::2])

    def cut_after(self, words: bytes) -> None:
        """Pass on the next message with these words, and close the connection before its confirmation."""
        self._cut_after = words

    def serve(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                threading.Thread(target=self._attend, args=(self._server.accept()[0],), daemon=True).start()

    def go_away(self) -> None:
        """Close all connections, and refuse new ones."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._open:
            _end(connection)

    def _attend(self, client: socket.socket) -> None:
        if self.refuses:
            with client, suppress(OSError):
                client.settimeout(patience())
                refuse(client)
            return
        bus = socket.create_connection((self._bus.hostname or "127.0.0.1", self._bus.port or 5672))
        self._open += [client, bus]
        deaf, confirmed = threading.Event(), threading.Event()
        threading.Thread(target=self._pass_back, args=(bus, client, deaf, confirmed), daemon=True).start()
        with suppress(OSError):
            while data := client.recv(65536):
                if self._cut_after is not None and self._cut_after in data:
                    self._cut_after = None
                    deaf.set()
                    bus.sendall(data)
                    confirmed.wait(patience(10))  # the bus may drop the last message of a lost connection
                    self.cuts += 1
                    bus.settimeout(5)
                    bus.shutdown(socket.SHUT_WR)
                    break
                bus.sendall(data)
        _end(client)

    @staticmethod
    def _pass_back(
        bus: socket.socket, client: socket.socket, deaf: threading.Event, confirmed: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := bus.recv(65536):
                if deaf.is_set():
                    confirmed.set()
                else:
                    client.sendall(data)
        _end(client)
        _end(bus)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextmanager
def relay_to(url: str) -> Iterator[Relay]:
    """Run a relay until the end of the block."""
    relay = Relay(url)
    serving = threading.Thread(target=relay.serve, daemon=True)
    serving.start()
    try:
        yield relay
    finally:
        relay.go_away()
        serving.join(patience())
