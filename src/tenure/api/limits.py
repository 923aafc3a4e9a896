"""The operation of limits."""

from __future__ import annotations

from tenure.api.answers import Whole
from tenure.api.operations import READERS, Operation, Request, Rule
from tenure.api.schemas.answers import LimitsDocument
from tenure.api.schemas.queries import LimitsQuery
from tenure.api.versions import Version, by_version
from tenure.domain.request import Allowances


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
