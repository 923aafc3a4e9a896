"""The time limit of a request for searching free resources."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType

from tenure import deadlines
from tenure.deadlines import SearchTooLong
from tenure.domain.errors import NotEnoughResources
from tenure.store.database import Transaction

__all__ = ["Budget", "SearchTooLong"]


class Budget:
    """The time limit of a request for searching free resources: it counts the time spent in ``with`` blocks.

    For a ``large`` request the limit covers all attempts of its transaction together, and it gives way to transactions
    that wait for it. For other requests the limit covers each attempt, and they are not interrupted: otherwise
    competing requests would never finish.
    """

    def __init__(
        self, allowed: timedelta, *, large: bool = False, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.large = large
        self._allowed = allowed.total_seconds()
        self._seconds = seconds
        self._spent = 0.0
        self._since: float | None = None
        #: The refusal that was found with an earlier order of the reservations, while another order is tried.
        self.refusal: NotEnoughResources | None = None

    def __enter__(self) -> None:
        self._since = self._seconds()
        if not self.large:
            self._spent = 0.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._since is not None
        self._spent += self._seconds() - self._since
        self._since = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Exclude the time of this block, in which the request waits for others and does not search."""
        began = self._seconds()
        try:
            yield
        finally:
            self._spent -= self._seconds() - began

    def spend(self, tx: Transaction | None = None) -> None:
        """Check the limit during a search, in this transaction if there is one.

        Raises ``SearchTooLong``, or the refusal that was found before, if the time is over, that of the budget or of
        the work for which it is spent; ``CallerGone``; and ``GaveWay`` if other transactions have waited for this one.
        """
        try:
            deadlines.check()
        except SearchTooLong:
            if self.refusal is not None:
                raise self.refusal from None
            raise
        running = self._seconds() - self._since if self._since is not None else 0.0
        if self._spent + running >= self._allowed:
            raise self.refusal or SearchTooLong(
                f"The search for free resources took longer than {self._allowed:g} seconds; nothing was changed. "
                "Ask for fewer resources at once, or try again later."
            )
        if tx is not None and self.large:
            tx.give_way()
