"""The operation of accounts, with its query and its answer."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from typing import Annotated

from tenure.api.answers import Whole
from tenure.api.operations import READERS, Operation, Request, Rule
from tenure.api.renderers import JSON, Csv
from tenure.api.schemas.answers import Answer, From, Region, Rfc3339Text, Written
from tenure.api.schemas.moments import Rfc3339
from tenure.api.schemas.queries import Query
from tenure.api.schemas.texts import ExternalId
from tenure.api.versions import Version, by_version
from tenure.domain.usage import MICROSECOND, Usage, UsageQuery

_HOUR = timedelta(hours=1) // MICROSECOND
#: The number of decimal places of hours.
PLACES = 6


def hours(microseconds: int) -> float:
    """Return a sum in hours, rounded once."""
    return float(round(Fraction(microseconds, _HOUR), PLACES))


Hours = Annotated[float, Written(hours)]
HoursOrUnknown = Annotated[float | None, Written(lambda sum_: None if sum_ is None else hours(sum_))]


class UsageListQuery(Query):
    """A period, and optionally a project and a resource type."""

    start_date: Rfc3339
    end_date: Rfc3339
    project_id: ExternalId | None = None
    resource_type: ExternalId | None = None

    def to_domain(self) -> UsageQuery:
        return UsageQuery(self.start_date, self.end_date, self.project_id, self.resource_type)


class UsageSumDocument(Answer):
    """What a project has had of a resource class; ``used_hours`` is null: it is not known whether servers ran."""

    project_id: str
    resource_type: str
    region: Region
    resource_class: str
    booked_hours: Annotated[Hours, From("booked")]
    held_hours: Annotated[Hours, From("held")]
    used_hours: Annotated[HoursOrUnknown, From("used")]


class UsageDocument(Answer):
    """What projects have had in a period; what lies before ``incomplete_before`` may lack leases that were purged."""

    start_date: Annotated[Rfc3339Text, From("starts_at")]
    end_date: Annotated[Rfc3339Text, From("ends_at")]
    incomplete_before: Rfc3339Text | None
    usage: Annotated[list[UsageSumDocument], From("sums")]


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
