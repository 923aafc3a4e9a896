"""What the exact search considers: the resources of an inventory, the plans on them, and what reservations wish for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from tenure.domain.allocation import Allocation, Demand, Spread, units_by_resource
from tenure.domain.arrangement import FixedUse, Piece, Site
from tenure.domain.lease import AllocationState
from tenure.domain.period import TICK, Period
from tenure.domain.regions import ids_in
from tenure.domain.request import ResourceQuery
from tenure.domain.resource import Resource
from tenure.resources.contract import ResourceTypes
from tenure.services.planning.affected import find_affected
from tenure.services.planning.demands import demand_of
from tenure.services.planning.wishes import Wish
from tenure.store.conditions import OVERDUE_MATTERS
from tenure.store.database import Transaction
from tenure.store.resources import attributes_of

#: The largest number of resources, and of pieces, of an exact search.
MOST_SITES = 64
MOST_PIECES = 400

_NOWHERE: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Part:
    """The resources of an inventory in a region, and what is on them."""

    resources: Mapping[int, Resource]
    #: What expressions are about, by resource.
    attributes: Mapping[int, Mapping[str, str]]
    sites: Mapping[int, Site]
    #: The plans that may move, by their pieces.
    plans: Sequence[tuple[Piece, tuple[Allocation, ...]]]
    #: What the wishing reservations hold, and the units of their plans by resource.
    held: Mapping[str, Sequence[Allocation]]
    planned: Mapping[str, Counter[int]]
    #: Whether these are all resources, and all plans that may move; otherwise a search proves nothing.
    is_whole: bool

    def extensions(self, wish: Wish, *, now: datetime) -> Iterator[Piece]:
        """Yield a piece for the time that each held allocation gains; it fits on its own resource only."""
        end = wish.span.end
        for allocation in self.held.get(wish.reservation_id, ()) if wish.prolongs else ():
            start = max(allocation.period.end, now)
            if start < end:
                demand = wish.demand.part(allocation.units)
                may = frozenset({allocation.resource_id}) & self._matching(demand.part(1))
                yield Piece(wish.reservation_id, demand, Period(start, end), allocation.units, may, _NOWHERE)

    def new_pieces(self, wish: Wish) -> Iterator[Piece]:
        """Yield the pieces of the units that a wish adds: one for each resource that it names, and one for the rest."""
        held = units_by_resource(self.held.get(wish.reservation_id, ()))
        least = wish.demand.minimum - held.total()
        if least <= 0 or not wish.grows:
            return
        demand, current = replace(wish.demand, minimum=least), self.planned.get(wish.reservation_id, _NOWHERE)
        may = self.serving(demand)
        if wish.keeps:
            may |= current.keys()
        if demand.spread is Spread.APART:
            may -= held.keys()
        elif demand.spread is Spread.TOGETHER and held:
            may &= held.keys()
        named = self._named(demand, may)
        for resource_id in sorted(named):
            yield Piece(wish.reservation_id, demand, wish.span, 1, frozenset({resource_id}), _NOWHERE)
        if len(named | self._named(demand, held)) < len(demand.named):
            yield Piece(wish.reservation_id, demand, wish.span, 1, frozenset(), _NOWHERE)  # there is no such resource
        rest = least - len(named)
        if rest > 0:
            may -= named
            stays = {resource_id: units for resource_id, units in current.items() if resource_id in may}
            yield Piece(wish.reservation_id, demand, wish.span, rest, may, stays)

    def serving(self, demand: Demand) -> frozenset[int]:
        """Return the reservable resources that serve a demand if nothing else uses them."""
        return frozenset(
            resource_id for resource_id in self._matching(demand) if self.resources[resource_id].reservable
        )

    def _matching(self, demand: Demand) -> frozenset[int]:
        return frozenset(
            resource_id
            for resource_id, resource in self.resources.items()
            if _serves(resource, self.attributes[resource_id], demand)
        )

    def _named(self, demand: Demand, resource_ids: Collection[int]) -> set[int]:
        """Return those of the resources that a demand names."""
        names = ids_in(demand.region, demand.named)
        return {
            resource_id
            for resource_id in resource_ids
            if resource_id in self.resources and self.resources[resource_id].external_id in names
        }


def _serves(resource: Resource, attributes: Mapping[str, str], demand: Demand) -> bool:
    """Whether a resource serves a demand if nothing else uses it; ``conditions.matching`` is the same in SQL."""
    return (
        demand.expression.matches(attributes)
        and demand.required <= resource.traits
        and not demand.forbidden & resource.traits
        and demand.has_size(resource.capacity)
        and demand.is_admitted_by(resource.limits)
    )


def read_part(
    tx: Transaction,
    types: ResourceTypes,
    wishes: Sequence[Wish],
    *,
    now: datetime,
    notice: timedelta,
    is_over: Callable[[], bool] = lambda: False,
) -> Part:
    """Read the inventory that these wishes are for, with its allocations; of a large one, the part that they affect.

    Plans that begin within ``notice`` stay, and so do those on resources that their reservation names; of a large
    inventory, so do all that are not in the way. Fewer resources are looked up if the time ``is_over``.
    """
    inventory, region = wishes[0].demand.inventory, wishes[0].demand.region
    found = tx.resources.page(ResourceQuery(inventory, MOST_SITES, region=region))
    is_whole = len(found) <= MOST_SITES
    affected = None
    if not is_whole:
        affected = find_affected(tx, types, wishes, now=now, notice=notice, limit=MOST_SITES, is_over=is_over)
        found = list(tx.resources.by_ids(affected.resource_ids).values())
    resources = {resource.id: resource for resource in found}
    wishing = {wish.reservation_id for wish in wishes}
    allocations: list[Allocation] = []
    held: dict[str, list[Allocation]] = defaultdict(list)
    planned: dict[str, Counter[int]] = defaultdict(Counter)
    for allocation in tx.allocations.not_over(resources, now=now):
        is_planned = allocation.state is AllocationState.PLANNED
        if allocation.reservation_id not in wishing:
            allocations.append(allocation)
        elif is_planned:
            planned[allocation.reservation_id][allocation.resource_id] += allocation.units
        else:
            held[allocation.reservation_id].append(allocation)
    movable = [
        each for each in allocations if each.state is AllocationState.PLANNED and each.period.start > now + notice
    ]
    reservations = tx.leases.reservations_by_ids({allocation.reservation_id for allocation in movable})
    demands = {reservation_id: demand_of(types, each) for reservation_id, each in reservations.items()}
    named = {
        reservation_id: set(tx.resources.ids_of(inventory, demand.named, region=demand.region))
        for reservation_id, demand in demands.items()
        if demand.named
    }
    grouped: dict[tuple[str, Period], list[Allocation]] = defaultdict(list)
    for allocation in movable:
        if allocation.resource_id not in named.get(allocation.reservation_id, ()):
            grouped[allocation.reservation_id, allocation.period].append(allocation)
    if affected is not None:
        grouped = {key: plans for key, plans in grouped.items() if key in affected.plans}
    moving = {allocation.id for plans in grouped.values() for allocation in plans}
    fixed: dict[int, list[FixedUse]] = defaultdict(list)
    stay: dict[str, set[int]] = defaultdict(set)
    for allocation in allocations:
        if allocation.id not in moving:
            fixed[allocation.resource_id].append(_fixed(allocation, now))
            stay[allocation.reservation_id].add(allocation.resource_id)
    for allocation in (each for those in held.values() for each in those):
        # It is not overdue if its own lease is prolonged.
        fixed[allocation.resource_id].append(FixedUse(allocation.period, allocation.amounts, allocation.exclusive))
    sites = {
        resource.id: Site(resource.id, resource.version, resource.capacity, tuple(fixed[resource.id]))
        for resource in found
    }
    attributes = {
        resource.id: attributes_of(resource.external_id, resource.facts, resource.properties) for resource in found
    }
    part = Part(resources, attributes, sites, [], held, planned, is_whole)
    plans = []
    for (reservation_id, period), these in grouped.items():
        demand = demands[reservation_id]
        current = units_by_resource(these)
        may = part.serving(demand) | current.keys()
        if demand.spread is Spread.APART:
            may -= stay[reservation_id] - current.keys()
        piece = Piece(reservation_id, demand, period, current.total(), frozenset(may), current, is_in_place=True)
        plans.append((piece, tuple(these)))
    return replace(part, plans=plans)


def _fixed(allocation: Allocation, now: datetime) -> FixedUse:
    """Return an allocation that stays; an overdue one goes on for as long as it matters."""
    period = allocation.period
    if period.end <= now:
        period = Period(period.start, now + OVERDUE_MATTERS + TICK)
    return FixedUse(period, allocation.amounts, allocation.exclusive)
