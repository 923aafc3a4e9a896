"""Databases for tests: servers that are private to the run, and a fresh database for each test.

``DatabaseServers`` starts a server when it is first needed. Its data lies in a temporary folder, it listens
on a Unix socket inside that folder only, and it is stopped and deleted when the run ends. It trades
durability for speed; isolation and locking are what the distribution ships. The zone of both servers is far
from UTC on purpose: code that lets a server read its local clock is found out.

``TENURE_TEST_POSTGRESQL`` and ``TENURE_TEST_MARIADB`` name servers that run already, as SQLAlchemy URLs of an
account that may create databases.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.support.waiting import patience, wait_for

SQLITE = "sqlite"
POSTGRESQL = "postgresql"
MARIADB = "mariadb"
KINDS = (SQLITE, POSTGRESQL, MARIADB)
SERVER_KINDS = (POSTGRESQL, MARIADB)

#: Where a contributor, or a run of all suites, names a server that runs already.
VARIABLES: Mapping[str, str] = {
    POSTGRESQL: "TENURE_TEST_POSTGRESQL",
    MARIADB: "TENURE_TEST_MARIADB",
}

#: The programs that a server needs, those of its operator, and the Debian packages with them: the first choice that a
#: release has.
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    POSTGRESQL: ("initdb", "postgres"),
    MARIADB: ("mariadb-install-db", "my_print_defaults", "mariadbd"),
}
TOOLS: Mapping[str, tuple[str, ...]] = {
    POSTGRESQL: ("pg_dump", "pg_restore", "createdb", "dropdb"),
    MARIADB: ("mariadb", "mariadb-dump"),
}
PACKAGES: Mapping[str, tuple[str, ...]] = {
    POSTGRESQL: ("postgresql",),
    # These have the programs without a service and without an account.
    MARIADB: ("mariadb-server-core mariadb-client-core mariadb-client", "mariadb-server"),
}

#: A file system in memory, and how much of it must be free before we take it.
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 * 2**30

START_SECONDS = 90
STOP_SECONDS = 30


class ServerMissing(Exception):
    """The programs of a database server are not on this machine."""


class ServerFailed(Exception):
    """A database server did not start."""


def find_program(name: str) -> Path | None:
    """Return where a program of a database server is, or None.

    Debian keeps every version of PostgreSQL in a folder of its own: the newest comes first, so that all
    programs are taken from one version.
    """
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    path = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    system = [
        Path("/usr/sbin"),
        Path("/usr/local/sbin"),
        Path("/usr/libexec"),
    ]  # not everybody's PATH has them
    return next((folder / name for folder in [*versions, *path, *system] if _runs(folder / name)), None)


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.parent.name.split(".") if part.isdigit())


def _runs(program: Path) -> bool:
    return program.is_file() and os.access(program, os.X_OK)


def missing_programs(kind: str) -> list[str]:
    """Return which programs of a kind of server this machine lacks."""
    return [name for name in PROGRAMS[kind] if find_program(name) is None]


def missing_tools(kind: str) -> list[str]:
    """Return which programs of an operator of a kind of server this machine lacks."""
    return [name for name in TOOLS[kind] if find_program(name) is None]


def server_url(kind: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the server that the environment names, with the driver that Tenure uses, or None."""
    given = environ.get(VARIABLES[kind])
    if not given:
        return None
    url = make_url(given)
    if kind == POSTGRESQL:
        url = url.set(drivername="postgresql+psycopg")
        if not url.database:
            url = url.set(database="postgres")
    else:
        url = url.set(drivername="mysql+pymysql").update_query_dict({"charset": "utf8mb4"})
    return _rendered(url)


def quick_folder() -> Path:
    """Return the folder for temporary files without durability: in memory where there is room, else ``/tmp``.

    Its path is short, and every account can enter it: a socket's path has about 100 characters, and servers do not run
    as root.
    """
    usable = os.access(MEMORY, os.W_OK | os.X_OK) and MEMORY.stat().st_mode & 0o007 == 0o007
    return MEMORY if usable and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES else Path("/tmp")


class DatabaseServers(AbstractContextManager["DatabaseServers"]):
    """The database servers of one run, each started when it is first asked for."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._urls: dict[str, str] = {}
        self._running = ExitStack()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop what was started and delete its data."""
        self._urls.clear()
        self._running.close()

    def url(self, kind: str) -> str:
        """Return the URL of a server of this kind, for an account that may create databases.

        :raises ServerMissing: if none is named and its programs are not installed
        """
        if kind not in self._urls:
            named = server_url(kind, self._environ)
            self._urls[kind] = named if named is not None else self._start(kind)
        return self._urls[kind]

    @contextmanager
    def fresh_database(self, kind: str) -> Iterator[str]:
        """Make an empty database and give its URL; drop it afterwards, even with open connections."""
        if kind == SQLITE:
            with tempfile.TemporaryDirectory(prefix="tenure-test-", dir=quick_folder()) as folder:
                yield f"sqlite:///{folder}/tenure.sqlite"
            return
        with fresh_database_on(kind, self.url(kind)) as url:
            yield url

    def _start(self, kind: str) -> str:
        missing = missing_programs(kind)
        if missing:
            raise ServerMissing(
                f"{kind}: {', '.join(missing)} not found; apt-get install {PACKAGES[kind][0]}, "
                f"or name a server in {VARIABLES[kind]}"
            )
        return self._running.enter_context(_running_server(_SERVERS[kind]))


@contextmanager
def fresh_database_on(kind: str, server: str) -> Iterator[str]:
    """Make an empty database on the server at the URL and give its own; drop it afterwards, as above."""
    name = f"tenure_test_{secrets.token_hex(6)}"
    _administer(server, _CREATE[kind].format(name=name))
    try:
        yield _rendered(make_url(server).set(database=name))
    finally:
        _DROP[kind](server, name)


class _Server(Protocol):
    """How one kind of server is laid out, started and opened for the tests."""

    name: str
    accounts: tuple[str, ...]
    stop_signal: signal.Signals

    def install(self, folder: Path) -> list[str]:
        """Return the command that lays out the data of a server below ``folder``."""

    def serve(self, folder: Path) -> list[str]:
        """Return the command of the server."""

    def socket(self, folder: Path) -> Path:
        """Return the socket that the server listens on."""

    def administrator(self, folder: Path) -> URL:
        """Return the way in for the first connection."""

    def open(self, folder: Path) -> URL:
        """Make the account of the tests, once the server answers, and return its way in."""


class _PostgreSQL(_Server):
    name = POSTGRESQL
    accounts = ("postgres", "nobody")
    stop_signal = signal.SIGQUIT  # the data is thrown away: no need to write it down

    def install(self, folder: Path) -> list[str]:
        return [
            *(_program("initdb"), f"--pgdata={folder}/data", "--username=postgres", "--auth=trust"),
            *("--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"),
        ]

    def serve(self, folder: Path) -> list[str]:
        settings = {
            "listen_addresses": "",
            "port": "5432",  # only names the socket; the environment must not choose another
            "unix_socket_directories": str(folder),
            "max_connections": "200",
            "shared_buffers": "64MB",
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "autovacuum": "off",  # its timing is nothing that a test should depend on
            "timezone": "Asia/Kathmandu",
            "log_timezone": "UTC",
        }
        command = [_program("postgres"), "-D", f"{folder}/data"]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def socket(self, folder: Path) -> Path:
        return folder / ".s.PGSQL.5432"

    def administrator(self, folder: Path) -> URL:
        query = {"host": str(folder), "port": "5432"}
        return URL.create("postgresql+psycopg", username="postgres", database="postgres", query=query)

    def open(self, folder: Path) -> URL:
        administrator = self.administrator(folder)
        _administer(_rendered(administrator), "CREATE ROLE tenure LOGIN CREATEDB")
        return administrator.set(username="tenure")


class _MariaDB(_Server):
    name = MARIADB
    accounts = ("mysql", "nobody")
    stop_signal = signal.SIGKILL  # likewise

    def install(self, folder: Path) -> list[str]:
        return [
            *(_program("mariadb-install-db"), "--no-defaults", f"--datadir={folder}/data"),
            *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
        ]

    def serve(self, folder: Path) -> list[str]:
        return [
            *(_program("mariadbd"), "--no-defaults", f"--datadir={folder}/data", f"--tmpdir={folder}"),
            *(f"--socket={self.socket(folder)}", f"--pid-file={folder}/mariadb.pid", "--skip-networking"),
            *("--max-connections=200", "--innodb-buffer-pool-size=128M", "--innodb-log-file-size=64M"),
            *("--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite", "--skip-log-bin"),
            "--default-time-zone=+05:45",
        ]

    def socket(self, folder: Path) -> Path:
        return folder / "mariadb.sock"

    def administrator(self, folder: Path) -> URL:
        query = {"unix_socket": str(self.socket(folder)), "charset": "utf8mb4"}
        return URL.create("mysql+pymysql", username="root", host="localhost", query=query)

    def open(self, folder: Path) -> URL:
        administrator = self.administrator(folder)
        _administer(
            _rendered(administrator),
            "CREATE USER tenure@localhost",
            # No more than an operator would grant, so that a test finds out what needs more.
            r"GRANT ALL ON `tenure\_test\_%`.* TO tenure@localhost",
        )
        return administrator.set(username="tenure")


_SERVERS: Mapping[str, _Server] = {POSTGRESQL: _PostgreSQL(), MARIADB: _MariaDB()}


@contextmanager
def _running_server(server: _Server) -> Iterator[str]:
    """Lay out and start a server; stop it and delete its data at the end, also when it never came up."""
    folder = Path(tempfile.mkdtemp(prefix=f"tenure-{server.name}-", dir=quick_folder()))
    try:
        account = _unprivileged_account(server)
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        _run(server.install(folder), folder, account)
        with (folder / "server.log").open("wb") as log:
            process = _spawn(server.serve(folder), folder, account, log.fileno())
        try:
            _wait_until_up(server, folder, process)
            yield _rendered(server.open(folder))
        finally:
            _stop(process, server.stop_signal)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged_account(server: _Server) -> pwd.struct_passwd | None:
    """Return the account to run a server as; None to stay who we are. No server runs as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in server.accounts:
        if name in known:
            return known[name]
    raise ServerFailed(f"{server.name}: no account to run the server as: {', '.join(server.accounts)}")


def _run(command: list[str], folder: Path, account: pwd.struct_passwd | None) -> None:
    log = folder / "install.log"
    with log.open("wb") as output:
        code = _spawn(command, folder, account, output.fileno()).wait()
    if code != 0:
        raise ServerFailed(f"{command[0]} ended with {code}:\n{_tail(log)}")


def _spawn(command: list[str], folder: Path, account: pwd.struct_passwd | None, output: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # an interrupt at the terminal is for the tests; they stop the server
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
        extra_groups=None if account is None else [],
        preexec_fn=follow_parent if sys.platform == "linux" else None,
    )


def follow_parent(end_signal: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when the one that started it is gone, however it went; be as nice as that.

    A session may be a group of its own, to which the kernel gives as much of a processor as to any other.
    """
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, end_signal)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(os.nice(0)))


def _wait_until_up(server: _Server, folder: Path, process: subprocess.Popen[bytes]) -> None:
    def is_up() -> bool:
        if process.poll() is not None:
            raise ServerFailed(f"{server.name} has ended with {process.poll()}:\n{_tail(folder / 'server.log')}")
        return _listens(server.socket(folder)) and _answers(_rendered(server.administrator(folder)))

    wait_for(lambda: f"{server.name}:\n{_tail(folder / 'server.log')}", is_up, seconds=START_SECONDS)


def _listens(path: Path) -> bool:
    """Try the bare socket first: PyMySQL leaves a socket open when no server listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _answers(server: str) -> bool:
    try:
        _administer(server, "SELECT 1")
    except OperationalError:
        return False
    return True


def _stop(process: subprocess.Popen[bytes], stop_signal: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(stop_signal)
    try:
        process.wait(patience(STOP_SECONDS))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


def _program(name: str) -> str:
    path = find_program(name)
    if path is None:
        raise ServerMissing(name)
    return str(path)


def _rendered(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def _administer(server: str, *statements: str) -> None:
    engine = create_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))


def _drop_postgresql(server: str, name: str) -> None:
    _administer(server, f"DROP DATABASE {name} WITH (FORCE)")


def _drop_mariadb(server: str, name: str) -> None:
    """Drop a database after closing what is connected to it: an open transaction would hold the drop up."""
    engine = create_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        left = connection.execute(
            text("SELECT id FROM information_schema.processlist WHERE db = :name"), {"name": name}
        )
        for (identifier,) in left.all():
            with suppress(OperationalError):  # it has gone by itself meanwhile
                connection.execute(text(f"KILL {identifier:d}"))
        connection.execute(text(f"DROP DATABASE {name}"))


_CREATE: Mapping[str, str] = {
    POSTGRESQL: "CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'",
    MARIADB: "CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin",
}
_DROP: Mapping[str, Callable[[str, str], None]] = {POSTGRESQL: _drop_postgresql, MARIADB: _drop_mariadb}
