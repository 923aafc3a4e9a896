"""The feed of the ledger: what a reader sees, and when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert

from tenure.store.database import Database, Transaction
from tenure.store.feed import UNSETTLED, EntriesLost, FeedPosition
from tenure.store.tables import FeedRow
from tests.store.rows import add_hosts
from tests.support.world import World, open_world

SECOND = timedelta(seconds=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, hosts=1) as world:
        yield world


def enter(world: World, entry_id: int, resource_id: int, *, after: timedelta = timedelta(0)) -> None:
    """Write an entry with an id of its own, as if another transaction had got it."""
    row = {"id": entry_id, "at": world.clock.now() + after, "changed": {"resources": [resource_id]}}

    def write(tx: Transaction) -> None:
        tx.session.execute(insert(FeedRow), [row])

    world.db.write(write)


def changed(world: World, position: FeedPosition) -> tuple[set[int], FeedPosition]:
    with world.db.read() as tx:
        changes, after = tx.feed.after(position)
        return set(changes.every), after


def position(world: World) -> FeedPosition:
    with world.db.read() as tx:
        return tx.feed.newest()


def test_an_entry_that_was_committed_late_is_read(world: World):
    start = position(world)
    enter(world, 101, 1)
    enter(world, 103, 3, after=SECOND)
    found, after = changed(world, start)
    assert found == {1, 3}
    enter(world, 102, 2)  # its id was taken before, and its transaction has ended only now
    found, after = changed(world, after)
    assert found == {2}
    assert changed(world, after)[0] == set()


def test_ids_that_are_missing_for_long_are_not_looked_for_any_more(world: World):
    """Their transactions have come to nothing. An entry that is committed even later would not be read."""
    start = position(world)
    enter(world, 101, 1)
    enter(world, 103, 3)
    _, after = changed(world, start)
    assert set(after.missing) == set(range(start.last + 1, 103)) - {101}
    enter(world, 104, 4, after=UNSETTLED + SECOND)
    found, after = changed(world, after)
    assert (found, after.last, after.missing) == ({4}, 104, {})
    assert changed(world, after) == (set(), after)


def test_reader_looks_for_entries_that_were_missing_when_it_began(world: World):
    enter(world, 101, 1)
    enter(world, 103, 3)
    start = position(world)
    assert 102 in start.missing
    enter(world, 102, 2)
    assert changed(world, start)[0] == {2}


def test_a_reader_notices_that_entries_are_lost(world: World):
    start = position(world)
    for number in range(101, 105):
        enter(world, number, number, after=UNSETTLED * (number - 100))
    world.db.write(lambda tx: tx.feed.prune(world.clock.now() + UNSETTLED * 3.5))
    with pytest.raises(EntriesLost):
        changed(world, start)
    assert changed(world, position(world))[0] == set()


def test_reader_of_a_new_database_loses_no_entries(db: Database):
    with db.read() as tx:
        start = tx.feed.newest()
    [host] = add_hosts(db, 1)
    with db.read() as tx:
        found, _ = tx.feed.after(start)
    assert found.resources == {host}


def test_a_transaction_that_changes_nothing_writes_no_entry(world: World):
    start = position(world)
    world.db.write(lambda tx: tx.resources.regions())
    assert changed(world, start) == (set(), start)
