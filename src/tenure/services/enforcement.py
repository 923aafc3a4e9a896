"""Asking the filters of the site before a lease is made or changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TypeVar

from tenure.clock import Clock
from tenure.domain.allocation import Choice
from tenure.domain.errors import Denied, TooManyConflicts, Unavailable
from tenure.domain.lease import Lease
from tenure.enforcement.contract import EnforcementFilter
from tenure.resources.contract import ResourceTypes
from tenure.services.commitments import (
    COMMIT_CREATE,
    COMMIT_UPDATE,
    ON_END,
    cancel_withdrawal,
    promise_withdrawal,
    withdraw,
)
from tenure.services.outbox import Message
from tenure.services.quotas import Quotas
from tenure.services.statements import Values, from_json, proposal, revision, served, statement
from tenure.store.database import Database, OutcomeUnknown, Transaction

R = TypeVar("R")
#: Looks for room before a transaction, reading only.
Survey = Callable[[Transaction], object]

#: How often filters are asked about a request at most, where others keep changing what it would get.
ATTEMPTS = 10
#: How long a request waits for others to be done with the filters.
QUEUE_SECONDS = 1.0
#: How long a request waits for those that are looked at before it.
TURN_SECONDS = 5.0
#: How long a filter that has agreed waits for the lease, until it is told that none came about: far more than it takes.
PATIENCE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the service is, for those who are asked about its leases."""

    auth_url: str | None = None
    region_name: str | None = None

    def context(self, lease: Mapping[str, object]) -> Values:
        """What a filter is told of who asks."""
        return {
            "user_id": lease["user_id"],
            "project_id": lease["project_id"],
            "auth_url": self.auth_url,
            "region_name": self.region_name,
        }


@dataclass(frozen=True, slots=True)
class _Question:
    """What the filters are asked: about a new lease where there is no ``current`` one."""

    new: Values
    current: Values | None = None


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a request would come to: what is to be judged of it, if anything, and what it has chosen for that."""

    question: _Question | None
    chosen: Mapping[str, Choice] = field(default_factory=dict)


class Enforcement:
    """Has requests judged by filters, outside any transaction, as what they would come to.

    A request is carried out once for show, in a transaction that is undone; the filters are asked about what it would
    book; then it is carried out in earnest, with what was judged where that still can be had. Where it would book
    anything else, they are asked again, as long as there is time. Requests that are judged side by side keep out of
    each other's way.
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
        """``places`` is how many requests may wait for filters at a time, fewer than there are threads for them.

        ``again_within`` is for how long a request is judged again where others have changed what it would get.
        """
        self._db = db
        self._clock = clock
        self._types = types
        self._quotas = quotas
        self._filters = filters
        self._origin = origin
        self._places = places
        self._again_within = again_within.total_seconds()
        #: What requests have chosen that are being judged, by request.
        self._spoken_for: dict[object, Collection[Choice]] = {}
        self._guard = threading.Lock()
        self._turn = threading.Lock()

    def create(
        self, lease: Lease, book: Callable[[Transaction], Lease | None], *, survey: Survey | None = None
    ) -> Lease | None:
        """Book a lease that the filters allow. ``book`` gives one that was booked before, which nobody judges.

        ``survey`` looks for room before each attempt, as ``Database.write`` has it.

        Raises what they raise, ``OverQuota``, ``TooManyConflicts``, and what ``book`` raises.
        """

        book = self._within_quotas(lease.project_id, book)

        def work(tx: Transaction) -> tuple[Lease | None, _Question | None]:
            booked = book(tx)
            return booked, _Question(proposal(lease, served(tx, lease))) if booked is None else None

        if not self._filters:
            return self._db.write(book, survey=survey)
        asked: list[str] = []
        try:
            return self._judged(work, asked, survey=survey)
        except OutcomeUnknown:
            raise  # who was promised to be told is told, unless the lease is there
        except Exception:
            if asked:
                self._db.write(lambda tx: withdraw(tx, lease.id, asked, now=tx.now()))
            raise

    def update(self, lease_id: str, change: Callable[[Transaction], R], *, dropped: str = "") -> R:
        """Change a lease as the filters allow; ``dropped`` is a reservation that is to be given back.

        Nobody is asked about what changes neither the dates nor the reservations, nor about the confirmation of a lease
        that is held: that was judged before. Raises as ``create`` does.
        """

        lease = None
        if self._quotas.limits is not None:
            with self._db.read() as seen:
                lease = seen.leases.get(lease_id)
        if lease is not None:
            change = self._within_quotas(lease.project_id, change)

        def work(tx: Transaction) -> tuple[R, _Question | None]:
            before = tx.leases.get(lease_id)
            if before is None:
                return change(tx), None  # which says so
            by = served(tx, before)
            current, old = statement(before, by), revision(before, by)
            result = change(tx)
            after = tx.leases.get(lease_id)
            if after is None:
                return result, None
            new = revision(after, served(tx, after), without={dropped})
            same = _amount(new) == _amount(old) if before.hold_until else {**new, "name": old["name"]} == old
            return result, None if same else _Question(new, current)

        return self._judged(work) if self._filters else self._db.write(change)

    def _within_quotas(self, project_id: str, work: Callable[[Transaction], R]) -> Callable[[Transaction], R]:
        return self._quotas.within(project_id, self._types, self._clock.now(), work)

    def _judged(
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
                shown = self._have_judged(work, agreed, mine, survey)
                try:
                    return self._db.write(partial(_as_judged, work=work, judged=shown, asked=tuple(agreed)))
                except _Otherwise:
                    continue
        finally:
            self._speak_for(mine, ())
        raise TooManyConflicts

    def _have_judged(
        self,
        work: Callable[[Transaction], tuple[R, _Question | None]],
        asked: list[str],
        mine: object,
        survey: Survey | None,
    ) -> _Shown:
        """See what a request comes to, and ask the filters about it."""
        shown = self._for_show(work, mine, survey)
        if shown.question is not None:
            with self._place() as has_waited:
                if has_waited:  # others have got something meanwhile
                    shown = self._for_show(work, mine, survey)
                if shown.question is not None:
                    self._ask(shown.question, asked)
        return shown

    def _for_show(
        self, work: Callable[[Transaction], tuple[R, _Question | None]], mine: object, survey: Survey | None
    ) -> _Shown:
        """What a request comes to, beside what others are about to get; from now on it is about to get that."""

        def show(tx: Transaction) -> None:
            tx.spoken_for = self._spoken_for_by_others(mine)
            _, question = work(tx)
            raise _ForShow(_Shown(question, dict(tx.chosen)))

        # One after the other, so that each knows of those before; but nobody waits for long to be that polite.
        is_in_turn = self._turn.acquire(timeout=TURN_SECONDS)
        try:
            self._db.write(show, survey=survey)
        except _ForShow as seen:
            if seen.shown.question is not None:
                self._speak_for(mine, seen.shown.chosen.values())
            return seen.shown
        finally:
            if is_in_turn:
                self._turn.release()
        raise AssertionError("it is undone always")

    def _speak_for(self, mine: object, chosen: Collection[Choice]) -> None:
        with self._guard:
            self._spoken_for.pop(mine, None)
            if chosen:
                self._spoken_for[mine] = chosen

    def _spoken_for_by_others(self, mine: object) -> list[Choice]:
        with self._guard:
            return [one for who, chosen in self._spoken_for.items() if who is not mine for one in chosen]

    @contextmanager
    def _place(self) -> Iterator[bool]:
        """A place among those who wait, so that filters that hang never take every thread; whether that took a while.

        Raises ``Unavailable``.
        """
        is_free = self._places.acquire(blocking=False)
        if not is_free and not self._places.acquire(timeout=QUEUE_SECONDS):
            raise Unavailable("Too many requests wait for those who must agree to leases; try again later.")
        try:
            yield not is_free
        finally:
            self._places.release()

    def _ask(self, question: _Question, asked: list[str]) -> None:
        """Have each filter judge; ``asked`` gets the names of those that have agreed to a new lease."""
        context = self._origin.context(question.new)
        for name, one in self._filters.items():
            if question.current is not None:
                one.check_update(context, question.current, question.new)
                continue
            if ON_END not in one.listens_to:
                one.check_create(context, question.new)
                continue
            self._promise(question.new, name)
            has_agreed = name in asked
            if not has_agreed:
                asked.append(name)
            try:
                one.check_create(context, question.new)
            except Denied:
                if has_agreed:
                    raise  # now not, but to something before
                asked.remove(name)
                self._db.write(partial(cancel_withdrawal, lease_id=str(question.new["id"]), channels=[name]))
                raise

    def _promise(self, lease: Values, name: str) -> None:
        """Have a filter told that a lease never came about, should that be so: also where this process ends now."""

        def work(tx: Transaction) -> None:
            if tx.leases.get(str(lease["id"])) is not None:
                return  # somebody else has just made it
            now = tx.now()
            promise_withdrawal(tx, lease, [name], now=now, ready_at=now + PATIENCE)

        self._db.write(work)


def _amount(lease: Values) -> object:
    """What a lease takes, and for how long."""
    return [lease["start_date"], lease["end_date"], [one["allocations"] for one in lease["reservations"]]]


class _ForShow(Exception):
    """Ends a transaction that was for show."""

    def __init__(self, shown: _Shown) -> None:
        self.shown = shown


class _Otherwise(Exception):
    """What would be booked is not what was judged."""


def _as_judged(
    tx: Transaction,
    *,
    work: Callable[[Transaction], tuple[R, _Question | None]],
    judged: _Shown,
    asked: Collection[str],
) -> R:
    tx.preferred = judged.chosen
    result, question = work(tx)
    if question not in (None, judged.question):
        raise _Otherwise
    agreed = question or judged.question
    cancelled = not asked or agreed is None or cancel_withdrawal(tx, str(agreed.new["id"]), asked)
    if question is not None and not cancelled:
        raise Unavailable("Those who must agree to leases took too long; try again.")
    return result


def tell_filter(one: EnforcementFilter, origin: Origin, message: Message) -> None:
    """Deliver a message of the filter's channel. Raises what the filter raises."""
    values = from_json(message.payload)
    context = origin.context(values["lease"])
    if message.topic == COMMIT_CREATE:
        one.commit_create(context, values["lease"], key=message.key)
    elif message.topic == COMMIT_UPDATE:
        one.commit_update(context, values["current_lease"], values["lease"], key=message.key)
    else:
        one.on_end(context, values["lease"], key=message.key)
