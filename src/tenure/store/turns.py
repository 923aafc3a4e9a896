"""Turns: which of a process's transactions writes next, where only one can write at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, field

#: After how many transactions that write one that is rolled back gets its turn, although others that write wait.
WRITES_BEFORE_A_TRIAL = 16


@dataclass(eq=False, slots=True)
class _Waiter:
    project_id: str
    is_trial: bool
    called: threading.Event = field(default_factory=threading.Event)


class Turns:
    """The turns of transactions to write.

    Transactions that write come before those that are rolled back in any case. Among the transactions of a rank,
    projects take turns: a project that has had its turn goes behind the others that wait.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken = False
        #: By rank, whether they are rolled back: the waiting transactions of each project, the next project first.
        self._waiting: dict[bool, OrderedDict[str, deque[_Waiter]]] = {False: OrderedDict(), True: OrderedDict()}
        self._writes = 0

    def take(self, project_id: str, *, is_trial: bool, seconds: float) -> bool:
        """Wait for the turn of a transaction; return whether it came in this time. Hand it on afterwards."""
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return True
            waiter = _Waiter(project_id, is_trial)
            self._waiting[is_trial].setdefault(project_id, deque()).append(waiter)
        if waiter.called.wait(seconds):
            return True
        with self._guard:
            if waiter.called.is_set():  # just now
                return True
            line = self._waiting[is_trial].get(project_id)
            if line is not None:
                with suppress(ValueError):
                    line.remove(waiter)
                if not line:
                    del self._waiting[is_trial][project_id]
        return False

    def hand_on(self) -> None:
        """End a turn: the next transaction has it."""
        with self._guard:
            following = self._next()
            if following is None:
                self._is_taken = False
            else:
                following.called.set()

    def count_waiting(self) -> int:
        """Return how many transactions wait."""
        with self._guard:
            return sum(len(line) for lines in self._waiting.values() for line in lines.values())

    def writers_wait(self) -> bool:
        """Whether a transaction waits that is not rolled back in any case."""
        return bool(self._waiting[False])

    def _next(self) -> _Waiter | None:
        writing, trying = self._waiting[False], self._waiting[True]
        if not writing and not trying:
            return None
        is_trial = not writing or (bool(trying) and self._writes >= WRITES_BEFORE_A_TRIAL)
        self._writes = 0 if is_trial else self._writes + 1
        lines = self._waiting[is_trial]
        project_id, line = lines.popitem(last=False)
        waiter = line.popleft()
        if line:
            lines[project_id] = line  # behind the other projects
        return waiter
