"""Plans on the present state of the ledger, for everything that decides who gets what when."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from tenure import deadlines
from tenure.domain.admission import AdmissionWay
from tenure.domain.allocation import Allocation, Demand
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.planning.exact import Answer, Solver, arrange
from tenure.planning.outcomes import NoRoom, Plan
from tenure.planning.plan import plan
from tenure.planning.shortfalls import shortfall
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import Extension, Task
from tenure.planning.terms import Terms
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Rules
from tenure.services.planning.demands import Demands
from tenure.services.planning.index import AvailabilityIndex
from tenure.store.conflict import Overtaken
from tenure.store.database import Database

LOG = logging.getLogger(__name__)


class Planning:
    """Makes plans; nothing is written."""

    def __init__(
        self,
        db: Database,
        types: ResourceTypes,
        rules: Rules,
        index: AvailabilityIndex,
        solver: Solver | None = None,
    ) -> None:
        """Without a ``solver``, there is no exact search before a refusal."""
        self._db = db
        self._types = types
        self._rules = rules
        self._index = index
        self._solver = solver

    def snapshot(self) -> Snapshot:
        """Return the ledger as it is now. Raises ``Unavailable`` if the database does not work."""
        return self._index.view()

    def without_exact_search(self) -> Planning:
        """Return the same without the exact search."""
        return Planning(self._db, self._types, self._rules, self._index)

    def plan(self, snapshot: Snapshot, tasks: Sequence[Task], *, now: datetime, seed: int) -> Plan:
        """Return a plan for all tasks; walks through the resources begin at one that the ``seed`` decides.

        Raises ``NotEnoughResources``, which says whether it is proven; ``SearchTooLong`` if it would take longer than
        ``Rules.planning_time``; and the errors of ``deadlines.check``.
        """
        with deadlines.within(deadlines.until_at_most(self._rules.planning_time.total_seconds())):
            return self._plan(snapshot, tasks, now=now, seed=seed)

    def _plan(self, snapshot: Snapshot, tasks: Sequence[Task], *, now: datetime, seed: int) -> Plan:
        # 1. As the plans are, or with moves of single plans; each reservation with as many units as it can get, or all
        #    with the least that they ask for.
        terms = self.terms(snapshot, tasks, now=now, seed=seed)
        outcome = plan(snapshot, tasks, terms)
        if isinstance(outcome, Plan):
            return outcome
        # 2. A count shows that there can be no room, wherever plans move.
        if outcome.is_hopeless:
            raise self._refusal(outcome)
        least = [task.least for task in tasks]
        if len(tasks) > 1 and least != list(tasks):
            again = plan(snapshot, least, terms)
            if isinstance(again, Plan):
                return again
        # 3. All plans anew.
        answer = self._arrange(snapshot, tasks, terms)
        if answer.snapshot is not None:
            return Plan(answer.snapshot, AdmissionWay.EXACT)
        # 4. The reason: what is left for a task beside those before it.
        is_undecided = self._solver is not None and not answer.is_proven
        raise self._refusal(outcome, is_proven=answer.is_proven, is_undecided=is_undecided)

    def refusal_of_retained(
        self, snapshot: Snapshot, demand: Demand, span: Period, *, position: int, retained: int
    ) -> NotEnoughResources:
        """Return the refusal of a running reservation that asks for fewer units than it has."""
        apart = self._types.inventory(demand.inventory).apart
        found = shortfall(
            snapshot, demand, span, position=position, apart=apart, requested=demand.maximum, retained=retained
        )
        return NotEnoughResources(found, field=f"reservations[{position}]", is_proven=True)

    def terms(self, snapshot: Snapshot, tasks: Sequence[Task], *, now: datetime, seed: int) -> Terms:
        """Return the terms of a search for these tasks."""
        demands = Demands(self._db, self._types, {task.reservation_id: task.demand for task in tasks})
        highest = max(snapshot.catalogue.ids, default=0)
        notice = self._rules.preemption_notice
        return Terms(
            now,
            seed % highest + 1 if highest else 0,
            demands.of,
            fixed_until=now + notice if notice else None,
            check=deadlines.check,
        )

    def _arrange(self, snapshot: Snapshot, tasks: Sequence[Task], terms: Terms) -> Answer:
        """Return the answer of the exact search. If it fails, nothing is proven, and the refusal is the answer."""
        seconds = min(self._rules.exact_time.total_seconds(), deadlines.seconds_left())
        if self._solver is None or seconds <= 0:
            return Answer(None, is_proven=False)
        try:
            return arrange(snapshot, tasks, terms, self._solver, seconds=seconds)
        except deadlines.SearchTooLong:
            return Answer(None, is_proven=False)
        except Exception:
            LOG.exception("the exact search failed")
            return Answer(None, is_proven=False)

    def _refusal(self, outcome: NoRoom, *, is_proven: bool = False, is_undecided: bool = False) -> NotEnoughResources:
        """Return the refusal for what finds no room."""
        task, snapshot = outcome.task, outcome.snapshot
        demand = task.demand
        apart = self._types.inventory(demand.inventory).apart
        if isinstance(task, Extension):
            gained = next(period for allocation in task.allocations if (period := task.gained(allocation)) is not None)
            found = shortfall(
                snapshot,
                demand,
                gained,
                position=task.position,
                apart=apart,
                requested=task.retained,
                retained=task.retained,
            )
            refusal = NotEnoughResources(found, field=task.field, is_proven=is_proven)
        else:
            found = shortfall(
                snapshot,
                demand,
                task.period,
                position=task.position,
                apart=apart,
                without=task.without,
                requested=task.requested,
                retained=task.retained,
            )
            if demand.named and found.free >= demand.minimum:
                found = replace(found, naming=demand.naming)
            field = f"reservations[{task.position}].{found.naming or demand.parameter}"
            refusal = NotEnoughResources(found, field=field, is_hopeless=outcome.is_hopeless, is_proven=is_proven)
        refusal.is_undecided = is_undecided
        return refusal


def check_same(snapshot: Snapshot, allocations: Sequence[Allocation]) -> None:
    """Raise ``Overtaken`` if an allocation is not in a snapshot as it was read."""
    for allocation in allocations:
        row = snapshot.catalogue.rows.get(allocation.resource_id)
        found = (
            next((other for other in snapshot.on(row) if other.id == allocation.id), None) if row is not None else None
        )
        if found is None or (found.units, found.state) != (allocation.units, allocation.state):
            raise Overtaken
        if allocation.state is AllocationState.PLANNED and found.period != allocation.period:
            raise Overtaken
