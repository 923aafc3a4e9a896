"""Ports of the loopback that forward to a server elsewhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from ssl import SSLSocket
from typing import Any, TypeVar

from tests.support.waiting import patience

LOOPBACK = "127.0.0.1"

Target = int | Path
_Forwarder = TypeVar("_Forwarder", bound="Forwarder")


class Forwarder:
    """Forwards a port of the loopback to another port there, or to a socket in the file system."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._server = socket.create_server((LOOPBACK, 0))

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def serve(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                client, _address = self._server.accept()
                threading.Thread(target=self.attend, args=(client,), daemon=True).start()

    def stop(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def attend(self, client: socket.socket) -> None:
        """Forward both directions of this connection until both are closed."""
        with client, self._connect() as server:
            _copy_both_ways(client, server)

    def _connect(self) -> socket.socket:
        if isinstance(self._target, int):
            return socket.create_connection((LOOPBACK, self._target))
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._target))
        return server


def _copy_both_ways(client: socket.socket, server: socket.socket) -> None:
    """Forward both directions until their ends.

    One thread does it all: two must not use a TLS connection at the same time, one to receive and one to send.
    """
    with DefaultSelector() as sources, suppress(OSError):
        sources.register(client, EVENT_READ, server)
        sources.register(server, EVENT_READ, client)
        while sources.get_map():
            for key, _ in sources.select():
                source: Any = key.fileobj
                if not _copy(source, key.data):
                    sources.unregister(source)


def _copy(source: socket.socket, target: socket.socket) -> bool:
    """Forward what has come; return False at the end, after passing the end on."""
    while data := source.recv(65536):
        target.sendall(data)
        if not (isinstance(source, SSLSocket) and source.pending()):  # what is decrypted wakes no selector
            return True
    target.shutdown(socket.SHUT_WR)
    return False


@contextmanager
def serving(forwarder: _Forwarder) -> Iterator[_Forwarder]:
    """Serve until the end of the block."""
    thread = threading.Thread(target=forwarder.serve, daemon=True)
    thread.start()
    try:
        yield forwarder
    finally:
        forwarder.stop()
        thread.join(patience())


def forwarding(target: Target) -> AbstractContextManager[Forwarder]:
    """Forward a port to this address, until the end of the block."""
    return serving(Forwarder(target))
