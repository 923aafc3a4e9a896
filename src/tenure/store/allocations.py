"""The ledger: which reservation has which resource, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    tuple_,
    union_all,
    update,
)
from sqlalchemy import true as sql_true
from sqlalchemy.orm import Session, aliased

from tenure.domain.allocation import Allocation, Booking, Demand
from tenure.domain.capacity import WHOLE, Capacity, peak
from tenure.domain.changes import Changes
from tenure.domain.lease import AllocationState
from tenure.domain.period import ENDLESS, OVERDUE_MATTERS, TICK, Period
from tenure.domain.resource import RETIRED, RETIRED_ID, ResourceHealth
from tenure.store import conditions
from tenure.store.amounts import AMOUNTS, capacity_of
from tenure.store.conflict import Overtaken
from tenure.store.feed import Feed, batched
from tenure.store.gains import Gains
from tenure.store.statements import insert_rows
from tenure.store.tables import (
    AllocationRow,
    LeaseRow,
    ReservationRow,
    ResourceRow,
)
from tenure.store.writing import change_row, count_changed

#: Up to how many new rows are sent one by one: of more, the database makes the rows from their parts.
FEW_ROWS = 64
#: The largest number of ids in a statement.
_AT_ONCE = 500

#: The columns of an ``Allocation``. Loading entities would be slow: a large lease has 10,000.
_ALLOCATION = (
    AllocationRow.id,
    AllocationRow.resource_id,
    AllocationRow.reservation_id,
    AllocationRow.starts_at,
    AllocationRow.ends_at,
    AllocationRow.state,
    AMOUNTS,
    AllocationRow.exclusive,
    AllocationRow.units,
    AllocationRow.booked_from,
)

#: The states of allocations that a reservation has now, or is planned to have.
_CURRENT = (AllocationState.PLANNED.value, AllocationState.HELD.value)


class AllocationStore:
    """The table of allocations."""

    def __init__(self, session: Session, gains: Gains, changed: Feed) -> None:
        self._session = session
        self._gains = gains
        self._changed = changed

    def promised(self, resource_id: int, *, now: datetime) -> Capacity:
        """Return the peak use of a resource from now on, by resource class; overdue allocations count for a while."""
        rows = self._session.execute(
            select(AMOUNTS, AllocationRow.starts_at, AllocationRow.ends_at).where(
                AllocationRow.resource_id == resource_id,
                AllocationRow.exclusive.is_(False),
                or_(AllocationRow.ends_at > now, conditions.late(now)),
            )
        )
        uses = [
            (Period(starts_at, ends_at if ends_at > now else now + OVERDUE_MATTERS), capacity_of(amounts))
            for amounts, starts_at, ends_at in rows
        ]
        return peak(uses, Period(now, ENDLESS))

    def add(
        self,
        reservation_id: str,
        units: Mapping[int, int],
        period: Period,
        demand: Demand,
        *,
        state: AllocationState = AllocationState.PLANNED,
        booked_from: datetime | None = None,
    ) -> dict[int, int]:
        """Allocate units of resources, given by resource id; return the ids of the new allocations, by resource id.

        They are booked from their start on, or already from ``booked_from``.

        The caller raises the versions of the resources in the same transaction.
        """
        if not units:
            return {}
        rows = {
            count: _new_row(demand.amounts, demand.exclusive, period, count, state) for count in set(units.values())
        }
        added = self._session.execute(
            insert(AllocationRow).returning(AllocationRow.resource_id, AllocationRow.id),
            [
                {
                    "resource_id": resource_id,
                    "reservation_id": reservation_id,
                    "booked_from": booked_from,
                    **rows[count],
                }
                for resource_id, count in units.items()
            ],
        )
        self._gains.add(units, period)
        self._changed.add_new(units, [reservation_id])
        return {row.resource_id: row.id for row in added}

    def apply(self, changes: Changes, *, now: datetime) -> None:
        """Write what a plan changes; raise ``Overtaken`` if an allocation has changed since it was read.

        The caller raises the versions of the resources in the same transaction. PostgreSQL checks its exclusion
        constraint at the end, so that plans can change places.
        """
        if changes.changed and self._session.get_bind().dialect.name == "postgresql":
            self._session.execute(text("SET CONSTRAINTS ALL DEFERRED"))
        self._record_lapsed(changes, now)
        self._drop(changes.dropped)
        self._change(changes.changed)
        self._insert(changes.added)

    def _record_lapsed(self, changes: Changes, now: datetime) -> None:
        """Record the past of plans that go, or that take less from now on: it was booked and never had."""
        gone = [*changes.dropped, *(lost for before, after in changes.changed for lost in _lost(before, after))]
        rows = []
        for plan in gone:
            past_start, past_end = plan.booked_from or plan.period.start, min(now, plan.period.end)
            if plan.state is AllocationState.PLANNED and past_start < past_end:
                # Not exclusive: another lease had the resource in this time.
                amounts_of_unit = Capacity({name: amount // plan.units for name, amount in plan.amounts.items()})
                amounts = Capacity({WHOLE: 1}) if plan.exclusive else amounts_of_unit
                row = _new_row(amounts, False, Period(past_start, past_end), plan.units, AllocationState.LAPSED)
                rows.append({"resource_id": plan.resource_id, "reservation_id": plan.reservation_id, **row})
        insert_rows(self._session, AllocationRow, rows)

    def _drop(self, dropped: Sequence[Allocation]) -> None:
        self._changed.add_resources({allocation.resource_id for allocation in dropped}, frees=True)
        for same in _as_planned(dropped):
            if count_changed(self._session, delete(AllocationRow).where(same.condition)) != same.number:
                raise Overtaken

    def _change(self, changed: Sequence[tuple[Allocation, Allocation]]) -> None:
        """Change allocations; one statement changes those to which the same happens."""
        alike: dict[tuple[tuple[str, Any], ...], list[Allocation]] = {}
        for before, after in changed:
            old, new = _columns(before), _columns(after)
            columns = tuple((name, new[name]) for name in new if new[name] != old[name])
            if not columns:
                continue
            alike.setdefault(columns, []).append(before)
            moves = after.resource_id != before.resource_id
            for period in (
                [after.period]
                if moves or not before.amounts.fits(after.amounts)
                else after.period.without(before.period)
            ):
                self._gains.add([after.resource_id], period)
            frees = moves or after.units < before.units or bool(before.period.without(after.period))
            self._changed.add_resources({before.resource_id, after.resource_id}, frees=frees)
        for columns, allocations in alike.items():
            values = {name: dict(value) if isinstance(value, Capacity) else value for name, value in columns}
            for same in _as_planned(allocations):
                statement = update(AllocationRow).where(same.condition).values(**values)
                statement = statement.execution_options(synchronize_session=False)
                if count_changed(self._session, statement) != same.number:
                    raise Overtaken

    def _insert(self, added: Sequence[Allocation]) -> None:
        """Add allocations. One statement writes those of several reservations on the same resources."""
        groups: dict[tuple[Allocation, int], dict[str, list[int]]] = {}
        times: Counter[Allocation] = Counter()
        for allocation in added:
            same = replace(allocation, id=0)
            times[same] += 1  # a resource may serve a reservation twice in the same way
            like = replace(same, resource_id=0, reservation_id="")
            groups.setdefault((like, times[same]), {}).setdefault(allocation.reservation_id, []).append(
                allocation.resource_id
            )
            self._gains.add([allocation.resource_id], allocation.period)
        self._changed.add_new(
            {allocation.resource_id for allocation in added}, {allocation.reservation_id for allocation in added}
        )
        for (like, _), resource_ids_of in groups.items():
            alike: dict[frozenset[int], list[str]] = {}
            for reservation_id, resource_ids in resource_ids_of.items():
                alike.setdefault(frozenset(resource_ids), []).append(reservation_id)
            for resource_ids_of_all, reservation_ids in alike.items():
                self._insert_alike(like, resource_ids_of_all, reservation_ids)

    def _insert_alike(self, like: Allocation, resource_ids: Collection[int], reservation_ids: Collection[str]) -> None:
        """Add an allocation like this one on each of the resources for each of the reservations."""
        row = {
            "starts_at": like.period.start,
            "ends_at": like.period.end,
            "state": like.state.value,
            "exclusive": like.exclusive,
            "units": like.units,
            "amounts": dict(like.amounts),
            "booked_from": like.booked_from,
        }
        if len(reservation_ids) * len(resource_ids) <= FEW_ROWS:
            rows = [
                {"resource_id": resource_id, "reservation_id": reservation_id, **row}
                for resource_id in sorted(resource_ids)
                for reservation_id in reservation_ids
            ]
            insert_rows(self._session, AllocationRow, rows)
            return
        values = [literal(value, getattr(AllocationRow, name).type) for name, value in row.items()]
        statement = (
            select(ResourceRow.id, ReservationRow.id, *values)
            .join_from(ResourceRow, ReservationRow, sql_true())  # each resource for each reservation
            .where(conditions.among(ResourceRow.id, resource_ids), ReservationRow.id.in_(sorted(reservation_ids)))
        )
        self._session.execute(insert(AllocationRow).from_select(["resource_id", "reservation_id", *row], statement))

    def of_reservations(self, reservation_ids: Collection[str], *, planned: bool = True) -> list[Allocation]:
        """Return the allocations of these reservations, including released ones, in order of resource.

        With ``planned=False``, plans are left out. What has lapsed is left out in any case.
        """
        if not reservation_ids:
            return []
        left_out = [AllocationState.LAPSED.value, *([] if planned else [AllocationState.PLANNED.value])]
        states = AllocationRow.state.not_in(left_out)
        rows = self._session.execute(
            select(*_ALLOCATION)
            .where(AllocationRow.reservation_id.in_(sorted(reservation_ids)), states)
            .order_by(AllocationRow.resource_id, AllocationRow.id)
        )
        return [_allocation(row) for row in rows]

    def with_versions(self, reservation_ids: Collection[str]) -> tuple[list[Allocation], dict[int, int]]:
        """Return the current allocations of these reservations and their resources' versions, from one statement."""
        if not reservation_ids:
            return [], {}
        rows = self._session.execute(
            select(*_ALLOCATION, ResourceRow.version)
            .join(ResourceRow, ResourceRow.id == AllocationRow.resource_id)
            .where(
                AllocationRow.reservation_id.in_(sorted(reservation_ids)),
                AllocationRow.state.in_(_CURRENT),
            )
            .order_by(AllocationRow.resource_id, AllocationRow.id)
        ).all()
        return [_allocation(row) for row in rows], {row.resource_id: row.version for row in rows}

    def lengthen(self, allocations: Collection[Allocation], until: datetime, *, now: datetime) -> None:
        """Extend allocations to a later end. Those that end later already stay as they are.

        The caller has checked that there is room from ``now`` on, and raised the versions.
        """
        longer = [allocation for allocation in allocations if allocation.period.end < until]
        for allocation in longer:
            if until > now:
                self._gains.add([allocation.resource_id], Period(max(allocation.period.end, now), until))
        ids = [allocation.id for allocation in longer]
        self._set_period(ids, AllocationRow.ends_at < until, {"ends_at": until})

    def shorten(
        self, allocation_ids: Collection[int], until: datetime | None = None, *, start: datetime | None = None
    ) -> None:
        """Give allocations an earlier end, a later start, or both. Allocations never get longer by this."""
        if until is not None:
            self._set_period(allocation_ids, AllocationRow.ends_at > until, {"ends_at": until}, frees=True)
        if start is not None:
            self._set_period(allocation_ids, AllocationRow.starts_at < start, {"starts_at": start}, frees=True)

    def _set_period(
        self,
        allocation_ids: Collection[int],
        where: ColumnElement[bool],
        values: dict[str, datetime],
        *,
        frees: bool = False,
    ) -> None:
        if allocation_ids:
            self._changed.add_allocations(allocation_ids, frees=frees)
            self._session.execute(
                update(AllocationRow)
                .where(conditions.among(AllocationRow.id, allocation_ids), where)
                .values(**values)
                .execution_options(synchronize_session=False)
            )

    def pin(self, reservation_ids: Collection[str]) -> None:
        """Turn the plans of these reservations into held allocations."""
        self._changed.add_reservations(reservation_ids)
        self._session.execute(
            update(AllocationRow)
            .where(
                AllocationRow.reservation_id.in_(sorted(reservation_ids)),
                AllocationRow.state == AllocationState.PLANNED.value,
            )
            .values(state=AllocationState.HELD.value)
        )

    def release(
        self, reservation_ids: Collection[str], *, until: datetime, only: Collection[int] | None = None
    ) -> None:
        """Release the held allocations of these reservations, or of those ``only`` the given allocations.

        Allocations that last beyond ``until`` are cut there. They are deleted only if nothing is left of them.
        Allocations without an end are kept: they take their room until ``reduce_kept``.
        """
        if not reservation_ids:
            return
        mine = and_(
            AllocationRow.reservation_id.in_(sorted(reservation_ids)),
            AllocationRow.state == AllocationState.HELD.value,
            AllocationRow.id.in_(sorted(only)) if only is not None else sql_true(),
        )
        for_no_time = and_(AllocationRow.starts_at >= until, AllocationRow.ends_at != ENDLESS)
        self._changed.add_reservations(reservation_ids, frees=True)
        self._delete(mine, for_no_time)
        self._session.execute(
            update(AllocationRow)
            .where(mine)
            .values(
                state=case(
                    (AllocationRow.ends_at == ENDLESS, AllocationState.KEPT.value),
                    else_=AllocationState.RELEASED.value,
                ),
                ends_at=case(
                    (AllocationRow.ends_at == ENDLESS, AllocationRow.ends_at),
                    (AllocationRow.ends_at > until, until),
                    else_=AllocationRow.ends_at,
                ),
            )
            .execution_options(synchronize_session=False)
        )

    def cut_released(self, until: datetime) -> int:
        """Cut what is released already and lasts beyond ``until``; return the number of allocations.

        They are deleted only if nothing is left of them. For a clock that was set back: what lies beyond has not been.
        """
        over = and_(
            conditions.IS_PAST,
            AllocationRow.ends_at > until,
        )
        resource_ids = list(self._session.scalars(select(AllocationRow.resource_id).where(over)))
        if resource_ids:
            self._changed.add_resources(resource_ids, frees=True)
            self._delete(over, AllocationRow.starts_at >= until)
            self._session.execute(
                update(AllocationRow).where(over).values(ends_at=until).execution_options(synchronize_session=False)
            )
        return len(resource_ids)

    def kept(self, resource_type: str) -> list[Allocation]:
        """Return the allocations that are kept after their reservations, on resources of the type, in order."""
        rows = self._session.execute(
            select(*_ALLOCATION)
            .join(ResourceRow, ResourceRow.id == AllocationRow.resource_id)
            .where(AllocationRow.state == AllocationState.KEPT.value, ResourceRow.resource_type == resource_type)
            .order_by(AllocationRow.id)
        )
        return [_allocation(row) for row in rows]

    def reduce_kept(self, allocation: Allocation, units: int, *, now: datetime) -> None:
        """Reduce a kept allocation to this many units from now on; what goes becomes history.

        The caller raises the version of the resource. Raises ``Overtaken`` if it has changed since it was read.
        """
        amounts_of_unit = Capacity({name: amount // allocation.units for name, amount in allocation.amounts.items()})
        past = Period(allocation.period.start, max(now, allocation.period.start + TICK))
        row = _new_row(amounts_of_unit, allocation.exclusive, past, allocation.units - units, AllocationState.RELEASED)
        if units:  # the past of what goes is history; that of what stays goes on
            history = {"resource_id": allocation.resource_id, "reservation_id": allocation.reservation_id, **row}
            insert_rows(self._session, AllocationRow, [history])
            row = {"units": units, "amounts": dict(amounts_of_unit.times(units))}
        change_row(self._session, update(AllocationRow).where(*_as_read(allocation)).values(**row))
        self._changed.add_resources([allocation.resource_id], frees=True)

    def remove_planned(self, reservation_ids: Collection[str]) -> None:
        """Delete plans: nothing was handed over, so there is no history to keep.

        Another transaction may move a plan meanwhile: it deletes a row and adds another one. The deletion waits for it,
        but on PostgreSQL a statement does not see rows that were added after it began. So it is repeated until a look
        finds no plan. Such a look is final: as long as a move is not committed, the row that it deletes is still seen.
        """
        if not reservation_ids:
            return
        planned = and_(
            AllocationRow.reservation_id.in_(sorted(reservation_ids)),
            AllocationRow.state == AllocationState.PLANNED.value,
        )
        look = select(AllocationRow.id).where(planned).limit(1)
        self._delete(planned)
        while self._session.execute(look).first() is not None:
            self._delete(planned)

    def remove(self, allocation_ids: Collection[int]) -> None:
        if allocation_ids:
            self._delete(conditions.among(AllocationRow.id, allocation_ids))

    def _delete(self, *where: ColumnElement[bool]) -> None:
        columns = AllocationRow.resource_id, AllocationRow.reservation_id
        deleted = self._session.execute(delete(AllocationRow).where(*where).returning(*columns)).all()
        self._changed.add_resources(row.resource_id for row in deleted)
        # All resources of a reservation are of one inventory, in one region.
        self._changed.add_resources({row.reservation_id: row.resource_id for row in deleted}.values(), frees=True)

    def bookings(
        self,
        resource_ids: Collection[int],
        *,
        now: datetime,
        lease_id: str | None = None,
        reservation_id: str | None = None,
    ) -> list[Booking]:
        """Return reservations of these resources: of leases that have not ended, or all of one lease or reservation.

        Allocations that are kept after their lease are included.
        """
        if not resource_ids:
            return []
        statement = self._select_bookings(now=now, lease_id=lease_id, reservation_id=reservation_id)
        rows = self._session.execute(
            statement.where(AllocationRow.resource_id.in_(sorted(resource_ids))).order_by(
                AllocationRow.resource_id, AllocationRow.starts_at, AllocationRow.id
            )
        )
        # Of what was reduced, there is an allocation that is over, and one for the rest.
        return list(dict.fromkeys(Booking(*row) for row in rows))

    def booked_resources(
        self, resource_type: str, *, now: datetime, lease_id: str | None, reservation_id: str | None
    ) -> dict[str, list[int]]:
        """Return the resources in which a lease or reservation has a part, by external id, in order of id.

        Unregistered resources have the external id that they had. Those of one external id are in order of
        registration.
        """
        bookings = self._select_bookings(now=now, lease_id=lease_id, reservation_id=reservation_id)
        booked = self._session.execute(bookings.with_only_columns(AllocationRow.resource_id).distinct()).scalars()
        retired = f"{RETIRED}{resource_type}"
        external_id = case(
            (
                ResourceRow.resource_type == retired,
                func.coalesce(ResourceRow.facts[RETIRED_ID].as_string(), ResourceRow.external_id),
            ),
            else_=ResourceRow.external_id,
        )
        found: dict[str, list[int]] = {}
        for ids in batched(sorted(booked), _AT_ONCE):
            rows = self._session.execute(
                select(ResourceRow.id, external_id.label("external_id"))
                .where(ResourceRow.id.in_(ids), ResourceRow.resource_type.in_([resource_type, retired]))
                .order_by(ResourceRow.id)
            )
            for row in rows:
                found.setdefault(row.external_id, []).append(row.id)
        return found

    def _select_bookings(
        self, *, now: datetime, lease_id: str | None, reservation_id: str | None
    ) -> Select[int, str, str, datetime, datetime]:
        all_leases = lease_id is None and reservation_id is None
        statement = (
            select(
                AllocationRow.resource_id,
                AllocationRow.reservation_id,
                ReservationRow.lease_id,
                LeaseRow.starts_at,
                LeaseRow.ends_at,
            )
            # Each allocation has both rows. In an inner join SQLite would begin with all leases that are not deleted.
            .join(ReservationRow, ReservationRow.id == AllocationRow.reservation_id, isouter=all_leases)
            .join(LeaseRow, LeaseRow.id == ReservationRow.lease_id, isouter=all_leases)
            # A kept allocation still has an owner after its lease is deleted.
            .where(or_(LeaseRow.deleted_at.is_(None), AllocationRow.state == AllocationState.KEPT.value))
            .where(AllocationRow.state != AllocationState.LAPSED.value)
        )
        if all_leases:
            return statement.where(AllocationRow.ends_at >= now, AllocationRow.state != AllocationState.RELEASED.value)
        if lease_id is not None:
            statement = statement.where(ReservationRow.lease_id == lease_id)
        if reservation_id is not None:
            statement = statement.where(ReservationRow.id == reservation_id)
        return statement

    def holding(self, reservation_ids: Collection[str]) -> set[str]:
        """Return those of the reservations that hold anything."""
        if not reservation_ids:
            return set()
        return set(
            self._session.execute(
                select(AllocationRow.reservation_id)
                .where(
                    AllocationRow.reservation_id.in_(sorted(reservation_ids)),
                    AllocationRow.state == AllocationState.HELD.value,
                )
                .distinct()
            ).scalars()
        )

    def leases_on(self, resource_id: int) -> list[str]:
        """Return the leases that have the resource or are planned to have it, the earliest first."""
        return self._leases_where(AllocationRow.resource_id == resource_id)

    def ailing_leases(self, *, before: datetime | None) -> list[str]:
        """Return the leases with a part in an unhealthy resource, if it starts ``before``; the earliest first."""
        ailing = [health.value for health in ResourceHealth if health is not ResourceHealth.WELL]
        soon = AllocationRow.starts_at < before if before is not None else sql_true()
        return self._leases_where(and_(ResourceRow.health.in_(ailing), soon))

    def unreviewed_leases(self) -> list[str]:
        """Return the leases with a part in a resource that the cloud describes differently now; the earliest first."""
        return self._leases_where(ResourceRow.unreviewed.is_(True))

    def _leases_where(self, condition: ColumnElement[bool]) -> list[str]:
        """Return the leases with a current allocation that, with its resource, meets the condition; earliest first."""
        rows = self._session.execute(
            select(ReservationRow.lease_id)
            .join(AllocationRow, AllocationRow.reservation_id == ReservationRow.id)
            .join(ResourceRow, ResourceRow.id == AllocationRow.resource_id)
            .where(condition, AllocationRow.state.in_(_CURRENT))
            .group_by(ReservationRow.lease_id)
            .order_by(func.min(AllocationRow.starts_at), ReservationRow.lease_id)
        )
        return list(rows.scalars())

    def predecessors(self, reservation_ids: Collection[str], *, now: datetime) -> list[int]:
        """Return the resources planned for these reservations that earlier reservations still occupy.

        If either allocation takes the whole resource, the earlier one must have been released. Allocations of parts
        may coexist: an overdue one is in the way only if there is no room beside it.
        """
        mine, theirs = aliased(AllocationRow), aliased(AllocationRow)
        whole = or_(theirs.exclusive, mine.exclusive)
        # Not by the index of starts: SQLite would walk through all past bookings of the resource.
        before = func.coalesce(theirs.starts_at, theirs.starts_at) < mine.starts_at
        rows = self._session.execute(
            select(mine.resource_id, func.max(case((whole, 1), else_=0)))
            .join(theirs, theirs.resource_id == mine.resource_id)
            .where(
                mine.reservation_id.in_(sorted(reservation_ids)),
                mine.state == AllocationState.PLANNED.value,
                theirs.state == AllocationState.HELD.value,
                theirs.reservation_id.not_in(sorted(reservation_ids)),
                or_(and_(whole, before), theirs.ends_at <= now),
            )
            .group_by(mine.resource_id)
            .order_by(mine.resource_id)
        ).all()
        parts = [resource_id for resource_id, is_whole in rows if not is_whole]
        crowded = self._without_room(parts, reservation_ids) if parts else set()
        return [resource_id for resource_id, is_whole in rows if is_whole or resource_id in crowded]

    def _without_room(self, resource_ids: Collection[int], reservation_ids: Collection[str]) -> set[int]:
        """Return the resources that lack room for these reservations' plans beside all that is in use now."""
        amounts = select(AllocationRow.resource_id, AllocationRow.amounts).where(
            conditions.among(AllocationRow.resource_id, resource_ids)
        )
        had = amounts.where(AllocationRow.state.in_([AllocationState.HELD.value, AllocationState.KEPT.value]))
        planned = amounts.where(
            AllocationRow.state == AllocationState.PLANNED.value,
            AllocationRow.reservation_id.in_(sorted(reservation_ids)),
        )
        # Each half has an index. As one query, databases would walk through all past bookings of the resources.
        rows = self._session.execute(union_all(had, planned))
        used = dict.fromkeys(resource_ids, Capacity())
        for row in rows:
            used[row.resource_id] += Capacity(row.amounts)
        capacities = self._session.execute(
            select(ResourceRow.id, ResourceRow.capacity).where(conditions.among(ResourceRow.id, resource_ids))
        )
        return {resource_id for resource_id, capacity in capacities if not Capacity(capacity).fits(used[resource_id])}


def _new_row(
    amounts: Capacity, exclusive: bool, period: Period, count: int, state: AllocationState
) -> dict[str, object]:
    """Return the row of an allocation of ``count`` units, without the resource and the reservation."""
    return {
        "starts_at": period.start,
        "ends_at": period.end,
        "state": state.value,
        "exclusive": exclusive,
        "units": count,
        "amounts": dict(amounts.times(count)),
    }


def _as_read(allocation: Allocation) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for an allocation to be that which was read.

    Its id is not enough: SQLite gives the id of a deleted allocation to another one.
    """
    return (
        AllocationRow.id == allocation.id,
        AllocationRow.resource_id == allocation.resource_id,
        AllocationRow.reservation_id == allocation.reservation_id,
        AllocationRow.state == allocation.state.value,
        AllocationRow.units == allocation.units,
    )


class _Same(NamedTuple):
    """The condition for so many allocations to be as a snapshot has them."""

    condition: ColumnElement[bool]
    number: int


def _as_planned(allocations: Iterable[Allocation]) -> Iterator[_Same]:
    """Yield the conditions for allocations to be as a snapshot has them.

    The end of an overdue one is later there. Only its own lease changes the time of what is held.
    """
    alike: dict[tuple[AllocationState, Period | None], list[Allocation]] = {}
    for allocation in allocations:
        period = allocation.period if allocation.state is AllocationState.PLANNED else None
        alike.setdefault((allocation.state, period), []).append(allocation)
    identity = AllocationRow.id, AllocationRow.resource_id, AllocationRow.reservation_id, AllocationRow.units
    for (state, period), these in alike.items():
        common = [AllocationRow.state == state.value]
        if period is not None:
            common += [AllocationRow.starts_at == period.start, AllocationRow.ends_at == period.end]
        for batch in batched(these, _AT_ONCE):
            rows = [
                (allocation.id, allocation.resource_id, allocation.reservation_id, allocation.units)
                for allocation in batch
            ]
            # The first condition is for the index: some databases look through the table for pairs.
            ids = AllocationRow.id.in_([allocation.id for allocation in batch])
            yield _Same(and_(ids, tuple_(*identity).in_(rows), *common), len(batch))


def _columns(allocation: Allocation) -> dict[str, Any]:
    """Return the columns of an allocation that a plan may change."""
    return {
        "resource_id": allocation.resource_id,
        "starts_at": allocation.period.start,
        "ends_at": allocation.period.end,
        "units": allocation.units,
        "amounts": allocation.amounts,
        "booked_from": allocation.booked_from,
    }


def _lost(before: Allocation, after: Allocation) -> Iterable[Allocation]:
    """Return what a plan has no more after a change, as a plan of its own, if that is something of its past.

    A plan that only begins later stays booked from its start on.
    """
    is_delayed = after.booked_from is not None and after.booked_from == (before.booked_from or before.period.start)
    if is_delayed and (before.resource_id, before.units) == (after.resource_id, after.units):
        return []
    if (before.resource_id, before.period.start, before.booked_from) != (
        after.resource_id,
        after.period.start,
        after.booked_from,
    ):
        return [before]
    units = before.units - after.units
    if units <= 0:
        return []
    amounts_of_unit = Capacity({name: amount // before.units for name, amount in before.amounts.items()})
    return [replace(before, units=units, amounts=amounts_of_unit.times(units))]


def _allocation(row: Any) -> Allocation:
    """Return the allocation in a row that begins with the columns ``_ALLOCATION``."""
    allocation_id, resource_id, reservation_id, starts_at, ends_at, state, amounts, exclusive, units, booked, *_ = row
    return Allocation(
        id=allocation_id,
        resource_id=resource_id,
        reservation_id=reservation_id,
        period=Period(starts_at, ends_at),
        state=AllocationState(state),
        amounts=capacity_of(amounts),
        exclusive=exclusive,
        units=units,
        booked_from=booked,
    )
