"""Planning: which resources reservations get, and which plans move for that.

``plan`` is the whole story; each of its steps is a module.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.deadlines import SearchTooLong
from tenure.domain.admission import AdmissionWay
from tenure.domain.allocation import hardest_first
from tenure.planning.extensions import extend
from tenure.planning.greedy import allocate_alike
from tenure.planning.new_units import allocate
from tenure.planning.outcomes import NoRoom, Plan
from tenure.planning.revisions import revise
from tenure.planning.shortfalls import is_hopeless
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import Extension, NewUnits, Revision, Task
from tenure.planning.terms import Terms

#: How many orders of the tasks are tried before a request is refused.
MOST_ORDERS = 8


def plan(snapshot: Snapshot, tasks: Sequence[Task], terms: Terms) -> Plan | NoRoom:
    """Return a plan for all tasks; or what finds no room in the first order that was tried, or is hopeless.

    If something finds no room, all is planned again with that first, in a bounded number of orders: what is hard to
    fit moves to the front ("Squeaky wheel" optimization, Joslin and Clements, 1999). Orders that differ only in equal
    demands are tried once. Extensions come first, since they are bound to their resources, and revisions that ask for
    no more than before, since they may leave room for others.
    """
    if not tasks:
        return Plan(snapshot, AdmissionWay.GREEDY)
    demands = [task.demand for task in tasks]
    first_equal = [demands.index(demand) for demand in demands]
    order = sorted(hardest_first(demands), key=lambda position: not _comes_first(tasks[position]))
    tried: set[tuple[int, ...]] = set()
    refusal: NoRoom | None = None
    while (equal := tuple(first_equal[position] for position in order)) not in tried and len(tried) < MOST_ORDERS:
        tried.add(equal)
        try:
            outcome, failed_at = _plan_in_order(snapshot, tasks, order, terms)
        except SearchTooLong:
            if refusal is None:
                raise
            break
        if isinstance(outcome, Snapshot):
            return Plan(outcome, AdmissionWay.MOVED if outcome.has_moved else AdmissionWay.GREEDY)
        if refusal is None and (hopeless := _first_hopeless(snapshot, tasks)) is not None:
            return hopeless
        refusal = refusal or outcome
        order = [failed_at, *(other for other in order if other != failed_at)]
    assert refusal is not None
    return refusal


def _plan_in_order(
    snapshot: Snapshot, tasks: Sequence[Task], order: Sequence[int], terms: Terms
) -> tuple[Snapshot, int] | tuple[NoRoom, int]:
    """Do the tasks one after the other; those that are alike at once, as far as no plan must move.

    Returns what came of it, and the position of the last task.
    """
    alike = allocate_alike(snapshot, {position: tasks[position] for position in order}, terms)
    snapshot = alike.snapshot
    for position in order:
        if position in alike.positions:
            continue
        outcome = do(snapshot, tasks[position], terms)
        if isinstance(outcome, NoRoom):
            return outcome, position
        snapshot = outcome
    return snapshot, order[-1]


def do(snapshot: Snapshot, task: Task, terms: Terms) -> Snapshot | NoRoom:
    """Return the snapshot in which a task is done; plans move if that makes room for it."""
    match task:
        case NewUnits():
            return allocate(snapshot, task, terms)
        case Extension():
            return extend(snapshot, task, terms)
        case Revision():
            return revise(snapshot, task, terms)


def _first_hopeless(snapshot: Snapshot, tasks: Sequence[Task]) -> NoRoom | None:
    """Return the first task that is hopeless even without the others."""
    hopeless = (task for task in tasks if isinstance(task, NewUnits) and is_hopeless(snapshot, task))
    return next((NoRoom(task, snapshot, is_hopeless=True) for task in hopeless), None)


def _comes_first(task: Task) -> bool:
    return isinstance(task, Extension) or (isinstance(task, Revision) and task.asks_for_no_more)
