"""Operations: the methods of URLs, each declared once, from its version to its answer.

``tenure.api.table`` lists all of them. Both ``Endpoint``, which serves them, and ``tenure.api.openapi``, which
describes them, are built from the declarations.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal

import falcon
from pydantic import create_model

from tenure.api.answers import Shape, TaggedLease
from tenure.api.bodies import read_object
from tenure.api.context import actor_of, version_of
from tenure.api.links import Links
from tenure.api.renderers import JSON, Renderer
from tenure.api.schemas.answers import ModelAt
from tenure.api.schemas.queries import NO_QUERY, DryRunQuery, Query, QueryAt, query_of, read_query
from tenure.api.schemas.refusals import check
from tenure.api.schemas.texts import MAX_EXTERNAL_ID, MAX_ID
from tenure.api.versions import OLDEST, Version
from tenure.domain.actor import Actor
from tenure.domain.errors import InvalidParameter, NotFound
from tenure.domain.json_text import JsonObject
from tenure.domain.request import Repeatable
from tenure.services.manager import Manager

#: The actor of a public operation, who has no permissions.
_ANYONE = Actor("", "", frozenset())
#: The header by which a client marks a request that it may repeat, and its largest length.
IDEMPOTENCY_KEY = "Idempotency-Key"
MAX_KEY = 255
#: The header by which a client demands that a lease is as it was read, its largest length, and the form of a tag.
IF_MATCH = "If-Match"
MAX_CONDITION = 500
_TAG = r'(?:W/)?"[\x21\x23-\x7e]*"'
_TAGS = re.compile(rf"\s*{_TAG}\s*(,\s*{_TAG}\s*)*", re.ASCII)
#: What the description says of it, without the blanks that may be anywhere.
CONDITION_PATTERN = rf"^(\*|{_TAG}(, {_TAG})*)$"
#: A tag of a lease: its version.
_VERSION_TAG = re.compile(r'(?<!W/)"([1-9][0-9]{0,17}|0)"', re.ASCII)
#: The header of RFC 7240 by which a client says what it does not need, and its value for short answers.
PREFER = "Prefer"
MINIMUM = "return=minimal"
#: The defaults of rules: who may do what.
ADMINISTRATORS = "rule:admin"
READERS = "rule:project_reader_or_admin"
MEMBERS = "rule:project_member_or_admin"
#: The path parameters with ids of this service; all others have ids of the cloud.
_OUR_PARTS = frozenset({"lease_id", "reservation_id"})


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy rule with its default, which an operator can change in the policy file, and what it permits."""

    name: str
    default: str
    description: str


@dataclass(frozen=True, slots=True)
class DryRun:
    """What an operation does with ``dry_run`` in its query: it changes nothing, and answers 200 with a document."""

    run: Callable[[Request], object]
    answer: Shape
    since: Version = Version.V1_3


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a URL."""

    method: str
    path: str
    summary: str
    #: Calls the manager, and returns the value that ``answer`` renders.
    run: Callable[[Request], object]
    #: None for an answer without a body.
    answer: Shape | None
    #: The status of success, unless the answer has no body, which is 204.
    status: int = 200
    #: The models of the query and of the body at a version; None if there is no body.
    query: QueryAt = NO_QUERY
    body: ModelAt | None = None
    since: Version = OLDEST
    #: None if the operation has no dry run; the query asks for it by ``dry_run``.
    dry_run: DryRun | None = None
    #: The media types of the answer; if there are several, the query asks for another than the first by ``format``.
    renderers: tuple[Renderer, ...] = (JSON,)
    #: The statuses of refusals, beside those of every operation; if None, ``refusals`` derives them.
    refused_with: tuple[int, ...] | None = None
    #: The policy rules that permit it; any of them is enough, or as the service decides by the caller.
    rules: tuple[Rule, ...] = ()
    #: Whether the operation needs no authentication. Its query is ignored then.
    public: bool = False
    #: Whether a client may repeat the request with one ``Idempotency-Key``.
    is_repeatable: bool = False
    #: Whether a client may demand by ``If-Match`` that the lease has not changed since it was read.
    is_conditional: bool = False
    #: The operation in its form at 1.0, if that differs.
    blazar: Operation | None = None

    def at(self, version: Version) -> Operation:
        """Return the operation in its form at a version."""
        return self.blazar if self.blazar is not None and version is OLDEST else self

    @property
    def path_parameters(self) -> list[str]:
        """The names of the path parameters."""
        return [segment[1:-1] for segment in self.path.split("/") if segment.startswith("{")]

    @property
    def refusals(self) -> tuple[int, ...]:
        """The statuses of refusals: 404 if the URL has an id, and 404 and 409 for every change."""
        if self.refused_with is not None:
            return self.refused_with
        if self.method == "GET":
            return (404,) if self.path_parameters else ()
        return (404, 409, 412) if self.is_conditional else (404, 409)

    @property
    def success(self) -> int:
        return 204 if self.answer is None else self.status

    def successes(self, version: Version) -> Mapping[int, tuple[Shape, ...]]:
        """Return the statuses of success, each with the shapes of its documents."""
        shapes = {self.success: () if self.answer is None else (self.answer,)}
        if self.dry_run is not None and issubclass(self.query(version), DryRunQuery):
            shapes[200] = (*shapes.get(200, ()), self.dry_run.answer)
        return shapes


def completed(operation: Operation) -> Operation:
    """Return the operation with the parameters of its query that follow from its declaration."""
    return replace(operation, query=partial(_completed_query, operation))


def _completed_query(operation: Operation, version: Version) -> type[Query]:
    model = operation.query(version)
    if operation.dry_run is not None and operation.dry_run.since <= version:
        model = _joined(model, DryRunQuery)
    if len(operation.renderers) > 1:
        model = _joined(model, _format_query(tuple(renderer.format for renderer in operation.renderers)))
    return model


@cache
def _format_query(formats: tuple[str, ...]) -> type[Query]:
    named: Any = (Literal[formats], formats[0])
    return create_model("FormatQuery", __base__=Query, format=named)


@cache
def _joined(model: type[Query], more: type[Query]) -> type[Query]:
    return more if model is Query else create_model(model.__name__, __base__=(model, more))


@dataclass(slots=True)
class Request:
    """A request for an operation. Path parameters and the body are checked on access."""

    operation: Operation
    manager: Manager
    links: Links
    http: falcon.Request
    actor: Actor
    version: Version
    path_parameters: Mapping[str, str]
    #: The query, as an instance of the operation's model.
    query: Any
    #: The status, if it differs from the declared one, and more headers of the answer.
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    _body: JsonObject | None = field(default=None, init=False)

    @property
    def lease_id(self) -> str:
        """The id of the lease in the URL. Raises ``NotFound`` if it is not a valid id."""
        return self.path_parameter("lease_id")

    def path_parameter(self, name: str, missing: Callable[[str], str] | None = None) -> str:
        """Return a path parameter. Raises ``NotFound``, with the text of ``missing``, if it is not a valid id."""
        value, longest = self.path_parameters[name], longest_path_parameter(name)
        if value and len(value) <= longest and "\0" not in value:
            return value
        shown = value[:longest]
        raise NotFound(missing(shown) if missing else f"Object with {{{name!r}: {shown!r}}} not found")

    def body(self) -> JsonObject:
        """Return the body as a JSON object, which is empty if there is no body."""
        if self._body is None:
            self._body = read_object(self.http)
        return self._body

    def repeatable(self) -> Repeatable | None:
        """Return the mark of a request that the client may repeat; None if it has none.

        Raises ``InvalidParameter`` for an invalid ``Idempotency-Key``.
        """
        key = self.http.get_header(IDEMPOTENCY_KEY)
        if key is None:
            return None
        if not (0 < len(key) <= MAX_KEY and key.isprintable()):
            raise InvalidParameter(
                f"The header {IDEMPOTENCY_KEY} needs 1 to {MAX_KEY} printable characters.", field=IDEMPOTENCY_KEY
            )
        said = json.dumps([self.operation.method, self.http.path, self.body()], sort_keys=True)
        return Repeatable(key, hashlib.sha256(said.encode()).hexdigest())

    @property
    def prefers_minimum(self) -> bool:
        """Whether the client asks for a short answer: it does not use what takes time to find out."""
        preferences = (self.http.get_header(PREFER) or "").lower().split(",")
        return MINIMUM in map(str.strip, preferences)

    def versions(self) -> tuple[int, ...] | None:
        """Return the versions one of which the lease must have, after ``If-Match``; None for any version.

        Raises ``InvalidParameter`` for a malformed header.
        """
        given = self.http.get_header(IF_MATCH)
        if given is None or given.strip() == "*":
            return None
        if len(given) > MAX_CONDITION or not _TAGS.fullmatch(given):
            raise InvalidParameter(
                f'The header {IF_MATCH} needs the ETag of the lease with its quotes, such as "7".', field=IF_MATCH
            )
        return tuple(int(version) for version in _VERSION_TAG.findall(given))

    def given(self) -> Any:
        """Return the body as an instance of the operation's model."""
        assert self.operation.body is not None
        return check(self.operation.body(self.version), self.body(), self.version)

    def next_page(self, marker: str) -> list[Mapping[str, str]]:
        """Return the link to the page that follows the one that ends with ``marker``."""
        return self.links.next_page(self.http, query_of(self.http), marker)


def longest_path_parameter(name: str) -> int:
    """Return the largest length of the path parameter with this name."""
    return MAX_ID if name in _OUR_PARTS else MAX_EXTERNAL_ID


class Endpoint:
    """The resource of the framework for a URL, with its operations by method, all served since the same version."""

    def __init__(self, operations: Iterable[Operation], manager: Manager, links: Links) -> None:
        self._manager = manager
        self._links = links
        operations = tuple(operations)
        [self.since] = {operation.since for operation in operations}
        for operation in operations:
            setattr(self, f"on_{operation.method.lower()}", self._responder(operation))

    def _responder(self, declared: Operation) -> Callable[..., None]:
        def respond(req: falcon.Request, resp: falcon.Response, **path_parameters: str) -> None:
            version = version_of(req)
            operation = declared.at(version)
            actor = _ANYONE if operation.public else actor_of(req)
            query = Query() if operation.public else read_query(req, operation.query(version), version)
            request = Request(operation, self._manager, self._links, req, actor, version, path_parameters, query)
            if operation.dry_run is not None and isinstance(query, DryRunQuery) and query.dry_run:
                request.status = 200
                _write(resp, request, operation.dry_run.answer, operation.dry_run.run(request), JSON)
            else:
                format_name = getattr(query, "format", operation.renderers[0].format)
                [renderer] = [renderer for renderer in operation.renderers if renderer.format == format_name]
                _write(resp, request, operation.answer, operation.run(request), renderer)

        return respond


def _write(resp: falcon.Response, request: Request, answer: Shape | None, value: object, renderer: Renderer) -> None:
    if answer is not None:
        content = answer.render(value, request.version, request.next_page)
        resp.content_type = renderer.content_type
        if isinstance(content, dict):
            resp.data = renderer.write(content, answer.document(request.version))
        else:
            resp.stream = content
    if isinstance(answer, TaggedLease):
        resp.set_header("ETag", answer.tag(value))
    resp.set_headers(request.headers)
    resp.status = request.status or request.operation.success
