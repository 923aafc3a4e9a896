"""Races: many clients want few hosts, through HTTP, on every kind of database; nobody shares one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tenure.api.auth import TokenUser, write_token_file
from tenure.drivers.contract import ResourceRef
from tenure.drivers.simulated import SimulatedCloud
from tenure.store import schema
from tenure.store.database import Database
from tests.support import ledger
from tests.support.engines import wait_until
from tests.support.racers import Race, Report, run
from tests.support.racing_manager import Figures, managers
from tests.support.world import HOST

#: Of each of the two races on a kind of database.
OPERATIONS = int(os.environ.get("TENURE_TEST_RACE_OPERATIONS", "5000"))
HOSTS = 8
THREADS = 16
TOKEN = "token-of-the-racers"


def lay_out(url: str, folder: Path) -> tuple[Path, Path]:
    """A schema, a cloud with reservable hosts, a file of tokens; where the cloud and the tokens are."""
    tokens, cloud_path = folder / "tokens.yaml", folder / "cloud.db"
    write_token_file(tokens, [TokenUser("racer", "racer", "race", "race", ("member", "reader"), TOKEN)])
    cloud = SimulatedCloud.create(cloud_path, hosts=HOSTS)
    db = Database(url)
    try:
        schema.upgrade(db)
        found = cloud.discover(HOST)
        for one in found:
            cloud.ensure_registered(HOST, ResourceRef(one.external_id, one.name, one.region))
        now = datetime.now(UTC)
        db.write(lambda tx: tx.resources.add_many(found, [{} for _ in found], now=now))
    finally:
        db.close()
        cloud.close()
    return cloud_path, tokens


@contextmanager
def watched(url: str) -> Iterator[list[str]]:
    """Judge the ledger again and again while others write it; what was ever wrong."""
    found: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(5):
            found.extend(ledger.faults(url, now=datetime.now(UTC)))

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
@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_shares_a_host(database_url: str, tmp_path: Path, seed: int):
    """16 threads, two managers, few hosts; half a day of them, planned over and over again."""
    cloud, tokens = lay_out(database_url, tmp_path)
    figures = Figures()
    with managers(database_url, cloud, tokens, 2, figures) as ports:
        with watched(database_url) as faults:
            report = run(Race(ports=ports, tokens=[TOKEN], threads=THREADS, operations=OPERATIONS, seed=seed))
        wait_until(lambda: not ledger.busy(database_url), seconds=60)
    show(database_url, report, figures)
    assert report.wrong == []
    assert ledger.faults(database_url) == []
    assert faults == []
    assert broken_promises(database_url, report) == []
    assert report.operations >= OPERATIONS
    for verb in ("POST", "PUT", "DELETE"):
        assert report.count(verb) > OPERATIONS / 50, verb
    assert report.answers["POST 409 NotEnoughResources"] > OPERATIONS / 50
    assert report.answers["PUT 409 NotEnoughResources"] > OPERATIONS / 50


def show(url: str, report: Report, figures: Figures) -> None:
    """Print the figures, for whoever asks pytest to show them (``-s`` or ``-rP``)."""
    print(
        f"\n{url.split(':')[0]}: {report.operations} operations in {report.seconds:.1f} s, "
        f"{report.operations / report.seconds:.0f} a second; median {report.median * 1000:.0f} ms, "
        f"slowest {report.slowest:.2f} s; {figures.cpu_seconds / report.operations * 1000:.0f} ms of the managers' "
        "processors for each"
    )
    for name, count in report.answers.items():
        print(f"  {count:6} {name}")
    print(f"  transactions that met: {dict(figures.meetings)}; at most {figures.attempts} attempts")
    print(f"  allocations: {dict(ledger.count_by_state(url))}")
