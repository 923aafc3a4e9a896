"""The times at which a lease may start, as stretches of time."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from tenure.domain.period import TICK, Period
from tenure.domain.request import StartTimes
from tenure.domain.zones import TimesOfDay, instants_of
from tenure.planning.steps import Stretch, ticks


def stretches_of(times: StartTimes, earliest: datetime, latest: datetime) -> list[Stretch]:
    """Return the stretches from ``earliest`` to ``latest``, both included, that the times allow, in order.

    Times of the day that end before they begin are those of a night, which belongs to the day on which it begins.
    """
    if times == StartTimes():
        return [(ticks(earliest), ticks(latest) + 1)]
    shown = TimesOfDay(times.weekdays, times.since, times.until)
    found: list[Stretch] = []
    for period in instants_of(shown, ZoneInfo(times.zone), Period(earliest, latest + TICK)):
        start, end = ticks(period.start), ticks(period.end)
        if found and found[-1][1] >= start:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
