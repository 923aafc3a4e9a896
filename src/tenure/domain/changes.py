"""What a plan changes in the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tenure.domain.allocation import Allocation


@dataclass(frozen=True, slots=True)
class Changes:
    """Allocations that a transaction is to write, and the versions of the resources on which they take something.

    ``changed`` are allocations as they were read, each with what it is to be: on another resource, with fewer units, or
    in another period. Of what moves or goes, the past that was booked and never had lapses.
    """

    added: Sequence[Allocation] = ()
    changed: Sequence[tuple[Allocation, Allocation]] = ()
    dropped: Sequence[Allocation] = ()
    versions: Mapping[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.dropped)

    def applied_to(self, allocations: Iterable[Allocation], reservation_ids: Collection[str]) -> list[Allocation]:
        """Return what these allocations, which are all of some reservations, are after the changes."""
        after = {before.id: now for before, now in self.changed}
        dropped = {allocation.id for allocation in self.dropped}
        stay = [after.get(allocation.id, allocation) for allocation in allocations if allocation.id not in dropped]
        return stay + [allocation for allocation in self.added if allocation.reservation_id in reservation_ids]
