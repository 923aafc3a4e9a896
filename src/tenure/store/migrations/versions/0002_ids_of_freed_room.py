"""Never give an id of what was freed again.

SQLite gives the ids of deleted rows again, unless the table was made otherwise.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenure.store.tables import BigId, text

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_LINES = sa.table("freed_room", sa.column("inventory"), sa.column("region"))


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        return
    rows = [dict(row) for row in connection.execute(sa.select(_LINES)).mappings()]
    op.drop_table("freed_room")
    op.create_table(
        "freed_room",
        sa.Column("id", BigId, primary_key=True, nullable=False),
        sa.Column("inventory", text(64), nullable=False),
        sa.Column("region", text(64), nullable=False),
        sqlite_autoincrement=True,
    )
    op.bulk_insert(_LINES, rows)
