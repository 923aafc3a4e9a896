"""Operations: each is one method of one URL, from its version to its answer, declared once.

The operations are in ``discovery``, ``leases``, ``limits`` and ``inventories``; ``table`` has all of them. What is
served (``Endpoint``) and what is described (``tenure.api.openapi``) follow from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import falcon

from tenure.api.answers import Shape
from tenure.api.bodies import JsonObject, read_object
from tenure.api.context import actor_of, version_of
from tenure.api.links import Links
from tenure.api.schemas.answers import ModelAt
from tenure.api.schemas.queries import NO_QUERY, Query, QueryAt, query_of, read_query
from tenure.api.schemas.refusals import check
from tenure.api.schemas.texts import MAX_EXTERNAL_ID, MAX_ID
from tenure.api.versions import OLDEST, Version
from tenure.domain.actor import Actor
from tenure.domain.errors import NotFound
from tenure.services.manager import Manager

#: Who makes the request of a public operation. Such an actor may do nothing.
_ANYONE = Actor("", "", frozenset())
#: The parts of URLs that name something of ours; all others name something of the cloud's.
_OUR_PARTS = frozenset({"lease_id", "reservation_id"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one URL."""

    method: str
    path: str
    summary: str
    #: Asks the manager; returns what ``answer`` renders.
    run: Callable[[Request], object]
    #: None for an answer without a body.
    answer: Shape | None
    #: The status of success, unless the answer has no body, which is 204.
    status: int = 200
    #: The models of the query and of the body at a version; without a body, None.
    query: QueryAt = NO_QUERY
    body: ModelAt | None = None
    since: Version = OLDEST
    #: The statuses of refusals, beside those of every operation; by default what ``refusals`` says.
    refused_with: tuple[int, ...] | None = None
    #: Whether it is served without authentication. The query of such an operation is ignored.
    public: bool = False

    @property
    def parts(self) -> list[str]:
        """The names of the variable parts of the URL."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    @property
    def refusals(self) -> tuple[int, ...]:
        """The statuses of refusals: 404 where something is named, and 409 too where something is changed."""
        if self.refused_with is not None:
            return self.refused_with
        if self.method == "GET":
            return (404,) if self.parts else ()
        return (404, 409)

    @property
    def success(self) -> int:
        return 204 if self.answer is None else self.status


@dataclass(slots=True)
class Request:
    """A request as an operation gets it. Parts of the URL and the body are checked when they are asked for."""

    operation: Operation
    manager: Manager
    links: Links
    http: falcon.Request
    actor: Actor
    version: Version
    parts: Mapping[str, str]
    #: The query, as an instance of the operation's model.
    query: Any
    #: What the answer gets that differs from what is declared.
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def part(self, name: str, missing: Callable[[str], str] | None = None) -> str:
        """Return a part of the URL. Raises ``NotFound`` for what is no id of anything, with ``missing`` as its text."""
        value, longest = self.parts[name], longest_part(name)
        if value and len(value) <= longest and "\0" not in value:
            return value
        shown = value[:longest]
        raise NotFound(missing(shown) if missing else f"Object with {{{name!r}: {shown!r}}} not found")

    def body(self) -> JsonObject:
        """Return the body as a JSON object; empty where there is none."""
        return read_object(self.http)

    def given(self) -> Any:
        """Return the body as an instance of the operation's model."""
        assert self.operation.body is not None
        return check(self.operation.body(self.version), self.body(), self.version)

    def next_page(self, marker: str) -> list[Mapping[str, str]]:
        """Return the link to the page that follows the one that ends with ``marker``."""
        return self.links.next_page(self.http, query_of(self.http), marker)


def longest_part(name: str) -> int:
    """Return how long the part of a URL of that name can be."""
    return MAX_ID if name in _OUR_PARTS else MAX_EXTERNAL_ID


class Endpoint:
    """A URL as the framework serves it: its operations by their methods, all served since the same version."""

    def __init__(self, operations: Iterable[Operation], manager: Manager, links: Links) -> None:
        self._manager = manager
        self._links = links
        operations = tuple(operations)
        [self.since] = {operation.since for operation in operations}
        for operation in operations:
            setattr(self, f"on_{operation.method.lower()}", self._responder(operation))

    def _responder(self, operation: Operation) -> Callable[..., None]:
        def respond(req: falcon.Request, resp: falcon.Response, **parts: str) -> None:
            version = version_of(req)
            actor = _ANYONE if operation.public else actor_of(req)
            query = Query() if operation.public else read_query(req, operation.query(version), version)
            request = Request(operation, self._manager, self._links, req, actor, version, parts, query)
            _write(resp, request, operation.run(request))

        return respond


def _write(resp: falcon.Response, request: Request, value: object) -> None:
    operation = request.operation
    if operation.answer is not None:
        content = operation.answer.render(value, request.version, request.next_page)
        resp.content_type = "application/json"
        if isinstance(content, dict):
            resp.data = json.dumps(content).encode()
        else:
            resp.stream = content
    resp.set_headers(request.headers)
    resp.status = request.status or operation.success
