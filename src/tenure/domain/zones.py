"""Local time: the zones of the IANA database, the changes of their clocks, and lengths in days."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import cache, lru_cache
from zoneinfo import ZoneInfo, available_timezones

from tenure.domain.period import TICK, Period

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_MIDNIGHT = time()
#: What a machine's database may have beside the zones of IANA: its own zone, and copies with other rules.
_NO_ZONES = frozenset({"localtime", "posixrules", "Factory"})
_COPIES = ("posix/", "right/")
#: How far apart the offset of a zone is looked up: no clock changes twice in that time.
_STEP = timedelta(hours=6)
#: The most that a clock is set back, but for a station in Antarctica.
_MOST_SET_BACK = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class TimesOfDay:
    """Times of the day, from ``since`` to ``until``, both included, on days of the week (Monday is 0).

    No days mean all days, no ``since`` the beginning of the day, and no ``until`` its end. If they end before they
    begin, they are those of a night, which belongs to the day on which it begins.
    """

    weekdays: tuple[int, ...] = ()
    since: time | None = None
    until: time | None = None


@cache
def zone_names() -> frozenset[str]:
    """Return the names of the zones of the IANA database."""
    return frozenset(name for name in available_timezones() if name not in _NO_ZONES and not name.startswith(_COPIES))


def instants_of(times: TimesOfDay, zone: ZoneInfo, period: Period) -> Iterator[Period]:
    """Yield when a clock of the zone shows these times in a period, in order.

    What the clock shows twice is yielded twice, and what it skips is not yielded.
    """
    for steady, offset in _offsets(zone, period):
        # As long as the offset stays, the time that the clock shows passes like any other: it is written as UTC.
        shown = Period(steady.start + offset, steady.end + offset)
        day = datetime.combine(shown.start.date(), _MIDNIGHT, UTC) - _DAY
        while day < shown.end:
            begin = datetime.combine(day, times.since or _MIDNIGHT, UTC)
            end = day + _DAY
            if times.until is not None:
                end = datetime.combine(day, times.until, UTC) + TICK
                if times.until < (times.since or _MIDNIGHT):
                    end += _DAY
            begin, end = max(begin, shown.start), min(end, shown.end)
            if begin < end and (not times.weekdays or day.weekday() in times.weekdays):
                yield Period(begin - offset, end - offset)
            day += _DAY


def is_within_days(start: datetime, end: datetime, length: timedelta) -> bool:
    """Whether a period is no longer than so many days, by the clock of the zone in which it is shortest.

    A period of ten days, from noon to noon, lasts for an hour more if clocks are set back meanwhile.
    """
    too_long = (end - start) - length
    if not timedelta(0) < too_long <= _MOST_SET_BACK:
        return too_long <= timedelta(0)
    return any(_offset(zone, start) - _offset(zone, end) >= too_long for zone in map(ZoneInfo, sorted(zone_names())))


@lru_cache(maxsize=1000)
def latest_within_days(start: datetime, length: timedelta) -> datetime:
    """Return the latest end of a period from this start for which ``is_within_days`` holds."""
    end = start + length
    gained = {_offset(zone, start) - _offset(zone, end + _MOST_SET_BACK) for zone in map(ZoneInfo, zone_names())}
    for more in sorted(gained, reverse=True):
        if timedelta(0) < more <= _MOST_SET_BACK and is_within_days(start, end + more, length):
            return end + more
    return end


def _offsets(zone: ZoneInfo, period: Period) -> Iterator[tuple[Period, timedelta]]:
    """Yield the stretches of a period in which the offset of a zone stays, with the offset, in order."""
    begin = at = period.start
    while at < period.end:
        following = min(at + _STEP, period.end)
        if _offset(zone, following) == _offset(zone, begin):
            at = following
            continue
        changed = _change_between(zone, at, following)
        if changed > begin:
            yield Period(begin, changed), _offset(zone, begin)
        begin = at = changed
    if begin < period.end:
        yield Period(begin, period.end), _offset(zone, begin)


def _change_between(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the full second at which the offset changes; it is not the same at both times."""
    first = before.replace(microsecond=0)
    low, high = 0, -(-(after - first) // _SECOND)
    while high - low > 1:
        middle = (low + high) // 2
        is_before = _offset(zone, first + middle * _SECOND) == _offset(zone, before)
        low, high = (middle, high) if is_before else (low, middle)
    return first + high * _SECOND


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    offset = at.astimezone(zone).utcoffset()
    assert offset is not None
    return offset
