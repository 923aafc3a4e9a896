"""Resources say why they are not reservable: registration, the operator's word, health. Degraded leases are found."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def utc() -> sa.types.TypeEngine[Any]:
    return (
        sa.DateTime()
        .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
        .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    )


def text(length: int) -> sa.types.TypeEngine[Any]:
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )


def upgrade() -> None:
    for column in (
        sa.Column("registration", text(16), nullable=False, server_default="registered"),
        sa.Column("enabled", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("health", text(16), nullable=False, server_default="well"),
        sa.Column("health_reason", sa.Text(), nullable=True),
        sa.Column("health_since", utc(), nullable=True),
    ):
        op.add_column("resources", column)
    op.create_index("ix_resources_health", "resources", ["health", "id"])
    op.create_index("ix_leases_degraded", "leases", ["degraded", "id"])
    # Until now, a resource that was not reservable was either being registered, at its first version, or being
    # unregistered.
    resources = sa.table(
        "resources",
        sa.column("resource_type", sa.String),
        sa.column("reservable", sa.Boolean),
        sa.column("registration", sa.String),
        sa.column("version", sa.BigInteger),
    )
    op.execute(
        sa.update(resources)
        .where(resources.c.reservable.is_(sa.false()), resources.c.resource_type.not_like("retired:%"))
        .values(registration=sa.case((resources.c.version == 1, "registering"), else_="unregistering"))
    )
