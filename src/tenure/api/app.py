"""The API as a WSGI application."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import falcon

from tenure.api.context import call_of, version_of
from tenure.api.dialects import dialect_of
from tenure.api.doors import Doors
from tenure.api.edge import Edge
from tenure.api.errors import (
    ErrorAnswer,
    MethodNotAllowed,
    UnknownUrl,
    error_answer_without_version,
    foreign_error_answer,
    headers_of,
)
from tenure.api.links import Links
from tenure.api.openapi import Description
from tenure.api.operations import Endpoint
from tenure.api.table import operations_of, prepare
from tenure.api.versions import OLDEST
from tenure.domain.errors import TenureError
from tenure.resources.contract import ResourceTypes
from tenure.services.manager import Manager

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_LOG = logging.getLogger(__name__)

Authenticate = Callable[["WSGIApplication"], "WSGIApplication"]


def create_app(
    manager: Manager,
    types: ResourceTypes,
    authenticate: Authenticate,
    *,
    public_url: str | None = None,
    requests_of_project: int | None = None,
) -> WSGIApplication:
    """Return the API of ``manager``, at which the enabled ones of ``types`` can be booked.

    ``authenticate`` wraps everything except discovery, health and the description of the API; it identifies the caller
    by the headers of keystonemiddleware. ``public_url`` is the URL of the root for clients, if the requests do not show
    it. ``requests_of_project`` is how many requests of a project are served at a time, None for any number.
    """
    operations = operations_of(tuple(types), types.enabled)
    prepare(operations)
    links = Links(public_url)
    public, resources = _new_app(), _new_app()
    public.add_route("/openapi.json", Description(operations, links))
    resources.add_middleware(Gate(Doors(requests_of_project)))
    by_path = attrgetter("path")
    for path, group in groupby(sorted(operations, key=by_path), by_path):
        of_path = tuple(group)
        app = public if of_path[0].public else resources
        app.add_route(path, Endpoint(of_path, manager, links))
    public_paths = frozenset({"/openapi.json", *(operation.path for operation in operations if operation.public)})
    return Edge(public, public_paths, authenticate(resources))


class Gate:
    """Admits requests whose version is supported and serves the URL, and so many of each project at a time."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = call_of(req)
        call.reached = True
        if call.version_refusal is not None:
            raise call.version_refusal
        project_id = req.env.get("HTTP_X_PROJECT_ID", "")
        self._doors.enter(project_id)
        call.on_end = partial(self._doors.leave, project_id)
        req.path = req.path.removesuffix(".json")  # every URL of Blazar exists twice

    def process_resource(
        self, req: falcon.Request, resp: falcon.Response, resource: object, params: dict[str, Any]
    ) -> None:
        call_of(req).route = req.uri_template or ""
        if version_of(req) < getattr(resource, "since", OLDEST):
            raise UnknownUrl
        if "" in params.values():
            raise UnknownUrl  # a slash at the end


def _new_app() -> falcon.App[falcon.Request, falcon.Response]:
    app = falcon.App()
    app.add_error_handler(Exception, _on_unexpected)
    app.add_error_handler(falcon.HTTPError, _on_http_error)
    app.add_error_handler(TenureError, _on_error)
    return app


def _on_error(req: falcon.Request, resp: falcon.Response, error: TenureError, params: dict[str, Any]) -> None:
    call = call_of(req)
    resp.set_headers(headers_of(error))
    if call.version is None:
        _write(req, resp, error_answer_without_version(error))
    else:
        _write(req, resp, dialect_of(call.version).answer(error, req.method, req.path))


def _on_http_error(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError, params: dict[str, Any]) -> None:
    """Answer with an error of the framework."""
    if error.headers is not None:
        resp.set_headers(error.headers)
    if isinstance(error, falcon.HTTPNotFound):
        _on_error(req, resp, UnknownUrl(), params)
    elif isinstance(error, falcon.HTTPMethodNotAllowed):
        _on_error(req, resp, MethodNotAllowed(), params)
    else:
        _write(req, resp, foreign_error_answer(error.status_code))


def _on_unexpected(req: falcon.Request, resp: falcon.Response, error: Exception, params: dict[str, Any]) -> None:
    _LOG.exception("%s failed", call_of(req).request_id, exc_info=error)
    _write(req, resp, dialect_of(version_of(req)).internal)


def _write(req: falcon.Request, resp: falcon.Response, error: ErrorAnswer) -> None:
    resp.status = error.status
    resp.content_type = "application/json"
    resp.data = json.dumps(error.document).encode()
    call_of(req).tells_version = error.tells_version
