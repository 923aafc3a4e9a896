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

#: How soon a period must begin for an overdue teardown to block it. By a later start, the teardown will be over or the
#: plan will have moved.
OVERDUE_MATTERS = timedelta(minutes=15)

#: Whether an allocation is past: history that takes no room.
IS_PAST = AllocationRow.state.in_([AllocationState.RELEASED.value, AllocationState.LAPSED.value])

#: More than the capacity of any resource, and still within the integer range of all databases.
_MOST = 2**62

#: Aliases, shared by all statements: each is the table of a subquery of its own. An alias inspects its columns once,
#: which takes longer than many statements. ``_USING`` are allocations that use a resource, ``_POINT`` the instants at
#: which a use begins, and ``_LATE`` overdue allocations.
_USING, _POINT, _LATE = aliased(AllocationRow), aliased(AllocationRow), aliased(AllocationRow)
_WALKED = aliased(AttributeRow)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Allocations that must not move: held ones, plans that start by ``until``, and those of a reservation."""

    until: datetime | None = None
    reservation_id: str | None = None


#: All plans may move.
NO_PLAN = Fixed()


def overlaps(period: Period, row: type[AllocationRow] = AllocationRow) -> ColumnElement[bool]:
    """Return the only SQL expression of an overlap; ``Period.overlaps`` is the same in Python."""
    return and_(row.ends_at > period.start, row.starts_at < period.end)


def among(column: InstrumentedAttribute[int], ids: Iterable[int]) -> ColumnElement[bool]:
    """Whether the column is one of these ids. They are written into the statement, as parameters are limited."""
    return column.in_(bindparam("ids", sorted(ids), column.type, expanding=True, literal_execute=True, unique=True))


def reservable(demand: Demand) -> ColumnElement[bool]:
    return and_(
        ResourceRow.resource_type == demand.inventory,
        ResourceRow.reservable.is_(True),
        ResourceRow.region == demand.region,
    )


def matching(demand: Demand, *, but: Comparison | None = None) -> list[ColumnElement[bool]]:
    """Return the conditions that a resource must meet: its properties, its traits, and its capacity.

    This is the property language in SQL; ``Expression.matches`` is the same in Python.

    Each comparison is a look-up by the primary key of the attributes, NULL if the resource lacks the property. With
    ``EXISTS``, each would be another joined table, and PostgreSQL takes seconds to plan a join of dozens. Equalities
    come first: they hold for the fewest resources, and the others are then skipped.
    """
    terms = [term for term in demand.expression.terms if term is not but]
    properties = [_holds(term) for term in sorted(terms, key=_selectivity)]
    return [*properties, *_trait_conditions(demand), *_limit_conditions(demand)]


def _selectivity(term: Term) -> int:
    """Return a sort key: terms that hold for the fewest resources first, and single look-ups before several."""
    return (0 if term.op == "==" else 1) if isinstance(term, Comparison) else 2


def _holds(term: Term) -> ColumnElement[bool]:
    """Whether a term holds. For a bare comparison, NULL means no."""
    match term:
        case AnyOf(branches):
            return or_(*map(_all_hold, branches))
        case Not(branch):
            return not_(_all_hold(branch))
        case comparison:
            return _look_up(comparison)


def _all_hold(expression: Expression) -> ColumnElement[bool]:
    """Whether all terms of a nested expression hold. It is true or false, never NULL, so that it can be negated."""
    return and_(
        sql_true(),
        *(
            func.coalesce(_look_up(term), sql_false()) if isinstance(term, Comparison) else _holds(term)
            for term in expression.terms
        ),
    )


def _look_up(comparison: Comparison) -> ColumnElement[bool]:
    return (
        select(_compare(comparison))
        .where(AttributeRow.resource_id == ResourceRow.id, AttributeRow.name == comparison.name)
        .correlate(ResourceRow)
        .scalar_subquery()
    )


def _trait_conditions(demand: Demand) -> list[ColumnElement[bool]]:
    """Return the conditions for required and forbidden traits."""
    return [
        *(_has_trait(trait) for trait in sorted(demand.required)),
        *(not_(_has_trait(trait)) for trait in sorted(demand.forbidden)),
    ]


def _has_trait(trait: str) -> ColumnElement[bool]:
    borne = select(sql_true()).where(TraitRow.resource_id == ResourceRow.id, TraitRow.trait == trait)
    return func.coalesce(borne.correlate(ResourceRow).scalar_subquery(), sql_false())


def _limit_conditions(demand: Demand) -> list[ColumnElement[bool]]:
    """Return the conditions for the limits of single requests; a resource that is taken as a whole has none."""
    if demand.exclusive:
        return []
    enough = [
        func.coalesce(_amount(ResourceRow.capacity, name), 0) >= _capped_number(amount * demand.units_together)
        for name, amount in demand.amounts.items()
    ]
    limits = [
        condition
        for portion in demand.at_once
        for name, amount in portion.items()
        for condition in (
            func.coalesce(_amount(ResourceRow.limits, (name, "max")), _capped_number(amount)) >= _capped_number(amount),
            func.coalesce(_amount(ResourceRow.limits, (name, "min")), 1) <= _capped_number(amount),
            _capped_number(amount) % func.coalesce(_amount(ResourceRow.limits, (name, "step")), 1) == 0,
        )
    ]
    return [*enough, *limits]


@lru_cache(maxsize=1024)
def _amount(document: Any, path: str | tuple[str, str]) -> ColumnElement[int]:
    return sql_cast(document[path].as_string(), BigInteger)


def _capped_number(value: int) -> ColumnElement[int]:
    """Return a number in SQL, capped to the integer range of all databases."""
    return literal(min(value, _MOST), BigInteger)


def walk(
    demand: Demand,
) -> tuple[tuple[InstrumentedAttribute[int], InstrumentedAttribute[int]], ColumnElement[bool]]:
    """Return scarcity and id, in whose order resources are read, and the join condition to the resources.

    The walk goes through the resources themselves or, if the demand has an equality, through the resources that have
    that property. Either way it reads an index, and only as far as needed.
    """
    wanted = leading(demand)
    if wanted is None:
        return (ResourceRow.scarcity, ResourceRow.id), sql_true()
    joined = and_(_WALKED.resource_id == ResourceRow.id, _WALKED.key == key_of(wanted.name, wanted.value))
    return (_WALKED.scarcity, _WALKED.resource_id), joined


def leading(demand: Demand) -> Comparison | None:
    """Return the first comparison that an index can answer."""
    comparisons = (term for term in demand.expression.terms if isinstance(term, Comparison))
    return next(
        (comparison for comparison in comparisons if comparison.op == "==" and len(comparison.value) < KEY_LENGTH), None
    )


def narrowed(demand: Demand) -> ColumnElement[bool]:
    """Whether a resource has what the leading comparison asks for: an index answers it, without reading resources."""
    wanted = leading(demand)
    if wanted is None:
        return sql_true()
    return ResourceRow.id.in_(
        select(AttributeRow.resource_id).where(AttributeRow.key == key_of(wanted.name, wanted.value))
    )


def _compare(comparison: Comparison) -> ColumnElement[bool]:
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
    """Whether the resource lacks room for the demand at some instant of the period.

    Allocations of the reservation ``ignoring`` do not count. With ``fixed``, plans that may move do not count either.
    """
    if demand.exclusive:
        return _is_in_use(period, _counting_conditions(AllocationRow, ignoring, fixed=fixed))
    whole = [AllocationRow.exclusive.is_(True), *_counting_conditions(AllocationRow, ignoring, fixed=fixed)]
    wanted = {name: _capped_number(amount * demand.units_together) for name, amount in demand.amounts.items()}
    return or_(
        _is_in_use(period, whole), _lacks_room(period, wanted, _counting_conditions(_USING, ignoring, fixed=fixed))
    )


def movable(fixed: Fixed, row: type[AllocationRow] = AllocationRow) -> ColumnElement[bool]:
    """Whether an allocation is a plan that may move."""
    movable = [row.state == AllocationState.PLANNED.value]
    if fixed.until is not None:
        movable.append(row.starts_at > fixed.until)
    if fixed.reservation_id is not None:
        movable.append(row.reservation_id != fixed.reservation_id)
    return and_(*movable)


def _counting_conditions(
    row: type[AllocationRow], ignoring: str | None, *, fixed: Fixed | None
) -> list[ColumnElement[bool]]:
    counting = [row.reservation_id != ignoring] if ignoring else []
    return counting if fixed is None else [*counting, not_(movable(fixed, row))]


def _is_in_use(period: Period, counting: Iterable[ColumnElement[bool]]) -> ColumnElement[bool]:
    """Whether an allocation that counts overlaps the period on the resource.

    It is not an ``EXISTS``: PostgreSQL would turn that into a join, and expect it to leave hardly any rows. It would
    then read all resources and sort the rest, instead of walking through them in order until it has enough.
    """
    used = select(sql_true()).where(AllocationRow.resource_id == ResourceRow.id, overlaps(period), *counting)
    return func.coalesce(used.correlate(ResourceRow).limit(1).scalar_subquery(), sql_false())


def _lacks_room(
    period: Period, wanted: Mapping[str, ColumnElement[int]], counting: Iterable[ColumnElement[bool]]
) -> ColumnElement[bool]:
    """Whether at some instant of the period the allocations ``_USING`` it leave less of a class than is ``wanted``.

    Use grows only at the starts of allocations. So it is summed up at the start of the period, and at each distinct
    start within the period. False if nothing is in use.
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
    return case((_is_in_use(period, ()), crowded), else_=sql_false())


def soon(period: Period, now: datetime) -> Period | None:
    """Return the part of a period in which overdue allocations still count; None if there is none.

    Until the end of that part, a late allocation is assumed to be still in use.
    """
    begin, until = max(period.start, now), now + OVERDUE_MATTERS + TICK
    return Period(begin, min(period.end, until)) if begin < min(period.end, until) else None


def late(now: datetime, row: type[AllocationRow] = AllocationRow) -> ColumnElement[bool]:
    """Whether an allocation is overdue: it should have been released, and is not."""
    return and_(row.state == AllocationState.HELD.value, row.ends_at <= now)


def overdue(
    demand: Demand, period: Period, *, now: datetime, ignoring: str | None, fixed: Fixed | None = None
) -> ColumnElement[bool]:
    """Whether overdue allocations leave no room for the demand.

    An overdue allocation counts with its amounts. It counts as the whole resource if it, or the demand, is exclusive.
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
        wanted[name] = _capped_number(amount * demand.units_together) + late_amount
    crowded = or_(
        exists().where(*theirs, _LATE.exclusive),
        *(amount > func.coalesce(_amount(ResourceRow.capacity, name), 0) for name, amount in wanted.items()),
        _lacks_room(until, wanted, _counting_conditions(_USING, ignoring, fixed=fixed)),
    )
    # In this order on every database: late allocations are rare, and without them nothing is summed up.
    return case((anything, crowded), else_=sql_false())


def free(demand: Demand, period: Period, *, now: datetime, ignoring: str | None) -> ColumnElement[bool]:
    """Whether the resource has room for the demand during the whole period."""
    room = not_(taken(demand, period, ignoring=ignoring))
    if period.start > now + OVERDUE_MATTERS:
        return room
    return and_(room, not_(overdue(demand, period, now=now, ignoring=ignoring)))
