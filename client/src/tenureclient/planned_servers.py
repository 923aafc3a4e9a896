"""Servers that are made at the start of their leases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, TypedDict, Unpack

from tenureclient import errors
from tenureclient.documents import Document, document
from tenureclient.options import Option
from tenureclient.sent import query_of
from tenureclient.transport import PAGE, Calls
from tenureclient.wire import Feature, Fields, JsonObject, Version

_FEATURE = Feature("the list of servers that are made at the start of a lease", Version.V1_4)


def _object(fields: Fields, name: str) -> JsonObject:
    return Fields(fields.value(name), f"the {name} of a planned server").to_json()


@document("a planned server")
class PlannedServer(Document):
    """A server that is made, or was made, at the start of its lease. ``id`` is that of its reservation.

    ``flavor`` is the flavor as it was booked. ``server_id`` is Nova's; None until the server is made.
    """

    id: str
    name: str
    flavor_id: str
    flavor: Annotated[JsonObject, _object]
    server_id: str | None
    lease_id: str
    lease_name: str
    lease_status: str
    status_reason: str | None
    start_date: datetime
    end_date: datetime
    project_id: str
    user_id: str
    region: str | None
    created_at: datetime


class PlannedServerFilter(TypedDict, total=False):
    """Which planned servers to list; what is None does not restrict the list."""

    project_id: Annotated[
        str | None, Option("--project", "PROJECT", help="Only servers of this project: an id or a name")
    ]


class PlannedServers(Calls):
    """The servers that are made at the start of their leases. They need API 1.4."""

    def list(self, **filters: Unpack[PlannedServerFilter]) -> Iterator[PlannedServer]:
        """Yield the servers that are still to be made, the newest first; pages are fetched as needed.

        They are those of the caller's project, or of all projects for an administrator, who may name one.
        """
        yield from self._transport.pages(
            "planned-servers",
            items="planned_servers",
            query=query_of(limit=PAGE, **filters),
            read=PlannedServer.from_wire,
            feature=_FEATURE,
        )

    def get(self, reservation_id: str) -> PlannedServer:
        """Return the server that is made, or was made, at the start of a reservation."""
        answer = self._transport.call("GET", "planned-servers", reservation_id, feature=_FEATURE)
        return answer.read(PlannedServer.from_wire, "planned_server")

    def find(self, name_or_id: str) -> PlannedServer:
        """Return the server of the reservation with this id, or else the only one of this name.

        A server that is made already is found by the id only.
        """
        try:
            return self.get(name_or_id)
        except errors.NotFound as error:
            missing = errors.NotFound(
                f"There is no planned server '{name_or_id}'.", code=404, name="NotFound", request_id=error.request_id
            )
        named = [server for server in self.list() if server.name == name_or_id]
        if not named:
            raise missing
        if len(named) > 1:
            ids = ", ".join(server.id for server in named[:2]) + (", ..." if len(named) > 2 else "")
            raise errors.NotUnique(f"Several planned servers are named '{name_or_id}': {ids}. Give the id.")
        return named[0]
