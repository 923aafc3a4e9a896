from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure.clock import SimulatedClock
from tenure.store.database import Database
from tests.support import schemas
from tests.support.world import NOW


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(NOW)


@pytest.fixture
def db(database_url: str, clock: SimulatedClock) -> Iterator[Database]:
    """A database with the newest schema and nothing in it, of each kind in turn."""
    database = Database(database_url, clock=clock)
    try:
        schemas.lay_out(database)
        yield database
    finally:
        database.close()
