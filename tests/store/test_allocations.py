"""The ledger: free resources, kept and changed allocations, and the history after a release."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

import pytest
from sqlalchemy import delete, event, insert, select

from tenure.domain.allocation import Allocation, Demand, Spread
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.changes import Changes
from tenure.domain.errors import TooManyConflicts
from tenure.domain.lease import AllocationState, Lease
from tenure.domain.period import ENDLESS, OVERDUE_MATTERS, TICK, Period
from tenure.domain.requirement import Comparison, Expression
from tenure.planning import revisions
from tenure.planning.candidates import SAMPLE
from tenure.planning.changes import changes_of
from tenure.planning.extensions import extend
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import Extension, Revision
from tenure.store.allocations import FEW_ROWS
from tenure.store.conflict import Overtaken
from tenure.store.database import Database, Transaction
from tenure.store.tables import AllocationRow, FreedRow
from tests.store.rows import (
    HELD,
    HOUR,
    PLANNED,
    RELEASED,
    Undone,
    add_hosts,
    add_lease,
    allocations_of,
    close,
    demand,
    hours,
)
from tests.support import snapshots
from tests.support.changing import added, delayed, dropped, moved, rescheduled, shrunk, together
from tests.support.snapshots import snapshot_of
from tests.support.world import HOST, NOW

T = TypeVar("T")

GPU_IS_A = Expression((Comparison("==", "gpu", "a"),))
#: A demand for amounts of a host that others share.
SHARED = replace(demand(), exclusive=False, amounts=Capacity({"VCPU": 1}), spread=Spread.ANY)
EIGHT = Capacity({"VCPU": 8})

#: Changes an allocation as it was read in a transaction; ``other`` is the id of another resource.
Change = Callable[..., None]
CHANGES: dict[str, Change] = {
    "move": lambda tx, allocation, other: apply(tx, moved(allocation, other)),
    "shrink": lambda tx, allocation, other: apply(tx, shrunk(allocation, 1, demand())),
    "reschedule": lambda tx, allocation, other: apply(tx, rescheduled(allocation, to=hours(5, 6))),
    "drop": lambda tx, allocation, other: apply(tx, dropped(allocation)),
    "reduce kept": lambda tx, allocation, other: tx.allocations.reduce_kept(allocation, 0, now=NOW),
}

#: What else may happen to an allocation after it was read.
MEANWHILE: dict[str, Change] = {
    "move": lambda tx, allocation, other: apply(tx, moved(allocation, other)),
    "shrink": lambda tx, allocation, other: apply(tx, shrunk(allocation, 2, demand())),
    "reschedule": lambda tx, allocation, other: apply(tx, rescheduled(allocation, to=hours(1, 3))),
    "drop": lambda tx, allocation, other: apply(tx, dropped(allocation)),
    "pin": lambda tx, allocation, other: tx.allocations.pin([allocation.reservation_id]),
}


def ask(db: Database, question: Callable[[Transaction], T]) -> T:
    with db.read() as tx:
        return question(tx)


def apply(tx: Transaction, changes: Changes) -> None:
    tx.allocations.apply(changes, now=NOW)


def write(db: Database, changes: Changes, *, now=NOW) -> None:
    """Apply changes in a transaction of their own."""
    db.write(lambda tx: tx.allocations.apply(changes, now=now))


def write_with_versions(db: Database, changes: Changes, *, now=NOW) -> None:
    """Apply changes as admission does: if the resources are as they were."""

    def work(tx: Transaction) -> None:
        tx.raise_versions(changes.versions)
        tx.allocations.apply(changes, now=now)

    db.write(work)


def free(db: Database, start: float = 1, end: float = 2, *, seed: int = 0, now=NOW, count: int = 1, **how) -> list[int]:
    found = ask(db, lambda tx: snapshots.find(tx, demand(count), hours(start, end), now=now, seed=seed, **how))
    return [candidate.resource_id for candidate in found]


def reservation_of(lease: Lease) -> str:
    return lease.reservations[0].id


def remove(tx: Transaction, ids: Collection[int]) -> None:
    tx.allocations.remove(ids)


def assert_overtaken(db: Database, change: Callable[[Transaction], None]) -> None:
    """Assert that a change of an allocation as it was read is refused."""

    def work(tx: Transaction) -> None:
        with pytest.raises(Overtaken):
            change(tx)
        raise Undone

    with pytest.raises(Undone):
        db.write(work)


def statements(db: Database, changes: Changes, *, now=NOW) -> int:
    """Apply changes; return the number of statements that this took."""
    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        found.append(statement)

    def work(tx: Transaction) -> None:
        tx.session.connection()
        event.listen(db.engine, "before_cursor_execute", note)
        try:
            tx.allocations.apply(changes, now=now)
        finally:
            event.remove(db.engine, "before_cursor_execute", note)

    db.write(work)
    return len(found)


def lapsed(db: Database) -> list[tuple[int, str, Period, int, Mapping[str, int], bool]]:
    """Return what has lapsed: resource, reservation, period, units, amounts, and whether of the whole resource."""
    rows = select(AllocationRow).where(AllocationRow.state == AllocationState.LAPSED.value).order_by(AllocationRow.id)
    return ask(
        db,
        lambda tx: [
            (
                row.resource_id,
                row.reservation_id,
                Period(row.starts_at, row.ends_at),
                row.units,
                row.amounts,
                row.exclusive,
            )
            for row in tx.session.execute(rows).scalars()
        ],
    )


def extension(tx: Transaction, lease: Lease, asked: Demand, until: datetime, *, now: datetime) -> Changes:
    """Return what a plan changes so that the allocations of a lease last longer."""
    before = snapshot_of(tx, now)
    mine = tuple(tx.allocations.of_reservations([reservation_of(lease)]))
    after = extend(before, Extension(reservation_of(lease), asked, mine, until, now), snapshots.terms(now))
    assert isinstance(after, Snapshot)
    return changes_of(before, after)


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
        found = ask(db, lambda tx: snapshots.find(tx, demand(2), hours(5, 7), now=NOW))
        assert [
            (candidate.resource_id, candidate.version, candidate.free_since, candidate.free_until)
            for candidate in found
        ] == [
            (host, 1, NOW + 4 * HOUR, NOW + 8 * HOUR),
            (empty, 1, None, None),
        ]

    def test_number_of_candidates_is_bounded(self, db: Database):
        """The walk begins at the seed, and goes on at the lowest id."""
        ids = add_hosts(db, SAMPLE + 10)
        assert free(db, count=3, seed=ids[30]) == sorted([*ids[30:], *ids[:30]][: SAMPLE + 3])

    def test_special_resources_are_left_for_last(self, db: Database):
        special = add_hosts(db, 4, [{"gpu": "a100", "nvme": "yes"}, {"gpu": "a100"}, {"gpu": "no"}])
        plain = add_hosts(db, SAMPLE, [{"gpu": "no"}] * SAMPLE, first=5)
        assert free(db) == sorted([*special[2:], *plain])[: SAMPLE + 1]
        found = ask(db, lambda tx: snapshots.find(tx, demand(SAMPLE + 9), hours(1, 2), now=NOW))
        scarcities = {candidate.resource_id: candidate.scarcity for candidate in found}
        assert scarcities[special[0]] > scarcities[special[1]] > scarcities[special[2]] == scarcities[plain[0]]

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


class TestStages:
    def test_a_refusal_counts_every_stage(self, db: Database):
        ids = add_hosts(db, 6, [{"gpu": "a"}] * 4)
        add_lease(db, ids[0])
        db.write(lambda tx: close(tx, ids[5]))
        asked = demand(6, expression=GPU_IS_A)
        found = ask(db, lambda tx: snapshots.stages(tx, asked, hours(1, 2), now=NOW, without=[ids[1]]))
        assert [(stage.stage, stage.count) for stage in found] == [("reservable", 5), ("matching", 4), ("free", 2)]


class TestRevisions:
    """Which plans of a lease that has not started stay where they are, and on which versions that depends."""

    @pytest.mark.parametrize(
        ("start", "end", "before", "kept"),
        [
            (1, 2, demand(4), ["mine", "taken"]),  # asks for something else: only what still matches
            (1, 2, demand(4, expression=GPU_IS_A), ["mine", "taken", "plain", "closed"]),  # asks for no more
            (1, 3, demand(4, expression=GPU_IS_A), ["mine"]),  # longer: only what is free
        ],
    )
    def test_plans_stay_where_they_still_fit(self, db: Database, start: float, end: float, before, kept: list[str]):
        ids = dict(
            zip(
                ("mine", "taken", "plain", "closed"),
                add_hosts(db, 4, [{"gpu": "a"}, {"gpu": "a"}, {}, {"gpu": "a"}]),
                strict=True,
            )
        )
        lease = add_lease(db, *ids.values())
        add_lease(db, ids["taken"], start=2, end=3, state=HELD)
        db.write(lambda tx: close(tx, ids["closed"]))

        def revised(tx: Transaction) -> Changes:
            snapshot = snapshot_of(tx, NOW)
            plans = tuple(tx.allocations.of_reservations([reservation_of(lease)]))
            asked, span = demand(1, 4, GPU_IS_A), hours(start, end)
            same = span == hours(1, 2)
            task = Revision(
                reservation_id=reservation_of(lease),
                before=before,
                demand=asked,
                plans=plans,
                period=span,
                keeps_start=True,
                adds_no_time=same,
            )
            after = revisions.revise(snapshot, task, snapshots.terms(NOW))
            assert isinstance(after, Snapshot)
            return changes_of(snapshot, after)

        changes = ask(db, revised)
        assert {allocation.resource_id for allocation in changes.dropped} == {
            ids[name] for name in ids.keys() - set(kept)
        }
        assert changes.versions == ({} if (start, end) == (1, 2) else {ids["mine"]: 1})
        write(db, changes)
        assert [allocation.resource_id for allocation in allocations_of(db, lease)] == [ids[name] for name in kept]
        assert {allocation.period for allocation in allocations_of(db, lease)} == {hours(start, end)}


class TestPlansInTheWay:
    def test_fewest_plans_first_and_no_held_resources(self, db: Database):
        two, single, held, none = add_hosts(db, 4)
        for start in (1, 2):
            add_lease(db, two, start=start, end=start + 1)
        add_lease(db, single, start=1, end=3)
        add_lease(db, held, start=1, end=2)
        add_lease(db, held, start=2, end=3, state=HELD)
        add_lease(db, two, start=3, end=4)  # only touches
        found = ask(db, lambda tx: snapshots.blocked_by_plans(tx, demand(), hours(1, 3), now=NOW))
        assert found == [single, two]
        assert none not in found

    def test_own_parts_do_not_move(self, db: Database):
        """They go away by themselves if they are to make room."""
        first, second = add_hosts(db, 2)
        mine, theirs = add_lease(db, first, second), add_lease(db, first, start=2, end=3)

        def blocked(**how) -> list[int]:
            return ask(db, lambda tx: snapshots.blocked_by_plans(tx, demand(), hours(1, 3), now=NOW, **how))

        assert blocked() == [second, first]
        assert blocked(asking=reservation_of(mine)) == []
        assert blocked(asking=reservation_of(theirs)) == [second]
        assert blocked(only=[first]) == blocked(without=[second]) == [first]
        assert blocked(only=[first], without=[first]) == []


class TestApplying:
    """What a plan changes is written as it was planned, or not at all."""

    def test_plan_moves_to_another_resource(self, db: Database):
        first, second = add_hosts(db, 2)
        lease = add_lease(db, first)
        [plan] = allocations_of(db, lease)
        write(db, moved(plan, second))
        assert allocations_of(db, lease) == [replace(plan, resource_id=second)]

    def test_plans_change_places(self, db: Database):
        """For an instant two of them have the same host."""
        hosts = add_hosts(db, 3)
        leases = [add_lease(db, host) for host in hosts]
        plans = allocations_of(db, *leases)
        write(db, together(*(moved(plan, host) for plan, host in zip(plans, [*hosts[1:], hosts[0]], strict=True))))
        assert [allocation.resource_id for lease in leases for allocation in allocations_of(db, lease)] == [
            *hosts[1:],
            hosts[0],
        ]

    @pytest.mark.parametrize("change", list(CHANGES))
    def test_allocation_that_has_changed_since_is_not_changed(self, db: Database, change: str):
        first, second, third = add_hosts(db, 3, capacity=Capacity({WHOLE: 3}))
        for name, meanwhile in MEANWHILE.items():
            if (change, name) == ("reduce kept", "reschedule"):
                continue  # what is let go has no end that could change
            lease = add_lease(db)
            write(db, added(reservation_of(lease), {first: 3}, hours(1, 2), demand()))
            [plan] = allocations_of(db, lease)
            db.write(partial(meanwhile, allocation=plan, other=third))
            assert_overtaken(db, partial(CHANGES[change], allocation=plan, other=second))
            there = [allocation.id for allocation in allocations_of(db, lease)]
            db.write(partial(remove, ids=there))

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_allocation_with_the_id_of_a_deleted_one_is_not_taken_for_it(self, db: Database, change: Change):
        """SQLite gives the id of the newest row again after its deletion."""
        first, second = add_hosts(db, 2)
        deleted = add_lease(db)
        write(db, added(reservation_of(deleted), {first: 3}, hours(1, 2), demand()))
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
        assert_overtaken(db, partial(change, allocation=plan, other=second))

    def test_one_of_many_that_has_changed_is_noticed(self, db: Database):
        hosts = add_hosts(db, 3)
        lease = add_lease(db, *hosts)
        plans = allocations_of(db, lease)
        write(db, rescheduled(plans[1], to=hours(1, 3)))
        for changes in (rescheduled(*plans, to=hours(5, 6)), dropped(*plans)):
            assert_overtaken(db, partial(apply, changes=changes))

    def test_overdue_allocation_is_told_by_what_it_is(self, db: Database):
        """It ends later in a snapshot than in the ledger; what it gains begins now."""
        [host] = add_hosts(db, 1)
        lease = add_lease(db, host, start=0, end=1, state=HELD)
        late = NOW + HOUR

        later = late + timedelta(minutes=1)  # it is found then
        changes = ask(db, lambda tx: extension(tx, lease, demand(), NOW + 2 * HOUR, now=later))
        assert [before.period.end for before, _ in changes.changed] == [later]
        assert changes.versions == {host: 1}
        write(db, changes, now=later)
        assert [(allocation.period, allocation.state) for allocation in allocations_of(db, lease)] == [
            (hours(0, 2), HELD)
        ]

    def test_periods(self, db: Database):
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
        now = allocations_of(db, lease)
        becomes(lambda tx: apply(tx, rescheduled(*now, to=hours(5, 7))), 5, 7)
        db.write(lambda tx: tx.allocations.lengthen([], NOW + 9 * HOUR, now=NOW))
        assert [allocation.period for allocation in allocations_of(db, untouched)] == [hours(1, 2)]

    def test_an_allocation_that_stays_as_it_is_is_left_alone(self, db: Database):
        first, second = add_hosts(db, 2)
        lease = add_lease(db, first, second)
        plans = allocations_of(db, lease)
        write(db, together(Changes(changed=[(plans[0], plans[0])]), rescheduled(plans[1], to=hours(1, 3))))
        assert [allocation.period for allocation in allocations_of(db, lease)] == [hours(1, 2), hours(1, 3)]

    def test_equal_new_allocations_are_all_written(self, db: Database):
        """A resource may serve a reservation twice in the same way."""
        first, second = add_hosts(db, 2, capacity=EIGHT)
        mine, theirs = add_lease(db), add_lease(db)
        one = added(reservation_of(mine), {first: 2, second: 2}, hours(1, 2), SHARED)
        write(db, together(one, one, added(reservation_of(theirs), {first: 2}, hours(1, 2), SHARED)))
        assert [(allocation.resource_id, allocation.units) for allocation in allocations_of(db, mine)] == [
            *[(first, 2)] * 2,
            *[(second, 2)] * 2,
        ]
        assert [(allocation.resource_id, allocation.units) for allocation in allocations_of(db, theirs)] == [(first, 2)]

    @pytest.mark.parametrize("hosts", [FEW_ROWS // 2, FEW_ROWS // 2 + 1], ids=["few", "many"])
    def test_few_and_many_new_allocations_are_written_alike(self, db: Database, hosts: int):
        """Many of them are made by the database."""
        ids = add_hosts(db, hosts, capacity=EIGHT)
        leases = [add_lease(db), add_lease(db)]
        period = Period(NOW + HOUR + TICK, ENDLESS)
        new = together(
            *(added(reservation_of(lease), dict.fromkeys(ids, 3), period, SHARED, booked_from=NOW) for lease in leases)
        )
        write(db, new)
        for lease in leases:
            found = allocations_of(db, lease)
            assert [replace(allocation, id=0) for allocation in found] == [
                Allocation(0, host, reservation_of(lease), period, PLANNED, Capacity({"VCPU": 3}), False, 3, NOW)
                for host in ids
            ]


class TestManyAllocations:
    @pytest.fixture
    def database_url(self, one_database_url: str) -> str:
        return one_database_url

    def test_a_thousand_are_changed_in_a_few_statements(self, db: Database):
        hosts = add_hosts(db, 20, capacity=Capacity({"VCPU": 100}))
        names = [reservation_of(add_lease(db)) for _ in range(50)]

        def plans() -> list[Allocation]:
            return ask(db, lambda tx: tx.allocations.of_reservations(names))

        new = together(*(added(name, dict.fromkeys(hosts, 2), hours(1, 2), SHARED) for name in names))
        assert statements(db, new) <= 3
        assert len(plans()) == 1000
        assert statements(db, together(*(shrunk(plan, 1, SHARED) for plan in plans()))) <= 3
        assert {(plan.units, plan.amounts) for plan in plans()} == {(1, SHARED.amounts)}
        assert statements(db, rescheduled(*plans(), to=hours(0, 3))) <= 3
        assert {plan.period for plan in plans()} == {hours(0, 3)}
        assert statements(db, dropped(*plans()), now=NOW + HOUR) <= 3
        assert plans() == []
        assert len(lapsed(db)) == 1000


class TestLapsed:
    """The time in which plans were booked and never had, when their lease has not started in time."""

    LATER = NOW + 3 * HOUR / 2

    def test_what_moves_after_its_start(self, db: Database):
        first, second = add_hosts(db, 2)
        lease = add_lease(db, first)
        [plan] = allocations_of(db, lease)
        write(db, moved(plan, second, start=self.LATER), now=self.LATER)
        assert lapsed(db) == [(first, reservation_of(lease), hours(1, 1.5), 1, {WHOLE: 1}, False)]
        assert allocations_of(db, lease) == [replace(plan, resource_id=second, period=hours(1.5, 2))]

    def test_what_moves_before_its_start(self, db: Database):
        first, second = add_hosts(db, 2)
        [plan] = allocations_of(db, add_lease(db, first))
        write(db, moved(plan, second))
        assert lapsed(db) == []

    def test_another_lease_may_have_had_the_resource_meanwhile(self, db: Database):
        first, second = add_hosts(db, 2)
        lease = add_lease(db, first)
        add_lease(db, first, start=0, end=1, state=HELD)
        [plan] = allocations_of(db, lease)
        write(db, delayed(plan, self.LATER), now=NOW + HOUR)
        [plan] = allocations_of(db, lease)
        other = add_lease(db, first, start=1.1, end=1.4, state=HELD)  # as if the other lease lasted longer
        write(db, moved(plan, second, start=self.LATER), now=self.LATER)
        assert lapsed(db) == [(first, reservation_of(lease), hours(1, 1.5), 1, {WHOLE: 1}, False)]
        assert len(allocations_of(db, other)) == 1

    def test_what_is_only_delayed_stays_booked(self, db: Database):
        [host] = add_hosts(db, 1)
        lease = add_lease(db, host, end=4)
        for start in (1.5, 2.5):
            [plan] = allocations_of(db, lease)
            write(db, delayed(plan, NOW + start * HOUR), now=NOW + start * HOUR)
            expected = replace(plan, period=hours(start, 4), booked_from=NOW + HOUR)
            assert allocations_of(db, lease) == [expected]
        assert lapsed(db) == []

    @pytest.mark.parametrize("other", [False, True], ids=["here", "elsewhere"])
    def test_what_was_delayed_and_moves(self, db: Database, other: bool):
        """It is booked from now on, also before the resource is clean."""
        first, second = add_hosts(db, 2)
        lease = add_lease(db, first, end=4)
        [plan] = allocations_of(db, lease)
        write(db, delayed(plan, NOW + 2 * HOUR), now=NOW + HOUR)
        [plan] = allocations_of(db, lease)
        after = replace(plan, resource_id=second if other else first, booked_from=self.LATER)
        write(db, Changes(changed=[(plan, after)]), now=self.LATER)
        assert lapsed(db) == [(first, reservation_of(lease), hours(1, 1.5), 1, {WHOLE: 1}, False)]
        assert allocations_of(db, lease) == [after]

    def test_what_gets_another_start(self, db: Database):
        [host] = add_hosts(db, 1)
        lease = add_lease(db, host)
        write(db, rescheduled(*allocations_of(db, lease), to=hours(5, 6)), now=self.LATER)
        assert lapsed(db) == [(host, reservation_of(lease), hours(1, 1.5), 1, {WHOLE: 1}, False)]

    def test_what_gets_another_end(self, db: Database):
        """It is booked from its start on as before."""
        [host] = add_hosts(db, 1)
        lease = add_lease(db, host)
        for end in (5, 3):
            write(db, rescheduled(*allocations_of(db, lease), to=hours(1, end)), now=self.LATER)
        assert lapsed(db) == []

    def test_units_that_go(self, db: Database):
        """The others stay booked from their start on."""
        [host] = add_hosts(db, 1, capacity=EIGHT)
        lease = add_lease(db)
        write(db, added(reservation_of(lease), {host: 5}, hours(1, 2), SHARED))
        [plan] = allocations_of(db, lease)
        write(db, shrunk(plan, 3, SHARED), now=self.LATER)
        assert lapsed(db) == [(host, reservation_of(lease), hours(1, 1.5), 2, {"VCPU": 2}, False)]
        assert allocations_of(db, lease) == [replace(plan, units=3, amounts=Capacity({"VCPU": 3}))]

    def test_what_goes(self, db: Database):
        """A lapsed past ends with the plan; plans that have not begun have none, and what was had is no plan."""
        ids = add_hosts(db, 4)
        over, begun = add_lease(db, ids[0], start=0, end=1), add_lease(db, ids[1])
        others = add_lease(db, ids[2], start=1.5, end=3), add_lease(db, ids[3], state=HELD)
        write(db, dropped(*allocations_of(db, over, begun, *others)), now=self.LATER)
        assert lapsed(db) == [
            (ids[0], reservation_of(over), hours(0, 1), 1, {WHOLE: 1}, False),
            (ids[1], reservation_of(begun), hours(1, 1.5), 1, {WHOLE: 1}, False),
        ]


class TestFeed:
    """The readers of the feed and the waiting list are told what a plan has changed, and where room has become free."""

    @pytest.mark.parametrize(
        ("change", "changed", "frees"),
        [
            (lambda plan, other: moved(plan, other), ["host", "other"], True),
            (lambda plan, _other: shrunk(plan, 1, SHARED), ["host"], True),
            (lambda plan, _other: rescheduled(plan, to=hours(1, 1.5)), ["host"], True),
            (lambda plan, _other: rescheduled(plan, to=hours(1.5, 9)), ["host"], True),
            (lambda plan, _other: rescheduled(plan, to=hours(0, 9)), ["host"], False),
            (lambda plan, _other: delayed(plan, NOW + 1.5 * HOUR), ["host"], True),
            (lambda plan, _other: dropped(plan), ["host"], True),
            (lambda plan, other: added(plan.reservation_id, {other: 1}, hours(1, 2), SHARED), ["other"], False),
            (lambda _plan, _other: Changes(), [], False),
        ],
        ids=["move", "shrink", "end earlier", "start later", "longer", "delay", "drop", "add", "nothing"],
    )
    def test_changes(self, db: Database, change, changed: list[str], frees: bool):
        host, other = add_hosts(db, 2, capacity=EIGHT)
        lease = add_lease(db)
        write(db, added(reservation_of(lease), {host: 2}, hours(1, 2), SHARED))
        [plan] = allocations_of(db, lease)
        position = ask(db, lambda tx: tx.feed.newest())
        db.write(lambda tx: tx.session.execute(delete(FreedRow)))
        write(db, change(plan, other))
        changes, _ = ask(db, lambda tx: tx.feed.after(position))
        assert changes.every == {{"host": host, "other": other}[name] for name in changed}
        freed = ask(db, lambda tx: tx.session.execute(select(FreedRow.inventory, FreedRow.region)).all())
        assert [tuple(row) for row in freed] == ([(HOST, "")] if frees else [])


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
            lambda tx: apply(tx, added(new, {other: 1}, hours(1.9, 3), demand())),
            lambda tx: apply(tx, moved(mine, other)),
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
            lambda tx: apply(tx, rescheduled(*mine, to=hours(1, 3 + TICK / HOUR))),
            lambda tx: apply(tx, rescheduled(*mine, to=hours(3.5, 5))),
        ):
            with pytest.raises(TooManyConflicts):
                db.write(give)
        assert allocations_of(db, first, second) == before
        db.write(lambda tx: tx.allocations.lengthen(mine, NOW + 3 * HOUR, now=NOW))

    def test_parts_must_not_exceed_the_capacity(self, db: Database):
        [host] = add_hosts(db, 1, capacity=EIGHT)
        lease = add_lease(db)
        db.write(lambda tx: tx.allocations.add(reservation_of(lease), {host: 7}, hours(1, 2), SHARED))
        with pytest.raises(TooManyConflicts):
            db.write(lambda tx: tx.allocations.add(reservation_of(lease), {host: 2}, hours(1.5, 3), SHARED))
        db.write(lambda tx: tx.allocations.add(reservation_of(lease), {host: 1}, hours(1.5, 3), SHARED))
        with pytest.raises(TooManyConflicts):
            db.write(lambda tx: tx.allocations.add(reservation_of(lease), {host: 1}, hours(2.5, 3), demand()))

    def test_larger_parts_must_not_exceed_the_capacity(self, db: Database):
        [host] = add_hosts(db, 1, capacity=EIGHT)
        lease = add_lease(db)
        write(db, added(reservation_of(lease), {host: 8}, hours(1, 2), SHARED))
        [plan] = allocations_of(db, lease)
        with pytest.raises(TooManyConflicts):
            write(db, Changes(changed=[(plan, replace(plan, units=9, amounts=Capacity({"VCPU": 9})))]))

    def test_overdue_allocation_must_not_gain_time_that_another_one_has(self, db: Database):
        """Its end in a snapshot is later than in the ledger: the time between is gained as well."""
        [host] = add_hosts(db, 1, capacity=Capacity({"VCPU": 1}))
        lease, late = add_lease(db, start=0, end=1), NOW + HOUR
        write(db, added(reservation_of(lease), {host: 1}, hours(0, 1), SHARED, state=HELD))
        changes = ask(db, lambda tx: extension(tx, lease, SHARED, late + OVERDUE_MATTERS / 2, now=late))
        other = added(reservation_of(add_lease(db)), {host: 1}, Period(late, NOW + 2 * HOUR), SHARED)
        write_with_versions(db, replace(other, versions={host: 1}), now=late)
        with pytest.raises(TooManyConflicts):
            write_with_versions(db, changes, now=late)

    def test_equal_parts_add_up(self, db: Database):
        [host] = add_hosts(db, 1, capacity=EIGHT)
        first, second, third = (reservation_of(add_lease(db)) for _ in range(3))
        db.write(lambda tx: tx.allocations.add(first, {host: 4}, hours(1, 2), SHARED))
        db.write(lambda tx: tx.allocations.add(second, {host: 4}, hours(1, 2), SHARED))
        with pytest.raises(TooManyConflicts):
            db.write(lambda tx: tx.allocations.add(third, {host: 4}, hours(1, 2), SHARED))

    def test_resource_released_in_the_same_transaction_is_free(self, db: Database):
        [host] = add_hosts(db, 1)
        first, second = add_lease(db, host), add_lease(db)
        new = added(reservation_of(second), {host: 1}, hours(1, 2), demand())
        write(db, together(new, dropped(*allocations_of(db, first))))
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

    def test_kept_allocation_can_be_reduced_at_its_start(self, db: Database):
        def reduce_kept(allocation: Allocation, units: int, tx: Transaction) -> None:
            tx.allocations.reduce_kept(allocation, units, now=NOW)

        [host] = add_hosts(db, 1)
        lease = add_lease(db, start=0, end=1)
        whole = Period(NOW, ENDLESS)
        kept = AllocationState.KEPT
        db.write(lambda tx: tx.allocations.add(reservation_of(lease), {host: 1}, whole, demand(), state=kept))
        [there] = allocations_of(db, lease)
        db.write(partial(reduce_kept, there, 0))
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
