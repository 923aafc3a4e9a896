"""The server's documents as values. Dates are timezone-aware and in UTC, whatever the API version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Generic, TypeVar

from tenureclient.documents import Document, LooseText, SetFlag, document
from tenureclient.wire import Fields, JsonObject, JsonValue

R = TypeVar("R")


def _parameters(fields: Fields, _name: str) -> JsonObject:
    """Return what a reservation has beside the fields that reservations of all types have."""
    common = {*Reservation.__annotations__, "resource_id"}
    return {name: fields.value(name) for name in fields if name not in common}


@document("a reservation")
class Reservation(Document):
    """One request inside a lease.

    ``parameters`` are those of its resource type, and the cloud resources that were created for it.
    """

    id: str
    lease_id: LooseText
    resource_type: str
    status: LooseText
    missing_resources: bool
    resources_changed: bool
    created_at: datetime | None
    updated_at: datetime | None
    parameters: Annotated[JsonObject, _parameters]

    @property
    def flavor_id(self) -> str | None:
        """The flavor to boot servers with; of a reservation of instances."""
        return self._created_id("flavor_id")

    @property
    def server_group_id(self) -> str | None:
        """The server group to pass as a hint when booting, if the reservation has an affinity rule."""
        return self._created_id("server_group_id")

    def _created_id(self, name: str) -> str | None:
        value = self.parameters.get(name)
        return None if value is None else str(value)


@document("an event")
class Event(Document):
    """A timed action of a lease: ``start_lease``, ``before_end_lease`` or ``end_lease``.

    The lease's owner asks for those of type ``notify_lease``; ``message`` is the text of the notification.
    """

    id: str
    lease_id: LooseText
    event_type: LooseText
    time: datetime | None
    status: LooseText
    created_at: datetime | None
    updated_at: datetime | None
    message: str | None = None


def _choices(fields: Fields, name: str) -> tuple[tuple[JsonObject, ...], ...]:
    """Return the reservations of each choice."""
    return fields.each(name, _choice)


def _choice(document: JsonValue) -> tuple[JsonObject, ...]:
    reservations = document if isinstance(document, list) else [document]
    return tuple(Fields(reservation, "a reservation of a choice").to_json() for reservation in reservations)


@document("what a lease waits for", kw_only=True)
class Waiting(Document):
    """What a lease on the waiting list waits for."""

    latest: datetime
    """Its latest start: if there is no room up to then, the lease goes to ERROR."""
    confirm_within: timedelta | None
    """How long it is held for its confirmation once there is room; None if it needs no confirmation."""
    ahead: int | None
    """How many leases wait before it for something of the same types; None in lists."""
    choices: Annotated[tuple[tuple[JsonObject, ...], ...], _choices]
    """The reservations of each choice, the preferred one first, each with its type and its parameters."""


def _before_end(fields: Fields, name: str) -> datetime | None:
    """Return the date before the end. API 1.0 has it only in the event."""
    events = fields.each("events", Event.from_wire)
    own = (event.time for event in events if event.event_type == "before_end_lease")
    return fields.maybe_moment(name) or next(own, None)


@document("a lease", kw_only=True)
class Lease(Document):
    """A user's contract: what is reserved, for which project and for which period.

    Commands show the fields in this order, and leave out a field that has its default.
    """

    id: str
    name: LooseText
    status: LooseText
    status_reason: str | None
    detail: str | None = None
    """For administrators: the full reason, if ``status_reason`` leaves something out."""
    start_date: datetime
    end_date: datetime
    before_end_date: Annotated[datetime | None, _before_end]
    hold_until: datetime | None = None
    """When the lease expires unless it is confirmed; None if it needs no confirmation."""
    may_end_at: datetime | None = None
    """Until when it may be prolonged on its resources. None if nothing limits it, if it is neither PENDING
    nor ACTIVE, below API 1.3, and if the lease is not asked for alone."""
    choice: int | None = None
    """Which of the choices of its request it has, counted from 0; None if the request had none."""
    waiting: Waiting | None = None
    """What a lease in WAITING waits for; None for all others. It has no reservations yet, and its dates are
    those of the first period that it could get."""
    degraded: bool
    project_id: LooseText
    user_id: LooseText
    created_at: datetime | None
    updated_at: datetime | None
    reservations: tuple[Reservation, ...]
    events: tuple[Event, ...]
    etag: str | None = field(default=None, compare=False, repr=False)
    """What ``if_match`` of a change takes, so that it is made only if the lease is as it was here; None in
    lists, and from servers without it, as Blazar is."""

    @property
    def duration(self) -> timedelta:
        return self.end_date - self.start_date


@document("a history entry", kw_only=True)
class HistoryEntry(Document):
    """One entry of a lease's history: who did what, when and why."""

    at: datetime
    actor: str | None
    action: LooseText
    from_status: str | None
    to_status: str | None
    reason: str | None
    detail: str | None = None
    """For administrators: the full reason, if ``reason`` leaves something out."""
    request_id: str | None


def _texts(fields: Fields, name: str) -> Mapping[str, str]:
    """Return the properties of a host. At API 1.0 they may be of any type."""
    values = fields.value(name)
    if not isinstance(values, Mapping):
        return {}
    return {key: str(value) for key, value in values.items() if value is not None}


@document("a host of a lease", kw_only=True)
class LeaseHost(Document):
    """A host of a lease, as its owner sees it. ``status`` is ``planned``, ``held`` or ``released``."""

    id: LooseText
    hypervisor_hostname: LooseText
    status: LooseText
    availability_zone: LooseText
    vcpus: int
    memory_mb: int
    local_gb: int
    properties: Annotated[Mapping[str, str], _texts]
    reservation_id: str
    start_date: datetime
    end_date: datetime


@document("a resource", kw_only=True)
class Standing(Document):
    """What the operator and the cloud say about a resource of any type, and its dates."""

    region: str | None = None
    """Its region. None if the service has no regions, or the server does not say."""
    enabled: bool | None = None
    """Whether the operator allows reservations. None if the server does not say."""
    disabled_reason: str | None = None
    health: str | None = None
    """Health as the cloud reports it: well, disabled, down or gone."""
    health_reason: str | None = None
    health_since: datetime | None = None
    created_at: datetime | None
    updated_at: datetime | None


@document("a host", kw_only=True)
class Host(Standing):
    """A compute host that can be reserved. The operator sets its ``properties``."""

    id: LooseText
    hypervisor_hostname: LooseText
    vcpus: int
    memory_mb: int
    local_gb: int
    availability_zone: LooseText
    reservable: SetFlag
    properties: Annotated[Mapping[str, str], _texts]
    traits: tuple[str, ...]
    service_name: LooseText
    hypervisor_type: LooseText
    hypervisor_version: int
    cpu_info: LooseText

    @classmethod
    def from_wire(cls, document: JsonValue) -> Host:
        """Read a document. At API 1.0 the properties of a host stand beside its fields, with any names."""
        if isinstance(document, Mapping) and not isinstance(document.get("properties"), Mapping):
            names = {*Host.__annotations__, "created_at", "updated_at", "status", "trust_id"} - {"properties"}
            own = {name: value for name, value in document.items() if name not in names}
            document = {**{name: document[name] for name in document.keys() & names}, "properties": own}
        return cls.read(document)


@document("an affected reservation", kw_only=True)
class AffectedReservation(Document):
    """A reservation of a resource that is closed or emptied: where it moves to, or why it stays."""

    id: str
    lease_id: str
    status: str
    start_date: datetime
    end_date: datetime
    moves_to: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class ResourceChange(Generic[R]):
    """A resource after a change (or its preview), and what happens to its reservations."""

    resource: R
    dry_run: bool
    reservations: tuple[AffectedReservation, ...]

    @classmethod
    def from_wire(cls, document: JsonValue, key: str, noun: str, read: Callable[[JsonValue], R]) -> ResourceChange[R]:
        fields = Fields(document, f"the change of a {noun}")
        return cls(
            resource=read(fields.value(key)),
            dry_run=fields.flag("dry_run"),
            reservations=fields.each("reservations", AffectedReservation.from_wire),
        )


def _property_name(fields: Fields, _name: str) -> str:
    """Return the name of a property. The answer to a change has it under another key than the list."""
    return fields.maybe_text("property") or fields.text("property_name")


@document("a property")
class HostProperty(Document):
    """A property by which hosts can be chosen. ``private`` and ``values`` are sent only in detail."""

    name: Annotated[str, _property_name]
    private: bool | None = None
    values: tuple[str, ...] | None = None


@document("an allocated reservation")
class ReservedPeriod(Document):
    """The reservation and the period that a resource is allocated for."""

    id: str
    lease_id: str
    start_date: datetime
    end_date: datetime


@document("an allocation")
class Allocation(Document):
    """The reservations of one resource."""

    resource_id: LooseText
    reservations: tuple[ReservedPeriod, ...]
