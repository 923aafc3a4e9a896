"""The models of answers. They describe answers, and they write them (``Answer.show``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from tenure.api.errors import ERROR_NAMES
from tenure.api.schemas.moments import RFC3339_PATTERN, show_rfc3339, show_with_blank, show_with_t
from tenure.api.schemas.texts import MAX_PROPERTY_NAME
from tenure.api.versions import Version
from tenure.domain.lease import (
    AllocationState,
    Event,
    EventStatus,
    EventType,
    Lease,
    LeaseStatus,
    ReservationStatus,
    Waiting,
)
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


WithT = Annotated[
    str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}$"), Written(show_with_t)
]
WithBlank = Annotated[
    str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}$"), Written(show_with_blank)
]
Rfc3339Text = Annotated[
    str,
    Field(pattern=RFC3339_PATTERN, json_schema_extra={"format": "date-time", "examples": ["2027-03-01T09:30:00Z"]}),
    Written(show_rfc3339),
]

_ERROR_NAMES: Any = Literal[ERROR_NAMES]
_SHOWN_STATUSES: Any = Literal[tuple(status.value for status in LeaseStatus if status is not LeaseStatus.DELETED)]
#: The statuses before 1.3. A lease on the waiting list is shown as one that is not booked yet.
_STATUSES_BEFORE_13: Any = Literal[
    tuple(status.value for status in LeaseStatus if status not in {LeaseStatus.DELETED, LeaseStatus.WAITING})
]
_EVENT_TYPES: Any = Literal[tuple(sorted(event_type.value for event_type in SHOWN_EVENTS))]
_EVENT_STATUSES: Any = Literal[tuple(status.value for status in EventStatus)]
_RESERVATION_STATUSES: Any = Literal[tuple(status.value for status in ReservationStatus)]
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


class ErrorOfRoute(Answer):
    """An error of 1.0, for a request that a handler received."""

    error_code: int
    error_message: str
    error_name: int | Literal["INTERNAL_SERVER_ERROR"]


class ErrorOfFramework(Answer):
    """An error of 1.0, for a request without a handler."""

    error: int
    error_message: str


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


class UnauthorizedDocument(Answer):
    """The error of the authentication, at 1.0."""

    error: ErrorReason


#: The models of leases and reservations are built at the first description: with all types this takes long.
_BASE = ConfigDict(defer_build=True)


def _shown_events(lease: Lease) -> list[Event]:
    return [event for event in lease.events if event.event_type in SHOWN_EVENTS]


def _confirmation_seconds(waiting: Waiting) -> int | None:
    return None if waiting.confirm_within is None else int(waiting.confirm_within.total_seconds())


def _waiting_choices(waiting: Waiting) -> list[list[dict[str, Any]]]:
    return [[dict(asked) for asked in choice] for choice in waiting.choices]


def _status_before_13(lease: Lease) -> LeaseStatus:
    return LeaseStatus.CREATING if lease.status is LeaseStatus.WAITING else lease.status


def _before_end(lease: Lease) -> datetime | None:
    event = lease.event(EventType.BEFORE_END)
    return event.due_at if event else None


class EventOf10(Answer):
    id: str
    lease_id: str
    event_type: _EVENT_TYPES
    time: Annotated[WithT, From("due_at")]
    status: _EVENT_STATUSES
    created_at: WithBlank
    updated_at: WithBlank | None


class ReservationOf10(Answer):
    model_config = _BASE

    id: str
    lease_id: str
    resource_id: Annotated[str, From("id")]
    resource_type: str
    status: _RESERVATION_STATUSES
    missing_resources: bool
    resources_changed: bool
    created_at: WithBlank
    updated_at: WithBlank | None


class LeaseOf10(Answer):
    model_config = _BASE

    id: str
    name: str
    user_id: str
    project_id: str
    start_date: Annotated[WithT, From("starts_at")]
    end_date: Annotated[WithT, From("ends_at")]
    trust_id: Annotated[Literal[""], From(lambda _: "")]
    status: Annotated[_STATUSES_BEFORE_13, From(_status_before_13)]
    degraded: bool
    created_at: WithBlank
    updated_at: WithBlank | None
    reservations: list[Any]
    events: Annotated[list[EventOf10], From(_shown_events)]


class EventDocument(Answer):
    id: str
    lease_id: str
    event_type: _EVENT_TYPES
    time: Annotated[Rfc3339Text, From("due_at")]
    status: _EVENT_STATUSES
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class ReservationDocument(Answer):
    model_config = _BASE

    id: str
    lease_id: str
    resource_type: str
    status: _RESERVATION_STATUSES
    missing_resources: bool
    resources_changed: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class _Placed(Answer):
    region: Region


class PlacedReservation(ReservationDocument, _Placed):
    """A reservation from 1.2 on, with its region, which is null if there are no regions."""


class LeaseOf11(Answer):
    model_config = _BASE

    id: str
    name: str
    project_id: str
    user_id: str
    start_date: Annotated[Rfc3339Text, From("starts_at")]
    end_date: Annotated[Rfc3339Text, From("ends_at")]
    before_end_date: Annotated[Rfc3339Text | None, From(_before_end)]
    status: Annotated[_STATUSES_BEFORE_13, From(_status_before_13)]
    status_reason: str | None
    degraded: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None
    reservations: list[Any]
    events: Annotated[list[EventDocument], From(_shown_events)]


class EventWithMessage(EventDocument):
    """An event from 1.2 on. ``message`` is the text of an event that the owner has added; null for all others."""

    message: str | None


class LeaseOf12(LeaseOf11):
    """A lease from 1.2 on. A held lease waits for its confirmation until ``hold_until``.

    ``detail`` is for administrators: the full reason of the status, if ``status_reason``, which is for the owner,
    leaves something out. It is null for other callers.
    """

    detail: Annotated[str | None, From("status_detail")]
    hold_until: Rfc3339Text | None
    events: Annotated[list[EventWithMessage], From(_shown_events)]  # type: ignore[assignment]  # it is only read


class WaitingDocument(Answer):
    """What a lease on the waiting list waits for.

    ``latest`` is its latest start: if there is no room up to then, the lease is ERROR. With ``confirm_within`` it is
    held for so many seconds once there is room, and must be confirmed in this time. ``choices`` are the reservations
    that it asks for, the preferred choice first. ``ahead`` is how many leases wait before it for something of the same
    types; it is null except where a single lease is shown.
    """

    latest: Rfc3339Text
    confirm_within: Annotated[int | None, From(_confirmation_seconds)]
    ahead: int | None
    choices: Annotated[list[list[dict[str, Any]]], From(_waiting_choices)]


class LeaseOf13(LeaseOf12):
    """A lease from 1.3 on.

    ``may_end_at`` is until when it may be prolonged on the resources that it has, while nothing else changes. It is
    null if nothing limits it; for a lease that cannot be prolonged; and except where a single lease is shown.
    ``choice`` is which of the choices of its request it has, counted from 0; null if the request had none.
    ``waiting`` is what a lease that is WAITING waits for, and null for all others. Such a lease has no reservations;
    its dates are those of the first period that it could get.
    """

    may_end_at: Rfc3339Text | None
    choice: int | None
    status: _SHOWN_STATUSES
    waiting: WaitingDocument | None


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


class AllowanceDocument(Answer):
    name: str
    limit: int
    used: int


class LimitsDocument(Answer):
    limits: Annotated[list[AllowanceDocument], From("allowances")]
    project_id: str
    hours_until: Rfc3339Text


class CostDocument(Answer):
    """What a lease takes of one kind of resource: units at any one time, and hours of all units together."""

    name: str
    amount: int
    hours: int
    hours_before: int


class ExpectedAllowanceDocument(AllowanceDocument):
    """A limit, its present use, and its use after the request."""

    would_use: int


class RehearsalDocument(Answer):
    """What a request would do. A subclass adds the lease.

    ``unasked_filters`` are the filters of the site that were not asked, since they keep accounts.
    """

    dry_run: Annotated[Literal[True], From(lambda _rehearsal: True)]
    cost: list[CostDocument]
    limits: Annotated[list[ExpectedAllowanceDocument], From("allowances")]
    unasked_filters: Annotated[list[str], From(lambda rehearsal: list(rehearsal.unasked))]


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


class BookingOf10(Answer):
    id: Annotated[str, From("reservation_id")]
    lease_id: str
    start_date: Annotated[WithT, From("starts_at")]
    end_date: Annotated[WithT, From("ends_at")]


class AllocationOf10(Answer):
    resource_id: Annotated[str, From("external_id")]
    reservations: Annotated[list[BookingOf10], From("bookings")]


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


class PropertySettingOf10(Answer):
    id: Annotated[str, Written(str)]
    resource_type: str
    property_name: Annotated[str, Field(max_length=4 * MAX_PROPERTY_NAME), From("name")]
    private: bool
    created_at: WithT  # unlike most dates of 1.0
    updated_at: WithT | None


class PropertySetting(Answer):
    id: Annotated[str, Written(str)]
    resource_type: str
    property_name: Annotated[str, Field(max_length=4 * MAX_PROPERTY_NAME), From("name")]
    private: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None
