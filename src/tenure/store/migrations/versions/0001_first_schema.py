"""The first schema: resources, leases, the ledger, events, history, outbox."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def utc() -> sa.types.TypeEngine[Any]:
    return (
        sa.DateTime()
        .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
        .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    )


def big_id() -> sa.types.TypeEngine[Any]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def text(length: int) -> sa.types.TypeEngine[Any]:
    return (
        sa.String(length)
        .with_variant(sa.String(length, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )


def long_text() -> sa.types.TypeEngine[Any]:
    return (
        sa.Text()
        .with_variant(sa.Text(collation="C"), "postgresql")
        .with_variant(mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("id", text(36), nullable=False),
        sa.Column("name", text(80), nullable=False),
        sa.Column("project_id", text(64), nullable=False),
        sa.Column("user_id", text(64), nullable=False),
        sa.Column("starts_at", utc(), nullable=False),
        sa.Column("ends_at", utc(), nullable=False),
        sa.Column("status", text(16), nullable=False),
        sa.Column("status_reason", sa.Text(), nullable=True),
        sa.Column("degraded", sa.Boolean(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("created_at", utc(), nullable=False),
        sa.Column("updated_at", utc(), nullable=True),
        sa.Column("deleted_at", utc(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_leases"),
        sa.CheckConstraint("ends_at >= starts_at", name=op.f("ck_leases_ends_after_start")),
    )
    op.create_index("ix_leases_created", "leases", ["deleted_at", "created_at", "id"])
    op.create_index("ix_leases_ends", "leases", ["deleted_at", "ends_at", "id"])
    op.create_index("ix_leases_status", "leases", ["deleted_at", "status", "created_at", "id"])
    op.create_index("ix_leases_name", "leases", ["deleted_at", "name", "id"])
    op.create_index("ix_leases_project_created", "leases", ["project_id", "deleted_at", "created_at", "id"])
    op.create_index("ix_leases_project_ends", "leases", ["project_id", "deleted_at", "ends_at", "id"])
    op.create_index("ix_leases_project_status", "leases", ["project_id", "deleted_at", "status", "created_at", "id"])
    op.create_index("ix_leases_project_name", "leases", ["project_id", "deleted_at", "name", "id"])
    op.create_index("ix_leases_project_starts", "leases", ["project_id", "deleted_at", "starts_at", "id"])
    op.create_index("ix_leases_starts", "leases", ["deleted_at", "starts_at", "id"])
    op.create_table(
        "outbox",
        sa.Column("id", big_id(), nullable=False),
        sa.Column("key", text(36), nullable=False),
        sa.Column("lease_id", text(36), nullable=False),
        sa.Column("topic", text(64), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_at", utc(), nullable=False),
        sa.Column("ready_at", utc(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("delivered_at", utc(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sa.UniqueConstraint("key", name="uq_outbox_key"),
    )
    op.create_index("ix_outbox_lease_id_id", "outbox", ["lease_id", "id"])
    op.create_index("ix_outbox_ready_at", "outbox", ["ready_at"])
    op.create_index("ix_outbox_delivered_at_ready_at", "outbox", ["delivered_at", "ready_at"])
    op.create_table(
        "properties",
        sa.Column("id", big_id(), nullable=False),
        sa.Column("resource_type", text(64), nullable=False),
        sa.Column("name", text(64), nullable=False),
        sa.Column("private", sa.Boolean(), nullable=False),
        sa.Column("created_at", utc(), nullable=False),
        sa.Column("updated_at", utc(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_properties"),
        sa.UniqueConstraint("resource_type", "name", name="uq_properties_resource_type_name"),
    )
    op.create_table(
        "resources",
        sa.Column("id", big_id(), nullable=False),
        sa.Column("resource_type", text(64), nullable=False),
        sa.Column("region", text(64), nullable=False),
        sa.Column("external_id", text(64), nullable=False),
        sa.Column("name", text(255), nullable=False),
        sa.Column("capacity", sa.JSON(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("traits", sa.JSON(), nullable=False),
        sa.Column("reservable", sa.Boolean(), nullable=False),
        sa.Column("scarcity", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("created_at", utc(), nullable=False),
        sa.Column("updated_at", utc(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_resources"),
        sa.UniqueConstraint(
            "resource_type", "external_id", "region", name="uq_resources_resource_type_external_id_region"
        ),
    )
    op.create_index("ix_resources_name", "resources", ["resource_type", "name", "id"])
    op.create_index("ix_resources_resource_type_id", "resources", ["resource_type", "id"])
    op.create_index("ix_resources_preference", "resources", ["resource_type", "reservable", "scarcity", "id"])
    op.create_table(
        "events",
        sa.Column("id", text(36), nullable=False),
        sa.Column("lease_id", text(36), nullable=False),
        sa.Column("event_type", text(32), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("due_at", utc(), nullable=False),
        sa.Column("status", text(16), nullable=False),
        sa.Column("ready_at", utc(), nullable=True),
        sa.Column("claim_token", text(36), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=True),
        sa.Column("created_at", utc(), nullable=False),
        sa.Column("updated_at", utc(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name="fk_events_lease_id"),
    )
    op.create_index("ix_events_lease_id", "events", ["lease_id"])
    op.create_index("ix_events_ready_at", "events", ["ready_at"])
    op.create_table(
        "history",
        sa.Column("id", big_id(), nullable=False),
        sa.Column("lease_id", text(36), nullable=False),
        sa.Column("at", utc(), nullable=False),
        sa.Column("actor", text(64), nullable=False),
        sa.Column("action", text(32), nullable=False),
        sa.Column("from_status", text(16), nullable=True),
        sa.Column("to_status", text(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("request_id", text(64), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_history"),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name="fk_history_lease_id"),
    )
    op.create_index("ix_history_lease_id_id", "history", ["lease_id", "id"])
    op.create_table(
        "reservations",
        sa.Column("id", text(36), nullable=False),
        sa.Column("lease_id", text(36), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("resource_type", text(64), nullable=False),
        sa.Column("status", text(16), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("missing_resources", sa.Boolean(), nullable=False),
        sa.Column("resources_changed", sa.Boolean(), nullable=False),
        sa.Column("created_at", utc(), nullable=False),
        sa.Column("updated_at", utc(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_reservations"),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name="fk_reservations_lease_id"),
    )
    op.create_index("ix_reservations_lease_id_position", "reservations", ["lease_id", "position"])
    op.create_table(
        "resource_attributes",
        sa.Column("resource_id", big_id(), nullable=False),
        sa.Column("name", text(64), nullable=False),
        sa.Column("value", long_text(), nullable=False),
        sa.Column("number", sa.Double(), nullable=True),
        sa.Column("key", text(160), nullable=False),
        sa.Column("scarcity", sa.Integer(), nullable=False),
        sa.Column("own", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("resource_id", "name", name="pk_resource_attributes"),
        sa.ForeignKeyConstraint(
            ["resource_id"], ["resources.id"], name="fk_resource_attributes_resource_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_resource_attributes_walk", "resource_attributes", ["key", "scarcity", "resource_id"])
    op.create_table(
        "allocations",
        sa.Column("id", big_id(), nullable=False),
        sa.Column("resource_id", big_id(), nullable=False),
        sa.Column("reservation_id", text(36), nullable=False),
        sa.Column("starts_at", utc(), nullable=False),
        sa.Column("ends_at", utc(), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("exclusive", sa.Boolean(), nullable=False),
        sa.Column("amounts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_allocations"),
        sa.CheckConstraint("ends_at > starts_at", name=op.f("ck_allocations_ends_after_start")),
        sa.ForeignKeyConstraint(["reservation_id"], ["reservations.id"], name="fk_allocations_reservation_id"),
        sa.ForeignKeyConstraint(["resource_id"], ["resources.id"], name="fk_allocations_resource_id"),
    )
    op.create_index("ix_allocations_reservation_id_state", "allocations", ["reservation_id", "state"])
    op.create_index("ix_allocations_resource_end", "allocations", ["resource_id", "ends_at", "starts_at"])
    op.create_index("ix_allocations_resource_start", "allocations", ["resource_id", "starts_at"])
    op.create_index("ix_allocations_state", "allocations", ["state", "resource_id", "ends_at"])
    # PostgreSQL's own promise that no two exclusive allocations of a resource overlap. Ranges of one id need no
    # extension; checked with each statement unless a transaction defers it, so that reservations can swap resources.
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "ALTER TABLE allocations ADD CONSTRAINT ex_allocations_no_overlap EXCLUDE USING gist "
            "(int8range(resource_id, resource_id, '[]') WITH &&, tstzrange(starts_at, ends_at) WITH &&) "
            "WHERE (exclusive) DEFERRABLE INITIALLY IMMEDIATE"
        )
