"""The ledger: free resources, kept and moved allocations, and the history after a release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pytest
from sqlalchemy import insert

from tenure.domain.allocation import Allocation, Spread
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.errors import TooManyConflicts
from tenure.domain.lease import AllocationState, Lease
from tenure.domain.period import ENDLESS, TICK, Period
from tenure.domain.requirement import Comparison, Expression
from tenure.store.allocations import SAMPLE
from tenure.store.conditions import OVERDUE_MATTERS
from tenure.store.conflict import Overtaken
from tenure.store.database import Database, Transaction
from tenure.store.tables import AllocationRow
from tests.store.rows import HELD, HOUR, PLANNED, RELEASED, add_hosts, add_lease, allocations_of, close, demand, hours
from tests.support.world import NOW

T = TypeVar("T")

#: Changes an allocation as it was read; the number is the id of another resource.
Change = Callable[[Transaction, Allocation, int], None]
CHANGES: dict[str, Change] = {
    "move": lambda tx, allocation, other: tx.allocations.move(allocation, other, start=allocation.period.start),
    "shrink": lambda tx, allocation, _other: tx.allocations.shrink(allocation, 1, demand()),
    "drop": lambda tx, allocation, _other: tx.allocations.drop(allocation),
    "let go": lambda tx, allocation, _other: tx.allocations.let_go(allocation, 0, now=NOW),
}


def ask(db: Database, question: Callable[[Transaction], T]) -> T:
    with db.read() as tx:
        return question(tx)


def free(db: Database, start: float = 1, end: float = 2, *, turn: int = 0, now=NOW, count: int = 1, **how) -> list[int]:
    found = ask(db, lambda tx: tx.allocations.candidates(demand(count), hours(start, end), now=now, turn=turn, **how))
    return [candidate.resource_id for candidate in found]


def reservation_of(lease: Lease) -> str:
    return lease.reservations[0].id


class TestCandidates:
    @pytest.mark.parametrize("state", [PLANNED, HELD, RELEASED])
    @pytest.mark.parametrize(
        ("start", "end", "is_free"),
        [
            (0, 1, True),
            (2, 3, True),
            (1, 2, False),
            (0, 1.01, False),
            (1.99, 3, False),
            (1.2, 1.3, False),
            (0, 9, False),
        ],
    )
    def test_overlapping_allocation_of_any_state_blocks(
        self, db: Database, state: AllocationState, start: float, end: float, is_free: bool
    ):
        """Also an allocation that was released early: it is trimmed, so the rest of it was used."""
        host, other = add_hosts(db, 2)
        add_lease(db, host, state=state)
        assert free(db, start, end) == ([host, other] if is_free else [other])

    def test_candidates_have_the_bounds_of_their_free_stretch(self, db: Database):
        host, empty = add_hosts(db, 2)
        for start, end in ((1, 2), (3, 4), (8, 9), (11, 12)):
            add_lease(db, host, start=start, end=end)
        found = ask(db, lambda tx: tx.allocations.candidates(demand(2), hours(5, 7), now=NOW, turn=0))
        assert [
            (candidate.resource_id, candidate.version, candidate.free_since, candidate.free_until)
            for candidate in found
        ] == [
            (host, 1, NOW + 4 * HOUR, NOW + 8 * HOUR),
            (empty, 1, None, None),
        ]

    def test_the_walk_begins_at_the_turn_and_ends_before_it(self, db: Database):
        ids = add_hosts(db, 5)
        for turn in range(ids[0], ids[-1] + 1):
            expected = [number for number in ids if number >= turn] + [number for number in ids if number < turn]
            assert free(db, turn=turn) == expected

    def test_special_resources_come_last(self, db: Database):
        ids = add_hosts(db, 4, [{"gpu": "a100", "nvme": "yes"}, {"gpu": "a100"}, {"gpu": "no"}])
        assert free(db) == [ids[2], ids[3], ids[1], ids[0]]
        assert free(db, turn=ids[3]) == [ids[3], ids[2], ids[1], ids[0]]

    def test_number_of_candidates_is_bounded(self, db: Database):
        ids = add_hosts(db, SAMPLE + 10)
        assert free(db, count=3, turn=ids[30]) == [*ids[30:], *ids[:30]][: SAMPLE + 3]

    def test_unreservable_resources_and_other_types_are_left_out(self, db: Database):
        first, second, third = add_hosts(db, 3)
        add_hosts(db, 2, resource_type="something:else")
        db.write(lambda tx: close(tx, second))
        assert free(db) == [first, third]
        assert free(db, without=[third]) == [first]

    def test_own_allocations_can_be_ignored(self, db: Database):
        [host] = add_hosts(db, 1)
        lease = add_lease(db, host)
        assert free(db) == []
        assert free(db, ignoring=reservation_of(lease)) == [host]
        assert free(db, ignoring="somebody else") == []

    def test_overdue_resource_is_taken_for_periods_that_begin_soon(self, db: Database):
        [host] = add_hosts(db, 1)
        add_lease(db, host, start=0, end=1, state=HELD)
        late = NOW + HOUR
        soon = OVERDUE_MATTERS / HOUR
        assert free(db, 1, 2, now=late - timedelta(microseconds=1)) == [host]
        assert free(db, 1, 2, now=late) == []
        assert free(db, 1 + soon, 3, now=late) == []
        assert free(db, 1.01 + soon, 3, now=late) == [host]


class TestRevalidation:
    def test_still_good_returns_versions(self, db: Database):
        mine, taken, plain, closed = add_hosts(db, 4, [{"gpu": "a"}, {"gpu": "a"}, {}, {"gpu": "a"}])
        lease = add_lease(db, mine, taken, plain, closed)
        add_lease(db, taken, start=2, end=3)
        db.write(lambda tx: close(tx, closed))
        asked = demand(4, expression=Expression((Comparison("==", "gpu", "a"),)))

        def good(start: float, end: float, keep_unreservable: bool) -> dict[int, int]:
            return ask(
                db,
                lambda tx: tx.allocations.still_good(
                    asked,
                    hours(start, end),
                    dict.fromkeys([mine, taken, plain, closed], 1),
                    ignoring=reservation_of(lease),
                    keep_unreservable=keep_unreservable,
                ),
            )

        assert good(1, 2, False) == {mine: 1, taken: 1}
        assert good(1, 2, True) == {mine: 1, taken: 1, closed: 2}
        assert good(1, 3, False) == {mine: 1}

    def test_still_good_without_resources_is_empty(self, db: Database):
        assert ask(
            db,
            lambda tx: tx.allocations.still_good(demand(), hours(1, 2), {}, ignoring="", keep_unreservable=True),
        ) == {}  # fmt: skip

    def test_a_refusal_counts_every_stage(self, db: Database):
        ids = add_hosts(db, 6, [{"gpu": "a"}] * 4)
        add_lease(db, ids[0])
        db.write(lambda tx: close(tx, ids[5]))
        asked = demand(6, expression=Expression((Comparison("==", "gpu", "a"),)))
        stages = ask(db, lambda tx: tx.allocations.stages(asked, hours(1, 2), now=NOW, ignoring=None, without=[ids[1]]))
        assert [(stage.stage, stage.count) for stage in stages] == [("reservable", 5), ("matching", 4), ("free", 2)]


class TestPlansInTheWay:
    def test_fewest_plans_first_and_no_held_resources(self, db: Database):
        two, single, held, none = add_hosts(db, 4)
        plans = [add_lease(db, two, start=start, end=start + 1) for start in (1, 2)]
        plans.append(add_lease(db, single, start=1, end=3))
        add_lease(db, held, start=1, end=2)
        add_lease(db, held, start=2, end=3, state=HELD)
        add_lease(db, two, start=3, end=4)  # only touches
        found = ask(db, lambda tx: tx.allocations.blocked_by_plans(demand(), hours(1, 3), now=NOW, limit=9))
        assert [(number, version) for number, (version, _) in found.items()] == [(single, 1), (two, 1)]
        moved = {plan.reservation_id for _, blocking in found.values() for plan in blocking}
        assert moved == {reservation_of(lease) for lease in plans}
        assert none not in found
        limited = ask(db, lambda tx: tx.allocations.blocked_by_plans(demand(), hours(1, 3), now=NOW, limit=1))
        assert list(limited) == [single]

    def test_own_parts_do_not_block(self, db: Database):
        first, second = add_hosts(db, 2)
        mine = add_lease(db, first, second, state=HELD)
        theirs = add_lease(db, first, start=2, end=3)

        def blocked(**how) -> dict[int, list[str]]:
            found = ask(db, lambda tx: tx.allocations.blocked_by_plans(demand(), hours(1, 3), now=NOW, limit=9, **how))
            return {number: [plan.reservation_id for plan in plans] for number, (_, plans) in found.items()}

        assert blocked() == {}
        assert blocked(ignoring=reservation_of(mine)) == {first: [reservation_of(theirs)]}
        assert blocked(ignoring=reservation_of(mine), only=[second]) == {}
        assert blocked(ignoring=reservation_of(mine), without=[first]) == {}


class TestMoving:
    def test_plan_moves_to_another_resource(self, db: Database):
        first, second = add_hosts(db, 2)
        lease = add_lease(db, first)
        [plan] = allocations_of(db, lease)
        db.write(lambda tx: tx.allocations.move(plan, second, start=plan.period.start))
        [moved] = allocations_of(db, lease)
        assert (moved.id, moved.resource_id, moved.period, moved.state) == (plan.id, second, plan.period, PLANNED)

    @pytest.mark.parametrize("meanwhile", ["moved", "pinned", "removed"])
    def test_changed_allocation_is_not_moved(self, db: Database, meanwhile: str):
        first, second, third = add_hosts(db, 3)
        lease = add_lease(db, first)
        [plan] = allocations_of(db, lease)
        {
            "moved": lambda: db.write(lambda tx: tx.allocations.move(plan, third, start=plan.period.start)),
            "pinned": lambda: db.write(lambda tx: tx.allocations.pin([plan.reservation_id])),
            "removed": lambda: db.write(lambda tx: tx.allocations.remove([plan.id])),
        }[meanwhile]()
        before = allocations_of(db, lease)

        def move(tx: Transaction) -> None:
            with pytest.raises(Overtaken):
                tx.allocations.move(plan, second, start=plan.period.start)

        db.write(move)
        assert allocations_of(db, lease) == before

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_allocation_that_was_reduced_since_it_was_read_is_not_changed(self, db: Database, change: Change):
        first, second = add_hosts(db, 2, capacity=Capacity({WHOLE: 3}))
        reservation_id = reservation_of(add_lease(db))
        db.write(lambda tx: tx.allocations.add(reservation_id, {first: 3}, hours(1, 2), demand(), state=PLANNED))
        [plan] = ask(db, lambda tx: tx.allocations.of_reservations([reservation_id]))
        db.write(lambda tx: tx.allocations.shrink(plan, 2, demand()))
        [reduced] = ask(db, lambda tx: tx.allocations.of_reservations([reservation_id]))
        assert (plan.units, reduced.units) == (3, 2)

        def change_as_read(tx: Transaction) -> None:
            with pytest.raises(Overtaken):
                change(tx, plan, second)

        db.write(change_as_read)
        assert ask(db, lambda tx: tx.allocations.of_reservations([reservation_id])) == [reduced]

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_allocation_with_the_id_of_a_deleted_one_is_not_taken_for_it(self, db: Database, change: Change):
        """SQLite gives the id of the newest row again after its deletion."""
        first, second = add_hosts(db, 2)
        deleted = add_lease(db, first)
        [plan] = allocations_of(db, deleted)
        lease = add_lease(db, second)
        db.write(lambda tx: tx.allocations.remove_planned([reservation_of(deleted), reservation_of(lease)]))
        same = insert(AllocationRow).values(
            id=plan.id,
            resource_id=first,
            reservation_id=reservation_of(lease),
            starts_at=plan.period.start,
            ends_at=plan.period.end,
            state=PLANNED.value,
            exclusive=plan.exclusive,
            units=plan.units,
            amounts=dict(plan.amounts),
        )
        db.write(lambda tx: tx.session.execute(same))
        before = allocations_of(db, lease)

        def change_deleted(tx: Transaction) -> None:
            with pytest.raises(Overtaken):
                change(tx, plan, second)

        db.write(change_deleted)
        assert allocations_of(db, lease) == before

    def test_reschedule(self, db: Database):
        first, second, other = add_hosts(db, 3)
        lease, untouched = add_lease(db, first, second), add_lease(db, other)
        mine = allocations_of(db, lease)
        ids = [allocation.id for allocation in mine]

        def becomes(change: Callable[[Transaction], None], start: float, end: float) -> None:
            db.write(change)
            assert {allocation.period for allocation in allocations_of(db, lease)} == {hours(start, end)}

        becomes(lambda tx: tx.allocations.lengthen(mine, NOW + 5 * HOUR, now=NOW), 1, 5)
        becomes(lambda tx: tx.allocations.lengthen(mine, NOW + 4 * HOUR, now=NOW), 1, 5)
        becomes(lambda tx: tx.allocations.shorten(ids, NOW + 4 * HOUR), 1, 4)
        becomes(lambda tx: tx.allocations.shorten(ids, NOW + 5 * HOUR), 1, 4)
        becomes(lambda tx: tx.allocations.shorten(ids, start=NOW + 2 * HOUR), 2, 4)
        becomes(lambda tx: tx.allocations.shorten(ids, NOW + 5 * HOUR, start=NOW + HOUR), 2, 4)
        becomes(lambda tx: tx.allocations.reschedule(mine, hours(5, 7)), 5, 7)
        db.write(lambda tx: tx.allocations.lengthen([], NOW + 9 * HOUR, now=NOW))
        assert [allocation.period for allocation in allocations_of(db, untouched)] == [hours(1, 2)]


class TestVerifying:
    """The check of the gains before the commit; in these tests nothing has checked before."""

    def test_new_allocation_must_not_overlap(self, db: Database):
        host, other = add_hosts(db, 2)
        first, second = add_lease(db, host), add_lease(db, other)
        [mine] = allocations_of(db, first)
        [theirs] = allocations_of(db, second)
        new = reservation_of(first)
        for give in (
            lambda tx: tx.allocations.add(new, {other: 1}, hours(1.9, 3), demand()),
            lambda tx: tx.allocations.move(mine, other, start=mine.period.start),
        ):
            with pytest.raises(TooManyConflicts):
                db.write(give)
        assert allocations_of(db, first, second) == [mine, theirs]
        db.write(lambda tx: tx.allocations.add(new, {other: 1}, hours(2, 3), demand()))

    def test_extended_or_rescheduled_allocation_must_not_overlap(self, db: Database):
        [host] = add_hosts(db, 1)
        first, second = add_lease(db, host), add_lease(db, host, start=3, end=4)
        before = allocations_of(db, first, second)
        mine = before[:1]
        for give in (
            lambda tx: tx.allocations.lengthen(mine, NOW + 3 * HOUR + TICK, now=NOW),
            lambda tx: tx.allocations.reschedule(mine, hours(3.5, 5)),
        ):
            with pytest.raises(TooManyConflicts):
                db.write(give)
        assert allocations_of(db, first, second) == before
        db.write(lambda tx: tx.allocations.lengthen(mine, NOW + 3 * HOUR, now=NOW))

    def test_parts_must_not_exceed_the_capacity(self, db: Database):
        [host] = add_hosts(db, 1, capacity=Capacity({"VCPU": 8}))
        part = replace(demand(), exclusive=False, amounts=Capacity({"VCPU": 1}), spread=Spread.ANY)
        lease = add_lease(db)
        db.write(lambda tx: tx.allocations.add(reservation_of(lease), {host: 7}, hours(1, 2), part))
        with pytest.raises(TooManyConflicts):
            db.write(lambda tx: tx.allocations.add(reservation_of(lease), {host: 2}, hours(1.5, 3), part))
        db.write(lambda tx: tx.allocations.add(reservation_of(lease), {host: 1}, hours(1.5, 3), part))
        with pytest.raises(TooManyConflicts):
            db.write(lambda tx: tx.allocations.add(reservation_of(lease), {host: 1}, hours(2.5, 3), demand()))

    def test_equal_parts_add_up(self, db: Database):
        [host] = add_hosts(db, 1, capacity=Capacity({"VCPU": 8}))
        part = replace(demand(), exclusive=False, amounts=Capacity({"VCPU": 1}), spread=Spread.ANY)
        first, second, third = (reservation_of(add_lease(db)) for _ in range(3))
        db.write(lambda tx: tx.allocations.add(first, {host: 4}, hours(1, 2), part))
        db.write(lambda tx: tx.allocations.add(second, {host: 4}, hours(1, 2), part))
        with pytest.raises(TooManyConflicts):
            db.write(lambda tx: tx.allocations.add(third, {host: 4}, hours(1, 2), part))

    def test_resource_released_in_the_same_transaction_is_free(self, db: Database):
        [host] = add_hosts(db, 1)
        first, second = add_lease(db, host), add_lease(db)

        def swap(tx: Transaction) -> None:
            tx.defer_checks()
            tx.allocations.add(reservation_of(second), {host: 1}, hours(1, 2), demand())
            tx.allocations.remove_planned([reservation_of(first)])

        db.write(swap)
        assert [allocation.resource_id for allocation in allocations_of(db, second)] == [host]


class TestGivingBack:
    def test_pin_holds_only_the_plans_of_these_reservations(self, db: Database):
        first, second = add_hosts(db, 2)
        lease, other = add_lease(db, first), add_lease(db, second)
        db.write(lambda tx: tx.allocations.pin([reservation_of(lease)]))
        assert [allocation.state for allocation in allocations_of(db, lease, other)] == [HELD, PLANNED]
        both = [reservation_of(lease), reservation_of(other)]
        assert ask(db, lambda tx: tx.allocations.holding(both)) == {reservation_of(lease)}

    def test_released_allocation_is_trimmed_and_kept_as_history(self, db: Database):
        ids = add_hosts(db, 3)
        begun = add_lease(db, ids[0], start=0, end=3, state=HELD)
        over = add_lease(db, ids[1], start=0, end=1, state=HELD)
        not_begun = add_lease(db, ids[2], start=2, end=3, state=HELD)
        leases = [begun, over, not_begun]
        db.write(lambda tx: tx.allocations.release([reservation_of(lease) for lease in leases], until=NOW + 2 * HOUR))
        assert [(allocation.period, allocation.state) for allocation in allocations_of(db, *leases)] == [
            (hours(0, 2), RELEASED),
            (hours(0, 1), RELEASED),
        ]
        assert free(db, 2, 3) == ids

    def test_release_trims_to_the_microsecond(self, db: Database):
        tick = TICK / HOUR
        first, second = add_hosts(db, 2)
        longer = add_lease(db, first, start=0, end=2 + tick, state=HELD)
        just_begun = add_lease(db, second, start=2 - tick, end=3, state=HELD)
        leases = [longer, just_begun]
        db.write(lambda tx: tx.allocations.release([reservation_of(lease) for lease in leases], until=NOW + 2 * HOUR))
        assert [allocation.period for allocation in allocations_of(db, *leases)] == [hours(0, 2), hours(2 - tick, 2)]
        assert free(db, 2, 3) == [first, second]

    def test_kept_allocation_can_be_let_go_at_its_start(self, db: Database):
        def let_go(allocation: Allocation, units: int, tx: Transaction) -> None:
            tx.allocations.let_go(allocation, units, now=NOW)

        [host] = add_hosts(db, 1)
        lease = add_lease(db, start=0, end=1)
        whole = Period(NOW, ENDLESS)
        kept = AllocationState.KEPT
        db.write(lambda tx: tx.allocations.add(reservation_of(lease), {host: 1}, whole, demand(), state=kept))
        [there] = allocations_of(db, lease)
        db.write(partial(let_go, there, 0))
        [left] = allocations_of(db, lease)
        assert (left.units, left.period, left.state) == (1, Period(NOW, NOW + TICK), RELEASED)

    def test_remove_planned_keeps_held_allocations(self, db: Database):
        first, second = add_hosts(db, 2)
        planned, held = add_lease(db, first), add_lease(db, second, state=HELD)
        both = [reservation_of(planned), reservation_of(held)]
        db.write(lambda tx: tx.allocations.release([both[0]], until=NOW))
        db.write(lambda tx: tx.allocations.remove_planned(both))
        assert [allocation.state for allocation in allocations_of(db, planned, held)] == [HELD]

    def test_empty_calls_change_nothing(self, db: Database):
        [host] = add_hosts(db, 1)
        lease = add_lease(db, host, state=HELD)

        def work(tx: Transaction) -> None:
            tx.allocations.release([], until=NOW)
            tx.allocations.remove([])
            tx.allocations.remove_planned([])
            tx.allocations.pin([])
            tx.allocations.add(reservation_of(lease), {}, hours(1, 2), demand())
            assert tx.allocations.with_versions([]) == ([], {})
            assert tx.allocations.of_reservations([]) == []
            assert tx.allocations.holding([]) == set()

        db.write(work)
        assert [allocation.state for allocation in allocations_of(db, lease)] == [HELD]


class TestBookings:
    def test_allocations_come_with_the_versions_of_their_resources(self, db: Database):
        first, second, third = add_hosts(db, 3)
        lease = add_lease(db, first, second, start=1, end=2)
        over = add_lease(db, third, state=RELEASED)
        db.write(lambda tx: tx.resources.raise_versions({second: 1}))
        ids = [reservation_of(lease), reservation_of(over)]
        found, versions = ask(db, lambda tx: tx.allocations.with_versions(ids))
        assert [allocation.resource_id for allocation in found] == [first, second]
        assert versions == {first: 1, second: 2}

    def test_bookings_of_live_leases_or_of_one_lease(self, db: Database):
        first, second = add_hosts(db, 2)
        later = add_lease(db, first, start=5, end=6)
        running = add_lease(db, first, start=0, end=2, state=HELD)
        ended = add_lease(db, second, start=0, end=1, state=RELEASED)
        gone = add_lease(db, second, start=3, end=4)
        db.write(lambda tx: tx.leases.change(gone, now=NOW, deleted_at=NOW))

        def listed(hours_from_now: float = 0, **whose) -> list[tuple[int, str]]:
            now = NOW + hours_from_now * HOUR
            found = ask(db, lambda tx: tx.allocations.bookings([first, second], now=now, **whose))
            return [(booking.resource_id, booking.lease_id) for booking in found]

        assert listed() == [(first, running.id), (first, later.id)]
        assert listed(2.5) == [(first, later.id)]
        assert listed(9, lease_id=ended.id) == [(second, ended.id)]
        assert listed(9, reservation_id=reservation_of(running)) == [(first, running.id)]
        assert listed(lease_id=ended.id, reservation_id=reservation_of(running)) == []
        assert listed(lease_id=gone.id) == []

    def test_booked_resources_by_external_id(self, db: Database):
        ids = add_hosts(db, 5)
        past = add_lease(db, ids[2], start=-2, end=-1, state=RELEASED)
        lease, other = add_lease(db, *ids[:3]), add_lease(db, ids[4])
        gone = add_lease(db, ids[3], start=3, end=4)
        db.write(lambda tx: tx.leases.change(gone, now=NOW, deleted_at=NOW))

        def booked(lease_id: str | None = None, reservation_id: str | None = None) -> dict[str, list[int]]:
            return ask(
                db,
                lambda tx: tx.allocations.booked_resources(
                    "physical:host", now=NOW, lease_id=lease_id, reservation_id=reservation_id
                ),
            )

        names = ask(db, lambda tx: {id: resource.external_id for id, resource in tx.resources.by_ids(ids).items()})
        assert booked(lease.id) == {names[id]: [id] for id in ids[:3]}
        assert booked(reservation_id=reservation_of(other)) == {names[ids[4]]: [ids[4]]}
        assert booked(lease.id, reservation_of(other)) == booked(gone.id) == {}
        db.write(lambda tx: tx.resources.retire(tx.resources.by_ids([ids[2]])[ids[2]]))
        assert booked(past.id) == {names[ids[2]]: [ids[2]]}
        assert list(booked(lease.id)) == [names[id] for id in ids[:3]]

    def test_predecessors(self, db: Database):
        ids = add_hosts(db, 4)
        add_lease(db, ids[0], start=0, end=1, state=HELD)
        add_lease(db, ids[1], start=0, end=1, state=RELEASED)
        add_lease(db, ids[2], start=0, end=1)
        add_lease(db, ids[3], start=5, end=6, state=HELD)
        mine = add_lease(db, *ids)
        assert ask(db, lambda tx: tx.allocations.predecessors([reservation_of(mine)], now=NOW + HOUR)) == [ids[0]]
