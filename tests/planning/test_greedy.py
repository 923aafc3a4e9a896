"""Alike reservations get with one search what they would get one after the other."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.domain.allocation import Allocation
from tenure.planning.greedy import FEW, allocate_alike
from tenure.planning.new_units import allocate
from tenure.planning.outcomes import NoRoom
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import NewUnits
from tests.planning.situations import (
    NOW,
    Situation,
    carry_out,
    demand,
    host,
    hours,
    parts,
    period,
    site,
    situation,
    terms_of,
    whole,
)
from tests.support.plain_ledger import PlainLedger


def alike(dice: Random, ledger: PlainLedger) -> list[NewUnits]:
    """Draw several reservations that ask for the same, and in the end perhaps one that asks for something else."""
    hosts, span = list(ledger.resources.values()), period(dice)
    asked = demand(dice, hosts)
    tasks = [NewUnits(f"new-{number}", asked, span) for number in range(dice.randint(FEW, 2 * FEW))]
    return [*tasks, NewUnits("other", demand(dice, hosts), span)] if dice.random() < 0.5 else tasks


def one_after_the_other(found: Situation, before: Snapshot) -> list[Snapshot]:
    """Return the snapshots after each task, until one finds no room as the plans are."""
    snapshots = [before]
    for task in found.tasks:
        assert isinstance(task, NewUnits)
        after = allocate(snapshots[-1], task, found.terms)
        if isinstance(after, NoRoom) or not content(after) >= content(snapshots[-1]):
            break  # there is no room, or a plan has moved
        snapshots.append(after)
    return snapshots[1:]


def content(snapshot: Snapshot) -> set[Allocation]:
    return {allocation for row in range(len(snapshot.catalogue)) for allocation in snapshot.on(row)}


def units(snapshot: Snapshot, name: str) -> int:
    return sum(
        allocation.units
        for row in range(len(snapshot.catalogue))
        for allocation in snapshot.on(row)
        if allocation.reservation_id == name
    )


def test_alike_reservations_get_as_much_as_one_after_the_other():
    done: Counter[int] = Counter()

    @settings(max_examples=400)
    @given(seed=st.integers(0, 2**32 - 1))
    def agrees(seed: int) -> None:
        found = situation(Random(seed), alike)
        before = found.ledger.snapshot()
        together = allocate_alike(before, dict(enumerate(found.tasks)), found.terms)
        snapshots = one_after_the_other(found, before)
        if not any(task.demand.named for task in found.tasks):  # what is named is left out
            kind = found.tasks[0].demand
            first = {index for index in range(len(snapshots)) if found.tasks[index].demand == kind}
            assert together.positions >= first
            for index in first:
                name = found.tasks[index].reservation_id
                assert units(together.snapshot, name) == units(snapshots[-1], name)
        done[len(together.positions)] += 1
        asked = [task for index, task in enumerate(found.tasks) if index in together.positions]
        part = Situation(found.ledger, asked, found.terms)
        assert carry_out(part, before, together.snapshot) == []

    agrees()
    assert len(done) > FEW


def test_whole_hosts_are_the_same_ones_as_one_after_the_other():
    for seed in range(40):
        dice = Random(seed)
        ledger = site(dice)
        span = period(dice)
        tasks = [NewUnits(f"new-{number}", whole(), span) for number in range(FEW)]
        ledger.demands |= {task.reservation_id: task.demand for task in tasks}
        found = Situation(ledger, tasks, terms_of(ledger, seed=dice.randint(0, 6)))
        before = ledger.snapshot()
        together = allocate_alike(before, dict(enumerate(tasks)), found.terms)
        for index, snapshot in enumerate(one_after_the_other(found, before)):
            assert index in together.positions
            name = tasks[index].reservation_id
            assert hosts_of(together.snapshot, name) == hosts_of(snapshot, name)


def hosts_of(snapshot: Snapshot, name: str) -> set[int]:
    return {allocation.resource_id for allocation in content(snapshot) if allocation.reservation_id == name}


def test_a_few_reservations_and_other_tasks_are_left_to_the_usual_way():
    ledger = PlainLedger.of([host(1, 8)], NOW)
    tasks = [NewUnits(f"new-{number}", parts(), hours(1, 2)) for number in range(FEW - 1)]
    assert not allocate_alike(ledger.snapshot(), dict(enumerate(tasks)), terms_of(ledger)).positions


def test_named_hosts_are_left_free():
    """For them plans may have to move, and nothing must be in the way that was allocated before."""
    ledger = PlainLedger.of([host(1, 8), host(2, 8)], NOW)
    tasks = [NewUnits(f"new-{number}", parts(), hours(1, 2)) for number in range(FEW)]
    tasks.append(NewUnits("by name", whole(named=[1]), hours(1, 2)))
    together = allocate_alike(ledger.snapshot(), dict(enumerate(tasks)), terms_of(ledger))
    assert together.positions == set(range(FEW))
    assert {number for task in tasks for number in hosts_of(together.snapshot, task.reservation_id)} == {2}
