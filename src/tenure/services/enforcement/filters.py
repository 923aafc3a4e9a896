"""Enforcement: asking the site's filters before a lease is created or changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TypeVar

from tenure import deadlines
from tenure.clock import Clock
from tenure.domain.allocation import Choice
from tenure.domain.errors import Denied, TooManyConflicts, Unavailable
from tenure.domain.lease import Lease
from tenure.enforcement.contract import EnforcementFilter
from tenure.resources.contract import ResourceTypes
from tenure.services.enforcement.commitments import (
    COMMIT_CREATE,
    COMMIT_UPDATE,
    ON_END,
    cancel_withdrawal,
    is_booked,
    promise_withdrawal,
    withdraw,
)
from tenure.services.enforcement.statements import Values, from_json, proposal, revision, served, statement
from tenure.services.limits.quotas import Quotas
from tenure.services.notifications.outbox import Message
from tenure.store.database import Database, OutcomeUnknown, Transaction

R = TypeVar("R")
#: Searches for room before a transaction; reads only.
Survey = Callable[[Transaction], object]

#: How often filters are asked about a request at most, if concurrent requests keep changing its result.
ATTEMPTS = 10
#: How long a request waits for a place to ask the filters.
QUEUE_SECONDS = 1.0
#: How long a request waits for concurrent trials.
TURN_SECONDS = 5.0
#: How long after its agreement a filter gets the withdrawal if no lease was created: far longer than a booking takes.
PATIENCE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Origin:
    """The location of this service, for the filters."""

    auth_url: str | None = None
    region_name: str | None = None

    def context(self, lease: Mapping[str, object]) -> Values:
        """Return the context that a filter receives with each lease."""
        return {
            "user_id": lease["user_id"],
            "project_id": lease["project_id"],
            "auth_url": self.auth_url,
            "region_name": self.region_name,
        }


@dataclass(frozen=True, slots=True)
class _Question:
    """A question to the filters; without a ``current`` lease it is about a new one."""

    new: Values
    current: Values | None = None


@dataclass(frozen=True, slots=True)
class _Trial:
    """The result of a trial: the question to the filters, if any, and the choices on which it is based."""

    question: _Question | None
    chosen: Mapping[str, Choice] = field(default_factory=dict)


class Enforcement:
    """Asks filters about requests, outside any transaction.

    A request is first tried in a transaction that is rolled back; the filters are asked about the result; then the
    request is carried out, with the same choices if they are still free. If the result differs, the filters are asked
    again, as long as there is time. Requests that are judged at the same time avoid each other's choices.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        types: ResourceTypes,
        quotas: Quotas,
        filters: Mapping[str, EnforcementFilter],
        origin: Origin,
        places: threading.Semaphore,
        again_within: timedelta,
    ) -> None:
        """``places`` limits how many requests wait for filters at a time; it must be less than the number of threads.

        ``again_within`` is for how long a request is judged again if other requests have changed its result.
        """
        self._db = db
        self._clock = clock
        self._types = types
        self._quotas = quotas
        self._filters = filters
        self._origin = origin
        self._places = places
        self._again_within = again_within.total_seconds()
        #: The choices of requests that are being judged, by request.
        self._spoken_for: dict[object, Collection[Choice]] = {}
        self._guard = threading.Lock()
        self._turn = threading.Lock()

    def create(
        self, lease: Lease, book: Callable[[Transaction], Lease | None], *, survey: Survey | None = None
    ) -> Lease | None:
        """Book a lease that the filters allow. A lease that ``book`` returns was booked before, and is not judged.

        ``survey`` searches for room before each attempt, see ``Database.write``. Raises the errors of the filters,
        ``OverQuota``, ``TooManyConflicts``, and the errors of ``book``.
        """
        book = self._within_quotas(lease.project_id, book)
        if not self._filters:
            return self._db.write(book, survey=survey)
        asked: list[str] = []
        try:
            return self._ask_and_book(_creation(lease, book), asked, survey=survey)
        except OutcomeUnknown:
            raise  # the promised withdrawal is sent, unless the lease exists
        except Exception:
            if asked:
                with deadlines.within(None):  # it is over, perhaps
                    self._db.write(lambda tx: withdraw(tx, lease.id, asked, now=tx.now()))
            raise

    def update(self, lease_id: str, change: Callable[[Transaction], R], *, dropped: str = "") -> R:
        """Change a lease if the filters allow it; ``dropped`` is a reservation that is to be dropped.

        The filters are not asked if neither dates nor reservations change, nor about the confirmation of a provisional
        lease: it was judged before. Raises the errors of ``create``.
        """
        change = self._changing_within_quotas(lease_id, change)
        if not self._filters:
            return self._db.write(change)
        return self._ask_and_book(_revision_by(lease_id, change, dropped))

    def rehearse_create(
        self,
        lease: Lease,
        book: Callable[[Transaction], Lease | None],
        look: Callable[[Transaction], R],
        *,
        survey: Survey | None = None,
        ask: bool = True,
    ) -> tuple[R, tuple[str, ...]]:
        """Book a lease as ``create`` does, return what ``look`` then finds in the transaction, and undo everything.

        Also returns the filters that were not asked: those that keep accounts of what they agree to. Without ``ask``
        no filter is asked. Raises the errors of ``create``.
        """
        book = self._within_quotas(lease.project_id, book)
        return self._rehearse(_creation(lease, book) if self._filters and ask else _unasked(book), look, survey)

    def rehearse_update(
        self,
        lease_id: str,
        change: Callable[[Transaction], object],
        look: Callable[[Transaction], R],
        *,
        dropped: str = "",
        ask: bool = True,
    ) -> tuple[R, tuple[str, ...]]:
        """Change a lease as ``update`` does, and undo it; returns and raises what ``rehearse_create`` does."""
        change = self._changing_within_quotas(lease_id, change)
        asks = self._filters and ask
        return self._rehearse(_revision_by(lease_id, change, dropped) if asks else _unasked(change), look)

    def _rehearse(
        self,
        work: Callable[[Transaction], tuple[object, _Question | None]],
        look: Callable[[Transaction], R],
        survey: Survey | None = None,
    ) -> tuple[R, tuple[str, ...]]:
        def rehearsed(tx: Transaction) -> tuple[R, _Question | None]:
            _, question = work(tx)
            return look(tx), question

        result, question = self._db.rehearse(rehearsed, survey=survey)
        if question is None:
            return result, ()
        context, unasked = self._origin.context(question.new), []
        with self._take_place():
            for name, enforcement_filter in self._filters.items():
                if question.current is not None:
                    enforcement_filter.check_update(context, question.current, question.new)
                elif ON_END in enforcement_filter.listens_to:
                    unasked.append(name)
                else:
                    enforcement_filter.check_create(context, question.new)
        return result, tuple(unasked)

    def _changing_within_quotas(self, lease_id: str, change: Callable[[Transaction], R]) -> Callable[[Transaction], R]:
        if self._quotas.limits is None:
            return change
        with self._db.read() as tx:
            lease = tx.leases.get(lease_id)
        return change if lease is None else self._within_quotas(lease.project_id, change)

    def _within_quotas(self, project_id: str, work: Callable[[Transaction], R]) -> Callable[[Transaction], R]:
        return self._quotas.within(project_id, self._types, self._clock.now(), work)

    def _ask_and_book(
        self,
        work: Callable[[Transaction], tuple[R, _Question | None]],
        asked: list[str] | None = None,
        *,
        survey: Survey | None = None,
    ) -> R:
        agreed: list[str] = [] if asked is None else asked
        mine = object()
        until = time.monotonic() + self._again_within
        try:
            for attempt in range(ATTEMPTS):
                if attempt and time.monotonic() > until:
                    break
                trial = self._try_and_ask(work, agreed, mine, survey)
                try:
                    return self._db.write(partial(_book_as_judged, work=work, judged=trial, asked=tuple(agreed)))
                except _ResultChanged:
                    continue
        finally:
            self._speak_for(mine, ())
        raise TooManyConflicts

    def _try_and_ask(
        self,
        work: Callable[[Transaction], tuple[R, _Question | None]],
        asked: list[str],
        mine: object,
        survey: Survey | None,
    ) -> _Trial:
        """Try a request, and ask the filters about the result."""
        trial = self._try(work, mine, survey)
        if trial.question is not None:
            with self._take_place() as has_waited:
                if has_waited:  # others may have booked meanwhile
                    trial = self._try(work, mine, survey)
                if trial.question is not None:
                    self._ask(trial.question, asked)
        return trial

    def _try(
        self, work: Callable[[Transaction], tuple[R, _Question | None]], mine: object, survey: Survey | None
    ) -> _Trial:
        """Return the result of a request beside the choices of concurrent requests, and register its own choices."""

        def attempt(tx: Transaction) -> _Trial:
            tx.spoken_for = self._spoken_for_by_others(mine)
            _, question = work(tx)
            return _Trial(question, dict(tx.chosen))

        # One after the other, so that each sees the choices of those before; but no request waits for long.
        is_in_turn = self._turn.acquire(timeout=TURN_SECONDS)
        try:
            trial = self._db.rehearse(attempt, survey=survey)
            if trial.question is not None:
                self._speak_for(mine, trial.chosen.values())
            return trial
        finally:
            if is_in_turn:
                self._turn.release()

    def _speak_for(self, mine: object, chosen: Collection[Choice]) -> None:
        with self._guard:
            self._spoken_for.pop(mine, None)
            if chosen:
                self._spoken_for[mine] = chosen

    def _spoken_for_by_others(self, mine: object) -> list[Choice]:
        with self._guard:
            return [choice for request, chosen in self._spoken_for.items() if request is not mine for choice in chosen]

    @contextmanager
    def _take_place(self) -> Iterator[bool]:
        """Take a place among the waiting requests, so that a hanging filter never blocks all threads.

        Yields whether the request had to wait. Raises ``Unavailable``.
        """
        is_free = self._places.acquire(blocking=False)
        if not is_free and not self._places.acquire(timeout=QUEUE_SECONDS):
            raise Unavailable("Too many requests wait for the enforcement filters; try again later.")
        try:
            yield not is_free
        finally:
            self._places.release()

    def _ask(self, question: _Question, asked: list[str]) -> None:
        """Ask each filter; add to ``asked`` the filters that have agreed to a new lease."""
        context = self._origin.context(question.new)
        for name, enforcement_filter in self._filters.items():
            if question.current is not None:
                enforcement_filter.check_update(context, question.current, question.new)
                continue
            if ON_END not in enforcement_filter.listens_to:
                enforcement_filter.check_create(context, question.new)
                continue
            self._promise(question.new, name)
            has_agreed = name in asked
            if not has_agreed:
                asked.append(name)
            try:
                enforcement_filter.check_create(context, question.new)
            except Denied:
                if has_agreed:
                    raise  # it refuses now, but has agreed to an earlier result
                asked.remove(name)
                with deadlines.within(None):
                    self._db.write(partial(cancel_withdrawal, lease_id=str(question.new["id"]), channels=[name]))
                raise

    def _promise(self, lease: Values, name: str) -> None:
        """Promise the filter a withdrawal in case the lease is never created, even if this process is killed."""

        def work(tx: Transaction) -> None:
            if is_booked(tx, str(lease["id"])):
                return  # another request has just created it
            now = tx.now()
            promise_withdrawal(tx, lease, [name], now=now, ready_at=now + PATIENCE)

        with deadlines.within(deadlines.current()):  # this is not yet what the request is to change
            self._db.write(work)


def _creation(lease: Lease, book: Callable[[Transaction], R]) -> Callable[[Transaction], tuple[R, _Question | None]]:
    """Return the booking of a lease with the question to the filters; none if the lease was booked before."""

    def work(tx: Transaction) -> tuple[R, _Question | None]:
        booked = book(tx)
        return booked, _Question(proposal(lease, served(tx, lease))) if booked is None else None

    return work


def _unasked(work: Callable[[Transaction], R]) -> Callable[[Transaction], tuple[R, None]]:
    """Return the same work, without a question to the filters."""
    return lambda tx: (work(tx), None)


def _revision_by(
    lease_id: str, change: Callable[[Transaction], R], dropped: str
) -> Callable[[Transaction], tuple[R, _Question | None]]:
    """Return the change of a lease with the question to the filters; none if it does not concern them."""

    def work(tx: Transaction) -> tuple[R, _Question | None]:
        before = tx.leases.get(lease_id)
        if before is None:
            return change(tx), None  # it raises NotFound
        by = served(tx, before)
        current, old = statement(before, by), revision(before, by)
        result = change(tx)
        after = tx.leases.get(lease_id)
        if after is None:
            return result, None
        new = revision(after, served(tx, after), without={dropped})
        same = _amount(new) == _amount(old) if before.hold_until else {**new, "name": old["name"]} == old
        return result, None if same else _Question(new, current)

    return work


def _amount(lease: Values) -> object:
    """Return what a lease takes, and for how long."""
    return [
        lease["start_date"],
        lease["end_date"],
        [reservation["allocations"] for reservation in lease["reservations"]],
    ]


class _ResultChanged(Exception):
    """The booking would differ from the judged result."""


def _book_as_judged(
    tx: Transaction,
    *,
    work: Callable[[Transaction], tuple[R, _Question | None]],
    judged: _Trial,
    asked: Collection[str],
) -> R:
    tx.preferred = judged.chosen
    result, question = work(tx)
    if question not in (None, judged.question):
        raise _ResultChanged
    agreed = question or judged.question
    cancelled = not asked or agreed is None or cancel_withdrawal(tx, str(agreed.new["id"]), asked)
    if question is not None and not cancelled:
        raise Unavailable("The enforcement filters took too long; try again.")
    return result


def deliver_to_filter(enforcement_filter: EnforcementFilter, origin: Origin, message: Message) -> None:
    """Deliver a message to a filter. Raises the filter's errors."""
    values = from_json(message.payload)
    context = origin.context(values["lease"])
    if message.topic == COMMIT_CREATE:
        enforcement_filter.commit_create(context, values["lease"], key=message.key)
    elif message.topic == COMMIT_UPDATE:
        enforcement_filter.commit_update(context, values["current_lease"], values["lease"], key=message.key)
    else:
        enforcement_filter.on_end(context, values["lease"], key=message.key)
