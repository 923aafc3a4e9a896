"""Enforcement: asking the site's filters before a lease is created or changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import TracebackType

from tenure import deadlines
from tenure.domain.allocation import Allocation
from tenure.domain.errors import Denied, TooManyConflicts, Unavailable
from tenure.enforcement.contract import EnforcementFilter
from tenure.services.notifications.commitments import (
    COMMIT_CREATE,
    COMMIT_UPDATE,
    ON_END,
    cancel_withdrawal,
    is_booked,
    promise_withdrawal,
    withdraw,
)
from tenure.services.notifications.outbox import Message
from tenure.services.notifications.statements import Values, from_json
from tenure.store.database import Database, OutcomeUnknown, Transaction

#: How long a request waits for a permit to ask the filters.
QUEUE_SECONDS = 1.0
#: How long a request waits for the planning of concurrent requests.
LOCK_SECONDS = 5.0
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
class Question:
    """A question to the filters; without a ``current`` lease it is about a new one."""

    new: Values
    current: Values | None = None


class Enforcement:
    """Asks filters about requests, outside any transaction.

    The filters are asked about a plan, and then the plan is carried out. If that turns out otherwise, they are asked
    again, as long as there is time. Requests that are judged at the same time avoid each other's resources.
    """

    def __init__(
        self,
        db: Database,
        filters: Mapping[str, EnforcementFilter],
        origin: Origin,
        permits: threading.Semaphore,
        again_within: timedelta,
    ) -> None:
        """``permits`` limits how many requests wait for filters at a time; it must be less than the number of threads.

        ``again_within`` is for how long a request is judged again if other requests have changed its result.
        """
        self._db = db
        self._filters = filters
        self._origin = origin
        self._permits = permits
        self._again_within = again_within.total_seconds()
        self._claims = _Claims()

    @property
    def is_asked(self) -> bool:
        """Whether there is a filter."""
        return bool(self._filters)

    def judgement(self) -> Judgement:
        """Return the judgement of a request, as a context manager."""
        return Judgement(self._db, self._filters, self._origin, self._permits, self._again_within, self._claims)

    def try_out(self, question: Question | None) -> tuple[str, ...]:
        """Ask the filters about a dry run; return those that are not asked: they keep accounts of what they agree to.

        Raises the errors of the filters, and ``Unavailable`` if too many requests wait for them.
        """
        if question is None:
            return ()
        context, unasked = self._origin.context(question.new), []
        with _permit_in(self._permits):
            for name, enforcement_filter in self._filters.items():
                if question.current is not None:
                    enforcement_filter.check_update(context, question.current, question.new)
                elif ON_END in enforcement_filter.listens_to:
                    unasked.append(name)
                else:
                    enforcement_filter.check_create(context, question.new)
        return tuple(unasked)


class Judgement:
    """The judgement of a request: what the filters have agreed to, and what the request is about to get.

    It ends with the block. If the request has failed, the filters that have agreed to a new lease are told so.
    """

    def __init__(
        self,
        db: Database,
        filters: Mapping[str, EnforcementFilter],
        origin: Origin,
        permits: threading.Semaphore,
        again_within: float,
        claims: _Claims,
    ) -> None:
        self._db = db
        self._filters = filters
        self._origin = origin
        self._permits = permits
        self._until = time.monotonic() + again_within
        self._claims = claims
        self._agreed: Question | None = None
        #: The filters that keep accounts and have agreed to the new lease of this id.
        self._accounting: list[str] = []
        self._lease_id = ""

    def __enter__(self) -> Judgement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._claims.drop(self)
        # If the outcome is unknown, the promised withdrawal is sent, unless the lease exists.
        if isinstance(error, Exception) and not isinstance(error, OutcomeUnknown) and self._accounting:
            with deadlines.within(None):  # it is over, perhaps
                self._db.write(partial(_withdraw_now, lease_id=self._lease_id, channels=self._accounting))

    @contextmanager
    def planning(self) -> Iterator[Sequence[Allocation]]:
        """Plan in this block, one request after the other; yields what the requests before are about to get.

        No request waits for long. Without filters there is nothing to wait for.
        """
        if not self._filters:
            yield ()
            return
        with self._claims.lock():
            yield self._claims.of_others(self)

    def claim(self, allocations: Sequence[Allocation]) -> None:
        """Have requests that are judged at the same time avoid these allocations."""
        if self._filters:
            self._claims.put(self, allocations)

    def ask(self, question: Question | None) -> None:
        """Ask the filters, unless they have agreed to that already.

        Raises their errors, ``TooManyConflicts`` if other requests change the question again and again, and
        ``Unavailable`` if too many requests wait for filters.
        """
        if self.agrees(question):
            return
        if self._agreed is not None and time.monotonic() > self._until:
            raise TooManyConflicts
        assert question is not None
        with _permit_in(self._permits):
            self._ask(question)
        self._agreed = question

    def agrees(self, question: Question | None) -> bool:
        """Whether the filters have agreed to that, or need not be asked."""
        return not self._filters or question is None or question == self._agreed

    def confirm(self, tx: Transaction, *, is_new: bool) -> None:
        """Cancel the promised withdrawals: the lease exists.

        Raises ``Unavailable`` if one was sent, and this request ``is_new``: no earlier one has booked the lease.
        """
        if self._accounting and not cancel_withdrawal(tx, self._lease_id, self._accounting) and is_new:
            raise Unavailable("The enforcement filters took too long; try again.")

    def _ask(self, question: Question) -> None:
        context = self._origin.context(question.new)
        for name, enforcement_filter in self._filters.items():
            if question.current is not None:
                enforcement_filter.check_update(context, question.current, question.new)
                continue
            if ON_END not in enforcement_filter.listens_to:
                enforcement_filter.check_create(context, question.new)
                continue
            self._lease_id = str(question.new["id"])
            with deadlines.within(deadlines.current()):  # this is not yet what the request is to change
                self._db.write(partial(_promise, lease=question.new, name=name))
            has_agreed = name in self._accounting
            if not has_agreed:
                self._accounting.append(name)
            try:
                enforcement_filter.check_create(context, question.new)
            except Denied:
                if has_agreed:
                    raise  # it refuses now, but has agreed to an earlier result
                self._accounting.remove(name)
                with deadlines.within(None):
                    self._db.write(partial(cancel_withdrawal, lease_id=self._lease_id, channels=[name]))
                raise


class _Claims:
    """What requests that are being judged are about to get."""

    def __init__(self) -> None:
        self._claimed: dict[Judgement, Sequence[Allocation]] = {}
        self._guard = threading.Lock()
        self._lock = threading.Lock()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait for others, so that each sees the claims of those before; but for no longer than ``LOCK_SECONDS``."""
        is_locked = self._lock.acquire(timeout=LOCK_SECONDS)
        try:
            yield
        finally:
            if is_locked:
                self._lock.release()

    def put(self, judgement: Judgement, allocations: Sequence[Allocation]) -> None:
        with self._guard:
            self._claimed[judgement] = allocations

    def drop(self, judgement: Judgement) -> None:
        with self._guard:
            self._claimed.pop(judgement, None)

    def of_others(self, judgement: Judgement) -> list[Allocation]:
        with self._guard:
            return [
                allocation
                for other, claimed in self._claimed.items()
                if other is not judgement
                for allocation in claimed
            ]


@contextmanager
def _permit_in(permits: threading.Semaphore) -> Iterator[None]:
    """Take a permit among the waiting requests, so that a hanging filter never blocks all threads.

    Raises ``Unavailable``.
    """
    if not permits.acquire(timeout=QUEUE_SECONDS):
        raise Unavailable("Too many requests wait for the enforcement filters; try again later.")
    try:
        yield
    finally:
        permits.release()


def _promise(tx: Transaction, lease: Values, name: str) -> None:
    """Promise the filter a withdrawal in case the lease is never created, even if this process is killed."""
    if is_booked(tx, str(lease["id"])):
        return  # another request has just created it
    now = tx.now()
    promise_withdrawal(tx, lease, [name], now=now, ready_at=now + PATIENCE)


def _withdraw_now(tx: Transaction, lease_id: str, channels: Collection[str]) -> None:
    withdraw(tx, lease_id, channels, now=tx.now())


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
