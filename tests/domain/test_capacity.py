from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.capacity import Capacity, peak
from tenure.domain.period import Period

ORIGIN = datetime(2030, 1, 1, tzinfo=UTC)
Usages = list[tuple[Period, Capacity]]

capacities = st.dictionaries(st.sampled_from(["VCPU", "MEMORY_MB", "DISK_GB"]), st.integers(0, 9)).map(Capacity)


@st.composite
def periods(draw: st.DrawFn) -> Period:
    start, length = draw(st.integers(0, 12)), draw(st.integers(1, 6))
    return Period(ORIGIN + timedelta(hours=start), ORIGIN + timedelta(hours=start + length))


usages = st.lists(st.tuples(periods(), capacities), max_size=12)


def in_use(usages: Usages, instant: datetime) -> Capacity:
    total = Capacity()
    for period, amounts in usages:
        if period.contains(instant):
            total += amounts
    return total


def test_missing_class_counts_as_zero():
    capacity = Capacity({"VCPU": 4, "PGPU": 0})
    assert capacity == Capacity({"VCPU": 4})
    assert hash(capacity) == hash(Capacity({"VCPU": 4}))
    assert (capacity["VCPU"], capacity["PGPU"], capacity["OTHER"]) == (4, 0, 0)
    assert dict(capacity) == {"VCPU": 4}
    assert "PGPU" not in capacity
    assert len(capacity) == 1
    assert not Capacity()


def test_the_order_of_classes_does_not_matter():
    first, second = Capacity({"A": 1, "B": 2}), Capacity({"B": 2, "A": 1})
    assert first == second
    assert hash(first) == hash(second)
    assert repr(first) == repr(second)


@pytest.mark.parametrize("amount", [-1, 1.5, True, "4", None])
def test_amount_must_be_a_whole_number_and_not_negative(amount: object):
    with pytest.raises(ValueError, match="VCPU"):
        Capacity({"VCPU": amount})  # type: ignore[dict-item]  # the wrong type is the point of the test


def test_is_not_equal_to_a_plain_mapping():
    assert Capacity({"VCPU": 1}) != {"VCPU": 1}


@given(capacities, capacities, capacities)
def test_sums_are_commutative_and_fit_class_by_class(first: Capacity, second: Capacity, third: Capacity):
    assert first + second == second + first
    assert (first + second) + third == first + (second + third)
    assert first + Capacity() == first
    assert (first + second).fits(first)
    assert first.fits(second) == all(second[name] <= first[name] for name in ("VCPU", "MEMORY_MB", "DISK_GB"))


@given(usages, periods())
def test_the_peak_is_the_most_that_is_in_use_in_any_hour(usages: Usages, within: Period):
    hours = [ORIGIN + timedelta(hours=hour) for hour in range(20)]
    by_hour = [in_use(usages, hour) for hour in hours if within.contains(hour)]
    # Usages that overlap each other and the period share an instant of it, so nothing outside of it counts.
    found = peak(usages, within)
    for name in ("VCPU", "MEMORY_MB", "DISK_GB"):
        assert found[name] == max(capacity[name] for capacity in by_hour)


@given(usages, periods(), st.randoms(use_true_random=False))
def test_the_order_of_usages_does_not_matter(usages: Usages, within: Period, random: Random):
    shuffled = list(usages)
    random.shuffle(shuffled)
    assert peak(shuffled, within) == peak(usages, within)


@given(usages, periods(), capacities, capacities)
def test_a_request_that_fits_beside_the_peak_never_exceeds_the_capacity(
    usages: Usages, within: Period, capacity: Capacity, more: Capacity
):
    if capacity.fits(peak(usages, within) + more):
        for hour in range(20):
            instant = ORIGIN + timedelta(hours=hour)
            if within.contains(instant):
                assert capacity.fits(in_use([*usages, (within, more)], instant))


@given(st.lists(st.tuples(periods(), capacities), max_size=30), capacities)
def test_booking_fitting_requests_never_exceeds_the_capacity(requests: Usages, capacity: Capacity):
    booked: Usages = []
    for period, amounts in requests:
        if capacity.fits(peak(booked, period) + amounts):
            booked.append((period, amounts))
    assert all(capacity.fits(in_use(booked, ORIGIN + timedelta(hours=hour))) for hour in range(20))


def test_end_frees_room_for_a_start_at_the_same_instant():
    first, second = (Period(ORIGIN + timedelta(hours=hour), ORIGIN + timedelta(hours=hour + 1)) for hour in range(2))
    day = Period(ORIGIN, ORIGIN + timedelta(days=1))
    whole = Capacity({"WHOLE": 1})
    assert peak([(first, whole), (second, whole)], day) == whole
    assert peak([], day) == Capacity()
