"""A site's service that keeps accounts of leases: small, real, over HTTP, with faults on demand."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tenure.config import new_config
from tenure.enforcement.external import ExternalServiceFilter
from tests.support.waiting import HANG_SECONDS


@dataclass(frozen=True)
class Call:
    """A received request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Credits:
    """The service. ``mood`` is its behaviour: normal unless a test sets another one."""

    mood: str = "well"
    #: The only call with that mood, such as ``on-end``; None for all calls.
    only: str = ""
    #: An action after a call is recorded, before its answer.
    then: Callable[[Call], object] = lambda _call: None
    #: The answer in the mood ``answers``.
    status: int = 204
    body: bytes = b""
    calls: list[Call] = field(default_factory=list)
    #: The charges of each lease: how often it was created, changed and ended. A key counts once.
    charged: dict[str, Counter[str]] = field(default_factory=dict)
    #: The order of a lease's charges.
    order: dict[str, list[str]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    url: str = ""
    #: Releases blocked callers. A caller without a timeout gets an answer in the end.
    patience: threading.Event = field(default_factory=threading.Event)

    def bodies_of(self, name: str) -> list[dict[str, Any]]:
        return [call.body for call in self.calls if call.path.endswith(f"/{name}")]

    def take(self, call: Call) -> None:
        """Record a call, once for each key."""
        self.calls.append(call)
        what, key = call.path.rpartition("/")[2], call.headers.get("idempotency-key")
        if key is None or key in self.keys:
            return
        self.keys.add(key)
        lease_id = call.body["lease"]["id"]
        self.charged.setdefault(lease_id, Counter())[what] += 1
        self.order.setdefault(lease_id, []).append(what)

    def filter(self, *, commits: bool = True, **options: object) -> ExternalServiceFilter:
        """Return Tenure's filter for this service."""
        return filter_for(self.url, commits=commits, **options)


def filter_for(url: str, *, commits: bool = True, **options: object) -> ExternalServiceFilter:
    """Return Tenure's filter for the service at this URL."""
    conf = new_config()
    commit = {f"{call}_endpoint": call.replace("_", "-") for call in ("commit_create", "commit_update")}
    wanted = {"base_endpoint": f"{url}/v1/", "timeout": 5.0, **(commit if commits else {}), **options}
    for name, value in wanted.items():
        conf.set_override(f"external_service_{name}", value, group="enforcement")
    return ExternalServiceFilter(conf)


class _Handler(BaseHTTPRequestHandler):
    credits: Credits

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        headers = {name.lower(): value for name, value in self.headers.items()}
        call = Call(self.path, headers, json.loads(self.rfile.read(size)))
        credits = self.credits
        mood = credits.mood if self.path.endswith(f"/{credits.only}") or not credits.only else "well"
        if mood == "refuses connections":
            return self._hang_up()
        if mood == "is slow" and credits.patience.wait(HANG_SECONDS):
            return self._hang_up()
        if mood == "drips":  # one byte at a time, so that no single wait is long
            self.wfile.write(b"HTTP/1.1 204 No Content\r\nX-Long: ")
            for _ in range(int(HANG_SECONDS / 0.05)):
                if credits.patience.wait(0.05):
                    return self._hang_up()
                self.wfile.write(b"x")
            self.wfile.write(b"\r\n\r\n")
            return self._hang_up()
        if mood == "talks nonsense":
            self.wfile.write(b"220 smtp.example.org ESMTP\r\n")
            return self._hang_up()
        credits.take(call)
        credits.then(call)
        if mood == "dies after the deed":
            return self._hang_up()
        status, body = (credits.status, credits.body) if mood == "answers" else (204, b"")
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if status == 204 else body)

    def _hang_up(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore callers who have hung up."""


@contextmanager
def open_credits() -> Iterator[Credits]:
    """Run the service on a free port."""
    credits = Credits()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"credits": credits}))
    credits.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield credits
    finally:
        credits.patience.set()
        server.shutdown()
        server.server_close()
        thread.join()
