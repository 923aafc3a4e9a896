"""Requests that concern every host of a large cloud: no database takes a parameter for each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from tenure.domain.capacity import Capacity
from tenure.domain.errors import NotEnoughResources
from tenure.domain.request import ReservationRequest
from tenure.domain.resource import DiscoveredResource
from tests.services.test_shared_hosts import hosts, instances
from tests.support.world import HOST, World, open_world

#: PostgreSQL takes 65535, and clouds may have more hosts than that; the same in small.
PARAMETERS, HOSTS = 2000, 2500
MOST = 2**31 - 1


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("many")
    with open_world(folder, hosts=1) as world:
        capacity = Capacity({"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 10})
        found = [DiscoveredResource(HOST, f"many-{number}", f"many-{number}", capacity) for number in range(HOSTS)]
        world.db.write(lambda tx: tx.resources.add_many(found, [{}] * HOSTS, now=world.clock.now()))

        def limit(connection: sqlite3.Connection, _record: object) -> None:
            connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, PARAMETERS)

        event.listen(world.db.engine, "connect", limit)
        world.db.engine.dispose()
        yield world


def test_request_for_too_many_hosts_locks_none(world: World):
    """Others would wait for all of them, for as long as a large cloud takes to look through."""
    written: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE resources"):
            written.append(statement)

    event.listen(world.db.engine, "before_cursor_execute", note)
    try:
        with pytest.raises(NotEnoughResources, match=f"{HOSTS + 2} asked for, {HOSTS + 1} can be reserved"):
            world.reserve(hosts(HOSTS + 2), start=1)
    finally:
        event.remove(world.db.engine, "before_cursor_execute", note)
    assert written == []


@pytest.mark.parametrize(
    "asked",
    [hosts(MOST), *(instances(MOST, vcpus=1, affinity=affinity) for affinity in (None, True, False))],
    ids=["hosts", "anywhere", "together", "apart"],
)
def test_request_for_more_than_all_hosts_is_refused(world: World, asked: ReservationRequest):
    """The hosts that are free, or have room, are all of them; it is not enough."""
    with pytest.raises(NotEnoughResources):
        world.reserve(asked, start=1)
