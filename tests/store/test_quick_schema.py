"""The schema that most tests are given, without the migrations, is that of the migrations."""

from __future__ import annotations

from sqlalchemy import text

from tenure.clock import SimulatedClock
from tenure.store import schema
from tenure.store.database import Database
from tests.conftest import FreshDatabase
from tests.support import schemas
from tests.support.databases import MARIADB, POSTGRESQL, SQLITE

#: Everything that a kind of database can tell about its content.
CATALOGUE = {
    SQLITE: ["SELECT type, name, tbl_name, sql FROM sqlite_master"],
    POSTGRESQL: [
        "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'",
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE connamespace = 'public'::regnamespace",
        "SELECT table_name, column_name, data_type, is_nullable, column_default, character_maximum_length "
        "FROM information_schema.columns WHERE table_schema = 'public'",
    ],
    MARIADB: [
        "SELECT table_name, table_collation, engine FROM information_schema.tables WHERE table_schema = DATABASE()",
        "SELECT table_name, column_name, column_type, is_nullable, column_default, collation_name "
        "FROM information_schema.columns WHERE table_schema = DATABASE()",
        "SELECT table_name, index_name, non_unique, seq_in_index, column_name "
        "FROM information_schema.statistics WHERE table_schema = DATABASE()",
        "SELECT table_name, constraint_name, check_clause FROM information_schema.check_constraints "
        "WHERE constraint_schema = DATABASE()",
        "SELECT table_name, constraint_name, referenced_table_name, delete_rule "
        "FROM information_schema.referential_constraints WHERE constraint_schema = DATABASE()",
    ],
}


def catalogue(database: Database, kind: str) -> list[list[str]]:
    with database.engine.connect() as connection:
        return [sorted(map(str, connection.execute(text(query)))) for query in CATALOGUE[kind]]


def test_quick_schema_equals_the_migrated_schema(
    request, database_url: str, fresh_database: FreshDatabase, clock: SimulatedClock
):
    kind = request.node.callspec.params["database_url"]
    migrated = Database(database_url, clock=clock)
    schema.upgrade(migrated)
    with fresh_database(kind) as first, fresh_database(kind) as second:
        for url in (first, second):  # by the migrations, which are written down, unless an earlier test had it done
            quick = Database(url, clock=clock)
            schemas.lay_out(quick)
            assert catalogue(quick, kind) == catalogue(migrated, kind)
            assert schema.current(quick) == schema.head()
            schemas.lay_out(quick)  # like an upgrade of an existing schema
            quick.close()
    migrated.close()
