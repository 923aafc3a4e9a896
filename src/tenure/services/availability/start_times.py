"""The times at which a lease may start, as stretches of time."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from tenure.domain.availability import StartTimes
from tenure.services.availability.steps import Stretch, ticks

_DAY = timedelta(days=1)
_MIDNIGHT = time()


def stretches_of(times: StartTimes, earliest: datetime, latest: datetime) -> list[Stretch]:
    """Return the stretches from ``earliest`` to ``latest``, both included, that the times allow, in order."""
    end = ticks(latest) + 1
    if times == StartTimes():
        return [(ticks(earliest), end)]
    zone = ZoneInfo(times.zone)
    found: list[Stretch] = []
    day = earliest.astimezone(zone).date() - _DAY
    last = latest.astimezone(zone).date()
    while day <= last:
        if not times.weekdays or day.weekday() in times.weekdays:
            start = max(ticks(_instant(day, times.since or _MIDNIGHT, zone)), ticks(earliest))
            until = _instant(day, times.until, zone) if times.until else _instant(day + _DAY, _MIDNIGHT, zone)
            stop = min(ticks(until) + (1 if times.until else 0), end)
            if found and found[-1][1] >= start:
                start, _ = found.pop()
            if start < stop:
                found.append((start, stop))
        day += _DAY
    return found


def _instant(day: date, at: time, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, at, zone).astimezone(UTC)
