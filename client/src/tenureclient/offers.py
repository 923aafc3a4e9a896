"""Searches: when a lease fits, for how long, and how much of it. An offer books nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, time, timedelta

from tenureclient.documents import Document, document
from tenureclient.moments import DAYS_OF_THE_WEEK, Moment
from tenureclient.reservation_request import ReservationRequest
from tenureclient.sent import fields_of
from tenureclient.transport import Answer, Calls
from tenureclient.wire import Feature, JsonValue, Version

WEEKDAYS = tuple(day[:3] for day in DAYS_OF_THE_WEEK)

_FEATURE = Feature("searching for periods in which a lease fits", Version.V1_3)


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
        return fields_of(asdict(self))


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


class Offers(Calls):
    """Searches for leases that would fit. They need API 1.3, and leave no trace."""

    def first(
        self, reservations: Iterable[ReservationRequest], window: StartWindow, *, limit: int | None = None
    ) -> FirstOffers:
        """Return the first periods in a window in which all the reservations fit; no two of them overlap.

        ``limit`` is the largest number of periods, at most 100 (default: 3).
        """
        answer = self._search(reservations=list(reservations), **window.to_wire(), limit=limit)
        return answer.read(FirstOffers.from_wire)

    def longest(self, reservations: Iterable[ReservationRequest], *, start: Moment | None = None) -> LongestOffer:
        """Return the longest lease of the reservations from a start (default: the next full minute).

        Raises ``NotEnoughResources`` if they do not fit at all.
        """
        answer = self._search("longest", reservations=list(reservations), start_date=start)
        return answer.read(LongestOffer.from_wire)

    def largest(self, reservation: ReservationRequest, *, end: datetime, start: Moment | None = None) -> LargestOffer:
        """Return how many units of a reservation fit from a start (default: the next full minute) to an end.

        The amount in the reservation itself has no effect.
        """
        answer = self._search("largest", reservation=reservation, end_date=end, start_date=start)
        return answer.read(LargestOffer.from_wire)

    def _search(self, *path: str, **fields: object) -> Answer:
        body = fields_of(fields)
        return self._transport.call("POST", "offers", *path, body=lambda _version: body, feature=_FEATURE)
