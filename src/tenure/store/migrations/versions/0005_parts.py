"""Reservations can have parts of resources: units, traits for look-ups, the cloud's limits, and created resources."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

#: How many resources are read at a time.
_AT_ONCE = 1000


def text(length: int) -> sa.types.TypeEngine[Any]:
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )


def upgrade() -> None:
    op.add_column("allocations", sa.Column("units", sa.Integer(), nullable=False, server_default="1"))
    op.create_index("ix_allocations_shared", "allocations", ["exclusive", "ends_at"])
    nothing = sa.text("('{}')") if op.get_bind().dialect.name in {"mysql", "mariadb"} else sa.text("'{}'")
    op.add_column("resources", sa.Column("limits", sa.JSON(), nullable=False, server_default=nothing))
    op.add_column("resources", sa.Column("unreviewed", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index("ix_resources_unreviewed", "resources", ["unreviewed", "id"])
    op.add_column("reservations", sa.Column("effects", sa.JSON(), nullable=False, server_default=nothing))
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    traits = op.create_table(
        "resource_traits",
        sa.Column("resource_id", number, nullable=False),
        sa.Column("trait", text(255), nullable=False),
        sa.PrimaryKeyConstraint("resource_id", "trait", name="pk_resource_traits"),
        sa.ForeignKeyConstraint(
            ["resource_id"], ["resources.id"], name="fk_resource_traits_resource_id", ondelete="CASCADE"
        ),
    )
    _fill(traits)


def _fill(traits: sa.Table) -> None:
    """Fill the table from the documents."""
    resources = sa.table("resources", sa.column("id", sa.BigInteger), sa.column("traits", sa.JSON))
    bind = op.get_bind()
    after = 0
    page = sa.select(resources.c.id, resources.c.traits).order_by(resources.c.id).limit(_AT_ONCE)
    while rows := bind.execute(page.where(resources.c.id > after)).all():
        found = [{"resource_id": row.id, "trait": trait} for row in rows for trait in row.traits]
        if found:
            bind.execute(sa.insert(traits), found)
        after = rows[-1].id
