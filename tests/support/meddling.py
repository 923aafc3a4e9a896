"""Between a driver and its cloud: counting what is changed, breaking calls off, losing answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import requests
from requests.adapters import HTTPAdapter

from tenure.drivers.contract import CloudBusy, CloudDriver, Progress

_READS = frozenset({"GET", "HEAD", None})


class Wire(HTTPAdapter):
    """What a session's requests go through.

    ``effects`` counts what was changed. ``fail`` breaks one call of a verb off, when it has changed so much.
    """

    def __init__(self) -> None:
        super().__init__(pool_maxsize=20)
        self.effects = 0
        self.verb = ""
        self._lock = threading.Lock()
        self._armed: tuple[str, int] | None = None
        self._before = 0
        #: The number of a change, counted from now on, of which the answer is lost; None for none.
        self.lose: int | None = None

    def arm(self, verb: str, after_effects: int) -> None:
        self._armed = (verb, after_effects)

    def enter(self, verb: str) -> None:
        self.verb, self._before = verb, self.effects

    def is_reached(self) -> bool:
        """Whether the verb has changed all that it does, and was to be broken off by then.

        Of changes that are made side by side none may see that enough have been made.
        """
        armed = self._armed
        return armed is not None and armed[0] == self.verb and 0 < armed[1] <= self.effects - self._before

    def leave(self) -> None:
        if self._armed is not None and self._armed[0] == self.verb:
            self._armed = None

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        is_change = request.method not in _READS and not (request.url or "").endswith("/auth/tokens")
        if is_change:
            self._strike()
        response = super().send(request, *args, **kwargs)
        if is_change and response.ok:
            with self._lock:
                self.effects += 1
                lost, self.lose = self.lose == 0, None if self.lose in (0, None) else self.lose - 1
            if lost:
                response.close()
                raise requests.ConnectionError("the answer was lost")
        return response

    def _strike(self) -> None:
        with self._lock:
            armed = self._armed
            if armed is None or armed[0] != self.verb or self.effects - self._before < armed[1]:
                return
            self._armed = None
        raise requests.ConnectionError("the connection broke off")


class Watched:
    """A driver whose calls tell the wire which verb they are of, and whose last answer can be lost."""

    def __init__(self, driver: CloudDriver, wire: Wire, patience: timedelta, pause: timedelta) -> None:
        self._driver = driver
        self._wire = wire
        self._patience = patience
        self._pause = pause
        self._lost: str | None = None

    @classmethod
    def of(
        cls, driver: CloudDriver, wire: Wire, patience: timedelta = timedelta(0), pause: timedelta = timedelta(0)
    ) -> CloudDriver:
        return cast(CloudDriver, cls(driver, wire, patience, pause))

    def lose_reply(self, verb: str) -> None:
        self._lost = verb

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        return self._call(name, found) if callable(found) else found

    def _call(self, verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._wire.enter(verb)
            try:
                answer = method(*args, **kwargs)
                if self._wire.is_reached():
                    raise CloudBusy("the connection broke off")
                if self._lost != verb:
                    return answer
                deadline = time.monotonic() + self._patience.total_seconds()
                while isinstance(answer, Progress) and not answer.done and time.monotonic() < deadline:
                    time.sleep(self._pause.total_seconds())
                    answer = method(*args, **kwargs)
            finally:
                self._wire.leave()
            self._lost = None
            raise CloudBusy("the answer was lost")

        return call
