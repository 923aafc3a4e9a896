"""Leases, their reservations and events, and the state machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tenure.domain.errors import InvalidState
from tenure.domain.reason import Reason, reason_from


class LeaseStatus(StrEnum):
    CREATING = "CREATING"  # booked, and held until it is confirmed, or what the answer must show is being made
    PENDING = "PENDING"  # waits for its start
    STARTING = "STARTING"  # the cloud is being made ready
    ACTIVE = "ACTIVE"  # its owner has what was promised
    UPDATING = "UPDATING"  # the cloud is being made to match a change
    TERMINATING = "TERMINATING"  # is being taken back
    TERMINATED = "TERMINATED"  # is over
    DELETING = "DELETING"  # is being taken back, then goes away
    ERROR = "ERROR"  # failed; the reason stands beside it
    DELETED = "DELETED"  # gone: known to the history only, never shown


class Action(StrEnum):
    """What moves a lease from one status to another."""

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

#: Where an action leads. What is not here is not possible.
NEXT: Mapping[tuple[LeaseStatus, Action], LeaseStatus] = {
    (_S.CREATING, _A.PREPARED): _S.PENDING,
    (_S.CREATING, _A.CONFIRM): _S.PENDING,  # where nothing has to be made first
    (_S.CREATING, _A.FAIL): _S.ERROR,  # what was promised already, and cannot be made
    (_S.CREATING, _A.END): _S.TERMINATING,
    (_S.CREATING, _A.DELETE): _S.DELETING,
    (_S.PENDING, _A.START): _S.STARTING,
    (_S.PENDING, _A.UPDATE): _S.PENDING,  # a plan changes in one transaction
    (_S.PENDING, _A.END): _S.TERMINATING,  # its start was missed
    (_S.PENDING, _A.DELETE): _S.DELETING,
    (_S.STARTING, _A.START): _S.STARTING,  # another attempt, perhaps by another worker
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
    (_S.ERROR, _A.END): _S.ERROR,  # what is there is taken back, for as long as it takes
    (_S.ERROR, _A.ENDED): _S.TERMINATED,
    (_S.ERROR, _A.FAIL): _S.ERROR,
    (_S.ERROR, _A.DELETE): _S.DELETING,
    (_S.DELETING, _A.END): _S.DELETING,  # tried again for as long as it takes: what was deleted must go
    (_S.DELETING, _A.DELETE): _S.DELETING,
    (_S.DELETING, _A.DELETED): _S.DELETED,
    (_S.DELETED, _A.DELETE): _S.DELETED,
}
STABLE = frozenset({_S.PENDING, _S.ACTIVE, _S.TERMINATED, _S.ERROR, _S.DELETED})
#: Somebody is at work; an update has to wait.
BUSY = frozenset({_S.CREATING, _S.STARTING, _S.UPDATING, _S.TERMINATING, _S.DELETING})


def next_status(status: LeaseStatus, action: Action) -> LeaseStatus:
    """Where ``action`` leads from ``status``; raises ``InvalidState`` where it leads nowhere."""
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
    UPDATE = "update_lease"  # ours: makes the cloud match a change of a running lease
    BEFORE_END = "before_end_lease"
    END = "end_lease"
    MEND = "mend_lease"  # ours: makes the cloud match a running lease again, after somebody changed it there
    PREPARE = "prepare_lease"  # ours: makes what clients must see as soon as the lease exists
    NOTIFY = "notify_lease"  # the owner's: has others told, in the owner's words
    HOLD = "hold_lease"  # ours: unmakes a lease that was booked for a while and that nobody has confirmed

    @property
    def rank(self) -> int:
        """The order of a lease's events that are due at the same time."""
        return list(EventType).index(self)

    @property
    def is_internal(self) -> bool:
        """Whether only the engine knows of it."""
        return self in {EventType.UPDATE, EventType.MEND, EventType.PREPARE, EventType.HOLD}


#: No lease has more events of its owner's.
MAX_USER_EVENTS = 20


class EventStatus(StrEnum):
    UNDONE = "UNDONE"
    IN_PROGRESS = "IN_PROGRESS"
    DONE = "DONE"
    ERROR = "ERROR"


class AllocationState(StrEnum):
    PLANNED = "planned"  # a plan: may move to another resource until the start is claimed
    HELD = "held"  # pinned by the claim of the start; the resource is, or is about to be, its owner's
    RELEASED = "released"  # given back; kept as history
    KEPT = "kept"  # its lease is over, and what its owner keeps of it still takes room


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
    #: What the owner wants others to be told, where the event is the owner's.
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
    #: What the cloud has made for it that clients are told of.
    effects: Mapping[str, object] = field(default_factory=dict)
    #: Where all that it has is; empty where there are no regions.
    region: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """The contract: who may use what, and when."""

    id: str
    name: str
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
    #: The trust with which to act as the owner, None where nothing is to be done in his name.
    trust_id: str | None = field(default=None, repr=False)
    #: All that is known of the reason, for administrators; None where ``status_reason`` is all.
    status_detail: str | None = None

    @property
    def reason(self) -> Reason | None:
        """Why it is as it is."""
        return reason_from(self.status_reason, self.status_detail)

    def event(self, event_type: EventType) -> Event | None:
        """The lease's event of that type; the latest where there are several."""
        return next((event for event in reversed(self.events) if event.event_type is event_type), None)

    @property
    def hold_until(self) -> datetime | None:
        """Until when the lease waits to be confirmed, before it is unmade; None for one that does not."""
        hold = self.event(EventType.HOLD)
        waits = hold is not None and hold.status in {EventStatus.UNDONE, EventStatus.IN_PROGRESS}
        return hold.due_at if hold is not None and waits and self.status is LeaseStatus.CREATING else None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """What happened to a lease: who, when, from which status to which, and why."""

    lease_id: str
    at: datetime
    actor: str
    action: str
    from_status: str | None
    to_status: str
    reason: str | None
    request_id: str | None
    #: All that is known of the reason, for administrators; None where ``reason`` is all.
    detail: str | None = None
    #: By which a page of the history goes on behind it; empty before it is written.
    id: str = ""
