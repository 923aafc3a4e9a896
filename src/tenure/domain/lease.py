"""Leases, their reservations and events, and the state machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from tenure.domain.errors import InvalidState
from tenure.domain.reason import Reason, reason_from


class LeaseStatus(StrEnum):
    WAITING = "WAITING"  # on the waiting list: it holds nothing until there is room for it
    CREATING = "CREATING"  # booked; waits for its confirmation, or for cloud resources that the answer must show
    PENDING = "PENDING"  # waits for its start
    STARTING = "STARTING"  # the cloud is being prepared
    ACTIVE = "ACTIVE"  # the owner can use the resources
    UPDATING = "UPDATING"  # the cloud is being made to match a change
    TERMINATING = "TERMINATING"  # resources are being taken back
    TERMINATED = "TERMINATED"  # ended
    DELETING = "DELETING"  # resources are being taken back; then the lease is removed
    ERROR = "ERROR"  # failed; status_reason says why
    DELETED = "DELETED"  # removed: visible in the history only


class Action(StrEnum):
    """An action that moves a lease from one status to another."""

    OFFER = "offer"
    BOOK = "book"
    PREPARED = "prepared"
    CONFIRM = "confirm"
    START = "start"
    STARTED = "started"
    UPDATE = "update"
    UPDATED = "updated"
    END = "end"
    ENDED = "ended"
    FAIL = "fail"
    DELETE = "delete"
    DELETED = "deleted"


_S = LeaseStatus
_A = Action

#: The status after each action. A pair that is missing here is not allowed.
NEXT: Mapping[tuple[LeaseStatus, Action], LeaseStatus] = {
    (_S.WAITING, _A.OFFER): _S.CREATING,  # booked; it must be confirmed, or prepared in the cloud
    (_S.WAITING, _A.BOOK): _S.PENDING,
    (_S.WAITING, _A.FAIL): _S.ERROR,  # there was no room up to its latest start
    (_S.WAITING, _A.DELETE): _S.DELETING,
    (_S.CREATING, _A.PREPARED): _S.PENDING,
    (_S.CREATING, _A.CONFIRM): _S.PENDING,  # if nothing has to be created first
    (_S.CREATING, _A.FAIL): _S.ERROR,  # the lease is promised already, but its resources cannot be created
    (_S.CREATING, _A.END): _S.TERMINATING,
    (_S.CREATING, _A.DELETE): _S.DELETING,
    (_S.PENDING, _A.START): _S.STARTING,
    (_S.PENDING, _A.UPDATE): _S.PENDING,  # the change takes a single transaction
    (_S.PENDING, _A.END): _S.TERMINATING,  # the start was missed
    (_S.PENDING, _A.DELETE): _S.DELETING,
    (_S.STARTING, _A.START): _S.STARTING,  # another attempt, possibly by another worker
    (_S.STARTING, _A.STARTED): _S.ACTIVE,
    (_S.STARTING, _A.END): _S.TERMINATING,
    (_S.STARTING, _A.FAIL): _S.ERROR,
    (_S.STARTING, _A.DELETE): _S.DELETING,
    (_S.ACTIVE, _A.UPDATE): _S.UPDATING,
    (_S.ACTIVE, _A.END): _S.TERMINATING,
    (_S.ACTIVE, _A.DELETE): _S.DELETING,
    (_S.UPDATING, _A.UPDATE): _S.UPDATING,
    (_S.UPDATING, _A.UPDATED): _S.ACTIVE,
    (_S.UPDATING, _A.END): _S.TERMINATING,
    (_S.UPDATING, _A.DELETE): _S.DELETING,
    (_S.TERMINATING, _A.END): _S.TERMINATING,
    (_S.TERMINATING, _A.ENDED): _S.TERMINATED,
    (_S.TERMINATING, _A.FAIL): _S.ERROR,
    (_S.TERMINATING, _A.DELETE): _S.DELETING,
    (_S.TERMINATED, _A.DELETE): _S.DELETING,
    (_S.ERROR, _A.END): _S.ERROR,  # resources are taken back, retried until that succeeds
    (_S.ERROR, _A.ENDED): _S.TERMINATED,
    (_S.ERROR, _A.FAIL): _S.ERROR,
    (_S.ERROR, _A.DELETE): _S.DELETING,
    (_S.DELETING, _A.END): _S.DELETING,  # retried until it succeeds: a deleted lease must go
    (_S.DELETING, _A.DELETE): _S.DELETING,
    (_S.DELETING, _A.DELETED): _S.DELETED,
    (_S.DELETED, _A.DELETE): _S.DELETED,
}
#: A worker is changing the lease; an update has to wait.
BUSY = frozenset({_S.CREATING, _S.STARTING, _S.UPDATING, _S.TERMINATING, _S.DELETING})


def next_status(status: LeaseStatus, action: Action) -> LeaseStatus:
    """Return the status after ``action`` in ``status``; raise ``InvalidState`` if it is not allowed."""
    try:
        return NEXT[status, action]
    except KeyError:
        raise InvalidState(f"A lease that is {status} cannot {action}.") from None


class ReservationStatus(StrEnum):
    PENDING = "pending"
    ACTIVE = "active"
    DELETED = "deleted"
    ERROR = "error"


class EventType(StrEnum):
    START = "start_lease"
    UPDATE = "update_lease"  # internal: applies a change of a running lease to the cloud
    BEFORE_END = "before_end_lease"
    END = "end_lease"
    RECONCILE = "reconcile_lease"  # internal: restores in the cloud what others have changed
    PREPARE = "prepare_lease"  # internal: creates what clients must see as soon as the lease exists
    NOTIFY = "notify_lease"  # the owner's: sends a notification with the owner's message
    HOLD = "hold_lease"  # internal: removes a held lease that was not confirmed in time
    WAIT = "wait_lease"  # internal: fails a waiting lease for which there was no room in time

    @property
    def rank(self) -> int:
        """The order of a lease's events that are due at the same time."""
        return list(EventType).index(self)

    @property
    def is_internal(self) -> bool:
        """Whether the event is hidden from users."""
        return self in {EventType.UPDATE, EventType.RECONCILE, EventType.PREPARE, EventType.HOLD, EventType.WAIT}


#: The maximum number of events that an owner can define for a lease.
MAX_USER_EVENTS = 20


class EventStatus(StrEnum):
    UNDONE = "UNDONE"
    IN_PROGRESS = "IN_PROGRESS"
    DONE = "DONE"
    ERROR = "ERROR"


class AllocationState(StrEnum):
    PLANNED = "planned"  # may move to another resource until the start event is claimed
    HELD = "held"  # pinned by the claim of the start event; the owner has the resource, or is about to get it
    RELEASED = "released"  # given back; kept as history
    KEPT = "kept"  # the lease is over, and what its owner keeps still takes room
    LAPSED = "lapsed"  # the past of a plan that moved after its lease should have started: booked, and never had


#: The states of allocations that are history, and take no room.
PAST = frozenset({AllocationState.RELEASED, AllocationState.LAPSED})


@dataclass(frozen=True, slots=True)
class Event:
    """A timed action of a lease."""

    id: str
    lease_id: str
    event_type: EventType
    due_at: datetime
    status: EventStatus
    attempts: int
    created_at: datetime
    updated_at: datetime | None = None
    #: The text of the notification, if the owner has defined the event.
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """One request inside a lease. ``parameters`` belong to its resource type."""

    id: str
    lease_id: str
    resource_type: str
    status: ReservationStatus
    parameters: Mapping[str, object]
    missing_resources: bool
    resources_changed: bool
    created_at: datetime
    updated_at: datetime | None = None
    #: The cloud resources that were created for it, as far as clients see them.
    effects: Mapping[str, object] = field(default_factory=dict)
    #: The region of all its resources; empty if there are no regions.
    region: str = ""


@dataclass(frozen=True, slots=True)
class LeaseDetails:
    """What an owner says about a lease; nothing that the service does depends on it.

    Requests, leases and the table of leases have these fields, under the same names. A further field has a default, is
    given by name only (``kw_only``), and is a field of ``GivenDetails``, too.
    """

    name: str

    def details(self) -> dict[str, Any]:
        """Return the details by name."""
        return {detail.name: getattr(self, detail.name) for detail in fields(LeaseDetails)}


@dataclass(frozen=True, slots=True)
class GivenDetails:
    """Some details of a lease, to set or to filter by; fields that are None are not given."""

    name: str | None = field(default=None, kw_only=True)

    def details(self) -> dict[str, Any]:
        """Return the given details by name."""
        given = {detail.name: getattr(self, detail.name) for detail in fields(GivenDetails)}
        return {name: value for name, value in given.items() if value is not None}


#: The names of the details of a lease.
DETAILS = frozenset(detail.name for detail in fields(LeaseDetails))


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a lease on the waiting list waits for.

    ``choices`` are the reservations of each choice: the type, the region and the parameters of each, as JSON values.
    """

    #: When it starts at the latest.
    latest: datetime
    choices: tuple[tuple[Mapping[str, object], ...], ...]
    #: How long it is held for its confirmation once there is room; None books it without.
    confirm_within: timedelta | None = None
    #: How many leases wait before it for the same resource types; only if that was asked for.
    ahead: int | None = None


@dataclass(frozen=True, slots=True)
class Lease(LeaseDetails):
    """The user's contract: who may use which resources, and when."""

    id: str
    project_id: str
    user_id: str
    starts_at: datetime
    ends_at: datetime
    status: LeaseStatus
    status_reason: str | None
    degraded: bool
    version: int
    reservations: tuple[Reservation, ...]
    events: tuple[Event, ...]
    created_at: datetime
    updated_at: datetime | None = None
    #: The trust for acting as the owner; None if nothing has to be done in the owner's name.
    trust_id: str | None = field(default=None, repr=False)
    #: The full reason, for administrators; None if ``status_reason`` is complete.
    status_detail: str | None = None
    #: Until when it may be prolonged; only if that was asked for, and None if nothing limits it.
    may_end_at: datetime | None = None
    #: Which of the choices of its request it has, counted from 0; None if the request had no choices.
    choice: int | None = None
    #: What it waits for, if it is on the waiting list.
    waiting: Waiting | None = None

    @property
    def reason(self) -> Reason | None:
        """The reason of the status."""
        return reason_from(self.status_reason, self.status_detail)

    def event(self, event_type: EventType) -> Event | None:
        """Return the lease's event of that type; the latest if there are several."""
        return next((event for event in reversed(self.events) if event.event_type is event_type), None)

    @property
    def hold_until(self) -> datetime | None:
        """When the lease expires unless it is confirmed; None if it needs no confirmation."""
        hold = self.event(EventType.HOLD)
        waits = hold is not None and hold.status in {EventStatus.UNDONE, EventStatus.IN_PROGRESS}
        return hold.due_at if hold is not None and waits and self.status is LeaseStatus.CREATING else None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One change of a lease: who made it, when, from which status to which, and why."""

    lease_id: str
    at: datetime
    actor: str
    action: str
    from_status: str | None
    to_status: str
    reason: str | None
    request_id: str | None
    #: The full reason, for administrators; None if ``reason`` is complete.
    detail: str | None = None
    #: The marker for the page after this entry; empty until it is written.
    id: str = ""
