"""Creating and checking the schema, by alembic's migrations."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from tenure.store.database import Database
from tenure.store.tables import Base

#: The newest revision before the first release. Its tables are those of ``_FIRST``, to which it is renamed.
_BEFORE_RELEASE = "0020"
_FIRST = "0001"


def upgrade(database: Database, revision: str = "head") -> None:
    """Migrate the schema to ``revision``; do nothing if it is there already."""
    with database.engine.begin() as connection:
        config = _config(connection)
        if _BEFORE_RELEASE not in _revisions() and _revision_of(connection) == _BEFORE_RELEASE:
            command.stamp(config, _FIRST, purge=True)
        command.upgrade(config, revision)


def current(database: Database) -> str | None:
    """Return the revision of the schema; None for an empty database."""
    with database.read() as tx:
        return _revision_of(tx.session.connection())


def head() -> str | None:
    """Return the newest revision that this release knows."""
    return ScriptDirectory.from_config(_config(None)).get_current_head()


def knows(revision: str) -> bool:
    """Whether this release can upgrade from a revision. It does not know those of newer releases or other programs."""
    return revision in {*_revisions(), _BEFORE_RELEASE}


def drift(database: Database) -> list[object]:
    """Return the differences between the schema and the models; empty if they agree."""
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, Base.metadata))


def texts_of_another_set(database: Database) -> list[str]:
    """Return our columns that cannot store every character, as ``table.column``. Only MariaDB can have such columns."""
    if database.dialect in {"sqlite", "postgresql"}:
        return []
    columns = text(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND character_set_name <> 'utf8mb4' ORDER BY table_name, column_name"
    )
    with database.read() as tx:
        rows = tx.session.execute(columns).all()
    return [f"{table}.{column}" for table, column in rows if table in Base.metadata.tables]


def _revision_of(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _revisions() -> set[str]:
    return {script.revision for script in ScriptDirectory.from_config(_config(None)).walk_revisions()}


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    return config
