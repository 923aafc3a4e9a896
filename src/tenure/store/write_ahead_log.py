"""The write-ahead log of an SQLite file, and its way to the disk."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from pathlib import Path


class _Flush:
    """A flush that is still to begin; whoever has committed before it begins waits for it."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.has_succeeded = False


class WriteAheadLog:
    """Writes the log to the disk for all commits at once that wait for it.

    With ``synchronous=NORMAL``, a commit of SQLite is in the log, but not on the disk. A flush of the log afterwards
    makes it as durable as with ``FULL``: the log is written in the order of the commits, and SQLite itself flushes the
    log before it moves pages into the database, and the database before it begins the log anew
    (https://www.sqlite.org/wal.html, "Checkpointing").
    """

    def __init__(self, database: str) -> None:
        self._database = os.path.realpath(database)  # as SQLite finds it, which is also the place of its log
        self._path = Path(f"{self._database}-wal")
        self._guard = threading.Lock()
        #: Held by the thread that writes to the disk.
        self._disk = threading.Lock()
        self._next: _Flush | None = None
        #: The log whose name is on the disk, too: its number in the file system.
        self._named: int | None = None
        self._has_failed = False

    def flush(self) -> None:
        """Return when all that this thread has committed is on the disk. Raises ``OSError`` if the disk fails."""
        with self._guard:
            is_mine = self._next is None
            flush = self._next = self._next or _Flush()
        if is_mine:
            self._carry_out(flush)
            return
        flush.is_over.wait()
        if not flush.has_succeeded:
            raise OSError(errno.EIO, "another thread could not write the log to the disk")

    def _carry_out(self, flush: _Flush) -> None:
        try:
            with self._disk:
                with self._guard:
                    self._next = None  # what is committed from now on may be missed by this flush
                if self._has_failed:
                    self._move()
                self._has_failed = True
                self._write()
                self._has_failed = False
                flush.has_succeeded = True
        finally:
            flush.is_over.set()

    def _move(self) -> None:
        """Move the log into the database.

        After a failure, the system does not write again what it could not write, so the log may have a gap on the disk
        for good. SQLite reads it all from memory, and flushes the database.
        """
        connection = sqlite3.connect(self._database)
        try:
            (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"the log cannot be moved into the database: {error}") from None
        finally:
            connection.close()
        if is_busy:
            raise OSError(errno.EBUSY, "the log cannot be moved into the database while others use it")

    def _write(self) -> None:
        try:
            log = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            return  # SQLite has moved all of it into the database, and flushed that
        try:
            os.fdatasync(log)
            number = os.fstat(log).st_ino
        finally:
            os.close(log)
        if number != self._named:
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._named = number
