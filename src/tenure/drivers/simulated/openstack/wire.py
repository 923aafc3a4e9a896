"""Requests and answers of the services as they are on the wire: bodies, versions, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from tenure.domain.errors import InvalidParameter
from tenure.domain.json_text import read_json
from tenure.drivers.simulated.openstack.service import Refused, error_body

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: The newest and the oldest microversion of each service that has them.
MICROVERSIONS: Final = {"compute": ("2.96", "2.1"), "block-storage": ("3.70", "3.0")}
#: The methods of requests that have a body.
WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_MAX_BYTES: Final = 1024 * 1024
_LONGEST_MESSAGE: Final = 1000
_VERSION: Final = re.compile(r"([1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete answer."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def with_header(self, name: str, value: str) -> HttpAnswer:
        return replace(self, headers=(*self.headers, (name, value)))

    def send(self, start_response: StartResponse, *, head: bool = False) -> list[bytes]:
        """Send it as a WSGI application; ``head`` leaves out the body."""
        start_response(f"{self.status} {HTTPStatus(self.status).phrase}", list(self.headers))
        return [] if head else [self.body]


def json_answer(status: int, document: Any) -> HttpAnswer:
    """Return an answer with a document; 204 has none."""
    if status == HTTPStatus.NO_CONTENT:
        return HttpAnswer(status)
    body = json.dumps(document).encode()
    return HttpAnswer(status, (("Content-Type", "application/json"), ("Content-Length", str(len(body)))), body)


def refusal_answer(service: str, refused: Refused) -> HttpAnswer:
    """Return a refusal in the form of the service."""
    shortened = Refused(refused.status, str(refused)[:_LONGEST_MESSAGE], refused.code)
    return json_answer(refused.status, error_body(service, shortened))


def answer_of(app: WSGIApplication, environ: WSGIEnvironment) -> HttpAnswer:
    """Return the complete answer of an application."""
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        started[:] = [(status, headers)]

    parts = app(environ, start_response)
    try:
        body = b"".join(parts)
    finally:
        close = getattr(parts, "close", None)
        if close is not None:
            close()
    ((status, headers),) = started
    return HttpAnswer(int(status.partition(" ")[0]), tuple(headers), body)


def read_body(environ: WSGIEnvironment) -> bytes:
    """Return the body. Raises ``Refused`` for a body that is too long, and for a content type other than JSON."""
    length = environ.get("CONTENT_LENGTH") or ""
    chunked = not length and environ.get("wsgi.input_terminated")
    size = int(length) if length.isascii() and length.isdigit() and len(length) < 10 else _MAX_BYTES + 1
    if length and size > _MAX_BYTES:
        raise Refused(413, f"The body has more than {_MAX_BYTES} bytes.")
    content: bytes = environ["wsgi.input"].read(size) if length or chunked else b""
    if len(content) > _MAX_BYTES:
        raise Refused(413, f"The body has more than {_MAX_BYTES} bytes.")
    content_type = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if content and content_type not in ("", "application/json"):
        raise Refused(415, f"The content type {content_type[:80]!r} is not supported.")
    return content


def document_of(content: bytes) -> Any:
    """Return the JSON of a body, None if it is empty. Raises ``Refused``."""
    try:
        return read_json(content) if content else None
    except InvalidParameter as error:
        raise Refused(400, error.message) from None


def microversion(environ: Mapping[str, Any], service: str) -> str | None:
    """Return the microversion that the request names for the service. Raises ``Refused`` for an unknown version."""
    if service not in MICROVERSIONS:
        return None
    named: str | None = None
    for entry in environ.get("HTTP_OPENSTACK_API_VERSION", "").split(","):
        name, _, version = entry.strip().partition(" ")
        if name.lower() in {service, service.replace("block-storage", "volume")}:
            named = version.strip()
    if named is None and service == "compute":
        named = environ.get("HTTP_X_OPENSTACK_NOVA_API_VERSION", "").strip()
    if not named or named.lower() == "latest":
        return named.lower() if named else None
    newest, oldest = MICROVERSIONS[service]
    if not _VERSION.fullmatch(named):
        raise Refused(400, f"API Version String {named[:40]} is of invalid format. It must be of format Major.Minor.")
    if not _numbers(oldest) <= _numbers(named) <= _numbers(newest):
        raise Refused(406, f"Version {named} is not supported by the API. Minimum is {oldest}, maximum is {newest}.")
    return named


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
