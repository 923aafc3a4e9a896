"""Booking of flexible requests: the first choice that fits, in the first period that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from tenure import deadlines
from tenure.deadlines import SearchTooLong
from tenure.domain.actor import Actor
from tenure.domain.availability import Offers
from tenure.domain.errors import NotEnoughResources, OverQuota, TenureError
from tenure.domain.request import FlexibleRequest, LeaseRequest
from tenure.services.availability.periods import PeriodSearch
from tenure.services.availability.trials import Trials
from tenure.services.leases.intake import Completed

R = TypeVar("R")


class NoPeriod(Exception):
    """No period was found in which a request fits, or others took each that was found; ``found`` is the last search."""

    def __init__(self, found: Offers) -> None:
        super().__init__()
        self.found = found


#: The share of its time for which a choice is searched: the rest is for the refusal.
SEARCH_SHARE = 0.7
#: How often a period is searched for a choice, if others take the period before it is booked.
SEARCHES = 3


class FlexibleBooker:
    """Makes a fixed request of a flexible one, and books it."""

    def __init__(self, trials: Trials, periods: PeriodSearch) -> None:
        self._trials = trials
        self._periods = periods

    def book(self, actor: Actor, request: FlexibleRequest, book: Callable[[LeaseRequest], R]) -> R:
        """Return the result of ``book`` for the first choice that it can book, in its first period.

        Raises the errors of ``book`` and of the search. If nothing fits, that is the refusal of the first choice, with
        the reasons of all. Each choice has an equal share of the time that is left when it is tried; equal choices are
        tried once.
        """
        choices = request.choices
        first_equal = [choices.index(choice) for choice in choices]
        distinct = sorted(set(first_equal))
        refusals: dict[int, NotEnoughResources | OverQuota] = {}
        too_long: SearchTooLong | None = None
        for number, place in enumerate(distinct):
            share = deadlines.until_at_most(deadlines.seconds_left() / (len(distinct) - number))
            try:
                with _fields_of_choice(request, place), deadlines.within(share):
                    return self._book_choice(actor, request, place, book)
            except (NotEnoughResources, OverQuota) as error:
                refusals[place] = error
            except SearchTooLong as error:
                too_long = too_long or error
        if not refusals:
            assert too_long is not None
            raise too_long
        refusal = next(iter(refusals.values()))
        if isinstance(refusal, NotEnoughResources) and len(choices) > 1:
            shortfall = replace(refusal.shortfall, other_choices=len(choices) - 1)
            combined = refusal.of_request(shortfall)
            combined.additions["choices"] = [refusals[place].message for place in first_equal if place in refusals]
            raise combined from None
        raise refusal

    def _book_choice(self, actor: Actor, request: FlexibleRequest, place: int, book: Callable[[LeaseRequest], R]) -> R:
        earliest = self._periods.earliest(request, place)
        if request.window is None:
            return book(earliest)
        wanted = self._trials.want(actor, request.choices[place])
        try:
            return self.book_first(actor, request, place, wanted, book, share=SEARCH_SHARE)
        except NoPeriod as error:
            found = error.found
        latest = self._periods.starts(request.window).latest
        try:
            return book(earliest)
        except NotEnoughResources as error:
            shortfall = replace(error.shortfall, latest=latest, is_complete=found.is_complete)
            raise error.of_request(shortfall) from None

    def book_first(
        self,
        actor: Actor,
        request: FlexibleRequest,
        place: int,
        wanted: Completed,
        book: Callable[[LeaseRequest], R],
        *,
        share: float = 1.0,
    ) -> R:
        """Return the result of ``book`` for a choice, whose reservations are ``wanted``, in its first period.

        The search has a ``share`` of the time that is left.

        Raises ``NoPeriod``, and the errors of ``book``.
        """
        if request.window is None:
            return book(self._periods.earliest(request, place))
        found = Offers((), is_complete=True)
        searching = deadlines.until_at_most(share * deadlines.seconds_left())
        for _ in range(SEARCHES):
            with deadlines.within(searching):
                found = self._periods.first(actor, wanted, request.window, 1)
            if not found.offers:
                break
            [offer] = found.offers
            with suppress(NotEnoughResources):  # another request was faster
                return book(request.at(offer.starts_at, offer.ends_at, place))
        raise NoPeriod(found)

    def completed(self, actor: Actor, request: FlexibleRequest) -> FlexibleRequest:
        """Return the request with complete reservations of all choices. Raises the errors of ``Trials.want``."""
        choices = []
        for place, choice in enumerate(request.choices):
            with _fields_of_choice(request, place):
                choices.append(tuple(self._trials.want(actor, choice).reservations))
        return replace(request, choices=tuple(choices))


@contextmanager
def _fields_of_choice(request: FlexibleRequest, place: int) -> Iterator[None]:
    """Let errors name the fields of a choice as they are in the request."""
    try:
        yield
    except TenureError as error:
        if request.is_listed and error.field is not None and error.field.startswith("reservations"):
            error.field = f"any_of[{place}].{error.field}"
        raise
