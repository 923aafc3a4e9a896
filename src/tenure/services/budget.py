"""The time that a request has for finding room."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType

from tenure.domain.errors import NotEnoughResources, Unavailable
from tenure.store.database import Transaction


class Budget:
    """How long a request may look for room: the time spent in ``with`` blocks.

    A ``large`` request has so long for all attempts of its transaction together, and gives way to others that wait for
    it. Any other has so long for each attempt, and is not interrupted: where many want the same, it would never end.
    """

    def __init__(
        self, allowed: timedelta, *, large: bool = False, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.large = large
        self._allowed = allowed.total_seconds()
        self._seconds = seconds
        self._spent = 0.0
        self._since: float | None = None
        #: Why there is no room, where that was found in an order of the reservations that was not the last to be tried.
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
        """Count none of the time inside: there others are waited for, and no room is looked for."""
        began = self._seconds()
        try:
            yield
        finally:
            self._spent -= self._seconds() - began

    def spend(self, tx: Transaction | None = None) -> None:
        """Go on looking, in this transaction if in any.

        Raises ``Unavailable`` where the time is over, or the refusal that was found before, and ``GaveWay`` where
        others have waited for this transaction.
        """
        running = self._seconds() - self._since if self._since is not None else 0.0
        if self._spent + running >= self._allowed:
            raise self.refusal or Unavailable(
                f"The search for free resources took longer than {self._allowed:g} seconds; nothing was changed. "
                "Ask for fewer resources at once, or try again later."
            )
        if tx is not None and self.large:
            tx.give_way()
