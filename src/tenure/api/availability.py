"""The operations of availability."""

from __future__ import annotations

from tenure.api.answers import Whole
from tenure.api.operations import Operation, Request
from tenure.api.schemas.availability import AvailabilityDocument, AvailabilityListQuery
from tenure.api.versions import Version, by_version
from tenure.domain.availability import Availability


def _show(request: Request) -> Availability:
    return request.manager.availability.show(request.actor, request.query.to_domain())


AVAILABILITY = Operation(
    "GET",
    "/v1/availability",
    "Show how much is free, over time",
    _show,
    Whole(by_version(AvailabilityDocument)),
    query=by_version(AvailabilityListQuery),
    since=Version.V1_3,
)
