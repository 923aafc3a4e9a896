"""Plans that others came before: they are carried out as they are, or not at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.domain.allocation import Spread
from tenure.planning.changes import changes_of
from tenure.planning.outcomes import Plan
from tenure.planning.plan import plan
from tenure.planning.renewal import renewed
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import NewUnits, Revision
from tests.planning.situations import (
    NOW,
    Situation,
    book,
    extensions,
    faults_of_hosts,
    host,
    hours,
    new_units,
    parts,
    revisions,
    situation,
    terms_of,
    whole,
)
from tests.support.plain_ledger import PlainLedger


def following(before: Snapshot, ledger: PlainLedger) -> Snapshot:
    """Return the snapshot that an index has after it has followed the ledger."""
    return before.following(ledger.resources.keys(), list(ledger.resources.values()), ledger.listed(), ledger.now)


def come_between(dice: Random, found: Situation) -> None:
    """Book something else, or change another reservation, if there is room."""
    asked = [
        task if isinstance(task, Revision) else replace(task, reservation_id=f"other-{task.reservation_id}")
        for task in dice.choice((new_units, revisions))(dice, found.ledger)
        if task.reservation_id not in found.names or isinstance(task, NewUnits)
    ]
    for task in asked:
        found.ledger.demands[task.reservation_id] = task.demand
    before = found.ledger.snapshot()
    outcome = plan(before, asked, found.terms)
    if isinstance(outcome, Plan):
        found.ledger.apply(changes_of(before, outcome.snapshot))


def test_a_plan_is_renewed_only_if_it_keeps_all_promises():
    outcomes: Counter[str] = Counter()

    @settings(max_examples=600)
    @given(seed=st.integers(0, 2**32 - 1))
    def keeps(seed: int) -> None:
        dice = Random(seed)
        found = situation(dice, dice.choice((new_units, extensions, revisions)))
        before = found.ledger.snapshot()
        outcome = plan(before, found.tasks, found.terms)
        if not isinstance(outcome, Plan):
            return
        changes = changes_of(before, outcome.snapshot)
        if dice.random() < 0.8:
            come_between(dice, found)
        again = renewed(changes, before, following(before, found.ledger))
        if again is None:
            outcomes["planned anew"] += 1
            return
        outcomes["other versions" if again.versions != changes.versions else "the same versions"] += 1
        assert replace(again, versions=changes.versions) == changes
        was = dict(found.ledger.allocations)
        found.ledger.apply(again)
        assert list(faults_of_hosts(found.ledger, was)) == []

    keeps()
    assert outcomes.keys() == {"planned anew", "other versions", "the same versions"}


def test_a_plan_is_not_renewed_if_a_resource_is_described_otherwise():
    ledger = PlainLedger.of([host(1), host(2)], NOW)
    ledger.demands["new"] = whole()
    before = ledger.snapshot()
    outcome = plan(before, [NewUnits("new", whole(), hours(1, 2))], terms_of(ledger))
    assert isinstance(outcome, Plan)
    changes = changes_of(before, outcome.snapshot)
    assert renewed(changes, before, following(before, ledger)) == changes
    ledger.resources[1] = replace(ledger.resources[1], reservable=False)
    assert renewed(changes, before, following(before, ledger)) is None


def test_a_plan_is_not_renewed_if_what_it_moves_is_gone():
    ledger = PlainLedger.of([host(1), host(2)], NOW)
    [in_the_way] = book(ledger, "booked", whole(), hours(1, 3), {1: 1})
    ledger.demands["new"] = whole(named=[1])
    before = ledger.snapshot()
    outcome = plan(before, [NewUnits("new", whole(named=[1]), hours(1, 2))], terms_of(ledger))
    assert isinstance(outcome, Plan)
    changes = changes_of(before, outcome.snapshot)
    assert [was for was, _ in changes.changed] == [in_the_way]
    assert renewed(changes, before, following(before, ledger)) == changes
    del ledger.allocations[in_the_way.id]
    assert renewed(changes, before, following(before, ledger)) is None


def test_a_plan_is_not_renewed_if_others_moved_a_unit_of_the_reservation_to_its_resource():
    """Both would be on one host, although they are to be apart."""
    ledger = PlainLedger.of([host(1), host(2), host(3)], NOW)
    first, second = book(ledger, "apart", parts(2, spread=Spread.ANTI_AFFINITY), hours(1, 3), {1: 1, 2: 1})
    before = ledger.snapshot()
    changes = changes_of(before, before.without([first]).with_([replace(first, resource_id=3)]))
    assert renewed(changes, before, following(before, ledger)) == changes
    ledger.allocations[second.id] = replace(second, resource_id=3)
    assert renewed(changes, before, following(before, ledger)) is None
