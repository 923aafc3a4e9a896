"""Parts of resources: the room that planning finds in the ledger equals a count at every instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tenure.domain.allocation import Demand, Spread
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.lease import AllocationState
from tenure.domain.period import OVERDUE_MATTERS, TICK, Period
from tenure.domain.resource import DiscoveredResource
from tenure.planning import candidates, shortfalls
from tenure.store.database import Database, Transaction
from tests.store.rows import EVERY, HELD, HOUR, PLANNED, RELEASED, Undone, add_lease, hours
from tests.support import snapshots
from tests.support.snapshots import snapshot_of
from tests.support.world import HOST, NOW

#: The last hour that anything is booked in.
HORIZON = 6
CLASSES = ("MEMORY_MB", "VCPU")
KEPT = AllocationState.KEPT

capacities = st.builds(
    lambda vcpus, memory: Capacity({"VCPU": vcpus, "MEMORY_MB": memory}), st.integers(0, 6), st.integers(0, 6)
)
periods = st.lists(st.integers(0, HORIZON), min_size=2, max_size=2, unique=True).map(sorted)


@dataclass(frozen=True)
class ModelAllocation:
    """A use of a resource, from one hour to another."""

    host: int
    start: int
    end: int
    amounts: Capacity
    exclusive: bool
    held: bool

    def at(self, hour: float, now: float) -> bool:
        """Whether it is had then; by ``now`` it was to be given back, or not yet."""
        return self.start <= hour < self.end or (self.is_late(now) and now <= hour <= now + OVERDUE_MATTERS / HOUR)

    def is_late(self, now: float) -> bool:
        return self.held and self.end <= now


@st.composite
def allocations(draw: st.DrawFn, hosts: int) -> ModelAllocation:
    start, end = draw(periods)
    exclusive = draw(st.booleans())
    amounts = Capacity({WHOLE: 1}) if exclusive else draw(capacities.filter(bool))
    return ModelAllocation(draw(st.integers(0, hosts - 1)), start, end, amounts, exclusive, draw(st.booleans()))


@st.composite
def clouds(draw: st.DrawFn) -> tuple[list[Capacity], list[ModelAllocation]]:
    """Hosts with bookings; some are overbooked, as after a host has shrunk."""
    hosts = draw(st.lists(capacities, min_size=1, max_size=4))
    booked: list[ModelAllocation] = []
    for allocation in draw(st.lists(allocations(len(hosts)), max_size=7)):
        whole = [other for other in booked if other.exclusive and other.host == allocation.host]
        # PostgreSQL itself refuses two allocations of the whole resource at the same time.
        if not (
            allocation.exclusive
            and any(other.start < allocation.end and allocation.start < other.end for other in whole)
        ):
            booked.append(allocation)
    return hosts, booked


def demand(
    amounts: Capacity,
    units: int = 1,
    spread: Spread = Spread.ANY,
    *,
    required: frozenset[str] = frozenset(),
    forbidden: frozenset[str] = frozenset(),
) -> Demand:
    return Demand(
        HOST,
        "instances",
        units,
        units,
        EVERY,
        amounts,
        exclusive=False,
        spread=spread,
        required=required,
        forbidden=forbidden,
    )


def units_at(capacity: Capacity, booked: Sequence[ModelAllocation], hour: float, amounts: Capacity, now: float) -> int:
    """How many units there is room for at that time."""
    there = [allocation for allocation in booked if allocation.at(hour, now)]
    if any(allocation.exclusive for allocation in there):
        return 0
    left = {name: capacity[name] - sum(allocation.amounts[name] for allocation in there) for name in CLASSES}
    return max(0, min(left[name] // amount for name, amount in amounts.items()))


def quarters(start: float, end: float) -> list[float]:
    """The hours of a period, in quarters: overdue allocations count for the next quarter."""
    return [quarter / 4 for quarter in range(int(start * 4), int(end * 4))]


def units_throughout(
    capacity: Capacity, booked: Sequence[ModelAllocation], asked: tuple[float, float], amounts: Capacity, now: float
) -> int:
    """How many units there is room for during the whole period."""
    return min(units_at(capacity, booked, hour, amounts, now) for hour in quarters(*asked))


def idle_in_quarter(hour: float, allocations: Sequence[ModelAllocation], now: float) -> timedelta:
    """How long nothing is had in the quarter that begins then, which is not before ``now``."""
    if any(allocation.start <= hour < allocation.end for allocation in allocations):
        return timedelta(0)
    if any(allocation.is_late(now) for allocation in allocations) and hour <= now + 1 / 4:
        return HOUR / 4 - TICK if hour == now + 1 / 4 else timedelta(0)
    return HOUR / 4


def add_hosts(
    tx: Transaction, capacities: Sequence[Capacity], **more: frozenset[str] | dict[str, dict[str, int]]
) -> list[int]:
    found = [
        DiscoveredResource(HOST, str(number), f"host-{number}", capacity, **more)  # type: ignore[arg-type]
        for number, capacity in enumerate(capacities)
    ]
    tx.resources.add_many(found, [{}] * len(found), now=NOW)
    ids = {
        external: number
        for number, external in tx.resources.ids_of(HOST, [resource.external_id for resource in found]).items()
    }
    return [ids[resource.external_id] for resource in found]


@pytest.mark.slow
def test_room_equals_the_brute_force_count(db: Database):
    lease = add_lease(db)

    @given(
        cloud=clouds(),
        asked=periods,
        amounts=capacities.filter(bool),
        units=st.integers(1, 3),
        spread=st.sampled_from(Spread),
        now=st.integers(-4, HORIZON * 4).map(lambda quarters: quarters / 4),
    )
    def agree(
        cloud: tuple[list[Capacity], list[ModelAllocation]],
        asked: list[int],
        amounts: Capacity,
        units: int,
        spread: Spread,
        now: float,
    ):
        assume(asked[1] > now)
        hosts, booked = cloud
        of_host = [[allocation for allocation in booked if allocation.host == number] for number in range(len(hosts))]
        start, end = max(float(asked[0]), now), float(asked[1])  # a search begins now or later
        punctual = [
            [allocation for allocation in allocations if not allocation.is_late(now)] for allocations in of_host
        ]

        def room_beside(booked: Sequence[Sequence[ModelAllocation]]) -> list[int]:
            return [
                units_throughout(hosts[number], allocations, (start, end), amounts, now)
                for number, allocations in enumerate(booked)
            ]

        room, planned = room_beside(of_host), room_beside(punctual)
        wanted = demand(amounts, units, spread)
        least = units if spread is Spread.AFFINITY else 1
        moment, period = hours(now, now + 1).start, hours(start, end)

        def ask(tx: Transaction) -> None:
            ids = add_hosts(tx, hosts)
            for allocation in booked:
                tx.allocations.add(
                    lease.reservations[0].id,
                    {ids[allocation.host]: 1},
                    hours(allocation.start, allocation.end),
                    Demand(HOST, "", 1, 1, EVERY, allocation.amounts, allocation.exclusive),
                    state=HELD if allocation.held else PLANNED,
                )
            snapshot = snapshot_of(tx, moment)
            found = {
                candidate.resource_id: candidate for candidate in candidates.find(snapshot, wanted, period, seed=0)
            }
            assert {number: candidate.units for number, candidate in found.items()} == {
                ids[number]: count for number, count in enumerate(room) if count >= least
            }
            for number, allocations in enumerate(of_host):
                if ids[number] in found:
                    idle = (idle_in_quarter(hour, allocations, now) for hour in quarters(start, end))
                    assert found[ids[number]].idle == sum(idle, timedelta(0))
            for number, resource_id in enumerate(ids):
                row = snapshot.row_of(resource_id)
                assert snapshot.room_on(row, wanted, period) == room[number]
                assert snapshot.room_on(row, wanted, period, overdue=False) == planned[number]
            *_, roomy, fitting = shortfalls.stages(snapshot, wanted, period)
            counts = [count for count in room if count]
            assert roomy.count == len(counts)
            total = {
                Spread.ANY: sum(counts),
                Spread.ANTI_AFFINITY: len(counts),
                Spread.AFFINITY: max(counts, default=0),
            }
            assert fitting.count == total[spread]
            raise Undone

        with pytest.raises(Undone):
            db.write(ask)

    agree()


def test_whole_and_part_allocations_exclude_each_other(db: Database):
    lease = add_lease(db)
    reservation = lease.reservations[0].id
    part, whole = demand(Capacity({"VCPU": 1})), Demand(HOST, "hosts", 1, 1, EVERY, Capacity({WHOLE: 1}), True)

    def ask(tx: Transaction) -> None:
        shared, taken = add_hosts(tx, [Capacity({"VCPU": 4})] * 2)
        tx.allocations.add(reservation, {shared: 1}, hours(1, 2), part)
        tx.allocations.add(reservation, {taken: 1}, hours(1, 2), whole)

        def free(wanted: Demand, start: float, end: float) -> set[int]:
            found = snapshots.find(tx, wanted, hours(start, end), now=NOW)
            return {candidate.resource_id for candidate in found}

        assert (free(part, 1, 2), free(whole, 1, 2)) == ({shared}, set())
        assert (free(part, 0, 1), free(whole, 2, 3)) == ({shared, taken}, {shared, taken})

    db.write(ask)


@pytest.mark.parametrize("state", [PLANNED, HELD])
@pytest.mark.parametrize(
    ("start", "end", "shares"),
    [
        (timedelta(0), HOUR, False),
        (timedelta(0), HOUR + TICK, True),
        (2 * HOUR - TICK, 3 * HOUR, True),
        (2 * HOUR, 3 * HOUR, False),
    ],
    ids=["ends with its start", "ends behind its start", "starts before its end", "starts with its end"],
)
def test_parts_that_share_one_microsecond_conflict(
    db: Database, start: timedelta, end: timedelta, shares: bool, state: AllocationState
):
    """Beside a lasting part and a part from hour one to two there is no room for a third part in that hour."""
    lease = add_lease(db)
    period = Period(NOW + start, NOW + end)

    def ask(tx: Transaction) -> None:
        [host] = add_hosts(tx, [Capacity({"VCPU": 4})])
        single, two = demand(Capacity({"VCPU": 1})), demand(Capacity({"VCPU": 2}))
        tx.allocations.add(lease.reservations[0].id, {host: 1}, hours(0, 9), single, state=HELD)
        tx.allocations.add(lease.reservations[0].id, {host: 1}, hours(1, 2), two, state=state)
        room = 0 if shares else 1
        found = snapshots.find(tx, two, period, now=NOW)
        assert sum(candidate.units for candidate in found) == room
        snapshot = snapshot_of(tx, NOW)
        assert snapshot.room_on(snapshot.row_of(host), two, period) == room
        stages = snapshots.stages(tx, two, period, now=NOW)
        assert [stage.count for stage in stages] == [1, 1, room, room]
        movable = snapshots.blocked_by_plans(tx, two, period, now=NOW)
        assert bool(movable) == (shares and state is PLANNED)

    db.write(ask)


def test_traits_and_limits_of_the_cloud_are_kept(db: Database):
    def ask(tx: Transaction) -> None:
        [plain] = add_hosts(tx, [Capacity({"VCPU": 8})])
        [odd] = tx.resources.ids_of(HOST, ["0"])
        assert plain == odd

        def fits(vcpus: int, required: frozenset[str] = frozenset(), forbidden: frozenset[str] = frozenset()) -> bool:
            wanted = demand(Capacity({"VCPU": vcpus}), required=required, forbidden=forbidden)
            found = snapshots.find(tx, wanted, hours(1, 2), now=NOW)
            return [candidate.resource_id for candidate in found] == [plain]

        fast, wet = frozenset({"CUSTOM_FAST"}), frozenset({"CUSTOM_WET"})
        assert fits(3)
        assert not fits(3, required=fast)
        assert fits(3, forbidden=fast)
        tx.resources.describe(
            tx.resources.by_ids([plain])[plain],
            DiscoveredResource(
                HOST,
                "0",
                "host-0",
                Capacity({"VCPU": 8}),
                traits=fast,
                limits={"VCPU": {"min": 2, "max": 4, "step": 2}},
            ),
            now=NOW,
        )
        assert fits(4, required=fast, forbidden=wet)
        assert not fits(4, required=fast | wet)
        assert not fits(4, forbidden=fast)
        assert [vcpus for vcpus in range(1, 9) if fits(vcpus)] == [2, 4]
        assert not fits(4, required=wet)

    db.write(ask)


def test_candidates_include_resources_in_shared_use(db: Database):
    """However far that resource is from the start of the walk."""
    lease = add_lease(db)

    def ask(tx: Transaction) -> None:
        ids = add_hosts(tx, [Capacity({"VCPU": 4})] * 200)
        used = ids[150]
        tx.allocations.add(lease.reservations[0].id, {used: 1}, hours(0, 6), demand(Capacity({"VCPU": 1})))
        found = snapshots.find(tx, demand(Capacity({"VCPU": 1})), hours(1, 2), now=NOW)
        assert used in {candidate.resource_id for candidate in found}
        assert len(found) < 60

    db.write(ask)


ONE, FOUR = Capacity({"VCPU": 1}), Capacity({"VCPU": 4})


def test_part_waits_for_overdue_part_only_without_room_beside_it(db: Database):
    mine, other = add_lease(db, start=2, end=6), add_lease(db, start=0, end=4)
    asked, theirs = mine.reservations[0].id, other.reservations[0].id

    @given(
        capacity=capacities,
        wanted=capacities.filter(bool),
        had=st.lists(
            st.tuples(capacities.filter(bool), st.sampled_from((1, 2, 3, 4)), st.sampled_from((HELD, KEPT, RELEASED))),
            max_size=4,
        ),
        now=st.sampled_from((2, 3)),
    )
    @example(capacity=FOUR, wanted=Capacity({"VCPU": 2}), had=[(ONE, 2, HELD), (ONE, 4, KEPT)], now=2)  # fits
    @example(capacity=FOUR, wanted=Capacity({"VCPU": 2}), had=[(ONE, 2, HELD), (ONE + ONE, 4, KEPT)], now=2)
    def agree(capacity: Capacity, wanted: Capacity, had: list[tuple[Capacity, int, AllocationState]], now: int) -> None:
        late = any(state is HELD and end <= now for _, end, state in had)
        used = sum((amounts for amounts, _, state in had if state is not RELEASED), wanted)

        def ask(tx: Transaction) -> None:
            [host] = add_hosts(tx, [capacity])
            tx.allocations.add(asked, {host: 1}, hours(2, 6), demand(wanted))
            for amounts, end, state in had:
                tx.allocations.add(theirs, {host: 1}, hours(0, end), demand(amounts), state=state)
            waits = tx.allocations.predecessors([asked], now=hours(now, 9).start)
            assert waits == ([host] if late and not capacity.fits(used) else [])
            raise Undone

        with pytest.raises(Undone):
            db.write(ask)

    agree()


def test_part_and_whole_wait_for_each_other(db: Database):
    first, second = add_lease(db, start=0, end=4), add_lease(db, start=2, end=6)
    part, whole = demand(Capacity({"VCPU": 1})), Demand(HOST, "hosts", 1, 1, EVERY, Capacity({WHOLE: 1}), True)

    def ask(tx: Transaction) -> None:
        hosts = add_hosts(tx, [Capacity({"VCPU": 4})] * 3)
        for host, before, after in zip(hosts, (part, whole, part), (part, part, whole), strict=True):
            tx.allocations.add(first.reservations[0].id, {host: 1}, hours(0, 2), before, state=HELD)
            tx.allocations.add(second.reservations[0].id, {host: 1}, hours(2, 6), after)
        assert tx.allocations.predecessors([second.reservations[0].id], now=hours(2, 3).start) == hosts[1:]

    db.write(ask)


def test_overdue_part_blocks_periods_that_begin_soon(db: Database):
    late, other = add_lease(db, start=0, end=1), add_lease(db, start=1, end=9)

    def ask(tx: Transaction) -> None:
        [host] = add_hosts(tx, [Capacity({"VCPU": 9})])
        four, two = demand(Capacity({"VCPU": 4})), demand(Capacity({"VCPU": 2}))
        tx.allocations.add(late.reservations[0].id, {host: 1}, hours(0, 1), four, state=HELD)
        tx.allocations.add(other.reservations[0].id, {host: 1}, hours(1, 9), two)
        for start, room in ((1, 3), (1.25, 3), (1.26, 7)):
            unit = demand(Capacity({"VCPU": 1}))
            found = snapshots.find(tx, unit, hours(start, start + 1), now=hours(1, 2).start)
            assert [candidate.units for candidate in found] == [room]

    db.write(ask)


def test_overdue_part_counts_with_its_amounts_when_plans_move(db: Database):
    """One of the two hosts is fully planned; the other has some room beside the overdue part, but not enough."""
    late, planned = add_lease(db, start=0, end=1), add_lease(db, start=1, end=2)

    def ask(tx: Transaction) -> None:
        [host] = add_hosts(tx, [Capacity({"VCPU": 4})])
        tx.allocations.add(late.reservations[0].id, {host: 1}, hours(0, 1), demand(Capacity({"VCPU": 1})), state=HELD)
        tx.allocations.add(planned.reservations[0].id, {host: 1}, hours(1, 2), demand(Capacity({"VCPU": 3})))

        def would_be_free(vcpus: int, now: float) -> bool:
            wanted = demand(Capacity({"VCPU": vcpus}))
            return bool(snapshots.blocked_by_plans(tx, wanted, hours(1, 2), now=hours(now, 9).start))

        assert [would_be_free(vcpus, 1) for vcpus in (2, 3, 4)] == [True, True, False]
        assert [would_be_free(vcpus, 0.5) for vcpus in (2, 3, 4)] == [True, True, True]

    db.write(ask)


#: The largest number that a request may name, and the largest total that Placement knows.
HUGE = 2**31 - 1


@pytest.mark.parametrize("spread", list(Spread))
def test_huge_amount_is_refused_without_an_error(db: Database, spread: Spread):
    """What all units take together is more than databases count to."""

    def ask(tx: Transaction) -> None:
        add_hosts(tx, [Capacity({"VCPU": 2})])
        for units, size in product((1, 3, HUGE), (1, HUGE, HUGE * 3, 10**30)):
            wanted = demand(Capacity({"VCPU": size}), units, spread)
            found = snapshots.find(tx, wanted, hours(1, 2), now=NOW)
            fits = size == 1 and (units == 1 or spread is not Spread.AFFINITY)
            assert sum(candidate.units for candidate in found) == (2 if fits else 0)
            assert snapshots.blocked_by_plans(tx, wanted, hours(1, 2), now=NOW) == []
            stages = snapshots.stages(tx, wanted, hours(1, 2), now=NOW)
            assert stages[-1].count <= 2

    db.write(ask)


def test_a_host_may_have_more_than_fits_an_integer(db: Database):
    """A large total with a ratio that promises more than there is."""

    def ask(tx: Transaction) -> None:
        [host] = add_hosts(tx, [Capacity({"DISK_GB": HUGE * 4})])
        wanted = demand(Capacity({"DISK_GB": HUGE}), 4, Spread.AFFINITY)
        [found] = snapshots.find(tx, wanted, hours(1, 2), now=NOW)
        assert (found.resource_id, found.units) == (host, 4)
        tx.allocations.add(lease.reservations[0].id, {host: 3}, hours(0, 6), demand(Capacity({"DISK_GB": HUGE})))

    def ask_again(tx: Transaction) -> None:
        [found] = snapshots.find(tx, demand(Capacity({"DISK_GB": HUGE})), hours(1, 2), now=NOW)
        assert found.units == 1
        assert not snapshots.find(tx, demand(Capacity({"DISK_GB": HUGE + 1})), hours(1, 2), now=NOW)

    lease = add_lease(db)
    db.write(ask)
    db.write(ask_again)
