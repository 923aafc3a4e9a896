"""The conditions of the ledger in SQL: which resources match, and which have room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, bindparam, case, exists, func, literal, not_, or_, select
from sqlalchemy import cast as sql_cast
from sqlalchemy import false as sql_false
from sqlalchemy import true as sql_true
from sqlalchemy.orm import InstrumentedAttribute, aliased

from tenure.domain.allocation import Demand
from tenure.domain.lease import AllocationState
from tenure.domain.period import TICK, Period
from tenure.domain.requirement import AnyOf, Comparison, Expression, Not, Term
from tenure.store.tables import (
    KEY_LENGTH,
    AllocationRow,
    AttributeRow,
    ResourceRow,
    TraitRow,
    UtcDateTime,
    key_of,
)

#: How soon a period must begin for an overdue teardown to stand in its way; by a later start it will be over, or the
#: plan will be moved.
OVERDUE_MATTERS = timedelta(minutes=15)

#: More than there is of anything, and yet no more than databases can count to.
_MOST = 2**62

#: The same alias serves every statement: each is the table of a subquery of its own, and what an alias knows of its
#: columns it finds out once, which takes longer than many a statement. Allocations that use a resource, the points of
#: time at which one begins to, and those whose time is over.
_USING, _POINT, _LATE = aliased(AllocationRow), aliased(AllocationRow), aliased(AllocationRow)
_WALKED = aliased(AttributeRow)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Allocations that must not move: all but plans, plans that start ``until`` then, and those of a reservation."""

    until: datetime | None = None
    reservation_id: str | None = None


#: Every plan may move.
NO_PLAN = Fixed()


def overlaps(period: Period, row: type[AllocationRow] = AllocationRow) -> ColumnElement[bool]:
    """The one expression of overlap in SQL; ``Period.overlaps`` is the one in Python."""
    return and_(row.ends_at > period.start, row.starts_at < period.end)


def among(column: InstrumentedAttribute[int], ids: Iterable[int]) -> ColumnElement[bool]:
    """Whether it is one of these ids, however many: written into the statement, as parameters are counted."""
    return column.in_(bindparam("ids", sorted(ids), column.type, expanding=True, literal_execute=True, unique=True))


def reservable(demand: Demand) -> ColumnElement[bool]:
    return and_(
        ResourceRow.resource_type == demand.inventory,
        ResourceRow.reservable.is_(True),
        ResourceRow.region == demand.region,
    )


def matching(demand: Demand, *, but: Comparison | None = None) -> list[ColumnElement[bool]]:
    """Whether a resource is of the kind that is asked for: by its properties, its traits, and how much it is of.

    The property language in SQL; ``Expression.matches`` is the same in Python.

    Each comparison is a look-up by the attributes' primary key, NULL where the resource has no such property. As
    ``EXISTS`` each would be one more table to join, and PostgreSQL takes seconds to plan a join of dozens. What must
    be equal comes first: it is true of the fewest resources, and nothing more is asked of the others.
    """
    terms = [term for term in demand.expression.terms if term is not but]
    properties = [_holds(term) for term in sorted(terms, key=_selectivity)]
    return [*properties, *_bearing(demand), *_large_enough(demand)]


def _selectivity(term: Term) -> int:
    """What is true of the fewest resources comes first, and what is one look-up before what is several."""
    return (0 if term.op == "==" else 1) if isinstance(term, Comparison) else 2


def _holds(term: Term) -> ColumnElement[bool]:
    """Whether a term holds; where it is a comparison by itself, NULL serves for no."""
    match term:
        case AnyOf(branches):
            return or_(*map(_all_hold, branches))
        case Not(branch):
            return not_(_all_hold(branch))
        case comparison:
            return _look_up(comparison)


def _all_hold(expression: Expression) -> ColumnElement[bool]:
    """The same of all terms of a part of an expression: true or false, so that the opposite is, too."""
    return and_(
        sql_true(),
        *(
            func.coalesce(_look_up(term), sql_false()) if isinstance(term, Comparison) else _holds(term)
            for term in expression.terms
        ),
    )


def _look_up(comparison: Comparison) -> ColumnElement[bool]:
    return (
        select(_compares(comparison))
        .where(AttributeRow.resource_id == ResourceRow.id, AttributeRow.name == comparison.name)
        .correlate(ResourceRow)
        .scalar_subquery()
    )


def _bearing(demand: Demand) -> list[ColumnElement[bool]]:
    """The traits that a resource must have, and those that it must not."""
    return [
        *(_bears(trait) for trait in sorted(demand.required)),
        *(not_(_bears(trait)) for trait in sorted(demand.forbidden)),
    ]


def _bears(trait: str) -> ColumnElement[bool]:
    borne = select(sql_true()).where(TraitRow.resource_id == ResourceRow.id, TraitRow.trait == trait)
    return func.coalesce(borne.correlate(ResourceRow).scalar_subquery(), sql_false())


def _large_enough(demand: Demand) -> list[ColumnElement[bool]]:
    """Whether the cloud hands out so much of each class at a time; what is taken as a whole is."""
    if demand.exclusive:
        return []
    enough = [
        func.coalesce(_amount(ResourceRow.capacity, name), 0) >= _number(amount * demand.units_together)
        for name, amount in demand.amounts.items()
    ]
    limits = [
        condition
        for portion in demand.at_once
        for name, amount in portion.items()
        for condition in (
            func.coalesce(_amount(ResourceRow.limits, (name, "max")), _number(amount)) >= _number(amount),
            func.coalesce(_amount(ResourceRow.limits, (name, "min")), 1) <= _number(amount),
            _number(amount) % func.coalesce(_amount(ResourceRow.limits, (name, "step")), 1) == 0,
        )
    ]
    return [*enough, *limits]


@lru_cache(maxsize=1024)
def _amount(document: Any, path: str | tuple[str, str]) -> ColumnElement[int]:
    return sql_cast(document[path].as_string(), BigInteger)


def _number(value: int) -> ColumnElement[int]:
    """A number of ours in SQL: all that is more than any cloud has is as much as databases can count to."""
    return literal(min(value, _MOST), BigInteger)


def walk(
    demand: Demand,
) -> tuple[tuple[InstrumentedAttribute[int], InstrumentedAttribute[int]], ColumnElement[bool]]:
    """Scarcity and id, by which resources are walked through in order, and what joins that walk to them.

    It goes through the resources themselves, or, where a property must be equal to something, through those that have
    it: an index each, read only as far as needed.
    """
    wanted = leading(demand)
    if wanted is None:
        return (ResourceRow.scarcity, ResourceRow.id), sql_true()
    found = and_(_WALKED.resource_id == ResourceRow.id, _WALKED.key == key_of(wanted.name, wanted.value))
    return (_WALKED.scarcity, _WALKED.resource_id), found


def leading(demand: Demand) -> Comparison | None:
    """The first comparison that an index answers."""
    comparisons = (term for term in demand.expression.terms if isinstance(term, Comparison))
    return next((one for one in comparisons if one.op == "==" and len(one.value) < KEY_LENGTH), None)


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


def taken(demand: Demand, period: Period, *, ignoring: str | None, fixed: Fixed | None = None) -> ColumnElement[bool]:
    """Whether the resource has no room for the demand at some instant of the period.

    ``ignoring`` is a reservation whose part does not count; with ``fixed`` no plan does that may move.
    """
    if demand.exclusive:
        return _in_use(period, _counting(AllocationRow, ignoring, fixed=fixed))
    whole = [AllocationRow.exclusive.is_(True), *_counting(AllocationRow, ignoring, fixed=fixed)]
    wanted = {name: _number(amount * demand.units_together) for name, amount in demand.amounts.items()}
    return or_(_in_use(period, whole), _crowded(period, wanted, _counting(_USING, ignoring, fixed=fixed)))


def movable(fixed: Fixed, row: type[AllocationRow] = AllocationRow) -> ColumnElement[bool]:
    """Whether it is a plan that may move."""
    movable = [row.state == AllocationState.PLANNED.value]
    if fixed.until is not None:
        movable.append(row.starts_at > fixed.until)
    if fixed.reservation_id is not None:
        movable.append(row.reservation_id != fixed.reservation_id)
    return and_(*movable)


def _counting(row: type[AllocationRow], ignoring: str | None, *, fixed: Fixed | None) -> list[ColumnElement[bool]]:
    counting = [row.reservation_id != ignoring] if ignoring else []
    return counting if fixed is None else [*counting, not_(movable(fixed, row))]


def _in_use(period: Period, counting: Iterable[ColumnElement[bool]]) -> ColumnElement[bool]:
    """Whether anybody who counts has the resource at any instant of the period.

    Not as ``EXISTS``, which PostgreSQL makes a join of, and takes it to leave next to nothing; it then looks at all
    resources and sorts what is left, instead of walking through them in order until it has enough.
    """
    used = select(sql_true()).where(AllocationRow.resource_id == ResourceRow.id, overlaps(period), *counting)
    return func.coalesce(used.correlate(ResourceRow).limit(1).scalar_subquery(), sql_false())


def _crowded(
    period: Period, wanted: Mapping[str, ColumnElement[int]], counting: Iterable[ColumnElement[bool]]
) -> ColumnElement[bool]:
    """Whether at some instant of the period less than what is ``wanted`` of a class is left, by those ``_USING`` it.

    What is in use grows at the starts of allocations only. So it is added up where the period begins, and once for each
    start within the period, however many allocations start together. False where nothing is in use.
    """
    too_much = [
        func.coalesce(func.sum(_amount(_USING.amounts, name)), 0)
        > func.coalesce(_amount(ResourceRow.capacity, name), 0) - amount
        for name, amount in wanted.items()
    ]
    used = select(or_(sql_false(), *too_much)).where(_USING.resource_id == ResourceRow.id, *counting)
    begin = literal(period.start, UtcDateTime())
    at_begin = used.where(_USING.starts_at <= begin, _USING.ends_at > begin).correlate(ResourceRow)
    later = used.where(_USING.starts_at <= _POINT.starts_at, _USING.ends_at > _POINT.starts_at)
    crowded_later = (
        select(sql_true())
        .where(_POINT.resource_id == ResourceRow.id, _POINT.starts_at > period.start, _POINT.starts_at < period.end)
        .group_by(_POINT.starts_at)
        .having(later.correlate(ResourceRow, _POINT).scalar_subquery())
    )
    crowded = or_(
        at_begin.scalar_subquery(),
        func.coalesce(crowded_later.correlate(ResourceRow).limit(1).scalar_subquery(), sql_false()),
    )
    return case((_in_use(period, ()), crowded), else_=sql_false())


def soon(period: Period, now: datetime) -> Period | None:
    """The part of a period by which others are not taken to have given back in time; None where there is none.

    What is late is had until then by whoever should have given it back.
    """
    begin, until = max(period.start, now), now + OVERDUE_MATTERS + TICK
    return Period(begin, min(period.end, until)) if begin < min(period.end, until) else None


def late(now: datetime, row: type[AllocationRow] = AllocationRow) -> ColumnElement[bool]:
    """Whether it should have been given back, and was not."""
    return and_(row.state == AllocationState.HELD.value, row.ends_at <= now)


def overdue(
    demand: Demand, period: Period, *, now: datetime, ignoring: str | None, fixed: Fixed | None = None
) -> ColumnElement[bool]:
    """Whether the demand has no room because of what somebody should have given back and has not.

    That counts with its own amounts, and as all of the resource for who wants all of it, or had all of it.
    """
    theirs = (_LATE.resource_id == ResourceRow.id, late(now, _LATE))
    anything = exists().where(*theirs)
    if demand.exclusive:
        return anything
    until = soon(period, now)
    if until is None:
        return sql_false()
    wanted: dict[str, ColumnElement[int]] = {}
    for name, amount in demand.amounts.items():
        not_given_back = select(func.coalesce(func.sum(_amount(_LATE.amounts, name)), 0)).where(*theirs)
        late_amount = not_given_back.correlate(ResourceRow).scalar_subquery()
        wanted[name] = _number(amount * demand.units_together) + late_amount
    crowded = or_(
        exists().where(*theirs, _LATE.exclusive),
        *(amount > func.coalesce(_amount(ResourceRow.capacity, name), 0) for name, amount in wanted.items()),
        _crowded(until, wanted, _counting(_USING, ignoring, fixed=fixed)),
    )
    # In this order on every database: hardly ever is anything late, and then nothing is added up.
    return case((anything, crowded), else_=sql_false())


def free(demand: Demand, period: Period, *, now: datetime, ignoring: str | None) -> ColumnElement[bool]:
    """Whether the resource has room for the demand throughout the period."""
    room = not_(taken(demand, period, ignoring=ignoring))
    if period.start > now + OVERDUE_MATTERS:
        return room
    return and_(room, not_(overdue(demand, period, now=now, ignoring=ignoring)))
