"""Calls that are left out for a while after one of them has failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: For how many seconds nothing is called after a failure: at first, and at most.
REST, LONGEST_REST = 5.0, 60.0


class Breaker:
    """Says whether the service may be called, so that a service that hangs does not hold up Nova's workers.

    After a failure nothing is called for a while; then one call at a time tries, until one is answered.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rest = 0.0
        self._until = 0.0

    def may_call(self) -> bool:
        """Whether to call now; the caller says then how it went. While the service fails, one call at a time may."""
        with self._lock:
            if not self._rest:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + self._rest
            return True

    def answered(self) -> None:
        """Record that the service has answered."""
        with self._lock:
            self._rest = 0.0

    def failed(self) -> None:
        """Record that the service has not answered."""
        with self._lock:
            self._rest = min(max(REST, self._rest * 2), LONGEST_REST)
            self._until = self._clock() + self._rest
