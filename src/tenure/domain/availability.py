"""What is free when: questions about capacity over time, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from tenure.domain.capacity import Capacity
from tenure.domain.request import ReservationRequest, When, Window


class Grouping(StrEnum):
    """Into which groups resources are divided."""

    NONE = "none"
    KIND = "kind"  # alike in their public properties, their capacity and their region
    ZONE = "zone"
    RESOURCE = "resource"  # each alone; for administrators
    PROJECT = "project"  # by who has reserved them; for administrators


@dataclass(frozen=True, slots=True)
class AvailabilityQuery:
    """A question about the resources that serve a type, from ``starts_at`` to ``ends_at``.

    ``resource_class`` is what is counted: ``WHOLE`` for the resources themselves, or a class of their capacity; None
    for what is usual for the type. The other fields select resources: None and empty ones select all. With ``step`` the
    answer has steps of this length, each with the values at its tightest instant.
    """

    resource_type: str
    starts_at: When | None = None
    ends_at: datetime | None = None
    resource_class: str | None = None
    region: str | None = None
    zone: str | None = None
    resource_properties: str = ""
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    step: timedelta | None = None
    group_by: Grouping = Grouping.NONE
    limit: int = 100
    marker: str | None = None


@dataclass(frozen=True, slots=True)
class AvailabilityStep:
    """Amounts that hold from ``starts_at`` until the next step.

    ``allocated`` is held by leases that have started, ``reserved`` promised to leases that have not. ``out_of_order``
    takes no reservations and is not in use. The rest is ``available``. In a group of a project the last two are None;
    to a member ``out_of_order`` is None if it would show the health of few resources, and counts as ``reserved``.
    """

    starts_at: datetime
    reserved: int
    allocated: int
    out_of_order: int | None = None
    available: int | None = None


@dataclass(frozen=True, slots=True)
class AvailabilityGroup:
    """The amounts of some resources over time, and what these resources have in common.

    ``resources`` is their number, ``total`` the amount that they have, and ``least`` the smallest available amount.
    """

    steps: tuple[AvailabilityStep, ...]
    resources: int | None = None
    total: int | None = None
    least: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    capacity: Capacity | None = None
    region: str | None = None
    zone: str | None = None
    resource_id: str | None = None
    resource_name: str | None = None
    project_id: str | None = None


@dataclass(frozen=True, slots=True)
class Availability:
    """The answer to an ``AvailabilityQuery``. ``step`` is None if the steps are exact.

    ``more`` if there are more groups. Those of resources can be asked for: the marker is the last resource's id.
    """

    resource_type: str
    resource_class: str
    starts_at: datetime
    ends_at: datetime
    step: timedelta | None
    groups: tuple[AvailabilityGroup, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class OfferQuery:
    """A search for the first periods in which all reservations of a lease fit."""

    reservations: tuple[ReservationRequest, ...]
    window: Window
    limit: int = 1


@dataclass(frozen=True, slots=True)
class Offer:
    """A period in which a lease fits now. ``left`` is, for each reservation, how many more units would fit besides."""

    starts_at: datetime
    ends_at: datetime
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offers:
    """The periods that were found, in order. ``is_complete`` if no earlier ones exist; False if the time ran out."""

    offers: tuple[Offer, ...]
    is_complete: bool
    #: Why there are none: the text of the refusal that a lease would get. None if there are some, or if it is unknown.
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LongestOffer:
    """The longest lease from a start: until ``ends_at``, or without limit if that is None."""

    starts_at: datetime
    ends_at: datetime | None
    is_complete: bool


@dataclass(frozen=True, slots=True)
class LargestOffer:
    """How many units of a reservation fit in a period, and how many of them in each zone alone."""

    starts_at: datetime
    ends_at: datetime
    amount: int
    zones: Mapping[str, int]
    is_complete: bool
    #: Why none fits: the text of the refusal that a lease of a single unit would get. None if some fit, or if unknown.
    reason: str | None = None


class Change(StrEnum):
    """What an alternative changes in a request."""

    START = "start"
    END = "end"
    AMOUNT = "amount"
    KIND = "kind"


@dataclass(frozen=True, slots=True)
class Alternative:
    """A request that would be met: another one in a single point.

    The period is that of the lease. ``reservation`` is the position of the changed reservation, and ``amount`` its
    number of units, or ``resource_properties`` the condition for resources of another kind.
    """

    change: Change
    starts_at: datetime
    ends_at: datetime
    reservation: int | None = None
    amount: int | None = None
    resource_properties: str | None = None
