"""The dates of leases: what callers may ask for."""

from __future__ import annotations

from datetime import datetime, timedelta

from tenure.domain.errors import InvalidParameter, OutOfLease
from tenure.domain.period import length_text, minute_of
from tenure.domain.request import Moment, When
from tenure.domain.zones import is_within_days
from tenure.services.context import Rules

#: The shortest lease. A lease that waits may get its start as its end, as in Blazar; it then has no allocations.
SHORTEST = timedelta(seconds=1)


def resolve(when: When, now: datetime) -> datetime:
    """Return the instant of a requested date."""
    if when is Moment.NOW:
        return now.replace(microsecond=0)
    if when is Moment.THIS_MINUTE:
        return minute_of(now)
    assert isinstance(when, datetime)
    return when


def check_notice(notice_at: datetime, starts_at: datetime, ends_at: datetime) -> datetime:
    """Return the time of the action before the end; raise ``OutOfLease`` unless it is strictly inside the lease."""
    if not starts_at < notice_at < ends_at:
        raise OutOfLease
    return notice_at


def check_length(rules: Rules, starts_at: datetime, ends_at: datetime, *, field: str = "end_date") -> None:
    """Raise ``InvalidParameter`` for a lease that is too short to be started, or longer than allowed."""
    check_shortest(starts_at, ends_at, field=field)
    check_longest(rules, starts_at, ends_at, field=field)


def check_shortest(starts_at: datetime, ends_at: datetime, *, field: str = "end_date") -> None:
    """Raise ``InvalidParameter`` for a lease that is too short to be started."""
    if ends_at - starts_at < SHORTEST:
        raise InvalidParameter("A lease lasts for a second at least.", field=field)


def check_longest(rules: Rules, starts_at: datetime, ends_at: datetime, *, field: str = "end_date") -> None:
    """Raise ``InvalidParameter`` for a lease that is longer than allowed, in days of the calendar."""
    if rules.longest_lease is not None and not is_within_days(starts_at, ends_at, rules.longest_lease):
        days, length = rules.longest_lease / timedelta(days=1), length_text(ends_at - starts_at)
        raise InvalidParameter(f"A lease lasts for {days:g} days at most, and this one for {length}.", field=field)
