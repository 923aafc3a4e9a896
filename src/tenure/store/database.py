"""Transactions: the only way to the database."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, func, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft
from sqlalchemy.orm import Session

from tenure.clock import Clock
from tenure.domain.allocation import Choice
from tenure.domain.errors import TooManyConflicts, Unavailable
from tenure.store.allocations import AllocationStore
from tenure.store.conflict import GaveWay, Overbooked, Overtaken
from tenure.store.events import EventStore
from tenure.store.gains import Gains
from tenure.store.leases import LeaseStore
from tenure.store.outbox import OutboxStore
from tenure.store.projects import ProjectStore
from tenure.store.resources import ResourceStore

T = TypeVar("T")
LOG = logging.getLogger(__name__)

#: How often a transaction that met another is tried: again with what it wanted locked first, in the end with all.
ATTEMPTS = 10

#: How long a transaction waits for a row of PostgreSQL or MariaDB, and for the file of SQLite.
ROW_WAIT_SECONDS = 10
SQLITE_WAIT_SECONDS = 30
#: After how long a transaction is not tried again, however few attempts there were.
PATIENCE_SECONDS = 60.0

#: For how long a transaction may keep others waiting that looks for room, and how often it looks whether any wait.
COURTESY_SECONDS = 0.2
COURTESY_INTERVAL = 0.1
#: How long a transaction that gave way leaves to the others before it is tried again, at most.
GIVE_WAY_SECONDS = 0.05

#: How long to wait for a connection: to a server, and where others have all there are.
CONNECT_SECONDS = 10
POOL_WAIT_SECONDS = 30.0
#: How long to wait for a server, or a network, that says nothing any more. Longer than any statement lasts.
SILENCE_SECONDS = 60

#: What is said of a database that does not work; the log has the rest.
_DOWN = "The database does not work right now; try again later."
_WRONG = (
    "The service made a mistake: this would have promised a resource to two reservations. Nothing was changed; "
    "its log says more."
)
_UNKNOWN = (
    "The database stopped working while a change was being written, which may have been made or not; "
    "look before you try again later."
)

#: MariaDB: record changed since last read, lock wait time-out, deadlock (also Galera's failed certification).
_MARIADB_RETRY = frozenset({1020, 1205, 1213})
#: MariaDB: the savepoint to go back to is gone, with the whole transaction; the error before it says why.
_MARIADB_NO_SAVEPOINT = 1305
#: PostgreSQL: serialization failure, deadlock, exclusion violation, a lock that was not to be waited for.
_POSTGRESQL_RETRY = frozenset({"40001", "40P01", "23P01", "55P03"})
#: MariaDB: no room on the disk, the server is being shut down, the statement cancelled by the operator or after a time.
_MARIADB_FAILED = frozenset({1021, 1053, 1317, 1969})
#: PostgreSQL, classes of errors: insufficient resources, operator intervention, system error.
_POSTGRESQL_FAILED = frozenset({"53", "57", "58"})
#: SQLite: READONLY, IOERR, CORRUPT, FULL, CANTOPEN.
_SQLITE_FAILED = frozenset({8, 10, 11, 13, 14})


class OutcomeUnknown(Unavailable):
    """The connection was lost during a commit: what was written may be there or not.

    Nobody but the services tells it from others: it travels, and is answered, as ``Unavailable``.
    """

    def __init__(self) -> None:
        super().__init__(_UNKNOWN)


class Transaction:
    """The stores, on one session. Never commits itself."""

    def __init__(
        self, session: Session, database: Database, *, contended: Collection[int] = (), last: bool = False
    ) -> None:
        self.session = session
        self._contended = contended
        self._last = last
        self._database = database
        self._look_at = time.monotonic() + database.courtesy_seconds
        self.listeners = database.listeners
        #: What was found outside of the transaction, before it began.
        self.survey: Any = None
        #: What bookings choose in this transaction, by reservation.
        self.chosen: dict[str, Choice] = {}
        #: What they are to choose where it still can be had, by reservation; and what others are about to get.
        self.preferred: Mapping[str, Choice] = {}
        self.spoken_for: Collection[Choice] = ()
        self.leases = LeaseStore(session)
        self.resources = ResourceStore(session)
        self.gains = Gains(session)
        self.allocations = AllocationStore(session, self.gains)
        self.events = EventStore(session)
        self.outbox = OutboxStore(session)
        self.projects = ProjectStore(session)

    def hold(self, resource_types: Collection[str]) -> Collection[int]:
        """Lock first what the attempts before have wanted, the last time all there is; what that was.

        To be called before resources are read, and after the lease was locked.
        """
        if self._last:
            return self.resources.lock_all(resource_types)
        self.resources.lock(self._contended)
        return self._contended

    def defer_checks(self) -> None:
        """Let the exclusion constraint judge the end of the transaction, so that resources can be swapped in it."""
        if self._database.dialect == "postgresql":
            self.session.execute(text("SET CONSTRAINTS ALL DEFERRED"))

    def give_way(self) -> None:
        """Raise ``GaveWay`` where this transaction has locked for long what others wait for."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + COURTESY_INTERVAL
        if self._database.others_wait(self.session):
            raise GaveWay

    def now(self) -> datetime:
        """The time by which claims are timed: the database's own, unless a test's clock stands for it."""
        return self._database.now(self.session)


class Database:
    """A database, reached through a pool of connections.

    ``clock`` replaces the time of the database; without one, all managers read the same clock, whatever theirs say.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        pool_size: int = 20,
        echo: bool = False,
        row_wait_seconds: int = ROW_WAIT_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        pool_wait_seconds: float = POOL_WAIT_SECONDS,
        courtesy_seconds: float = COURTESY_SECONDS,
    ) -> None:
        self.courtesy_seconds = courtesy_seconds
        self.engine = _engine(
            url, pool_size=pool_size, pool_wait_seconds=pool_wait_seconds, echo=echo, row_wait_seconds=row_wait_seconds
        )
        self._clock = clock
        self._patience_seconds = patience_seconds
        #: Who is told what of leases beside notifications: topics by channel of the outbox.
        self.listeners: Mapping[str, frozenset[str]] = {}
        self._writing = threading.Lock()
        #: How many transactions of this process wait for their turn to write, on SQLite.
        self._waiting = 0
        self._counting = threading.Lock()

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    def now(self, session: Session) -> datetime:
        if self._clock is not None:
            return self._clock.now()
        if self.dialect == "sqlite":
            return datetime.now(UTC)  # the one machine that holds the file
        moment = session.execute(
            select(func.clock_timestamp() if self.dialect == "postgresql" else text("UTC_TIMESTAMP(6)"))
        ).scalar_one()
        assert isinstance(moment, datetime)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)

    def write(self, work: Callable[[Transaction], T], *, survey: Callable[[Transaction], object] | None = None) -> T:
        """Do ``work`` in one transaction, again from the beginning when others got in between.

        What takes long to find, and can be verified fast, is found by ``survey``: it reads in a transaction of its own
        before each attempt, keeps nobody from writing, and its answer is the ``survey`` of the transaction.

        Raises ``TooManyConflicts`` when that does not help, or a resource would be promised twice, and ``Unavailable``
        where the database does not work; the transaction has written nothing then. Only where the connection is
        lost during the commit it is not known: ``OutcomeUnknown``, which is an ``Unavailable``.
        """
        contended: set[int] = set()
        began = time.monotonic()
        attempt = 1
        while attempt <= ATTEMPTS:
            wanted: set[int] = set()
            found = None
            if survey is not None:
                with self.read() as reading:
                    found = survey(reading)
            try:
                with self._turn(), self._connection() as connection, _session(connection) as session:
                    tx = Transaction(session, self, contended=contended, last=attempt == ATTEMPTS)
                    tx.survey = found
                    wanted = tx.resources.wanted
                    result = work(tx)
                    tx.gains.verify()
                    session.flush()
                    _commit(session)
                    return result
            except GaveWay:
                if time.monotonic() - began > self._patience_seconds:
                    break
                time.sleep(random.uniform(0, GIVE_WAY_SECONDS))  # not secret
                continue
            except (Overtaken, DBAPIError) as error:
                if not _again(error):
                    raise
                LOG.debug("attempt %d met another transaction: %s", attempt, error)
            except Overbooked as error:
                LOG.exception("a transaction was rolled back that would have promised a resource twice")
                raise TooManyConflicts(_WRONG) from error
            contended |= wanted
            if time.monotonic() - began > self._patience_seconds:
                break
            if attempt < ATTEMPTS:
                time.sleep(random.uniform(0, 0.002 * 2**attempt))  # apart from each other, not secret
            attempt += 1
        raise TooManyConflicts

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """On SQLite, wait for the writers of this process, to be woken by the one before.

        For the file's own lock SQLite only asks again and again, at growing intervals: who has waited for long loses
        to those who have just come.
        """
        mine = self.dialect == "sqlite" and (self._writing.acquire(blocking=False) or self._wait_for_turn())
        try:
            yield
        finally:
            if mine:
                self._writing.release()

    def _wait_for_turn(self) -> bool:
        with self._counting:
            self._waiting += 1
        try:
            return self._writing.acquire(timeout=SQLITE_WAIT_SECONDS)
        finally:
            with self._counting:
                self._waiting -= 1

    def others_wait(self, session: Session) -> bool:
        """Whether other transactions wait for what this session has locked; on MariaDB, for what any has."""
        if self.dialect == "sqlite":
            return self._waiting > 0
        if self.dialect == "postgresql":
            waiting = "SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            return bool(session.execute(text(f"SELECT EXISTS ({waiting})")).scalar_one())
        [row] = session.execute(text("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"))
        return int(row[1]) > 0

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """A transaction that only reads, on one state of the database.

        Raises ``Unavailable``, also in the middle, where the database does not work.
        """
        if self.dialect == "sqlite":
            options: dict[str, Any] = {"tenure_reading": True}
        else:
            options = {"isolation_level": "REPEATABLE READ"}
        try:
            with self._connection(**options) as connection, _session(connection) as session:
                yield Transaction(session, self)
        except DBAPIError as error:
            if not _again(error):
                raise
            LOG.warning("the database let nobody read: %s", error.orig)
            raise Unavailable(_DOWN) from error

    @contextmanager
    def _connection(self, **options: Any) -> Iterator[Connection]:
        """A connection; ``Unavailable`` where there is none to be had, and where it is lost while it is used."""
        try:
            connection = self.engine.connect()
        except NoConnectionLeft as error:
            LOG.warning("the database cannot be used: %s", error)
            raise Unavailable(_DOWN) from error
        except DBAPIError as error:
            if _again(error):
                raise
            LOG.warning("the database cannot be reached: %s", error.orig)
            raise Unavailable(_DOWN) from error
        with connection:
            try:
                prepared = connection.execution_options(**options)
            except self.engine.dialect.loaded_dbapi.Error as error:  # MariaDB is told the level of isolation in person
                LOG.warning("the connection to the database was lost: %s", error)
                raise Unavailable(_DOWN) from error
            try:
                yield prepared
            except DBAPIError as error:
                if not _failed(error):
                    raise
                LOG.warning("the database does not work: %s", error.orig)
                raise Unavailable(_DOWN) from error

    def ping(self) -> None:
        """Ask the database for nothing; raises ``Unavailable`` where it does not answer."""
        with self.read() as tx:
            tx.session.execute(text("SELECT 1"))

    def close(self) -> None:
        self.engine.dispose()


def _session(connection: Connection) -> Session:
    return Session(connection, expire_on_commit=False)


def _commit(session: Session) -> None:
    try:
        session.commit()
    except DBAPIError as error:
        if not _failed(error):
            raise
        LOG.warning("the database did not work during a commit: %s", error.orig)
        raise OutcomeUnknown from error


def _failed(error: DBAPIError) -> bool:
    """Whether it was the connection or the database that failed, not what was asked of it."""
    return (
        error.connection_invalidated
        or _code(error) in _MARIADB_FAILED
        or (getattr(error.orig, "sqlstate", None) or "")[:2] in _POSTGRESQL_FAILED
        or getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _SQLITE_FAILED  # the rest says more exactly which
    )


def _code(error: DBAPIError) -> object:
    return next(iter(getattr(error.orig, "args", ())), None)


def _again(error: Exception) -> bool:
    """Whether the transaction may succeed when it is tried again."""
    if isinstance(error, Overtaken):
        return True
    if not isinstance(error, DBAPIError):
        return False
    original: Any = error.orig
    if getattr(original, "sqlstate", None) in _POSTGRESQL_RETRY:
        return True
    code = _code(error)
    if code in _MARIADB_RETRY:
        return True
    if code == _MARIADB_NO_SAVEPOINT and isinstance(error.__context__, DBAPIError):
        return _again(error.__context__)
    return "database is locked" in str(original)


def _engine(url: str, *, pool_size: int, pool_wait_seconds: float, echo: bool, row_wait_seconds: int) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = create_engine(
            parsed,
            echo=echo,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_timeout=pool_wait_seconds,
            connect_args={"timeout": SQLITE_WAIT_SECONDS},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", begin_immediate)
        return engine
    engine = create_engine(
        parsed,
        echo=echo,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=pool_wait_seconds,
        connect_args=_patience(parsed.get_backend_name()),
        pool_pre_ping=True,
        pool_recycle=1800,
        # Each statement of a write sees the newest rows, so that the attempt that locks them first decides on them.
        isolation_level="READ COMMITTED",
    )
    settings = (
        # Compile nothing: our statements end after a bounded number of rows, which the server's estimates do not see.
        ("SET jit = off", f"SET lock_timeout = '{row_wait_seconds}s'")
        if parsed.get_backend_name() == "postgresql"
        else (f"SET innodb_lock_wait_timeout = {row_wait_seconds}",)
    )
    event.listen(engine, "connect", lambda connection, _record: _prepare_server(connection, settings))
    return engine


def _patience(backend: str) -> dict[str, Any]:
    """How long the driver waits, in its own words."""
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
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def begin_immediate(connection: Connection) -> None:
    """Take SQLite's write lock at the beginning, so that what a transaction reads is still so when it writes."""
    reading = connection.get_execution_options().get("tenure_reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
