"""The feed of the ledger: what each transaction has changed, for indexes in memory."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = (
        sa.DateTime()
        .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
        .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    )
    op.create_table(
        "ledger_feed",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("at", moment, nullable=False),
        sa.Column("changed", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_feed"),
    )
    op.create_index("ix_ledger_feed_at", "ledger_feed", ["at"])
