"""A lease has the trust with which its owner lets Tenure act in the owner's name."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    text = (
        sa.String(64)
        .with_variant(sa.String(64, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(64, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )
    op.add_column("leases", sa.Column("trust_id", text, nullable=True))
    op.create_index("ix_leases_trust", "leases", ["trust_id"])
