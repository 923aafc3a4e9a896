"""The waiting list: the leases that wait, the lines in which they wait, and what was freed since these were served.

A line is an inventory in a region. A lease waits in the line of each reservation that it asks for. A transaction that
may free something also writes a row to ``freed_room`` (``Feed.write``): another transaction that sees the room sees the
row, too. The rows of a line are deleted when its leases have been served after the rows were read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Delete, and_, delete, func, insert, select, tuple_, update
from sqlalchemy.orm import Session

from tenure.store import conditions
from tenure.store.statements import run
from tenure.store.tables import FreedRow, ResourceRow, WaitingLineRow, WaitingRow

_SAME_LINE = and_(FreedRow.inventory == WaitingLineRow.inventory, FreedRow.region == WaitingLineRow.region)
_TO_BE_SERVED = select(WaitingLineRow.inventory, WaitingLineRow.region).join(FreedRow, _SAME_LINE).distinct()


class Line(NamedTuple):
    """The inventory and the region of something for which leases wait."""

    inventory: str
    region: str


@dataclass(frozen=True, slots=True)
class Waiter:
    """A lease on the waiting list; the numbers are in the order of the requests."""

    number: int
    lease_id: str
    request: Mapping[str, Any]


class WaitingStore:
    """The tables of the waiting list."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(
        self,
        lease_id: str,
        latest_at: datetime,
        confirm_within: timedelta | None,
        request: Mapping[str, Any],
        lines: Collection[Line],
    ) -> None:
        """Put a lease on the waiting list; its lines are to be served."""
        row = WaitingRow(
            lease_id=lease_id,
            latest_at=latest_at,
            confirm_within=None if confirm_within is None else int(confirm_within.total_seconds()),
            request=dict(request),
        )
        self._session.add(row)
        self._session.flush()
        self._session.execute(
            insert(WaitingLineRow), [{**line._asdict(), "number": row.number} for line in sorted(lines)]
        )
        self._session.execute(insert(FreedRow), [line._asdict() for line in sorted(lines)])

    def remove(self, lease_id: str) -> None:
        """Take a lease off the waiting list."""
        number = self._session.scalar(select(WaitingRow.number).where(WaitingRow.lease_id == lease_id))
        if number is not None:
            self._delete(delete(WaitingLineRow).where(WaitingLineRow.number == number))
            self._delete(delete(WaitingRow).where(WaitingRow.number == number))

    def ahead_of(self, lease_id: str) -> int:
        """Return how many leases wait before this one in one of its lines."""
        number = self._session.scalar(select(WaitingRow.number).where(WaitingRow.lease_id == lease_id))
        if number is None:
            return 0
        mine = select(WaitingLineRow.inventory, WaitingLineRow.region).where(WaitingLineRow.number == number)
        before = select(func.count(WaitingLineRow.number.distinct())).where(
            WaitingLineRow.number < number, _LINE.in_(mine)
        )
        return self._session.scalar(before) or 0

    def freed(self) -> dict[Line, list[int]]:
        """Return the lines that are to be served, each with the ids of what was freed, for ``forget``."""
        rows = self._session.execute(select(FreedRow.inventory, FreedRow.region, FreedRow.id))
        found: dict[Line, list[int]] = {}
        for inventory, region, freed_id in rows:
            found.setdefault(Line(inventory, region), []).append(freed_id)
        return found

    def forget(self, freed_ids: Iterable[int]) -> None:
        """Record that the lines were served after this was freed."""
        self._delete(delete(FreedRow).where(conditions.among(FreedRow.id, freed_ids)))

    def in_lines(self, lines: Collection[Line]) -> list[Waiter]:
        """Return the leases that wait in these lines, in the order of the requests."""
        numbers = select(WaitingLineRow.number).where(_LINE.in_(sorted(lines)))
        rows = self._session.execute(
            select(WaitingRow.number, WaitingRow.lease_id, WaitingRow.request)
            .where(WaitingRow.number.in_(numbers))
            .order_by(WaitingRow.number)
        )
        return [Waiter(*row) for row in rows]

    def to_be_served(self, before: int | None = None, *, without: Collection[int] = ()) -> set[Line]:
        """Return the lines with freed room in which a lease waits; with ``before``, a lease of a lower number.

        What was freed ``without`` these ids counts.
        """
        if before is None and not without:
            return {Line(*row) for row in run(self._session, _TO_BE_SERVED)}
        lines = _TO_BE_SERVED
        if without:
            lines = lines.where(~conditions.among(FreedRow.id, without))
        if before is not None:
            lines = lines.where(WaitingLineRow.number < before)
        return {Line(*row) for row in self._session.execute(lines)}

    def lines_of(self, resource_ids: Iterable[int]) -> set[Line]:
        """Return the lines to which these resources belong."""
        lines = select(ResourceRow.resource_type, ResourceRow.region).where(
            conditions.among(ResourceRow.id, resource_ids)
        )
        return {Line(*row) for row in self._session.execute(lines.distinct())}

    def serve_all(self) -> None:
        """Have all lines served in which a lease waits."""
        lines = select(WaitingLineRow.inventory, WaitingLineRow.region).distinct()
        self._session.execute(insert(FreedRow).from_select(["inventory", "region"], lines))

    def name_region(self, name: str) -> None:
        """Move the lines of the region without a name to this region."""
        self._session.execute(
            update(WaitingLineRow)
            .where(WaitingLineRow.region == "")
            .values(region=name)
            .execution_options(synchronize_session=False)
        )

    def _delete(self, statement: Delete) -> None:
        self._session.execute(statement.execution_options(synchronize_session=False))


_LINE = tuple_(WaitingLineRow.inventory, WaitingLineRow.region)
