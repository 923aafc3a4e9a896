"""Which of the choices of a request a lease has."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leases", sa.Column("choice", sa.Integer(), nullable=True))
