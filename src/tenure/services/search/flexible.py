"""Booking of flexible requests: the first choice that fits, in the first period that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TypeVar

from tenure import deadlines
from tenure.clock import Clock
from tenure.deadlines import SearchTooLong
from tenure.domain.actor import Actor
from tenure.domain.errors import NotEnoughResources, OverQuota, TenureError
from tenure.domain.lease import Lease
from tenure.domain.request import FlexibleRequest, LeaseRequest, ReservationRequest
from tenure.domain.resource import Resource
from tenure.planning.snapshot import Snapshot
from tenure.services.booking.admission import NoPeriod, Proposal
from tenure.services.booking.new_leases import BookedLease, LeaseToBook, NewLease, NewLeases, is_large
from tenure.services.booking.precedence import LAST, Precedence
from tenure.services.context import new_id
from tenure.services.enforcement.filters import Question
from tenure.services.leases.intake import Completed
from tenure.services.search.attempts import AttemptFactory
from tenure.services.search.periods import PeriodSearch
from tenure.store.database import Transaction

R = TypeVar("R")

#: The share of its time for which a choice is searched: the rest is for the refusal.
SEARCH_SHARE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenProposal(Proposal):
    """What the request for a choice would write, with the lease that it has become."""

    request: NewLease


@dataclass(frozen=True, slots=True)
class ChosenLease(LeaseToBook[ChosenProposal]):
    """The request to book a choice of a flexible request, in the first period in which it fits."""

    booker: FlexibleBooker
    actor: Actor
    request: FlexibleRequest
    #: The position of the choice, and its reservations.
    position: int
    completed: Completed
    #: When it came in.
    at: datetime
    lease_id: str
    trust_id: str | None = None
    #: For a lease that is on the waiting list: the lease, and its precedence.
    waiting: Lease | None = None
    precedence: Precedence = LAST
    #: Until when a period is searched; None for as long as the request may take.
    until: deadlines.Deadline | None = None

    @property
    def project_id(self) -> str:
        return self.actor.project_id

    @property
    def now(self) -> datetime:
        return self.at

    @property
    def is_large(self) -> bool:
        return is_large(self.completed.demands)

    @property
    def is_search(self) -> bool:
        return self.waiting is None

    @property
    def reservations(self) -> Sequence[ReservationRequest]:
        return self.completed.reservations

    def with_trust(self, trust_id: str | None) -> ChosenLease:
        return replace(self, trust_id=trust_id)

    def propose(self, snapshot: Snapshot) -> ChosenProposal:
        """Raises ``NoPeriod`` if no period is found."""
        request = self.booker.first(self, snapshot)
        proposal = request.propose(snapshot)
        values = {attribute.name: getattr(proposal, attribute.name) for attribute in fields(Proposal)}
        return ChosenProposal(**values, request=request)

    def question(self, proposal: ChosenProposal, resources: Mapping[int, Resource]) -> Question:
        return proposal.request.question(proposal, resources)

    def begin(self, tx: Transaction, proposal: ChosenProposal) -> BookedLease | None:
        return proposal.request.begin(tx, proposal)

    def finish(self, tx: Transaction, proposal: ChosenProposal) -> BookedLease:
        return proposal.request.finish(tx, proposal)


class FlexibleBooker:
    """Makes fixed requests of a flexible one, and has them booked."""

    def __init__(
        self, clock: Clock, attempt_factory: AttemptFactory, periods: PeriodSearch, new_leases: NewLeases
    ) -> None:
        self._clock = clock
        self._attempt_factory = attempt_factory
        self._periods = periods
        self._new_leases = new_leases

    def book(
        self,
        actor: Actor,
        request: FlexibleRequest,
        book: Callable[[ChosenLease, LeaseRequest], R],
        *,
        lease_id: str | None = None,
    ) -> R:
        """Return the result of ``book`` for the first choice that it can book, in its first period.

        ``book`` gets the request for a choice, and the lease that is asked for, at its first possible start. Raises the
        errors of ``book`` and of the search. If nothing fits, that is the refusal of the first choice, with the reasons
        of all. Each choice has an equal share of the time that is left when it is tried; equal choices are tried once.
        """
        choices = request.choices
        first_equal = [choices.index(choice) for choice in choices]
        distinct = sorted(set(first_equal))
        refusals: dict[int, NotEnoughResources | OverQuota] = {}
        too_long: SearchTooLong | None = None
        for number, position in enumerate(distinct):
            share = deadlines.until_at_most(deadlines.seconds_left() / (len(distinct) - number))
            try:
                with _fields_of_choice(request, position), deadlines.within(share):
                    return self._book_choice(actor, request, position, book, lease_id)
            except (NotEnoughResources, OverQuota) as error:
                refusals[position] = error
            except SearchTooLong as error:
                too_long = too_long or error
        if not refusals:
            assert too_long is not None
            raise too_long
        refusal = next(iter(refusals.values()))
        if isinstance(refusal, NotEnoughResources) and len(choices) > 1:
            shortfall = replace(refusal.shortfall, other_choices=len(choices) - 1)
            combined = refusal.of_request(shortfall)
            combined.additions["choices"] = [refusals[index].message for index in first_equal if index in refusals]
            raise combined from None
        raise refusal

    def _book_choice(
        self,
        actor: Actor,
        request: FlexibleRequest,
        position: int,
        book: Callable[[ChosenLease, LeaseRequest], R],
        lease_id: str | None,
    ) -> R:
        earliest = self._periods.earliest(request, position)
        completed = self._attempt_factory.complete(actor, request.choices[position])
        chosen = ChosenLease(self, actor, request, position, completed, self._clock.now(), lease_id or new_id())
        if request.window is None:
            return book(chosen, earliest)
        until = deadlines.until_at_most(SEARCH_SHARE * deadlines.seconds_left())
        try:
            return book(replace(chosen, until=until), earliest)
        except NoPeriod as error:
            found = error.found
        latest = self._periods.starts(request.window).latest
        fixed = replace(request, window=None, starts_at=earliest.starts_at, ends_at=earliest.ends_at)
        try:
            return book(replace(chosen, request=fixed), earliest)
        except NotEnoughResources as error:
            shortfall = replace(error.shortfall, latest=latest, is_complete=found.is_complete)
            raise error.of_request(shortfall) from None

    def first(self, chosen: ChosenLease, snapshot: Snapshot) -> NewLease:
        """Return the request for a choice in its first period. Raises ``NoPeriod``, and the errors of the search."""
        request = chosen.request
        if request.window is None:
            dated = self._periods.earliest(request, chosen.position)
        else:
            with deadlines.within(chosen.until or deadlines.current()):
                found = self._periods.first(chosen.actor, chosen.completed, request.window, 1, snapshot=snapshot)
            if not found.offers:
                raise NoPeriod(found)
            [offer] = found.offers
            dated = request.at(offer.starts_at, offer.ends_at, chosen.position)
        draft = self._new_leases.draft(chosen.actor, dated, lease_id=chosen.lease_id, completed=chosen.completed)
        if chosen.waiting is not None:
            return self._new_leases.request_of_waiting(chosen.actor, draft, chosen.waiting, chosen.precedence)
        draft = replace(draft, lease=replace(draft.lease, trust_id=chosen.trust_id))
        return self._new_leases.request(chosen.actor, draft)

    def completed(self, actor: Actor, request: FlexibleRequest) -> FlexibleRequest:
        """Return the request with complete reservations of all choices, as ``AttemptFactory.complete`` does."""
        choices = []
        for index, choice in enumerate(request.choices):
            with _fields_of_choice(request, index):
                choices.append(tuple(self._attempt_factory.complete(actor, choice).reservations))
        return replace(request, choices=tuple(choices))


@contextmanager
def _fields_of_choice(request: FlexibleRequest, index: int) -> Iterator[None]:
    """Let errors name the fields of a choice as they are in the request."""
    try:
        yield
    except TenureError as error:
        if request.is_listed and error.field is not None and error.field.startswith("reservations"):
            error.field = f"any_of[{index}].{error.field}"
        raise
