"""Reservations that change before they start keep what still fits, and lasting ones stay where they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.domain.allocation import Allocation, units_by_resource
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period
from tenure.planning.outcomes import NoRoom, Plan
from tenure.planning.plan import do, plan
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import Extension, Revision
from tests.planning.situations import (
    NOW,
    PLANNED,
    Situation,
    book,
    carry_out,
    fits,
    host,
    hours,
    parts,
    serves,
    site,
    terms_of,
    whole,
)
from tests.support.plain_ledger import PlainLedger

seeds = st.integers(0, 2**32 - 1)
HOUR = timedelta(hours=1)


def revision(ledger: PlainLedger, name: str, **changes) -> Revision:
    """Return the change of a planned reservation: its new ``demand`` and ``period``, if they differ."""
    before, plans = ledger.demands[name], ledger.of_reservation(name)
    span = plans[0].period
    period: Period = changes.get("period", span)
    asked = changes.get("demand", before)
    keeps_start = period.start == span.start
    return Revision(name, before, asked, plans, period, keeps_start=keeps_start, adds_no_time=span.covers(period))


def revised(ledger: PlainLedger, task: Revision) -> Snapshot | NoRoom:
    return do(ledger.snapshot(), task, terms_of(ledger))


def on(snapshot: Snapshot, name: str) -> list[Allocation]:
    return [
        allocation
        for row in range(len(snapshot.catalogue))
        for allocation in snapshot.on(row)
        if allocation.reservation_id == name
    ]


def planned(dice: Random, ledger: PlainLedger) -> str | None:
    names = sorted(
        {allocation.reservation_id for allocation in ledger.allocations.values() if allocation.state is PLANNED}
    )
    return dice.choice(names) if names else None


def test_a_change_that_asks_for_no_more_is_never_refused_and_keeps_what_fits():
    changed = 0

    @settings(max_examples=300)
    @given(seed=seeds)
    def keeps(seed: int) -> None:
        nonlocal changed
        dice = Random(seed)
        ledger = site(dice)
        name = planned(dice, ledger)
        if name is None:
            return
        changed += 1
        before, plans = ledger.demands[name], ledger.of_reservation(name)
        span = plans[0].period
        shorter = Period(span.start + dice.choice((0, 0, 1, 2)) * span.length / 4, span.end - span.length / 4)
        least = dice.randint(max(1, len(before.named)), before.minimum)
        asked = replace(before, minimum=least, maximum=max(least, min(before.maximum, least + dice.randint(0, 1))))
        task = revision(ledger, name, demand=asked, period=dice.choice((span, shorter)))
        ledger.demands[name] = asked
        found = Situation(ledger, [task], terms_of(ledger))
        snapshot = ledger.snapshot()
        outcome = plan(snapshot, [task], found.terms)
        assert isinstance(outcome, Plan)
        assert carry_out(found, snapshot, outcome.snapshot) == []
        good = {
            allocation.resource_id for allocation in plans if serves(ledger.resources[allocation.resource_id], asked)
        }
        named = {allocation.resource_id for allocation in plans if str(allocation.resource_id) in asked.named}
        units, had = units_by_resource(ledger.of_reservation(name)), units_by_resource(plans)
        assert all(units[number] for number in named)
        kept = sum(min(units[number], had[number]) for number in good | named)
        assert kept == min(sum(had[number] for number in good | named), asked.maximum)

    keeps()
    assert changed > 150


def test_whole_hosts_that_are_free_at_another_time_are_kept():
    changed = 0

    @settings(max_examples=200)
    @given(seed=seeds)
    def keeps(seed: int) -> None:
        nonlocal changed
        dice = Random(seed)
        ledger = site(dice)
        start = dice.randint(1, 6)
        numbers = [
            resource.id
            for resource in ledger.resources.values()
            if not any(
                other.resource_id == resource.id and other.period.overlaps(hours(start, start + 2))
                for other in ledger.allocations.values()
            )
        ][:3]
        if not numbers:
            return
        changed += 1
        plans = book(ledger, "mine", whole(len(numbers)), hours(start, start + 2), dict.fromkeys(numbers, 1))
        task = revision(ledger, "mine", period=Period(plans[0].period.start + HOUR, plans[0].period.end + 2 * HOUR))
        outcome = revised(ledger, task)
        if isinstance(outcome, NoRoom):
            return
        good = {
            allocation.resource_id
            for allocation in plans
            if serves(ledger.resources[allocation.resource_id], task.demand)
            and fits(
                ledger,
                allocation.resource_id,
                [
                    replace(allocation, period=task.period),
                    *(
                        other
                        for other in ledger.allocations.values()
                        if other.resource_id == allocation.resource_id and other.id != allocation.id
                    ),
                ],
            )
        }
        assert good <= {allocation.resource_id for allocation in on(outcome, "mine")}

    keeps()
    assert changed > 50


@pytest.fixture
def ledger() -> PlainLedger:
    """Three hosts; the third is in another rack."""
    return PlainLedger.of([host(1), host(2), host(3, rack="b")], NOW)


def test_a_shrunk_reservation_stays_although_its_host_takes_no_new_leases(ledger: PlainLedger):
    book(ledger, "mine", parts(2), hours(2, 4), {1: 2})
    ledger.resources[1] = replace(ledger.resources[1], reservable=False)
    book(ledger, "other", whole(2), hours(2, 4), {2: 1, 3: 1}, AllocationState.HELD)
    after = revised(ledger, revision(ledger, "mine", demand=parts(1)))
    assert isinstance(after, Snapshot)
    assert [(allocation.id, allocation.resource_id, allocation.units) for allocation in on(after, "mine")] == [
        (1, 1, 1)
    ]


def test_a_host_that_does_not_match_any_more_is_left_if_there_is_another(ledger: PlainLedger):
    book(ledger, "mine", whole(), hours(2, 4), {1: 1})
    after = revised(ledger, revision(ledger, "mine", demand=whole(rack="b")))
    assert isinstance(after, Snapshot)
    assert [allocation.resource_id for allocation in on(after, "mine")] == [3]


def test_a_delayed_plan_stays_delayed_unless_the_start_changes(ledger: PlainLedger):
    """The host of the reservation is given back late, at half past two."""
    [plan_] = book(ledger, "mine", whole(), hours(2, 4), {1: 1})
    delayed = replace(plan_, period=hours(2.5, 4), booked_from=hours(2, 4).start)
    ledger.allocations[plan_.id] = delayed
    task = replace(revision(ledger, "mine", period=hours(2, 5)), keeps_start=True)
    after = revised(ledger, task)
    assert isinstance(after, Snapshot)
    [kept] = on(after, "mine")
    assert (kept.id, kept.period, kept.booked_from) == (plan_.id, hours(2.5, 5), hours(2, 5).start)
    after = revised(ledger, replace(task, period=hours(1, 5), keeps_start=False))
    assert isinstance(after, Snapshot)
    assert [allocation.period for allocation in on(after, "mine")] == [hours(1, 5)]


def extension(ledger: PlainLedger, name: str, until: float) -> Extension:
    end = hours(0, until).end
    return Extension(name, ledger.demands[name], ledger.of_reservation(name), end, NOW)


def test_plans_make_way_for_a_longer_lease_on_its_own_host(ledger: PlainLedger):
    book(ledger, "running", parts(1, 3), hours(-1, 2), {1: 1}, AllocationState.HELD)
    book(ledger, "planned", parts(1, 2), hours(3, 5), {1: 1})
    after = do(ledger.snapshot(), extension(ledger, "running", 4), terms_of(ledger))
    assert isinstance(after, Snapshot)
    assert [(allocation.resource_id, allocation.period) for allocation in on(after, "running")] == [(1, hours(-1, 4))]
    assert [allocation.resource_id for allocation in on(after, "planned")] in ([2], [3])


@pytest.mark.parametrize("case", ["held", "named", "fixed", "unmatched"])
def test_a_longer_lease_is_refused_if_what_is_in_the_way_must_stay(ledger: PlainLedger, case: str):
    book(ledger, "running", whole(), hours(-1, 2), {1: 1}, AllocationState.HELD)
    if case != "unmatched":
        state = AllocationState.HELD if case == "held" else PLANNED
        book(ledger, "other", whole(named=[1] if case == "named" else []), hours(3, 5), {1: 1}, state)
    else:
        ledger.demands["running"] = whole(rack="b")  # its host has got other properties
    terms = terms_of(ledger, fixed_until=hours(0, 3).end if case == "fixed" else None)
    outcome = do(ledger.snapshot(), extension(ledger, "running", 4), terms)
    assert isinstance(outcome, NoRoom)
    assert outcome.task.reservation_id == "running"


def test_a_lease_lasts_longer_on_a_host_that_takes_no_new_leases(ledger: PlainLedger):
    book(ledger, "running", whole(), hours(-1, 2), {1: 1}, AllocationState.HELD)
    ledger.resources[1] = replace(ledger.resources[1], reservable=False)
    assert isinstance(do(ledger.snapshot(), extension(ledger, "running", 4), terms_of(ledger)), Snapshot)
