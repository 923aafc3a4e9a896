"""What is stored with an event beside its columns: a dataclass for each type of event, written as JSON.

A field that has its default is not written, so a payload of an earlier release reads like one of today.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter

from tenure.domain.lease import EventStatus, EventType, LeaseDetails
from tenure.store.events import StoredEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What any event may have."""

    #: The resources on which others were met since the last delay, by resource id.
    occupied: tuple[int, ...] = ()

    @classmethod
    def of(cls, stored: StoredEvent | None) -> Self:
        """Return the payload of an event; the empty one if there is no event."""
        payload: Self = _ADAPTERS[cls].validate_python((stored.payload if stored else None) or {})
        return payload

    def to_json(self) -> dict[str, Any]:
        written = _ADAPTERS[type(self)].dump_python(self, mode="json", by_alias=True)
        return {name: value for name, value in written.items() if value}


NO_PAYLOAD = Payload()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPayload(Payload):
    #: When the resources are clean, if an earlier lease has released them late.
    not_before: datetime | None = None
    #: Whether others were notified that the start is late.
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPayload(Payload):
    """The actions before the end: every lease has an end event, so they are recorded there."""

    #: The finished actions, by reservation id.
    finished: Annotated[Mapping[str, str], Field(alias="settled")] = field(default_factory=dict)
    #: The reservations with an action that was given up.
    failed: tuple[str, ...] = ()
    #: The reservations whose servers without an image were saved at the end itself.
    saved_at_end: tuple[str, ...] = ()
    #: Since when the end waits for pending actions.
    awaiting_since: datetime | None = None
    #: The reason that the lease shows once it has ended, and its full text: an action was given up, or the start was.
    outcome: str | None = None
    outcome_detail: str | None = None
    #: How often the actions were armed again, because the end has moved beyond them.
    repetition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeEndPayload(Payload):
    #: How long before the end the event was to be, if it is nearer because the lease is too short.
    distance: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparePayload(Payload):
    #: Whether the owner knows of the lease, and must be notified of whatever happens to it.
    promised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilePayload(Payload):
    #: The reservations that differ in the cloud from the ledger.
    drifted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyPayload(Payload):
    #: The text of the notification.
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseBefore(LeaseDetails):
    """The columns of a lease before an update."""

    starts_at: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UserEventBefore:
    """An event of the owner's before an update."""

    id: str
    due_at: datetime
    message: str | None
    status: EventStatus
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UserEventsBefore:
    """The owner's events before an update, and the ids of those that the update has added."""

    before: tuple[UserEventBefore, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsBefore:
    """What the end event had recorded of the actions before the end when an update armed them again."""

    finished: Mapping[str, str] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    outcome: str | None = None
    outcome_detail: str | None = None
    repetition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeBefore:
    """The event before the end before an update that has moved or added it."""

    event_id: str
    #: When it was due; None if the update has added the event.
    due_at: datetime | None = None
    status: EventStatus = EventStatus.UNDONE
    distance: timedelta | None = None
    #: None if the update has not armed the actions again.
    actions: ActionsBefore | None = None

    @property
    def had_run(self) -> bool:
        return self.status is not EventStatus.UNDONE


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePayload(Payload):
    """A change of a running lease that the cloud has to follow, and what undoes the change."""

    #: The new allocations, and those that they replace, by reservation id.
    added: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    replaced: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: The reservations that the change adds to the lease, and those that it drops.
    new: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    #: The lease before the change; None if its dates and name stay.
    before: LeaseBefore | None = None
    #: The earlier parameters, by reservation id, and the earlier due times, by event id.
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    due: Mapping[str, datetime] = field(default_factory=dict)
    #: The owner's events before the change; None if they stay.
    events: UserEventsBefore | None = None
    #: The event before the end before the change; None if it stays. Earlier releases have its time in ``due``.
    notice: NoticeBefore | None = None
    #: The reservations that the change binds to a subject.
    bound: tuple[str, ...] = ()
    #: Allocations that do not last beyond the end of the lease any more, and those that now do.
    ending: tuple[int, ...] = ()
    lasting: tuple[int, ...] = ()
    #: Whether the change was refused, and the cloud is restored to the lease before it.
    undoing: bool = False
    #: The refused parameters, by reservation id.
    refused: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def added_ids(self) -> frozenset[int]:
        return _ids_in(self.added)

    @property
    def replaced_ids(self) -> frozenset[int]:
        return _ids_in(self.replaced)


_TYPES: Mapping[EventType, type[Payload]] = {
    EventType.START: StartPayload,
    EventType.UPDATE: UpdatePayload,
    EventType.END: EndPayload,
    EventType.BEFORE_END: BeforeEndPayload,
    EventType.RECONCILE: ReconcilePayload,
    EventType.PREPARE: PreparePayload,
    EventType.NOTIFY: NotifyPayload,
}


def payload_of(stored: StoredEvent) -> Payload:
    """Return the payload of an event of any type."""
    return _TYPES.get(stored.event.event_type, Payload).of(stored)


def _ids_in(by_reservation: Mapping[str, tuple[int, ...]]) -> frozenset[int]:
    return frozenset(allocation_id for ids in by_reservation.values() for allocation_id in ids)


_ADAPTERS: dict[type[Payload], TypeAdapter[Any]] = {Payload: TypeAdapter(Payload)}
_ADAPTERS |= {payload_type: TypeAdapter(payload_type) for payload_type in _TYPES.values()}
