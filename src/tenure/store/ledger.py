"""Reading resources and their allocations as a whole, for an index in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Executable, and_, bindparam, or_, select
from sqlalchemy.orm import Session

from tenure.domain.capacity import Capacity
from tenure.domain.lease import AllocationState
from tenure.domain.listing import ListedResource, ListedUse
from tenure.domain.period import PAST_MATTERS
from tenure.domain.resource import Registration
from tenure.store.amounts import AMOUNTS, capacity_of
from tenure.store.feed import batched
from tenure.store.resources import attributes_of
from tenure.store.statements import run
from tenure.store.tables import AllocationRow, LeaseRow, ReservationRow, ResourceRow

#: The states by their values: a dictionary is faster than the constructor of the enumeration.
_STATES = {state.value: state for state in AllocationState}
#: How many rows are fetched at a time, and how many ids one statement selects.
_AT_ONCE = 10_000
_IDS_AT_ONCE = 500


_RESOURCES = (
    select(
        ResourceRow.id,
        ResourceRow.resource_type,
        ResourceRow.region,
        ResourceRow.external_id,
        ResourceRow.name,
        ResourceRow.capacity,
        ResourceRow.limits,
        ResourceRow.traits,
        ResourceRow.facts,
        ResourceRow.properties,
        ResourceRow.reservable,
        ResourceRow.version,
        ResourceRow.scarcity,
    )
    .where(ResourceRow.registration == Registration.REGISTERED.value, ResourceRow.resource_type.not_like("retired:%"))
    .order_by(ResourceRow.id)
)
_IS_OVERDUE = and_(AllocationRow.state == AllocationState.HELD.value, AllocationRow.ends_at <= bindparam("now"))
_USES = (
    select(
        AllocationRow.id,
        AllocationRow.resource_id,
        AllocationRow.reservation_id,
        LeaseRow.project_id,
        AllocationRow.starts_at,
        AllocationRow.ends_at,
        AllocationRow.state,
        AllocationRow.exclusive,
        AllocationRow.units,
        AMOUNTS,
        AllocationRow.booked_from,
    )
    .select_from(AllocationRow)
    .join(ReservationRow, ReservationRow.id == AllocationRow.reservation_id)
    .join(LeaseRow, LeaseRow.id == ReservationRow.lease_id)
    .where(or_(AllocationRow.ends_at > bindparam("since"), _IS_OVERDUE))
)
_RESOURCES_OF_IDS = _RESOURCES.where(ResourceRow.id.in_(bindparam("ids", expanding=True)))
_VERSIONS_OF_IDS = select(ResourceRow.id, ResourceRow.version).where(
    ResourceRow.id.in_(bindparam("ids", expanding=True))
)
_USES_OF_IDS = _USES.where(AllocationRow.resource_id.in_(bindparam("ids", expanding=True)))
_USES_OF_RESERVATIONS = _USES.where(AllocationRow.reservation_id.in_(bindparam("ids", expanding=True)))


class LedgerStore:
    """The ledger as a whole, or of some resources."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def resources(self, only: Collection[int] | None = None) -> Iterator[ListedResource]:
        """Yield all registered resources, or those of them with these ids, in the order of their ids."""
        for row in self._rows(_RESOURCES, _RESOURCES_OF_IDS, only, {}):
            yield ListedResource(
                id=row.id,
                resource_type=row.resource_type,
                region=row.region,
                external_id=row.external_id,
                name=row.name,
                capacity=Capacity(row.capacity),
                limits=row.limits,
                traits=frozenset(row.traits),
                attributes=attributes_of(row.external_id, row.facts, row.properties),
                reservable=row.reservable,
                version=row.version,
                scarcity=row.scarcity,
            )

    def versions(self, resource_ids: Collection[int]) -> dict[int, int]:
        """Return the versions of these resources by id, registered or not."""
        return {row.id: row.version for row in self._rows_of(_VERSIONS_OF_IDS, resource_ids, {})}

    def uses(self, now: datetime, only: Collection[int] | None = None) -> Iterator[ListedUse]:
        """Yield the allocations of all resources, or of these, that have not ended long ago, or that are overdue."""
        times = {"now": now, "since": now - PAST_MATTERS}
        yield from map(_use_of, self._rows(_USES, _USES_OF_IDS, only, times))

    def uses_of(self, now: datetime, reservation_ids: Collection[str]) -> Iterator[ListedUse]:
        """Yield such allocations of these reservations."""
        times = {"now": now, "since": now - PAST_MATTERS}
        yield from map(_use_of, self._rows_of(_USES_OF_RESERVATIONS, reservation_ids, times))

    def _rows(
        self, every: Executable, of_ids: Executable, only: Collection[int] | None, parameters: Mapping[str, Any]
    ) -> Iterator[Any]:
        """Yield the rows of a statement for all resources, or of the one for these."""
        if only is None:
            yield from run(self._session, every.execution_options(yield_per=_AT_ONCE), parameters)
        else:
            yield from self._rows_of(of_ids, only, parameters)

    def _rows_of(self, of_ids: Executable, only: Collection[Any], parameters: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the rows of a statement for these ids."""
        for ids in batched(sorted(only), _IDS_AT_ONCE):
            yield from run(self._session, of_ids, {**parameters, "ids": ids})


def _use_of(row: Any) -> ListedUse:
    allocation_id, resource_id, reservation_id, project_id, *rest = row
    starts_at, ends_at, state, exclusive, units, amounts, booked_from = rest
    return ListedUse(
        allocation_id,
        resource_id,
        reservation_id,
        project_id,
        starts_at,
        ends_at,
        _STATES[state],
        exclusive,
        units,
        capacity_of(amounts),
        booked_from,
    )
