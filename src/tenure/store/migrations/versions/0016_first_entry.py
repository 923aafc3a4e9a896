"""A first entry of the feed of the ledger, so that no reader begins with an empty feed.

A reader of an empty feed would take the first entry for one that follows lost entries, and read the whole ledger again.
"""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = (
        sa.DateTime()
        .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
        .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    )
    feed = sa.table("ledger_feed", sa.column("id"), sa.column("at", moment), sa.column("changed", sa.JSON))
    bind = op.get_bind()
    if bind.execute(sa.select(feed.c.id).limit(1)).first() is None:
        bind.execute(sa.insert(feed).values(at=datetime(2000, 1, 1, tzinfo=UTC), changed={}))
