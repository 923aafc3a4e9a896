"""The models of answers. They describe answers, and they write them (``Answer.show``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from tenure.api.errors import ERROR_NAMES
from tenure.api.schemas.moments import RFC3339_PATTERN, show_rfc3339
from tenure.api.schemas.texts import MAX_PROPERTY_NAME
from tenure.api.versions import Version
from tenure.domain.lease import AllocationState, EventType
from tenure.domain.request import LeasedResource
from tenure.domain.resource import ResourceHealth

Document = dict[str, Any]
#: A model at each version.
ModelAt = Callable[[Version], type[BaseModel]]

#: The events that clients see; the others are internal to the engine.
SHOWN_EVENTS = frozenset({EventType.START, EventType.BEFORE_END, EventType.END, EventType.NOTIFY})


@dataclass(frozen=True, slots=True)
class From:
    """The source of a field: an attribute of the shown object, or a function of it.

    Without this mark it is the attribute with the name of the field.
    """

    source: str | Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Written:
    """The function that writes the values of a type. Without this mark they are written as JSON."""

    write: Callable[[Any], object]


def fact(name: str, default: object = None) -> From:
    """Return the source of a field with a fact that the cloud has reported about a resource."""
    return From(lambda resource: resource.facts.get(name, default))


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @classmethod
    def show(cls, value: Any) -> Document:
        """Return the document of a domain value, or of an instance of the model itself."""
        if type(value) is cls:
            return value.model_dump(exclude_unset=True)
        return {name: read(value) for name, read in _readers(cls)}


#: The model of an answer at each version.
AnswerAt = Callable[[Version], type[Answer]]
Reader = Callable[[Any], object]


@cache
def _readers(model: type[BaseModel]) -> tuple[tuple[str, Reader], ...]:
    """Return the functions that read the fields of a model from the shown object."""
    return tuple((name, _reader(name, field)) for name, field in model.model_fields.items())


def _reader(name: str, field: FieldInfo) -> Reader:
    source = next((mark.source for mark in field.metadata if isinstance(mark, From)), name)
    read: Reader = attrgetter(source) if isinstance(source, str) else source
    write = _writer(field.annotation, field.metadata)
    return read if write is None else lambda value: write(read(value))


def _writer(kind: Any, marks: list[Any]) -> Reader | None:
    """Return the function that writes a value of this type, or None if JSON does."""
    for mark in marks:
        if isinstance(mark, Written):
            return mark.write
    if isinstance(kind, type) and issubclass(kind, Answer):
        return kind.show
    origin, parameters = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _writer(parameters[0], list(parameters[1:]))
    if origin is dict:
        return dict
    write = _writer(parameters[0], []) if parameters and origin is not Literal else None
    if write is None:
        return None
    if origin is list:
        return lambda values: [write(value) for value in values]
    assert NoneType in parameters
    return lambda value: None if value is None else write(value)


Rfc3339Text = Annotated[
    str,
    Field(pattern=RFC3339_PATTERN, json_schema_extra={"format": "date-time", "examples": ["2027-03-01T09:30:00Z"]}),
    Written(show_rfc3339),
]

_ERROR_NAMES: Any = Literal[ERROR_NAMES]
HEALTHS: Any = Literal[tuple(health.value for health in ResourceHealth)]
#: What has lapsed is in accounts only.
ALLOCATION_STATES: Any = Literal[tuple(state.value for state in AllocationState if state is not AllocationState.LAPSED)]
#: Null if there are no regions.
Region = Annotated[str | None, Written(lambda region: region or None)]


class Link(Answer):
    href: str
    rel: str


class VersionEntry(Answer):
    id: str
    status: str
    links: list[Link]
    min_version: str
    max_version: str


class VersionList(Answer):
    versions: list[VersionEntry]


class VersionDocument(Answer):
    version: VersionEntry


class PartHealthDocument(Answer):
    part: str
    well: bool
    reason: str | None


class HealthDocument(Answer):
    status: Literal["well", "unwell"]
    parts: list[PartHealthDocument]


class ErrorReason(Answer):
    """The reason of an error, where the libraries of OpenStack look for it."""

    code: int
    title: str
    message: str


class ErrorDocument(Answer):
    """An error. ``field`` names the wrong field, if there is a single one; ``details`` has reasons as data, if any.

    ``error`` repeats code, name and message, where the libraries of OpenStack look for them.
    """

    error_code: int
    error_name: _ERROR_NAMES
    error_message: str
    error: ErrorReason
    field: str = ""
    details: dict[str, Any] = Field(default_factory=dict)


class ErrorWithoutVersion(ErrorDocument):
    """An error of a request whose version is malformed or not supported, readable at 1.0 and at later versions."""

    error: int  # type: ignore[assignment]  # it is only described


class AllowanceDocument(Answer):
    name: str
    limit: int
    used: int


class CostDocument(Answer):
    """What a lease takes of one resource type: units at any one time, and hours of all units together."""

    name: str
    amount: int
    hours: int
    hours_before: int


class ExpectedAllowanceDocument(AllowanceDocument):
    """A limit, its present use, and its use after the request."""

    would_use: int


class DryRunDocument(Answer):
    """What a request would do. A subclass adds the lease.

    ``unasked_filters`` are the filters of the site that were not asked, since they keep accounts.
    """

    dry_run: Annotated[Literal[True], From(lambda _outcome: True)]
    cost: list[CostDocument]
    limits: Annotated[list[ExpectedAllowanceDocument], From("allowances")]
    unasked_filters: Annotated[list[str], From(lambda outcome: list(outcome.unasked))]


class LeasedAnswer(Answer):
    """A resource of a lease as the owner of the lease sees it. Subclasses add fields of the resource."""

    reservation_id: str
    start_date: Annotated[Rfc3339Text, From("period.start")]
    end_date: Annotated[Rfc3339Text, From("period.end")]
    status: Annotated[ALLOCATION_STATES, From("state")]

    @classmethod
    def show(cls, value: LeasedResource) -> Document:
        readers = _readers(cls)
        resource, own = value.resource, LeasedAnswer.model_fields
        shown = {name: read(resource) for name, read in readers if name not in own}
        return shown | {name: read(value) for name, read in readers if name in own}


class Standing(Answer):
    """From 1.2 on: the region of a resource, and the facts that decide whether it is reservable."""

    region: Region
    enabled: bool
    disabled_reason: str | None
    health: HEALTHS
    health_reason: str | None
    health_since: Rfc3339Text | None


class AffectedReservation(Answer):
    """A reservation with an allocation on a resource: the resource that it moves to, or the reason why it stays."""

    id: Annotated[str, From("reservation_id")]
    lease_id: str
    start_date: Annotated[Rfc3339Text, From("starts_at")]
    end_date: Annotated[Rfc3339Text, From("ends_at")]
    status: Annotated[ALLOCATION_STATES, From("state")]
    moves_to: str | None
    reason: str | None


class Booking(Answer):
    id: Annotated[str, From("reservation_id")]
    lease_id: str
    start_date: Annotated[Rfc3339Text, From("starts_at")]
    end_date: Annotated[Rfc3339Text, From("ends_at")]


class Allocation(Answer):
    resource_id: Annotated[str, From("external_id")]
    reservations: Annotated[list[Booking], From("bookings")]


class Property(Answer):
    """A property of resources. With ``detail`` also whether it is private, and its values."""

    property: str
    private: bool = False
    values: list[str] = Field(default_factory=list)


class PropertySetting(Answer):
    id: Annotated[str, Written(str)]
    resource_type: str
    property_name: Annotated[str, Field(max_length=4 * MAX_PROPERTY_NAME), From("name")]
    private: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None
