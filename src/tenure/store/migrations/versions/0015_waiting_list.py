"""The waiting list: leases that wait for room, and the room that has become free since they were served."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    big_id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    moment = (
        sa.DateTime()
        .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
        .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    )
    op.create_table(
        "waiting_leases",
        sa.Column("number", big_id, nullable=False),
        sa.Column("lease_id", _text(36), nullable=False),
        sa.Column("latest_at", moment, nullable=False),
        sa.Column("confirm_within", sa.Integer, nullable=True),
        sa.Column("request", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name="fk_waiting_leases_lease_id_leases"),
        sa.PrimaryKeyConstraint("number", name="pk_waiting_leases"),
    )
    op.create_index("ix_waiting_leases_lease_id", "waiting_leases", ["lease_id"], unique=True)
    op.create_table(
        "waiting_lines",
        sa.Column("inventory", _text(64), nullable=False),
        sa.Column("region", _text(64), nullable=False),
        sa.Column("number", big_id, nullable=False),
        sa.ForeignKeyConstraint(["number"], ["waiting_leases.number"], name="fk_waiting_lines_number_waiting_leases"),
        sa.PrimaryKeyConstraint("inventory", "region", "number", name="pk_waiting_lines"),
    )
    op.create_index("ix_waiting_lines_number", "waiting_lines", ["number"])
    op.create_table(
        "freed_room",
        sa.Column("id", big_id, nullable=False),
        sa.Column("inventory", _text(64), nullable=False),
        sa.Column("region", _text(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_freed_room"),
    )


def _text(length: int) -> sa.types.TypeEngine[str]:
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )
