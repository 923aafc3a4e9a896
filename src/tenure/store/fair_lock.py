"""A lock of this process that is fair to projects."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class _Waiter:
    project_id: str
    called: threading.Event = field(default_factory=threading.Event)


class FairLock:
    """A lock that goes round the projects.

    A project that has had the lock goes behind the others that wait for it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken = False
        #: Who waits of each project, the next project first.
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()

    def acquire(self, project_id: str, *, seconds: float) -> bool:
        """Wait for the lock; return whether it was got in this time. Release it afterwards."""
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return True
            waiter = _Waiter(project_id)
            self._waiting.setdefault(project_id, deque()).append(waiter)
        if waiter.called.wait(seconds):
            return True
        with self._guard:
            if waiter.called.is_set():  # just now
                return True
            line = self._waiting.get(project_id)
            if line is not None:
                with suppress(ValueError):
                    line.remove(waiter)
                if not line:
                    del self._waiting[project_id]
        return False

    def release(self) -> None:
        """Give the lock to the next who waits."""
        with self._guard:
            if not self._waiting:
                self._is_taken = False
                return
            project_id, line = self._waiting.popitem(last=False)
            following = line.popleft()
            if line:
                self._waiting[project_id] = line  # behind the other projects
            following.called.set()

    def count_waiting(self) -> int:
        """Return how many wait."""
        with self._guard:
            return sum(map(len, self._waiting.values()))
