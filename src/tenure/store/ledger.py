"""Reading resources and their allocations as a whole, for an index in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from tenure.domain.capacity import Capacity
from tenure.domain.lease import AllocationState
from tenure.domain.listing import ListedResource, ListedUse
from tenure.domain.resource import Registration
from tenure.store import conditions
from tenure.store.amounts import AMOUNTS, capacity_of
from tenure.store.feed import batched
from tenure.store.resources import attributes_of
from tenure.store.tables import AllocationRow, LeaseRow, ReservationRow, ResourceRow

#: The states by their values: a dictionary is faster than the constructor of the enumeration.
_STATES = {state.value: state for state in AllocationState}
#: How many rows are fetched at a time, and how many ids one statement selects.
_AT_ONCE = 10_000


class LedgerStore:
    """The ledger as a whole, or of some resources."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def resources(self, only: Collection[int] | None = None) -> Iterator[ListedResource]:
        """Yield all registered resources, or those of them with these ids, in the order of their ids."""
        columns = select(
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
        ).where(
            ResourceRow.registration == Registration.REGISTERED.value, ResourceRow.resource_type.not_like("retired:%")
        )
        for ids in _parts(only):
            chosen = columns if ids is None else columns.where(conditions.among(ResourceRow.id, ids))
            for row in self._session.execute(chosen.order_by(ResourceRow.id).execution_options(yield_per=_AT_ONCE)):
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

    def uses(self, now: datetime, only: Collection[int] | None = None) -> Iterator[ListedUse]:
        """Yield the allocations of all resources, or of these, that have not ended, or that are overdue."""
        columns = select(
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
        ).select_from(AllocationRow)
        columns = columns.join(ReservationRow, ReservationRow.id == AllocationRow.reservation_id)
        columns = columns.join(LeaseRow, LeaseRow.id == ReservationRow.lease_id)
        overdue = and_(AllocationRow.state == AllocationState.HELD.value, AllocationRow.ends_at <= now)
        for ids in _parts(only):
            chosen = columns if ids is None else columns.where(conditions.among(AllocationRow.resource_id, ids))
            current = chosen.where(or_(AllocationRow.ends_at > now, overdue))
            for row in self._session.execute(current.execution_options(yield_per=_AT_ONCE)):
                allocation_id, resource_id, reservation_id, project_id, *rest = row
                starts_at, ends_at, state, exclusive, units, amounts, booked_from = rest
                yield ListedUse(
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


def _parts(only: Collection[int] | None) -> Iterator[Collection[int] | None]:
    """Yield the ids in parts that one statement can select; a single None for all."""
    if only is None:
        yield None
    else:
        yield from batched(sorted(only), _AT_ONCE)
