"""Searches on the ledger of a database, as planning reads it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from tenure.domain.allocation import Candidate, Demand
from tenure.domain.changes import Changes
from tenure.domain.period import Period
from tenure.domain.shortfall import Stage
from tenure.planning import candidates, moving, shortfalls
from tenure.planning.changes import changes_of
from tenure.planning.snapshot import Snapshot
from tenure.planning.terms import Terms
from tenure.store.database import Transaction


def snapshot_of(tx: Transaction, now: datetime) -> Snapshot:
    """Return the ledger as it is in a transaction."""
    return Snapshot.of(tx.ledger.resources(), tx.ledger.uses(now), now)


def terms(now: datetime, *, seed: int = 0) -> Terms:
    """Return the terms of a search in which no plan needs to move elsewhere."""
    return Terms(now, seed, lambda _reservation_ids: {})


def find(
    tx: Transaction,
    demand: Demand,
    period: Period,
    *,
    now: datetime,
    seed: int = 0,
    ignoring: str = "",
    without: Collection[int] = (),
) -> list[Candidate]:
    """Return the resources with room; the allocations of the reservation ``ignoring`` take none."""
    snapshot = snapshot_of(tx, now)
    if ignoring:
        snapshot = snapshot.without(tx.allocations.of_reservations([ignoring]))
    return candidates.find(snapshot, demand, period, seed=seed, without=without)


def stages(
    tx: Transaction, demand: Demand, period: Period, *, now: datetime, without: Collection[int] = ()
) -> tuple[Stage, ...]:
    """Return how many resources are left after each step of the choice."""
    return shortfalls.stages(snapshot_of(tx, now), demand, period, without=without)


def blocked_by_plans(
    tx: Transaction,
    demand: Demand,
    period: Period,
    *,
    now: datetime,
    asking: str = "",
    without: Collection[int] = (),
    only: Collection[int] | None = None,
) -> list[int]:
    """Return the resources that would have room if plans moved."""
    vacancy = moving.Vacancy(
        demand, period, asking, without=frozenset(without), only=None if only is None else frozenset(only)
    )
    return moving.blocked_by_plans(snapshot_of(tx, now), vacancy, terms(now))


def book(tx: Transaction, reservation_id: str, demand: Demand, period: Period, *, now: datetime) -> Changes:
    """Return what must change so that a reservation gets all that has room for its demand."""
    before = snapshot_of(tx, now)
    found = candidates.find(before, demand, period, seed=0)
    units = {candidate.resource_id: candidate.units for candidate in found}
    return changes_of(before, before.allocate(reservation_id, demand, period, units))
