"""A model of the room at single instants that tries every placement, also of all plans.

It says that a lease does not fit, or that it may: a plan may be on different resources at different instants. It is
for clouds of few resources, in which instances ask for virtual CPUs, racks and affinity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import combinations
from typing import Any

from sqlalchemy import select

from tenure.domain.lease import AllocationState
from tenure.domain.period import OVERDUE_MATTERS, TICK
from tenure.domain.request import ReservationRequest, ResourceQuery
from tenure.domain.resource import Resource
from tenure.store.tables import AllocationRow, ReservationRow
from tests.support.world import HOST, World

ADDRESS = "virtual:floatingip"
#: The room of a resource that is taken as a whole.
TAKEN = -1

#: The capacity of each resource, or what is left of it, in order.
Amounts = tuple[int, ...]


@dataclass(frozen=True, order=True)
class Piece:
    """Units of a reservation at an instant."""

    #: The virtual CPUs of a unit; 0 for whole resources.
    size: int
    units: int
    #: Whether the units must share a resource, or must not; None if neither.
    together: bool | None
    #: The positions of the resources that serve the reservation.
    sites: tuple[int, ...]

    def counts(self, left: int, capacity: int, free: int) -> Iterator[int]:
        """Return how many of the ``left`` units may be placed on a resource."""
        if not self.size:
            most = 1 if free == capacity else 0
        elif self.together:
            most = self.units if free >= self.size * self.units else 0
            yield from (count for count in (0, self.units) if count <= min(most, left))
            return
        else:
            most = max(0, free) // self.size
            most = min(most, 1) if self.together is False else most
        yield from range(min(most, left), -1, -1)


@dataclass(frozen=True)
class Use:
    """An allocation in the ledger that is not over."""

    reservation_id: str
    site: int
    starts_at: datetime
    ends_at: datetime
    planned: bool
    units: int
    vcpus: int


class Packing:
    """The resources and allocations of a service at present."""

    def __init__(self, world: World) -> None:
        now = world.clock.now()
        overdue_until = now + OVERDUE_MATTERS + TICK
        with world.db.read() as tx:
            self._resources = [
                resource
                for resource_type in (HOST, ADDRESS)
                for resource in tx.resources.page(ResourceQuery(resource_type, 100))
            ]
            sites = {resource.id: site for site, resource in enumerate(self._resources)}
            rows = tx.session.execute(
                select(AllocationRow, ReservationRow)
                .join(ReservationRow, ReservationRow.id == AllocationRow.reservation_id)
                .where(AllocationRow.state != AllocationState.RELEASED.value)
            ).all()
        self._uses = [
            Use(
                row.reservation_id,
                sites[row.resource_id],
                row.starts_at,
                overdue_until if row.ends_at <= now and row.state == AllocationState.HELD.value else row.ends_at,
                row.state == AllocationState.PLANNED.value,
                row.units,
                0 if row.exclusive else row.amounts["VCPU"],
            )
            for row, _ in rows
        ]
        self._planned = {
            reservation.id: self._piece(reservation.resource_type, reservation.parameters)
            for row, reservation in rows
            if row.state == AllocationState.PLANNED.value
        }
        self._capacities = tuple(
            resource.capacity["VCPU"] if resource.resource_type == HOST else 1 for resource in self._resources
        )

    def may_fit(self, requested: Sequence[ReservationRequest], start: datetime, end: datetime) -> bool:
        """Whether there is room for a new lease at each instant of a period."""
        pieces = [self._piece(request.resource_type, request.parameters) for request in requested]
        times = {start, *(use.starts_at for use in self._uses if start < use.starts_at < end)}
        return all(self._may_fit_at(pieces, time) for time in sorted(times))

    def _may_fit_at(self, requested: Sequence[Piece], time: datetime) -> bool:
        """Whether there is room at an instant.

        Where an overdue allocation, or a shrunk host, leaves too little for the plans that are there, these may stay,
        and nothing is added; or they make room like others.
        """
        crowded = self._crowded_at(time)
        return any(
            self._may_fit_if(requested, time, frozenset(closed))
            for count in range(len(crowded) + 1)
            for closed in combinations(crowded, count)
        )

    def _crowded_at(self, time: datetime) -> list[int]:
        """Return the sites at which allocations and plans take more than there is."""
        taken: dict[int, int] = {}
        wholes: dict[int, int] = {}
        for use in self._uses:
            if use.starts_at <= time < use.ends_at:
                taken[use.site] = taken.get(use.site, 0) + use.vcpus
                wholes[use.site] = wholes.get(use.site, 0) + (not use.vcpus)
        return [
            site for site, vcpus in taken.items() if vcpus > self._capacities[site] or wholes[site] + (vcpus > 0) > 1
        ]

    def _may_fit_if(self, requested: Sequence[Piece], time: datetime, closed: frozenset[int]) -> bool:
        """Whether there is room at an instant if everything stays at the closed sites, and nothing is added there."""
        free = [TAKEN if site in closed else capacity for site, capacity in enumerate(self._capacities)]
        planned: dict[str, list[Use]] = {}
        for use in self._uses:
            if not use.starts_at <= time < use.ends_at or use.site in closed:
                continue
            if use.planned:
                planned.setdefault(use.reservation_id, []).append(use)
            else:
                free[use.site] = free[use.site] - use.vcpus if use.vcpus else TAKEN
        pieces = [
            replace(piece, sites=tuple(site for site in piece.sites if site not in closed)) for piece in requested
        ]
        for reservation_id, uses in planned.items():
            piece = self._planned[reservation_id]
            # A plan may stay on a disabled resource.
            sites = {*piece.sites, *(use.site for use in uses)} - closed
            units = sum(use.units for use in uses)
            pieces.append(Piece(piece.size, units, piece.together, tuple(sorted(sites))))
        # Whole resources first, then large instances: less is tried in vain.
        pieces.sort(key=lambda piece: (piece.size > 0, -piece.size * piece.units))
        return _fit(self._capacities, tuple(free), tuple(pieces))

    def _piece(self, resource_type: str, parameters: Mapping[str, Any]) -> Piece:
        """Return the units of a reservation, with the resources that serve it."""
        inventory = ADDRESS if resource_type == ADDRESS else HOST
        sites = tuple(
            site
            for site, resource in enumerate(self._resources)
            if resource.resource_type == inventory and resource.reservable and _is_matched(resource, parameters)
        )
        if resource_type == "virtual:instance":
            return Piece(parameters["vcpus"], parameters["amount"], parameters["affinity"], sites)
        return Piece(0, parameters["min"] if resource_type == HOST else parameters["amount"], None, sites)


def _is_matched(resource: Resource, parameters: Mapping[str, Any]) -> bool:
    expression = parameters.get("resource_properties")
    return not expression or expression == f'["==", "$rack", "{resource.properties.get("rack")}"]'


@lru_cache(maxsize=100_000)
def _fit(capacities: Amounts, free: Amounts, pieces: tuple[Piece, ...]) -> bool:
    """Whether all pieces have room side by side."""
    if not pieces:
        return True
    piece, *rest = pieces
    placements = _placements(piece, capacities, free, piece.units)
    return any(_fit(capacities, left, tuple(rest)) for left in placements)


def _placements(
    piece: Piece, capacities: Amounts, free: Amounts, left: int, sites: Sequence[int] | None = None
) -> Iterator[Amounts]:
    """Return what every placement of ``left`` units of a piece leaves free."""
    sites = piece.sites if sites is None else sites
    if not left:
        yield free
    elif sites:
        site, *others = sites
        for count in piece.counts(left, capacities[site], free[site]):
            remaining = TAKEN if count and not piece.size else free[site] - count * piece.size
            after = (*free[:site], remaining, *free[site + 1 :])
            yield from _placements(piece, capacities, after, left - count, others)
