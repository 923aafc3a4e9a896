from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.period import Period, length_text, minute_of

ORIGIN = datetime(2030, 1, 1, tzinfo=UTC)


def at(hour: float) -> datetime:
    return ORIGIN + timedelta(hours=hour)


def period(start: float, end: float) -> Period:
    return Period(at(start), at(end))


@st.composite
def periods(draw: st.DrawFn) -> Period:
    start, length = draw(st.integers(0, 20)), draw(st.integers(1, 10))
    return period(start, start + length)


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        (period(0, 2), period(2, 4), False),  # back to back
        (period(0, 2), period(1, 3), True),
        (period(0, 4), period(1, 2), True),
        (period(0, 2), period(0, 2), True),
        (period(0, 2), period(3, 4), False),
        (Period(at(0), at(2)), Period(at(2) - timedelta(microseconds=1), at(3)), True),
    ],
)
def test_periods_overlap_when_they_share_an_instant(first: Period, second: Period, overlap: bool):
    assert first.overlaps(second) is overlap
    assert second.overlaps(first) is overlap


@given(periods(), periods())
def test_overlap_covering_and_containing_agree_with_counting_hours(first: Period, second: Period):
    hours = {hour for hour in range(40) if first.contains(at(hour))}
    second_hours = {hour for hour in range(40) if second.contains(at(hour))}
    assert first.overlaps(second) == bool(hours & second_hours)
    assert first.covers(second) == (second_hours <= hours)
    assert first.length == timedelta(hours=len(hours))


def test_the_start_belongs_to_a_period_and_the_end_does_not():
    assert period(0, 2).contains(at(0))
    assert not period(0, 2).contains(at(2))


def test_zones_do_not_matter_to_overlap():
    east = timezone(timedelta(hours=5))
    assert period(0, 2) == Period(at(0).astimezone(east), at(2).astimezone(east))
    assert not period(0, 2).overlaps(Period(at(2).astimezone(east), at(3)))


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (at(1), at(1)),
        (at(2), at(1)),
        (at(1).replace(tzinfo=None), at(2)),
        (at(1), at(2).replace(tzinfo=None)),
        (at(1).replace(tzinfo=None), at(2).replace(tzinfo=None)),
    ],
)
def test_a_period_is_neither_empty_nor_without_a_zone(start: datetime, end: datetime):
    with pytest.raises(ValueError):
        Period(start, end)


def test_the_minute_of_an_instant_is_in_utc():
    east = timezone(timedelta(hours=5, minutes=30))
    instant = datetime(2030, 1, 1, 5, 45, 59, 999_999, tzinfo=east)
    assert minute_of(instant) == datetime(2030, 1, 1, 0, 15, tzinfo=UTC)
    assert minute_of(instant).tzinfo is UTC


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (timedelta(days=366, hours=1), "366 days 1 hour"),
        (timedelta(days=1, minutes=2, seconds=1), "1 day 2 minutes 1 second"),
        (timedelta(milliseconds=300), "0 seconds"),
    ],
)
def test_a_length_is_shown_in_units(length: timedelta, text: str):
    assert length_text(length) == text
