"""The operations of what has happened to a lease, with their queries and answers."""

from __future__ import annotations

from collections.abc import Iterator

from tenure.api.answers import Pages
from tenure.api.leases import SEE
from tenure.api.operations import Operation, Request
from tenure.api.schemas.answers import Answer, Rfc3339Text
from tenure.api.schemas.queries import DEFAULT_LIMIT, Limit, Query
from tenure.api.schemas.texts import Identifier
from tenure.api.versions import Version, by_version
from tenure.domain import lease
from tenure.domain.request import Page


class HistoryQuery(Query):
    limit: Limit = DEFAULT_LIMIT
    marker: Identifier | None = None


class HistoryEntry(Answer):
    at: Rfc3339Text
    actor: str
    action: str
    from_status: str | None
    to_status: str
    reason: str | None
    request_id: str | None


class HistoryEntryOf12(HistoryEntry):
    """An entry of the history of a lease, from 1.2 on.

    ``detail`` is for administrators: the full reason, if ``reason`` leaves something out; null otherwise.
    """

    id: str
    detail: str | None


def _show(request: Request) -> Iterator[Page[lease.HistoryEntry]]:
    limit = request.query.limit
    entries = request.manager.leases.history(
        request.actor, request.lease_id, limit=limit + 1, marker=request.query.marker
    )
    yield Page(entries[:limit], entries[limit - 1].id if len(entries) > limit else None)


HISTORY = (
    Operation(
        "GET",
        "/v1/leases/{lease_id}/history",
        "Show what happened",
        _show,
        Pages("history", by_version(HistoryEntry, HistoryEntry, HistoryEntryOf12)),
        query=by_version(HistoryQuery),
        since=Version.V1_1,
        rules=(SEE,),
    ),
)
