"""Databases of MariaDB whose character set cannot store every text: our columns can."""

from __future__ import annotations

from contextlib import closing

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tenure.domain.request import LeaseChange
from tenure.store import schema
from tenure.store.database import Database
from tests.support.databases import MARIADB
from tests.support.world import ADMIN, HOST, OWNER, open_world

pytestmark = pytest.mark.mariadb
NAME = "ärger → 🚀"


def execute(url: str, *statements: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.mark.parametrize("character_set", ["utf8mb3", "latin1"])
def test_every_text_is_kept_in_a_database_of_any_character_set(fresh_database, character_set: str):
    """A new name stands in the history, the reason of an operator on the host, and that of a user on the lease."""
    with fresh_database(MARIADB) as url:
        execute(url, f"ALTER DATABASE CHARACTER SET {character_set}")
        with closing(Database(url)) as db:
            schema.upgrade(db)
            assert schema.drift(db) == []
            assert schema.texts_of_another_set(db) == []
        with open_world(url, hosts=1) as world:
            lease = world.book(1, start=1)
            renamed = world.leases.update(OWNER, lease.id, LeaseChange(name=NAME))
            assert renamed.name == NAME
            assert NAME in str(world.leases.history(OWNER, lease.id)[-1].reason)
            world.resources.disable(ADMIN, HOST, "1", reason=NAME)
            assert world.resources.get(ADMIN, HOST, "1").disabled_reason == NAME


def test_texts_that_were_converted_to_another_set_are_reported(fresh_database):
    with fresh_database(MARIADB) as url, closing(Database(url)) as db:
        schema.upgrade(db)
        execute(url, "ALTER TABLE history MODIFY reason TEXT CHARACTER SET latin1")
        assert schema.texts_of_another_set(db) == ["history.reason"]
