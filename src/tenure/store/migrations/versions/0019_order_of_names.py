"""The names of resources in a form whose order as text is that of addresses: 203.0.113.9 before 203.0.113.10."""

from ipaddress import ip_address

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

#: How many rows are read at a time.
_BATCH = 1000
_RESOURCES = sa.table(
    "resources", sa.column("id", sa.BigInteger), sa.column("name", sa.String), sa.column("sort_name", sa.String)
)


def upgrade() -> None:
    name = (
        sa.String(255)
        .with_variant(sa.String(255, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )
    # A manager of the release before, which still runs, does not fill it.
    op.add_column("resources", sa.Column("sort_name", name, nullable=False, server_default=""))
    connection = op.get_bind()
    connection.execute(sa.update(_RESOURCES).values(sort_name=_RESOURCES.c.name))
    last = 0
    while True:
        found = sa.select(_RESOURCES.c.id, _RESOURCES.c.name).where(_RESOURCES.c.id > last)
        rows = connection.execute(found.order_by(_RESOURCES.c.id).limit(_BATCH)).all()
        if not rows:
            break
        last = rows[-1].id
        addresses = [{"row": row.id, "key": key} for row in rows if (key := _address_in_order(row.name)) is not None]
        if addresses:
            statement = sa.update(_RESOURCES).where(_RESOURCES.c.id == sa.bindparam("row"))
            connection.execute(statement.values(sort_name=sa.bindparam("key")), addresses)
    op.create_index("ix_resources_sort_name", "resources", ["resource_type", "sort_name", "id"])


def _address_in_order(name: str) -> str | None:
    try:
        address = ip_address(name)
    except ValueError:
        return None
    return f"{address.version}:{address.packed.hex()}"
