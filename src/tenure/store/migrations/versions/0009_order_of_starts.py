"""Due starts are found in their order by an index, however many are due at one instant."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_events_rank_ready_at_id", "events", ["rank", "ready_at", "id"])
