"""The setup of races, and the checks of the ledger during and after them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tenure.api.auth import TokenUser, write_token_file
from tenure.drivers.contract import ResourceRef
from tenure.store.database import Database
from tests.support import ledger, schemas
from tests.support.agreement import ADDRESS
from tests.support.racers import Report
from tests.support.simulated import SimulatedCloud
from tests.support.waiting import patience
from tests.support.world import HOST

TOKEN = "token-of-the-racers"


def lay_out(url: str, folder: Path, hosts: int, addresses: int = 0) -> tuple[Path, Path]:
    """Create a schema, a cloud with reservable hosts and addresses, and a token file.

    Returns the paths of the cloud and of the token file.
    """
    tokens, cloud_path = folder / "tokens.yaml", folder / "cloud.db"
    write_token_file(tokens, [TokenUser("racer", "racer", "race", "race", ("member", "reader"), TOKEN)])
    cloud = SimulatedCloud.create(cloud_path, hosts=hosts)
    db = Database(url)
    try:
        schemas.lay_out(db)
        found = list(cloud.discover(HOST))
        for number in range(addresses):
            found.append(cloud.look_up(ADDRESS, f"{cloud.world.addresses.public}/203.0.113.{10 + number}"))
        for resource in found:
            cloud.ensure_registered(
                resource.resource_type, ResourceRef(resource.external_id, resource.name, resource.region)
            )
        now = datetime.now(UTC)
        db.write(lambda tx: tx.resources.add_many(found, [{} for _ in found], now=now))
    finally:
        db.close()
        cloud.close()
    return cloud_path, tokens


@contextmanager
def watched(url: str) -> Iterator[list[str]]:
    """Check the ledger repeatedly while others write it; return all faults."""
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
        thread.join(patience())
        assert not thread.is_alive()


def broken_promises(url: str, report: Report) -> list[str]:
    """Return what answers promised and the tables lack."""
    stored, ends, updates = ledger.leases(url), ledger.ends(url), ledger.updates(url)
    wrong = [
        f"lease {lease_id} is stored, and no answer promised it" for lease_id in stored.keys() - report.promises.keys()
    ]
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
        if lease.status in {"PENDING", "ACTIVE"} and not promise.shared and lease.units != promise.units:
            wrong.append(f"{lease.status} lease {lease_id} has {lease.units}, granted were {promise.units}")
        if lease.deleted and lease.hosts:
            wrong.append(f"lease {lease_id} is deleted and has {lease.hosts}")
    return wrong
