"""Searching room for a large request before its transaction begins, so that other transactions need not wait."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from tenure.domain.allocation import Candidate, Choice, Demand, beside, choose
from tenure.domain.period import Period
from tenure.services.planning.budget import Budget
from tenure.store.allocations import SAMPLE
from tenure.store.database import Transaction

#: A request with more reservations, or more units, is large. A smaller one is placed as fast as surveyed.
FEW = 4
FEW_UNITS = 64


def is_large(demands: Sequence[Demand]) -> bool:
    """Whether room for these demands is searched before the transaction that books them."""
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
    """Return choices for these demands side by side, by their positions; only those before the first without room.

    The demands are placed in this ``order``, except those that name resources: plans may have to move for them, and the
    resources that they name are not used for others. One search covers all demands that differ in their numbers only.
    ``turn`` is where its walk through the ids begins. Raises ``Unavailable`` if the ``budget`` is spent.
    """
    chosen: dict[int, Choice] = {}
    named: set[int] = set()
    for demand in demands:
        named.update(tx.resources.ids_of(demand.inventory, demand.named, region=demand.region))
    for positions in _group_alike(demands, [position for position in order if not demands[position].named]):
        budget.spend()
        span = demands[positions[0]].span(period)
        found = _search(tx, [demands[position] for position in positions], span, now=now, turn=turn, without=named)
        candidates = {
            candidate.resource_id: candidate
            for candidate in beside(found, chosen.values(), demands[positions[0]], span)
        }
        for position in positions:
            budget.spend()
            demand = demands[position]
            units = {
                choice.resource_id: choice.units for choice in choose(candidates.values(), demand, span, turn=turn)
            }
            if sum(units.values()) < demand.minimum:
                return chosen  # plans must move for this demand, or the request is refused
            choice = Choice(demand, span, units)
            chosen[position] = choice
            taken = [candidates.pop(resource_id) for resource_id in units]
            candidates |= {candidate.resource_id: candidate for candidate in beside(taken, [choice], demand, span)}
    return chosen


def _group_alike(demands: Sequence[Demand], order: Sequence[int]) -> Iterator[list[int]]:
    """Group the positions of demands that differ in their numbers only, in order."""
    kinds: list[tuple[Demand, list[int]]] = []
    for position in order:
        kind = replace(demands[position], minimum=0, maximum=0)
        for known, positions in kinds:
            if known == kind:
                positions.append(position)
                break
        else:
            kinds.append((kind, [position]))
    return (positions for _, positions in kinds)


def _search(
    tx: Transaction, alike: Sequence[Demand], span: Period, *, now: datetime, turn: int, without: Collection[int]
) -> Sequence[Candidate]:
    """Return candidates for any of these demands, as many as all of them together may need."""
    units = sum(demand.maximum for demand in alike)
    smallest = min(alike, key=lambda demand: demand.units_together)
    return tx.allocations.candidates(smallest, span, now=now, turn=turn, without=without, limit=units + SAMPLE)


def found_before(tx: Transaction, reservation_ids: Sequence[str]) -> Mapping[int, Choice]:
    """Return the usable choices that were made for these reservations before this transaction, by position."""
    if tx.preferred:
        positions = {reservation_id: position for position, reservation_id in enumerate(reservation_ids)}
        return {positions[key]: choice for key, choice in tx.preferred.items() if key in positions}
    return {} if tx.spoken_for else tx.survey or {}
