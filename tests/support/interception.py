"""HTTP proxies between a deployment and its cloud: they pass everything on, or fail as cloud services do.

A deployment authenticates through the proxy of Keystone, and finds the others in the catalogue of its token, so the
cloud's own catalogue stays unchanged.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.support.cloud import Cloud
from tests.support.deployment import Options

#: The timeout of a service; more than any client waits.
ANSWER_SECONDS = 120
#: Headers of a single connection, which are not passed on.
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "accept-encoding"})


@dataclass(frozen=True)
class Seen:
    """A request to a service, and the status of the answer, 0 for none."""

    method: str
    path: str
    status: int
    body: bytes = b""

    @property
    def writes(self) -> bool:
        return self.method not in {"GET", "HEAD", "OPTIONS"}


@dataclass
class Fault:
    """A fault for the first ``times`` requests that match ``concerns``.

    First it waits for ``delay`` seconds. With a ``status`` the service does not get the request; with ``lose_answer``
    the service handles it, and the connection is closed before the answer.
    """

    delay: float = 0.0
    status: int | None = None
    lose_answer: bool = False
    concerns: Callable[[str, str, bytes], bool] = lambda _method, _path, _body: True
    times: int | None = None

    def takes(self, method: str, path: str, body: bytes) -> bool:
        """Whether the fault applies to this request; counts the requests it applies to."""
        if self.times == 0 or not self.concerns(method, path, body):
            return False
        if self.times is not None:
            self.times -= 1
        return True


class Proxy:
    """A proxy of the service at ``target``, always on the same port."""

    def __init__(self, target: str) -> None:
        self.target = target
        parts = urlsplit(target)
        self._address = (parts.hostname or "", parts.port or 80)
        self._faults: list[Fault] = []
        self._guard = threading.Lock()
        self._seen: list[Seen] = []
        self._open: set[socket.socket] = set()
        #: The proxies' addresses by the addresses that they replace in answers.
        self.replaced: dict[str, str] = {}
        self._server: _Server | None = None
        self.port = 0
        self.listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # Faults

    def fail(self, fault: Fault) -> None:
        """Add a fault."""
        with self._guard:
            self._faults.append(fault)

    def heal(self) -> None:
        """Remove all faults."""
        with self._guard:
            self._faults.clear()
        self.listen()

    def refuse(self) -> None:
        """Refuse connections, and close existing ones."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        with self._guard:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def listen(self) -> None:
        """Accept connections again."""
        if self._server is None:
            self._server = _Server(("127.0.0.1", self.port), self)
            self.port = self._server.server_port
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    # Requests

    def seen(self) -> list[Seen]:
        """Return the requests since the last call of ``forget``."""
        with self._guard:
            return list(self._seen)

    def forget(self) -> None:
        with self._guard:
            self._seen.clear()

    # Inside

    def _take(self, method: str, path: str, body: bytes) -> Fault | None:
        with self._guard:
            return next((fault for fault in self._faults if fault.takes(method, path, body)), None)

    def _note(self, method: str, path: str, status: int, body: bytes) -> None:
        with self._guard:
            self._seen.append(Seen(method, path, status, body))

    def _pass_on(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        connection = http.client.HTTPConnection(*self._address, timeout=ANSWER_SECONDS)
        try:
            kept = {name: value for name, value in headers.items() if name.lower() not in _HOP}
            connection.request(method, path, body or None, kept)
            answer = connection.getresponse()
            content = answer.read()
            for origin, stand_in in self.replaced.items():
                content = content.replace(origin.encode(), stand_in.encode())
            passed = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
            return _Answer(answer.status, passed, content)
        finally:
            connection.close()


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], proxy: Proxy) -> None:
        self.proxy = proxy
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have disconnected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        with self.server.proxy._guard:
            self.server.proxy._open.add(self.connection)

    def finish(self) -> None:
        with self.server.proxy._guard:
            self.server.proxy._open.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def _serve(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = proxy._take(self.command, self.path, body)
        if fault is not None and fault.delay:
            time.sleep(fault.delay)
        if fault is not None and fault.status is not None:
            proxy._note(self.command, self.path, fault.status, body)
            text = json.dumps({"error": {"code": fault.status, "message": "made to fail"}}).encode()
            self._answer(_Answer(fault.status, {"Content-Type": "application/json"}, text))
            return
        try:
            answer = proxy._pass_on(self.command, self.path, dict(self.headers.items()), body)
        except OSError:
            proxy._note(self.command, self.path, 0, body)
            self.close_connection = True
            return
        proxy._note(self.command, self.path, answer.status, body)
        if fault is not None and fault.lose_answer:
            self.close_connection = True
            return
        self._answer(answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - as the class above calls them

    def _answer(self, answer: _Answer) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status not in {204, 304}:
            self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@dataclass
class Interception:
    """The proxies of all services that a deployment uses."""

    identity: Proxy
    compute: Proxy
    placement: Proxy
    image: Proxy
    #: Of Keystone's address.
    path: str

    @property
    def all(self) -> tuple[Proxy, ...]:
        return self.identity, self.compute, self.placement, self.image

    @property
    def options(self) -> Options:
        """Return options for a deployment to use the proxies, beside those for the cloud.

        Token validations are not cached in memcached: other clients would find the catalogue with these proxies there,
        and use them after they are gone.
        """
        url = f"{self.identity.url}{self.path}"
        return {"service_auth": {"auth_url": url}, "keystone_authtoken": {"auth_url": url, "memcached_servers": ""}}

    def heal(self) -> None:
        for proxy in self.all:
            proxy.heal()

    def forget(self) -> None:
        for proxy in self.all:
            proxy.forget()


@contextmanager
def interception(cloud: Cloud) -> Iterator[Interception]:
    """Run proxies of Keystone, Nova, Placement and Glance, without faults at first."""
    session = cloud.session()
    region = cloud.openrc["OS_REGION_NAME"]

    def origin(service: str) -> str:
        url = session.get_endpoint(service_type=service, interface="public", region_name=region)
        assert url is not None, service
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc}"

    with ExitStack() as stack:
        identity, compute, placement, image = map(Proxy, map(origin, ("identity", "compute", "placement", "image")))
        found = Interception(identity, compute, placement, image, urlsplit(cloud.openrc["OS_AUTH_URL"]).path)
        for proxy in found.all:
            stack.callback(proxy.refuse)
            proxy.replaced.update({endpoint.target: endpoint.url for endpoint in found.all})
        yield found
