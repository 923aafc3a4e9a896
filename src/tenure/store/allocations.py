"""The ledger: which reservation has which resource, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    case,
    delete,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy import true as sql_true
from sqlalchemy.orm import Session, aliased

from tenure.domain.allocation import Allocation, Booking, Candidate, Choice, Demand, Room, Spread, Use
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.lease import AllocationState
from tenure.domain.period import ENDLESS, TICK, Period
from tenure.domain.regions import ids_in
from tenure.domain.resource import RETIRED, RETIRED_ID, ResourceHealth
from tenure.domain.shortfall import Stage
from tenure.store import conditions
from tenure.store.amounts import AMOUNTS, capacities_of, capacity_of
from tenure.store.feed import Feed, batched
from tenure.store.gains import Gains
from tenure.store.tables import (
    AllocationRow,
    LeaseRow,
    ReservationRow,
    ResourceRow,
)
from tenure.store.writing import change_row

#: How many free resources to fetch beyond those needed, so that there is a choice of the tightest gaps.
SAMPLE = 24
#: How many shared allocations to fetch on either side of the end of a period, to find resources that are in use.
SHARED_SAMPLE = 64
#: The largest number of ids in a statement.
_AT_ONCE = 500

#: Aliases, created once like those of ``conditions``: allocations that end before a period, start after it, and others.
_BEFORE, _BEHIND, _OTHER = aliased(AllocationRow), aliased(AllocationRow), aliased(AllocationRow)

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

    def candidates(
        self,
        demand: Demand,
        period: Period,
        *,
        now: datetime,
        turn: int,
        ignoring: str | None = None,
        without: Collection[int] = (),
        only: Collection[int] | None = None,
        limit: int | None = None,
    ) -> list[Candidate]:
        """Return resources that match and have room for the whole period, in order of preference, with their versions.

        The number is bounded: what the demand needs at most plus a sample, or ``limit``; never all of a cloud. The
        walk through the ids begins at ``turn``. Allocations of the reservation ``ignoring`` do not count. Resources in
        ``without`` are left out, and so are resources that are not in ``only``. One statement reads both version and
        availability, so the version is never newer than what was seen.
        """
        limit = demand.maximum + SAMPLE if limit is None else limit
        resources = self._select_free(demand, period, now=now, ignoring=ignoring, without=without)
        if only is not None:
            resources = resources.where(conditions.among(ResourceRow.id, only))
        (scarcity, resource_id), joined = conditions.walk(demand)
        walked = resources.where(joined, *conditions.matching(demand, but=conditions.leading(demand)))
        walked = walked.order_by(scarcity, resource_id).limit(limit)
        matching_resources = resources.where(*conditions.matching(demand))
        place = resource_id + 0  # not a bare column, so that no database first looks up these ids and then sorts
        ahead, behind = walked.where(place >= turn).subquery(), walked.where(place < turn).subquery()
        rows = list(self._session.execute(union_all(select(ahead), select(behind))))
        rows.sort(key=lambda row: (row.scarcity, row.id < turn, row.id))
        del rows[limit:]
        named = ids_in(demand.region, demand.named)
        if named:
            rows = [*self._session.execute(matching_resources.where(ResourceRow.external_id.in_(sorted(named)))), *rows]
        if not demand.exclusive:
            busy = self._shared_ids(period) if only is None else set()
            rows += self._session.execute(matching_resources.where(ResourceRow.id.in_(sorted(busy)))) if busy else []
        unique = {row.id: row for row in rows}
        rooms = {} if demand.exclusive else self.rooms(period, unique, ignoring=ignoring, now=now)
        return [
            Candidate(
                row.id,
                row.version,
                row.scarcity,
                row.free_since,
                row.free_until,
                1 if demand.exclusive else rooms[row.id].units(demand.amounts, period),
                timedelta(0) if demand.exclusive else rooms[row.id].idle(period),
                row.external_id in named,
            )
            for row in unique.values()
        ]

    def _select_free(
        self,
        demand: Demand,
        period: Period,
        *,
        now: datetime,
        ignoring: str | None,
        without: Collection[int],
    ) -> Select[int, str, int, int, datetime, datetime]:
        free_since = (
            select(func.max(_BEFORE.ends_at))
            .where(_BEFORE.resource_id == ResourceRow.id, _BEFORE.ends_at <= period.start)
            .scalar_subquery()
        )
        free_until = (
            select(func.min(_BEHIND.starts_at))
            .where(_BEHIND.resource_id == ResourceRow.id, _BEHIND.starts_at >= period.end)
            .scalar_subquery()
        )
        return (
            select(
                ResourceRow.id,
                ResourceRow.external_id,
                ResourceRow.version,
                ResourceRow.scarcity,
                free_since.label("free_since"),
                free_until.label("free_until"),
            )
            .where(
                conditions.reservable(demand),
                conditions.free(demand, period, now=now, ignoring=ignoring),
            )
            .where(not_(conditions.among(ResourceRow.id, without)) if without else sql_true())
        )

    def _shared_ids(self, period: Period) -> set[int]:
        """Return a bounded number of resources with shared allocations in the period, by the nearest ends."""
        resource_ids: set[int] = set()
        end = AllocationRow.ends_at
        for side, order in (
            (end >= period.end, end.asc()),
            (and_(end < period.end, end > period.start), end.desc()),
        ):
            near = (
                select(AllocationRow.resource_id, AllocationRow.starts_at)
                .where(AllocationRow.exclusive.is_(False), side)
                .order_by(order)
                .limit(SHARED_SAMPLE)
                .subquery()
            )
            ids = select(near.c.resource_id).where(near.c.starts_at < period.end)
            resource_ids.update(self._session.execute(ids).scalars())
        return resource_ids

    def rooms(
        self,
        period: Period,
        resource_ids: Collection[int],
        *,
        ignoring: str | None = None,
        now: datetime | None = None,
    ) -> dict[int, Room]:
        """Return the capacity of each of these resources, with its uses in the period.

        Allocations of the reservation ``ignoring`` do not count. With ``now``, overdue allocations count as well.
        """
        if not resource_ids:
            return {}
        uses: dict[int, list[Use]] = {}
        columns = (AllocationRow.resource_id, AllocationRow.id, AMOUNTS, AllocationRow.exclusive)
        on_them = conditions.among(AllocationRow.resource_id, resource_ids)
        booked = self._session.execute(
            select(*columns, AllocationRow.starts_at, AllocationRow.ends_at).where(
                on_them,
                conditions.overlaps(period),
                AllocationRow.reservation_id != ignoring if ignoring is not None else sql_true(),
            )
        )
        for resource_id, allocation_id, amounts, exclusive, starts_at, ends_at in booked:
            use = Use(allocation_id, capacity_of(amounts), exclusive, Period(starts_at, ends_at))
            uses.setdefault(resource_id, []).append(use)
        soon = None if now is None else conditions.soon(period, now)
        if now is not None and soon is not None:
            late = self._session.execute(select(*columns).where(on_them, conditions.late(now)))
            for resource_id, allocation_id, amounts, exclusive in late:
                uses.setdefault(resource_id, []).append(Use(allocation_id, capacity_of(amounts), exclusive, soon))
        capacities = capacities_of(self._session, resource_ids)
        return {
            resource_id: Room(capacity, tuple(uses.get(resource_id, ())))
            for resource_id, capacity in capacities.items()
        }

    def still_good(
        self,
        demand: Demand,
        period: Period,
        wanted: Mapping[int, int],
        *,
        ignoring: str | None,
        keep_unreservable: bool,
    ) -> dict[int, int]:
        """Return those resources that match and have room for the wanted units in the whole period, with versions.

        ``wanted`` maps ids to units. Allocations of the reservation ``ignoring`` do not count. ``keep_unreservable``
        admits resources that take no new reservations: a reservation that holds such a resource may keep it.
        """
        if not wanted:
            return {}
        where = [
            conditions.among(ResourceRow.id, wanted),
            *conditions.matching(demand.part(1)),
            not_(conditions.taken(demand.part(1), period, ignoring=ignoring)),
        ]
        if not keep_unreservable:
            where.append(ResourceRow.reservable.is_(True))
        rows = self._session.execute(select(ResourceRow.id, ResourceRow.version).where(*where).order_by(ResourceRow.id))
        good = {row.id: row.version for row in rows}
        if demand.exclusive:
            return good
        rooms = self.rooms(period, good, ignoring=ignoring)
        return {
            resource_id: version
            for resource_id, version in good.items()
            if rooms[resource_id].units(demand.amounts, period) >= wanted[resource_id]
        }

    def versions_of(self, choices: Collection[Choice], *, now: datetime) -> dict[int, int]:
        """Return the versions of the resources if all choices can be booked side by side; else an empty dict."""
        versions: dict[int, int] = {}
        units: dict[Capacity, Counter[int]] = {}
        spans: dict[Period, set[int]] = {}
        whole: Counter[int] = Counter()
        kinds: list[tuple[Demand, Period, set[int]]] = []
        for choice in choices:
            kind = replace(choice.demand, minimum=1, maximum=1)
            if choice.demand.spread is Spread.TOGETHER:
                kind = choice.demand
            resource_ids = next(
                (known for other_kind, span, known in kinds if (other_kind, span) == (kind, choice.period)), None
            )
            if resource_ids is None:
                resource_ids = set()
                kinds.append((kind, choice.period, resource_ids))
            resource_ids.update(choice.units)
            spans.setdefault(choice.period, set()).update(choice.units)
            whole.update(choice.units.keys() if choice.demand.exclusive else ())
            units.setdefault(choice.demand.amounts, Counter()).update(choice.units)
        totals: dict[int, Capacity] = {}
        for amounts, counts in units.items():
            for resource_id, count in counts.items():
                totals[resource_id] = totals.get(resource_id, Capacity()) + amounts.times(count)
        if sum(map(len, spans.values())) > len(totals) or any(count > 1 for count in whole.values()):
            return {}
        for kind, span, resource_ids in kinds:
            select_room = self._select_free(kind, span, now=now, ignoring=None, without=())
            rows = select_room.where(conditions.among(ResourceRow.id, resource_ids), *conditions.matching(kind))
            current = {row.id: row.version for row in self._session.execute(rows)}
            if current.keys() != resource_ids or any(
                versions.get(resource_id, current[resource_id]) != current[resource_id] for resource_id in resource_ids
            ):
                return {}
            versions |= current
        for span, resource_ids in spans.items():
            for resource_id, room in self.rooms(span, resource_ids - whole.keys(), now=now).items():
                if room.is_whole or not room.capacity.fits(room.used(span) + totals[resource_id]):
                    return {}
        return versions

    def stages(
        self, demand: Demand, period: Period, *, now: datetime, ignoring: str | None, without: Collection[int]
    ) -> tuple[Stage, ...]:
        """Count the resources that pass each stage of the selection. It is a full count, made only for a refusal.

        If the demand is for parts of resources, the last stage counts the units for which there is room.
        """
        single_unit = demand if demand.exclusive else demand.part(1)
        matches = _all_hold(conditions.matching(single_unit))
        has_room = and_(
            matches,
            conditions.free(single_unit, period, now=now, ignoring=ignoring),
            not_(conditions.among(ResourceRow.id, without)) if without else sql_true(),
        )
        row = self._session.execute(
            select(
                func.count(),
                func.coalesce(func.sum(case((matches, 1), else_=0)), 0),
                func.coalesce(func.sum(case((has_room, 1), else_=0)), 0),
            ).where(conditions.reservable(demand))
        ).one()
        reservable, matching, free = map(int, row)
        if demand.exclusive:
            return (Stage("reservable", reservable), Stage("matching", matching), Stage("free", free))
        ids = self._session.execute(select(ResourceRow.id).where(conditions.reservable(demand), has_room)).scalars()
        rooms = self.rooms(period, list(ids), ignoring=ignoring, now=now)
        fitting = _fitting_units(demand, [room.units(demand.amounts, period) for room in rooms.values()])
        return (
            Stage("reservable", reservable),
            Stage("matching", matching),
            Stage("roomy", free),
            Stage("fitting", fitting),
        )

    def promised(self, resource_id: int, *, now: datetime) -> Capacity:
        """Return the peak use of a resource from now on, by resource class; overdue allocations count."""
        for_ever = Period(now, ENDLESS)
        return self.rooms(for_ever, [resource_id], now=now)[resource_id].used(for_ever)

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
        self._changed.add_resources(units)
        return {row.resource_id: row.id for row in added}

    def add_planned(self, choices: Mapping[str, Choice]) -> None:
        """Allocate the choices for new reservations, by reservation id, as plans.

        The caller raises the versions of the resources in the same transaction. One statement writes the rows of all
        reservations that have equal choices: single rows would take longer, and other transactions wait meanwhile.
        """
        alike: dict[tuple[Capacity, bool, Period, int, frozenset[int]], list[str]] = {}
        for reservation_id, choice in choices.items():
            self._gains.add(choice.units, choice.period)
            self._changed.add_resources(choice.units)
            demand = choice.demand
            for count, those in _by_count(choice.units).items():
                kind = demand.amounts, demand.exclusive, choice.period, count, frozenset(those)
                alike.setdefault(kind, []).append(reservation_id)
        for (amounts, exclusive, period, count, resource_ids), reservation_ids in alike.items():
            row = _new_row(amounts, exclusive, period, count, AllocationState.PLANNED)
            values = [literal(value, getattr(AllocationRow, name).type) for name, value in row.items()]
            rows = (
                select(ResourceRow.id, ReservationRow.id, *values)
                .join_from(ResourceRow, ReservationRow, sql_true())  # each resource for each reservation
                .where(conditions.among(ResourceRow.id, resource_ids), ReservationRow.id.in_(sorted(reservation_ids)))
            )
            self._session.execute(insert(AllocationRow).from_select(["resource_id", "reservation_id", *row], rows))

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

    def blocked_by_plans(
        self,
        demand: Demand,
        period: Period,
        *,
        now: datetime,
        without: Collection[int] = (),
        only: Collection[int] | None = None,
        ignoring: str | None = None,
        fixed: conditions.Fixed = conditions.NO_PLAN,
        limit: int,
    ) -> dict[int, tuple[int, list[Allocation]]]:
        """Return resources that match and would be free if plans moved: their versions, and the plans in the way.

        The number is bounded; resources with the fewest plans come first. With ``only``, it considers just these
        resources, reservable or not.
        """
        eligible = conditions.reservable(demand) if only is None else conditions.among(ResourceRow.id, only)
        others = _OTHER.reservation_id != ignoring if ignoring is not None else sql_true()
        rows = self._session.execute(
            select(ResourceRow.id, ResourceRow.version, func.count(_OTHER.id))
            .join(_OTHER, and_(_OTHER.resource_id == ResourceRow.id, conditions.overlaps(period, _OTHER), others))
            .where(
                eligible,
                conditions.narrowed(demand),
                *conditions.matching(demand),
                not_(conditions.among(ResourceRow.id, without)) if without else sql_true(),
                not_(conditions.taken(demand, period, ignoring=ignoring, fixed=fixed)),
                not_(conditions.overdue(demand, period, now=now, ignoring=ignoring, fixed=fixed))
                if only is None
                else sql_true(),
            )
            .group_by(ResourceRow.id, ResourceRow.version)
            .order_by(func.count(_OTHER.id), ResourceRow.id)
            .limit(limit)
        ).all()
        blocked: dict[int, tuple[int, list[Allocation]]] = {row[0]: (row[1], []) for row in rows}
        if blocked:
            planned = self._session.execute(
                select(*_ALLOCATION)
                .where(
                    conditions.among(AllocationRow.resource_id, blocked),
                    conditions.overlaps(period),
                    conditions.movable(fixed),
                    AllocationRow.reservation_id != ignoring if ignoring is not None else sql_true(),
                )
                .order_by(AllocationRow.id)
            )
            for row in planned:
                blocked[row.resource_id][1].append(_allocation(row))
        return blocked

    def not_over(self, resource_ids: Collection[int], *, now: datetime) -> list[Allocation]:
        """Return the allocations on these resources that have not ended, or that are overdue, in order of id."""
        if not resource_ids:
            return []
        rows = self._session.execute(
            select(*_ALLOCATION)
            .where(
                conditions.among(AllocationRow.resource_id, resource_ids),
                or_(AllocationRow.ends_at > now, conditions.late(now)),
            )
            .order_by(AllocationRow.id)
        )
        return [_allocation(row) for row in rows]

    def any_planned(self, period: Period) -> bool:
        """Whether there is any plan in any part of the period."""
        planned = select(AllocationRow.id).where(
            AllocationRow.state == AllocationState.PLANNED.value, conditions.overlaps(period)
        )
        return self._session.execute(planned.limit(1)).first() is not None

    def plans_on(self, resource_id: int, period: Period) -> list[Allocation]:
        """Return the plans on a resource in any part of the period, the earliest first."""
        rows = self._session.execute(
            select(*_ALLOCATION)
            .where(
                AllocationRow.resource_id == resource_id,
                AllocationRow.state == AllocationState.PLANNED.value,
                conditions.overlaps(period),
            )
            .order_by(AllocationRow.starts_at, AllocationRow.id)
        )
        return [_allocation(row) for row in rows]

    def move(self, allocation: Allocation, resource_id: int, *, start: datetime) -> None:
        """Move an allocation to another resource, from ``start`` on.

        Raises ``Overtaken`` if the allocation has changed since it was read.
        """
        change_row(
            self._session,
            update(AllocationRow).where(*_as_read(allocation)).values(resource_id=resource_id, starts_at=start),
        )
        self._gains.add([resource_id], Period(start, allocation.period.end))
        self._changed.add_resources([allocation.resource_id, resource_id], frees=True)

    def delay(self, plan: Allocation, until: datetime) -> None:
        """Let a plan begin later, because its resource is cleaned until then; it stays booked from its start on."""
        booked_from = plan.booked_from or plan.period.start
        self._set_period([plan.id], AllocationRow.starts_at < until, {"starts_at": until, "booked_from": booked_from})

    def lapse(self, allocations: Iterable[Allocation], *, now: datetime, since: datetime | None = None) -> None:
        """Record the past of allocations whose lease has not started, and that now move, shrink or begin later.

        It was booked and never had. Plans that were delayed are booked from now on, or from ``since``. The caller
        changes the allocations.
        """
        rows, delayed = [], []
        for allocation in allocations:
            past_end = min(now, allocation.period.end)
            past_start = allocation.booked_from or allocation.period.start
            if allocation.booked_from is not None:
                delayed.append(allocation.id)
            if past_start < past_end:
                each = Capacity({name: amount // allocation.units for name, amount in allocation.amounts.items()})
                past = Period(past_start, past_end)
                # Not exclusive: another lease had the resource in this time.
                booked = Capacity({WHOLE: 1}) if allocation.exclusive else each
                row = _new_row(booked, False, past, allocation.units, AllocationState.LAPSED)
                rows.append({"resource_id": allocation.resource_id, "reservation_id": allocation.reservation_id, **row})
        if rows:
            self._session.execute(insert(AllocationRow), rows)
        if delayed:
            self._session.execute(
                update(AllocationRow)
                .where(AllocationRow.id.in_(delayed))
                .values(booked_from=max(since or now, now))
                .execution_options(synchronize_session=False)
            )

    def shrink(self, allocation: Allocation, units: int, demand: Demand) -> None:
        """Reduce an allocation to this many units; raise ``Overtaken`` if it has changed since it was read."""
        change_row(
            self._session,
            update(AllocationRow)
            .where(*_as_read(allocation))
            .values(units=units, amounts=dict(demand.amounts.times(units))),
        )
        self._changed.add_resources([allocation.resource_id], frees=True)

    def drop(self, allocation: Allocation) -> None:
        """Delete an allocation; raise ``Overtaken`` if it has changed since it was read."""
        change_row(self._session, delete(AllocationRow).where(*_as_read(allocation)))
        self._changed.add_resources([allocation.resource_id], frees=True)

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

    def reschedule(self, allocations: Collection[Allocation], period: Period) -> None:
        """Move allocations to another period. The caller has checked that there is room, and raised the versions."""
        by_period: dict[Period, list[int]] = {}
        for allocation in allocations:
            by_period.setdefault(allocation.period, []).append(allocation.resource_id)
        for before, resource_ids in by_period.items():
            for gained in period.without(before):
                self._gains.add(resource_ids, gained)
        ids = [allocation.id for allocation in allocations]
        self._set_period(ids, sql_true(), {"starts_at": period.start, "ends_at": period.end}, frees=True)

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
        Allocations without an end are kept: they take their room until ``let_go``.
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

    def let_go(self, allocation: Allocation, units: int, *, now: datetime) -> None:
        """Reduce a kept allocation to this many units from now on; what goes becomes history.

        The caller raises the version of the resource. Raises ``Overtaken`` if it has changed since it was read.
        """
        each = Capacity({name: amount // allocation.units for name, amount in allocation.amounts.items()})
        past = Period(allocation.period.start, max(now, allocation.period.start + TICK))
        row = _new_row(each, allocation.exclusive, past, allocation.units - units, AllocationState.RELEASED)
        if units:  # the past of what goes is history; that of what stays goes on
            history = {"resource_id": allocation.resource_id, "reservation_id": allocation.reservation_id, **row}
            self._session.execute(insert(AllocationRow), [history])
            row = {"units": units, "amounts": dict(each.times(units))}
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

    def matching(self, demand: Demand, resource_ids: Collection[int]) -> set[int]:
        """Return those of the resources that match the demand, free or not."""
        matching_ids = select(ResourceRow.id).where(
            conditions.among(ResourceRow.id, resource_ids), *conditions.matching(demand)
        )
        return set(self._session.execute(matching_ids).scalars())

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


def _by_count(units: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the resources by the number of units on each."""
    resource_ids: dict[int, list[int]] = {}
    for resource_id, count in units.items():
        resource_ids.setdefault(count, []).append(resource_id)
    return resource_ids


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


def _all_hold(conditions: list[ColumnElement[bool]]) -> ColumnElement[bool]:
    return and_(sql_true(), *conditions)


def _fitting_units(demand: Demand, rooms: Collection[int]) -> int:
    """Return how many units of the demand fit; ``rooms`` are the numbers of units that fit on each resource."""
    if demand.spread is Spread.TOGETHER:
        return max(rooms, default=0)
    return sum(min(room, 1) if demand.spread is Spread.APART else room for room in rooms)


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
