"""Looking for room for a large request before its transaction begins, so that nothing else waits meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from tenure.domain.allocation import Candidate, Choice, Demand, beside, choose
from tenure.domain.period import Period
from tenure.services.budget import Budget
from tenure.store.allocations import SAMPLE
from tenure.store.database import Transaction

#: A request for more reservations, or more units, than this is large. A smaller one is placed as fast as surveyed.
FEW = 4
FEW_UNITS = 64


def is_large(demands: Sequence[Demand]) -> bool:
    """Whether room for these is looked for before the transaction that books them, and others go first."""
    return len(demands) > FEW or sum(demand.maximum for demand in demands) > FEW_UNITS


def survey(
    tx: Transaction,
    demands: Sequence[Demand],
    period: Period,
    *,
    order: Sequence[int],
    now: datetime,
    turn: int,
    budget: Budget,
) -> dict[int, Choice]:
    """Return where these demands can go side by side, by their places; only those before the first without room.

    The demands are placed in this ``order``, but for those that name resources: plans may have to move off these first.
    What is named is left to them. Demands that differ in their numbers only are answered by one search.
    ``turn`` is where its walk through the ids begins. Raises ``Unavailable`` where the ``budget`` is spent.
    """
    chosen: dict[int, Choice] = {}
    named: set[int] = set()
    for demand in demands:
        named.update(tx.resources.ids_of(demand.inventory, demand.named, region=demand.region))
    for places in _alike(demands, [place for place in order if not demands[place].named]):
        budget.spend()
        span = demands[places[0]].span(period)
        found = _search(tx, [demands[place] for place in places], span, now=now, turn=turn, without=named)
        left = {one.resource_id: one for one in beside(found, chosen.values(), demands[places[0]], span)}
        for place in places:
            budget.spend()
            demand = demands[place]
            units = {one.resource_id: one.units for one in choose(left.values(), demand, span, turn=turn)}
            if sum(units.values()) < demand.minimum:
                return chosen  # plans must move for it, or the request is refused
            choice = Choice(demand, span, units)
            chosen[place] = choice
            taken = [left.pop(number) for number in units]
            left |= {one.resource_id: one for one in beside(taken, [choice], demand, span)}
    return chosen


def _alike(demands: Sequence[Demand], order: Sequence[int]) -> Iterator[list[int]]:
    """The places of demands that differ in their numbers only, in order."""
    kinds: list[tuple[Demand, list[int]]] = []
    for place in order:
        kind = replace(demands[place], minimum=0, maximum=0)
        for known, places in kinds:
            if known == kind:
                places.append(place)
                break
        else:
            kinds.append((kind, [place]))
    return (places for _, places in kinds)


def _search(
    tx: Transaction, alike: Sequence[Demand], span: Period, *, now: datetime, turn: int, without: Collection[int]
) -> Sequence[Candidate]:
    """What has room for any of these, as many resources as all of them together may need."""
    units = sum(demand.maximum for demand in alike)
    smallest = min(alike, key=lambda demand: demand.units_together)
    return tx.allocations.candidates(smallest, span, now=now, turn=turn, without=without, limit=units + SAMPLE)


def found_before(tx: Transaction, reservation_ids: Sequence[str]) -> Mapping[int, Choice]:
    """What was chosen for these reservations before this transaction, by their places, where it is to be tried."""
    if tx.preferred:
        places = {number: place for place, number in enumerate(reservation_ids)}
        return {places[number]: choice for number, choice in tx.preferred.items() if number in places}
    return {} if tx.spoken_for else tx.survey or {}
