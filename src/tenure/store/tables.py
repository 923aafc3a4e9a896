"""The tables. Rows never leave ``store/``.

The migrations take the types of columns from here: a type whose columns change gets a new name, and the old one stays.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    false,
    true,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from tenure.domain.regions import MAX_TRUSTS
from tenure.domain.requirement import number_of


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware time in UTC, with microseconds, on every database."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(DateTime(timezone=True))
        if dialect.name in {"mysql", "mariadb"}:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.utcoffset() is None:
            raise ValueError("the store takes timezone-aware times only")
        moment = value.astimezone(UTC)
        return moment if dialect.name == "postgresql" else moment.replace(tzinfo=None)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None]:
        return _time_of_text if dialect.name == "sqlite" else _in_utc


def _time_of_text(value: str | None) -> datetime | None:
    """Return the time that SQLite has as a text. The processors of SQLAlchemy take three times as long."""
    return None if value is None else datetime.fromisoformat(f"{value}+00:00")


def _in_utc(value: datetime | None) -> datetime | None:
    if value is None:
        return None
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


#: The length of the prefix of a property's value that an index can look up.
KEY_LENGTH = 64

#: An automatic id. SQLite generates ids only for columns whose type is exactly INTEGER.
BigId = BigInteger().with_variant(Integer, "sqlite")


#: Text that is neither compared nor ordered. Without the variant, MariaDB would use the database's character set.
LONG_TEXT = Text().with_variant(mysql.TEXT(charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")

#: The same, for more than 64 KiB.
DOCUMENT = Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")


def text(length: int) -> String:
    """Text that is compared and ordered character by character on every database."""
    return (
        String(length)
        .with_variant(String(length, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class ResourceRow(Base):
    """A resource of any type that can be booked."""

    __tablename__ = "resources"
    __table_args__ = (
        UniqueConstraint("resource_type", "external_id", "region"),
        # The order of preference: least special first, then by id. Only reservable resources are read.
        Index("ix_resources_preference", "resource_type", "reservable", "scarcity", "id"),
        Index("ix_resources_name", "resource_type", "name", "id"),
        Index("ix_resources_sort_name", "resource_type", "sort_name", "id"),
        Index(None, "resource_type", "id"),
        Index("ix_resources_health", "health", "id"),
        Index("ix_resources_unreviewed", "unreviewed", "id"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    resource_type: Mapped[str] = mapped_column(text(64))
    region: Mapped[str] = mapped_column(text(64))
    external_id: Mapped[str] = mapped_column(text(64))
    name: Mapped[str] = mapped_column(text(255))
    #: The name in a form whose order as text is that of addresses.
    sort_name: Mapped[str] = mapped_column(text(255), server_default="")
    capacity: Mapped[dict[str, int]] = mapped_column(JSON)
    facts: Mapped[dict[str, Any]] = mapped_column(JSON)
    properties: Mapped[dict[str, str]] = mapped_column(JSON)
    traits: Mapped[list[str]] = mapped_column(JSON)
    #: By resource class: the least and the most that one request can take, and the step, if restricted.
    limits: Mapped[dict[str, dict[str, int]]] = mapped_column(JSON)
    #: Whether it is registered, enabled and well. The selection of resources reads this column.
    reservable: Mapped[bool] = mapped_column(Boolean)
    registration: Mapped[str] = mapped_column(text(16), server_default="registered")
    enabled: Mapped[bool] = mapped_column(Boolean, server_default=true())
    disabled_reason: Mapped[str | None] = mapped_column(LONG_TEXT)
    health: Mapped[str] = mapped_column(text(16), server_default="well")
    health_reason: Mapped[str | None] = mapped_column(LONG_TEXT)
    health_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    #: Whether the cloud's description has changed since the leases on the resource were last checked.
    unreviewed: Mapped[bool] = mapped_column(Boolean, server_default=false())
    scarcity: Mapped[int] = mapped_column(Integer)
    version: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class PropertyRow(Base):
    """A property that resources of a type can have, and who may see it."""

    __tablename__ = "properties"
    __table_args__ = (UniqueConstraint("resource_type", "name"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    resource_type: Mapped[str] = mapped_column(text(64))
    name: Mapped[str] = mapped_column(text(64))
    private: Mapped[bool] = mapped_column(Boolean)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class AttributeRow(Base):
    """The attributes that the property language can query: a resource's facts and properties, one row each.

    They are stored besides the documents in ``resources``, so that a search is an index look-up on every database: by
    resource, and from an equality (``key``) to the resources that have it, the least special first.
    """

    __tablename__ = "resource_attributes"
    __table_args__ = (Index("ix_resource_attributes_walk", "key", "scarcity", "resource_id"),)

    resource_id: Mapped[int] = mapped_column(BigId, ForeignKey("resources.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(text(64), primary_key=True)
    value: Mapped[str] = mapped_column(
        Text()
        .with_variant(Text(collation="C"), "postgresql")
        .with_variant(mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql", "mariadb")
    )
    number: Mapped[float | None] = mapped_column(Double)
    key: Mapped[str] = mapped_column(text(160))  # ``key_of`` name and value
    scarcity: Mapped[int] = mapped_column(Integer)  # copied from the resource
    own: Mapped[bool] = mapped_column(Boolean)  # set by the operator, not a fact of the cloud


class TraitRow(Base):
    """A trait of a resource, for look-ups; ``resources`` has all traits in a document."""

    __tablename__ = "resource_traits"

    resource_id: Mapped[int] = mapped_column(BigId, ForeignKey("resources.id", ondelete="CASCADE"), primary_key=True)
    trait: Mapped[str] = mapped_column(text(255), primary_key=True)


def key_of(name: str, value: str) -> str:
    """Return a text that is equal for values that are equal in the property language. Only long values may collide.

    Name and value are one text: PostgreSQL knows how often a text occurs, but not how often two occur together.
    """
    number = number_of(value)
    canonical = value[:KEY_LENGTH] if number is None else repr(number + 0.0)  # zero has no sign
    return f"{len(name)} {name} {canonical}"


class LeaseRow(Base):
    __tablename__ = "leases"
    __table_args__ = (
        Index("ix_leases_created", "deleted_at", "created_at", "id"),
        Index("ix_leases_name", "deleted_at", "name", "id"),
        Index("ix_leases_starts", "deleted_at", "starts_at", "id"),
        Index("ix_leases_ends", "deleted_at", "ends_at", "id"),
        Index("ix_leases_status", "deleted_at", "status", "created_at", "id"),
        Index("ix_leases_project_created", "project_id", "deleted_at", "created_at", "id"),
        Index("ix_leases_project_name", "project_id", "deleted_at", "name", "id"),
        Index("ix_leases_project_starts", "project_id", "deleted_at", "starts_at", "id"),
        Index("ix_leases_project_ends", "project_id", "deleted_at", "ends_at", "id"),
        Index("ix_leases_project_status", "project_id", "deleted_at", "status", "created_at", "id"),
        Index("ix_leases_degraded", "degraded", "id"),
        Index("ix_leases_trust", "trust_id"),
        CheckConstraint("ends_at >= starts_at", name="ends_after_start"),
    )

    id: Mapped[str] = mapped_column(text(36), primary_key=True)
    name: Mapped[str] = mapped_column(text(80))
    #: Which of the choices of a request it has.
    choice: Mapped[int | None] = mapped_column(Integer)
    project_id: Mapped[str] = mapped_column(text(64))
    user_id: Mapped[str] = mapped_column(text(64))
    starts_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ends_at: Mapped[datetime] = mapped_column(UtcDateTime)
    status: Mapped[str] = mapped_column(text(16))
    status_reason: Mapped[str | None] = mapped_column(LONG_TEXT)
    #: The full reason, if the owner sees only a part of it.
    status_detail: Mapped[str | None] = mapped_column(LONG_TEXT)
    degraded: Mapped[bool] = mapped_column(Boolean)
    trust_id: Mapped[str | None] = mapped_column(text(MAX_TRUSTS))
    version: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ReservationRow(Base):
    __tablename__ = "reservations"
    __table_args__ = (
        Index(None, "lease_id", "position"),
        Index("ix_reservations_subject", "subject", unique=True),
    )

    id: Mapped[str] = mapped_column(text(36), primary_key=True)
    lease_id: Mapped[str] = mapped_column(text(36), ForeignKey("leases.id"))
    position: Mapped[int] = mapped_column(Integer)
    resource_type: Mapped[str] = mapped_column(text(64))
    status: Mapped[str] = mapped_column(text(16))
    parameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    #: The cloud resources that were created for it, as far as clients see them.
    effects: Mapped[dict[str, Any]] = mapped_column(JSON)
    #: The region of its resources; empty if there are no regions.
    region: Mapped[str] = mapped_column(text(64), server_default="")
    missing_resources: Mapped[bool] = mapped_column(Boolean)
    resources_changed: Mapped[bool] = mapped_column(Boolean)
    #: The thing in the cloud that is reserved, while the reservation lives. At most one reservation has it.
    subject: Mapped[str | None] = mapped_column(text(160))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class AllocationRow(Base):
    """The ledger for all types: which reservation has which resource, and when."""

    __tablename__ = "allocations"
    __table_args__ = (
        Index("ix_allocations_resource_end", "resource_id", "ends_at", "starts_at"),
        Index("ix_allocations_resource_start", "resource_id", "starts_at"),
        Index("ix_allocations_state", "state", "resource_id", "ends_at"),
        Index("ix_allocations_shared", "exclusive", "ends_at"),
        Index(None, "reservation_id", "state"),
        CheckConstraint("ends_at > starts_at", name="ends_after_start"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    resource_id: Mapped[int] = mapped_column(BigId, ForeignKey("resources.id"))
    reservation_id: Mapped[str] = mapped_column(text(36), ForeignKey("reservations.id"))
    starts_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ends_at: Mapped[datetime] = mapped_column(UtcDateTime)
    #: Since when it is booked for accounts, if its start was delayed until the resource is clean.
    booked_from: Mapped[datetime | None] = mapped_column(UtcDateTime)
    state: Mapped[str] = mapped_column(text(16))
    exclusive: Mapped[bool] = mapped_column(Boolean)
    units: Mapped[int] = mapped_column(Integer, server_default="1")
    amounts: Mapped[dict[str, int]] = mapped_column(JSON)  # the sum over all units


class FeedRow(Base):
    """What a transaction has changed in the ledger; see ``tenure.store.feed``."""

    __tablename__ = "ledger_feed"
    __table_args__ = (Index(None, "at"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    changed: Mapped[dict[str, list[Any]]] = mapped_column(JSON)


class BootRow(Base):
    """The request of the servers of a lease that are made at its start. It is deleted when they are made."""

    __tablename__ = "boots"
    __table_args__ = (Index(None, "project_id", "lease_id"),)

    lease_id: Mapped[str] = mapped_column(text(36), ForeignKey("leases.id"), primary_key=True)
    project_id: Mapped[str] = mapped_column(text(64))
    microversion: Mapped[str | None] = mapped_column(text(16))
    #: The body, as JSON.
    request: Mapped[str] = mapped_column(DOCUMENT)


class WaitingRow(Base):
    """A lease on the waiting list, with its place in the order of the requests, and what it asks for."""

    __tablename__ = "waiting_leases"
    __table_args__ = (Index(None, "lease_id", unique=True),)

    number: Mapped[int] = mapped_column(BigId, primary_key=True)
    lease_id: Mapped[str] = mapped_column(text(36), ForeignKey("leases.id"))
    latest_at: Mapped[datetime] = mapped_column(UtcDateTime)
    #: For how many seconds it is held for its confirmation once there is room.
    confirm_within: Mapped[int | None] = mapped_column(Integer)
    request: Mapped[dict[str, Any]] = mapped_column(JSON)


class WaitingLineRow(Base):
    """A line in which a lease waits: one for each inventory and region of which it wants something."""

    __tablename__ = "waiting_lines"
    __table_args__ = (Index(None, "number"),)

    inventory: Mapped[str] = mapped_column(text(64), primary_key=True)
    region: Mapped[str] = mapped_column(text(64), primary_key=True)
    number: Mapped[int] = mapped_column(
        BigId, ForeignKey("waiting_leases.number"), primary_key=True, autoincrement=False
    )


class FreedRow(Base):
    """Something of an inventory and a region was freed, and its line has not been served since.

    No id is given twice: managers that serve at the same time forget the rows that each of them has read.
    """

    __tablename__ = "freed_room"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012  # SQLAlchemy reads it

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    inventory: Mapped[str] = mapped_column(text(64))
    region: Mapped[str] = mapped_column(text(64))


class EventRow(Base):
    """A timed action of a lease.

    ``ready_at`` is when a worker may claim it next: its due time, the time of the next attempt, or the expiry of the
    current claim; NULL if nothing is left to do.
    """

    __tablename__ = "events"
    __table_args__ = (
        Index(None, "lease_id"),
        Index(None, "ready_at"),
        # The order of starts: if many are due at one instant, only those that are claimed are read.
        Index(None, "rank", "ready_at", "id"),
    )

    id: Mapped[str] = mapped_column(text(36), primary_key=True)
    lease_id: Mapped[str] = mapped_column(text(36), ForeignKey("leases.id"))
    event_type: Mapped[str] = mapped_column(text(32))
    rank: Mapped[int] = mapped_column(Integer)
    due_at: Mapped[datetime] = mapped_column(UtcDateTime)
    status: Mapped[str] = mapped_column(text(16))
    ready_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    claim_token: Mapped[str | None] = mapped_column(text(36))
    attempts: Mapped[int] = mapped_column(Integer)
    payload: Mapped[dict[str, Any] | None] = mapped_column(JSON)  # further data of its type
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class HistoryRow(Base):
    __tablename__ = "history"
    __table_args__ = (Index(None, "lease_id", "id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    lease_id: Mapped[str] = mapped_column(text(36), ForeignKey("leases.id"))
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor: Mapped[str] = mapped_column(text(64))
    action: Mapped[str] = mapped_column(text(32))
    from_status: Mapped[str | None] = mapped_column(text(16))
    to_status: Mapped[str] = mapped_column(text(16))
    reason: Mapped[str | None] = mapped_column(LONG_TEXT)
    #: The full reason, if the owner sees only a part of it.
    detail: Mapped[str | None] = mapped_column(LONG_TEXT)
    request_id: Mapped[str | None] = mapped_column(text(64))


class IdempotencyKeyRow(Base):
    """The key of a request that a client may repeat, and the id of what the request makes."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index(None, "project_id", "created_at"), Index(None, "created_at"))

    #: Derived from the project, the user and the key.
    id: Mapped[str] = mapped_column(text(36), primary_key=True)
    project_id: Mapped[str] = mapped_column(text(64))
    #: SHA-256 of the request.
    digest: Mapped[str] = mapped_column(text(64))
    made_id: Mapped[str] = mapped_column(text(36))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ProjectRow(Base):
    """A project; transactions that count what it has lock this row one after the other."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(text(64), primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger)


class SurplusTrustRow(Base):
    """A trust that belongs to no lease and could not be deleted yet."""

    __tablename__ = "surplus_trusts"

    id: Mapped[str] = mapped_column(text(MAX_TRUSTS), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class UpkeepRow(Base):
    """What the upkeep of the database records about itself, by name; ``padding`` has no meaning."""

    __tablename__ = "upkeep"

    name: Mapped[str] = mapped_column(text(64), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    padding: Mapped[str | None] = mapped_column(LONG_TEXT)


class OutboxRow(Base):
    """A message to others, written with the change that it reports, and delivered afterwards."""

    __tablename__ = "outbox"
    __table_args__ = (
        Index(None, "ready_at"),
        Index(None, "delivered_at", "ready_at"),
        Index(None, "lease_id", "id"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    key: Mapped[str] = mapped_column(text(36), unique=True)
    #: The receiver; empty for listeners to notifications.
    channel: Mapped[str] = mapped_column(text(64), server_default="")
    lease_id: Mapped[str] = mapped_column(text(36))
    topic: Mapped[str] = mapped_column(text(64))
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ready_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    attempts: Mapped[int] = mapped_column(Integer)
    last_error: Mapped[str | None] = mapped_column(LONG_TEXT)
    delivered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    failed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    refusals: Mapped[int] = mapped_column(Integer, server_default="0")
