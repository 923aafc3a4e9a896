"""The operations of servers that are made at the start of their leases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import Annotated, Any

from tenure.api.answers import One, Pages, pages
from tenure.api.leases import SEE
from tenure.api.operations import Operation, Request
from tenure.api.schemas.answers import Answer, From, Region, Rfc3339Text
from tenure.api.schemas.queries import DEFAULT_LIMIT, Limit, Query
from tenure.api.schemas.texts import ExternalId, Identifier
from tenure.api.versions import Version, by_version
from tenure.domain.boot import PlannedServer, PlannedServerQuery
from tenure.domain.request import Page


class PlannedServerListQuery(Query):
    limit: Limit = DEFAULT_LIMIT
    marker: Identifier | None = None
    project_id: ExternalId | None = None

    def to_domain(self) -> PlannedServerQuery:
        return PlannedServerQuery(self.limit, self.marker, self.project_id)


class PlannedServerDocument(Answer):
    """A server that is made at the start of its lease.

    ``id`` is that of its reservation. ``flavor`` is the flavor as it was booked. ``server_id`` is Nova's, and null
    until the server is made. ``lease_status`` and ``status_reason`` are those of the lease.
    """

    id: Annotated[str, From("reservation_id")]
    name: str
    flavor_id: str
    flavor: dict[str, Any]
    server_id: str | None
    lease_id: str
    lease_name: str
    lease_status: str
    status_reason: str | None
    project_id: str
    user_id: str
    region: Region
    start_date: Annotated[Rfc3339Text, From("starts_at")]
    end_date: Annotated[Rfc3339Text, From("ends_at")]
    created_at: Rfc3339Text


def _list(request: Request) -> Iterator[Page[PlannedServer]]:
    query = request.query.to_domain()
    return pages(partial(request.manager.leases.planned_servers, request.actor), query, attrgetter("reservation_id"))


def _show(request: Request) -> PlannedServer:
    return request.manager.leases.planned_server(request.actor, request.path_parameter("reservation_id"))


_MODEL = by_version(PlannedServerDocument)
PLANNED_SERVERS = (
    Operation(
        "GET",
        "/v1/planned-servers",
        "List the servers that are still to be made at the start of their leases, the newest first",
        _list,
        Pages("planned_servers", _MODEL),
        query=by_version(PlannedServerListQuery),
        since=Version.V1_4,
        rules=(SEE,),
    ),
    Operation(
        "GET",
        "/v1/planned-servers/{reservation_id}",
        "Show a server that is made, or was made, at the start of its reservation",
        _show,
        One("planned_server", _MODEL),
        since=Version.V1_4,
        rules=(SEE,),
    ),
)
