"""Leases as values: what the server tells of them, and what can be said of them in a request.

A field of a lease is declared here only: how it is read and shown, under which name it is sent, and by which options
it is given. Dates are timezone-aware and in UTC, whatever the API version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, TypedDict

from tenureclient.documents import Document, LooseText, document
from tenureclient.moments import Moment, parse_length
from tenureclient.offers import StartWindow
from tenureclient.options import Option
from tenureclient.reservation_request import (
    BootRequest,
    OwnEvent,
    ReservationChange,
    ReservationRequest,
    names_classes,
    restricts_hosts,
)
from tenureclient.sent import Sent, written
from tenureclient.wire import Feature, Fields, JsonObject, JsonValue, Version


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
    choices = fields.items(name, lambda choice: choice if isinstance(choice, list) else [choice])
    return tuple(
        tuple(Fields(reservation, "a reservation of a choice").to_json() for reservation in choice)
        for choice in choices
    )


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
    events = fields.items("events", Event.from_wire)
    own = (event.time for event in events if event.event_type == "before_end_lease")
    return next(own, None) if fields.value(name) is None else fields.moment(name)


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


@document("a cost")
class Cost(Document):
    """What a lease takes of one kind of resource, under the name of its limit.

    ``amount`` is the number of units at any one time. ``hours`` are those of all units together over the
    whole lease, where a begun hour counts; ``hours_before`` are those without the change.
    """

    name: str
    amount: int
    hours: int
    hours_before: int


@document("a limit")
class ExpectedLimit(Document):
    """A limit of the project (-1: no limit), its usage, and the usage that it would have."""

    name: str
    limit: int
    used: int
    would_use: int


@document("a dry run")
class DryRun(Document):
    """A lease as it would be, its cost, and the limits of its project. Ids of new things are made up.

    ``unasked_filters`` are the rules of the site that were not asked, since they keep accounts.
    """

    lease: Lease
    cost: tuple[Cost, ...]
    limits: tuple[ExpectedLimit, ...]
    unasked_filters: tuple[str, ...]


def _choices_to_wire(choices: Sequence[Sequence[ReservationRequest]], version: Version) -> list[JsonValue]:
    return [{"reservations": written(choice, version)} for choice in choices]


def _any_names_classes(choices: Iterable[Iterable[ReservationRequest]]) -> bool:
    return any(map(names_classes, choices))


HOLD_FEATURE = Feature("holding a lease until it is confirmed", Version.V1_2)
_FLEXIBLE = Feature("a lease with an open start, or with choices", Version.V1_3)
_WAITING = Feature("the waiting list", Version.V1_3)
_BOOT = Feature("making servers at the start of a lease", Version.V1_4)
_EVENTS = Sent("events", feature=Feature("notifications at moments of your choice", Version.V1_2))
_CLASSES = Feature("naming resource classes, or a kind of hosts for a server,", Version.V1_4)
_RESERVATIONS = Sent(
    "reservations",
    feature=Feature("naming a region, a zone or a kind of hosts", Version.V1_2),
    needs=restricts_hosts,
    later=((_CLASSES, names_classes),),
)


class LeaseFields(TypedDict, total=False):
    """What the owner of a lease may say of it when it is made, and change later. What is None is not said."""

    before_end: Annotated[datetime | None, Sent("before_end_date")]


class NewLease(LeaseFields, total=False):
    """What can be said of a lease when it is made; what needs a newer server comes last."""

    start: Annotated[Moment | None, Sent("start_date")]
    end: Annotated[datetime | None, Sent("end_date")]
    reservations: Annotated[Iterable[ReservationRequest], _RESERVATIONS]
    events: Annotated[Iterable[OwnEvent], _EVENTS]
    hold_for: Annotated[
        timedelta | None,
        Sent("hold_for", feature=HOLD_FEATURE),
        Option(
            "--hold",
            metavar="DURATION",
            read=parse_length,
            help="Book for this long only, at most 1h, unless 'lease confirm' follows; for scripts",
        ),
    ]
    window: Annotated[StartWindow | None, Sent(None, feature=_FLEXIBLE)]
    any_of: Annotated[
        Iterable[Iterable[ReservationRequest]],
        Sent("any_of", _choices_to_wire, _FLEXIBLE, later=((_CLASSES, _any_names_classes),)),
    ]
    wait_if_full: Annotated[
        bool,
        Sent("if_full", lambda _flag, _version: "wait", _WAITING),
        Option(
            "--wait-if-full",
            flag=True,
            help="Put the lease on the waiting list if there is no room, up to its latest start",
        ),
    ]
    confirm_within: Annotated[
        timedelta | None,
        Sent("confirm_within", feature=_WAITING),
        Option(
            "--confirm-within",
            metavar="DURATION",
            read=parse_length,
            help="With --wait-if-full: once there is room, hold it so long for 'lease confirm', at most 7d",
        ),
    ]
    boot: Annotated[
        BootRequest | None,
        Sent("boot", feature=_BOOT),
        Option(
            "--boot",
            metavar="FILE",
            help="Make the server of each --reservation with a server_name at the start, by the request to Nova in this"
            ' file, JSON such as {"server": {"flavorRef": ...}} (- is the standard input)',
        ),
    ]


class LeaseChange(LeaseFields, total=False):
    """What can be changed of a lease; what is absent stays."""

    name: Annotated[str | None, Option("--name", help="New name for the lease")]
    start: Annotated[Moment | None, Sent("start_date")]
    end: Annotated[Moment | None, Sent("end_date")]
    reservations: Annotated[Iterable[ReservationChange], _RESERVATIONS]
    events: Annotated[Iterable[OwnEvent] | None, replace(_EVENTS, even_empty=True)]


class LeaseFilter(TypedDict, total=False):
    """Which leases to list; what is None does not restrict the list."""

    name: Annotated[str | None, Option("--name", help="Only leases of this name")]
    status: Annotated[str | None, Option("--status", read=str.upper, help="Only leases in this status, such as ACTIVE")]
    user_id: Annotated[str | None, Option("--user", "USER", help="Only leases of this user: an id or a name")]
    project_id: Annotated[
        str | None, Option("--project", "PROJECT", help="Only leases of this project: an id or a name")
    ]
    starts_before: Annotated[
        datetime | None, Option("--starts-before", "DATE", date=True, help="Only leases that start before this")
    ]
    ends_after: Annotated[
        datetime | None, Option("--ends-after", "DATE", date=True, help="Only leases that end after this")
    ]


#: The fields by which lists can be sorted.
SORT_KEYS = ("created_at", "name", "start_date", "end_date")
#: Whether a lease matches a filter that is no field of the lease.
_MATCHES: Mapping[str, Callable[[Lease, datetime], bool]] = {
    "starts_before": lambda lease, date: lease.start_date < date,
    "ends_after": lambda lease, date: lease.end_date > date,
}


def matches(lease: Lease, filters: Mapping[str, Any]) -> bool:
    """Whether the lease matches the filters. API 1.0 ignores filters, so the client applies them itself."""
    return all(
        _MATCHES[name](lease, value) if name in _MATCHES else getattr(lease, name) == value
        for name, value in filters.items()
    )
