"""What projects have had of the cloud in a period: the question, the entries of the ledger, and their sums."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenure.domain.capacity import Capacity
from tenure.domain.period import Period

#: The unit of sums: they are whole numbers, and exact.
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A question about the period from ``starts_at`` to ``ends_at``; None for all projects, and for all types."""

    starts_at: datetime
    ends_at: datetime
    project_id: str | None = None
    resource_type: str | None = None


@dataclass(frozen=True, slots=True)
class UsageShare:
    """An amount that reservations have had; ``held`` is None if it was never handed over."""

    project_id: str
    resource_type: str
    region: str
    amounts: Capacity
    booked: Period
    held: Period | None


@dataclass(frozen=True, slots=True)
class UsageSum:
    """What a project has had of a resource class of a type in a region.

    The sums are amounts multiplied by times in microseconds. ``used`` is None: it is not known whether servers ran.
    """

    project_id: str
    resource_type: str
    region: str
    resource_class: str
    booked: int
    held: int
    used: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """The sums of a period, in the order of projects, types, regions and classes."""

    starts_at: datetime
    ends_at: datetime
    sums: tuple[UsageSum, ...]
    #: Leases that were over before this moment have been purged, so that earlier sums are too small; None if the sums
    #: of the whole period are complete.
    incomplete_before: datetime | None = None


def add_up(shares: Iterable[UsageShare], within: Period) -> tuple[UsageSum, ...]:
    """Return the sums over that time of the shares that lies ``within`` the period."""
    sums: defaultdict[tuple[str, str, str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for share in shares:
        booked, held = _inside(share.booked, within), _inside(share.held, within)
        if booked or held:
            for resource_class, amount in share.amounts.items():
                key = share.project_id, share.resource_type, share.region, resource_class
                before = sums[key]
                sums[key] = before[0] + amount * booked, before[1] + amount * held
    return tuple(UsageSum(*key, booked, held) for key, (booked, held) in sorted(sums.items()))


def _inside(period: Period | None, within: Period) -> int:
    """Return how many microseconds of a period lie ``within`` another."""
    if period is None or not period.overlaps(within):
        return 0
    return (min(period.end, within.end) - max(period.start, within.start)) // MICROSECOND
