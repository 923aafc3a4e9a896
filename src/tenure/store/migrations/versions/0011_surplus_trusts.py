"""Trusts that belong to no lease and could not be deleted yet."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    trust = (
        sa.String(767)
        .with_variant(sa.String(767, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(767, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )
    moment = (
        sa.DateTime()
        .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
        .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    )
    op.create_table(
        "surplus_trusts",
        sa.Column("id", trust, nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_surplus_trusts"),
    )
