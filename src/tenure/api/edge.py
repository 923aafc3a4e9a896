"""The outermost layer: ids and versions on every answer, also on those that never reach a handler."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tenure.api.context import Call, open_call
from tenure.api.errors import foreign_error_answer
from tenure.api.versions import OLDEST
from tenure.metrics import REQUESTS
from tenure.tracing import traced

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_LOG = logging.getLogger(__name__)

#: What everybody may read: where the API is, whether it is well, and how it is described.
PUBLIC_PATHS = frozenset({"/", "/versions", "/v1", "/v1/", "/healthcheck", "/openapi.json"})

#: The methods that are told apart when requests are counted.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _Answer:
    """What an application passes to ``start_response``, kept until all of the answer is known."""

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
    """Leads a request to the public or to the authenticated application, and completes the answer's headers.

    Both, and the authentication, must call ``start_response`` before they return.
    """

    def __init__(self, public: WSGIApplication, authenticated: WSGIApplication) -> None:
        self._public = public
        self._authenticated = authenticated

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        call = open_call(environ)
        method = environ["REQUEST_METHOD"]
        if method == "HEAD":
            environ["REQUEST_METHOD"] = "GET"
        path = environ.get("PATH_INFO", "") or "/"
        app = self._public if path in PUBLIC_PATHS else self._authenticated
        answer = _Answer()
        began = time.perf_counter()
        with traced(call.request_id, call.global_request_id):
            body = app(environ, answer.start)
        if _is_foreign_error(call, answer):
            _close(body)
            body = answer.replace(foreign_error_answer(answer.code).document)
        route = path if path in PUBLIC_PATHS else call.route
        REQUESTS.labels(method if method in METHODS else "", route, answer.code).observe(time.perf_counter() - began)
        ids = " ".join(filter(None, (call.request_id, call.global_request_id)))
        _LOG.info("%s %s %r -> %s", ids, method, path, answer.code)
        headers = [
            *map(_allowing_head, answer.headers),
            *call.version_headers(),
            ("x-openstack-request-id", call.request_id),
        ]
        start_response(answer.status, headers)
        if method == "HEAD":
            _close(body)
            return []
        return body


def _is_foreign_error(call: Call, answer: _Answer) -> bool:
    """Whether the authentication has answered with an error, where the version promises errors of one form."""
    newer = call.of_resource and call.version not in (None, OLDEST)
    return newer and not call.reached and answer.code >= HTTPStatus.BAD_REQUEST


def _allowing_head(header: tuple[str, str]) -> tuple[str, str]:
    """The header; HEAD is allowed wherever GET is, which the applications do not know."""
    name, value = header
    methods = [one.strip() for one in value.split(",")]
    if name.lower() == "allow" and "GET" in methods and "HEAD" not in methods:
        return name, ", ".join([*methods, "HEAD"])
    return header


def _close(body: Iterable[bytes]) -> None:
    close = getattr(body, "close", None)
    if close is not None:
        close()


def _refuse_to_write(data: bytes) -> None:
    raise NotImplementedError("answers are returned, not written")
