"""The outermost layer of the fake server: requests are recorded, and a test can order other answers."""

from __future__ import annotations

import io
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.client import responses
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from tenure.api.errors import VersionNotSupported, error_answer_without_version
from tenure.api.versions import HEADER, SERVICE_TYPE

from tenureclient.wire import JsonObject, JsonValue

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: The variable of a WSGI environment that has the version which the client asks for.
_REQUESTED = "HTTP_" + HEADER.upper().replace("-", "_")
_OURS = re.compile(rf"\b{SERVICE_TYPE}\s+([^\s,]+)", re.IGNORECASE)
_VERSION = re.compile(r"[1-9][0-9]*\.[0-9]+")
#: The paths of lists with pages.
_PAGED = re.compile(
    r"/v1/(leases|leases/[^/]+/history|planned-servers|(os-hosts|floatingips|volume-pools)(/allocations)?)"
)


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request that the server received, for tests that check what was sent."""

    method: str
    path: str
    query: Mapping[str, str]
    version: str | None
    body: JsonValue


class Front:
    """Records requests, and passes them to ``app`` one at a time, unless a test has ordered another answer.

    ``versions`` are the microversions of the server, the oldest first, and ``page_size`` is its longest page.
    ``settle`` carries out what is due, before a request is answered. Requests with the token ``own_token``
    are those of the fake server itself: they are not recorded, and always get the answer of ``app``.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        versions: Sequence[str],
        page_size: int,
        settle: Callable[[], object],
        own_token: str,
    ) -> None:
        self.requests: list[SeenRequest] = []
        #: The statuses of the next answers, and the refusals of the next changes.
        self.failures: list[int] = []
        self.refusals: list[tuple[int, JsonObject]] = []
        #: Whether something may have become due: as the clock stands still, only a change makes it so.
        self.unsettled = False
        #: Held while a request is served.
        self.lock = threading.RLock()
        self._app = app
        self._versions = versions
        self._page_size = page_size
        self._settle = settle
        self._own_token = own_token

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with self.lock:
            ordered = None
            if environ.get("HTTP_X_AUTH_TOKEN") != self._own_token:
                self.requests.append(_seen(environ))
                ordered = self._ordered(environ)
                self._shorten_page(environ)
            if ordered is not None:
                return _answer(start_response, *ordered)
            if self.unsettled:
                self._settle()
            self.unsettled = environ["REQUEST_METHOD"] != "GET"
            return self._app(environ, start_response)

    def _ordered(self, environ: WSGIEnvironment) -> tuple[int, Mapping[str, object], list[tuple[str, str]]] | None:
        """Return status, document and headers of an answer that is not the application's."""
        if self.failures:
            code = self.failures.pop(0)
            return code, {"error_code": code, "error_message": f"Told to fail: {code}"}, []
        try:
            version = self._negotiated(environ)
        except VersionNotSupported as error:
            refusal = error_answer_without_version(error)
            return refusal.status, refusal.document, []
        if self.refusals and environ["REQUEST_METHOD"] != "GET":
            code, document = self.refusals.pop(0)
            return code, document, [(HEADER, f"{SERVICE_TYPE} {version}")]
        return None

    def _negotiated(self, environ: WSGIEnvironment) -> str:
        """Return the version of the answer; raise ``VersionNotSupported`` as an older server would."""
        requested = _requested_version(environ) or self._versions[0]
        if requested == "latest":
            requested = self._versions[-1]
            environ[_REQUESTED] = f"{SERVICE_TYPE} {requested}"
        if requested not in self._versions and _VERSION.fullmatch(requested):
            raise VersionNotSupported(requested, self._versions[0], self._versions[-1])
        return requested  # the application refuses what is no version

    def _shorten_page(self, environ: WSGIEnvironment) -> None:
        if environ["REQUEST_METHOD"] != "GET" or not _PAGED.fullmatch(environ["PATH_INFO"]):
            return
        query = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        limit = query.get("limit", "")
        if not limit or (limit.isdecimal() and int(limit) > self._page_size):
            query["limit"] = str(self._page_size)  # API 1.0 ignores it
            environ["QUERY_STRING"] = urlencode(query)


def _seen(environ: WSGIEnvironment) -> SeenRequest:
    """Read a request, and leave it readable."""
    content = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(content)
    try:
        body = json.loads(content) if content else None
    except ValueError:
        body = None
    return SeenRequest(
        method=environ["REQUEST_METHOD"],
        path=environ["REQUEST_URI"].partition("?")[0],
        query=dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True)),
        version=_requested_version(environ),
        body=body,
    )


def _requested_version(environ: WSGIEnvironment) -> str | None:
    """Return the version that a request asks for; None for the oldest."""
    found = _OURS.findall(environ.get(_REQUESTED, ""))
    return found[-1] if found else None


def _answer(
    start_response: StartResponse, code: int, document: Mapping[str, object], headers: list[tuple[str, str]]
) -> list[bytes]:
    body = json.dumps(document).encode()
    more = [
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("x-openstack-request-id", f"req-{uuid.uuid4()}"),
    ]
    start_response(f"{code} {responses.get(code, '')}", [*headers, *more])
    return [body]
