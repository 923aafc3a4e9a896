"""The HTTP server of our own programs: what a client can use before it is authenticated."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest
from waitress import channel
from waitress.wasyncore import close_all

from tenure.api.bodies import MAX_BYTES
from tenure.cmd import listening
from tests.support.waiting import patience, wait_for

#: The first bytes of a body that comes in chunks, as many as the smallest body has that is refused unread.
CHUNKS = ((b"10000\r\n" + b"x" * 0x10000 + b"\r\n") * 17)[: MAX_BYTES + 64 * 1024]
HALF = b"POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"


def hello(_environ: object, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    return [b"hi"]


@pytest.fixture
def limit() -> int:
    """How many connections are open at a time."""
    return listening.MAX_CONNECTIONS


@pytest.fixture
def server(limit: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if limit != listening.MAX_CONNECTIONS:  # then nothing ends because its time is over
        monkeypatch.setattr(listening, "MAX_CONNECTIONS", limit)
        monkeypatch.setattr(listening, "REQUEST_SECONDS", 3600)
    sockets: dict[int, Any] = {}
    opened = listening.listen(hello, host="127.0.0.1", port=0, threads=2, sockets=sockets)
    thread = threading.Thread(target=opened.run, daemon=True)
    thread.start()
    yield opened
    opened.task_dispatcher.shutdown()
    close_all(sockets)
    thread.join(patience())


def connect(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.effective_port), timeout=patience())


def answer(server: Any, *, raw: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") -> http.client.HTTPResponse:
    with closing(connect(server)) as sock:
        sock.sendall(raw)
        response = http.client.HTTPResponse(sock)
        response.begin()
        return response


@pytest.mark.parametrize("limit", [listening.MAX_CONNECTIONS, 20], ids=["as served", "with less room"])
def test_half_sent_requests_do_not_block_others(server: Any):
    with ExitStack() as stack:
        for _ in range(150):
            sock = stack.enter_context(closing(connect(server)))
            sock.sendall(HALF)
        assert answer(server).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("limit", [5])
def test_running_request_keeps_its_connection(server: Any):
    """Of the open connections, the one that has waited longest for its client is closed."""
    with ExitStack() as stack:
        mine = http.client.HTTPConnection("127.0.0.1", server.effective_port, timeout=patience())
        stack.callback(mine.close)
        for _ in range(30):
            stack.enter_context(closing(connect(server))).sendall(HALF)
            mine.request("GET", "/")
            assert mine.getresponse().read() == b"hi"


@pytest.mark.slow
def test_a_request_that_drips_in_has_no_more_time_than_others(server: Any, monkeypatch: pytest.MonkeyPatch):
    with closing(connect(server)) as sock:
        began = time.time()
        sock.sendall(HALF)
        wait_for("the request", lambda: [channel for channel in server.active_channels.values() if channel.request])
        monkeypatch.setattr(channel, "time", SimpleNamespace(time=lambda: began + listening.REQUEST_SECONDS - 1))
        [mine] = server.active_channels.values()
        received = len(mine.request.body_rcv.getbuf()) if mine.request.body_rcv else 0
        sock.sendall(b"x")
        wait_for("a byte more", lambda: len(mine.request.body_rcv.getbuf()) > received)
        server.maintenance(began + listening.REQUEST_SECONDS - 1)
        assert not mine.will_close
        server.maintenance(began + listening.REQUEST_SECONDS + 1)
        assert mine.will_close
        server.pull_trigger()
        assert sock.recv(1) == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % 2**30, 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (MAX_BYTES + 64 * 1024), 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS, 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
    ],
    ids=["body", "body by little", "body in chunks", "headers"],
)
def test_too_large_request_is_refused_before_it_is_read(server: Any, raw: bytes, status: int):
    assert answer(server, raw=raw).status == status


@pytest.mark.slow
def test_a_body_that_is_a_little_too_large_is_left_to_the_api(server: Any):
    size = MAX_BYTES + 1
    raw = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
    assert answer(server, raw=raw + b"x" * size).status == 200
