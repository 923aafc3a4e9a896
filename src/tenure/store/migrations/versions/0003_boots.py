"""Add the requests of servers that are made at the start of their leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenure.store.tables import DOCUMENT, text

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "boots",
        sa.Column("lease_id", text(36), sa.ForeignKey("leases.id"), primary_key=True),
        sa.Column("project_id", text(64), nullable=False),
        sa.Column("microversion", text(16)),
        sa.Column("request", DOCUMENT, nullable=False),
    )
    op.create_index("ix_boots_project_id_lease_id", "boots", ["project_id", "lease_id"])
