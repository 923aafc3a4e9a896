"""The ledger: who has which resource when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    case,
    delete,
    exists,
    func,
    insert,
    not_,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy import false as sql_false
from sqlalchemy import true as sql_true
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from tenure.domain.allocation import Allocation, Booking, Candidate, Demand
from tenure.domain.capacity import Capacity
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.domain.requirement import Comparison, Expression
from tenure.domain.resource import ResourceHealth
from tenure.domain.shortfall import Stage
from tenure.store.conflict import Overtaken
from tenure.store.tables import (
    KEY_LENGTH,
    AllocationRow,
    AttributeRow,
    LeaseRow,
    ReservationRow,
    ResourceRow,
    key_of,
)

#: How many free resources are looked at for the tightest gaps, beyond those needed.
SAMPLE = 24

#: How soon a period must begin for an overdue teardown to stand in its way; by a later start it will be over, or the
#: plan will be moved.
OVERDUE_MATTERS = timedelta(minutes=15)


def overlaps(period: Period, row: type[AllocationRow] = AllocationRow) -> ColumnElement[bool]:
    """The one expression of overlap in SQL; ``Period.overlaps`` is the one in Python."""
    return and_(row.ends_at > period.start, row.starts_at < period.end)


class AllocationStore:
    """The table of allocations."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def candidates(
        self,
        demand: Demand,
        period: Period,
        *,
        now: datetime,
        turn: int,
        ignoring: str | None = None,
        without: Collection[int] = (),
    ) -> list[Candidate]:
        """Some resources that match and are free throughout, in the order of preference, with their versions.

        At most as many as the demand needs plus a bounded sample, whatever the size of the cloud. ``turn`` is where
        the walk through the ids begins; allocations of the reservation ``ignoring`` do not count, and resources in
        ``without`` are left out. Version and availability come from one statement, so that the version is never newer
        than what was seen.
        """
        limit = demand.maximum + SAMPLE
        free = self._select_free(demand, period, now=now, ignoring=ignoring, without=without)
        (scarcity, number), joined = _walk(demand.expression)
        free = free.where(joined).order_by(scarcity, number).limit(limit)
        place = number + 0  # no column, so that no database looks for these ids first and then sorts what it found
        ahead, behind = free.where(place >= turn).subquery(), free.where(place < turn).subquery()
        rows = self._session.execute(union_all(select(ahead), select(behind)))
        found = [Candidate(row.id, row.version, row.scarcity, row.free_since, row.free_until) for row in rows]
        found.sort(key=lambda candidate: (candidate.scarcity, candidate.resource_id < turn, candidate.resource_id))
        return found[:limit]

    def _select_free(
        self,
        demand: Demand,
        period: Period,
        *,
        now: datetime,
        ignoring: str | None,
        without: Collection[int],
    ) -> Select[int, int, int, datetime, datetime]:
        before, behind = aliased(AllocationRow), aliased(AllocationRow)
        free_since = (
            select(func.max(before.ends_at))
            .where(before.resource_id == ResourceRow.id, before.ends_at <= period.start)
            .scalar_subquery()
        )
        free_until = (
            select(func.min(behind.starts_at))
            .where(behind.resource_id == ResourceRow.id, behind.starts_at >= period.end)
            .scalar_subquery()
        )
        return (
            select(
                ResourceRow.id,
                ResourceRow.version,
                ResourceRow.scarcity,
                free_since.label("free_since"),
                free_until.label("free_until"),
            )
            .where(_reservable(demand), _free(period, now=now, ignoring=ignoring))
            .where(*_matching(demand.expression, but=_leading(demand.expression)))
            .where(ResourceRow.id.not_in(sorted(without)) if without else sql_true())
        )

    def still_good(
        self, demand: Demand, period: Period, resource_ids: Collection[int], *, ignoring: str, keep_unreservable: bool
    ) -> dict[int, int]:
        """Those of ``resource_ids`` that match and are free throughout but for the reservation itself, with versions.

        With ``keep_unreservable`` also those that take no new reservations: who holds a resource may keep it.
        """
        if not resource_ids:
            return {}
        conditions = [
            ResourceRow.id.in_(sorted(resource_ids)),
            *_matching(demand.expression),
            not_(_taken(period, ignoring=ignoring)),
        ]
        if not keep_unreservable:
            conditions.append(ResourceRow.reservable.is_(True))
        rows = self._session.execute(
            select(ResourceRow.id, ResourceRow.version).where(*conditions).order_by(ResourceRow.id)
        )
        return {row.id: row.version for row in rows}

    def stages(
        self, demand: Demand, period: Period, *, now: datetime, ignoring: str | None, without: Collection[int]
    ) -> tuple[Stage, ...]:
        """How many resources pass each stage of the choice: a full count, made only for a refusal."""
        row = self._session.execute(
            select(
                func.count(),
                func.coalesce(func.sum(case((_all(_matching(demand.expression)), 1), else_=0)), 0),
                func.coalesce(
                    func.sum(
                        case(
                            (
                                and_(
                                    _all(_matching(demand.expression)),
                                    _free(period, now=now, ignoring=ignoring),
                                    ResourceRow.id.not_in(sorted(without)) if without else sql_true(),
                                ),
                                1,
                            ),
                            else_=0,
                        )
                    ),
                    0,
                ),
            ).where(_reservable(demand))
        ).one()
        return (Stage("reservable", int(row[0])), Stage("matching", int(row[1])), Stage("free", int(row[2])))

    def add(
        self,
        reservation_id: str,
        resource_ids: Sequence[int],
        period: Period,
        demand: Demand,
        *,
        state: AllocationState = AllocationState.PLANNED,
    ) -> None:
        """Assign resources. The caller raises their versions in the same transaction."""
        if not resource_ids:
            return
        self._session.execute(
            insert(AllocationRow),
            [
                {
                    "resource_id": number,
                    "reservation_id": reservation_id,
                    "starts_at": period.start,
                    "ends_at": period.end,
                    "state": state.value,
                    "exclusive": demand.exclusive,
                    "amounts": dict(demand.amounts),
                }
                for number in resource_ids
            ],
        )

    def of_reservations(self, reservation_ids: Collection[str]) -> list[Allocation]:
        """The allocations of these reservations, released ones too, in order of resource."""
        if not reservation_ids:
            return []
        rows = self._session.execute(
            select(AllocationRow)
            .where(AllocationRow.reservation_id.in_(sorted(reservation_ids)))
            .order_by(AllocationRow.resource_id, AllocationRow.id)
            .execution_options(populate_existing=True)
        ).scalars()
        return [_allocation(row) for row in rows]

    def with_versions(self, reservation_ids: Collection[str]) -> tuple[list[Allocation], dict[int, int]]:
        """What these reservations have or are to have, and the versions of those resources, from one statement."""
        if not reservation_ids:
            return [], {}
        rows = self._session.execute(
            select(AllocationRow, ResourceRow.version)
            .join(ResourceRow, ResourceRow.id == AllocationRow.resource_id)
            .where(
                AllocationRow.reservation_id.in_(sorted(reservation_ids)),
                AllocationRow.state != AllocationState.RELEASED.value,
            )
            .order_by(AllocationRow.resource_id, AllocationRow.id)
            .execution_options(populate_existing=True)
        ).all()
        return [_allocation(row) for row, _ in rows], {row.resource_id: version for row, version in rows}

    def blocked_by_plans(
        self,
        demand: Demand,
        period: Period,
        *,
        now: datetime,
        without: Collection[int] = (),
        only: Collection[int] | None = None,
        ignoring: str | None = None,
        limit: int,
    ) -> dict[int, tuple[int, list[Allocation]]]:
        """Resources that match and would be free if plans moved: their versions and the plans in the way.

        A bounded number, those with the fewest plans first. With ``only``, of these resources, reservable or not.
        """
        fixed, movable = aliased(AllocationRow), aliased(AllocationRow)
        fixed_in_the_way = exists().where(
            fixed.resource_id == ResourceRow.id, overlaps(period, fixed), fixed.state != AllocationState.PLANNED.value
        )
        if ignoring is not None:
            fixed_in_the_way = fixed_in_the_way.where(fixed.reservation_id != ignoring)
        eligible = _reservable(demand) if only is None else ResourceRow.id.in_(sorted(only))
        others = movable.reservation_id != ignoring if ignoring is not None else sql_true()
        rows = self._session.execute(
            select(ResourceRow.id, ResourceRow.version, func.count(movable.id))
            .join(movable, and_(movable.resource_id == ResourceRow.id, overlaps(period, movable), others))
            .where(
                eligible,
                *_matching(demand.expression),
                ResourceRow.id.not_in(sorted(without)) if without else sql_true(),
                not_(fixed_in_the_way),
                not_(_overdue(now)) if only is None else sql_true(),
            )
            .group_by(ResourceRow.id, ResourceRow.version)
            .order_by(func.count(movable.id), ResourceRow.id)
            .limit(limit)
        ).all()
        found: dict[int, tuple[int, list[Allocation]]] = {row[0]: (row[1], []) for row in rows}
        if found:
            planned = self._session.execute(
                select(AllocationRow)
                .where(
                    AllocationRow.resource_id.in_(sorted(found)),
                    overlaps(period),
                    AllocationRow.state == AllocationState.PLANNED.value,
                    AllocationRow.reservation_id != ignoring if ignoring is not None else sql_true(),
                )
                .order_by(AllocationRow.id)
                .execution_options(populate_existing=True)
            ).scalars()
            for row in planned:
                found[row.resource_id][1].append(_allocation(row))
        return found

    def move(self, allocation: Allocation, resource_id: int, *, start: datetime) -> None:
        """Put an allocation on another resource, which it has from ``start`` on.

        Raises ``Overtaken`` when the allocation is not what was read any more.
        """
        moved = self._session.execute(
            update(AllocationRow)
            .where(
                AllocationRow.id == allocation.id,
                AllocationRow.resource_id == allocation.resource_id,
                AllocationRow.state == allocation.state.value,
            )
            .values(resource_id=resource_id, starts_at=start)
        )
        if moved.rowcount != 1:  # type: ignore[attr-defined]  # an UPDATE's result counts rows
            raise Overtaken

    def set_period(
        self, allocation_ids: Collection[int], period_end: datetime, *, start: datetime | None = None
    ) -> None:
        """Give allocations another end, and another start where one is given."""
        if not allocation_ids:
            return
        values: dict[str, object] = {"ends_at": period_end}
        if start is not None:
            values["starts_at"] = start
        self._session.execute(
            update(AllocationRow).where(AllocationRow.id.in_(sorted(allocation_ids))).values(**values)
        )

    def pin(self, reservation_ids: Collection[str]) -> None:
        """Turn the plan of these reservations into what they hold."""
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
        """Give back what these reservations hold, or ``only`` some of it, by the ids of the resources.

        What would have lasted beyond ``until`` is trimmed, not deleted; only what lasted for no time at all is.
        """
        if not reservation_ids:
            return
        mine = and_(
            AllocationRow.reservation_id.in_(sorted(reservation_ids)),
            AllocationRow.state == AllocationState.HELD.value,
            AllocationRow.resource_id.in_(sorted(only)) if only is not None else sql_true(),
        )
        self._session.execute(delete(AllocationRow).where(mine, AllocationRow.starts_at >= until))
        self._session.execute(
            update(AllocationRow)
            .where(mine)
            .values(
                state=AllocationState.RELEASED.value,
                ends_at=case((AllocationRow.ends_at > until, until), else_=AllocationRow.ends_at),
            )
            .execution_options(synchronize_session=False)
        )

    def remove_planned(self, reservation_ids: Collection[str]) -> None:
        """Forget a plan: nothing was handed over, so nothing is history."""
        if reservation_ids:
            self._session.execute(
                delete(AllocationRow).where(
                    AllocationRow.reservation_id.in_(sorted(reservation_ids)),
                    AllocationRow.state == AllocationState.PLANNED.value,
                )
            )

    def remove(self, allocation_ids: Collection[int]) -> None:
        if allocation_ids:
            self._session.execute(delete(AllocationRow).where(AllocationRow.id.in_(sorted(allocation_ids))))

    def bookings(
        self,
        resource_ids: Collection[int],
        *,
        now: datetime,
        lease_id: str | None = None,
        reservation_id: str | None = None,
    ) -> list[Booking]:
        """Who has a part in these resources: of leases that have not ended, or all of one lease or reservation."""
        if not resource_ids:
            return []
        statement = self._select_bookings(now=now, lease_id=lease_id, reservation_id=reservation_id)
        rows = self._session.execute(
            statement.where(AllocationRow.resource_id.in_(sorted(resource_ids))).order_by(
                AllocationRow.resource_id, AllocationRow.starts_at, AllocationRow.id
            )
        )
        return [Booking(*row) for row in rows]

    def booked_resource_ids(
        self, resource_type: str, *, lease_id: str | None, reservation_id: str | None, after: int, limit: int
    ) -> list[int]:
        """The resources in which a lease or reservation has a part, in order of id."""
        # Not a table to join, so that no database begins with all resources of the type.
        type_of_resource = (
            select(ResourceRow.resource_type).where(ResourceRow.id == AllocationRow.resource_id).scalar_subquery()
        )
        statement = (
            select(AllocationRow.resource_id)
            .join(ReservationRow, ReservationRow.id == AllocationRow.reservation_id)
            .where(AllocationRow.resource_id > after, type_of_resource == resource_type)
        )
        if lease_id is not None:
            statement = statement.where(ReservationRow.lease_id == lease_id)
        if reservation_id is not None:
            statement = statement.where(ReservationRow.id == reservation_id)
        return list(
            self._session.execute(statement.distinct().order_by(AllocationRow.resource_id).limit(limit)).scalars()
        )

    def _select_bookings(
        self, *, now: datetime, lease_id: str | None, reservation_id: str | None
    ) -> Select[int, str, str, datetime, datetime]:
        everyone = lease_id is None and reservation_id is None
        statement = (
            select(
                AllocationRow.resource_id,
                AllocationRow.reservation_id,
                ReservationRow.lease_id,
                LeaseRow.starts_at,
                LeaseRow.ends_at,
            )
            # Each has both. An inner join would let SQLite begin with all leases that are not deleted.
            .join(ReservationRow, ReservationRow.id == AllocationRow.reservation_id, isouter=everyone)
            .join(LeaseRow, LeaseRow.id == ReservationRow.lease_id, isouter=everyone)
            .where(LeaseRow.deleted_at.is_(None))
        )
        if everyone:
            return statement.where(AllocationRow.ends_at >= now, AllocationRow.state != AllocationState.RELEASED.value)
        if lease_id is not None:
            statement = statement.where(ReservationRow.lease_id == lease_id)
        if reservation_id is not None:
            statement = statement.where(ReservationRow.id == reservation_id)
        return statement

    def holding(self, reservation_ids: Collection[str]) -> set[str]:
        """Those of the reservations that hold anything."""
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

    def matching(self, demand: Demand, resource_ids: Collection[int]) -> set[int]:
        """Those of the resources that have the properties which are asked for, free or not."""
        found = select(ResourceRow.id).where(ResourceRow.id.in_(sorted(resource_ids)), *_matching(demand.expression))
        return set(self._session.execute(found).scalars())

    def leases_on(self, resource_id: int) -> list[str]:
        """The leases that have the resource or are to have it, the earliest first."""
        rows = self._session.execute(
            select(ReservationRow.lease_id)
            .join(AllocationRow, AllocationRow.reservation_id == ReservationRow.id)
            .where(AllocationRow.resource_id == resource_id, AllocationRow.state != AllocationState.RELEASED.value)
            .group_by(ReservationRow.lease_id)
            .order_by(func.min(AllocationRow.starts_at), ReservationRow.lease_id)
        )
        return list(rows.scalars())

    def ailing_leases(self, *, before: datetime | None) -> list[str]:
        """The leases with a part in a resource that is not well, the earliest first; only what starts ``before``."""
        ailing = [one.value for one in ResourceHealth if one is not ResourceHealth.WELL]
        rows = self._session.execute(
            select(ReservationRow.lease_id)
            .join(AllocationRow, AllocationRow.reservation_id == ReservationRow.id)
            .join(ResourceRow, ResourceRow.id == AllocationRow.resource_id)
            .where(
                ResourceRow.health.in_(ailing),
                AllocationRow.state != AllocationState.RELEASED.value,
                AllocationRow.starts_at < before if before is not None else sql_true(),
            )
            .group_by(ReservationRow.lease_id)
            .order_by(func.min(AllocationRow.starts_at), ReservationRow.lease_id)
        )
        return list(rows.scalars())

    def predecessors(self, reservation_ids: Collection[str]) -> list[int]:
        """Of the resources planned for these reservations, those that somebody before has not given back."""
        mine, theirs = aliased(AllocationRow), aliased(AllocationRow)
        return list(
            self._session.execute(
                select(mine.resource_id)
                .join(theirs, theirs.resource_id == mine.resource_id)
                .where(
                    mine.reservation_id.in_(sorted(reservation_ids)),
                    mine.state == AllocationState.PLANNED.value,
                    theirs.state == AllocationState.HELD.value,
                    theirs.reservation_id.not_in(sorted(reservation_ids)),
                    theirs.starts_at < mine.starts_at,
                )
                .distinct()
                .order_by(mine.resource_id)
            ).scalars()
        )


def _reservable(demand: Demand) -> ColumnElement[bool]:
    return and_(ResourceRow.resource_type == demand.inventory, ResourceRow.reservable.is_(True))


def _matching(expression: Expression, *, but: Comparison | None = None) -> list[ColumnElement[bool]]:
    """The property language in SQL; ``Expression.matches`` is the same in Python.

    Each comparison is a look-up by the attributes' primary key, NULL where the resource has no such property. As
    ``EXISTS`` each would be one more table to join, and PostgreSQL takes seconds to plan a join of dozens. What must
    be equal comes first: it is true of the fewest resources, and nothing more is asked of the others.
    """
    return [
        select(_compares(comparison))
        .where(AttributeRow.resource_id == ResourceRow.id, AttributeRow.name == comparison.name)
        .correlate(ResourceRow)
        .scalar_subquery()
        for comparison in sorted(expression.comparisons, key=lambda one: one.op != "==")
        if comparison is not but
    ]


def _walk(
    expression: Expression,
) -> tuple[tuple[InstrumentedAttribute[int], InstrumentedAttribute[int]], ColumnElement[bool]]:
    """Scarcity and id, by which resources are walked through in order, and what joins that walk to them.

    It goes through the resources themselves, or, where a property must be equal to something, through those that have
    it: an index each, read only as far as needed.
    """
    wanted = _leading(expression)
    if wanted is None:
        return (ResourceRow.scarcity, ResourceRow.id), sql_true()
    walked = aliased(AttributeRow)
    found = and_(walked.resource_id == ResourceRow.id, walked.key == key_of(wanted.name, wanted.value))
    return (walked.scarcity, walked.resource_id), found


def _leading(expression: Expression) -> Comparison | None:
    """The first comparison that an index answers."""
    return next((one for one in expression.comparisons if one.op == "==" and len(one.value) < KEY_LENGTH), None)


def _compares(comparison: Comparison) -> ColumnElement[bool]:
    number = comparison.number
    if number is None:
        return _OPERATORS[comparison.op](AttributeRow.value, comparison.value)
    compared = _OPERATORS[comparison.op](AttributeRow.number, number)
    if comparison.op == "!=":
        return or_(AttributeRow.number.is_(None), compared)
    return and_(AttributeRow.number.is_not(None), compared)


_OPERATORS: Mapping[str, Callable[[Any, Any], ColumnElement[bool]]] = {
    "==": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    ">=": lambda column, value: column >= value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    "<": lambda column, value: column < value,
}


def _taken(period: Period, *, ignoring: str | None) -> ColumnElement[bool]:
    """Whether anybody has the resource at any instant of the period.

    Not as ``EXISTS``, which PostgreSQL makes a join of, and takes it to leave next to nothing; it then looks at all
    resources and sorts what is left, instead of walking through them in order until it has enough.
    """
    taken = select(sql_true()).where(AllocationRow.resource_id == ResourceRow.id, overlaps(period))
    if ignoring:
        taken = taken.where(AllocationRow.reservation_id != ignoring)
    return func.coalesce(taken.correlate(ResourceRow).limit(1).scalar_subquery(), sql_false())


def _overdue(now: datetime) -> ColumnElement[bool]:
    """Whether somebody should have given the resource back and has not: it counts as taken."""
    late = aliased(AllocationRow)
    return exists().where(
        late.state == AllocationState.HELD.value, late.resource_id == ResourceRow.id, late.ends_at <= now
    )


def _free(period: Period, *, now: datetime, ignoring: str | None) -> ColumnElement[bool]:
    free = not_(_taken(period, ignoring=ignoring))
    return and_(free, not_(_overdue(now))) if period.start <= now + OVERDUE_MATTERS else free


def _all(conditions: list[ColumnElement[bool]]) -> ColumnElement[bool]:
    return and_(sql_true(), *conditions)


def _allocation(row: AllocationRow) -> Allocation:
    return Allocation(
        id=row.id,
        resource_id=row.resource_id,
        reservation_id=row.reservation_id,
        period=Period(row.starts_at, row.ends_at),
        state=AllocationState(row.state),
        amounts=Capacity(row.amounts),
        exclusive=row.exclusive,
    )
