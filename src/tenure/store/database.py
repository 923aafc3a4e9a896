"""Transactions: the only access to the database."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

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
from tenure.domain.admission import AdmissionWay
from tenure.domain.allocation import Choice
from tenure.domain.errors import TooManyConflicts, Unavailable
from tenure.open_file import OpenFile
from tenure.store.allocations import AllocationStore
from tenure.store.conflict import GaveWay, Overbooked, Overtaken
from tenure.store.events import EventStore
from tenure.store.feed import Feed, FeedStore
from tenure.store.gains import Gains
from tenure.store.keys import KeyStore
from tenure.store.leases import LeaseStore
from tenure.store.ledger import LedgerStore
from tenure.store.outbox import OutboxStore
from tenure.store.project_turns import ProjectTurns
from tenure.store.projects import ProjectStore
from tenure.store.purge import PurgeStore
from tenure.store.resources import ResourceStore
from tenure.store.turns import Turns
from tenure.store.upkeep import PROBE, UpkeepStore
from tenure.store.usage import UsageStore
from tenure.store.waiting import WaitingStore
from tenure.store.writability import Writability

T = TypeVar("T")
LOG = logging.getLogger(__name__)

#: How often to try a transaction that conflicts. Later attempts lock first what they wanted before, the last one all.
ATTEMPTS = 10

#: How long a transaction waits for a row of PostgreSQL or MariaDB, and for the file of SQLite, in seconds.
ROW_WAIT_SECONDS = 10
SQLITE_WAIT_SECONDS = 30
#: After how many pages SQLite moves its write-ahead log into the database, and to how many bytes it cuts the log then.
WAL_PAGES = 500
WAL_BYTES = 1024 * 1024
#: The time after which a transaction is not retried, whatever the number of attempts, in seconds.
PATIENCE_SECONDS = 60.0

#: How statements begin that begin or end a part of a transaction: nothing else can be asked of the session then.
_PARTS = ("SAVEPOINT", "RELEASE SAVEPOINT", "ROLLBACK TO SAVEPOINT")

#: How long a transaction that searches for room may block others, and how often it checks whether it does, in seconds.
COURTESY_SECONDS = 0.2
COURTESY_INTERVAL = 0.1
#: How many times as long it may do so that has given way before.
MOST_COURTESIES = 3
#: The longest pause before a transaction that gave way is retried, in seconds.
GIVE_WAY_SECONDS = 0.05

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
#: MariaDB: the savepoint is gone, with the whole transaction; the error before it gives the cause.
_MARIADB_NO_SAVEPOINT = 1305
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


class _RolledBack(Exception):
    """Ends and rolls back the transaction of a rehearsal."""

    def __init__(self, result: Any) -> None:
        self.result = result


def _nothing() -> None:
    """Check nothing."""


@dataclass(slots=True)
class Checkpoint:
    """What is checked before each statement of a transaction."""

    check: Callable[[], None] = _nothing


class Transaction:
    """The stores, on one session. It never commits itself."""

    def __init__(
        self,
        session: Session,
        database: Database,
        *,
        contended: Collection[int] = (),
        last: bool = False,
        has_given_way: int = 0,
        is_trial: bool = False,
    ) -> None:
        """``has_given_way`` is how often the same work has given way to others before.

        ``is_trial`` is whether the transaction is rolled back in any case.
        """
        self.session = session
        self._is_trial = is_trial
        self._contended = contended
        self._last = last
        self._database = database
        # Longer each time, or it would never end beside others that write without a pause.
        courtesy = min(has_given_way + 1, MOST_COURTESIES)
        self._look_at = time.monotonic() + courtesy * database.courtesy_seconds
        self.listeners = database.listeners
        #: The result of the survey, which ran before the transaction began.
        self.survey: Any = None
        #: The choices of bookings in this transaction, by reservation id.
        self.chosen: dict[str, Choice] = {}
        #: The preferred choices for reservations, if still possible; and the choices that others are about to get.
        self.preferred: Mapping[str, Choice] = {}
        self.spoken_for: Collection[Choice] = ()
        #: How the new leases of this transaction are admitted, by lease id; reported once it is committed.
        self.admissions: dict[str, AdmissionWay] = {}
        self.changed = Feed(session)
        self.feed = FeedStore(session)
        self.ledger = LedgerStore(session)
        self.leases = LeaseStore(session)
        self.resources = ResourceStore(session, self.changed, is_trial=is_trial)
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

    def lock_contended(self, resource_types: Collection[str]) -> Collection[int]:
        """Lock what earlier attempts wanted; the last attempt locks all resources. Return the locked ids.

        Call it after the lease is locked, and before resources are read. What is rolled back in any case locks none.
        """
        if self._is_trial:
            return ()
        if self._last:
            return self.resources.lock_all(resource_types)
        self.resources.lock(self._contended)
        return self._contended

    def defer_checks(self) -> None:
        """Check the exclusion constraint only at the end of the transaction, so that resources can be swapped."""
        if self._database.dialect == "postgresql":
            self.session.execute(text("SET CONSTRAINTS ALL DEFERRED"))

    def give_way(self) -> None:
        """Raise ``GaveWay`` if this transaction has blocked others for too long."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = math.inf  # while it looks, which is a statement, too
        try:
            if self._database.others_wait(self.session):
                raise GaveWay
        finally:
            self._look_at = time.monotonic() + min(COURTESY_INTERVAL, self._database.courtesy_seconds)

    def go_on(self) -> None:
        """Raise what ends a transaction that is rolled back in any case: ``GaveWay``, or its deadline."""
        deadlines.check()
        self.give_way()

    def now(self) -> datetime:
        """Return the time that claims use: the database's own, unless a test's clock replaces it."""
        return self._database.now(self.session)


class Database:
    """A database with a pool of connections.

    ``clock`` replaces the time of the database. Without it, all managers use the database's clock instead of their own.
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
        courtesy_seconds: float = COURTESY_SECONDS,
    ) -> None:
        self.courtesy_seconds = courtesy_seconds
        self.engine = _engine(
            url, pool_size=pool_size, pool_wait_seconds=pool_wait_seconds, row_wait_seconds=row_wait_seconds
        )
        #: The file of the database; None on a server, and in memory.
        self.file = _file_of(self.engine)
        #: Whether the database takes writes, for the health check.
        self.writability = Writability(self.file, self._probe)
        self._clock = clock
        self._patience_seconds = patience_seconds
        #: The channels of the outbox that get lease messages besides notifications: topics by channel.
        self.listeners: Mapping[str, frozenset[str]] = {}
        #: Called for each new lease of a transaction that was committed.
        self.on_admitted: Callable[[AdmissionWay], None] = lambda _way: None
        #: The turns of this process to write, on SQLite.
        self._turns = Turns()
        #: The turns of projects for large transactions, on a server.
        self._project_turns = ProjectTurns(self.engine, most=pool_size)
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

    def write(self, work: Callable[[Transaction], T], *, survey: Callable[[Transaction], object] | None = None) -> T:
        """Run ``work`` in a transaction, and repeat it from the beginning on conflicts with others.

        ``survey`` is for what takes long to find and can be verified fast. Before each attempt it runs in a read
        transaction of its own, which blocks no writers; its result is ``tx.survey``.

        Raises ``TooManyConflicts`` if the attempts are used up, or a resource would be promised twice. Raises
        ``Unavailable`` if the database does not work. In both cases nothing was written. But if the connection is
        lost during the commit, the outcome is unknown: ``OutcomeUnknown``, a subclass of ``Unavailable``. Raises the
        errors of ``Deadline.check`` until the commit, which lifts the deadline of the work.
        """
        return self._transact(work, survey, is_trial=False)

    def _transact(
        self,
        work: Callable[[Transaction], T],
        survey: Callable[[Transaction], object] | None,
        *,
        is_trial: bool,
    ) -> T:
        """Run ``work`` as ``write`` says. A trial always raises."""
        with ExitStack() as project_turn:
            return self._attempts(work, survey, project_turn, is_trial=is_trial)

    def _attempts(
        self,
        work: Callable[[Transaction], T],
        survey: Callable[[Transaction], object] | None,
        project_turn: ExitStack,
        *,
        is_trial: bool,
    ) -> T:
        """Run ``work`` until it succeeds. What is large, or has conflicted, is in a ``project_turn`` until then."""
        contended: set[int] = set()
        began = time.monotonic()
        attempt, has_given_way = 1, 0
        while attempt <= ATTEMPTS:
            deadlines.check()
            if not is_trial and (survey is not None or contended):
                project_turn.enter_context(self.project_turn())
            wanted: set[int] = set()
            surveyed = None
            if survey is not None:
                with self.read() as reading:
                    surveyed = survey(reading)
            try:
                checkpoint = Checkpoint(deadlines.check)
                with (
                    self._turn(is_trial=is_trial),
                    self._connection(tenure_checkpoint=checkpoint) as connection,
                    self._without_locks_of_keys(connection) if is_trial else nullcontext(),
                    _session(connection) as session,
                ):
                    tx = Transaction(
                        session,
                        self,
                        contended=contended,
                        last=attempt == ATTEMPTS,
                        has_given_way=has_given_way,
                        is_trial=is_trial,
                    )
                    if is_trial:
                        checkpoint.check = tx.go_on
                        tx.defer_checks()  # else it would wait for others, as others do for it, and for each other
                    tx.survey = surveyed
                    wanted = tx.resources.wanted
                    result = work(tx)
                    tx.gains.verify()
                    session.flush()
                    has_changed = tx.changed.write(self.time())
                    self._commit(session)
                    deadlines.lift()
                    if self.file is not None and (lost := self.file.lost()) is not None:
                        LOG.error("a change may be lost: %s", lost)
                        raise OutcomeUnknown
                    if has_changed:
                        self.writability.succeeded()
                    for way in tx.admissions.values():
                        self.on_admitted(way)
                    return result
            except GaveWay:
                if time.monotonic() - began > self._patience_seconds:
                    break
                has_given_way += 1
                time.sleep(random.uniform(0, GIVE_WAY_SECONDS))  # randomness is not for security
                continue
            except (Overtaken, DBAPIError) as error:
                if not _is_retryable(error):
                    raise
                LOG.debug("attempt %d conflicted with another transaction: %s", attempt, error)
            except Overbooked as error:
                if is_trial:  # it locks nothing: others have booked the same meanwhile
                    LOG.debug("attempt %d of what is rolled back found its room taken: %s", attempt, error)
                    attempt += 1
                    continue
                LOG.exception("a transaction was rolled back: it would have promised a resource twice")
                raise TooManyConflicts(_WRONG) from error
            contended |= wanted
            if time.monotonic() - began > self._patience_seconds:
                break
            if attempt < ATTEMPTS:
                time.sleep(random.uniform(0, 0.002 * 2**attempt))  # spread the retries; not for security
            attempt += 1
        raise TooManyConflicts

    def rehearse(self, work: Callable[[Transaction], T], *, survey: Callable[[Transaction], object] | None = None) -> T:
        """Run ``work`` as ``write`` does, and roll back what it has written.

        It locks no resources. It gives way, at each of its statements, to transactions that write, and ends with the
        deadline of the work.
        Raises what ``write`` raises, and the errors of ``Deadline.check``.
        """

        def attempt(tx: Transaction) -> None:
            result = work(tx)
            tx.session.flush()
            tx.gains.verify()
            raise _RolledBack(result)

        try:
            self._transact(attempt, survey, is_trial=True)
        except _RolledBack as rolled_back:
            result: T = rolled_back.result
            return result
        raise AssertionError("a rehearsal is always rolled back")

    @contextmanager
    def _turn(self, *, is_trial: bool) -> Iterator[None]:
        """On SQLite, queue up with the other writers of this process; the one before calls the next.

        For the file's own lock, SQLite only polls at growing intervals: long-waiting writers lose against new ones.
        """
        if self.dialect != "sqlite":
            yield
            return
        seconds = min(SQLITE_WAIT_SECONDS, deadlines.seconds_left())
        mine = self._turns.take(deadlines.project(), is_trial=is_trial, seconds=seconds)
        try:
            deadlines.check()
            yield
        finally:
            if mine:
                self._turns.hand_on()

    @contextmanager
    def _without_locks_of_keys(self, connection: Connection) -> Iterator[None]:
        """On MariaDB, check no foreign keys in this block: each check locks a row that others want to change.

        Raises ``Unavailable``.
        """
        if self.dialect in ("sqlite", "postgresql"):
            yield
            return
        raw: Any = connection.connection.dbapi_connection
        try:
            _execute(raw, "SET foreign_key_checks = 0")
        except self.engine.dialect.loaded_dbapi.Error as error:
            LOG.warning("the connection to the database was lost: %s", error)
            raise Unavailable(_DOWN) from error
        try:
            yield
        finally:
            if not connection.invalidated:
                try:
                    _execute(raw, "SET foreign_key_checks = 1")
                except self.engine.dialect.loaded_dbapi.Error:
                    connection.invalidate()

    @contextmanager
    def project_turn(self) -> Iterator[None]:
        """Carry out large work in a turn of its project: on a server, of all managers, one such work at a time.

        Each that waited for rows would make all other projects wait longer for theirs. The service itself waits for no
        turn. Raises the errors of ``Deadline.check``.
        """
        project_id = deadlines.project()
        if self.dialect == "sqlite" or not project_id:
            yield
            return
        with self._project_turns.turn(project_id, min(self._row_wait_seconds, deadlines.seconds_left())):
            deadlines.check()
            yield

    def others_wait(self, session: Session) -> bool:
        """Whether transactions that write wait for locks of this session; on MariaDB, for locks of any session."""
        if self.dialect == "sqlite":
            return self._turns.writers_wait()
        connection = session.connection()  # not the session, which would flush
        if self.dialect == "postgresql":
            waiting = "SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            return bool(connection.execute(text(f"SELECT EXISTS ({waiting})")).scalar_one())
        [row] = connection.execute(text("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"))
        return int(row[1]) > 0

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
        options["tenure_checkpoint"] = Checkpoint(deadlines.check)
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

    def _commit(self, session: Session) -> None:
        try:
            session.commit()
        except DBAPIError as error:
            if not _database_failed(error):
                raise
            LOG.warning("the database did not work during a commit: %s", error.orig)
            self.writability.failed(error)
            raise OutcomeUnknown from error

    def _probe(self) -> None:
        """Write and commit a row of no meaning.

        Raises ``Unavailable`` or ``DBAPIError``. If other transactions of this process write all the time, it returns
        after a while without writing: then writes work.
        """
        on_sqlite = self.dialect == "sqlite"
        if on_sqlite and not self._turns.take("", is_trial=False, seconds=_PROBE_WAIT_SECONDS):
            return
        try:
            with self._connection() as connection:
                if on_sqlite:
                    _set_patience(connection, _PROBE_WAIT_SECONDS)
                try:
                    with _session(connection) as session:
                        padding = "0" * _PROBE_LENGTH if on_sqlite else None
                        UpkeepStore(session).record(PROBE, self.now(session), padding=padding)
                        self._commit(session)
                finally:
                    if on_sqlite:
                        _set_patience(connection, SQLITE_WAIT_SECONDS)
        except Overtaken:
            pass  # another manager has just written the first row
        finally:
            if on_sqlite:
                self._turns.hand_on()

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
    code = _code(error)
    if code in _MARIADB_RETRY:
        return True
    if code == _MARIADB_NO_SAVEPOINT and isinstance(error.__context__, DBAPIError):
        return _is_retryable(error.__context__)
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


def _check_before(connection: Connection, _cursor: object, statement: str, *_arguments: object) -> None:
    """Check before a statement whether its transaction may go on; not where a part of it begins or ends."""
    checkpoint = connection.get_execution_options().get("tenure_checkpoint")
    if checkpoint is not None and not statement.startswith(_PARTS):
        checkpoint.check()


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


def _execute(connection: Any, statement: str) -> None:
    """Execute a statement beside the transaction, on a connection of the driver."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


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
    cursor.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
    cursor.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def begin_immediate(connection: Connection) -> None:
    """Take SQLite's write lock at the beginning, so that what a transaction has read is still valid when it writes."""
    reading = connection.get_execution_options().get("tenure_reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
