"""Objects in a file: tables in memory, written to one SQLite file with each change, and a journal.

Any number of processes may have the file open: each change is one transaction, and a process sees the changes of the
others before it reads or changes anything. A process that is killed at any instant leaves whole changes only.

The file is in WAL mode with ``synchronous=NORMAL``: a commit survives the death of the process without a flush. A
machine that loses its power may forget the last changes, and the file stays whole; a simulation needs no more.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter

from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudBusy
from tenure.drivers.simulated.openstack.indexes import Index, Tally
from tenure.open_file import OpenFile

K = TypeVar("K", bound=str | int)
V = TypeVar("V")

#: The path for objects that are in no file, and end with the process.
IN_MEMORY: Final = ":memory:"
#: How many entries the journal keeps at least, and for how many further changes the file records that an object was
#: deleted: a process that has the file open reads it more often. Both are trimmed after this many new entries.
JOURNALED, REMEMBERED, _TRIMMED_EVERY = 100_000, 100_000, 1000
#: How long a process waits for the transaction of another process, which takes a fraction of a millisecond.
_LOCK_TIMEOUT_SECONDS: Final = 20.0
#: How often, and how long, a process waits for another process that opens the file at the same time.
_OPENINGS, _OPENING_SECONDS = 1000, 0.005

#: The format of the file. Files with lower numbers are refused.
_FORMAT: Final = 100
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS object (
    kind TEXT NOT NULL, key TEXT NOT NULL, document BLOB, revision INTEGER NOT NULL, PRIMARY KEY (kind, key)
) WITHOUT ROWID"""
#: The serializers by class; creating a serializer takes milliseconds.
_ADAPTERS: Final[dict[object, TypeAdapter[Any]]] = {}
_INDEX: Final = "CREATE INDEX IF NOT EXISTS object_by_revision ON object (revision)"
_JOURNAL: Final = "CREATE TABLE IF NOT EXISTS journal (sequence INTEGER PRIMARY KEY AUTOINCREMENT, entry BLOB NOT NULL)"
_FORGET: Final = "DELETE FROM object WHERE document IS NULL AND revision <= ?"
_WRITE: Final = """
INSERT OR REPLACE INTO object (kind, key, document, revision)
VALUES (?, ?, ?, 1 + (SELECT coalesce(max(revision), 0) FROM object))"""


class Table(dict[K, V], Generic[K, V]):
    """Objects of one kind by key, in the order in which they were added.

    What is added, replaced or deleted by its key is written with the change in which that happens; other methods of
    dictionaries go unseen. An object that was changed in place must be given to ``save``.
    """

    def __init__(self, kind: str, adapter: TypeAdapter[V], key: Callable[[str], K]) -> None:
        super().__init__()
        self._kind = kind
        self._adapter = adapter
        self._key = key
        self._unsaved: set[K] = set()
        self._followers: list[Index[K, V] | Tally[K, V]] = []

    def __setitem__(self, key: K, value: V) -> None:
        self._put(key, value)
        self._unsaved.add(key)

    def __delitem__(self, key: K) -> None:
        super().__delitem__(key)
        self._forget(key)
        self._unsaved.add(key)

    def index(self, of: Callable[[V], Hashable]) -> Callable[[Hashable], list[V]]:
        """Add an index by the value of ``of`` to a table that is still empty."""
        index: Index[K, V] = Index(of)
        self._followers.append(index)
        return lambda group: [
            value for key in index.keys(group) if (value := self.get(key)) is not None and of(value) == group
        ]

    def tally(self, amounts_of: Callable[[V], tuple[Hashable, Mapping[str, int]]]) -> Tally[K, V]:
        """Add sums of ``amounts_of`` by group to a table that is still empty."""
        tally: Tally[K, V] = Tally(amounts_of)
        self._followers.append(tally)
        return tally

    def save(self, key: K) -> None:
        """Write the object with this key, which was changed in place."""
        if key in self:
            self._follow(key, self[key])
        self._unsaved.add(key)

    def unsaved(self) -> list[tuple[str, str, bytes | None]]:
        """The objects that are not written yet: kind, key and document, None for a deleted object."""
        return [(self._kind, str(key), self._dumped(key)) for key in self._unsaved]

    def unsaved_keys(self) -> list[str]:
        """The keys of the objects that are not written yet, also of those that cannot be written."""
        return [str(key) for key in self._unsaved]

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved)

    def is_saved(self) -> None:
        """Mark all objects as written."""
        self._unsaved.clear()

    def load(self, key: str, document: bytes | None) -> None:
        """Load an object as another process has written it."""
        if document is None:
            super().pop(self._key(key), None)
            self._forget(self._key(key))
        else:
            self._put(self._key(key), self._adapter.validate_json(document))

    def _put(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self._follow(key, value)

    def _follow(self, key: K, value: V) -> None:
        for follower in self._followers:
            follower.put(key, value)

    def _forget(self, key: K) -> None:
        for follower in self._followers:
            follower.drop(key)

    def _dumped(self, key: K) -> bytes | None:
        return self._adapter.dump_json(self[key]) if key in self else None


class Objects:
    """The tables of one file. Changes and reads exclude each other within the process."""

    def __init__(self, path: str | PathLike[str] = IN_MEMORY) -> None:
        self.lock = threading.RLock()
        self._tables: dict[str, Table[Any, Any]] = {}
        self._in_change = False
        self._revision = 0
        self._seen_version: int | None = None
        self._file = _open(path)
        self._on_disk = None if path == IN_MEMORY else OpenFile(path)
        if self._on_disk is not None:
            self._on_disk.opened()
            self._on_disk.lost()  # notes the files as they are now

    def ailment(self) -> str | None:
        """Return why changes would be lost; None if they are stored."""
        return None if self._on_disk is None else self._on_disk.lost()

    def table(self, kind: str, of: type[V], key: Callable[[str], K]) -> Table[K, V]:
        """Return a new table; ``key`` parses a key."""
        adapter = _ADAPTERS.get(of) or _ADAPTERS.setdefault(of, TypeAdapter(of))
        made: Table[K, V] = Table(kind, adapter, key)
        self._tables[kind] = made
        return made

    def close(self) -> None:
        with self.lock:
            self._file.close()
            if self._on_disk is not None:
                self._on_disk.closed()

    @contextmanager
    def change(self) -> Iterator[None]:
        """A change, all of which is written or nothing; one within another is a part of it.

        What was changed outside of any change before is written first.
        """
        with self.lock:
            if self._in_change:
                yield
                return
            if any(table.has_unsaved for table in self._tables.values()):
                with self._transaction():
                    pass
            with self._transaction():
                yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._begin()
        self._in_change = True
        try:
            self._refresh()
            known = self._revision
            try:
                yield
                self._write()
                self._file.execute("COMMIT")
            except BaseException as error:
                self._revision = known
                if self._file.in_transaction:  # SQLite itself rolls back if the disk is full
                    self._file.execute("ROLLBACK")
                self._restore()
                busy = _busy(error) if isinstance(error, sqlite3.OperationalError) else None
                if busy is None:
                    raise
                raise busy from error
        finally:
            self._in_change = False
            for table in self._tables.values():
                table.is_saved()

    @contextmanager
    def look(self) -> Iterator[None]:
        """Read the current objects; nothing is written."""
        with self.lock:
            if not self._in_change:
                version = self._file.execute("PRAGMA data_version").fetchone()[0]
                if version != self._seen_version:
                    self._refresh()
                    self._seen_version = version
            yield

    def append(self, entry: bytes) -> None:
        """Add an entry to the journal, in the current change. The journal keeps the newest ``JOURNALED`` entries."""
        sequence = self._file.execute("INSERT INTO journal (entry) VALUES (?)", (entry,)).lastrowid or 0
        if sequence % _TRIMMED_EVERY == 0:
            self._file.execute("DELETE FROM journal WHERE sequence <= ?", (sequence - JOURNALED,))

    def journal(self) -> list[tuple[int, bytes]]:
        """The entries with their numbers, oldest first."""
        with self.lock:
            return self._file.execute("SELECT sequence, entry FROM journal ORDER BY sequence").fetchall()

    def _begin(self) -> None:
        if (lost := self.ailment()) is not None:
            raise CloudBusy(Reason(f"The simulated cloud cannot be used: {lost}."))
        try:
            self._file.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if (busy := _busy(error)) is None:
                raise
            raise busy from error

    def _refresh(self) -> None:
        """Load the changes of other processes since the last read."""
        rows = self._file.execute(
            "SELECT kind, key, document, revision FROM object WHERE revision > ? ORDER BY revision", (self._revision,)
        )
        for kind, key, document, revision in rows.fetchall():
            self._tables[kind].load(key, document)
            self._revision = revision

    def _write(self) -> None:
        """Write the unsaved objects."""
        rows = [row for table in self._tables.values() for row in table.unsaved()]
        if rows:
            before = self._revision
            self._file.executemany(_WRITE, rows)
            self._revision = self._file.execute("SELECT max(revision) FROM object").fetchone()[0]
            if self._revision // _TRIMMED_EVERY != before // _TRIMMED_EVERY:
                self._file.execute(_FORGET, (self._revision - REMEMBERED,))

    def _restore(self) -> None:
        """Reset the unsaved objects to their state in the file, also those that cannot be written."""
        for kind, key in [(kind, key) for kind, table in self._tables.items() for key in table.unsaved_keys()]:
            name = key.encode(errors="replace").decode()  # the file holds no key with half of a surrogate pair
            row = self._file.execute("SELECT document FROM object WHERE kind = ? AND key = ?", (kind, name)).fetchone()
            self._tables[kind].load(key, row[0] if row is not None else None)


def _busy(error: sqlite3.OperationalError) -> CloudBusy | None:
    """Return the refusal for a temporary error of SQLite; None if it is a mistake of this program."""
    code = error.sqlite_errorcode & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CloudBusy(Reason("The simulated cloud is busy with other requests."))
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return CloudBusy(Reason("The file of the simulated cloud cannot be written."))
    return None


def _open(path: str | PathLike[str]) -> sqlite3.Connection:
    file = sqlite3.connect(fspath(path), timeout=_LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _refuse_others(file)
        _lay_out(file)
    except BaseException:
        file.close()
        raise
    return file


def _refuse_others(file: sqlite3.Connection) -> None:
    """Refuse a file of another program, and leave it unchanged."""
    if file.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        return
    # Read last, as another process may create the tables meanwhile: it does so in one transaction.
    (found,) = file.execute("PRAGMA user_version").fetchone()
    if 0 < found < _FORMAT:
        raise ValueError("the file has the format of an earlier release, which is not supported")
    if found != _FORMAT:
        raise ValueError("the file is not that of a simulated cloud, or has an unknown format")


def _lay_out(file: sqlite3.Connection) -> None:
    # Another process that opens the file at the same time makes the switch fail at once, without the wait that other
    # statements have; at the next attempt it has made the switch.
    for _ in range(_OPENINGS):
        try:
            file.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            threading.Event().wait(_OPENING_SECONDS)
        else:
            file.execute("PRAGMA synchronous = NORMAL")
            file.execute("BEGIN IMMEDIATE")
            for statement in (_TABLE, _INDEX, _JOURNAL, f"PRAGMA user_version = {_FORMAT}"):
                file.execute(statement)
            file.execute("COMMIT")
            return
    raise CloudBusy(Reason("The simulated cloud is busy with other requests."))
