"""Statements that all databases of a test run share, compiled once for each kind of database.

SQLAlchemy compiles a statement once for each engine. A service has one engine, but each test makes its own, and would
spend two fifths of its time on compiling the same statements.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event


class SharedStatements(dict[tuple[Any, ...], Any]):
    """A cache of compiled statements, by the type of the dialect in place of the dialect, which each engine has."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get((type(key[0]), *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        super().__setitem__((type(key[0]), *key[1:]), compiled)


STATEMENTS = SharedStatements()


def share_statements() -> None:
    """Have every connection that this process makes from now on use ``STATEMENTS``."""
    event.listen(Engine, "engine_connect", _share)


def _share(connection: Connection) -> None:
    connection.execution_options(compiled_cache=STATEMENTS)
