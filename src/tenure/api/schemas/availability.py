"""Availability on the wire: queries, searches and answers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictInt, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from tenure.api.schemas.answers import Answer, From, Region, Rfc3339Text, Written
from tenure.api.schemas.moments import Rfc3339, Rfc3339OrNow
from tenure.api.schemas.queries import DEFAULT_LIMIT, Limit, Query
from tenure.api.schemas.texts import MAX_EXTERNAL_ID, PRINTABLE, ExternalId, RegionName
from tenure.domain.availability import AvailabilityQuery, Grouping

#: The longest step, in seconds.
LONGEST_STEP = 366 * 86_400
#: The longest expression of the property language in a query.
MAX_EXPRESSION = 4096


def _seconds(value: Any) -> Any:
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9):
        raise PydanticCustomError("seconds", "a whole number of seconds is needed")
    return int(value)


def _names(value: Any) -> Any:
    """Return the names in a text, which are separated by commas."""
    return [name for name in value.split(",") if name] if isinstance(value, str) else value


#: A length of time in a query.
Seconds = Annotated[
    StrictInt,
    BeforeValidator(_seconds),
    Field(ge=1, le=LONGEST_STEP),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": LONGEST_STEP}),
]
_NAME = Annotated[StrictStr, Field(min_length=1, max_length=MAX_EXTERNAL_ID, pattern=PRINTABLE)]
Names = Annotated[
    list[_NAME], BeforeValidator(_names), Field(max_length=64), WithJsonSchema({"type": "string", "pattern": PRINTABLE})
]
Expression = Annotated[StrictStr, Field(max_length=MAX_EXPRESSION, pattern=PRINTABLE)]
#: A length of time in an answer.
SecondsShown = Annotated[
    int | None,
    Written(lambda length: None if length is None else int(length.total_seconds())),
]


class AvailabilityListQuery(Query):
    """Which resources of a type are counted, and from when to when."""

    resource_type: ExternalId
    start_date: Rfc3339OrNow | None = None
    end_date: Rfc3339 | None = None
    resource_class: ExternalId | None = None
    region: RegionName | None = None
    availability_zone: ExternalId | None = None
    resource_properties: Expression = ""
    required: Names = Field(default_factory=list)
    forbidden: Names = Field(default_factory=list)
    step: Seconds | None = None
    group_by: Grouping = Grouping.NONE
    limit: Limit = DEFAULT_LIMIT
    marker: ExternalId | None = None

    def to_domain(self) -> AvailabilityQuery:
        return AvailabilityQuery(
            resource_type=self.resource_type,
            starts_at=self.start_date,
            ends_at=self.end_date,
            resource_class=self.resource_class,
            region=self.region,
            zone=self.availability_zone,
            resource_properties=self.resource_properties,
            required=tuple(self.required),
            forbidden=tuple(self.forbidden),
            step=None if self.step is None else timedelta(seconds=self.step),
            group_by=self.group_by,
            limit=self.limit,
            marker=self.marker,
        )


class StepDocument(Answer):
    """Amounts from this date until the next step. In a group of a project the last two are null."""

    start_date: Annotated[Rfc3339Text, From("starts_at")]
    reserved: int
    allocated: int
    out_of_order: int | None
    available: int | None


class GroupDocument(Answer):
    """The amounts of some resources, and what these have in common: null or empty fields are not the same for all.

    ``resource_id``, ``resource_name`` and ``project_id`` are for administrators.
    """

    resources: int | None
    total: int | None
    least_available: Annotated[int | None, From("least")]
    properties: dict[str, str]
    capacity: dict[str, int] | None
    region: Region
    availability_zone: Annotated[str | None, From("zone")]
    resource_id: str | None
    resource_name: str | None
    project_id: str | None
    steps: list[StepDocument]


class AvailabilityDocument(Answer):
    """Capacity over time. ``step`` is null if every change has a step of its own."""

    resource_type: str
    resource_class: str
    start_date: Annotated[Rfc3339Text, From("starts_at")]
    end_date: Annotated[Rfc3339Text, From("ends_at")]
    step: SecondsShown
    groups: list[GroupDocument]
    more: bool
