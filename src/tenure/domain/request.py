"""What callers ask for, validated in form by the API and judged by the services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Generic, TypeVar

from tenure.domain.allocation import Booking
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.domain.resource import Resource

T = TypeVar("T")


class Moment(Enum):
    """A point in time that the service itself looks up."""

    NOW = "now"
    THIS_MINUTE = "this minute"  # Blazar's ``now``: the minute that has begun


#: A date as asked for.
When = datetime | Moment


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A reservation to be made; ``parameters`` have passed the model of the type."""

    resource_type: str
    parameters: Mapping[str, object]
    #: As the request names it; the services say which it is where it names none.
    region: str = ""
    #: Whether a value that is asked for must be a number where the property is: from API 1.1 on.
    checks_values: bool = False


@dataclass(frozen=True, slots=True)
class UserEvent:
    """An event that an owner defines: when others are to be told, and what; ``event_id`` where there is one already."""

    at: datetime
    message: str
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A lease to be made."""

    name: str
    starts_at: When
    ends_at: When
    before_end_at: datetime | Moment | None = None
    reservations: tuple[ReservationRequest, ...] = ()
    events: tuple[UserEvent, ...] = ()
    #: For how long it is booked without being a lease yet; it is one once that is confirmed. None for one at once.
    hold_for: timedelta | None = None


@dataclass(frozen=True, slots=True)
class ReservationChange:
    """What changes in one reservation; parameters that are not named stay."""

    reservation_id: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    resource_type: str | None = None
    #: As in ``ReservationRequest``.
    checks_values: bool = False


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """What changes in a lease; None stays as it is."""

    name: str | None = None
    starts_at: When | None = None
    ends_at: When | None = None
    before_end_at: When | None = None
    reservations: tuple[ReservationChange, ...] = ()
    #: All that the owner has defined, as it is to be.
    events: tuple[UserEvent, ...] | None = None

    @property
    def only_name(self) -> bool:
        return self.name is not None and self == LeaseChange(name=self.name)

    @property
    def is_empty(self) -> bool:
        return self == LeaseChange()


class LeaseOrder(Enum):
    """What lists of leases can be sorted by; equal ones by id."""

    CREATED_AT = "created_at"
    NAME = "name"
    STARTS_AT = "start_date"
    ENDS_AT = "end_date"


@dataclass(frozen=True, slots=True)
class LeaseQuery:
    """Which leases to list, and which page of them. ``marker`` is the id of the last lease of the page before."""

    limit: int
    marker: str | None = None
    order: LeaseOrder = LeaseOrder.CREATED_AT
    descending: bool = False
    name: str | None = None
    status: str | None = None
    user_id: str | None = None
    project_id: str | None = None
    starts_before: datetime | None = None
    ends_after: datetime | None = None


class ResourceOrder(Enum):
    """What lists of resources can be sorted by."""

    ID = "id"  # the order of registration
    NAME = "name"


@dataclass(frozen=True, slots=True)
class ResourceQuery:
    """Which resources to list, and which page of them.

    ``marker`` is the external id of the last one seen. ``facts`` are what the cloud must say of each.
    """

    resource_type: str
    limit: int
    marker: str | None = None
    order: ResourceOrder = ResourceOrder.ID
    descending: bool = False
    name: str | None = None
    region: str | None = None
    reservable: bool | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BookingQuery:
    """Whose parts in which resources to list.

    Without ``lease_id`` and ``reservation_id`` those of leases that have not ended; with one of them, all of its. Every
    resource is listed, also those without a part, unless ``only_booked``.
    """

    resource_type: str
    limit: int
    marker: str | None = None
    lease_id: str | None = None
    reservation_id: str | None = None
    only_booked: bool = False


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; ``marker`` asks for the next one, None on the last."""

    items: tuple[T, ...]
    marker: str | None


@dataclass(frozen=True, slots=True)
class ResourceBookings:
    """A resource, by its external id, and who has a part in it."""

    external_id: str
    bookings: tuple[Booking, ...]


@dataclass(frozen=True, slots=True)
class LeasedResource:
    """A resource that a lease has, had or will have, and when."""

    resource: Resource
    reservation_id: str
    period: Period
    state: AllocationState


@dataclass(frozen=True, slots=True)
class AffectedPart:
    """A reservation's part in a resource that an operator closes or empties, and what becomes of it."""

    reservation_id: str
    lease_id: str
    starts_at: datetime
    ends_at: datetime
    state: AllocationState
    #: The external id of the resource that it moves to, None where it stays.
    moves_to: str | None = None
    #: Why it stays.
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """A resource after what an operator did to it, or would do, and what becomes of the parts in it."""

    resource: Resource
    parts: tuple[AffectedPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much of something a project may have booked, -1 for as much as there is, and how much it has."""

    name: str
    limit: int
    used: int


@dataclass(frozen=True, slots=True)
class Allowances:
    """All that can be limited for a project; hours are those until ``hours_until``."""

    project_id: str
    hours_until: datetime
    allowances: tuple[Allowance, ...]


@dataclass(frozen=True, slots=True)
class PartHealth:
    """Whether one part of the service is well, and if not, what ails it."""

    part: str
    well: bool
    reason: str | None = None
