"""Times of the day on the days on which clocks change, and lengths in days across these."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest

from tenure.domain.period import Period
from tenure.domain.zones import TimesOfDay, instants_of, is_within_days, latest_within_days, zone_names

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
PARIS = ZoneInfo("Europe/Paris")


def shown(times: TimesOfDay, zone: str, start: datetime, length: timedelta = DAY) -> list[tuple[str, str]]:
    """Return what the clock shows at the beginning of each stretch, and in its last minute."""
    found = instants_of(times, ZoneInfo(zone), Period(start, start + length))
    return [
        (f"{period.start.astimezone(ZoneInfo(zone)):%d. %H:%M %Z}", f"{last.astimezone(ZoneInfo(zone)):%d. %H:%M %Z}")
        for period in found
        for last in [period.end - timedelta(microseconds=1)]
    ]


def test_times_that_the_clock_skips_are_no_times():
    start = datetime(2030, 3, 30, 23, tzinfo=UTC)
    assert shown(TimesOfDay((), None, time(2, 15)), "Europe/Paris", start, 12 * HOUR) == [
        ("31. 00:00 CET", "31. 01:59 CET")
    ]
    assert shown(TimesOfDay((), time(2, 10), time(2, 50)), "Europe/Paris", start, 12 * HOUR) == []
    assert shown(TimesOfDay((), time(2, 30), time(4, 0)), "Europe/Paris", start, 12 * HOUR) == [
        ("31. 03:00 CEST", "31. 04:00 CEST")
    ]


def test_the_hour_that_comes_twice_is_there_twice():
    start = datetime(2030, 10, 26, 22, tzinfo=UTC)
    assert shown(TimesOfDay((), time(2, 30), time(2, 45)), "Europe/Paris", start) == [
        ("27. 02:30 CEST", "27. 02:45 CEST"),
        ("27. 02:30 CET", "27. 02:45 CET"),
    ]
    assert shown(TimesOfDay((), time(2, 30), time(3, 15)), "Europe/Paris", start) == [
        ("27. 02:30 CEST", "27. 02:59 CEST"),
        ("27. 02:30 CET", "27. 03:15 CET"),
    ]


def test_a_night_goes_on_over_the_change():
    start = datetime(2030, 10, 26, 12, tzinfo=UTC)
    night = TimesOfDay((5,), time(22, 0), time(2, 30))  # of Saturday
    assert shown(night, "Europe/Paris", start, 2 * DAY) == [
        ("26. 22:00 CEST", "27. 02:30 CEST"),
        ("27. 02:00 CET", "27. 02:30 CET"),
    ]


@pytest.mark.parametrize(
    ("zone", "start", "weekday", "expected"),
    [
        ("Africa/Cairo", datetime(2030, 4, 25, 12, tzinfo=UTC), 4, [("26. 01:00 EEST", "26. 23:59 EEST")]),
        ("Asia/Beirut", datetime(2030, 3, 30, 12, tzinfo=UTC), 6, [("31. 01:00 EEST", "31. 23:59 EEST")]),
        ("Pacific/Apia", datetime(2011, 12, 29, 12, tzinfo=UTC), 4, []),  # there was no Friday in that week
    ],
)
def test_a_day_may_lack_its_midnight_or_everything(
    zone: str, start: datetime, weekday: int, expected: list[tuple[str, str]]
):
    assert shown(TimesOfDay((weekday,)), zone, start, 3 * DAY) == expected


@pytest.mark.parametrize("seed", range(40))
def test_each_minute_is_in_if_the_clock_shows_one_of_the_times(seed: int):
    dice = Random(seed)
    name = dice.choice(sorted(zone_names()))
    zone = ZoneInfo(name)
    start = datetime(2026, 1, 1, tzinfo=UTC) + dice.randint(0, 365 * 24 * 60) * MINUTE
    weekdays = tuple(sorted(dice.sample(range(7), dice.randint(0, 3))))
    since, until = (dice.choice((None, time(dice.randint(0, 23), dice.randint(0, 59)))) for _ in range(2))
    times = TimesOfDay(weekdays, since, until)
    period = Period(start, start + 40 * DAY)
    found = list(instants_of(times, zone, period))
    for minute in range(0, 40 * 24 * 60, 7):
        at = start + minute * MINUTE
        there = at.astimezone(zone)
        clock, day = there.time(), there.weekday()
        begin = since or time()
        if until is not None and until < begin and clock <= until:
            is_shown, day = True, (day - 1) % 7
            is_shown = not weekdays or day in weekdays
            if clock >= begin:
                is_shown = is_shown or there.weekday() in weekdays
        else:
            is_after = clock >= begin and (until is None or until < begin or clock <= until)
            is_shown = is_after and (not weekdays or day in weekdays)
        assert any(each.contains(at) for each in found) == is_shown, (name, times, there)


def test_days_are_those_of_the_calendar():
    start, ten_days = datetime(2030, 10, 20, tzinfo=PARIS), 10 * DAY
    end = datetime(2030, 10, 30, tzinfo=PARIS)  # after the end of summer time
    assert end.astimezone(UTC) - start.astimezone(UTC) == ten_days + HOUR
    assert is_within_days(start.astimezone(UTC), end.astimezone(UTC), ten_days)
    assert not is_within_days(start.astimezone(UTC), end.astimezone(UTC) + timedelta(seconds=1), ten_days)
    begin = datetime(2027, 3, 1, tzinfo=UTC)
    assert is_within_days(begin, begin + 366 * DAY, 366 * DAY)
    assert not is_within_days(begin, begin + 366 * DAY + HOUR, 366 * DAY)  # clocks show the same offset again
    assert not is_within_days(begin, begin + 20 * DAY, ten_days)


def test_only_names_of_the_database_of_iana_are_zones():
    names = zone_names()
    assert {"Europe/Paris", "UTC", "America/Argentina/Buenos_Aires"} <= names
    assert not {"localtime", "posixrules", "Factory", "right/Europe/Paris", "posix/Europe/Paris"} & names


def test_latest_end_of_a_length_in_days():
    start, ten_days = datetime(2030, 10, 20, tzinfo=PARIS).astimezone(UTC), 10 * DAY
    assert latest_within_days(start, ten_days) == start + ten_days + HOUR
    assert is_within_days(start, latest_within_days(start, ten_days), ten_days)
    summer = datetime(2030, 7, 1, 12, tzinfo=UTC)
    assert latest_within_days(summer, ten_days) == summer + ten_days
