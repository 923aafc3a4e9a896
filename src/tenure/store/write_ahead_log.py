"""The write-ahead log of an SQLite file, and its way to the disk."""

from __future__ import annotations

import errno
import os
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
        self._path = Path(f"{database}-wal")
        self._guard = threading.Lock()
        #: Held by the thread that writes to the disk.
        self._disk = threading.Lock()
        self._next: _Flush | None = None
        #: The log whose name is on the disk, too: its number in the file system.
        self._named: int | None = None

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
                self._write()
                flush.has_succeeded = True
        finally:
            flush.is_over.set()

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
