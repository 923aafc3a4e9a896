"""Searches: when a lease fits, for how long, and how much of it. An offer books nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from tenureclient.documents import Document, document
from tenureclient.moments import DAYS_OF_THE_WEEK, Moment
from tenureclient.reservation_request import ReservationRequest
from tenureclient.transport import Answer, Transport, parsed
from tenureclient.wire import JsonObject, JsonValue, Version, moment_to_wire

WEEKDAYS = tuple(day[:3] for day in DAYS_OF_THE_WEEK)

_FEATURE = "searching for periods in which a lease fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWindow:
    """When a lease of a given length may start.

    It starts between ``earliest`` (default: the next full minute) and ``latest`` (default: 30 days later), on
    one of the ``weekdays`` (some of ``WEEKDAYS``), and at a time of day from ``starts_after`` to
    ``starts_before``. If the second is the earlier time, both are those of a night, which belongs to the day
    on which it begins. Days and times are those of ``time_zone``, such as ``Europe/Paris`` (default: UTC).
    """

    duration: timedelta
    earliest: Moment | None = None
    latest: datetime | None = None
    weekdays: Sequence[str] = ()
    starts_after: time | None = None
    starts_before: time | None = None
    time_zone: str | None = None

    def to_wire(self, _version: Version = Version.V1_3) -> dict[str, JsonValue]:
        dates = {"earliest": self.earliest, "latest": self.latest}
        clocks = {"starts_after": self.starts_after, "starts_before": self.starts_before}
        document: dict[str, JsonValue] = {
            "duration": int(self.duration.total_seconds()),
            **{name: moment_to_wire(moment, Version.V1_3) for name, moment in dates.items() if moment},
            **{name: f"{clock:%H:%M}" for name, clock in clocks.items() if clock is not None},
        }
        if self.weekdays:
            document["weekdays"] = list[JsonValue](self.weekdays)
        if self.time_zone is not None:
            document["time_zone"] = self.time_zone
        return document


@document("an offer")
class Offer(Document):
    """A period in which the lease fits now.

    ``left_over`` is, for each reservation, how many more units would fit besides.
    """

    start_date: datetime
    end_date: datetime
    left_over: tuple[int, ...]


@document("the offers")
class FirstOffers(Document):
    """The first periods, in order. Unless ``is_complete``, the server had no time to try all earlier ones.

    ``reason`` says why there are none; None if there are some, or if the server does not say.
    """

    offers: tuple[Offer, ...]
    is_complete: bool
    reason: str | None = None


@document("the longest offer")
class LongestOffer(Document):
    """The longest lease from ``start_date``. ``end_date`` is None if nothing limits its length.

    Unless ``is_complete``, the server had no time to try all longer ones.
    """

    start_date: datetime
    end_date: datetime | None
    is_complete: bool


@document("the largest offer")
class LargestOffer(Document):
    """How many units of the reservation fit in the period, and how many in each availability zone alone.

    Unless ``is_complete``, the server had no time to try all larger amounts. ``reason`` says why none fits;
    None if some do, or if the server does not say.
    """

    start_date: datetime
    end_date: datetime
    amount: int
    availability_zones: Mapping[str, int]
    is_complete: bool
    reason: str | None = None


class Offers:
    """Searches for leases that would fit. They need API 1.3, and leave no trace."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def first(
        self, reservations: Iterable[ReservationRequest], window: StartWindow, *, limit: int | None = None
    ) -> FirstOffers:
        """Return the first periods in a window in which all the reservations fit; no two of them overlap.

        ``limit`` is the largest number of periods, at most 100 (default: 3).
        """
        document: dict[str, JsonValue] = {"reservations": _wired(reservations), **window.to_wire()}
        if limit is not None:
            document["limit"] = limit
        return parsed(FirstOffers.from_wire, self._search("offers", document=document).body)

    def longest(self, reservations: Iterable[ReservationRequest], *, start: Moment | None = None) -> LongestOffer:
        """Return the longest lease of the reservations from a start (default: the next full minute).

        Raises ``NotEnoughResources`` if they do not fit at all.
        """
        document = {"reservations": _wired(reservations), **_start(start)}
        return parsed(LongestOffer.from_wire, self._search("offers", "longest", document=document).body)

    def largest(self, reservation: ReservationRequest, *, end: datetime, start: Moment | None = None) -> LargestOffer:
        """Return how many units of a reservation fit from a start (default: the next full minute) to an end.

        The amount in the reservation itself has no effect.
        """
        document = {
            "reservation": reservation.to_wire(Version.V1_3),
            "end_date": moment_to_wire(end, Version.V1_3),
            **_start(start),
        }
        return parsed(LargestOffer.from_wire, self._search("offers", "largest", document=document).body)

    def _search(self, *path: str, document: JsonObject) -> Answer:
        return self._transport.call("POST", *path, body=lambda _version: document, feature=_FEATURE, since=Version.V1_3)


def _wired(reservations: Iterable[ReservationRequest]) -> list[JsonValue]:
    return [reservation.to_wire(Version.V1_3) for reservation in reservations]


def _start(start: Moment | None) -> JsonObject:
    return {} if start is None else {"start_date": moment_to_wire(start, Version.V1_3)}
