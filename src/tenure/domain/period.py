"""Periods of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

#: The end of a period without an end.
ENDLESS = datetime(9999, 1, 1, tzinfo=UTC)
#: The shortest period that the ledger can hold: the resolution of a time in all three databases.
TICK = timedelta(microseconds=1)
#: How soon a period must begin for an overdue teardown to block it. By a later start, the teardown will be over or the
#: plan will have moved.
OVERDUE_MATTERS = timedelta(minutes=15)
#: For how long an allocation that is over matters to planning: a lease of now starts at a full minute, or when its
#: request came, and requests wait.
PAST_MATTERS = timedelta(minutes=3)


@dataclass(frozen=True, slots=True, order=True)
class Period:
    """A half-open stretch of time: ``start`` belongs to it, ``end`` does not.

    Raises ``ValueError`` for bounds without a zone and for a period that is empty or inverted.
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start.utcoffset() is None or self.end.utcoffset() is None:
            raise ValueError("a period needs timezone-aware bounds")
        if not self.start < self.end:
            raise ValueError("a period must end after it starts")

    @property
    def length(self) -> timedelta:
        return self.end - self.start

    def overlaps(self, other: Period) -> bool:
        """Whether the two share an instant; adjacent periods do not."""
        return self.start < other.end and other.start < self.end

    def contains(self, instant: datetime) -> bool:
        return self.start <= instant < self.end

    def covers(self, other: Period) -> bool:
        """Whether every instant of ``other`` lies in this period."""
        return self.start <= other.start and other.end <= self.end

    def without(self, other: Period) -> list[Period]:
        """Return the parts of this period outside the other: none, one or two, in order."""
        bounds = [(self.start, min(self.end, other.start)), (max(self.start, other.end), self.end)]
        return [Period(start, end) for start, end in bounds if start < end]


def minute_of(instant: datetime) -> datetime:
    """Return the start of the minute of ``instant``, in UTC: the resolution of Blazar's dates."""
    return instant.astimezone(UTC).replace(second=0, microsecond=0)


def length_text(length: timedelta) -> str:
    """Return a length of time for a reader, such as ``366 days 1 hour``, to the second."""
    minutes, seconds = divmod(int(length.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = (("day", days), ("hour", hours), ("minute", minutes), ("second", seconds))
    return " ".join(f"{count} {unit}{'' if count == 1 else 's'}" for unit, count in units if count) or "0 seconds"
