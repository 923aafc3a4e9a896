"""Faults between a driver and its cloud: interrupted calls, and lost answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

from tenure.drivers.contract import CloudBusy, CloudDriver, Progress


class Breaker:
    """Counts changes of a cloud, and interrupts a driver call after a given number of changes.

    Every change is wrapped in ``change``; ``Watched`` reports the driver's calls. ``error`` is what a broken connection
    raises in the driver, which must turn it into a ``CloudBusy``.
    """

    def __init__(self, error: type[Exception] = ConnectionError) -> None:
        self.effects = 0
        self.verb = ""
        self._error = error
        self._lock = threading.Lock()
        self._armed: tuple[str, int] | None = None
        self._before = 0
        self._lost: str | None = None

    @contextmanager
    def change(self) -> Iterator[None]:
        """Wrap a change of the cloud: interrupt the call before it, or count it afterwards."""
        self.strike()
        yield
        self.count()

    def arm(self, verb: str, after_effects: int) -> None:
        """Interrupt the next call of the method after this number of changes."""
        self._armed = (verb, after_effects)

    def lose_reply(self, verb: str) -> None:
        """Let the next call of the method do all its work, and then fail."""
        self._lost = verb

    def loses(self, verb: str) -> bool:
        """Whether the answer of this call is lost."""
        return self._lost == verb

    def enter(self, verb: str) -> None:
        self.verb, self._before = verb, self.effects

    def leave(self) -> None:
        if self._armed is not None and self._armed[0] == self.verb:
            self._armed = None

    def is_reached(self) -> bool:
        """Whether the call has made the number of changes after which it is to be interrupted.

        Concurrent changes may not have noticed this themselves.
        """
        armed = self._armed
        return armed is not None and armed[0] == self.verb and 0 < armed[1] <= self.effects - self._before

    def count(self) -> None:
        with self._lock:
            self.effects += 1

    def strike(self) -> None:
        """Raise the error if the number of changes is reached."""
        with self._lock:
            armed = self._armed
            if armed is None or armed[0] != self.verb or self.effects - self._before < armed[1]:
                return
            self._armed = None
        raise self._error("the connection broke off")


class Watched:
    """A driver that reports its calls to a breaker."""

    def __init__(self, driver: CloudDriver, breaker: Breaker, patience: timedelta, pause: timedelta) -> None:
        self._driver = driver
        self._breaker = breaker
        self._patience = patience
        self._pause = pause

    @classmethod
    def of(
        cls, driver: CloudDriver, breaker: Breaker, patience: timedelta = timedelta(0), pause: timedelta = timedelta(0)
    ) -> CloudDriver:
        """Return the watched driver. A call that is not done is repeated for as long as ``patience``."""
        return cast(CloudDriver, cls(driver, breaker, patience, pause))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        return self._call(name, found) if callable(found) else found

    def _call(self, verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._breaker.enter(verb)
            try:
                answer = method(*args, **kwargs)
                if self._breaker.is_reached():
                    raise CloudBusy("the connection broke off")
                if not self._breaker.loses(verb):
                    return answer
                deadline = time.monotonic() + self._patience.total_seconds()
                while isinstance(answer, Progress) and not answer.done and time.monotonic() < deadline:
                    time.sleep(self._pause.total_seconds())
                    answer = method(*args, **kwargs)
            finally:
                self._breaker.leave()
            self._breaker.lose_reply("")
            raise CloudBusy("the answer was lost")

        return call
