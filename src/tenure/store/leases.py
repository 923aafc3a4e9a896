"""Leases with their reservations and events, and their history."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, exists, func, insert, or_, select, text, update
from sqlalchemy import true as sql_true
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute, Session

from tenure.domain.errors import Conflict, InvalidParameter
from tenure.domain.lease import (
    DETAILS,
    AllocationState,
    Event,
    EventStatus,
    EventType,
    HistoryEntry,
    Lease,
    LeaseStatus,
    Reservation,
    ReservationStatus,
    Waiting,
)
from tenure.domain.regions import trusts_in
from tenure.domain.request import LeaseOrder, LeaseQuery
from tenure.store.conflict import Overtaken
from tenure.store.statements import insert_rows
from tenure.store.tables import (
    AllocationRow,
    EventRow,
    HistoryRow,
    LeaseRow,
    ReservationRow,
    SurplusTrustRow,
    WaitingRow,
)
from tenure.store.writing import change_row, count_changed, try_change_row

_KEYS: Mapping[LeaseOrder, InstrumentedAttribute[Any]] = {
    LeaseOrder.CREATED_AT: LeaseRow.created_at,
    LeaseOrder.NAME: LeaseRow.name,
    LeaseOrder.STARTS_AT: LeaseRow.starts_at,
    LeaseOrder.ENDS_AT: LeaseRow.ends_at,
}

#: How many entries about changes by users the history of a lease keeps.
UPDATES_KEPT = 1000
_UPDATE = "update"
#: Text of a deleted lease's reservations that is longer than this is not kept.
_LONG_TEXT = 255
#: The most digits that an id of a row may have on every database.
_DIGITS = 18


class LeaseStore:
    """The tables of leases, reservations and history. The event store writes events."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, lease: Lease) -> None:
        """Write a new lease with its reservations; raise ``Overtaken`` if its id exists already."""
        row = {
            **lease.details(),
            "id": lease.id,
            "project_id": lease.project_id,
            "user_id": lease.user_id,
            "starts_at": lease.starts_at,
            "ends_at": lease.ends_at,
            "status": lease.status.value,
            "status_reason": lease.status_reason,
            "status_detail": lease.status_detail,
            "degraded": lease.degraded,
            "trust_id": lease.trust_id,
            "version": lease.version,
            "created_at": lease.created_at,
            "choice": lease.choice,
        }
        try:
            insert_rows(self._session, LeaseRow, [row])
        except IntegrityError as error:
            if _is_duplicate_lease(error):
                raise Overtaken from error
            raise
        self.add_reservations(lease.reservations)

    def add_reservations(self, reservations: Sequence[Reservation], *, first: int = 0) -> None:
        """Write reservations of a lease; ``first`` is the number of those it has already."""
        if not reservations:
            return
        insert_rows(
            self._session,
            ReservationRow,
            [
                {
                    "id": reservation.id,
                    "lease_id": reservation.lease_id,
                    "position": position,
                    "resource_type": reservation.resource_type,
                    "status": reservation.status.value,
                    "parameters": dict(reservation.parameters),
                    "effects": dict(reservation.effects),
                    "region": reservation.region,
                    "missing_resources": reservation.missing_resources,
                    "resources_changed": reservation.resources_changed,
                    "created_at": reservation.created_at,
                }
                for position, reservation in enumerate(reservations, first)
            ],
        )

    def get(self, lease_id: str, *, deleted: bool = False, lock: bool = False) -> Lease | None:
        """Return the lease; None if there is none. Deleted leases are returned only with ``deleted``.

        With ``lock``, no other transaction can change it until this one ends. A transaction locks the lease before
        resources, and never locks two leases.
        """
        row = self._session.get(
            LeaseRow, lease_id, populate_existing=True, with_for_update={"key_share": True} if lock else None
        )
        if row is None or (row.deleted_at is not None and not deleted):
            return None
        return self._assemble([row])[0]

    def page(self, query: LeaseQuery) -> list[Lease]:
        """Return at most one lease more than ``query.limit``, so that the caller sees whether there are more.

        Raises ``InvalidParameter`` for a marker that is no lease of ``query.project_id``, if that is given: the same
        error whether such a lease exists or not. The marked lease may be deleted, and need not match the other
        filters: it may have matched when the client got it.
        """
        key = _KEYS[query.order]
        statement = select(LeaseRow).where(LeaseRow.deleted_at.is_(None))
        filters = {**query.details(), "project_id": query.project_id, "user_id": query.user_id}
        statement = statement.filter_by(**{name: value for name, value in filters.items() if value is not None})
        if query.statuses:
            statement = statement.where(LeaseRow.status.in_(query.statuses))
        if query.starts_before is not None:
            statement = statement.where(LeaseRow.starts_at < query.starts_before)
        if query.ends_after is not None:
            statement = statement.where(LeaseRow.ends_at > query.ends_after)
        if query.marker is not None:
            marker = self._session.get(LeaseRow, query.marker)
            if marker is None or query.project_id not in {None, marker.project_id}:
                raise InvalidParameter(
                    f"marker: there is no lease {query.marker} that a list could go on after.", field="marker"
                )
            value = getattr(marker, key.key)
            beyond = key < value if query.descending else key > value
            ids = LeaseRow.id < marker.id if query.descending else LeaseRow.id > marker.id
            statement = statement.where(or_(beyond, and_(key == value, ids)))
            # The same condition again, as a bound with which every database can begin an index scan.
            statement = statement.where(key <= value if query.descending else key >= value)
        # The first column is NULL in all rows. Naming it lets PostgreSQL read an index that begins with it in order.
        ordered = (LeaseRow.deleted_at, key, LeaseRow.id)
        statement = statement.order_by(*(column.desc() if query.descending else column.asc() for column in ordered))
        return self._assemble(self._session.execute(statement.limit(query.limit + 1)).scalars().all())

    def entrust(self, lease: Lease, trust_id: str) -> bool:
        """Store the trust with a lease that has none in the same regions; return whether it had none."""
        held = lease.trust_id
        if held is not None and trusts_in(held).keys() & trusts_in(trust_id).keys():
            return False
        return try_change_row(
            self._session,
            update(LeaseRow)
            .where(LeaseRow.id == lease.id, LeaseRow.trust_id.is_(None) if held is None else LeaseRow.trust_id == held)
            .values(trust_id=trust_id if held is None else f"{held} {trust_id}")
            .execution_options(synchronize_session=False),
        )

    def idle_trusts(self, limit: int) -> list[str]:
        """Return trusts that nothing needs any more: of leases that are over with their end done, or of no lease.

        At most ``limit`` of each kind.
        """
        over = (LeaseStatus.TERMINATED.value, LeaseStatus.DELETED.value, LeaseStatus.ERROR.value)
        ending = exists().where(
            EventRow.lease_id == LeaseRow.id, EventRow.rank == EventType.END.rank, EventRow.ready_at.is_not(None)
        )
        idle = self._session.execute(
            select(LeaseRow.trust_id)
            .where(LeaseRow.trust_id.is_not(None), LeaseRow.status.in_(over), ~ending)
            .order_by(LeaseRow.trust_id)
            .limit(limit)
        ).scalars()
        surplus = select(SurplusTrustRow.id).order_by(SurplusTrustRow.created_at, SurplusTrustRow.id).limit(limit)
        return [trust_id for trust_id in (*idle, *self._session.execute(surplus).scalars()) if trust_id is not None]

    def keep_surplus_trust(self, trust_id: str, *, now: datetime) -> None:
        """Record a trust that belongs to no lease and is still to be deleted."""
        if self._session.get(SurplusTrustRow, trust_id) is None:
            self._session.add(SurplusTrustRow(id=trust_id, created_at=now))

    def forget_trust(self, trust_id: str) -> None:
        """Record that a trust has been deleted."""
        self._session.execute(
            delete(SurplusTrustRow).where(SurplusTrustRow.id == trust_id).execution_options(synchronize_session=False)
        )
        self._session.execute(
            update(LeaseRow)
            .where(LeaseRow.trust_id == trust_id)
            .values(trust_id=None)
            .execution_options(synchronize_session=False)
        )

    def by_ids(self, ids: Collection[str], *, deleted: bool = False) -> list[Lease]:
        """Return the leases with these ids; deleted ones only with ``deleted``."""
        rows = self._session.execute(
            select(LeaseRow)
            .where(LeaseRow.id.in_(sorted(ids)), sql_true() if deleted else LeaseRow.deleted_at.is_(None))
            .execution_options(populate_existing=True)
        ).scalars()
        return self._assemble(rows.all())

    def known_ids(self, ids: Collection[str]) -> set[str]:
        """Return those of these ids that a lease has, or a deleted lease."""
        return set(self._session.execute(select(LeaseRow.id).where(LeaseRow.id.in_(sorted(ids)))).scalars())

    def holding_ids(self, resource_types: Collection[str]) -> list[str]:
        """Return the leases that are in use and hold something by a reservation of these types.

        The query begins with the held allocations: there may be many leases that hold nothing.
        """
        rows = self._session.execute(
            select(ReservationRow.lease_id)
            .join(AllocationRow, AllocationRow.reservation_id == ReservationRow.id)
            .join(LeaseRow, LeaseRow.id == ReservationRow.lease_id)
            .where(
                AllocationRow.state == AllocationState.HELD.value,
                ReservationRow.resource_type.in_(sorted(resource_types)),
                LeaseRow.status == LeaseStatus.ACTIVE.value,
            )
            .distinct()
        )
        return list(rows.scalars())

    def degraded_ids(self) -> list[str]:
        """Return the leases that have less than was promised and can still get it, the earliest first."""
        open_to_it = [LeaseStatus.PENDING, LeaseStatus.STARTING, LeaseStatus.ACTIVE, LeaseStatus.UPDATING]
        rows = self._session.execute(
            select(LeaseRow.id)
            .where(LeaseRow.degraded.is_(True), LeaseRow.status.in_([status.value for status in open_to_it]))
            .order_by(LeaseRow.starts_at, LeaseRow.id)
        )
        return list(rows.scalars())

    def over(self, reservation_ids: Collection[str]) -> set[str]:
        """Return those of the reservations that exist and have ended, by themselves or with their lease."""
        ended = [LeaseStatus.TERMINATED.value, LeaseStatus.ERROR.value, LeaseStatus.DELETED.value]
        done = [ReservationStatus.DELETED.value, ReservationStatus.ERROR.value]
        rows = self._session.execute(
            select(ReservationRow.id)
            .join(LeaseRow, LeaseRow.id == ReservationRow.lease_id)
            .where(
                ReservationRow.id.in_(sorted(reservation_ids)),
                or_(LeaseRow.status.in_(ended), ReservationRow.status.in_(done)),
            )
        )
        return set(rows.scalars())

    def count(self, project_id: str, status: LeaseStatus) -> int:
        """Return how many leases of a project have this status."""
        counted = select(func.count()).where(
            LeaseRow.project_id == project_id, LeaseRow.deleted_at.is_(None), LeaseRow.status == status.value
        )
        return self._session.execute(counted).scalar_one()

    def change(self, lease: Lease, *, now: datetime | None, **values: Any) -> None:
        """Compare and swap: write ``values`` if the lease has not changed since it was read.

        Raises ``Overtaken`` if it has. The version goes up by one.
        """
        change_row(
            self._session,
            update(LeaseRow)
            .where(LeaseRow.id == lease.id, LeaseRow.version == lease.version)
            .values(version=lease.version + 1, updated_at=now, **values)
            .execution_options(synchronize_session=False),
        )

    def change_reservations(self, ids: Collection[str], *, now: datetime, **values: Any) -> None:
        """Write ``values``. A reservation that is over is detached from its subject."""
        if values.get("status") == ReservationStatus.DELETED.value:
            values["subject"] = None
        if ids:
            self._session.execute(
                update(ReservationRow)
                .where(ReservationRow.id.in_(sorted(ids)))
                .values(updated_at=now, **values)
                .execution_options(synchronize_session=False)
            )

    def drop_long_texts(self, lease_id: str) -> None:
        """Empty the long texts of the lease's reservations, such as their conditions: a deleted lease is not shown."""
        rows = self._session.execute(
            select(*ReservationRow.__table__.columns)
            .where(ReservationRow.lease_id == lease_id)
            .order_by(ReservationRow.position)
        ).mappings()
        shortened = [
            {**row, "parameters": {name: _short(value) for name, value in row["parameters"].items()}}
            for row in rows
            if any(_short(value) != value for value in row["parameters"].values())
        ]
        if not shortened:
            return
        if self._session.get_bind().dialect.name != "sqlite":
            changes = [{"id": row["id"], "parameters": row["parameters"]} for row in shortened]
            self._session.execute(update(ReservationRow), changes)
            return
        # SQLite does not merge the pages of rows that become short; it frees the pages of deleted rows.
        self._session.execute(text("PRAGMA defer_foreign_keys = ON"))
        self._session.execute(
            delete(ReservationRow)
            .where(ReservationRow.id.in_([row["id"] for row in shortened]))
            .execution_options(synchronize_session="fetch")
        )
        self._session.execute(insert(ReservationRow), shortened)

    def bound(self, subject: str) -> str | None:
        """Return the reservation that is bound to this subject."""
        return self._session.scalar(select(ReservationRow.id).where(ReservationRow.subject == subject))

    def bind(self, reservation_id: str, subject: str) -> bool:
        """Bind the reservation to this subject; return False if it is bound to it already.

        Raises ``Conflict``, which names the lease, if another reservation is bound to it; ``InvalidParameter`` if that
        one belongs to the same lease; and ``Overtaken`` if it is just being written.
        """
        row = self._session.execute(
            select(ReservationRow.id, ReservationRow.lease_id).where(ReservationRow.subject == subject)
        ).first()
        if row is not None and row.id == reservation_id:
            return False
        if row is not None:
            own = self._session.scalar(select(ReservationRow.lease_id).where(ReservationRow.id == reservation_id))
            if row.lease_id == own:
                raise InvalidParameter(f"The {subject} is named twice in the lease.")
            raise Conflict(f"The {subject} is reserved already, by the lease {row.lease_id}.")
        try:
            self._session.execute(
                update(ReservationRow)
                .where(ReservationRow.id == reservation_id)
                .values(subject=subject)
                .execution_options(synchronize_session=False)
            )
        except IntegrityError as error:
            raise Overtaken from error
        return True

    def starting(self, after: datetime, until: datetime) -> list[tuple[str, datetime]]:
        """Return the leases that wait for a start in this period, with the start; the earliest first."""
        rows = self._session.execute(
            select(LeaseRow.id, LeaseRow.starts_at)
            .where(
                LeaseRow.deleted_at.is_(None),
                LeaseRow.starts_at > after,
                LeaseRow.starts_at <= until,
                LeaseRow.status == LeaseStatus.PENDING.value,
            )
            .order_by(LeaseRow.starts_at, LeaseRow.id)
        )
        return [(row.id, row.starts_at) for row in rows]

    def add_effects(self, effects: Mapping[str, Mapping[str, object]], *, now: datetime) -> None:
        """Add cloud resources that were created for reservations, by reservation id, to those known already."""
        ids = [reservation_id for reservation_id, created in effects.items() if created]
        known = self.reservations_by_ids(ids) if ids else {}
        added = {
            reservation_id: {**reservation.effects, **effects[reservation_id]}
            for reservation_id, reservation in known.items()
        }
        changed = [
            {"id": reservation_id, "effects": after, "updated_at": now}
            for reservation_id, after in added.items()
            if after != known[reservation_id].effects
        ]
        if changed:
            self._session.execute(update(ReservationRow), changed)

    def reservations_by_ids(self, ids: Collection[str]) -> dict[str, Reservation]:
        rows = self._session.execute(select(ReservationRow).where(ReservationRow.id.in_(sorted(ids)))).scalars()
        return {row.id: _reservation(row) for row in rows}

    def name_region(self, name: str) -> int:
        """Move all reservations of the region without a name to this region; return their number."""
        return count_changed(
            self._session,
            update(ReservationRow)
            .where(ReservationRow.region == "")
            .values(region=name)
            .execution_options(synchronize_session=False),
        )

    # --- history

    def remember(self, entry: HistoryEntry) -> None:
        insert_rows(
            self._session,
            HistoryRow,
            [
                {
                    "lease_id": entry.lease_id,
                    "at": entry.at,
                    "actor": entry.actor,
                    "action": entry.action,
                    "from_status": entry.from_status,
                    "to_status": entry.to_status,
                    "reason": entry.reason,
                    "detail": entry.detail,
                    "request_id": entry.request_id,
                }
            ],
        )

        if entry.action == _UPDATE:
            self._forget_updates(entry.lease_id)

    def _forget_updates(self, lease_id: str) -> None:
        """Delete the oldest entries about changes by users, if there are too many."""
        updates = HistoryRow.lease_id == lease_id, HistoryRow.action == _UPDATE
        newest = select(HistoryRow.id).where(*updates).order_by(HistoryRow.id.desc()).offset(UPDATES_KEPT).limit(1)
        surplus = self._session.execute(newest).scalar_one_or_none()
        if surplus is not None:
            self._session.execute(
                delete(HistoryRow)
                .where(*updates, HistoryRow.id <= surplus)
                .execution_options(synchronize_session=False)
            )

    def was_changed_by(self, lease_id: str, request_id: str) -> bool:
        """Whether the history of the lease has an entry of this request."""
        found = select(HistoryRow.id).where(HistoryRow.lease_id == lease_id, HistoryRow.request_id == request_id)
        return self._session.execute(found.limit(1)).first() is not None

    def history(
        self, lease_id: str, *, limit: int | None = None, marker: str | None = None
    ) -> tuple[HistoryEntry, ...]:
        """Return the history of the lease, oldest first: at most this many entries, and only those after the marker.

        Raises ``InvalidParameter`` for a marker that is no entry of this history.
        """
        statement = select(HistoryRow).where(HistoryRow.lease_id == lease_id).order_by(HistoryRow.id)
        if marker is not None:
            statement = statement.where(HistoryRow.id > self._history_row_id(lease_id, marker))
        if limit is not None:
            statement = statement.limit(limit)
        rows = self._session.execute(statement).scalars()
        return tuple(
            HistoryEntry(
                lease_id=row.lease_id,
                at=row.at,
                actor=row.actor,
                action=row.action,
                from_status=row.from_status,
                to_status=row.to_status,
                reason=row.reason,
                request_id=row.request_id,
                detail=row.detail,
                id=str(row.id),
            )
            for row in rows
        )

    def _history_row_id(self, lease_id: str, marker: str) -> int:
        """Return the row with that id; raise ``InvalidParameter`` if it is not in the history of the lease."""
        is_number = marker.isascii() and marker.isdigit() and len(marker) <= _DIGITS
        row = self._session.get(HistoryRow, int(marker)) if is_number else None
        if row is None or row.lease_id != lease_id:
            raise InvalidParameter(
                f"marker: there is no entry {marker} that the history could go on after.", field="marker"
            )
        return row.id

    # --- rows to values

    def _assemble(self, rows: Sequence[LeaseRow]) -> list[Lease]:
        """Return the leases of these rows, in their order. It takes two more statements for any number of leases."""
        ids = [row.id for row in rows]
        waiting = self._waiting([row.id for row in rows if row.status == LeaseStatus.WAITING.value])
        reservations: dict[str, list[Reservation]] = {lease_id: [] for lease_id in ids}
        events: dict[str, list[Event]] = {lease_id: [] for lease_id in ids}
        if ids:
            for reservation in self._session.execute(
                select(ReservationRow)
                .where(ReservationRow.lease_id.in_(ids))
                .order_by(ReservationRow.lease_id, ReservationRow.position)
                .execution_options(populate_existing=True)
            ).scalars():
                reservations[reservation.lease_id].append(_reservation(reservation))
            for event in self._session.execute(
                select(EventRow)
                .where(EventRow.lease_id.in_(ids))
                .order_by(EventRow.lease_id, EventRow.rank, EventRow.created_at, EventRow.due_at, EventRow.id)
                .execution_options(populate_existing=True)
            ).scalars():
                events[event.lease_id].append(event_of(event))
        return [_lease(row, reservations[row.id], events[row.id], waiting.get(row.id)) for row in rows]

    def _waiting(self, lease_ids: Sequence[str]) -> dict[str, Waiting]:
        """Return what these leases wait for, by lease id."""
        if not lease_ids:
            return {}
        rows = self._session.execute(select(WaitingRow).where(WaitingRow.lease_id.in_(lease_ids))).scalars()
        return {row.lease_id: _waiting(row) for row in rows}


def _lease(
    row: LeaseRow, reservations: Iterable[Reservation], events: Iterable[Event], waiting: Waiting | None
) -> Lease:
    return Lease(
        **{name: getattr(row, name) for name in DETAILS},
        id=row.id,
        project_id=row.project_id,
        user_id=row.user_id,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        status=LeaseStatus(row.status),
        status_reason=row.status_reason,
        degraded=row.degraded,
        version=row.version,
        reservations=tuple(reservations),
        events=tuple(events),
        created_at=row.created_at,
        updated_at=row.updated_at,
        trust_id=row.trust_id,
        status_detail=row.status_detail,
        choice=row.choice,
        waiting=waiting,
    )


def _waiting(row: WaitingRow) -> Waiting:
    return Waiting(
        latest=row.latest_at,
        choices=tuple(
            tuple(
                {
                    "resource_type": reservation["resource_type"],
                    "region": reservation["region"] or None,
                    **reservation["parameters"],
                }
                for reservation in choice
            )
            for choice in row.request["choices"]
        ),
        confirm_within=None if row.confirm_within is None else timedelta(seconds=row.confirm_within),
    )


def _reservation(row: ReservationRow) -> Reservation:
    return Reservation(
        id=row.id,
        lease_id=row.lease_id,
        resource_type=row.resource_type,
        status=ReservationStatus(row.status),
        parameters=row.parameters,
        effects=row.effects,
        region=row.region,
        missing_resources=row.missing_resources,
        resources_changed=row.resources_changed,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def event_of(row: EventRow) -> Event:
    return Event(
        id=row.id,
        lease_id=row.lease_id,
        event_type=EventType(row.event_type),
        due_at=row.due_at,
        status=EventStatus(row.status),
        attempts=row.attempts,
        created_at=row.created_at,
        updated_at=row.updated_at,
        message=(row.payload or {}).get("message"),
    )


def _short(value: object) -> object:
    return "" if isinstance(value, str) and len(value) > _LONG_TEXT else value


def _is_duplicate_lease(error: IntegrityError) -> bool:
    """Whether the database refused a row of ``leases`` for its primary key, which each database names differently."""
    words = str(error.orig)
    return any(
        name in words for name in ("pk_leases", "'PRIMARY'", "leases.PRIMARY", "UNIQUE constraint failed: leases.id")
    )
