"""Dates and durations as people write them."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Run
from tenureclient.moments import (
    NOW,
    UnreadableDuration,
    UnreadableMoment,
    format_duration,
    format_moment,
    parse_duration,
    parse_length,
    parse_moment,
)
from tenureclient.testing import FakeServer
from tenureclient.wire import read_moment, rfc3339

BERLIN = ZoneInfo("Europe/Berlin")
MONDAY = datetime(2027, 3, 1, 9, 30, 12, 345678, tzinfo=UTC)  # 10:30 in Berlin


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("90m", 5400),
        ("2h", 7200),
        ("3d", 259200),
        ("1w", 604800),
        ("1d12h", 129600),
        ("1d 12h", 129600),
        ("1.5h", 5400),
        ("2 days", 172800),
        ("1 hour 5 minutes", 3900),
        (" 2H ", 7200),
        ("0s", 0),
    ],
)
def test_a_duration_is_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", " ", "2", "h", "2x", "-2h", "2h!", "tomorrow", "1|", "9" * 400 + "d"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(UnreadableDuration):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=100_000)))
def test_a_duration_survives_being_written_and_read(duration: timedelta) -> None:
    whole = timedelta(seconds=round(duration.total_seconds()))
    assert parse_duration(format_duration(duration)) == whole


def test_a_negative_duration_can_be_shown() -> None:
    assert format_duration(timedelta(hours=-2)) == "-2h"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+2h", "2027-03-01T11:30:12Z"),
        ("+ 1d12h", "2027-03-02T21:30:12Z"),
        ("in 45 minutes", "2027-03-01T10:15:12Z"),
        ("2027-03-01", "2027-02-28T23:00:00Z"),
        ("2027-03-01 09:30", "2027-03-01T08:30:00Z"),
        ("2027-03-01  09:30:15", "2027-03-01T08:30:15Z"),
        ("2027-07-01 09:30", "2027-07-01T07:30:00Z"),
        ("2027-03-01T09:30", "2027-03-01T08:30:00Z"),
        ("2027-03-01T09:30:00Z", "2027-03-01T09:30:00Z"),
        ("2027-03-01t09:30:00z", "2027-03-01T09:30:00Z"),
        ("2027-03-01T09:30:00.25Z", "2027-03-01T09:30:00.250000Z"),
        ("2027-03-01T09:30:00+05:30", "2027-03-01T04:00:00Z"),
        ("2027-03-01 09:30 +05:30", "2027-03-01T04:00:00Z"),
        ("2027-03-01 09:30 UTC", "2027-03-01T09:30:00Z"),
        ("2027-03-01 09:30 America/New_York", "2027-03-01T14:30:00Z"),
        ("today 09:00", "2027-03-01T08:00:00Z"),
        ("tomorrow", "2027-03-01T23:00:00Z"),
        ("tomorrow 09:00", "2027-03-02T08:00:00Z"),
        ("Tomorrow at 9am", "2027-03-02T08:00:00Z"),
        ("tomorrow 12am", "2027-03-01T23:00:00Z"),
        ("tomorrow 12:30 pm", "2027-03-02T11:30:00Z"),
        ("tomorrow 09:00 UTC", "2027-03-02T09:00:00Z"),
        ("friday 14:00", "2027-03-05T13:00:00Z"),
        ("fri", "2027-03-04T23:00:00Z"),
        ("monday 11:00", "2027-03-01T10:00:00Z"),
        ("monday 10:00", "2027-03-08T09:00:00Z"),
        ("monday", "2027-03-07T23:00:00Z"),
        ("11:00", "2027-03-01T10:00:00Z"),
        ("10:30", "2027-03-02T09:30:00Z"),
        ("5pm", "2027-03-01T16:00:00Z"),
    ],
)
def test_a_date_is_read_on_the_clocks_of_the_zone(text: str, expected: str) -> None:
    moment = parse_moment(text, now=MONDAY, zone=BERLIN)
    assert isinstance(moment, datetime)
    assert rfc3339(moment) == expected


@pytest.mark.parametrize("text", ["now", "NOW", "  Now "])
def test_now_stays_a_word(text: str) -> None:
    assert parse_moment(text, now=MONDAY, zone=BERLIN) == NOW


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "tomorrow soon",
        "9",
        "friday 9",
        "25:00",
        "13pm",
        "0am",
        "2027-02-30",
        "2027-03-01 9:30",
        "2027-03-01 09:30:00Z UTC/Nowhere",
        "20270301",
        "2027-W10-1",
        "tomorrow 09:00 Europe/Nowhere",
        "+99999999w",
        "Europe/Berlin",
        "at",
    ],
)
def test_invalid_date_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(UnreadableMoment) as refusal:
        parse_moment(text, now=MONDAY, zone=BERLIN)
    assert str(refusal.value).endswith(".")


def test_invalid_duration_after_a_plus_is_reported_as_a_duration() -> None:
    with pytest.raises(UnreadableDuration, match="2 bananas"):
        parse_moment("+2 bananas", now=MONDAY, zone=BERLIN)


def test_a_time_that_the_clocks_leave_out_is_refused() -> None:
    with pytest.raises(UnreadableMoment, match="does not exist"):
        parse_moment("2027-03-28 02:30", now=MONDAY, zone=BERLIN)


def test_ambiguous_local_time_means_the_first() -> None:
    assert parse_moment("2027-10-31 02:30", now=MONDAY, zone=BERLIN) == datetime(2027, 10, 31, 0, 30, tzinfo=UTC)


def test_the_day_is_that_of_the_zone() -> None:
    late = datetime(2027, 3, 1, 23, 30, tzinfo=UTC)  # already Tuesday in Berlin
    assert parse_moment("tomorrow 09:00", now=late, zone=BERLIN) == datetime(2027, 3, 3, 8, tzinfo=UTC)


def test_a_date_is_shown_with_its_zone() -> None:
    assert format_moment(MONDAY.replace(second=0, microsecond=0), BERLIN) == "2027-03-01 10:30 CET"
    assert format_moment(MONDAY, UTC) == "2027-03-01 09:30:12 UTC"


moments = st.datetimes(
    min_value=datetime(1980, 1, 1),
    max_value=datetime(2200, 1, 1),
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)


@given(moments)
def test_a_moment_survives_the_wire(moment: datetime) -> None:
    assert read_moment(rfc3339(moment)) == moment


@given(moments, st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Chatham"]))
def test_a_written_moment_means_the_same_in_every_zone(moment: datetime, zone: str) -> None:
    assert parse_moment(rfc3339(moment), now=MONDAY, zone=ZoneInfo(zone)) == moment


@given(moments, st.sampled_from(["Europe/Berlin", "America/St_Johns", "Pacific/Chatham"]))
def test_a_wall_clock_time_is_what_that_clock_then_shows(moment: datetime, zone: str) -> None:
    local = moment.astimezone(ZoneInfo(zone)).replace(second=0, microsecond=0)
    read = parse_moment(local.strftime("%Y-%m-%d %H:%M"), now=MONDAY, zone=ZoneInfo(zone))
    assert isinstance(read, datetime)
    assert read.astimezone(ZoneInfo(zone)).replace(tzinfo=None) == local.replace(tzinfo=None)


@given(moments, st.sampled_from(["monday", "wed", "sunday"]), st.times(timezones=st.none()))
def test_a_day_of_the_week_is_the_next_one(now: datetime, day: str, clock: object) -> None:
    text = f"{day} {str(clock)[:5]}"
    try:
        read = parse_moment(text, now=now, zone=UTC)
    except UnreadableMoment as refusal:  # only while clocks are put forward, which UTC never does
        raise AssertionError(text) from refusal
    assert isinstance(read, datetime)
    assert now < read <= now + timedelta(days=7)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UnreadableMoment, UnreadableDuration):
        parse_moment(text, now=MONDAY, zone=BERLIN)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("monday 9am", datetime(2027, 3, 8, 9, tzinfo=UTC)),  # and not the monday that is today
        ("friday 14:00", datetime(2027, 3, 5, 14, tzinfo=UTC)),  # later on the day of the start
        ("friday 8:00", datetime(2027, 3, 12, 8, tzinfo=UTC)),
        ("18:00", datetime(2027, 3, 5, 18, tzinfo=UTC)),
        ("8:00", datetime(2027, 3, 6, 8, tzinfo=UTC)),
        ("saturday", datetime(2027, 3, 6, tzinfo=UTC)),
        ("tomorrow 9:00", datetime(2027, 3, 2, 9, tzinfo=UTC)),  # of today
        ("+2h", datetime(2027, 3, 1, 11, 30, 12, tzinfo=UTC)),  # from now
        ("2027-03-02 09:00", datetime(2027, 3, 2, 9, tzinfo=UTC)),
    ],
)
def test_a_day_or_a_time_of_day_is_the_next_after_the_start(text: str, moment: datetime) -> None:
    start = datetime(2027, 3, 5, 9, tzinfo=UTC)  # a Friday
    assert parse_moment(text, now=MONDAY, zone=UTC, after=start) == moment


def test_past_start_is_ignored() -> None:
    assert parse_moment("10:00", now=MONDAY, zone=UTC, after=MONDAY - timedelta(days=3)) == datetime(
        2027, 3, 1, 10, tzinfo=UTC
    )


@pytest.mark.parametrize("text", ["0h", "0s", "0.1s", "0d 0h"])
def test_length_must_not_be_zero(text: str) -> None:
    with pytest.raises(UnreadableDuration, match="no time at all"):
        parse_length(text)


def test_a_day_is_24_hours_in_every_command_when_clocks_change(server: FakeServer, tenure: Run) -> None:
    """On 31 October 2027 the clocks of Berlin are set back, between 2027-10-25 12:00 and ten days later."""
    server.add_host("c1")
    noon, ten_days = datetime(2027, 10, 25, 10, tzinfo=UTC), timedelta(days=10)
    hosts = ("--hosts", "1")

    def length_of(name: str) -> timedelta:
        lease = server.client().leases.find(name)
        return lease.end_date - lease.start_date

    assert tenure("lease", "create", "days", *hosts, "--start", "2027-10-25 12:00", "--for", "10d").code == 0
    assert (server.client().leases.find("days").start_date, length_of("days")) == (noon, ten_days)
    assert "2027-11-04 11:00 CET" in tenure("lease", "show", "days").output
    assert tenure("lease", "prolong", "days", "--by", "10d").code == 0
    assert length_of("days") == 2 * ten_days
    assert tenure("lease", "set", "days", "--for", "10d").code == 0
    assert length_of("days") == ten_days
    found = tenure("find", *hosts, "--for", "10d", "--earliest", "2027-10-25 12:00", "--limit", "1", "-f", "json")
    [offer] = json.loads(found.output)
    begin, end = (datetime.fromisoformat(offer[field]) for field in ("start_date", "end_date"))
    assert end - begin == ten_days
    assert tenure("lease", "delete", "days").code == 0
    dates = ("--start", "2027-10-25 12:00", "--end", "2027-11-04 12:00")
    assert tenure("lease", "create", "calendar", *hosts, *dates).code == 0
    assert length_of("calendar") == ten_days + timedelta(hours=1)
