"""The times at which a lease may start, as stretches of time."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from tenure.domain.request import StartTimes
from tenure.services.availability.steps import Stretch, ticks

_DAY = timedelta(days=1)
_MIDNIGHT = time()


def stretches_of(times: StartTimes, earliest: datetime, latest: datetime) -> list[Stretch]:
    """Return the stretches from ``earliest`` to ``latest``, both included, that the times allow, in order.

    Times of the day that end before they begin are those of a night, which belongs to the day on which it begins.
    """
    end = ticks(latest) + 1
    if times == StartTimes():
        return [(ticks(earliest), end)]
    zone = ZoneInfo(times.zone)
    found: list[Stretch] = []
    day = earliest.astimezone(zone).date() - _DAY
    last = latest.astimezone(zone).date()
    while day <= last:
        if not times.weekdays or day.weekday() in times.weekdays:
            since, until = times.since or _MIDNIGHT, times.until
            ends = day + _DAY if until is None or until < since else day  # at night it ends on the next day
            start = max(ticks(_instant(day, since, zone)), ticks(earliest))
            close = ticks(_instant(ends, until or _MIDNIGHT, zone))
            stop = min(close + (0 if until is None else 1), end)
            if found and found[-1][1] >= start:
                start, _ = found.pop()
            if start < stop:
                found.append((start, stop))
        day += _DAY
    return found


def _instant(day: date, at: time, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, at, zone).astimezone(UTC)
