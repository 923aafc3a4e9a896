"""The API in the web servers that the operators' guide names, started as it says, with a manager behind it."""

from __future__ import annotations

import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tenure.domain.lanes import USUAL, Lane
from tests.conftest import FreshDatabase
from tests.support.cloud import REPOSITORY
from tests.support.databases import POSTGRESQL
from tests.support.deployment import Deployment, Options, ProcessFailed, Program, deploy, free_port, write_config
from tests.support.installed import Installed, install, need_packages
from tests.support.races import TOKEN, lay_out
from tests.support.site import delete_queues
from tests.support.standalone import Caller
from tests.support.waiting import patience, wait_for

pytestmark = [pytest.mark.long, pytest.mark.postgresql]

DEPLOY = REPOSITORY / "deploy"
GUIDE = REPOSITORY / "docs" / "operations" / "install.md"
HOSTS = 9
#: The port of the guide, in place of which each test has one of its own.
PORT = "1234"


@dataclass(frozen=True)
class Server:
    """A web server with the API in it."""

    name: str
    program: Program
    port: int
    deployment: Deployment
    database: str
    #: The signal for an end after all requests are answered.
    stop_signal: signal.Signals
    #: The line that it logs at this signal.
    ends: str
    #: What it logs to beside its streams.
    log: Path

    def said(self) -> str:
        """The end of what it has logged."""
        return self.program.tail() + (self.log.read_text()[-2000:] if self.log.exists() else "")

    @property
    def caller(self) -> Caller:
        return Caller(self.port, TOKEN)

    def ask(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=patience())
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def leases(self) -> set[str] | None:
        """The ids of all leases, None where the API has no answer right now."""
        status, answer = self.caller.call("GET", "/leases")
        return {lease["id"] for lease in answer["leases"]} if status == 200 else None

    def is_well(self) -> bool:
        if not self.program.is_running:
            raise ProcessFailed(f"{self.name} has ended: {self.program.tail()}")
        try:
            return self.ask("/healthcheck")[0] == 200
        except (OSError, HTTPException):
            return False


# --- how each is started


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    need_packages(
        {"apache2": "apache2", "/usr/lib/apache2/modules/mod_wsgi.so": "libapache2-mod-wsgi-py3", "gcc": "gcc"},
        services=("apache2",),
    )
    return install(tmp_path_factory.mktemp("installed"), "gunicorn", "uwsgi")


def gunicorn(installed: Installed, port: int) -> list[str]:
    [typed] = re.findall(r"^\| gunicorn \| `(.+)` \|$", GUIDE.read_text(), re.MULTILINE)
    return installed.command(*typed.replace(PORT, str(port)).split())


def uwsgi(installed: Installed, port: int) -> list[str]:
    ini = installed.etc / "tenure" / "uwsgi.ini"
    ini.write_text((DEPLOY / "uwsgi.ini").read_text().replace(PORT, str(port)))
    [typed] = re.findall(r"(uwsgi --ini) uwsgi.ini$", ini.read_text(), re.MULTILINE)
    return installed.command(*typed.split(), "/etc/tenure/uwsgi.ini")


def apache(installed: Installed, port: int) -> list[str]:
    """Debian's Apache, which listens on the loopback only, and keeps its files out of /var."""
    share = installed.opt / "tenure" / "share"
    share.mkdir(exist_ok=True)
    shutil.copy(DEPLOY / "tenure.wsgi", share)
    folder = installed.etc / "apache2"
    settings = (DEPLOY / "apache.conf").read_text()
    assert f"Listen {PORT}\n" in settings
    (folder / "ports.conf").write_text("")
    (folder / "sites-available" / "tenure.conf").write_text(
        settings.replace(f"Listen {PORT}", f"Listen 127.0.0.1:{port}").replace(f"*:{PORT}", f"*:{port}")
    )
    run = installed.opt / "apache"
    run.mkdir(mode=0o755, exist_ok=True)
    variables = {"RUN_DIR": "", "LOCK_DIR": "", "LOG_DIR": "", "PID_FILE": "/apache2.pid"}
    with (folder / "envvars").open("a") as file:
        file.writelines(f"export APACHE_{name}=/opt/apache{end}\n" for name, end in variables.items())
    installed.run("a2dissite", "-q", "000-default")
    installed.run("a2ensite", "-q", "tenure")
    return installed.command("bash", "-c", ". /etc/apache2/envvars && exec apache2 -D FOREGROUND")


SERVERS: dict[str, tuple[Callable[[Installed, int], list[str]], signal.Signals, str]] = {
    "gunicorn": (gunicorn, signal.SIGTERM, "Handling signal: term"),
    "uwsgi": (uwsgi, signal.SIGTERM, "illing worker"),
    "apache": (apache, signal.SIGWINCH, "caught SIGWINCH, shutting down gracefully"),
}


@contextmanager
def deployed(folder: Path, bus: str, fresh_database: FreshDatabase) -> Iterator[tuple[Deployment, Options, str]]:
    """A manager and what an API must know of it."""
    topic = f"tenure_{uuid4().hex[:8]}"
    with fresh_database(POSTGRESQL) as url:
        cloud, _tokens = lay_out(url, folder, HOSTS)
        common: Options = {
            "DEFAULT": {"driver": "simulated", "auth_strategy": "token_file", "transport_url": bus},
            "api": {"token_file": "/etc/tenure/tokens.yaml"},
            "simulated": {"path": cloud},
            "manager": {"rpc_topic": topic, "minutes_before_end_lease": 0},
        }
        try:
            with deploy(folder, url, common, apis=0) as deployment:
                yield deployment, common, url
        finally:
            delete_queues([topic, f"{topic}.{folder.name}-0"], bus)


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest,
    installed: Installed,
    message_bus: str,
    fresh_database: FreshDatabase,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    name = str(request.param)
    start, stop_signal, ends = SERVERS[name]
    folder = tmp_path_factory.mktemp(name)
    with deployed(folder, message_bus, fresh_database) as (deployment, common, database):
        config = installed.etc / "tenure"
        written = write_config(
            config / "tenure.conf", {group: common[group] for group in ("DEFAULT", "api", "manager")}
        )
        shutil.copy(folder / "tokens.yaml", config)
        installed.run("chown", "root:tenure", "/etc/tenure", "/etc/tenure/tenure.conf")
        installed.run("chown", "tenure:tenure", "/etc/tenure/tokens.yaml")
        config.chmod(0o750)
        written.chmod(0o640)
        port = free_port()
        program = Program(name, start(installed, port), folder / f"{name}.log")
        log = installed.opt / "apache" / "error.log"
        served = Server(name, program, port, deployment, database, stop_signal, ends, log)
        program.start()
        try:
            wait_for(lambda: f"{name} to be well: {program.tail()}", served.is_well)
            yield served
        finally:
            if program.process is not None:
                program.stop()


# --- what it does


def test_a_lease_is_booked_and_ended(server: Server):
    status, lease = server.caller.book(2, seconds=600)
    assert status == 201, lease
    assert server.caller.wait_for_status(lease["id"], "ACTIVE")["status"] == "ACTIVE"
    assert server.caller.call("DELETE", f"/leases/{lease['id']}")[0] == 204


def test_errors_are_the_apis_own(server: Server):
    """A web server that has pages of its own for errors would hide what was wrong."""
    for call, expected in (
        (("GET", f"/leases/{uuid4()}"), (404, "NotFound")),
        (("POST", "/leases", {"name": "x", "nonsense": True}), (400, None)),
        (("GET", "/no-such-page"), (404, None)),
    ):
        status, answer = server.caller.call(*call)
        assert status == expected[0], answer
        assert answer["error_code"] == expected[0]
        assert expected[1] in {None, answer["error_name"]}
    status, headers, body = server.ask("/v1/leases", **{"X-Auth-Token": "wrong"})
    assert (status, headers["content-type"]) == (401, "application/json"), body
    assert headers["x-openstack-request-id"].startswith("req-")


def test_a_body_that_is_too_long_is_refused(server: Server):
    """By the API, or by the web server itself, which then answers in words of its own."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=patience())
    headers = {"X-Auth-Token": TOKEN, "Content-Type": "application/json", "Content-Length": "2000000"}
    try:
        connection.putrequest("POST", "/v1/leases")
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()  # the answer is never read
        assert connection.getresponse().status == 413
    finally:
        connection.close()


def test_many_requests_at_once_are_all_answered(server: Server):
    """More requests than threads. A busy machine may refuse some with 503; no host is shared."""
    with ThreadPoolExecutor(24) as callers:
        answers = list(callers.map(lambda _: server.caller.book(1, seconds=600), range(24)))
    statuses = Counter(status for status, _ in answers)
    assert statuses.keys() <= {201, 409, 503}, answers
    assert 0 < statuses[201] <= HOSTS, answers
    booked = wait_for("the leases", server.leases)
    assert {lease["id"] for status, lease in answers if status == 201} <= booked
    assert len(booked) <= HOSTS


@contextmanager
def ledger_locked(database: str, *, waiting: int) -> Iterator[Callable[[], None]]:
    """Hold up everybody who reads leases until the end of the block; yields a function that waits for so many."""
    engine = create_engine(database, poolclass=NullPool)
    question = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    def wait_for_them() -> None:
        with engine.connect() as other:
            wait_for("requests to wait for the ledger", lambda: other.execute(question).scalar_one() >= waiting)

    try:
        with engine.connect() as connection, connection.begin():
            connection.execute(text("LOCK TABLE leases IN ACCESS EXCLUSIVE MODE"))
            yield wait_for_them
    finally:
        engine.dispose()


def test_a_stop_loses_no_request(server: Server):
    """Those that have come are answered; then the server ends. It is the last test of each server."""
    at_once = USUAL[Lane.READING].running_of_project  # more requests of a project would wait in their lane
    with ThreadPoolExecutor(at_once) as callers:
        with ledger_locked(server.database, waiting=at_once) as wait_for_them:
            answers = [callers.submit(server.caller.call, "GET", "/leases") for _ in range(at_once)]
            wait_for_them()
            assert server.program.process is not None
            server.program.process.send_signal(server.stop_signal)
            wait_for(
                lambda: f"{server.name} to say that it ends: {server.said()}", lambda: server.ends in server.said()
            )
        assert [answer.result()[0] for answer in answers] == [200] * at_once
    assert server.program.stop(server.stop_signal) == 0, server.said()
