"""A message bus that refuses all logins."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.waiting import patience, wait_for

_START, _CLOSE = (10, 10), (10, 50)
_ACCESS_REFUSED = 403
_TEXT = b"ACCESS_REFUSED - Login was refused"


class RefusingBus:
    """Speaks enough AMQP 0-9-1 to refuse a login, and counts them."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.logins = 0

    @property
    def url(self) -> str:
        return f"rabbit://tenure:secret-0815@127.0.0.1:{self._server.getsockname()[1]}/"

    def wait_for_logins(self, number: int) -> None:
        """Wait for this number of login attempts."""
        wait_for(lambda: f"{number} logins after {self.logins}", lambda: self.logins >= number)

    def serve(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                connection, _ = self._server.accept()
                with connection, suppress(OSError):
                    connection.settimeout(patience())
                    if refuse(connection):
                        self.logins += 1

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def refuse(connection: socket.socket) -> bool:
    """Refuse a client; return whether it has tried to log in."""
    if len(_read(connection, 8)) < 8:
        return False
    connection.sendall(_frame(_START, b"\0\x09" + bytes(4) + _long(b"PLAIN AMQPLAIN") + _long(b"en_US")))
    kind_channel_size = _read(connection, 7)
    if len(kind_channel_size) < 7:
        return False
    _read(connection, struct.unpack("!I", kind_channel_size[3:])[0] + 1)
    text = bytes([len(_TEXT)]) + _TEXT
    connection.sendall(_frame(_CLOSE, struct.pack("!H", _ACCESS_REFUSED) + text + bytes(4)))
    _read(connection, 12)
    return True


def _long(text: bytes) -> bytes:
    return struct.pack("!I", len(text)) + text


def _frame(method: tuple[int, int], arguments: bytes) -> bytes:
    payload = struct.pack("!HH", *method) + arguments
    return struct.pack("!BHI", 1, 0, len(payload)) + payload + b"\xce"


def _read(connection: socket.socket, size: int) -> bytes:
    """Read this number of bytes, fewer if the client has disconnected."""
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


@contextmanager
def refusing_bus() -> Iterator[RefusingBus]:
    """Run a refusing bus until the end of the block."""
    bus = RefusingBus()
    serving = threading.Thread(target=bus.serve, daemon=True)
    serving.start()
    try:
        yield bus
    finally:
        bus.close()
        serving.join(patience())
