"""What the upkeep of the database records about itself: the row of the health check, and how far it was purged."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name = (
        sa.String(64)
        .with_variant(sa.String(64, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(64, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )
    padding = sa.Text().with_variant(mysql.TEXT(charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    moment = (
        sa.DateTime()
        .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
        .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    )
    op.create_table(
        "upkeep",
        sa.Column("name", name, nullable=False),
        sa.Column("at", moment, nullable=False),
        sa.Column("padding", padding, nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_upkeep"),
    )
