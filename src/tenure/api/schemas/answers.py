"""The models of answers. They document what the renderers write; the tests hold real answers against them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, create_model

from tenure.api.schemas.leases import (
    SHOWN_EVENTS,
    ReservationKind,
    additions_of,
    has_details,
    has_regions,
    has_user_events,
)
from tenure.api.schemas.moments import RFC3339_PATTERN
from tenure.api.schemas.resources import WireInventory
from tenure.api.schemas.texts import MAX_PROPERTY_NAME
from tenure.api.versions import OLDEST, Version
from tenure.domain.lease import AllocationState, EventStatus, LeaseStatus, ReservationStatus
from tenure.domain.resource import ResourceHealth

WithT = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}$")]
WithBlank = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}$")]
Rfc3339Text = Annotated[
    str, Field(pattern=RFC3339_PATTERN, json_schema_extra={"format": "date-time", "examples": ["2027-03-01T09:30:00Z"]})
]

_SHOWN_STATUSES: Any = Literal[tuple(status.value for status in LeaseStatus if status is not LeaseStatus.DELETED)]
_EVENT_TYPES: Any = Literal[tuple(sorted(event_type.value for event_type in SHOWN_EVENTS))]
_EVENT_STATUSES: Any = Literal[tuple(status.value for status in EventStatus)]
_RESERVATION_STATUSES: Any = Literal[tuple(status.value for status in ReservationStatus)]
HEALTHS: Any = Literal[tuple(health.value for health in ResourceHealth)]
ALLOCATION_STATES: Any = Literal[tuple(state.value for state in AllocationState)]


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Link(Answer):
    rel: str
    href: str


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
    """An error of 1.0, of a request that was handled."""

    error_code: int
    error_message: str
    error_name: int | Literal["INTERNAL_SERVER_ERROR"]


class ErrorOfFramework(Answer):
    """An error of 1.0, of a request that no handler was found for."""

    error: int
    error_message: str


class ErrorDocument(Answer):
    """An error; ``field`` where one field is at fault, ``details`` where there are reasons as data."""

    error_code: int
    error_name: Literal[
        "InvalidParameter",
        "MissingParameter",
        "Unauthorized",
        "Denied",
        "Forbidden",
        "NotFound",
        "MethodNotAllowed",
        "NotAcceptable",
        "NotEnoughResources",
        "OverQuota",
        "LeaseBusy",
        "InvalidState",
        "Conflict",
        "TooLarge",
        "UnsupportedMediaType",
        "Internal",
        "Unavailable",
    ]
    error_message: str
    field: str = ""
    details: dict[str, Any] = Field(default_factory=dict)


class ErrorWithoutVersion(ErrorDocument):
    """An error of a request whose version is malformed or not supported: to be read as 1.0 and as later."""

    error: int


class UnauthorizedReason(Answer):
    code: int
    title: str
    message: str


class UnauthorizedDocument(Answer):
    """The answer of the authentication, at 1.0."""

    error: UnauthorizedReason


class EventOf10(Answer):
    id: str
    lease_id: str
    event_type: _EVENT_TYPES
    time: WithT
    status: _EVENT_STATUSES
    created_at: WithBlank
    updated_at: WithBlank | None


class ReservationOf10(Answer):
    id: str
    lease_id: str
    resource_id: str
    resource_type: str
    status: _RESERVATION_STATUSES
    missing_resources: bool
    resources_changed: bool
    created_at: WithBlank
    updated_at: WithBlank | None


class LeaseOf10(Answer):
    id: str
    name: str
    user_id: str
    project_id: str
    start_date: WithT
    end_date: WithT
    trust_id: Literal[""]
    status: _SHOWN_STATUSES
    degraded: bool
    created_at: WithBlank
    updated_at: WithBlank | None
    events: list[EventOf10]


class EventDocument(Answer):
    id: str
    lease_id: str
    event_type: _EVENT_TYPES
    time: Rfc3339Text
    status: _EVENT_STATUSES
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class ReservationDocument(Answer):
    id: str
    lease_id: str
    resource_type: str
    status: _RESERVATION_STATUSES
    missing_resources: bool
    resources_changed: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class PlacedReservation(ReservationDocument):
    """A reservation from 1.2 on: also the region that it is in, null where there are no regions."""

    region: str | None


class Lease(Answer):
    id: str
    name: str
    project_id: str
    user_id: str
    start_date: Rfc3339Text
    end_date: Rfc3339Text
    before_end_date: Rfc3339Text | None
    status: _SHOWN_STATUSES
    status_reason: str | None
    degraded: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None
    events: list[EventDocument]


class EventWithMessage(EventDocument):
    """An event from 1.2 on; ``message`` is what the owner has others told, where the event is the owner's."""

    message: str | None


class LeaseWithEvents(Lease):
    """A lease from 1.2 on; until ``hold_until`` one that is held waits to be confirmed.

    ``detail`` is for administrators: all that is known of why its status is what it is, where ``status_reason``, which
    is the owner's, leaves something out. Null for all others.
    """

    detail: str | None
    hold_until: Rfc3339Text | None
    events: list[EventWithMessage]  # type: ignore[assignment]  # nobody writes to it


class HistoryEntryDocument(Answer):
    at: Rfc3339Text
    actor: str
    action: str
    from_status: str | None
    to_status: str
    reason: str | None
    request_id: str | None


class HistoryEntryWithDetail(HistoryEntryDocument):
    """What happened to a lease, from 1.2 on.

    ``detail`` is for administrators: all that is known of why, where ``reason`` leaves something out; else null.
    """

    id: str
    detail: str | None


class HistoryDocument(Answer):
    history: list[HistoryEntryDocument]
    history_links: list[Link] = Field(default_factory=list)


class HistoryWithDetails(Answer):
    history: list[HistoryEntryWithDetail]
    history_links: list[Link] = Field(default_factory=list)


class AllowanceDocument(Answer):
    name: str
    limit: int
    used: int


class LimitsDocument(Answer):
    limits: list[AllowanceDocument]
    project_id: str
    hours_until: Rfc3339Text


class LeasedHost(Answer):
    id: str
    hypervisor_hostname: str
    availability_zone: str
    vcpus: int
    memory_mb: int
    local_gb: int
    properties: dict[str, str]
    reservation_id: str
    start_date: Rfc3339Text
    end_date: Rfc3339Text
    status: ALLOCATION_STATES


class HostOf10(BaseModel):
    """A host; its properties stand beside its fields, as text."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str] = Field(init=False)

    id: str
    hypervisor_hostname: str
    service_name: str
    hypervisor_type: str
    hypervisor_version: int
    vcpus: int
    memory_mb: int
    local_gb: int
    cpu_info: str
    availability_zone: str
    status: None
    trust_id: Literal[""]
    reservable: bool
    created_at: WithBlank
    updated_at: WithBlank | None


class Host(Answer):
    id: str
    hypervisor_hostname: str
    service_name: str
    hypervisor_type: str
    hypervisor_version: int
    vcpus: int
    memory_mb: int
    local_gb: int
    cpu_info: str
    availability_zone: str
    traits: list[str]
    reservable: bool
    properties: dict[str, str]
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class HostOf12(Host):
    """A host from 1.2 on: also whether the operator has enabled it, and what the cloud says of it."""

    region: str | None
    enabled: bool
    disabled_reason: str | None
    health: HEALTHS
    health_reason: str | None
    health_since: Rfc3339Text | None


class AffectedReservation(Answer):
    """A reservation with a part in a resource: where it moves to, or why it stays."""

    id: str
    lease_id: str
    start_date: Rfc3339Text
    end_date: Rfc3339Text
    status: ALLOCATION_STATES
    moves_to: str | None
    reason: str | None


class ChangeDocument(Answer):
    """A resource after a change, or as it would be, and what becomes of the reservations with a part in it."""

    dry_run: bool
    reservations: list[AffectedReservation]


class BookingOf10(Answer):
    id: str
    lease_id: str
    start_date: WithT
    end_date: WithT


class AllocationOf10(Answer):
    resource_id: str
    reservations: list[BookingOf10]


class AllocationOf10Document(Answer):
    allocation: AllocationOf10


class AllocationOf10List(Answer):
    allocations: list[AllocationOf10]


class Booking(Answer):
    id: str
    lease_id: str
    start_date: Rfc3339Text
    end_date: Rfc3339Text


class Allocation(Answer):
    resource_id: str
    reservations: list[Booking]


class AllocationDocument(Answer):
    allocation: Allocation


class AllocationList(Answer):
    allocations: list[Allocation]
    allocations_links: list[Link] = Field(default_factory=list)


class Property(Answer):
    """A property; with ``detail`` also whether it is private, and its values."""

    property: str
    private: bool = False
    values: list[str] = Field(default_factory=list)


class PropertyList(Answer):
    resource_properties: list[Property]


class PropertySettingOf10(Answer):
    id: str
    resource_type: str
    property_name: Annotated[str, Field(max_length=4 * MAX_PROPERTY_NAME)]
    private: bool
    created_at: WithT
    updated_at: WithT | None


class PropertySettingOf10Document(Answer):
    resource_property: PropertySettingOf10


class PropertySetting(Answer):
    id: str
    resource_type: str
    property_name: Annotated[str, Field(max_length=4 * MAX_PROPERTY_NAME)]
    private: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class PropertySettingDocument(Answer):
    resource_property: PropertySetting


class Answers:
    """The models of answers at one version; those of leases are built from the resource types."""

    def __init__(self, kinds: Iterable[ReservationKind], version: Version) -> None:
        old = version is OLDEST
        base_of_one = ReservationOf10 if old else PlacedReservation if has_regions(version) else ReservationDocument
        members = [_reservation_model(kind, base_of_one, version) for kind in kinds]
        member: Any = members[0]
        if len(members) > 1:
            member = Annotated[Union[tuple(members)], Field(discriminator="resource_type")]  # noqa: UP007
        base = LeaseOf10 if old else LeaseWithEvents if has_user_events(version) else Lease
        lease = create_model("Lease", __base__=base, reservations=(list[member], ...))
        self.lease: type[BaseModel] = create_model("LeaseDocument", __base__=Answer, lease=(lease, ...))
        if old:
            self.leases: type[BaseModel] = create_model("LeaseList", __base__=Answer, leases=(list[lease], ...))
        else:
            self.leases = create_model(
                "LeaseList",
                __base__=Answer,
                leases=(list[lease], ...),
                leases_links=(list[Link], Field(default_factory=list)),
            )
        self.allocation: type[BaseModel] = AllocationOf10Document if old else AllocationDocument
        self.allocations: type[BaseModel] = AllocationOf10List if old else AllocationList
        self.properties: type[BaseModel] = PropertyList
        self.property_setting: type[BaseModel] = PropertySettingOf10Document if old else PropertySettingDocument
        self.history: type[BaseModel] = HistoryWithDetails if has_details(version) else HistoryDocument


class InventoryAnswers:
    """The models of answers about an inventory, at one version."""

    def __init__(self, wire: WireInventory, version: Version) -> None:
        shown, new = wire.answer(version), wire.answer_new(version)
        many: dict[str, Any] = {wire.many: (list[shown], ...)}  # type: ignore[valid-type]  # known at run time only
        if version is not OLDEST:
            many[wire.links] = (list[Link], Field(default_factory=list))
        self.one = _document(shown, wire.one)
        self.new = self.one if new is shown else _document(new, wire.one)
        self.many: type[BaseModel] = create_model(f"{shown.__name__}List", __base__=Answer, **many)
        change: dict[str, Any] = {wire.one: (shown, ...)}
        self.change: type[BaseModel] = create_model(f"{shown.__name__}Change", __base__=ChangeDocument, **change)
        leased: dict[str, Any] = {wire.many: (list[wire.leased_answer], ...)}  # type: ignore[name-defined]
        self.leased: type[BaseModel] = create_model(f"{wire.leased_answer.__name__}List", __base__=Answer, **leased)


def _document(shown: type[BaseModel], name: str) -> type[BaseModel]:
    fields: dict[str, Any] = {name: (shown, ...)}
    return create_model(f"{shown.__name__}Document", __base__=Answer, **fields)


def _reservation_model(kind: ReservationKind, base: type[BaseModel], version: Version) -> type[BaseModel]:
    """A reservation as it is shown: what all have, and what its type shows."""
    shown = kind.answer_model(strict=base is not ReservationOf10)
    models = (shown, *additions_of(kind, version))
    parameters: dict[str, Any] = {
        name: (field.annotation, ...) for model in models for name, field in model.model_fields.items()
    }
    title = kind.request_model(strict=True).__name__
    tag: Any = (Literal[kind.name], ...)
    return create_model(f"{title}Document", __base__=base, resource_type=tag, **parameters)
