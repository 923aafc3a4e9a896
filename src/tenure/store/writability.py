"""Whether the database takes writes: asked by the health check, answered from what was written last or by a probe."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import DBAPIError

from tenure.domain.errors import Unavailable
from tenure.open_file import OpenFile

#: How long a write that succeeded, or a probe that failed, is the answer, in seconds.
KEEP_SECONDS = 10.0
KEEP_FAILURE_SECONDS = 2.0

_NO_WRITES = "it takes no writes"
_DAMAGED = "the file is damaged; restore a backup"
_FULL = "its disk is full"
_READ_ONLY = "it is read-only"
_SQLITE = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_IOERR: "its file cannot be read or written",
    sqlite3.SQLITE_BUSY: "another process has locked the file",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}
#: By SQLSTATE of PostgreSQL, and by error code of MariaDB.
_SERVERS: dict[object, str] = {
    "53100": _FULL,
    "25006": _READ_ONLY,
    1021: _FULL,
    1114: _FULL,
    1290: _READ_ONLY,
    1792: _READ_ONLY,
    1836: _READ_ONLY,
}


class Writability:
    """What is known about writes to one database. Safe for any number of threads."""

    def __init__(
        self, file: OpenFile | None, probe: Callable[[], None], *, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        """``probe`` writes and commits something of no meaning; it raises ``Unavailable`` or ``DBAPIError``."""
        self._file = file
        self._probe = probe
        self._seconds = seconds
        self._probing = threading.Lock()
        #: The last answer and until when it holds. A failed transaction ends it.
        self._answer: str | None = None
        self._until = -1.0
        self._damaged = False

    def succeeded(self) -> None:
        """Note that a write was committed."""
        self._answer, self._until = None, self._seconds() + KEEP_SECONDS

    def failed(self, error: BaseException) -> None:
        """Note that the database failed, so that the next answer needs a probe."""
        self._until = -1.0
        if reason_of(error) == _DAMAGED:
            self._damaged = True  # other pages may be whole, so that a probe shows nothing

    def ailment(self) -> str | None:
        """Return why nothing can be booked, without secrets; None if writes work.

        A row is written at most once in ten seconds, and only if no other transaction has written meanwhile.
        """
        known = self.known_ailment()
        if known is not None:
            return known
        if self._seconds() >= self._until and self._probing.acquire(blocking=False):
            try:
                self._ask()
            finally:
                self._probing.release()
        return self._answer

    def known_ailment(self) -> str | None:
        """Return why nothing can be booked, as far as that is known without the database."""
        known = None if self._file is None else self._file.lost() or self._file.short_of_space()
        return known or (_DAMAGED if self._damaged else None)

    def _ask(self) -> None:
        try:
            self._probe()
        except (Unavailable, DBAPIError) as error:
            self._answer, self._until = reason_of(error) or _NO_WRITES, self._seconds() + KEEP_FAILURE_SECONDS
            self._damaged = self._damaged or self._answer == _DAMAGED
        else:
            self.succeeded()


def reason_of(error: BaseException) -> str | None:
    """Return in a few words why the database failed; None if they are not known."""
    cause = error if isinstance(error, DBAPIError) else error.__cause__
    if not isinstance(cause, DBAPIError):
        return None
    original = cause.orig
    if isinstance(original, sqlite3.Error):
        return _SQLITE.get(getattr(original, "sqlite_errorcode", 0) & 0xFF)
    code = getattr(original, "sqlstate", None) or next(iter(getattr(original, "args", ())), None)
    return _SERVERS.get(code)
