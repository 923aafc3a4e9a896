"""Requests of callers. The API validates their form; the services judge their content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from enum import Enum
from typing import Generic, TypeVar

from tenure.domain.allocation import Booking
from tenure.domain.boot import Boot
from tenure.domain.lease import AllocationState, GivenDetails, LeaseDetails
from tenure.domain.period import Period
from tenure.domain.resource import Resource

T = TypeVar("T")


class Moment(Enum):
    """A point in time that the service resolves."""

    NOW = "now"
    THIS_MINUTE = "this minute"  # Blazar's ``now``: the start of the current minute


#: A date in a request.
When = datetime | Moment


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A request that may be repeated: ``key`` is the client's mark of it, ``digest`` tells it from other requests."""

    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A reservation to create; the model of the type has validated ``parameters``."""

    resource_type: str
    parameters: Mapping[str, object]
    #: The region in the request; if it names none, the services fill it in.
    region: str = ""
    #: Whether a value must be a number if the property is a number: from API 1.1 on.
    checks_values: bool = False
    #: The fact of the cloud that its type needs, if the caller has given it; it is checked at the start.
    fact: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class UserEvent:
    """An event that the owner defines: a time and a message. ``event_id`` identifies an existing event."""

    at: datetime
    message: str
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseRequest(LeaseDetails):
    """A lease to create."""

    starts_at: When
    ends_at: When
    before_end_at: datetime | Moment | None = None
    reservations: tuple[ReservationRequest, ...] = ()
    events: tuple[UserEvent, ...] = ()
    #: How long the booking is held until it must be confirmed. None creates the lease at once.
    hold_for: timedelta | None = None
    #: Which of the choices of a flexible request it is, counted from 0; None if there were no choices.
    choice: int | None = None
    #: The request of the servers that are made at the start, for the reservations with a ``server_name``.
    boot: Boot | None = None


@dataclass(frozen=True, slots=True)
class StartTimes:
    """The times at which a lease may start: on these days of the week (Monday is 0), between these times of the day.

    The days and times are those of the zone, a name of the time zone database. No days mean all days, no ``since`` the
    beginning of the day, and no ``until`` its end.
    """

    weekdays: tuple[int, ...] = ()
    since: time | None = None
    until: time | None = None
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Window:
    """When a lease of this length may start.

    It starts at ``earliest`` or later, by default from the next full minute on; at ``latest`` or earlier, by default
    within 30 days; and at one of the ``times``.
    """

    length: timedelta
    earliest: When | None = None
    latest: datetime | None = None
    times: StartTimes = StartTimes()


@dataclass(frozen=True, slots=True)
class FlexibleRequest(LeaseDetails):
    """A lease to create with the first of several choices of reservations that fit, in a period or in a window.

    Either ``window`` is given, and the lease gets the first period that fits in it; or both dates are.
    """

    #: The reservations, in the order of preference.
    choices: tuple[tuple[ReservationRequest, ...], ...]
    window: Window | None = None
    starts_at: When | None = None
    ends_at: When | None = None
    before_end_at: When | None = None
    events: tuple[UserEvent, ...] = ()
    hold_for: timedelta | None = None
    #: Whether the caller listed choices; otherwise there is one, which has no number.
    is_listed: bool = False
    #: Whether the lease waits if there is no room: up to the latest start of the window, or up to ``starts_at``.
    waits: bool = False
    #: How long a lease that has waited is held for its confirmation; None books it without.
    confirm_within: timedelta | None = None
    #: As in ``LeaseRequest``.
    boot: Boot | None = None

    def at(self, starts_at: When, ends_at: When, index: int) -> LeaseRequest:
        """Return the request for a choice and a period."""
        return LeaseRequest(
            **self.details(),
            starts_at=starts_at,
            ends_at=ends_at,
            before_end_at=self.before_end_at,
            reservations=self.choices[index],
            events=self.events,
            hold_for=self.hold_for,
            choice=index if self.is_listed else None,
            boot=self.boot,
        )


@dataclass(frozen=True, slots=True)
class ReservationChange:
    """The change of one reservation; parameters that are not named stay."""

    reservation_id: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    resource_type: str | None = None
    #: As in ``ReservationRequest``.
    checks_values: bool = False


@dataclass(frozen=True, slots=True)
class LeaseChange(GivenDetails):
    """The change of a lease; fields that are None stay."""

    starts_at: When | None = None
    ends_at: When | None = None
    before_end_at: When | None = None
    reservations: tuple[ReservationChange, ...] = ()
    #: All events of the owner, as they shall be.
    events: tuple[UserEvent, ...] | None = None

    @property
    def only_details(self) -> bool:
        return not self.is_empty and self == LeaseChange(**self.details())

    @property
    def is_empty(self) -> bool:
        return self == LeaseChange()


class LeaseOrder(Enum):
    """The sort keys of lists of leases; the id decides between equal ones."""

    CREATED_AT = "created_at"
    NAME = "name"
    STARTS_AT = "start_date"
    ENDS_AT = "end_date"


@dataclass(frozen=True, slots=True)
class LeaseQuery(GivenDetails):
    """A filter for leases, and a page of the list. ``marker`` is the id of the last lease of the page before.

    The leases have one of the ``statuses``; any, if there are none.
    """

    limit: int
    marker: str | None = None
    order: LeaseOrder = LeaseOrder.CREATED_AT
    descending: bool = False
    statuses: tuple[str, ...] = ()
    user_id: str | None = None
    project_id: str | None = None
    starts_before: datetime | None = None
    ends_after: datetime | None = None


class ResourceOrder(Enum):
    """The sort keys of lists of resources."""

    ID = "id"  # the order of registration
    NAME = "name"


@dataclass(frozen=True, slots=True)
class ResourceQuery:
    """A filter for resources, and a page of the list.

    ``marker`` is the external id of the last resource of the page before. ``facts`` must equal those of the cloud.
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
    """A filter for the reservations of resources, and a page of the list.

    Without ``lease_id`` and ``reservation_id`` it selects leases that have not ended; with either, all of its
    reservations. The list has every resource, also those without reservations, unless ``only_booked``.
    """

    resource_type: str
    limit: int
    marker: str | None = None
    lease_id: str | None = None
    reservation_id: str | None = None
    only_booked: bool = False


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; ``marker`` asks for the next page. It is None on the last page."""

    items: tuple[T, ...]
    marker: str | None


@dataclass(frozen=True, slots=True)
class ResourceBookings:
    """A resource, by its external id, and the reservations with allocations on it."""

    external_id: str
    bookings: tuple[Booking, ...]


@dataclass(frozen=True, slots=True)
class LeasedResource:
    """A resource that a lease has, had or will have, and the period."""

    resource: Resource
    reservation_id: str
    period: Period
    state: AllocationState


@dataclass(frozen=True, slots=True)
class AffectedAllocation:
    """An allocation on a resource that an operator closes or empties, and what happens to it."""

    reservation_id: str
    lease_id: str
    starts_at: datetime
    ends_at: datetime
    state: AllocationState
    #: The external id of the resource that it moves to; None if it stays.
    moves_to: str | None = None
    #: The reason why it stays.
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """A resource after an operator's change (or its preview), and what happens to the allocations on it."""

    resource: Resource
    affected: tuple[AffectedAllocation, ...] = ()


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much a project may book of one resource type (-1: no limit), and how much it has booked."""

    name: str
    limit: int
    used: int


@dataclass(frozen=True, slots=True)
class Allowances:
    """All limits of a project; hours are counted until ``hours_until``."""

    project_id: str
    hours_until: datetime
    allowances: tuple[Allowance, ...]


@dataclass(frozen=True, slots=True)
class ComponentHealth:
    """Whether a component of the service works, and if not, why."""

    component: str
    well: bool
    reason: str | None = None
