"""The server's documents as values. Dates are timezone-aware and in UTC, whatever the API version."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime, timedelta
from typing import Annotated

from tenureclient.documents import Document, LooseText, document
from tenureclient.wire import Fields, JsonObject, JsonValue


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


def _property_name(fields: Fields, _name: str) -> str:
    """Return the name of a property. The answer to a change has it under another key than the list."""
    return fields.maybe_text("property") or fields.text("property_name")


@document("a property")
class HostProperty(Document):
    """A property by which hosts can be chosen. ``private`` and ``values`` are sent only in detail."""

    name: Annotated[str, _property_name]
    private: bool | None = None
    values: tuple[str, ...] | None = None
