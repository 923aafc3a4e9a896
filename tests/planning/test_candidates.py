"""The resources among which is chosen: which ones, in which order, and with what is known of candidate."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest

from tenure.domain.allocation import Candidate, Demand, Spread, order_of
from tenure.domain.capacity import Capacity
from tenure.domain.lease import AllocationState
from tenure.domain.period import OVERDUE_MATTERS, TICK, Period
from tenure.planning.candidates import SAMPLE, find
from tenure.planning.moving import Vacancy, blocked_by_plans
from tenure.planning.shortfalls import stages
from tests.planning.situations import HELD, HOUR, KEPT, NOW, PLANNED, book, host, hours, parts, terms_of, whole
from tests.support.plain_ledger import PlainLedger

RELEASED = AllocationState.RELEASED


def site(count: int, vcpus: int = 4) -> PlainLedger:
    return PlainLedger.of((host(number, vcpus) for number in range(1, count + 1)), NOW)


def found(ledger: PlainLedger, demand: Demand, period: Period, **how) -> list[Candidate]:
    return find(ledger.snapshot(), demand, period, **{"seed": 0, **how})


def free(ledger: PlainLedger, start: float = 1, end: float = 2, *, count: int = 1, **how) -> set[int]:
    return {candidate.resource_id for candidate in found(ledger, whole(count), hours(start, end), **how)}


@pytest.mark.parametrize("state", [PLANNED, HELD, RELEASED])
@pytest.mark.parametrize(
    ("start", "end", "is_free"),
    [(0, 1, True), (2, 3, True), (1, 2, False), (0, 1.01, False), (1.99, 3, False), (1.2, 1.3, False), (0, 9, False)],
)
def test_an_overlapping_allocation_of_any_state_is_in_the_way(
    state: AllocationState, start: float, end: float, is_free: bool
):
    """Also one that was released early: it is trimmed, so the rest of it was used."""
    ledger = site(2)
    book(ledger, "booked", whole(), hours(1, 2), {1: 1}, state)
    assert free(ledger, start, end) == ({1, 2} if is_free else {2})


def test_candidates_have_the_bounds_of_their_free_stretch():
    ledger = site(2)
    ledger.resources[1] = replace(ledger.resources[1], version=5)
    for number, (start, end) in enumerate(((1, 2), (3, 4), (8, 9), (11, 12))):
        book(ledger, f"booked-{number}", whole(), hours(start, end), {1: 1})
    bounds = {
        candidate.resource_id: (candidate.version, candidate.free_since, candidate.free_until)
        for candidate in found(ledger, whole(2), hours(5, 7))
    }
    assert bounds == {1: (5, NOW + 4 * HOUR, NOW + 8 * HOUR), 2: (1, None, None)}


def test_the_walk_begins_at_the_seed_and_ends_before_it():
    ledger, period = site(5), hours(1, 2)
    for seed in range(1, 6):
        ordered = order_of(found(ledger, whole(), period, seed=seed), whole(), period, seed=seed)
        assert [candidate.resource_id for candidate in ordered] == [*range(seed, 6), *range(1, seed)]


def test_special_resources_come_last():
    ledger, period = site(4), hours(1, 2)
    for number, scarcity in ((1, 2), (2, 1), (3, 0), (4, 0)):
        ledger.resources[number] = replace(ledger.resources[number], scarcity=scarcity)
    for seed, expected in ((0, [3, 4, 2, 1]), (4, [4, 3, 2, 1])):
        ordered = order_of(found(ledger, whole(), period, seed=seed), whole(), period, seed=seed)
        assert [candidate.resource_id for candidate in ordered] == expected


def test_the_number_of_candidates_is_bounded():
    ledger = site(SAMPLE + 10)
    assert free(ledger, count=3, seed=30) == {*range(30, SAMPLE + 11), *range(1, 23)}
    assert len(free(ledger, count=3)) == SAMPLE + 3
    assert len(free(ledger, limit=5)) == 5


def test_what_takes_no_leases_and_what_is_left_out_is_no_candidate():
    ledger = site(3)
    ledger.resources[2] = replace(ledger.resources[2], reservable=False)
    ledger.resources[9] = replace(host(9), resource_type="something-else")
    ledger.resources[8] = replace(host(8), region="north")
    assert free(ledger) == {1, 3}
    assert free(ledger, without=[3]) == {1}
    assert free(ledger, only=[2, 3]) == {3}


def test_an_overdue_resource_is_taken_for_periods_that_begin_soon():
    ledger = site(1)
    book(ledger, "late", whole(), hours(0, 1), {1: 1}, HELD)
    soon = OVERDUE_MATTERS / HOUR
    ledger.now = NOW + HOUR - TICK
    assert free(ledger, 1, 2) == {1}
    ledger.now = NOW + HOUR
    assert free(ledger, 1, 2) == set()
    assert free(ledger, 1 + soon, 3) == set()
    assert free(ledger, 1.01 + soon, 3) == {1}


def test_resources_in_shared_use_are_candidates_however_far_they_are_from_the_seed():
    ledger = site(200)
    book(ledger, "booked", parts(), hours(0, 6), {150: 1})
    candidates = found(ledger, parts(), hours(1, 2))
    assert 150 in {candidate.resource_id for candidate in candidates}
    assert len(candidates) < 60


def test_named_resources_are_candidates_however_far_they_are():
    ledger = site(200)
    for demand in (whole(named=[150]), replace(parts(), named=("150",))):
        candidates = found(ledger, demand, hours(1, 2))
        assert [candidate.resource_id for candidate in candidates if candidate.is_named] == [150]


def test_traits_and_limits_of_the_cloud_are_kept():
    fast, wet = frozenset({"CUSTOM_FAST"}), frozenset({"CUSTOM_WET"})
    ledger = site(1, vcpus=8)

    def fits(vcpus: int, required: frozenset[str] = frozenset(), forbidden: frozenset[str] = frozenset()) -> bool:
        return bool(found(ledger, replace(parts(1, vcpus), required=required, forbidden=forbidden), hours(1, 2)))

    assert fits(3)
    assert not fits(3, required=fast)
    assert fits(3, forbidden=fast)
    limits = {"VCPU": {"min": 2, "max": 4, "step": 2}}
    ledger.resources[1] = replace(ledger.resources[1], traits=fast, limits=limits)
    assert fits(4, required=fast, forbidden=wet)
    assert not fits(4, required=fast | wet)
    assert not fits(4, forbidden=fast)
    assert [vcpus for vcpus in range(1, 9) if fits(vcpus)] == [2, 4]
    assert not fits(4, required=wet)


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
    start: timedelta, end: timedelta, shares: bool, state: AllocationState
):
    """Beside a lasting part and a part from hour one to two there is no room for a third part in that hour."""
    ledger, two, period = site(1), parts(1, 2), Period(NOW + start, NOW + end)
    book(ledger, "lasting", parts(), hours(0, 9), {1: 1}, HELD)
    book(ledger, "booked", two, hours(1, 2), {1: 1}, state)
    room = 0 if shares else 1
    snapshot = ledger.snapshot()
    assert sum(candidate.units for candidate in found(ledger, two, period)) == room
    assert snapshot.room_on(0, two, period) == room
    assert [stage.count for stage in stages(snapshot, two, period)] == [1, 1, room, room]
    movable = blocked_by_plans(snapshot, Vacancy(two, period), terms_of(ledger))
    assert bool(movable) == (shares and state is PLANNED)


def test_plans_in_the_way_are_those_on_the_fewest_first():
    ledger = site(4)
    for number, (on, start, end, state) in enumerate(
        [(1, 1, 2, PLANNED), (1, 2, 3, PLANNED), (2, 1, 3, PLANNED), (3, 1, 2, PLANNED), (3, 2, 3, HELD)]
    ):
        book(ledger, f"booked-{number}", whole(), hours(start, end), {on: 1}, state)
    book(ledger, "touches", whole(), hours(3, 4), {1: 1})
    snapshot, vacancy = ledger.snapshot(), Vacancy(whole(), hours(1, 3))
    assert blocked_by_plans(snapshot, vacancy, terms_of(ledger)) == [2, 1]
    assert blocked_by_plans(snapshot, replace(vacancy, without=frozenset({2})), terms_of(ledger)) == [1]
    assert blocked_by_plans(snapshot, replace(vacancy, only=frozenset({2, 3, 4})), terms_of(ledger)) == [2]
    assert blocked_by_plans(snapshot, replace(vacancy, asking="booked-2"), terms_of(ledger)) == [1]
    fixed = terms_of(ledger, fixed_until=NOW + HOUR)
    assert blocked_by_plans(snapshot, replace(vacancy, period=hours(2, 3)), fixed) == [1]


def test_an_overdue_part_counts_with_its_amounts_when_plans_move():
    """The host has some room beside the overdue part if its plan moves, but not for everything."""
    ledger = site(1)
    book(ledger, "late", parts(), hours(0, 1), {1: 1}, HELD)
    book(ledger, "planned", parts(1, 3), hours(1, 2), {1: 1})

    def would_be_free(vcpus: int) -> bool:
        return bool(blocked_by_plans(ledger.snapshot(), Vacancy(parts(1, vcpus), hours(1, 2)), terms_of(ledger)))

    ledger.now = NOW + HOUR
    assert [would_be_free(vcpus) for vcpus in (2, 3, 4)] == [True, True, False]
    ledger.now = NOW + HOUR / 2
    assert [would_be_free(vcpus) for vcpus in (2, 3, 4)] == [True, True, True]


def test_kept_and_held_things_do_not_move():
    ledger = site(2)
    book(ledger, "kept", whole(), hours(-1, 9), {1: 1}, KEPT)
    book(ledger, "held", whole(), hours(-1, 9), {2: 1}, HELD)
    assert blocked_by_plans(ledger.snapshot(), Vacancy(whole(), hours(1, 3)), terms_of(ledger)) == []


#: The largest number that a request may name, and the largest total that Placement knows.
HUGE = 2**31 - 1


@pytest.mark.parametrize("spread", list(Spread))
def test_a_huge_amount_is_refused_without_an_error(spread: Spread):
    """What all units take together is more than arrays count to."""
    ledger = site(1, vcpus=2)
    for units, size in product((1, 3, HUGE), (1, HUGE, HUGE * 3, 10**30)):
        wanted = parts(units, size, spread)
        fits = size == 1 and (units == 1 or spread is not Spread.AFFINITY)
        assert sum(candidate.units for candidate in found(ledger, wanted, hours(1, 2))) == (2 if fits else 0)
        assert blocked_by_plans(ledger.snapshot(), Vacancy(wanted, hours(1, 2)), terms_of(ledger)) == []
        assert stages(ledger.snapshot(), wanted, hours(1, 2))[-1].count <= 2


def test_a_host_may_have_more_than_fits_an_integer():
    """A large total with a ratio that promises more than there is."""
    ledger = site(1)
    ledger.resources[1] = replace(ledger.resources[1], capacity=Capacity({"DISK_GB": HUGE * 4}))

    def disks(units: int, size: int) -> list[int]:
        wanted = replace(parts(units, 1, Spread.AFFINITY), amounts=Capacity({"DISK_GB": size}))
        return [candidate.units for candidate in found(ledger, wanted, hours(1, 2))]

    assert disks(4, HUGE) == [4]
    book(ledger, "booked", replace(parts(), amounts=Capacity({"DISK_GB": HUGE})), hours(0, 6), {1: 3})
    assert disks(1, HUGE) == [1]
    assert disks(1, HUGE + 1) == []
