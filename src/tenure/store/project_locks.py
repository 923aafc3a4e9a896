"""Locks of projects on a database server: of a project's large transactions, one runs at a time in all processes."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

LOG = logging.getLogger(__name__)

#: The project whose lock this thread has.
_MINE: ContextVar[str] = ContextVar("project_lock", default="")


class ProjectLocks:
    """Locks of the server, one for each project, which it gives in the order in which they are asked for.

    Without them, large transactions of a project would wait for each other's rows, and those of other projects behind
    all of them. What is promised is correct without locks, too, so nothing fails for lack of one.
    """

    def __init__(self, engine: Engine, *, most: int) -> None:
        """``most`` is how many locks this process waits for or has at a time; each needs a connection."""
        self._engine = engine
        self._permits = threading.BoundedSemaphore(most)

    @contextmanager
    def lock(self, project_id: str, seconds: float) -> Iterator[None]:
        """Carry out the block with the project's lock; without it if it does not come within so many seconds.

        A block within the block has the same lock.
        """
        if _MINE.get() == project_id or not self._permits.acquire(blocking=False):
            yield
            return
        mine = _MINE.set(project_id)
        try:
            connection = self._acquire(project_id, seconds)
            try:
                yield
            finally:
                if connection is not None:
                    self._release(connection, project_id)
        finally:
            _MINE.reset(mine)
            self._permits.release()

    def _acquire(self, project_id: str, seconds: float) -> Connection | None:
        """Return the connection that has the lock; None if it did not come, or the server did not answer."""
        try:
            connection = self._engine.connect()
        except (DBAPIError, NoConnectionLeft):
            return None  # the transaction itself says what does not work
        name = self._name(project_id)
        try:
            if self._engine.dialect.name == "postgresql":
                patience = {"patience": f"{max(1, math.ceil(seconds * 1000))}ms"}
                connection.execute(text("SELECT set_config('lock_timeout', :patience, true)"), patience)
                connection.execute(text("SELECT pg_advisory_xact_lock(:name)"), {"name": _number(name)})
                return connection
            parameters = {"name": name, "seconds": seconds}
            if connection.execute(text("SELECT GET_LOCK(:name, :seconds)"), parameters).scalar():
                return connection
        except DBAPIError as error:
            LOG.debug("a project does not get its lock: %s", error.orig)
        _close(connection)
        return None

    def _release(self, connection: Connection, project_id: str) -> None:
        try:
            if self._engine.dialect.name != "postgresql":  # there it ends with the transaction
                connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": self._name(project_id)})
        except DBAPIError as error:
            LOG.warning("the lock of a project ends with its connection: %s", error.orig)
            connection.invalidate()
        _close(connection)

    def _name(self, project_id: str) -> str:
        """Return the name of the lock: a server may have several of our databases."""
        return hashlib.sha256(f"{self._engine.url.database}/{project_id}".encode()).hexdigest()[:32]


def _number(name: str) -> int:
    return int.from_bytes(bytes.fromhex(name)[:8], signed=True)


def _close(connection: Connection) -> None:
    try:
        connection.close()
    except DBAPIError:
        connection.invalidate()
        connection.close()
