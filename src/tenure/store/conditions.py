"""The conditions of the ledger in SQL that several stores share."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import ColumnElement, and_, bindparam
from sqlalchemy.orm import InstrumentedAttribute

from tenure.domain.lease import PAST, AllocationState
from tenure.domain.period import Period
from tenure.store.tables import AllocationRow

#: Whether an allocation is past: history that takes no room.
IS_PAST = AllocationRow.state.in_(sorted(state.value for state in PAST))


def overlaps(period: Period, row: type[AllocationRow] = AllocationRow) -> ColumnElement[bool]:
    """Return the only SQL expression of an overlap; ``Period.overlaps`` is the same in Python."""
    return and_(row.ends_at > period.start, row.starts_at < period.end)


def among(column: InstrumentedAttribute[int], ids: Iterable[int]) -> ColumnElement[bool]:
    """Whether the column is one of these ids. They are written into the statement, as parameters are limited."""
    return column.in_(bindparam("ids", sorted(ids), column.type, expanding=True, literal_execute=True, unique=True))


def late(now: datetime) -> ColumnElement[bool]:
    """Whether an allocation should have been released by now."""
    return and_(AllocationRow.state == AllocationState.HELD.value, AllocationRow.ends_at <= now)
