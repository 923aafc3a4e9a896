"""Messages record when a delivery failed last, and how often they were refused while other messages arrived."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    utc = (
        sa.DateTime()
        .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
        .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    )
    op.add_column("outbox", sa.Column("failed_at", utc, nullable=True))
    op.add_column("outbox", sa.Column("refusals", sa.Integer(), nullable=False, server_default="0"))
