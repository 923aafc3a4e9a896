"""Transactions: the only access to the database."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    create_engine,
    event,
    func,
    literal_column,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft
from sqlalchemy.orm import Session

from tenure import deadlines
from tenure.clock import Clock
from tenure.domain.errors import TooManyConflicts, Unavailable
from tenure.open_file import OpenFile
from tenure.store.allocations import AllocationStore
from tenure.store.boots import BootStore
from tenure.store.conflict import Overbooked, Overtaken
from tenure.store.events import EventStore
from tenure.store.fair_lock import FairLock
from tenure.store.feed import Feed, FeedStore
from tenure.store.gains import Gains
from tenure.store.keys import KeyStore
from tenure.store.leases import LeaseStore
from tenure.store.ledger import LedgerStore
from tenure.store.outbox import OutboxStore
from tenure.store.project_locks import ProjectLocks
from tenure.store.projects import ProjectStore
from tenure.store.purge import PurgeStore
from tenure.store.resources import ResourceStore
from tenure.store.upkeep import PROBE, UpkeepStore
from tenure.store.usage import UsageStore
from tenure.store.waiting import WaitingStore
from tenure.store.writability import Writability
from tenure.store.write_ahead_log import WriteAheadLog

P = ParamSpec("P")
T = TypeVar("T")
LOG = logging.getLogger(__name__)

#: How often to try a transaction that conflicts. From the third attempt on, the resources that the attempts before have
#: tried to change are locked first; in the last one, all resources are.
ATTEMPTS = 10
LOCKING_FROM = 3

#: How long a transaction waits for a row of PostgreSQL or MariaDB, and for the file of SQLite, in seconds.
ROW_WAIT_SECONDS = 10
SQLITE_WAIT_SECONDS = 30
#: After how many pages SQLite moves its write-ahead log into the database, and to how many bytes it cuts the log then.
WAL_PAGES = 500
WAL_BYTES = 1024 * 1024
#: The time after which a transaction is not retried, whatever the number of attempts, in seconds.
PATIENCE_SECONDS = 60.0

#: How long to wait for a connection, to the server or from the pool, in seconds.
CONNECT_SECONDS = 10
POOL_WAIT_SECONDS = 30.0
#: How long to wait for a silent server or network, in seconds. It is longer than any statement takes.
SILENCE_SECONDS = 60

#: The message for clients if the database does not work; the log has the details.
_DOWN = "The database does not work right now; try again later."
_WRONG = (
    "The service made a mistake: this would have promised a resource to two reservations. Nothing was changed; "
    "its log says more."
)
_UNKNOWN = (
    "The database stopped working while a change was being written, which may have been made or not; "
    "look before you try again later."
)

#: MariaDB error codes: record changed since last read, lock wait time-out, deadlock (or Galera's failed certification).
_MARIADB_RETRY = frozenset({1020, 1205, 1213})
#: PostgreSQL: serialization failure, deadlock, exclusion violation, lock not available without waiting.
_POSTGRESQL_RETRY = frozenset({"40001", "40P01", "23P01", "55P03"})
#: MariaDB: disk full, server shutdown, statement cancelled by the operator or after a time-out.
#: Also: table full, error on write, error of the storage engine, and the ways of being read-only.
_MARIADB_FAILED = frozenset({1021, 1026, 1030, 1053, 1114, 1290, 1317, 1792, 1836, 1969})
#: PostgreSQL error classes: insufficient resources, operator intervention, system error.
_POSTGRESQL_FAILED = frozenset({"53", "57", "58"})
#: PostgreSQL: read-only transaction, as on a server that has become a standby.
_POSTGRESQL_READ_ONLY = "25006"
#: SQLite: READONLY, IOERR, CORRUPT, FULL, CANTOPEN, NOTADB.
_SQLITE_FAILED = frozenset({8, 10, 11, 13, 14, 26})
#: The row of the health check on SQLite is about as large as a booking: there must be room for one.
_PROBE_LENGTH = 16 * 1024
#: How long the health check waits for other writers, in seconds.
_PROBE_WAIT_SECONDS = 5


class OutcomeUnknown(Unavailable):
    """The connection was lost during a commit: the changes may be stored or not.

    Only the services distinguish it. For all others it is ``Unavailable``, on the wire too.
    """

    def __init__(self) -> None:
        super().__init__(_UNKNOWN)


class Transaction:
    """The stores, on one session."""

    def __init__(self, session: Session, database: Database, attempt: Attempt | None = None) -> None:
        self.session = session
        self._database = database
        self._attempt = attempt
        self._locked: Collection[int] = ()
        self.listeners = database.listeners
        self.changed = Feed(session)
        self.feed = FeedStore(session)
        self.ledger = LedgerStore(session)
        self.leases = LeaseStore(session)
        self.resources = ResourceStore(session, self.changed)
        #: What this transaction gives out.
        self.gains = Gains(session)
        self.allocations = AllocationStore(session, self.gains, self.changed)
        self.events = EventStore(session)
        self.outbox = OutboxStore(session)
        self.projects = ProjectStore(session)
        self.purge = PurgeStore(session, self.changed)
        self.upkeep = UpkeepStore(session)
        self.usage = UsageStore(session)
        self.waiting = WaitingStore(session)
        self.keys = KeyStore(session)
        self.boots = BootStore(session)

    def commit(self) -> None:
        """Commit, and lift the deadline of the work: it is carried out.

        Raises ``Overtaken`` or ``DBAPIError`` if it conflicts with another transaction, ``Overbooked`` if a resource
        would be promised twice, and ``Unavailable`` if the database does not work. In all these cases nothing was
        written. But if the connection is lost during the commit, the outcome is unknown: ``OutcomeUnknown``, a subclass
        of ``Unavailable``.
        """
        database = self._database
        self.gains.verify()
        self.session.flush()
        has_changed = self.changed.write(database.time())
        database.commit(self.session)
        if self._attempt is not None:
            self._attempt.has_committed = True
        deadlines.lift()
        if database.file is not None and (lost := database.file.lost()) is not None:
            LOG.error("a change may be lost: %s", lost)
            raise OutcomeUnknown
        if has_changed:
            database.writability.succeeded()

    def lock_contended(self, resource_types: Collection[str]) -> Collection[int]:
        """Lock what earlier attempts tried to change; the last attempt locks all resources of these types. Return them.

        Call it after the lease is locked, and before resources are read.
        """
        if self._attempt is None or not self._attempt.locks_first:
            return ()
        if self._attempt.is_last:
            self._locked = self.resources.lock_all(resource_types)
        else:
            self.resources.lock(self._attempt.contended)
            self._locked = self._attempt.contended
        return self._locked

    def raise_versions(self, seen: Mapping[int, int]) -> None:
        """Record that these resources can promise something else now; see ``ResourceStore.raise_versions``.

        A transaction never waits for a row before one that it has locked, so there are no deadlocks.
        """
        if seen:
            self.resources.raise_versions(seen, wait=max(self._locked, default=0) < min(seen))

    def now(self) -> datetime:
        """Return the time that claims use: the database's own, unless a test's clock replaces it."""
        return self._database.now(self.session)


class Attempt:
    """An attempt at a transaction, as a context manager.

    If the transaction conflicts with another one, or if the block raises ``Overtaken``, nothing is written, and the
    block ends there without an error. At the end of the block, what was committed is on the disk; ``OutcomeUnknown`` is
    raised if the disk fails.
    """

    def __init__(self, database: Database, number: int, contended: Collection[int]) -> None:
        self._database = database
        #: The ids of the resources that the attempts before have tried to change.
        self.contended = contended
        self.is_last = number == ATTEMPTS
        self.locks_first = self.is_last or (number >= LOCKING_FROM and bool(contended))
        #: Whether another transaction came in between, and the ids of the resources that this one has tried to change.
        self.has_conflicted = False
        self.bumped: Collection[int] = ()
        self.has_committed = False

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None and self.has_committed:
            self._database.flush()
        if isinstance(error, Overbooked):
            LOG.error("a transaction was rolled back: it would have promised a resource twice", exc_info=error)
            raise TooManyConflicts(_WRONG) from error
        if not isinstance(error, Overtaken | DBAPIError) or not _is_retryable(error):
            return False
        LOG.debug("a transaction conflicted with another one: %s", error)
        self.has_conflicted = True
        return True

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open the transaction; call ``Transaction.commit`` at the end of the block, or it is rolled back.

        Raises ``Unavailable`` if the database does not work.
        """
        with (
            self._database.project_lock() if self.locks_first else nullcontext(),
            self._database.transaction(self) as tx,
        ):
            self.bumped = tx.resources.bumped
            yield tx


class Database:
    """A database with a pool of connections.

    ``clock`` replaces the time of the database. Without it, all managers use the database's clock instead of their own.
    Unless it is ``durable``, a file of SQLite may lose its last moments when the machine loses power.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        pool_size: int = 20,
        row_wait_seconds: int = ROW_WAIT_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        pool_wait_seconds: float = POOL_WAIT_SECONDS,
        durable: bool = True,
    ) -> None:
        self.engine = _engine(
            url, pool_size=pool_size, pool_wait_seconds=pool_wait_seconds, row_wait_seconds=row_wait_seconds
        )
        #: The file of the database; None on a server, and in memory.
        self.file = _file_of(self.engine)
        #: Its log; None if the database itself writes each commit to the disk, and if nothing has to be ``durable``.
        self._log = WriteAheadLog(str(self.engine.url.database)) if self.file is not None and durable else None
        #: Whether the database takes writes, for the health check.
        self.writability = Writability(self.file, self._probe)
        self._clock = clock
        self._patience_seconds = patience_seconds
        #: The channels of the outbox that get lease messages besides notifications: topics by channel.
        self.listeners: Mapping[str, frozenset[str]] = {}
        #: The lock of this process's writers, on SQLite.
        self._write_lock = FairLock()
        #: The locks of projects for large transactions, on a server.
        self._project_locks = ProjectLocks(self.engine, most=pool_size)
        self._row_wait_seconds = row_wait_seconds

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    def time(self) -> datetime | ColumnElement[datetime]:
        """Return the time that the database uses: a time, or the expression for the time of a server."""
        if self._clock is not None:
            return self._clock.now()
        if self.dialect == "sqlite":
            return datetime.now(UTC)  # SQLite: only this machine uses the file
        return func.clock_timestamp() if self.dialect == "postgresql" else literal_column("UTC_TIMESTAMP(6)")

    def now(self, session: Session) -> datetime:
        time = self.time()
        moment = time if isinstance(time, datetime) else session.execute(select(time)).scalar_one()
        assert isinstance(moment, datetime)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)

    def write(
        self, work: Callable[Concatenate[Transaction, P], T], /, *arguments: P.args, **named_arguments: P.kwargs
    ) -> T:
        """Return the result of ``work``, which is given a transaction and these arguments.

        On conflicts with others it is repeated from the beginning.

        Raises ``TooManyConflicts`` if that does not help, and the errors of ``work`` and of ``Transaction.commit``.
        """
        for attempt in self.attempts():
            with attempt, attempt.transaction() as tx:
                result = work(tx, *arguments, **named_arguments)
                tx.commit()
                return result
        raise TooManyConflicts

    def attempts(self) -> Iterator[Attempt]:
        """Yield attempts at a transaction until they, or the patience, are used up; then nothing was written.

        An attempt that has not conflicted with another transaction does not count. Raises the errors of
        ``Deadline.check``.
        """
        began, number = time.monotonic(), 1
        contended: set[int] = set()
        while True:
            deadlines.check()
            attempt = Attempt(self, number, contended)
            yield attempt
            number += attempt.has_conflicted
            if number > ATTEMPTS or time.monotonic() - began > self._patience_seconds:
                return
            contended |= set(attempt.bumped)
            if attempt.has_conflicted:
                time.sleep(random.uniform(0, 0.001 * 2**number))  # spread the attempts; not for security

    @contextmanager
    def transaction(self, attempt: Attempt) -> Iterator[Transaction]:
        """Open a transaction for an attempt; see ``Attempt.transaction``."""
        with (
            self._write_permit(),
            self._connection(tenure_check=deadlines.check) as connection,
            _session(connection) as session,
        ):
            yield Transaction(session, self, attempt)

    def commit(self, session: Session) -> None:
        """Commit. Raises ``OutcomeUnknown`` if the database stops working meanwhile."""
        try:
            session.commit()
        except DBAPIError as error:
            if not _database_failed(error):
                raise
            LOG.warning("the database did not work during a commit: %s", error.orig)
            self.writability.failed(error)
            raise OutcomeUnknown from error

    def flush(self) -> None:
        """Return when all that this thread has committed is on the disk. Raises ``OutcomeUnknown`` if the disk fails.

        Servers do that at each commit. On SQLite it is apart from the commit, so that other writers need not wait for
        the disk, and so that those who wait for it wait together.
        """
        if self._log is None:
            return
        try:
            self._log.flush()
        except OSError as error:
            LOG.error("the disk has failed, so a change may be lost: %s", error)
            raise OutcomeUnknown from error

    @contextmanager
    def _write_permit(self) -> Iterator[None]:
        """On SQLite, queue up with the other writers of this process; the one before calls the next.

        For the file's own lock, SQLite only polls at growing intervals: long-waiting writers lose against new ones.
        """
        if self.dialect != "sqlite":
            yield
            return
        mine = self._write_lock.acquire(deadlines.project(), seconds=min(SQLITE_WAIT_SECONDS, deadlines.seconds_left()))
        try:
            deadlines.check()
            yield
        finally:
            if mine:
                self._write_lock.release()

    @contextmanager
    def project_lock(self) -> Iterator[None]:
        """Carry out large work with its project's lock: on a server, of all managers, one such work at a time.

        Each that waited for rows would make all other projects wait longer for theirs. The service itself waits for no
        lock. Raises the errors of ``Deadline.check``.
        """
        project_id = deadlines.project()
        if self.dialect == "sqlite" or not project_id:
            yield
            return
        with self._project_locks.lock(project_id, min(self._row_wait_seconds, deadlines.seconds_left())):
            deadlines.check()
            yield

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """Open a read-only transaction on a single snapshot of the database.

        Raises ``Unavailable`` if the database does not work, also while reading, and the errors of ``Deadline.check``
        before each statement after the deadline of the work.
        """
        if self.dialect == "sqlite":
            options: dict[str, Any] = {"tenure_reading": True}
        else:
            options = {"isolation_level": "REPEATABLE READ"}
        options["tenure_check"] = deadlines.check
        try:
            with self._connection(**options) as connection, _session(connection) as session:
                yield Transaction(session, self)
        except DBAPIError as error:
            if not _is_retryable(error):
                raise
            LOG.warning("the database refused to begin a read transaction: %s", error.orig)
            raise Unavailable(_DOWN) from error

    @contextmanager
    def _connection(self, **options: Any) -> Iterator[Connection]:
        """Open a connection; raise ``Unavailable`` if none can be opened, or if it is lost while in use."""
        self._require_file()  # before connecting: SQLite would create a new file in place of a deleted one
        try:
            connection = self.engine.connect()
        except NoConnectionLeft as error:
            LOG.warning("the database cannot be used: %s", error)
            raise Unavailable(_DOWN) from error
        except DBAPIError as error:
            if _is_retryable(error):
                raise
            LOG.warning("the database cannot be reached: %s", error.orig)
            raise Unavailable(_DOWN) from error
        with connection:
            self._require_file()
            try:
                prepared = connection.execution_options(**options)
            except (
                self.engine.dialect.loaded_dbapi.Error
            ) as error:  # MariaDB's isolation level is set outside SQLAlchemy
                LOG.warning("the connection to the database was lost: %s", error)
                raise Unavailable(_DOWN) from error
            try:
                yield prepared
            except DBAPIError as error:
                if not _database_failed(error):
                    raise
                LOG.warning("the database does not work: %s", error.orig)
                self.writability.failed(error)
                raise Unavailable(_DOWN) from error

    def _require_file(self) -> None:
        """Raise ``Unavailable`` if what is written into the file would be lost."""
        if self.file is not None and (lost := self.file.lost()) is not None:
            LOG.error("the database cannot be used: %s", lost)
            raise Unavailable(_DOWN)

    def require_space(self) -> None:
        """Raise ``Unavailable`` if the disk is too full for new promises, so that what was promised can be kept."""
        if self.file is not None and (short := self.file.short_of_space()) is not None:
            LOG.error("nothing new is booked: %s", short)
            raise Unavailable(_DOWN)

    def _probe(self) -> None:
        """Write and commit a row of no meaning.

        Raises ``Unavailable`` or ``DBAPIError``. If other transactions of this process write all the time, it returns
        after a while without writing: then writes work.
        """
        on_sqlite = self.dialect == "sqlite"
        if on_sqlite and not self._write_lock.acquire("", seconds=_PROBE_WAIT_SECONDS):
            return
        try:
            with self._connection() as connection:
                if on_sqlite:
                    _set_patience(connection, _PROBE_WAIT_SECONDS)
                try:
                    with _session(connection) as session:
                        padding = "0" * _PROBE_LENGTH if on_sqlite else None
                        UpkeepStore(session).record(PROBE, self.now(session), padding=padding)
                        self.commit(session)
                        self.flush()
                finally:
                    if on_sqlite:
                        _set_patience(connection, SQLITE_WAIT_SECONDS)
        except Overtaken:
            pass  # another manager has just written the first row
        finally:
            if on_sqlite:
                self._write_lock.release()

    def ping(self) -> None:
        """Run an empty query; raise ``Unavailable`` if the database does not answer."""
        with self.read() as tx:
            tx.session.execute(text("SELECT 1"))

    def close(self) -> None:
        self.engine.dispose()


def _session(connection: Connection) -> Session:
    return Session(connection, expire_on_commit=False)


def _set_patience(connection: Connection, seconds: float) -> None:
    """Set how long a connection to SQLite waits for other processes; outside of its transactions."""
    raw: Any = connection.connection.dbapi_connection
    raw.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


def _database_failed(error: DBAPIError) -> bool:
    """Whether the connection or the database failed, rather than the statement."""
    return (
        error.connection_invalidated
        or _code(error) in _MARIADB_FAILED
        or (getattr(error.orig, "sqlstate", None) or "")[:2] in _POSTGRESQL_FAILED
        or getattr(error.orig, "sqlstate", None) == _POSTGRESQL_READ_ONLY
        or getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE_FAILED  # the higher bits give details
    )


def _code(error: DBAPIError) -> object:
    return next(iter(getattr(error.orig, "args", ())), None)


def _is_retryable(error: Exception) -> bool:
    """Whether the transaction may succeed if it is retried."""
    if isinstance(error, Overtaken):
        return True
    if not isinstance(error, DBAPIError):
        return False
    original: Any = error.orig
    if getattr(original, "sqlstate", None) in _POSTGRESQL_RETRY:
        return True
    if _code(error) in _MARIADB_RETRY:
        return True
    return "database is locked" in str(original)


def _engine(url: str, *, pool_size: int, pool_wait_seconds: float, row_wait_seconds: int) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = create_engine(
            parsed,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_timeout=pool_wait_seconds,
            connect_args={"timeout": SQLITE_WAIT_SECONDS},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", begin_immediate)
        event.listen(engine, "before_cursor_execute", _check_before)
        return engine
    engine = create_engine(
        parsed,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=pool_wait_seconds,
        connect_args=_timeouts(parsed.get_backend_name()),
        pool_pre_ping=True,
        pool_recycle=1800,
        # Each statement of a write sees the newest rows, so an attempt that locks rows first also decides on them.
        isolation_level="READ COMMITTED",
    )
    settings = (
        # No JIT: our statements stop after a bounded number of rows, which the server's estimates do not consider.
        ("SET jit = off", f"SET lock_timeout = '{row_wait_seconds}s'")
        if parsed.get_backend_name() == "postgresql"
        else (f"SET innodb_lock_wait_timeout = {row_wait_seconds}",)
    )
    event.listen(engine, "connect", lambda connection, _record: _prepare_server(connection, settings))
    event.listen(engine, "before_cursor_execute", _check_before)
    return engine


def _check_before(connection: Connection, *_arguments: object) -> None:
    """Check before a statement whether its transaction may go on."""
    check = connection.get_execution_options().get("tenure_check")
    if check is not None:
        check()


def _file_of(engine: Engine) -> OpenFile | None:
    """Return the file of an SQLite database, which follows the connections to it."""
    path = engine.url.database
    if engine.dialect.name != "sqlite" or not path or path == ":memory:":
        return None
    file = OpenFile(path)
    event.listen(engine, "connect", lambda _connection, _record: file.opened())
    event.listen(engine, "close", lambda _connection, _record: file.closed())
    event.listen(engine, "close_detached", lambda _connection: file.closed())
    return file


def _timeouts(backend: str) -> dict[str, Any]:
    """Return the time-outs in the driver's own options."""
    if backend == "postgresql":
        return {
            "connect_timeout": CONNECT_SECONDS,
            "keepalives_idle": SILENCE_SECONDS // 2,
            "keepalives_interval": SILENCE_SECONDS // 6,
            "keepalives_count": 3,
            "tcp_user_timeout": SILENCE_SECONDS * 1000,
        }
    return {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": SILENCE_SECONDS,
        "write_timeout": SILENCE_SECONDS,
    }


def _prepare_server(connection: Any, settings: Iterable[str]) -> None:
    with connection.cursor() as cursor:
        for statement in settings:
            cursor.execute(statement)
    connection.commit()


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves
    cursor = connection.cursor()
    (mode,) = cursor.execute("PRAGMA journal_mode=WAL").fetchone()
    # Without the log, as in memory, a commit itself goes to the disk; see ``Database.flush``.
    cursor.execute(f"PRAGMA synchronous={'NORMAL' if mode == 'wal' else 'FULL'}")
    cursor.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
    cursor.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def begin_immediate(connection: Connection) -> None:
    """Take SQLite's write lock at the beginning, so that what a transaction has read is still valid when it writes."""
    reading = connection.get_execution_options().get("tenure_reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
