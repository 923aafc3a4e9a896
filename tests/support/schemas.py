"""The newest schema for tests that are about something else: as the migrations make it, but without running them.

The migrations are run once by each process for each kind of database. What they made is written down as statements,
and those lay out every further database; that takes a small part of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event, inspect

from tenure.store import schema
from tenure.store.database import Database

#: A statement and its parameters, as the driver takes them.
Statement = tuple[str, Any]

#: What lays out an empty database, by dialect.
_statements: dict[str, Sequence[Statement]] = {}


def lay_out(database: Database) -> None:
    """Bring a database to the newest schema; the quick way if it is empty."""
    with database.engine.connect() as connection:
        empty = not inspect(connection).get_table_names()
    if empty and database.dialect in _statements:
        with database.engine.begin() as connection:
            for statement, parameters in _statements[database.dialect]:
                connection.exec_driver_sql(statement, parameters)
        return
    with _written_down(database) as done:
        schema.upgrade(database)
    if empty:
        with database.engine.connect() as connection:
            _statements[database.dialect] = _READERS[database.dialect](connection, done)


@contextmanager
def _written_down(database: Database) -> Iterator[list[Statement]]:
    """What is executed meanwhile, reads left out."""
    done: list[Statement] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_more: object) -> None:
        if not statement.lstrip().upper().startswith("SELECT"):
            done.append((statement, parameters or None))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield done
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def _of_sqlite(connection: Connection, done: Sequence[Statement]) -> list[Statement]:
    of_ours = "sql IS NOT NULL AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    tables_first = f"SELECT sql FROM sqlite_master WHERE {of_ours} ORDER BY type DESC"
    made = connection.exec_driver_sql(tables_first).scalars()
    return [*((statement, None) for statement in made), *_rows(done)]


def _of_postgresql(_connection: Connection, done: Sequence[Statement]) -> list[Statement]:
    """All that the migrations did: PostgreSQL does not tell in statements what there is."""
    return list(done)


def _of_mariadb(connection: Connection, done: Sequence[Statement]) -> list[Statement]:
    names = connection.exec_driver_sql("SHOW TABLES").scalars().all()
    made = [connection.exec_driver_sql(f"SHOW CREATE TABLE {name}").one()[1] for name in names]
    in_any_order, in_order = "SET SESSION foreign_key_checks = 0", "SET SESSION foreign_key_checks = 1"
    return [(in_any_order, None), *((statement, None) for statement in made), *_rows(done), (in_order, None)]


def _rows(done: Sequence[Statement]) -> list[Statement]:
    """The rows that the migrations wrote, and the newest revision."""
    inserts = [
        statement for statement in done if statement[0].startswith("INSERT") and "alembic_version" not in statement[0]
    ]
    return [*inserts, (f"INSERT INTO alembic_version VALUES ('{schema.head()}')", None)]


_READERS: Mapping[str, Callable[[Connection, Sequence[Statement]], list[Statement]]] = {
    "sqlite": _of_sqlite,
    "postgresql": _of_postgresql,
    "mysql": _of_mariadb,
}
