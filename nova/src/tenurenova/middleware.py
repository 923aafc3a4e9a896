"""A middleware for Nova's API that boots servers for a lease, requested by scheduler hints.

It is a paste filter, placed after authentication. A request to boot with the hint `reserved` is handled in three steps:
it books a lease that is held for a few minutes, calls Nova, and confirms the lease with the id of the server. If any
step fails, the hold expires, and the service deletes the server of a lease that was never confirmed. All other
requests pass unchanged, and without a call to the reservation service.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any

from tenurenova.boot import HintError, WantedLease, read_wanted_lease, takes_tags, with_reservation
from tenurenova.ledger import Held, Ledger, RefusedError, UnreachableError
from tenurenova.permits import FolderError, Permits
from tenurenova.shown import fault_of, show_reservations

LOG = logging.getLogger(__name__)

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]

SERVICE_TYPE = "reservation"
#: The maximum size of a body in bytes; Nova's own limit is lower.
MAX_BYTES = 4 * 1024 * 1024

#: The paths to boot and to show servers; Nova also has them under an older name.
_BOOT = re.compile(r"^(/[^/]+)?/(servers|os-volumes_boot)(\.json)?/?$")
_SHOW = re.compile(r"^(/[^/]+)?/(servers|os-volumes_boot)/[^/]+/?$")
#: The names that Nova gives its errors.
_NAMES = {
    400: "badRequest",
    401: "unauthorized",
    403: "forbidden",
    409: "conflictingRequest",
    503: "serviceUnavailable",
}
_TOO_MANY = (
    "As many servers as may be are being booted for leases right now, so the server was not booted. Try again soon."
)
#: The value of the Retry-After header, in seconds.
_RETRY_AFTER = "2"
_TRUE = ("1", "on", "true", "yes")


@dataclass(frozen=True)
class Settings:
    """The options of the middleware in api-paste.ini."""

    #: The URL of the reservation service; the default is the one in the catalogue of the caller's token.
    endpoint: str = ""
    region: str = ""
    #: The service's name for the region of this Nova; the default is the service's home region.
    lease_region: str = ""
    interface: str = "public"
    timeout: float = 10.0
    #: How long a lease is held, in seconds: longer than Nova ever takes to answer a request to boot.
    hold_seconds: int = 300
    #: How many boots with hints may wait for the service at a time, in all processes of this machine. It must be
    #: lower than the number of Nova's API workers, because the service calls the same Nova.
    at_once: int = 1
    #: The folder in which these processes count the boots; the default is a folder of the user that they run as.
    lock_folder: str = ""
    show_reserved: bool = False
    verify: bool | str = True

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Settings:
        """Read the options of a section; raises ``ValueError`` for an invalid option."""
        known = {field.name for field in fields(cls)} - {"verify"} | {"cafile", "insecure"}
        if unknown := sorted(set(given) - known):
            raise ValueError(
                f"the filter of tenure has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}"
            )
        settings = cls(
            endpoint=given.get("endpoint", ""),
            region=given.get("region", ""),
            lease_region=given.get("lease_region", ""),
            interface=given.get("interface", cls.interface),
            timeout=float(given.get("timeout", cls.timeout)),
            hold_seconds=int(given.get("hold_seconds", cls.hold_seconds)),
            at_once=int(given.get("at_once", cls.at_once)),
            lock_folder=given.get("lock_folder", ""),
            show_reserved=given.get("show_reserved", "").strip().lower() in _TRUE,
            verify=given.get("insecure", "").strip().lower() not in _TRUE and (given.get("cafile") or True),
        )
        if settings.interface not in ("public", "internal", "admin"):
            raise ValueError("interface is public, internal or admin")
        if settings.timeout <= 0 or not 1 <= settings.hold_seconds <= 3600:
            raise ValueError("timeout is more than 0 seconds, hold_seconds is 1 to 3600")
        if not 1 <= settings.at_once <= 1000:
            raise ValueError("at_once is 1 to 1000")
        return settings


def filter_factory(global_config: Mapping[str, str], **local_config: str) -> Callable[[Application], Middleware]:
    """Return the middleware for an application; paste calls this with the options of the section."""
    settings = Settings.read(local_config)
    return lambda application: Middleware(application, settings)


@dataclass
class _Answer:
    """A complete answer of Nova."""

    status: str = "500 Internal Server Error"
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    @property
    def code(self) -> int:
        return int(self.status.split(" ", 1)[0])

    def send(self, start_response: StartResponse) -> list[bytes]:
        start_response(self.status, self.headers)
        return [self.body]


class Middleware:
    """Nova's API, extended by servers that are booted for a lease."""

    def __init__(self, application: Application, settings: Settings) -> None:
        self._application = application
        self._settings = settings
        folder = settings.lock_folder or Path(tempfile.gettempdir()) / f"tenurenova-{os.geteuid()}"
        self._permits = Permits(Path(folder), settings.at_once)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ.get("REQUEST_METHOD"), environ.get("PATH_INFO", "")
        if method == "POST" and _BOOT.match(path):
            return self._post(environ, start_response)
        if method == "GET" and _SHOW.match(path):
            return self._show(environ, start_response)
        return self._application(environ, start_response)

    def _post(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        body = _read(environ)
        try:
            document = json.loads(body) if body else None
        except (ValueError, RecursionError):
            document = None  # Nova reports the error
        try:
            wanted = read_wanted_lease(document)
        except HintError as error:
            return _refusal(400, str(error)).send(start_response)
        if wanted is None:
            return self._application(environ, start_response)
        try:
            with self._permits.take(environ.get("HTTP_X_PROJECT_ID", "")) as is_ours:
                if not is_ours:
                    return _refusal(503, _TOO_MANY).send(start_response)
                return self._boot(environ, document, wanted).send(start_response)
        except RefusedError as refused:
            return _refusal(refused.status, refused.reason).send(start_response)
        except FolderError as error:
            LOG.error("no server can be booted for a lease: the lock_folder is unusable: %r", str(error))
            return _refusal(503, "Servers cannot be booted for leases here; tell the operator of Nova.").send(
                start_response
            )
        except UnreachableError as error:
            LOG.warning("a server with a reservation was not booted: the reservation service failed: %r", str(error))
            text = "The reservation service cannot be asked now, so the server was not booted. Try again later."
            return _refusal(503, text).send(start_response)

    def _boot(self, environ: Environ, document: Any, wanted: WantedLease) -> _Answer:
        """Boot a server for a lease. ``RefusedError`` and ``UnreachableError`` mean that no server was created."""
        ledger = self._ledger(environ)
        tagged = takes_tags(environ.get("HTTP_OPENSTACK_API_VERSION"), environ.get("HTTP_X_OPENSTACK_NOVA_API_VERSION"))
        held = ledger.hold(wanted.to_lease(self._settings.hold_seconds, self._settings.lease_region))
        try:
            marked = with_reservation(document, held.lease_id, held.reservation_id, tagged=tagged)
            answer = _call(self._application, _with_body(environ, json.dumps(marked).encode()))
        except BaseException:
            ledger.release(held)
            raise
        if answer.code != HTTPStatus.ACCEPTED:
            ledger.release(held)
            return answer
        return self._confirm(ledger, held, answer, environ)

    def _confirm(self, ledger: Ledger, held: Held, answer: _Answer, environ: Environ) -> _Answer:
        """Confirm the lease with the new server; return Nova's answer, or an error with the server's fate."""
        server_id = str(json.loads(answer.body)["server"]["id"])
        try:
            ledger.confirm(held, server_id)
        except RefusedError as refused:
            ledger.release(held)
            fault = fault_of(self._call_about_server("GET", server_id, environ).body)
            fate = "is deleted again" if self._delete(server_id, environ) else "is to be deleted"
            text = f"Server {server_id} could not be reserved, and {fate}: {refused.reason} {fault}"
            return _refusal(refused.status, text.rstrip())
        except UnreachableError as error:
            LOG.warning("it is unknown whether lease %r has server %r: %r", held.lease_id, server_id, str(error))
            return _refusal(
                503,
                f"Whether server {server_id} was reserved is not known: the reservation service does not answer."
                f" Look at lease {held.lease_id} in a while: where it is gone, the server is deleted, too.",
            )
        return answer

    def _delete(self, server_id: str, environ: Environ) -> bool:
        """Delete the server, as the user who booted it; return whether Nova accepted that."""
        answer = self._call_about_server("DELETE", server_id, environ)
        if answer.code not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND):
            LOG.warning("server %r could not be reserved and could not be deleted: %r", server_id, answer.status)
        return answer.code in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND)

    def _call_about_server(self, method: str, server_id: str, environ: Environ) -> _Answer:
        """Call Nova about the server, as the user who booted it."""
        base = environ["PATH_INFO"].rstrip("/").rpartition("/")[0]
        request = {**_with_body(environ, b""), "REQUEST_METHOD": method, "PATH_INFO": f"{base}/servers/{server_id}"}
        return _call(self._application, request)

    def _ledger(self, environ: Environ) -> Ledger:
        endpoint = self._settings.endpoint or self._catalogue_endpoint(environ)
        token = environ.get("HTTP_X_AUTH_TOKEN", "")
        return Ledger(endpoint, token, timeout=self._settings.timeout, verify=self._settings.verify)

    def _catalogue_endpoint(self, environ: Environ) -> str:
        """Return the URL of the service in the token's catalogue; raises ``UnreachableError``."""
        try:
            catalogue = json.loads(environ.get("HTTP_X_SERVICE_CATALOG") or "[]")
        except ValueError:
            catalogue = []
        for service in catalogue:
            if service.get("type") != SERVICE_TYPE:
                continue
            for endpoint in service.get("endpoints", ()):
                if self._settings.region in ("", endpoint.get("region")):
                    return str(endpoint.get(f"{self._settings.interface}URL") or "")
        raise UnreachableError("the catalogue has no service of type reservation")

    def _show(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request to show servers, and add what only Tenure knows about those with a lease."""
        answer = _call(self._application, environ)
        if answer.code == HTTPStatus.OK:
            # Administrators, and services such as Tenure itself, must see Nova's own status.
            roles = environ.get("HTTP_X_ROLES", "").lower().split(",")
            reserved = self._settings.show_reserved and "admin" not in roles
            answer.body, before = show_reservations(answer.body, reserved=reserved), answer.body
            if answer.body is not before:
                answer.headers = [header for header in answer.headers if header[0].lower() != "content-length"]
                answer.headers.append(("Content-Length", str(len(answer.body))))
        return answer.send(start_response)


def _read(environ: Environ) -> bytes:
    """Return the body, and put it back for the next reader."""
    length = environ.get("CONTENT_LENGTH") or ""
    chunked = not length and environ.get("wsgi.input_terminated")
    size = MAX_BYTES if chunked else int(length) if length.isascii() and length.isdigit() else 0
    if size > MAX_BYTES or size == 0:
        return b""  # Nova refuses it
    body: bytes = environ["wsgi.input"].read(size)
    environ["wsgi.input"] = BytesIO(body)
    if chunked:
        environ["CONTENT_LENGTH"] = str(len(body))
    return body


def _with_body(environ: Environ, body: bytes) -> Environ:
    return {**environ, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}


def _call(application: Application, environ: Environ) -> _Answer:
    """Return the complete answer of the application."""
    answer = _Answer()
    written: list[bytes] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
        answer.status, answer.headers = status, list(headers)
        return written.append

    parts = application(environ, start_response)
    try:
        written.extend(parts)
    finally:
        close = getattr(parts, "close", None)
        if close is not None:
            close()
    answer.body = b"".join(written)
    return answer


def _refusal(code: int, text: str) -> _Answer:
    """Return an error in Nova's format."""
    body = json.dumps({_NAMES[code]: {"code": code, "message": text}}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    if code == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append(("Retry-After", _RETRY_AFTER))
    return _Answer(f"{code} {HTTPStatus(code).phrase}", headers, body)
