"""Reading how much allocations take and resources have."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import lru_cache

from sqlalchemy import String, cast, select
from sqlalchemy.orm import Session

from tenure.domain.capacity import Capacity
from tenure.store import conditions
from tenure.store.tables import AllocationRow, ResourceRow

#: What an allocation takes, as text: many allocations take the same, which then is parsed once.
AMOUNTS = cast(AllocationRow.amounts, String).label("amounts")


@lru_cache(maxsize=4096)
def capacity_of(amounts: str) -> Capacity:
    """The amounts that the text of a column says."""
    return Capacity(json.loads(amounts))


def capacities_of(session: Session, resource_ids: Collection[int]) -> dict[int, Capacity]:
    """What each of these resources has, by its id."""
    if not resource_ids:
        return {}
    capacity = cast(ResourceRow.capacity, String)
    rows = session.execute(select(ResourceRow.id, capacity).where(conditions.among(ResourceRow.id, resource_ids)))
    return {resource_id: capacity_of(amounts) for resource_id, amounts in rows}
