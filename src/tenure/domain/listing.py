"""Resources and allocations as far as planning needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tenure.domain.capacity import Capacity
from tenure.domain.lease import AllocationState


@dataclass(frozen=True, slots=True)
class ListedResource:
    """A resource; ``attributes`` are what the property language can query."""

    id: int
    resource_type: str
    region: str
    external_id: str
    name: str
    capacity: Capacity
    limits: Mapping[str, Mapping[str, int]]
    traits: frozenset[str]
    attributes: Mapping[str, str]
    reservable: bool
    version: int
    scarcity: int


class ListedUse(NamedTuple):
    """An allocation that takes room now or later."""

    allocation_id: int
    resource_id: int
    reservation_id: str
    project_id: str
    starts_at: datetime
    ends_at: datetime
    state: AllocationState
    exclusive: bool
    units: int
    amounts: Capacity
    booked_from: datetime | None = None

    @property
    def planned(self) -> bool:
        """Whether it may move."""
        return self.state is AllocationState.PLANNED

    def is_overdue(self, now: datetime) -> bool:
        """Whether it should have been released by now."""
        return self.ends_at <= now and self.state is AllocationState.HELD
