"""Messages for several receivers, and a row for each project whose bookings are counted."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def text(length: int) -> sa.types.TypeEngine[Any]:
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )


def upgrade() -> None:
    op.add_column("outbox", sa.Column("channel", text(64), nullable=False, server_default=""))
    op.create_table(
        "projects",
        sa.Column("id", text(64), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
    )
