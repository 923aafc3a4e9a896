"""What operators know of a reason, beside what the owner of the lease is told."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    long_text = sa.Text().with_variant(mysql.TEXT(charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    op.add_column("leases", sa.Column("status_detail", long_text, nullable=True))
    op.add_column("history", sa.Column("detail", long_text, nullable=True))
