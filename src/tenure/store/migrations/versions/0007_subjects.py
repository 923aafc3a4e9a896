"""Reservations can be bound to a thing that exists in the cloud already; at most one reservation at a time."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def text(length: int) -> sa.types.TypeEngine[Any]:
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )


def upgrade() -> None:
    op.add_column("reservations", sa.Column("subject", text(160), nullable=True))
    op.create_index("ix_reservations_subject", "reservations", ["subject"], unique=True)
