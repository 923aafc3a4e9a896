"""The full reason, for operators, besides the reason for the owner of the lease.

Until now there was one text. It could name leases, servers and hosts that the owner must not see, and repeat the texts
of unexpected errors. It becomes the full reason.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


#: How many rows are changed by one statement.
_BATCH = 1000
_NEUTRAL = "An earlier release recorded this reason; administrators of the service can read it."
#: Texts of the service that name no lease, server, host or person.
_HARMLESS = (
    "It was not confirmed in time.",
    "The server has another lease now.",
    "The server is gone.",
    "The start was missed: the lease had ended before it could be started.",
)

_LEASES = sa.table(
    "leases",
    sa.column("id", sa.String),
    sa.column("status_reason", sa.Text),
    sa.column("status_detail", sa.Text),
)
_HISTORY = sa.table(
    "history",
    sa.column("id", sa.BigInteger),
    sa.column("actor", sa.String),
    sa.column("action", sa.String),
    sa.column("reason", sa.Text),
    sa.column("detail", sa.Text),
)


def upgrade() -> None:
    long_text = sa.Text().with_variant(mysql.TEXT(charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    op.add_column("leases", sa.Column("status_detail", long_text, nullable=True))
    op.add_column("history", sa.Column("detail", long_text, nullable=True))
    _hide(_LEASES, _LEASES.c.status_reason, _LEASES.c.status_detail, [])
    # Other actions have their own texts, such as the new name of a lease. But the replacement of a host that an
    # administrator has disabled is recorded in the administrator's name.
    by_service = sa.or_(_HISTORY.c.actor == "tenure", _HISTORY.c.action == "replace")
    _hide(_HISTORY, _HISTORY.c.reason, _HISTORY.c.detail, [by_service])


def _hide(
    table: sa.TableClause,
    shown: sa.ColumnClause[str],
    detail: sa.ColumnClause[str],
    conditions: Sequence[sa.ColumnElement[bool]],
) -> None:
    """Make the texts of rows that fulfil the conditions details, batch by batch."""
    bind = op.get_bind()
    hidden = sa.and_(shown.is_not(None), shown.not_in(_HARMLESS), *conditions)
    ids = sa.select(table.c.id).where(hidden).order_by(table.c.id).limit(_BATCH)
    # MariaDB assigns from left to right, and later assignments see the earlier ones.
    change = sa.update(table).where(hidden).ordered_values((detail, shown), (shown, _NEUTRAL))
    batch: list[Any] = list(bind.execute(ids).scalars())
    while batch:
        bind.execute(change.where(table.c.id >= batch[0], table.c.id <= batch[-1]))
        batch = list(bind.execute(ids.where(table.c.id > batch[-1])).scalars())
