"""What a plan changes: what is new, what is otherwise, what is gone, and on which versions it depends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.domain.allocation import Allocation
from tenure.domain.lease import AllocationState
from tenure.planning.changes import changes_of
from tenure.planning.snapshot import Snapshot
from tests.planning.situations import NOW, book, host, hours, parts, terms_of, whole
from tests.support.plain_ledger import PlainLedger

TWO = parts(2)


@pytest.fixture
def ledger() -> PlainLedger:
    """Two hosts with two plans on the first."""
    ledger = PlainLedger.of([host(1), replace(host(2), version=7)], NOW)
    book(ledger, "first", TWO, hours(2, 4), {1: 2})
    book(ledger, "second", parts(), hours(2, 4), {1: 1})
    return ledger


def test_nothing_changes_without_a_plan(ledger: PlainLedger):
    before = ledger.snapshot()
    plans = ledger.of_reservation("first")
    for after in (before, before.without(plans).with_(plans)):
        assert not changes_of(before, after)
        assert not after.has_moved


def test_new_allocations_depend_on_the_version_of_their_host(ledger: PlainLedger):
    before = ledger.snapshot()
    after = before.allocate("new", whole(), hours(2, 3), {2: 1})
    changes = changes_of(before, after)
    [added] = changes.added
    assert (added.resource_id, added.reservation_id, added.period, added.units) == (2, "new", hours(2, 3), 1)
    assert added.id < 0
    assert changes.versions == {2: 7}
    assert not changes.changed
    assert not after.has_moved


#: What an allocation of two units from hour two to four may become, and whether that takes something that it had not.
CHANGES = {
    "elsewhere": (lambda allocation: replace(allocation, resource_id=2), True),
    "longer": (lambda allocation: replace(allocation, period=hours(2, 5)), True),
    "earlier": (lambda allocation: replace(allocation, period=hours(1, 3)), True),
    "larger": (lambda allocation: replace(allocation, units=3, amounts=TWO.amounts.times(3)), True),
    "shorter": (lambda allocation: replace(allocation, period=hours(2, 3)), False),
    "later": (lambda allocation: replace(allocation, period=hours(3, 4)), False),
    "smaller": (lambda allocation: replace(allocation, units=1, amounts=TWO.amounts), False),
    "held": (lambda allocation: replace(allocation, state=AllocationState.HELD), False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_only_what_takes_more_depends_on_a_version(ledger: PlainLedger, name: str):
    change, takes_more = CHANGES[name]
    before = ledger.snapshot()
    [plan] = ledger.of_reservation("first")
    now: Allocation = change(plan)
    changes = changes_of(before, before.without([plan]).with_([now]))
    assert list(changes.changed) == [(plan, now)]
    assert not changes.added
    assert not changes.dropped
    versions = {1: 1, 2: 7}
    assert changes.versions == ({now.resource_id: versions[now.resource_id]} if takes_more else {})


def test_what_is_gone_is_dropped(ledger: PlainLedger):
    before = ledger.snapshot()
    plans = ledger.of_reservation("first")
    changes = changes_of(before, before.without(plans))
    assert tuple(changes.dropped) == plans
    assert not changes.versions


def test_the_allocations_of_reservations_after_the_changes(ledger: PlainLedger):
    before = ledger.snapshot()
    [first], [second] = ledger.of_reservation("first"), ledger.of_reservation("second")
    moved = replace(first, resource_id=2)
    after = before.without([first, second]).with_([moved]).allocate("first", TWO, hours(2, 4), {1: 1})
    changes = changes_of(before, after)
    assert changes.applied_to([second], {"second"}) == []
    assert [(allocation.resource_id, allocation.units) for allocation in changes.applied_to([first], {"first"})] == [
        (2, 2),
        (1, 1),
    ]


def test_a_later_change_of_a_new_allocation_is_one_new_allocation(ledger: PlainLedger):
    before = ledger.snapshot()
    after = before.allocate("new", whole(), hours(2, 3), {2: 1})
    [new] = [allocation for allocation in after.on(after.row_of(2)) if allocation.id < 0]
    after = after.without([new]).with_([replace(new, period=hours(5, 6))])
    [added] = changes_of(before, after).added
    assert added.period == hours(5, 6)
    assert not changes_of(before, after.without([added]))


class TestSnapshots:
    def test_it_does_not_change(self, ledger: PlainLedger):
        before = ledger.snapshot()
        plans = ledger.of_reservation("first")
        before.without(plans)
        before.allocate("new", whole(), hours(2, 3), {2: 1})
        assert before.on(before.row_of(1)) == ledger.snapshot().on(before.row_of(1))
        assert before.on(before.row_of(2)) == ()

    def test_following_equals_reading_everything(self, ledger: PlainLedger):
        before = ledger.snapshot()
        [plan] = ledger.of_reservation("first")
        ledger.apply(changes_of(before, before.without([plan]).with_([replace(plan, resource_id=2)])))
        ledger.resources[3] = host(3)
        followed = before.following(
            {1, 2, 3},
            list(ledger.resources.values()),
            ledger.listed(),
            NOW,
        )
        assert content(followed) == content(ledger.snapshot())
        assert content(followed.consolidated(NOW)) == content(ledger.snapshot())
        gone = followed.following({3}, [], [], NOW)
        assert not gone.catalogue.of_type("host")[gone.row_of(3)]

    def test_extending_equals_reading_everything(self, ledger: PlainLedger):
        before = ledger.snapshot()
        for reservation_id in ("third", "first"):  # the first one has an allocation there already
            now = ledger.snapshot()
            ledger.apply(changes_of(now, now.allocate(reservation_id, whole(), hours(6, 7), {1: 1, 2: 1})))
        versions = {resource.id: resource.version for resource in ledger.resources.values()}
        first, third = (
            [use for use in ledger.listed() if use.reservation_id == reservation_id]
            for reservation_id in ("first", "third")
        )
        extended = before.extended({**versions, 99: 1}, {"first", "third"}, [*first, *third], NOW)
        again = extended.extended({1: versions[1]}, {"third"}, third, NOW)
        for snapshot in (extended, again, again.consolidated(NOW)):
            assert content(snapshot) == content(ledger.snapshot())

    def test_what_others_are_about_to_get_is_in_the_way_and_does_not_move(self, ledger: PlainLedger):
        claimed = ledger.snapshot().allocate("claimed", whole(), hours(2, 3), {2: 1})
        new = changes_of(ledger.snapshot(), claimed).added
        beside = ledger.snapshot().beside(new)
        [there] = beside.on(beside.row_of(2))
        assert there.state is AllocationState.HELD
        assert not terms_of(ledger).may_move(there)
        more = beside.allocate("mine", whole(), hours(5, 6), {2: 1})
        [mine] = changes_of(beside, more).added
        assert mine.reservation_id == "mine"

    def test_an_overdue_allocation_is_in_the_way_for_a_while(self):
        ledger = PlainLedger.of([host(1)], NOW)
        book(ledger, "late", whole(), hours(-2, -1), {1: 1}, AllocationState.HELD)
        snapshot = ledger.snapshot()
        assert [snapshot.room_on(0, whole(), hours(start, 2)) for start in (0, 0.25, 0.26)] == [0, 0, 1]
        assert snapshot.room_on(0, whole(), hours(0, 2), overdue=False) == 1


def content(snapshot: Snapshot) -> dict[int, tuple[int, tuple[Allocation, ...]]]:
    """Return the version and the allocations of each resource."""
    ids = snapshot.catalogue.ids
    return {
        ids[row]: (int(snapshot.versions[row]), tuple(sorted(snapshot.on(row), key=lambda allocation: allocation.id)))
        for row in range(len(snapshot.catalogue))
    }


def test_a_plan_that_has_an_allocation_twice_is_a_mistake(ledger: PlainLedger):
    [plan], before = ledger.of_reservation("second"), ledger.snapshot()
    twice = before.without(ledger.of_reservation("first")).with_([replace(plan, resource_id=2)])
    with pytest.raises(RuntimeError, match="twice, on resources 1 and 2"):
        changes_of(before, twice)


def test_a_plan_that_copies_an_allocation_of_an_untouched_resource_is_a_mistake(ledger: PlainLedger):
    [plan], before = ledger.of_reservation("second"), ledger.snapshot()
    copied = before.with_([replace(plan, resource_id=2)])
    with pytest.raises(RuntimeError, match="of a resource that it has not changed"):
        changes_of(before, copied)
