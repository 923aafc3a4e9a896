"""Availability on the wire: queries, searches and answers."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictInt,
    StrictStr,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from tenure.api.schemas.answers import Answer, ErrorDocument, From, Region, Rfc3339Text, Written
from tenure.api.schemas.moments import Rfc3339, Rfc3339OrNow
from tenure.api.schemas.queries import DEFAULT_LIMIT, Limit, Query
from tenure.api.schemas.texts import MAX_EXTERNAL_ID, PRINTABLE, ExternalId, RegionName
from tenure.domain.availability import AvailabilityQuery, Grouping
from tenure.domain.json_text import read_json
from tenure.domain.request import StartTimes, Window
from tenure.domain.zones import zone_names

#: The longest duration of a lease in a search, in seconds.
LONGEST_DURATION = 3 * 366 * 86_400
#: The longest step, in seconds.
LONGEST_STEP = 366 * 86_400
#: The longest expression of the property language in a query.
MAX_EXPRESSION = 4096


def _seconds(value: Any) -> Any:
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9):
        raise PydanticCustomError("seconds", "a whole number of seconds is needed")
    return int(value)


def _names(value: Any) -> Any:
    """Return the names in a text, which are separated by commas. An empty text is an empty name, which is refused."""
    return value.split(",") if isinstance(value, str) else value


#: A length of time in a query.
Seconds = Annotated[
    StrictInt,
    BeforeValidator(_seconds),
    Field(ge=1, le=LONGEST_STEP),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": LONGEST_STEP}),
]
_NAME = Annotated[StrictStr, Field(min_length=1, max_length=MAX_EXTERNAL_ID, pattern=PRINTABLE)]
Names = Annotated[
    list[_NAME],
    BeforeValidator(_names),
    Field(max_length=64),
    WithJsonSchema({"type": "string", "pattern": r"^[^\x00,]+(,[^\x00,]+)*$"}),
]
Expression = Annotated[StrictStr, Field(max_length=MAX_EXPRESSION, pattern=PRINTABLE)]
#: A length of time in an answer.
SecondsShown = Annotated[int | None, Written(lambda length: None if length is None else int(length.total_seconds()))]


#: The longest search text of reservations in a query.
MAX_RESERVATIONS_TEXT = 8192
#: The most offers of an answer.
MOST_OFFERS = 100
USUAL_OFFERS = 3
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
#: A field that may be absent, and is None then, but must not be null.
_OPTIONAL: Any = Field(default_factory=lambda: None)


def _time_of_day(value: Any) -> time:
    try:
        return datetime.strptime(value, "%H:%M").time()  # noqa: DTZ007  # a time of the day, in any zone
    except (TypeError, ValueError):
        raise PydanticCustomError("time_of_day", "a time of the day is needed, such as 09:30") from None


def _zone(value: str) -> str:
    if value not in zone_names():
        raise PydanticCustomError("time_zone", "a name of the time zone database is needed, such as Europe/Paris")
    return value


TimeOfDay = Annotated[
    time,
    PlainValidator(_time_of_day),
    WithJsonSchema({"type": "string", "pattern": r"^([01][0-9]|2[0-3]):[0-5][0-9]$", "examples": ["09:30"]}),
]
_TIME_ZONE = r"^[A-Za-z0-9_+/-]+$"
TimeZone = Annotated[
    StrictStr,
    Field(min_length=1, max_length=64, pattern=_TIME_ZONE),
    AfterValidator(_zone),
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": 64,
            "pattern": _TIME_ZONE,
            "description": "A name of the time zone database.",
            "examples": ["Europe/Paris"],
        }
    ),
]


class StartWindow(BaseModel):
    """When a lease of a given length may start.

    ``duration`` is in seconds. The lease starts between ``earliest`` and ``latest``; on one of the ``weekdays``, and
    between ``starts_after`` and ``starts_before``, times of the day in ``time_zone``.
    """

    model_config = ConfigDict(extra="forbid")

    duration: Annotated[StrictInt, Field(ge=1, le=LONGEST_DURATION)]
    earliest: Rfc3339OrNow = _OPTIONAL
    latest: Rfc3339 = _OPTIONAL
    weekdays: Annotated[list[Weekday], Field(max_length=7)] = Field(default_factory=list)
    starts_after: TimeOfDay = _OPTIONAL
    starts_before: TimeOfDay = _OPTIONAL
    time_zone: TimeZone = "UTC"

    def window(self) -> Window:
        """Return the window."""
        days = tuple(sorted({_DAYS.index(day) for day in self.weekdays}))
        times = StartTimes(days, self.starts_after, self.starts_before, self.time_zone)
        return Window(timedelta(seconds=self.duration), self.earliest, self.latest, times)


class OfferSearch(StartWindow):
    """A search for the first periods in which a lease fits. A subclass adds its reservations."""

    limit: Annotated[StrictInt, Field(ge=1, le=MOST_OFFERS)] = USUAL_OFFERS


class LongestSearch(BaseModel):
    """A search for the longest lease from a start. A subclass adds its reservations."""

    model_config = ConfigDict(extra="forbid")

    start_date: Rfc3339OrNow = _OPTIONAL


class LargestSearch(BaseModel):
    """A search for the largest amount of a reservation in a period. A subclass adds the reservation."""

    model_config = ConfigDict(extra="forbid")

    start_date: Rfc3339OrNow = _OPTIONAL
    end_date: Rfc3339


Text = Annotated[StrictStr, Field(max_length=MAX_RESERVATIONS_TEXT, pattern=PRINTABLE)]


class OfferSearchQuery(Query):
    """The same search in a query: ``reservations`` is JSON text, and the weekdays are separated by commas."""

    reservations: Text
    duration: Seconds
    earliest: Text | None = None
    latest: Text | None = None
    weekdays: Names = Field(default_factory=list)
    starts_after: Text | None = None
    starts_before: Text | None = None
    time_zone: Text | None = None
    limit: Limit | None = None

    def document(self) -> dict[str, Any]:
        """Return the body that asks the same. Raises ``InvalidParameter`` as for a body."""
        document = self.model_dump(exclude_unset=True, exclude_none=True)
        document["reservations"] = read_json(
            self.reservations, subject="reservations", field="reservations", within="reservations"
        )
        return document


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


class OfferDocument(Answer):
    """A period in which the lease fits now; ``left_over`` is how many more units of each reservation would fit."""

    start_date: Annotated[Rfc3339Text, From("starts_at")]
    end_date: Annotated[Rfc3339Text, From("ends_at")]
    left_over: Annotated[list[int], From(lambda offer: list(offer.left))]


class OffersDocument(Answer):
    """The first periods, in order. Unless ``is_complete``, there may be earlier ones that were not tried in time.

    If there are none, ``reason`` is the message of the refusal that a lease would get; it may be unknown.
    """

    offers: list[OfferDocument]
    is_complete: bool
    reason: str | None


class AlternativeDocument(Answer):
    """A request that would be met in place of one that was refused; ``change`` is the point that differs."""

    change: Literal["start", "end", "amount", "kind"]
    start_date: Annotated[Rfc3339Text, From("starts_at")]
    end_date: Annotated[Rfc3339Text, From("ends_at")]
    reservation: int | None
    amount: int | None
    resource_properties: str | None


class RefusalDetails(BaseModel):
    """The reasons of an error as data; ``proven`` and ``alternatives`` are those of a lack of resources."""

    model_config = ConfigDict(extra="allow")

    proven: bool = False
    alternatives: list[AlternativeDocument] = Field(default_factory=list, max_length=3)


class ErrorOf13(ErrorDocument):
    """An error from 1.3 on. ``field`` names the wrong field, if there is a single one."""

    details: RefusalDetails = Field(default_factory=RefusalDetails)  # type: ignore[assignment]  # it is only described


class LongestDocument(Answer):
    """The longest lease from a start; ``end_date`` is null if nothing limits it."""

    start_date: Annotated[Rfc3339Text, From("starts_at")]
    end_date: Annotated[Rfc3339Text | None, From("ends_at")]
    is_complete: bool


class LargestDocument(Answer):
    """How many units fit in a period, and in each zone alone as plans are.

    If none fits, ``reason`` is the message of the refusal that a lease of one would get; it may be unknown.
    """

    start_date: Annotated[Rfc3339Text, From("starts_at")]
    end_date: Annotated[Rfc3339Text, From("ends_at")]
    amount: int
    availability_zones: Annotated[dict[str, int], From("zones")]
    is_complete: bool
    reason: str | None


class StepDocument(Answer):
    """Amounts from this date until the next step. In a group of a project the last two are null.

    To a member ``out_of_order`` is null if it would show the health of few resources, and counts as ``reserved``.
    """

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
