"""The server's documents as values. Dates are timezone-aware and in UTC, whatever the API version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from tenureclient.wire import Fields, JsonObject, JsonValue

R = TypeVar("R")

_RESERVATION_FIELDS = frozenset(
    [
        "id",
        "lease_id",
        "resource_id",
        "resource_type",
        "status",
        "missing_resources",
        "resources_changed",
        "created_at",
        "updated_at",
    ]
)
# At API 1.0 the properties of a host stand beside its fields. These fields are not properties.
_HOST_FIELDS = frozenset(
    [
        "id",
        "hypervisor_hostname",
        "service_name",
        "hypervisor_type",
        "hypervisor_version",
        "vcpus",
        "memory_mb",
        "local_gb",
        "cpu_info",
        "availability_zone",
        "traits",
        "reservable",
        "created_at",
        "updated_at",
        "status",
        "trust_id",
    ]
)


@dataclass(frozen=True, slots=True)
class Reservation:
    """One request inside a lease.

    ``parameters`` are those of its resource type, and the cloud resources that were created for it.
    """

    id: str
    lease_id: str
    resource_type: str
    status: str
    missing_resources: bool
    resources_changed: bool
    created_at: datetime | None
    updated_at: datetime | None
    parameters: JsonObject

    @classmethod
    def from_wire(cls, document: JsonValue) -> Reservation:
        fields = Fields(document, "a reservation")
        return cls(
            id=fields.text("id"),
            lease_id=fields.loose_text("lease_id"),
            resource_type=fields.text("resource_type"),
            status=fields.loose_text("status"),
            missing_resources=fields.flag("missing_resources"),
            resources_changed=fields.flag("resources_changed"),
            created_at=fields.maybe_moment("created_at"),
            updated_at=fields.maybe_moment("updated_at"),
            parameters={name: fields.value(name) for name in fields if name not in _RESERVATION_FIELDS},
        )

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


@dataclass(frozen=True, slots=True)
class Event:
    """A timed action of a lease: ``start_lease``, ``before_end_lease`` or ``end_lease``.

    The lease's owner asks for those of type ``notify_lease``; ``message`` is the text of the notification.
    """

    id: str
    lease_id: str
    event_type: str
    time: datetime | None
    status: str
    created_at: datetime | None
    updated_at: datetime | None
    message: str | None = None

    @classmethod
    def from_wire(cls, document: JsonValue) -> Event:
        fields = Fields(document, "an event")
        return cls(
            id=fields.text("id"),
            lease_id=fields.loose_text("lease_id"),
            event_type=fields.loose_text("event_type"),
            time=fields.maybe_moment("time"),
            status=fields.loose_text("status"),
            created_at=fields.maybe_moment("created_at"),
            updated_at=fields.maybe_moment("updated_at"),
            message=fields.maybe_text("message"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a lease on the waiting list waits for."""

    latest: datetime
    """Its latest start: if there is no room up to then, the lease goes to ERROR."""
    confirm_within: timedelta | None
    """How long it is held for its confirmation once there is room; None if it needs no confirmation."""
    ahead: int | None
    """How many leases wait before it for something of the same types; None in lists."""
    choices: tuple[tuple[JsonObject, ...], ...]
    """The reservations of each choice, the preferred one first, each with its type and its parameters."""

    @classmethod
    def from_wire(cls, document: JsonValue) -> Waiting:
        fields = Fields(document, "what a lease waits for")
        seconds = fields.maybe_number("confirm_within")
        return cls(
            latest=fields.moment("latest"),
            confirm_within=None if seconds is None else timedelta(seconds=seconds),
            ahead=fields.maybe_number("ahead"),
            choices=fields.each("choices", _choice),
        )


def _choice(document: JsonValue) -> tuple[JsonObject, ...]:
    """Return the reservations of a choice."""
    reservations = document if isinstance(document, list) else [document]
    return tuple(Fields(reservation, "a reservation of a choice").to_json() for reservation in reservations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A user's contract: what is reserved, for which project and for which period.

    Commands show the fields in this order, and leave out a field that has its default.
    """

    id: str
    name: str
    status: str
    status_reason: str | None
    detail: str | None = None
    """For administrators: the full reason, if ``status_reason`` leaves something out."""
    start_date: datetime
    end_date: datetime
    before_end_date: datetime | None
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
    project_id: str
    user_id: str
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

    @classmethod
    def from_wire(cls, document: JsonValue) -> Lease:
        fields = Fields(document, "a lease")
        events = fields.each("events", Event.from_wire)
        before_end = fields.maybe_moment("before_end_date")
        if before_end is None:  # API 1.0 has this date only in the event
            before_end = next((e.time for e in events if e.event_type == "before_end_lease"), None)
        return cls(
            id=fields.text("id"),
            name=fields.loose_text("name"),
            project_id=fields.loose_text("project_id"),
            user_id=fields.loose_text("user_id"),
            start_date=fields.moment("start_date"),
            end_date=fields.moment("end_date"),
            before_end_date=before_end,
            status=fields.loose_text("status"),
            status_reason=fields.maybe_text("status_reason"),
            degraded=fields.flag("degraded"),
            created_at=fields.maybe_moment("created_at"),
            updated_at=fields.maybe_moment("updated_at"),
            reservations=fields.each("reservations", Reservation.from_wire),
            events=events,
            hold_until=fields.maybe_moment("hold_until"),
            may_end_at=fields.maybe_moment("may_end_at"),
            choice=fields.maybe_number("choice"),
            waiting=Waiting.from_wire(waiting) if (waiting := fields.value("waiting")) is not None else None,
            detail=fields.maybe_text("detail"),
        )


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry of a lease's history: who did what, when and why."""

    at: datetime
    actor: str | None
    action: str
    from_status: str | None
    to_status: str | None
    reason: str | None
    request_id: str | None
    detail: str | None = None
    """For administrators: the full reason, if ``reason`` leaves something out."""

    @classmethod
    def from_wire(cls, document: JsonValue) -> HistoryEntry:
        fields = Fields(document, "a history entry")
        return cls(
            at=fields.moment("at"),
            actor=fields.maybe_text("actor"),
            action=fields.loose_text("action"),
            from_status=fields.maybe_text("from_status"),
            to_status=fields.maybe_text("to_status"),
            reason=fields.maybe_text("reason"),
            request_id=fields.maybe_text("request_id"),
            detail=fields.maybe_text("detail"),
        )


@dataclass(frozen=True, slots=True)
class LeaseHost:
    """A host of a lease, as its owner sees it. ``status`` is ``planned``, ``held`` or ``released``."""

    id: str
    hypervisor_hostname: str
    availability_zone: str
    vcpus: int
    memory_mb: int
    local_gb: int
    properties: Mapping[str, str]
    reservation_id: str
    start_date: datetime
    end_date: datetime
    status: str

    @classmethod
    def from_wire(cls, document: JsonValue) -> LeaseHost:
        fields = Fields(document, "a host of a lease")
        return cls(
            id=fields.loose_text("id"),
            hypervisor_hostname=fields.loose_text("hypervisor_hostname"),
            availability_zone=fields.loose_text("availability_zone"),
            vcpus=fields.number("vcpus"),
            memory_mb=fields.number("memory_mb"),
            local_gb=fields.number("local_gb"),
            properties=_properties(fields.value("properties")),
            reservation_id=fields.text("reservation_id"),
            start_date=fields.moment("start_date"),
            end_date=fields.moment("end_date"),
            status=fields.loose_text("status"),
        )


@dataclass(frozen=True, slots=True)
class Host:
    """A compute host that can be reserved. The operator sets its ``properties``."""

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
    traits: tuple[str, ...]
    reservable: bool
    properties: Mapping[str, str]
    created_at: datetime | None
    updated_at: datetime | None
    #: Whether the operator allows reservations, and if not, why. None if the server does not say.
    enabled: bool | None = None
    disabled_reason: str | None = None
    #: Health as the cloud reports it: well, disabled, down or gone; since when, and why.
    health: str | None = None
    health_reason: str | None = None
    health_since: datetime | None = None
    #: The region of the host. None if the service has no regions, or the server does not say.
    region: str | None = None

    @classmethod
    def from_wire(cls, document: JsonValue) -> Host:
        fields = Fields(document, "a host")
        own = fields.value("properties")
        if not isinstance(own, Mapping):
            own = {name: fields.value(name) for name in fields if name not in _HOST_FIELDS}
        return cls(
            id=fields.loose_text("id"),
            hypervisor_hostname=fields.loose_text("hypervisor_hostname"),
            service_name=fields.loose_text("service_name"),
            hypervisor_type=fields.loose_text("hypervisor_type"),
            hypervisor_version=fields.number("hypervisor_version"),
            vcpus=fields.number("vcpus"),
            memory_mb=fields.number("memory_mb"),
            local_gb=fields.number("local_gb"),
            cpu_info=fields.loose_text("cpu_info"),
            availability_zone=fields.loose_text("availability_zone"),
            traits=fields.each("traits", str),
            reservable=fields.flag("reservable", default=True),
            properties=_properties(own),
            created_at=fields.maybe_moment("created_at"),
            updated_at=fields.maybe_moment("updated_at"),
            # Only beside "properties": at 1.0 these names may be properties that the operator has set.
            **(standing(fields) if "properties" in fields and "health" in fields else {}),
        )


def standing(fields: Fields) -> dict[str, Any]:
    """Return whether a resource is reservable, and why, as API 1.2 describes it for every type."""
    return {
        "region": fields.maybe_text("region"),
        "enabled": fields.flag("enabled", default=True),
        "disabled_reason": fields.maybe_text("disabled_reason"),
        "health": fields.text("health"),
        "health_reason": fields.maybe_text("health_reason"),
        "health_since": fields.maybe_moment("health_since"),
    }


@dataclass(frozen=True, slots=True)
class AffectedReservation:
    """A reservation of a resource that is closed or emptied: where it moves to, or why it stays."""

    id: str
    lease_id: str
    start_date: datetime
    end_date: datetime
    status: str
    moves_to: str | None
    reason: str | None

    @classmethod
    def from_wire(cls, document: JsonValue) -> AffectedReservation:
        fields = Fields(document, "an affected reservation")
        return cls(
            id=fields.text("id"),
            lease_id=fields.text("lease_id"),
            start_date=fields.moment("start_date"),
            end_date=fields.moment("end_date"),
            status=fields.text("status"),
            moves_to=fields.maybe_text("moves_to"),
            reason=fields.maybe_text("reason"),
        )


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


@dataclass(frozen=True, slots=True)
class HostProperty:
    """A property by which hosts can be chosen. ``private`` and ``values`` are sent only in detail."""

    name: str
    private: bool | None = None
    values: tuple[str, ...] | None = None

    @classmethod
    def from_wire(cls, document: JsonValue) -> HostProperty:
        fields = Fields(document, "a property")
        private = fields.value("private")
        return cls(
            # The answer to a change has the name under another key than the list.
            name=fields.maybe_text("property") or fields.text("property_name"),
            private=None if private is None else bool(private),
            values=None if fields.value("values") is None else fields.each("values", str),
        )


@dataclass(frozen=True, slots=True)
class ReservedPeriod:
    """The reservation and the period that a resource is allocated for."""

    id: str
    lease_id: str
    start_date: datetime
    end_date: datetime

    @classmethod
    def from_wire(cls, document: JsonValue) -> ReservedPeriod:
        fields = Fields(document, "an allocated reservation")
        return cls(
            id=fields.text("id"),
            lease_id=fields.text("lease_id"),
            start_date=fields.moment("start_date"),
            end_date=fields.moment("end_date"),
        )


@dataclass(frozen=True, slots=True)
class Allocation:
    """The reservations of one resource."""

    resource_id: str
    reservations: tuple[ReservedPeriod, ...]

    @classmethod
    def from_wire(cls, document: JsonValue) -> Allocation:
        fields = Fields(document, "an allocation")
        return cls(
            resource_id=fields.loose_text("resource_id"),
            reservations=fields.each("reservations", ReservedPeriod.from_wire),
        )


def _properties(document: JsonValue) -> Mapping[str, str]:
    if not isinstance(document, Mapping):
        return {}
    return {name: str(value) for name, value in document.items() if value is not None}
