"""Asking the filters of the site before a lease is made or changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tenure.domain.errors import TooManyConflicts
from tenure.domain.lease import Lease
from tenure.enforcement.contract import EnforcementFilter
from tenure.services.statements import Values, proposal, revision, served, statement
from tenure.store.database import Database, Transaction

R = TypeVar("R")

#: How often filters are asked about a request, where others keep changing what it would get.
ATTEMPTS = 3


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


class Enforcement:
    """Has requests judged by filters, outside any transaction, as what they would come to.

    A request is carried out once for show, in a transaction that is undone; the filters are asked about what it would
    book; then it is carried out in earnest. Where that would book anything else than was judged, they are asked again.
    """

    def __init__(self, db: Database, filters: Mapping[str, EnforcementFilter], origin: Origin) -> None:
        self._db = db
        self._filters = filters
        self._origin = origin

    def create(self, lease: Lease, book: Callable[[Transaction], Lease | None]) -> Lease | None:
        """Book a lease that the filters allow. ``book`` gives one that was booked before, which nobody judges.

        Raises what they raise, ``TooManyConflicts``, and what ``book`` raises.
        """

        def work(tx: Transaction) -> tuple[Lease | None, _Question | None]:
            booked = book(tx)
            return booked, _Question(proposal(lease, served(tx, lease))) if booked is None else None

        return self._judged(work) if self._filters else self._db.write(book)

    def update(self, lease_id: str, change: Callable[[Transaction], R], *, dropped: str = "") -> R:
        """Change a lease as the filters allow; ``dropped`` is a reservation that is to be given back.

        Nobody is asked about what changes neither the dates nor the reservations. Raises as ``create`` does.
        """

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
            same = {**new, "name": old["name"]} == old
            return result, None if same else _Question(new, current)

        return self._judged(work) if self._filters else self._db.write(change)

    def _judged(self, work: Callable[[Transaction], tuple[R, _Question | None]]) -> R:
        for _ in range(ATTEMPTS):
            question = self._for_show(work)
            if question is not None:
                self._ask(question)
            try:
                return self._db.write(partial(_as_judged, work=work, judged=question))
            except _Otherwise:
                continue
        raise TooManyConflicts

    def _for_show(self, work: Callable[[Transaction], tuple[R, _Question | None]]) -> _Question | None:
        def show(tx: Transaction) -> None:
            _, question = work(tx)
            raise _Shown(question)

        try:
            self._db.write(show)
        except _Shown as shown:
            return shown.question
        raise AssertionError("it is undone always")

    def _ask(self, question: _Question) -> None:
        context = self._origin.context(question.new)
        for one in self._filters.values():
            if question.current is None:
                one.check_create(context, question.new)
            else:
                one.check_update(context, question.current, question.new)


class _Shown(Exception):
    """Ends a transaction that was for show."""

    def __init__(self, question: _Question | None) -> None:
        self.question = question


class _Otherwise(Exception):
    """What would be booked is not what was judged."""


def _as_judged(
    tx: Transaction, *, work: Callable[[Transaction], tuple[R, _Question | None]], judged: _Question | None
) -> R:
    result, question = work(tx)
    if question != judged:
        raise _Otherwise
    return result
