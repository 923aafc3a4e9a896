"""A ledger without a database: planning reads its snapshots, and its changes are applied to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from tenure.domain.allocation import Allocation, Demand
from tenure.domain.changes import Changes
from tenure.domain.lease import AllocationState
from tenure.domain.listing import ListedResource, ListedUse
from tenure.planning.exact import Solver
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import Task
from tenure.planning.terms import Terms
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.services.planning.planning import Planning


@dataclass(slots=True)
class PlainLedger:
    """Resources and allocations by id, the demands of reservations, and what is over."""

    now: datetime
    resources: dict[int, ListedResource] = field(default_factory=dict)
    allocations: dict[int, Allocation] = field(default_factory=dict)
    demands: dict[str, Demand] = field(default_factory=dict)
    over: list[Allocation] = field(default_factory=list)
    #: The id of the last allocation.
    last_id: int = 0

    @classmethod
    def of(cls, resources: Iterable[ListedResource], now: datetime) -> PlainLedger:
        """Return a ledger of these resources."""
        return cls(now, {resource.id: resource for resource in resources})

    def snapshot(self) -> Snapshot:
        """Return the ledger as it is now."""
        return Snapshot.of(self.resources.values(), self.listed(), self.now)

    def listed(self) -> list[ListedUse]:
        """Return the allocations as a snapshot reads them."""
        return [_listed(allocation) for allocation in self.allocations.values()]

    def demands_of(self, reservation_ids: Collection[str]) -> Mapping[str, Demand]:
        """Return the demands of these reservations, by id."""
        return {reservation_id: self.demands[reservation_id] for reservation_id in reservation_ids}

    def add(self, allocation: Allocation) -> Allocation:
        """Add an allocation, and return it with its id."""
        self.last_id += 1
        added = replace(allocation, id=self.last_id)
        self.allocations[added.id] = added
        return added

    def apply(self, changes: Changes) -> None:
        """Carry out changes under their versions, which are raised."""
        for resource_id, version in changes.versions.items():
            resource = self.resources[resource_id]
            assert resource.version == version
            self.resources[resource_id] = replace(resource, version=version + 1)
        for allocation in changes.dropped:
            assert self.allocations.pop(allocation.id) == allocation
        for before, after in changes.changed:
            assert self.allocations[before.id] == before
            assert (after.id, after.reservation_id) == (before.id, before.reservation_id)
            self.allocations[after.id] = after
        for allocation in changes.added:
            assert allocation.id < 0
            self.add(allocation)

    def pass_time(self, now: datetime) -> None:
        """Let leases start and end, as the engine does: what is planned is held, and what is held is given back."""
        self.now = now
        for allocation in list(self.allocations.values()):
            if allocation.period.end <= now:
                self.over.append(self.allocations.pop(allocation.id))
            elif allocation.period.start <= now:
                self.allocations[allocation.id] = replace(allocation, state=AllocationState.HELD)

    def of_reservation(self, reservation_id: str) -> tuple[Allocation, ...]:
        """Return the allocations of a reservation that are not over."""
        return tuple(
            allocation for allocation in self.allocations.values() if allocation.reservation_id == reservation_id
        )


class PlainPlanning(Planning):
    """The planning of the service, for a ledger without a database."""

    def __init__(
        self, ledger: PlainLedger, types: ResourceTypes, *, solver: Solver | None = None, rules: Rules | None = None
    ) -> None:
        super().__init__(cast(Any, None), types, rules or Rules(), cast(Any, None), solver)
        self._ledger = ledger

    def snapshot(self) -> Snapshot:
        return self._ledger.snapshot()

    def terms(self, snapshot: Snapshot, tasks: Sequence[Task], *, now: datetime, seed: int) -> Terms:
        demands = {**self._ledger.demands, **{task.reservation_id: task.demand for task in tasks}}
        terms = super().terms(snapshot, tasks, now=now, seed=seed)
        return replace(terms, demands_of=lambda ids: {name: demands[name] for name in ids})


def _listed(allocation: Allocation) -> ListedUse:
    return ListedUse(
        allocation.id,
        allocation.resource_id,
        allocation.reservation_id,
        "project",
        allocation.period.start,
        allocation.period.end,
        allocation.state,
        allocation.exclusive,
        allocation.units,
        allocation.amounts,
        allocation.booked_from,
    )
