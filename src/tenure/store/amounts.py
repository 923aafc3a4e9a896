"""Reading the amounts of allocations and the capacities of resources."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import lru_cache

from sqlalchemy import String, cast, select
from sqlalchemy.orm import Session

from tenure.domain.capacity import Capacity
from tenure.store import conditions
from tenure.store.tables import AllocationRow, ResourceRow

#: The amounts of an allocation as text. Many allocations have equal amounts, which then are parsed once.
AMOUNTS = cast(AllocationRow.amounts, String).label("amounts")


@lru_cache(maxsize=4096)
def capacity_of(amounts: str) -> Capacity:
    """Return the amounts in the text of a column."""
    return Capacity(json.loads(amounts))


def capacities_of(session: Session, resource_ids: Collection[int]) -> dict[int, Capacity]:
    """Return the capacity of each of these resources, by id."""
    if not resource_ids:
        return {}
    capacity = cast(ResourceRow.capacity, String)
    rows = session.execute(select(ResourceRow.id, capacity).where(conditions.among(ResourceRow.id, resource_ids)))
    return {resource_id: capacity_of(amounts) for resource_id, amounts in rows}
