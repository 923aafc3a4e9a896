"""The fake server: HTTP in front of a ``FakeCloud``."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from keystoneauth1 import session, token_endpoint

from tenureclient.client import Client
from tenureclient.testing.calls import Call
from tenureclient.testing.cloud import FakeCloud
from tenureclient.testing.routes import Routes
from tenureclient.testing.stock import FakeFlavor, FakeFloatingIP, FakeHost, FakeLease, FakeVolumePool
from tenureclient.wire import JsonObject, JsonValue, Version

_HEADER = "OpenStack-API-Version"


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request that the server received, for tests that check what was sent."""

    method: str
    path: str
    query: Mapping[str, str]
    version: str | None
    body: JsonValue


class FakeServer:
    """A reservation service in memory. Use it with ``with``; the module has an example.

    ``now`` is the start time of its clock (default: the present); only ``advance`` moves the clock.
    ``versions`` are the microversions that it knows. ``page_size`` is the longest page of a list.
    """

    def __init__(
        self,
        *,
        now: datetime | None = None,
        versions: Sequence[str] = ("1.0", "1.1", "1.2"),
        page_size: int = 100,
        token: str = "fake-token",
    ) -> None:
        self.token = token
        self.requests: list[SeenRequest] = []
        self._versions = [Version(version) for version in versions]
        self._cloud = FakeCloud((now or datetime.now(UTC)).astimezone(UTC))
        self._routes = Routes(self._cloud, page_size)
        self._failures: list[int] = []
        self._refusals: list[tuple[int, JsonObject]] = []
        self._lock = threading.RLock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """The address as in a service catalogue, with ``/v1``."""
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    @property
    def now(self) -> datetime:
        return self._cloud.now

    @property
    def leases(self) -> Mapping[str, FakeLease]:
        return self._cloud.leases

    @property
    def hosts(self) -> Mapping[str, FakeHost]:
        return self._cloud.hosts

    @property
    def floatingips(self) -> Mapping[str, FakeFloatingIP]:
        return self._cloud.floatingips

    @property
    def volume_pools(self) -> Mapping[str, FakeVolumePool]:
        return self._cloud.pools

    def client(self) -> Client:
        """Return a client of this server. When it waits, the server's clock moves instead of real time."""
        signed_in = session.Session(auth=token_endpoint.Token(self.url, self.token))
        return Client(
            signed_in,
            clock=lambda: self.now,
            sleep=lambda seconds: self.advance(timedelta(seconds=seconds)),
        )

    def environment(self) -> dict[str, str]:
        """Return the variables with which ``tenure`` and ``openstack`` reach this server."""
        return {"OS_AUTH_TYPE": "admin_token", "OS_ENDPOINT": self.url, "OS_TOKEN": self.token}

    def advance(self, by: timedelta) -> None:
        """Move the clock; due leases start and end."""
        with self._lock:
            self._cloud.now += by
            self._cloud.settle()

    def add_host(
        self,
        hypervisor_hostname: str,
        *,
        vcpus: int = 8,
        memory_mb: int = 16384,
        local_gb: int = 100,
        availability_zone: str = "nova",
        properties: Mapping[str, str] | None = None,
    ) -> FakeHost:
        """Add a reservable host."""
        with self._lock:
            host = self._routes.inventory.new_host(hypervisor_hostname, dict(properties or {}))
            host.vcpus, host.memory_mb, host.local_gb = vcpus, memory_mb, local_gb
            host.availability_zone = availability_zone
            return host

    def add_floatingip(self, address: str, *, network_id: str = "public") -> FakeFloatingIP:
        """Add a reservable address of an external network."""
        with self._lock:
            return self._routes.inventory.new_floatingip(network_id, address)

    def add_volume_pool(
        self, name: str, *, capacity_gb: int = 100, volume_type: str = "fast"
    ) -> FakeVolumePool:
        """Add a pool that lends ``capacity_gb`` to reservations of volumes of this type."""
        with self._lock:
            return self._routes.inventory.new_volume_pool(name, capacity_gb, volume_type)

    def add_flavor(
        self, flavor_id: str, *, name: str = "", vcpus: int = 1, memory_mb: int = 1024, disk_gb: int = 10
    ) -> FakeFlavor:
        """Add a flavor whose instances can be reserved."""
        with self._lock:
            flavor = FakeFlavor(flavor_id, name or flavor_id, vcpus, memory_mb, disk_gb)
            self._cloud.flavors[flavor_id] = flavor
            return flavor

    def set_status(self, lease_id: str, status: str, reason: str | None = None) -> None:
        """Put a lease into a status, for example ERROR with its reason."""
        with self._lock:
            self._cloud.move(self._cloud.leases[lease_id], status, action="test", reason=reason)

    def fail_next(self, *codes: int) -> None:
        """Answer the next requests with these HTTP statuses, one each."""
        with self._lock:
            self._failures.extend(codes)

    def refuse_next(self, code: int, name: str, message: str, **details: JsonValue) -> None:
        """Refuse the next request that would change data, for example with 403 ``OverQuota``."""
        refusal: JsonObject = {"error_code": code, "error_name": name, "error_message": message}
        with self._lock:
            self._refusals.append((code, {**refusal, "details": details} if details else refusal))

    def _answer(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes,
    ) -> tuple[int, dict[str, str], JsonObject | None]:
        """Return status, headers and body for one request. Its ``headers`` have lower-case names."""
        split = urlsplit(url)
        answer_headers = {"x-openstack-request-id": f"req-{uuid.uuid4()}"}
        asked = _asked_version(headers.get(_HEADER.lower()))
        with self._lock:
            body, readable = _json(content)
            query = dict(parse_qsl(split.query, keep_blank_values=True))
            self.requests.append(SeenRequest(method, split.path, query, asked, body))
            refused = self._refusal(headers, asked)
            if refused is not None:
                return refused[0], answer_headers, refused[1]
            version = Version(asked or "1.0")
            answer_headers.update({_HEADER: f"reservation {version.value}", "Vary": _HEADER})
            if self._refusals and method != "GET":
                code, refusal = self._refusals.pop(0)
                return code, answer_headers, refusal
            parts = tuple(unquote(part) for part in split.path.strip("/").split("/"))
            call = Call(method, parts, query, body, version, base=self.url)
            status, document = self._routes.answer(call, readable=readable)
            return status, answer_headers, document

    def _refusal(self, headers: Mapping[str, str], asked: str | None) -> tuple[int, JsonObject] | None:
        """Return the answer to a request that fails before it reaches the API."""
        if self._failures:
            code = self._failures.pop(0)
            return code, {"error_code": code, "error_message": f"Told to fail: {code}"}
        if headers.get("x-auth-token") != self.token:
            message = "The request you have made requires authentication."
            return 401, {"error": {"code": 401, "title": "Unauthorized", "message": message}}
        known = [version.value for version in self._versions]
        if (asked or "1.0") not in known:
            limits = f"Minimum is {known[0]} and maximum is {known[-1]}."
            return 406, {
                "error": 406,
                "error_message": f"Version {asked} is not supported by the API. {limits}",
            }
        return None


def _asked_version(header: str | None) -> str | None:
    words = (header or "").split()
    if len(words) != 2 or words[0] != "reservation":
        return None
    return "1.2" if words[1] == "latest" else words[1]


def _json(content: bytes) -> tuple[JsonValue, bool]:
    if not content:
        return None, True
    try:
        return json.loads(content), True
    except ValueError:
        return None, False


def _handler_of(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Send each answer as one packet: two halves would wait for each other.
        wbufsize = -1
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            lowered = {name.lower(): value for name, value in self.headers.items()}
            status, headers, document = server._answer(self.command, self.path, lowered, content)
            answer = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if document is not None:
                self.send_header("Content-Type", "application/json")
            if status != 204:
                self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - http.server sets these names

        def log_message(self, *arguments: object) -> None:
            """Stay silent; the tests look at ``requests``."""

    return Handler
