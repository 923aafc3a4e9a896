"""The file that a simulated cloud lives in.

One SQLite file, which several processes may have open. A change and its line in the journal are one
transaction, so a process that is killed at any instant leaves a file in which each effect is either there and
written down, or neither.

The file is in WAL mode with ``synchronous=NORMAL``: a commit is a write to the system's page cache without a
flush, which costs microseconds and survives the death of the process. A machine that loses its power may
forget the last effects, and the file stays whole; a simulation needs no more.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from os import PathLike, fspath
from typing import Final

from tenure.clock import Clock
from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudBusy
from tenure.drivers.simulated.tables import ADDED, FORMAT, TABLES

#: A cloud that nobody else sees and that ends with its process.
IN_MEMORY: Final = ":memory:"
#: How long one process waits for another's transaction, which takes a fraction of a millisecond.
LOCK_TIMEOUT_SECONDS: Final = 20.0


class EffectKind(StrEnum):
    """What changed in the cloud."""

    HOST_POOLED = "host pooled"  # from general use to the pool
    HOST_UNPOOLED = "host unpooled"  # from the pool to general use
    GROUP_MADE = "group made"
    GROUP_CHANGED = "group changed"  # another owner
    HOST_TAKEN = "host taken"  # to a reservation's group
    HOST_RETURNED = "host returned"  # from a reservation's group to the pool
    GROUP_REMOVED = "group removed"
    SERVER_BOOTED = "server booted"
    SERVER_DELETED = "server deleted"  # the deletion was ordered; it may take a while
    IMAGE_MADE = "image made"
    TRUST_MADE = "trust made"
    TRUST_REVOKED = "trust revoked"
    SERVER_GROUP_MADE = "server group made"
    SERVER_GROUP_REMOVED = "server group removed"
    FLAVOR_MADE = "flavor made"
    FLAVOR_CHANGED = "flavor changed"  # its extra specs
    FLAVOR_REMOVED = "flavor removed"
    ACCESS_GIVEN = "access given"  # to a flavor, to a project
    ACCESS_TAKEN = "access taken"
    AGGREGATE_MADE = "aggregate made"
    AGGREGATE_CHANGED = "aggregate changed"  # its metadata
    AGGREGATE_REMOVED = "aggregate removed"
    HOST_ADDED = "host added"  # to an aggregate of instances, which leaves it in the pool
    HOST_DROPPED = "host dropped"  # from an aggregate of instances
    CLASS_MADE = "class made"
    CLASS_REMOVED = "class removed"
    INVENTORY_SET = "inventory set"
    INVENTORY_REMOVED = "inventory removed"
    SERVER_TOLD = "server told"  # that it has to go, and by when
    SERVER_STOPPED = "server stopped"
    SERVER_MOVED = "server moved"  # off its reserved host, once it is stopped
    SERVER_MARKED = "server marked"  # with its lease, or not any more
    SERVER_SHELVED = "server shelved"  # it is on no host then
    SERVER_WOKEN = "server woken"
    ADDRESS_MADE = "address made"
    ADDRESS_TAGGED = "address tagged"
    ADDRESS_DISASSOCIATED = "address disassociated"
    ADDRESS_REMOVED = "address removed"
    VOLUME_MADE = "volume made"
    VOLUME_DETACHED = "volume detached"
    VOLUME_KEPT = "volume kept"
    VOLUME_REMOVED = "volume removed"
    VOLUME_SNAPSHOT_MADE = "volume snapshot made"


@dataclass(frozen=True, slots=True)
class Effect:
    """A line of the journal: one thing that changed, once."""

    sequence: int
    at: datetime
    verb: str
    kind: EffectKind
    reservation_id: str | None
    host: str | None
    subject: str | None


class StateFile:
    """The open file, for any number of threads and processes. Transactions are short and never nested."""

    def __init__(self, path: str | PathLike[str], clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # One connection for all threads: a transaction takes microseconds, and readers wait no longer than
        # writers.
        self._connection = sqlite3.connect(
            fspath(path), timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._connection.row_factory = sqlite3.Row
        self._use_write_ahead_log()
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._make_tables()

    def now(self) -> datetime:
        """The time by which what happens is written down."""
        return self._clock.now()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that writes: everything in it happens, or nothing."""
        with self._lock:
            self._begin("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def look(self) -> Iterator[sqlite3.Connection]:
        """A transaction that reads: everything seen in it is of one instant."""
        with self._lock:
            self._begin("BEGIN")
            try:
                yield self._connection
            finally:
                self._connection.execute("ROLLBACK")

    def record(
        self,
        tx: sqlite3.Connection,
        verb: str,
        kind: EffectKind,
        *,
        reservation_id: str | None = None,
        host: int | None = None,
        subject: str | None = None,
    ) -> None:
        """Write the effect down, in the transaction that brings it about."""
        tx.execute(
            "INSERT INTO journal (at, verb, effect, reservation_id, host, subject) VALUES (?, ?, ?, ?, ?, ?)",
            (
                self._clock.now().isoformat(),
                verb,
                kind,
                reservation_id,
                None if host is None else str(host),
                subject,
            ),
        )

    def journal(self, reservation_id: str | None = None) -> list[Effect]:
        """Every effect, or those of one reservation, in the order in which they happened."""
        where, values = ("", ()) if reservation_id is None else ("WHERE reservation_id = ?", (reservation_id,))
        with self.look() as tx:
            rows = tx.execute(f"SELECT * FROM journal {where} ORDER BY sequence", values).fetchall()
        return [
            Effect(
                row["sequence"],
                datetime.fromisoformat(row["at"]),
                row["verb"],
                EffectKind(row["effect"]),
                row["reservation_id"],
                row["host"],
                row["subject"],
            )
            for row in rows
        ]

    def _begin(self, statement: str) -> None:
        try:
            self._connection.execute(statement)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            raise CloudBusy(Reason("the simulated cloud is busy with others")) from error

    def _use_write_ahead_log(self) -> None:
        # Another process that opens the file at the same moment makes the switch fail at once, without the
        # wait that other statements have; by the next look it has made the switch for us.
        for _ in range(1000):
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                threading.Event().wait(0.005)
            else:
                return
        raise CloudBusy(Reason("the simulated cloud is busy with others"))

    def _make_tables(self) -> None:
        with self.change() as tx:
            found = tx.execute("PRAGMA user_version").fetchone()[0]
            if found == FORMAT:
                return
            if found == 0 and not tx.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in TABLES:
                    tx.execute(statement)
                found = 1
            if found + 1 not in ADDED:
                raise ValueError("the file is not the state of a simulated cloud, or of another version of it")
            for version in range(found + 1, FORMAT + 1):
                for statement in ADDED[version]:
                    tx.execute(statement)
            tx.execute(f"PRAGMA user_version = {FORMAT}")
