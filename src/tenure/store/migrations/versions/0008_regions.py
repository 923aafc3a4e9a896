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
    # What was there before regions belongs to the region without a name, whatever its cloud calls its own region.
    op.execute("UPDATE resources SET region = ''")
    _widen_trusts()


def _widen_trusts() -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.alter_column("leases", "trust_id", existing_type=text(64), type_=text(767), existing_nullable=True)
        return
    # SQLite cannot change a column, and the table cannot be recreated, since other tables refer to its rows.
    op.drop_index("ix_leases_trust", "leases")
    op.add_column("leases", sa.Column("trusts", text(767), nullable=True))
    op.execute("UPDATE leases SET trusts = trust_id")
    op.execute("ALTER TABLE leases DROP COLUMN trust_id")
    op.execute("ALTER TABLE leases RENAME COLUMN trusts TO trust_id")
    op.create_index("ix_leases_trust", "leases", ["trust_id"])
