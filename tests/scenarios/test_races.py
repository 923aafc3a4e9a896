"""Races: many clients want few hosts, through HTTP, on every kind of database; nobody shares one."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from waitress.server import create_server

from tenure.api.app import create_app
from tenure.api.auth import TokenFileAuth, TokenUser, write_token_file
from tenure.api.policies import Policies
from tenure.clock import SystemClock
from tenure.drivers.contract import ResourceRef
from tenure.drivers.simulated import SimulatedCloud
from tenure.factory import Parts, Service, build, load_types
from tenure.store import schema
from tenure.store.database import Database
from tests.support import ledger
from tests.support.engines import wait_until
from tests.support.racers import Race, Report, run
from tests.support.world import HOST

OPERATIONS = int(os.environ.get("TENURE_TEST_RACE_OPERATIONS", "10000"))
HOSTS = 6
THREADS = 16
TOKEN = "token-of-the-racers"


class Meetings(logging.Handler):
    """Counts how often transactions met, by what the database called it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.by_kind: Counter[str] = Counter()
        self.last_attempts = 0

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.args, tuple)
        attempt, error = record.args  # as the database logs it
        original: Any = getattr(error, "orig", error)
        code = getattr(original, "sqlstate", None) or next(iter(original.args), "")
        self.by_kind[f"{type(original).__name__} {code}".strip()] += 1
        self.last_attempts = max(self.last_attempts, int(str(attempt)))


@contextmanager
def counted_meetings() -> Iterator[Meetings]:
    logger = logging.getLogger("tenure.store.database")
    meetings, level = Meetings(), logger.level
    logger.addHandler(meetings)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield meetings
    finally:
        logger.removeHandler(meetings)
        logger.setLevel(level)
        logger.propagate = True


@contextmanager
def serving(service: Service, tokens: Path) -> Iterator[int]:
    """The service's API on a free port, and its engine; the port."""
    app = create_app(service.manager, service.parts.types, authenticate=lambda inner: TokenFileAuth(inner, tokens))
    server = create_server(app, host="127.0.0.1", port=0, threads=THREADS)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    service.engine.start()
    try:
        yield server.effective_port
    finally:
        service.engine.stop()
        server.close()
        server.task_dispatcher.shutdown(cancel_pending=True, timeout=10)
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def managers(url: str, folder: Path, count: int) -> Iterator[list[int]]:
    """So many managers on one database and one cloud, each wired as a process would be; their ports."""
    tokens = folder / "tokens.yaml"
    write_token_file(tokens, [TokenUser("racer", "racer", "race", "race", ("member", "reader"), TOKEN)])
    cloud = SimulatedCloud.create(folder / "cloud.db", hosts=HOSTS)
    with ExitStack() as stack:
        stack.callback(cloud.close)
        databases = [Database(url) for _ in range(count)]
        for db in databases:
            stack.callback(db.close)
        schema.upgrade(databases[0])
        found = cloud.discover(HOST)
        for one in found:
            cloud.ensure_registered(HOST, ResourceRef(one.external_id, one.name, one.region))
        now = datetime.now(UTC)
        databases[0].write(lambda tx: tx.resources.add_many(found, [{} for _ in found], now=now))
        services = [
            build(
                Parts(
                    db=db,
                    driver=cloud,
                    types=load_types(),
                    authorize=Policies().authorize,
                    clock=SystemClock(),
                    workers=THREADS,
                )
            )
            for db in databases
        ]
        yield [stack.enter_context(serving(service, tokens)) for service in services]


@contextmanager
def watched(url: str) -> Iterator[list[str]]:
    """Judge the ledger again and again while others write it; what was ever wrong."""
    found: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(5):
            found.extend(ledger.faults(url))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join(60)
        assert not thread.is_alive()


def broken_promises(url: str, report: Report) -> list[str]:
    """What an answer said and the tables do not."""
    stored, ends, updates = ledger.leases(url), ledger.ends(url), ledger.updates(url)
    wrong = [f"lease {one} is stored, and nobody was told" for one in stored.keys() - report.promises.keys()]
    for lease_id, promise in report.promises.items():
        lease = stored.get(lease_id)
        if lease is None:
            wrong.append(f"lease {lease_id} was granted and is not stored")
            continue
        if promise.deleted is not lease.deleted:
            wrong.append(f"lease {lease_id}: deleted is {promise.deleted} by the answers and {lease.deleted} stored")
        granted = promise.ends if promise.shared else [promise.end]
        if ends[lease_id] not in map(datetime.fromisoformat, granted):
            wrong.append(f"lease {lease_id} ends at {ends[lease_id]}, granted was {granted}")
        if promise.changes > updates[lease_id] or (promise.shared and promise.changes != updates[lease_id]):
            wrong.append(f"lease {lease_id}: {promise.changes} changes were granted, {updates[lease_id]} are known")
        if lease.status == "PENDING" and not promise.shared and len(lease.hosts) != promise.hosts:
            wrong.append(f"lease {lease_id} has {lease.hosts}, granted were {promise.hosts}")
        if lease.deleted and lease.hosts:
            wrong.append(f"lease {lease_id} is deleted and has {lease.hosts}")
    return wrong


@pytest.mark.races
def test_nobody_shares_a_host(database_url: str, tmp_path: Path):
    """16 threads, two managers, six hosts; half a day of them, planned over and over again."""
    with managers(database_url, tmp_path, 2) as ports, counted_meetings() as meetings:
        with watched(database_url) as faults:
            report = run(Race(ports=ports, tokens=[TOKEN], threads=THREADS, operations=OPERATIONS))
        wait_until(lambda: not ledger.busy(database_url), seconds=60)
    show(database_url, report, meetings)
    assert report.wrong == []
    assert faults == []
    assert ledger.faults(database_url) == []
    assert broken_promises(database_url, report) == []
    assert report.operations >= OPERATIONS
    for verb in ("POST", "PUT", "DELETE"):
        assert report.count(verb) > OPERATIONS / 50, verb
    assert report.answers["POST 409 NotEnoughResources"] > OPERATIONS / 50
    assert report.answers["PUT 409 NotEnoughResources"] > OPERATIONS / 50


def show(url: str, report: Report, meetings: Meetings) -> None:
    """Print the figures, for whoever asks pytest to show them (``-s`` or ``-rP``)."""
    kind = url.split(":")[0].split("+")[0]
    print(f"\n{kind}: {report.operations} operations in {report.seconds:.1f} s, "
          f"{report.operations / report.seconds:.0f} a second; "
          f"median {report.median * 1000:.0f} ms, slowest {report.slowest:.2f} s")  # fmt: skip
    for name, count in report.answers.items():
        print(f"  {count:6} {name}")
    print(f"  transactions that met: {dict(meetings.by_kind)}, attempts at most {meetings.last_attempts + 1}")
    print(f"  allocations: {dict(ledger.count_by_state(url))}, {time.strftime('%H:%M:%S')}")
