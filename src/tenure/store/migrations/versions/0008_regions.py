"""Reservations are in a region, and a lease may have a trust in each."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def text(length: int) -> sa.types.TypeEngine[str]:
    """Text that compares byte by byte, everywhere."""
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )


def upgrade() -> None:
    op.add_column("reservations", sa.Column("region", text(64), nullable=False, server_default=""))
    # What was there before there were regions is in the one without a name, whatever its cloud calls its own.
    op.execute("UPDATE resources SET region = ''")
    with op.batch_alter_table("leases") as leases:
        leases.alter_column("trust_id", existing_type=text(64), type_=text(255), existing_nullable=True)
