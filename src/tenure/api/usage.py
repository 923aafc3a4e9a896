"""The operation of accounts."""

from __future__ import annotations

from tenure.api.answers import Whole
from tenure.api.operations import READERS, Operation, Request, Rule
from tenure.api.renderers import JSON, Csv
from tenure.api.schemas.usage import UsageDocument, UsageListQuery
from tenure.api.versions import Version, by_version
from tenure.domain.usage import Usage


def _show(request: Request) -> Usage:
    return request.manager.usage.show(request.actor, request.query.to_domain())


_RULE = Rule(
    "tenure:usage:get",
    READERS,
    "See what a project has had in a period, in resource-hours; without a project, administrators see all.",
)
USAGE = Operation(
    "GET",
    "/v1/usage",
    "Show what projects have had in a period, in resource-hours",
    _show,
    Whole(by_version(UsageDocument)),
    query=by_version(UsageListQuery),
    since=Version.V1_3,
    rules=(_RULE,),
    renderers=(JSON, Csv("usage")),
)
