"""Hosts of the testbed that nothing runs on, for tests that need more of them than there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from tenure.drivers.openstack.http import connect
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.store.database import Database
from tenure.store.tables import Base
from testbed import seeded
from tests.support.cloud import Cloud
from tests.support.site import FREE_POOL, have_testbed

HOST = "physical:host"


@contextmanager
def seeded_hosts(count: int, *, pooled: bool = False) -> Iterator[list[str]]:
    """So many more hosts of Nova's; their names. With ``pooled`` they are in the pool, as registered ones are."""
    have_testbed("seed", str(count), *(["--pool", FREE_POOL] if pooled else []))
    try:
        yield seeded.names(count)
    finally:
        have_testbed("unseed")


def enrol(database: str, cloud: Cloud) -> dict[str, str]:
    """Have the pooled ones in a ledger as the cloud describes them, as if each had been registered; ids by names."""
    openrc = cloud.openrc
    options = OpenStackOptions(
        auth_url=openrc["OS_AUTH_URL"],
        username="tenure",
        password=openrc["OS_PASSWORD"],
        region=openrc["OS_REGION_NAME"],
        interface="public",
    )
    with connect(options) as driver:
        found = [host for host in driver.discover(HOST) if host.name.startswith(seeded.PREFIX)]
    db = Database(database)
    try:
        db.write(lambda tx: tx.resources.add_many(found, [{} for _ in found], now=datetime.now(UTC)))
    finally:
        db.close()
    return {host.name: host.external_id for host in found}


def empty(database: str) -> None:
    """Empty a ledger, so that resources unknown to the cloud need not be removed one by one."""
    db = Database(database)
    try:
        with db.engine.begin() as connection:
            for table in reversed(Base.metadata.sorted_tables):
                connection.execute(table.delete())
    finally:
        db.close()
