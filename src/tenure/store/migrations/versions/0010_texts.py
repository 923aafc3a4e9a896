"""On MariaDB, long texts hold every character, whatever the character set of the database is."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TEXTS = (
    ("resources", "disabled_reason"),
    ("resources", "health_reason"),
    ("leases", "status_reason"),
    ("history", "reason"),
    ("outbox", "last_error"),
)


def upgrade() -> None:
    if op.get_bind().dialect.name not in {"mysql", "mariadb"}:
        return
    for table, column in _TEXTS:
        op.alter_column(
            table,
            column,
            existing_type=sa.Text(),
            existing_nullable=True,
            type_=mysql.TEXT(charset="utf8mb4", collation="utf8mb4_nopad_bin"),
        )
