"""The schema of the first release."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from tenure.store.tables import LONG_TEXT, BigId, UtcDateTime, text

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TRUSTS = text(767)
_VALUE = (
    sa.Text()
    .with_variant(sa.Text(collation="C"), "postgresql")
    .with_variant(mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
)


def upgrade() -> None:
    _create_resources()
    _create_leases()
    _create_allocations()
    _create_waiting_list()
    _create_events()
    _create_outbox()
    _create_upkeep()


def _required(name: str, type_: Any, *items: sa.ForeignKey, **options: Any) -> sa.Column[Any]:
    """Return a column that always has a value."""
    return sa.Column(name, type_, *items, nullable=False, **options)


def _key(name: str, type_: Any, *items: sa.ForeignKey, **options: Any) -> sa.Column[Any]:
    """Return a column of the primary key."""
    return _required(name, type_, *items, primary_key=True, **options)


def _create_resources() -> None:
    empty = sa.text("('{}')") if op.get_bind().dialect.name in {"mysql", "mariadb"} else sa.text("'{}'")
    op.create_table(
        "properties",
        _key("id", BigId),
        _required("resource_type", text(64)),
        _required("name", text(64)),
        _required("private", sa.Boolean),
        _required("created_at", UtcDateTime),
        sa.Column("updated_at", UtcDateTime),
        sa.UniqueConstraint("resource_type", "name"),
    )
    op.create_table(
        "resources",
        _key("id", BigId),
        _required("resource_type", text(64)),
        _required("region", text(64)),
        _required("external_id", text(64)),
        _required("name", text(255)),
        _required("capacity", sa.JSON),
        _required("facts", sa.JSON),
        _required("properties", sa.JSON),
        _required("traits", sa.JSON),
        _required("reservable", sa.Boolean),
        _required("scarcity", sa.Integer),
        _required("version", sa.BigInteger),
        _required("created_at", UtcDateTime),
        sa.Column("updated_at", UtcDateTime),
        _required("registration", text(16), server_default="registered"),
        _required("enabled", sa.Boolean, server_default=sa.true()),
        sa.Column("disabled_reason", LONG_TEXT),
        _required("health", text(16), server_default="well"),
        sa.Column("health_reason", LONG_TEXT),
        sa.Column("health_since", UtcDateTime),
        _required("limits", sa.JSON, server_default=empty),
        _required("unreviewed", sa.Boolean, server_default=sa.false()),
        _required("sort_name", text(255), server_default=""),
        sa.UniqueConstraint("resource_type", "external_id", "region"),
    )
    op.create_index("ix_resources_name", "resources", ["resource_type", "name", "id"])
    op.create_index("ix_resources_resource_type_id", "resources", ["resource_type", "id"])
    op.create_index("ix_resources_preference", "resources", ["resource_type", "reservable", "scarcity", "id"])
    op.create_index("ix_resources_health", "resources", ["health", "id"])
    op.create_index("ix_resources_unreviewed", "resources", ["unreviewed", "id"])
    op.create_index("ix_resources_sort_name", "resources", ["resource_type", "sort_name", "id"])
    op.create_table(
        "resource_attributes",
        _key("resource_id", BigId, sa.ForeignKey("resources.id", ondelete="CASCADE")),
        _key("name", text(64)),
        _required("value", _VALUE),
        sa.Column("number", sa.Double),
        _required("key", text(160)),
        _required("scarcity", sa.Integer),
        _required("own", sa.Boolean),
    )
    op.create_index("ix_resource_attributes_walk", "resource_attributes", ["key", "scarcity", "resource_id"])
    op.create_table(
        "resource_traits",
        _key("resource_id", BigId, sa.ForeignKey("resources.id", ondelete="CASCADE")),
        _key("trait", text(255)),
    )


def _create_leases() -> None:
    empty = sa.text("('{}')") if op.get_bind().dialect.name in {"mysql", "mariadb"} else sa.text("'{}'")
    op.create_table(
        "leases",
        _key("id", text(36)),
        _required("name", text(80)),
        _required("project_id", text(64)),
        _required("user_id", text(64)),
        _required("starts_at", UtcDateTime),
        _required("ends_at", UtcDateTime),
        _required("status", text(16)),
        sa.Column("status_reason", LONG_TEXT),
        _required("degraded", sa.Boolean),
        _required("version", sa.BigInteger),
        _required("created_at", UtcDateTime),
        sa.Column("updated_at", UtcDateTime),
        sa.Column("deleted_at", UtcDateTime),
        sa.Column("trust_id", _TRUSTS),
        sa.Column("status_detail", LONG_TEXT),
        sa.Column("choice", sa.Integer),
        sa.CheckConstraint("ends_at >= starts_at", name="ends_after_start"),
    )
    for name, column in (
        ("created", "created_at"),
        ("ends", "ends_at"),
        ("name", "name"),
        ("starts", "starts_at"),
    ):
        op.create_index(f"ix_leases_{name}", "leases", ["deleted_at", column, "id"])
        op.create_index(f"ix_leases_project_{name}", "leases", ["project_id", "deleted_at", column, "id"])
    op.create_index("ix_leases_status", "leases", ["deleted_at", "status", "created_at", "id"])
    op.create_index("ix_leases_project_status", "leases", ["project_id", "deleted_at", "status", "created_at", "id"])
    op.create_index("ix_leases_degraded", "leases", ["degraded", "id"])
    op.create_index("ix_leases_trust", "leases", ["trust_id"])
    op.create_table(
        "reservations",
        _key("id", text(36)),
        _required("lease_id", text(36), sa.ForeignKey("leases.id")),
        _required("position", sa.Integer),
        _required("resource_type", text(64)),
        _required("status", text(16)),
        _required("parameters", sa.JSON),
        _required("missing_resources", sa.Boolean),
        _required("resources_changed", sa.Boolean),
        _required("created_at", UtcDateTime),
        sa.Column("updated_at", UtcDateTime),
        _required("effects", sa.JSON, server_default=empty),
        sa.Column("subject", text(160)),
        _required("region", text(64), server_default=""),
    )
    op.create_index("ix_reservations_lease_id_position", "reservations", ["lease_id", "position"])
    op.create_index("ix_reservations_subject", "reservations", ["subject"], unique=True)
    op.create_table("projects", _key("id", text(64)), _required("version", sa.BigInteger))
    op.create_table("surplus_trusts", _key("id", _TRUSTS), _required("created_at", UtcDateTime))
    op.create_table(
        "idempotency_keys",
        _key("id", text(36)),
        _required("project_id", text(64)),
        _required("digest", text(64)),
        _required("made_id", text(36)),
        _required("created_at", UtcDateTime),
    )
    op.create_index("ix_idempotency_keys_project_id_created_at", "idempotency_keys", ["project_id", "created_at"])
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])


def _create_allocations() -> None:
    op.create_table(
        "allocations",
        _key("id", BigId),
        _required("resource_id", BigId, sa.ForeignKey("resources.id")),
        _required("reservation_id", text(36), sa.ForeignKey("reservations.id")),
        _required("starts_at", UtcDateTime),
        _required("ends_at", UtcDateTime),
        _required("state", text(16)),
        _required("exclusive", sa.Boolean),
        _required("amounts", sa.JSON),
        _required("units", sa.Integer, server_default="1"),
        sa.Column("booked_from", UtcDateTime),
        sa.CheckConstraint("ends_at > starts_at", name="ends_after_start"),
    )
    op.create_index("ix_allocations_reservation_id_state", "allocations", ["reservation_id", "state"])
    op.create_index("ix_allocations_resource_end", "allocations", ["resource_id", "ends_at", "starts_at"])
    op.create_index("ix_allocations_resource_start", "allocations", ["resource_id", "starts_at"])
    op.create_index("ix_allocations_state", "allocations", ["state", "resource_id", "ends_at"])
    op.create_index("ix_allocations_shared", "allocations", ["exclusive", "ends_at"])
    # PostgreSQL's own promise that no two exclusive allocations of a resource overlap. Ranges of one id need no
    # extension; checked with each statement unless a transaction defers it, so that reservations can swap resources.
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "ALTER TABLE allocations ADD CONSTRAINT ex_allocations_no_overlap EXCLUDE USING gist "
            "(int8range(resource_id, resource_id, '[]') WITH &&, tstzrange(starts_at, ends_at) WITH &&) "
            "WHERE (exclusive) DEFERRABLE INITIALLY IMMEDIATE"
        )
    feed = op.create_table(
        "ledger_feed", _key("id", BigId), _required("at", UtcDateTime), _required("changed", sa.JSON)
    )
    op.create_index("ix_ledger_feed_at", "ledger_feed", ["at"])
    # A reader of an empty feed takes the first entry for an entry after lost ones, and reads the whole ledger again.
    op.bulk_insert(feed, [{"at": datetime(2000, 1, 1, tzinfo=UTC), "changed": {}}])


def _create_waiting_list() -> None:
    op.create_table(
        "waiting_leases",
        _key("number", BigId),
        _required("lease_id", text(36)),
        _required("latest_at", UtcDateTime),
        sa.Column("confirm_within", sa.Integer),
        _required("request", sa.JSON),
        sa.ForeignKeyConstraint(["lease_id"], ["leases.id"], name="fk_waiting_leases_lease_id_leases"),
    )
    op.create_index("ix_waiting_leases_lease_id", "waiting_leases", ["lease_id"], unique=True)
    op.create_table(
        "waiting_lines",
        _key("inventory", text(64)),
        _key("region", text(64)),
        _key("number", BigId, autoincrement=False),
        sa.ForeignKeyConstraint(["number"], ["waiting_leases.number"], name="fk_waiting_lines_number_waiting_leases"),
    )
    op.create_index("ix_waiting_lines_number", "waiting_lines", ["number"])
    op.create_table("freed_room", _key("id", BigId), _required("inventory", text(64)), _required("region", text(64)))


def _create_events() -> None:
    op.create_table(
        "events",
        _key("id", text(36)),
        _required("lease_id", text(36), sa.ForeignKey("leases.id")),
        _required("event_type", text(32)),
        _required("rank", sa.Integer),
        _required("due_at", UtcDateTime),
        _required("status", text(16)),
        sa.Column("ready_at", UtcDateTime),
        sa.Column("claim_token", text(36)),
        _required("attempts", sa.Integer),
        sa.Column("payload", sa.JSON),
        _required("created_at", UtcDateTime),
        sa.Column("updated_at", UtcDateTime),
    )
    op.create_index("ix_events_lease_id", "events", ["lease_id"])
    op.create_index("ix_events_ready_at", "events", ["ready_at"])
    op.create_index("ix_events_rank_ready_at_id", "events", ["rank", "ready_at", "id"])
    op.create_table(
        "history",
        _key("id", BigId),
        _required("lease_id", text(36), sa.ForeignKey("leases.id")),
        _required("at", UtcDateTime),
        _required("actor", text(64)),
        _required("action", text(32)),
        sa.Column("from_status", text(16)),
        _required("to_status", text(16)),
        sa.Column("reason", LONG_TEXT),
        sa.Column("request_id", text(64)),
        sa.Column("detail", LONG_TEXT),
    )
    op.create_index("ix_history_lease_id_id", "history", ["lease_id", "id"])


def _create_outbox() -> None:
    op.create_table(
        "outbox",
        _key("id", BigId),
        _required("key", text(36), unique=True),
        _required("lease_id", text(36)),
        _required("topic", text(64)),
        _required("payload", sa.JSON),
        _required("created_at", UtcDateTime),
        sa.Column("ready_at", UtcDateTime),
        _required("attempts", sa.Integer),
        sa.Column("last_error", LONG_TEXT),
        sa.Column("delivered_at", UtcDateTime),
        sa.Column("failed_at", UtcDateTime),
        _required("refusals", sa.Integer, server_default="0"),
        _required("channel", text(64), server_default=""),
    )
    op.create_index("ix_outbox_lease_id_id", "outbox", ["lease_id", "id"])
    op.create_index("ix_outbox_ready_at", "outbox", ["ready_at"])
    op.create_index("ix_outbox_delivered_at_ready_at", "outbox", ["delivered_at", "ready_at"])


def _create_upkeep() -> None:
    op.create_table("upkeep", _key("name", text(64)), _required("at", UtcDateTime), sa.Column("padding", LONG_TEXT))
