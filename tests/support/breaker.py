"""Lost connections to a database, as after its restart or a failover."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.pool import NullPool

from tenure.store.database import Database


class Breaker:
    """Ends connections from the server's side, and counts them."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._postgresql = db.dialect == "postgresql"
        self._engine = create_engine(db.engine.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        self.ended = 0

    def end(self, connection: Connection) -> None:
        """End this connection; its user notices at the next statement."""
        self.ended += 1  # first: the breaker's own query is a statement, too
        self.end_number(self.number_of(connection))

    def number_of(self, connection: Connection) -> int:
        """Return the server's id of a connection."""
        own = "SELECT pg_backend_pid()" if self._postgresql else "SELECT CONNECTION_ID()"
        return int(connection.exec_driver_sql(own).scalar_one())

    def end_number(self, number: int) -> None:
        with self._engine.connect() as other:
            other.execute(
                text(f"SELECT pg_terminate_backend({number}, 10000)" if self._postgresql else f"KILL {number}")
            )

    def end_before(self, beginning: str) -> None:
        """End the first connection that executes a statement with this beginning, just before it."""

        def end(connection: Connection, _cursor: object, statement: str, *_more: object) -> None:
            if statement.startswith(beginning) and not self.ended:
                self.end(connection)

        event.listen(self._db.engine, "before_cursor_execute", end)

    def end_at_commit(self, *, committed: bool) -> None:
        """End the first connection that commits: before the commit, or after it, so that only the answer is lost."""

        def end(connection: Connection) -> None:
            if self.ended:
                return
            if committed:
                connection.connection.commit()
                connection.exec_driver_sql("SELECT 1")  # psycopg commits nothing where nothing has begun
            self.end(connection)

        event.listen(self._db.engine, "commit", end)

    def end_when_taken(self) -> None:
        """End the first connection that is taken from the pool, just after its check."""

        def end(driver: Any, *_more: object) -> None:
            if not self.ended:
                self.ended += 1
                self.end_number(driver.info.backend_pid if self._postgresql else driver.thread_id())

        event.listen(self._db.engine, "checkout", end)
