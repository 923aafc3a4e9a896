"""The outermost layer: it adds ids and versions to every answer, also to answers without a handler."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tenure.api.context import Call, open_call
from tenure.api.dialects import dialect_of
from tenure.api.errors import foreign_error_answer
from tenure.deadlines import Arrival, arrived, never
from tenure.metrics import REQUESTS
from tenure.tracing import traced

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_LOG = logging.getLogger(__name__)

#: The methods that are counted separately in the metrics.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _Answer:
    """The arguments of ``start_response``, kept until the whole answer is known."""

    def __init__(self) -> None:
        self.status = ""
        self.headers: list[tuple[str, str]] = []

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        self.status = status
        self.headers = [pair for pair in headers if pair[0].lower() != "x-openstack-request-id"]
        return _refuse_to_write

    @property
    def code(self) -> int:
        return int(self.status.partition(" ")[0])

    def replace(self, document: object) -> list[bytes]:
        body = json.dumps(document).encode()
        kept = [pair for pair in self.headers if pair[0].lower() not in ("content-type", "content-length")]
        self.headers = [*kept, ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        return [body]


class Edge:
    """Sends a request to the public application if it has the path, else to the authenticated one.

    Completes the headers of the answer. Both applications, and the authentication, must call ``start_response`` before
    they return.
    """

    def __init__(self, public: WSGIApplication, public_paths: frozenset[str], authenticated: WSGIApplication) -> None:
        self._public = public
        self._public_paths = public_paths
        self._authenticated = authenticated

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        call = open_call(environ)
        method = environ["REQUEST_METHOD"]
        if method == "HEAD":
            environ["REQUEST_METHOD"] = "GET"
        path = environ.get("PATH_INFO", "") or "/"
        is_public = path in self._public_paths
        app = self._public if is_public else self._authenticated
        answer = _Answer()
        began = time.perf_counter()
        with traced(call.request_id, call.global_request_id), arrived(_arrival(environ)):
            try:
                body = app(environ, answer.start)
            except BaseException:
                call.on_end()
                raise
            if _is_foreign_error(call, answer):
                _close(body)
                body = answer.replace(foreign_error_answer(answer.code).document)
            route = path if is_public else call.route
            report = _Report(call, method, path, route, answer.code, began)
            if method == "HEAD":
                _close(body)
                body = []
            if isinstance(body, list):  # the answer is complete
                report.end()
            else:
                body = _Pieces(body, report)
        headers = [
            *map(_allowing_head, answer.headers),
            *call.version_headers(),
            ("x-openstack-request-id", call.request_id),
        ]
        start_response(answer.status, headers)
        return body


@dataclass(slots=True)
class _Report:
    """Reports a request to the log and the metrics when its answer has ended, once."""

    call: Call
    method: str
    path: str
    route: str
    code: int
    began: float
    ended: bool = False

    def end(self, fate: str | None = None) -> None:
        """Report the end of the answer; ``fate`` is given unless the answer is complete."""
        if self.ended:
            return
        self.ended = True
        self.call.on_end()
        method = self.method if self.method in METHODS else ""
        REQUESTS.labels(method, self.route, fate or self.code).observe(time.perf_counter() - self.began)
        ids = " ".join(filter(None, (self.call.request_id, self.call.global_request_id)))
        outcome = f"{self.code}, {fate}" if fate else str(self.code)
        _LOG.info("%s %s %r -> %s", ids, self.method, self.path, outcome)


class _Pieces:
    """An answer that is produced while it is sent; each piece is traced with the ids of its request."""

    def __init__(self, body: Iterable[bytes], report: _Report) -> None:
        self._body = body
        self._pieces = iter(body)
        self._report = report

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with traced(self._report.call.request_id, self._report.call.global_request_id):
            try:
                return next(self._pieces)
            except StopIteration:
                self._report.end()
                raise
            except Exception:
                _LOG.exception("an answer breaks off")
                self._report.end("broken")
                raise

    def close(self) -> None:
        """Close the answer. Servers always call this; if the answer is not complete, the client has disconnected."""
        with traced(self._report.call.request_id, self._report.call.global_request_id):
            try:
                _close(self._body)
            finally:
                self._report.end("aborted")


def _arrival(environ: WSGIEnvironment) -> Arrival:
    """Return when a request came in, and how to ask whether its caller has disconnected, if the server tells that."""
    return Arrival(time.monotonic(), environ.get("waitress.client_disconnected", never))


def _is_foreign_error(call: Call, answer: _Answer) -> bool:
    """Whether the authentication has answered with an error, at a version whose errors have a fixed form."""
    has_form = call.of_resource and call.version is not None and dialect_of(call.version).is_everywhere
    return has_form and not call.reached and answer.code >= HTTPStatus.BAD_REQUEST


def _allowing_head(header: tuple[str, str]) -> tuple[str, str]:
    """Add HEAD to an ``Allow`` header with GET: the applications do not know HEAD."""
    name, value = header
    methods = [method.strip() for method in value.split(",")]
    if name.lower() == "allow" and "GET" in methods and "HEAD" not in methods:
        return name, ", ".join([*methods, "HEAD"])
    return header


def _close(body: Iterable[bytes]) -> None:
    close = getattr(body, "close", None)
    if close is not None:
        close()


def _refuse_to_write(data: bytes) -> None:
    raise NotImplementedError("answers are returned, not written")
