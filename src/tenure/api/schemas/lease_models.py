"""The models of leases from 1.1 on: their requests, their answers, and the queries of their lists.

A reservation has more fields, those of its resource type: ``tenure.api.schemas.leases`` adds them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, field_validator
from pydantic_core import PydanticCustomError

from tenure.api.schemas.answers import SHOWN_EVENTS, Answer, From, Region, Rfc3339Text
from tenure.api.schemas.availability import LONGEST_DURATION, StartWindow
from tenure.api.schemas.moments import Rfc3339, Rfc3339OrNow
from tenure.api.schemas.queries import DEFAULT_LIMIT, Direction, Limit, Query
from tenure.api.schemas.texts import MAX_ID, PRINTABLE, ExternalId, GivenName, Identifier, Message, Name, RegionName
from tenure.api.versions import Version
from tenure.domain.capacity import MAX_AMOUNT
from tenure.domain.errors import InvalidParameter, MissingParameter
from tenure.domain.lease import (
    DETAILS,
    MAX_USER_EVENTS,
    Event,
    EventStatus,
    EventType,
    Lease,
    LeaseStatus,
    ReservationStatus,
    Waiting,
)
from tenure.domain.request import LeaseOrder, LeaseQuery

#: The longest request to boot servers, in characters of JSON: Nova allows 65,535 for the user data alone.
MAX_BOOT = 256 * 1024
#: The longest hold of a lease, in seconds.
LONGEST_HOLD = 3600
#: A field that may be absent, and is None then, but must not be null.
OPTIONAL: Any = Field(default_factory=lambda: None)


_SHOWN_STATUSES: Any = Literal[tuple(status.value for status in LeaseStatus if status is not LeaseStatus.DELETED)]
#: The statuses before 1.3. A lease on the waiting list is shown as one that is not booked yet.
STATUSES_BEFORE_13: Any = Literal[
    tuple(status.value for status in LeaseStatus if status not in {LeaseStatus.DELETED, LeaseStatus.WAITING})
]
_EVENT_TYPES: Any = Literal[tuple(sorted(event_type.value for event_type in SHOWN_EVENTS))]
_EVENT_STATUSES: Any = Literal[tuple(status.value for status in EventStatus)]
RESERVATION_STATUSES: Any = Literal[tuple(status.value for status in ReservationStatus)]


def example(start: str, end: str) -> dict[str, Any]:
    """Return an example for JSON Schema: a valid lease without reservations."""
    return {"examples": [{"name": "bio-42", "start_date": start, "end_date": end, "reservations": []}]}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StrictLeaseCreate(Strict):
    """A new lease."""

    model_config = ConfigDict(json_schema_extra=example("2090-03-01T09:30:00Z", "2090-03-04T18:00:00+01:00"))

    name: GivenName
    start_date: Rfc3339OrNow
    end_date: Rfc3339
    before_end_date: Rfc3339 | None = None


class StrictLeaseUpdate(Strict):
    """A change of a lease; fields that are absent stay as they are."""

    name: GivenName = OPTIONAL
    start_date: Rfc3339OrNow = OPTIONAL
    end_date: Rfc3339OrNow = OPTIONAL
    before_end_date: Rfc3339 = OPTIONAL


class EventCreate(Strict):
    """A new event of the owner: at its time a notification is sent."""

    event_type: Literal["notify_lease"] = "notify_lease"
    time: Rfc3339
    message: Message


class EventUpdate(EventCreate):
    """An event of the owner: the existing event with the ``id``, or a new event without an ``id``."""

    id: Identifier = OPTIONAL


class LeaseCreateWithEvents(StrictLeaseCreate):
    """A new lease, with events of its owner, whose times are within the lease.

    With ``hold_for`` the lease is held for this number of seconds, and is dropped unless it is confirmed in this time.
    """

    events: list[EventCreate] = Field(default_factory=list, max_length=MAX_USER_EVENTS)
    hold_for: Annotated[StrictInt, Field(ge=1, le=LONGEST_HOLD)] = OPTIONAL


#: The fields of a window.
_WINDOW = tuple(StartWindow.model_fields)
#: The most choices of a request.
MOST_CHOICES = 10


#: The longest time for the confirmation of a lease that has waited, in seconds: a week.
LONGEST_CONFIRMATION = 7 * 24 * 3600


class FlexibleLeaseCreate(LeaseCreateWithEvents, StartWindow):
    """A new lease, which may leave open when it starts and what it consists of.

    With ``duration`` in place of both dates, it gets the first period that fits: it starts between ``earliest`` and
    ``latest``; on one of the ``weekdays``, and between ``starts_after`` and ``starts_before``, times of the day in
    ``time_zone``. With ``any_of`` in place of ``reservations``, it gets the first of these choices that fits.

    If nothing fits, it is refused; with ``if_full`` as ``wait`` it is put on the waiting list, up to its latest start.
    With ``confirm_within`` a lease that has waited is held for this number of seconds once there is room for it, and
    must be confirmed in this time.
    """

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["start_date", "end_date"]}, {"required": ["duration"]}]}
    )

    start_date: Rfc3339OrNow = OPTIONAL
    end_date: Rfc3339 = OPTIONAL
    duration: Annotated[StrictInt, Field(ge=1, le=LONGEST_DURATION)] = OPTIONAL
    if_full: Literal["refuse", "wait"] = "refuse"
    confirm_within: Annotated[StrictInt, Field(ge=1, le=LONGEST_CONFIRMATION)] = OPTIONAL

    @property
    def waits(self) -> bool:
        """Whether the lease waits if nothing fits. Raises ``InvalidParameter`` for fields that conflict."""
        waits = self.if_full == "wait"
        if not waits and "confirm_within" in self.model_fields_set:
            raise InvalidParameter("Only a lease that may wait can ask to be confirmed.", field="confirm_within")
        if waits and "hold_for" in self.model_fields_set:
            raise InvalidParameter(
                "A lease that may wait is not held: confirm_within holds it once there is room.", field="hold_for"
            )
        return waits

    def is_flexible(self) -> bool:
        """Whether the start is open. Raises ``MissingParameter`` and ``InvalidParameter`` for fields that conflict."""
        given = self.model_fields_set
        if "duration" not in given:
            for name in _WINDOW:
                if name in given:
                    raise MissingParameter("duration")
            if missing := [name for name in ("end_date", "start_date") if name not in given]:
                raise MissingParameter(*missing)
            return False
        for name in ("start_date", "end_date", "before_end_date", "events"):
            if getattr(self, name):
                raise InvalidParameter("It cannot be given together with a duration.", field=name)
        return True


class BootFlavor(BaseModel):
    """A flavor, as Nova shows it with its extra specs; other fields are ignored.

    `ram` and `swap` are in MiB, `disk` and `ephemeral` in GiB.
    """

    id: Annotated[StrictStr, Field(min_length=1, max_length=255)]
    name: Annotated[StrictStr, Field(max_length=255)] = ""
    vcpus: Annotated[StrictInt, Field(ge=0, le=MAX_AMOUNT)]
    ram: Annotated[StrictInt, Field(ge=0, le=MAX_AMOUNT)]
    disk: Annotated[StrictInt, Field(ge=0, le=MAX_AMOUNT)]
    ephemeral: Annotated[StrictInt, Field(ge=0, le=MAX_AMOUNT)] = 0
    swap: Annotated[StrictInt, Field(ge=0, le=MAX_AMOUNT)] = 0
    extra_specs: Annotated[dict[StrictStr, StrictStr], Field(max_length=128)] = Field(default_factory=dict)


#: What is added to in a request to boot a server, and its form in requests to Nova.
_FORMS = (
    ("metadata", dict, "object"),
    ("tags", list, "list"),
    ("os:scheduler_hints", dict, "object"),
    ("OS-SCH-HNT:scheduler_hints", dict, "object"),
)
#: What asks Nova for several servers by one request, or for an answer without the id of the server.
_OF_SEVERAL = ("min_count", "max_count", "return_reservation_id")


class BootRequest(Strict):
    """How the servers of a lease are made at its start, as their owner: a request to Nova."""

    request: Annotated[
        dict[StrictStr, Any],
        Field(
            description="The body of a request to boot a server, as Nova takes it at the microversion.",
            json_schema_extra={
                "required": ["server"],
                "properties": {
                    "server": {"type": "object", "properties": {name: {"type": "null"} for name in _OF_SEVERAL}}
                },
            },
        ),
    ]
    microversion: Annotated[
        StrictStr,
        Field(pattern=r"^[1-9][0-9]{0,2}\.(0|[1-9][0-9]{0,3})$", description="Nova's microversion of the request."),
    ] = "2.1"
    flavor: Annotated[
        BootFlavor,
        Field(
            description="The flavor of the request, if the client knows it: then Nova is not asked for it now. If the "
            "flavor takes more at the start than was booked, the server is not made."
        ),
    ] = OPTIONAL

    @field_validator("request")
    @classmethod
    def _is_a_boot(cls, request: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(request.get("server"), dict):
            raise PydanticCustomError("boot_request", "It has an object named server, as requests to Nova have.")
        for place in (request, request["server"]):
            for name, form, words in _FORMS:
                if not isinstance(place.get(name), form | None):
                    raise PydanticCustomError("boot_request", f"{name} in it is no {words}.")
        for name in _OF_SEVERAL:
            if request["server"].get(name) is not None:
                text = f"{name} in it: the request is for one server, and repeated for each reservation."
                raise PydanticCustomError("boot_request", text)
        if len(json.dumps(request)) > MAX_BOOT:
            raise PydanticCustomError("boot_request", f"It has more than {MAX_BOOT} characters.")
        return request


class LeaseCreateWithBoot(FlexibleLeaseCreate):
    """A new lease, whose servers may be made at its start.

    The reservations of `virtual:server` with a `server_name` have their servers made by the request in ``boot``. No
    answer has the request, and it is deleted when the servers are made.
    """

    boot: BootRequest = OPTIONAL


class LeaseUpdateWithEvents(StrictLeaseUpdate):
    """A change of a lease; fields that are absent stay as they are. ``events`` replace all events of the owner."""

    events: Annotated[list[EventUpdate], Field(max_length=MAX_USER_EVENTS)] = OPTIONAL


class LeaseConfirm(Strict):
    """The confirmation of a held lease, with parameters of its reservations that were not known before."""


class StrictReservationId(BaseModel):
    id: Annotated[StrictStr, Field(min_length=1, max_length=MAX_ID, pattern=PRINTABLE)]


class Placed(BaseModel):
    """The region of a new reservation."""

    region: Annotated[
        RegionName | None,
        Field(description="The region of all its resources; the home region of the service by default."),
    ] = None


#: The models of leases and reservations are built at the first description: with all types this takes long.
DEFERRED = ConfigDict(defer_build=True)


def shown_events(lease: Lease) -> list[Event]:
    return [event for event in lease.events if event.event_type in SHOWN_EVENTS]


def _confirmation_seconds(waiting: Waiting) -> int | None:
    return None if waiting.confirm_within is None else int(waiting.confirm_within.total_seconds())


def _waiting_choices(waiting: Waiting) -> list[list[dict[str, Any]]]:
    return [[dict(reservation) for reservation in choice] for choice in waiting.choices]


def status_before_13(lease: Lease) -> LeaseStatus:
    return LeaseStatus.CREATING if lease.status is LeaseStatus.WAITING else lease.status


def _before_end(lease: Lease) -> datetime | None:
    event = lease.event(EventType.BEFORE_END)
    return event.due_at if event else None


class EventDocument(Answer):
    id: str
    lease_id: str
    event_type: _EVENT_TYPES
    time: Annotated[Rfc3339Text, From("due_at")]
    status: _EVENT_STATUSES
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class ReservationDocument(Answer):
    model_config = DEFERRED

    id: str
    lease_id: str
    resource_type: str
    status: RESERVATION_STATUSES
    missing_resources: bool
    resources_changed: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class _Placed(Answer):
    region: Region


class PlacedReservation(ReservationDocument, _Placed):
    """A reservation from 1.2 on, with its region, which is null if there are no regions."""


class LeaseOf11(Answer):
    model_config = DEFERRED

    id: str
    name: str
    project_id: str
    user_id: str
    start_date: Annotated[Rfc3339Text, From("starts_at")]
    end_date: Annotated[Rfc3339Text, From("ends_at")]
    before_end_date: Annotated[Rfc3339Text | None, From(_before_end)]
    status: Annotated[STATUSES_BEFORE_13, From(status_before_13)]
    status_reason: str | None
    degraded: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None
    reservations: list[Any]
    events: Annotated[list[EventDocument], From(shown_events)]


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
    events: Annotated[list[EventWithMessage], From(shown_events)]  # type: ignore[assignment]  # it is only read


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


ShownStatus = StrEnum(  # type: ignore[misc]  # its members are those of another enum
    "ShownStatus", {status.name: status.value for status in LeaseStatus if status is not LeaseStatus.DELETED}
)


class LeaseListQuery(Query):
    limit: Limit = DEFAULT_LIMIT
    marker: Identifier | None = None
    sort_key: LeaseOrder = LeaseOrder.CREATED_AT
    sort_dir: Direction = "asc"
    name: Name | None = None
    status: ShownStatus | None = None
    user_id: ExternalId | None = None
    project_id: ExternalId | None = None
    starts_before: Rfc3339 | None = None
    ends_after: Rfc3339 | None = None

    def to_domain(self) -> LeaseQuery:
        details: dict[str, Any] = {name: getattr(self, name, None) for name in DETAILS}
        return LeaseQuery(
            limit=self.limit,
            marker=self.marker,
            order=self.sort_key,
            descending=self.sort_dir == "desc",
            **details,
            statuses=self.statuses(),
            user_id=self.user_id,
            project_id=self.project_id,
            starts_before=self.starts_before,
            ends_after=self.ends_after,
        )

    def statuses(self) -> tuple[str, ...]:
        """Return the statuses of the leases that this version shows with the status that is asked for."""
        if self.status is not None and self.status.value == LeaseStatus.CREATING:
            return (LeaseStatus.CREATING.value, LeaseStatus.WAITING.value)
        return () if self.status is None else (self.status.value,)


class LeaseListQueryOf13(LeaseListQuery):
    def statuses(self) -> tuple[str, ...]:
        return () if self.status is None else (self.status.value,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseForms:
    """The models of leases at a version, without what the resource types add."""

    version: Version
    create: type[BaseModel]
    update: type[BaseModel]
    #: The id of a reservation in a change.
    identified: type[BaseModel] = StrictReservationId
    lease: type[Answer]
    reservation: type[Answer]
    #: Whether requests are in our form, from 1.1 on; otherwise they are in Blazar's.
    is_strict: bool = True
    #: Whether a reservation has a region, and further parameters of its type: from 1.2 on.
    is_placed: bool = True


#: The models at each version of ours.
FORMS: Mapping[Version, LeaseForms] = {
    Version.V1_1: LeaseForms(
        version=Version.V1_1,
        create=StrictLeaseCreate,
        update=StrictLeaseUpdate,
        lease=LeaseOf11,
        reservation=ReservationDocument,
        is_placed=False,
    ),
    Version.V1_2: LeaseForms(
        version=Version.V1_2,
        create=LeaseCreateWithEvents,
        update=LeaseUpdateWithEvents,
        lease=LeaseOf12,
        reservation=PlacedReservation,
    ),
    Version.V1_3: LeaseForms(
        version=Version.V1_3,
        create=FlexibleLeaseCreate,
        update=LeaseUpdateWithEvents,
        lease=LeaseOf13,
        reservation=PlacedReservation,
    ),
    Version.V1_4: LeaseForms(
        version=Version.V1_4,
        create=LeaseCreateWithBoot,
        update=LeaseUpdateWithEvents,
        lease=LeaseOf13,
        reservation=PlacedReservation,
    ),
}
