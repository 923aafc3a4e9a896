"""The operation of limits, with its query and its answer."""

from __future__ import annotations

from typing import Annotated

from tenure.api.answers import Whole
from tenure.api.operations import READERS, Operation, Request, Rule
from tenure.api.schemas.answers import AllowanceDocument, Answer, From, Rfc3339Text
from tenure.api.schemas.queries import Query
from tenure.api.schemas.texts import ExternalId
from tenure.api.versions import Version, by_version
from tenure.domain.request import Allowances


class LimitsQuery(Query):
    project_id: ExternalId | None = None


class LimitsDocument(Answer):
    limits: Annotated[list[AllowanceDocument], From("allowances")]
    project_id: str
    hours_until: Rfc3339Text


def _show(request: Request) -> Allowances:
    return request.manager.limits.show(request.actor, request.query.project_id)


_RULE = Rule("tenure:limits:get", READERS, "See what a project may have booked, and what it has.")
LIMITS = Operation(
    "GET",
    "/v1/limits",
    "Show what a project may have booked, and what it has",
    _show,
    Whole(by_version(LimitsDocument)),
    query=by_version(LimitsQuery),
    since=Version.V1_2,
    rules=(_RULE,),
)
