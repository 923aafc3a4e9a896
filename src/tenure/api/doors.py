"""The doors of the API: how many requests of a project are served at a time, to the last piece of their answers."""

from __future__ import annotations

import threading
from collections import Counter

from tenure.domain.errors import Busy


class Doors:
    """Lets in so many requests of each project at a time, so that no project has all threads of a server.

    A thread is taken as long as its request waits in a lane of a manager, and as long as a client that reads slowly
    has not taken its answer.
    """

    def __init__(self, most: int | None) -> None:
        """``most`` requests of a project are let in; None for any number."""
        self._most = most
        self._guard = threading.Lock()
        self._inside: Counter[str] = Counter()

    def enter(self, project_id: str) -> None:
        """Let a request in; raise ``Busy`` if there are too many of the project. It must leave, once."""
        with self._guard:
            if self._most is not None and self._inside[project_id] >= self._most:
                raise Busy
            self._inside[project_id] += 1

    def leave(self, project_id: str) -> None:
        """Let another request in."""
        with self._guard:
            self._inside[project_id] -= 1
            if not self._inside[project_id]:
                del self._inside[project_id]
