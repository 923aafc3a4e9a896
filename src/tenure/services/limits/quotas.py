"""Quotas: how much a project may book, counted in the transaction that books."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from tenure.domain.allocation import Allocation
from tenure.domain.errors import OverQuota, Unavailable
from tenure.domain.lease import PAST, Lease
from tenure.domain.period import ENDLESS, Period
from tenure.resources.contract import ResourceType, ResourceTypes
from tenure.store.database import Transaction
from tenure.store.projects import Booked

LOG = logging.getLogger(__name__)

LEASES = "leases"
#: The prefix of the names that are counted in hours.
HOURS = "hours_of_"
#: The limit that stands for no limit.
UNLIMITED = -1
#: How long a request waits for a permit to read limits.
QUEUE_SECONDS = 1.0
#: The number of projects whose limits are cached.
_CACHED = 1000


class Limits(Protocol):
    """A source of the limits of projects."""

    def of_project(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
        """Return the limits by name; a name that is missing, or -1, is unlimited.

        Called outside any transaction. Raises ``Unavailable`` if the limits cannot be read now.
        """


@dataclass(frozen=True, slots=True)
class FixedLimits:
    """The same limits for every project, except for exempt ones."""

    limits: Mapping[str, int]
    exempt: Collection[str] = ()

    def of_project(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
        if project_id in self.exempt:
            return {}
        return {name: limit for name, limit in self.limits.items() if name in names}


class RememberedLimits:
    """A cache of limits, so that not every request has to read them from their source.

    With ``lenient``, the last known limits apply while the source is unavailable, and a project without known limits is
    unlimited. ``permits`` is how many threads may ask the source at a time: a hanging source never blocks all threads.
    """

    def __init__(
        self,
        limits: Limits,
        keep: timedelta,
        *,
        lenient: bool = False,
        permits: int = 4,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._permits = threading.Semaphore(permits)
        self._keep = keep.total_seconds()
        self._lenient = lenient
        self._seconds = seconds
        #: By project: when its limits were read, and the limits; the last one read is last.
        self._cached: dict[str, tuple[float, Mapping[str, int]]] = {}
        self._lock = threading.Lock()

    def of_project(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
        known, is_fresh = self._from_cache(project_id, names)
        if known is not None and is_fresh:
            return known
        if not self._permits.acquire(timeout=QUEUE_SECONDS):
            if self._lenient and known is not None:
                return known
            # Also with ``lenient``: too many requests at once must not disable the limits.
            raise Unavailable("Too many requests wait for the limits of projects; try again later.")
        try:
            return self._ask(project_id, names)
        except Unavailable:
            if not self._lenient:
                raise
            LOG.warning(
                "The limits of project %s are %s", project_id, "unknown" if known is None else "those of before"
            )
            return known or {}
        finally:
            self._permits.release()

    def _ask(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
        known, is_fresh = self._from_cache(project_id, names)
        if known is not None and is_fresh:  # another thread has read them meanwhile
            return known
        found = self._limits.of_project(project_id, names)
        with self._lock:
            self._cached.pop(project_id, None)
            self._cached[project_id] = self._seconds(), found
            while len(self._cached) > _CACHED:
                del self._cached[next(iter(self._cached))]
        return found

    def _from_cache(self, project_id: str, names: Collection[str]) -> tuple[Mapping[str, int] | None, bool]:
        """Return the last known limits of a project, and whether they are still fresh."""
        with self._lock:
            since, known = self._cached.get(project_id, (-math.inf, None))
        is_fresh = known is not None and self._seconds() - since < self._keep and known.keys() >= set(names)
        return known, is_fresh


@dataclass(frozen=True, slots=True)
class ProjectLimits:
    """The limits of a project by name, without unlimited ones; ``unknown`` is why they cannot be read now."""

    limits: Mapping[str, int]
    unknown: Unavailable | None = None

    def __bool__(self) -> bool:
        return bool(self.limits)

    @property
    def count_hours(self) -> bool:
        """Whether something is limited by how long it is booked in total."""
        return any(name.startswith(HOURS) for name in self.limits)

    def are_exceeded_by(self, usage: Mapping[str, int]) -> bool:
        """Whether something is above its limit; that was so before, perhaps."""
        return any(usage.get(name, 0) > limit for name, limit in self.limits.items())

    def check(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Raise ``OverQuota`` if the usage increases above a limit; ``Unavailable`` if it does, and none is known."""
        for name, limit in sorted(self.limits.items()):
            used, would_use = before.get(name, 0), after.get(name, 0)
            if would_use > max(limit, used):
                raise self.unknown or OverQuota(name, limit=limit, used=used, requested=would_use - used)


@dataclass(frozen=True, slots=True)
class Account:
    """What a project has booked: the number of its leases, and their units, perhaps without those of a lease."""

    leases: int
    booked: Sequence[Booked]

    def with_lease(self, lease: Lease, allocations: Iterable[Allocation], *, is_new: bool) -> Account:
        """Return the account with these allocations of a lease, of which it has none."""
        types = {reservation.id: reservation.resource_type for reservation in lease.reservations}
        units: Counter[str] = Counter()
        for allocation in allocations:
            if allocation.state not in PAST:
                units[types[allocation.reservation_id]] += allocation.units
        booked = list(self.booked)
        if lease.starts_at < lease.ends_at:
            period = Period(lease.starts_at, lease.ends_at)
            booked += [Booked(resource_type, period, count) for resource_type, count in units.items()]
        return Account(self.leases + is_new, booked)

    def with_fewer(self, leases: int) -> Account:
        """Return the account with so many leases fewer, which have nothing booked."""
        return replace(self, leases=self.leases - leases)


#: The account of a project that has never booked anything.
NOTHING = Account(0, ())


@dataclass(frozen=True, slots=True)
class Quotas:
    """The limited amounts, and the source of their limits."""

    #: None if nothing is limited.
    limits: Limits | None = None
    #: How far ahead hours are counted.
    horizon: timedelta = timedelta(days=30)

    def of_project(self, project_id: str, types: ResourceTypes) -> dict[str, int]:
        """Return the limits of a project by name, without unlimited ones. Raises ``Unavailable``."""
        found = {} if self.limits is None else self.limits.of_project(project_id, names_of(types))
        return {name: limit for name, limit in found.items() if limit != UNLIMITED}

    def for_booking(self, project_id: str, types: ResourceTypes) -> ProjectLimits:
        """Return the limits of a project that is about to book; to be called outside any transaction."""
        try:
            return ProjectLimits(self.of_project(project_id, types))
        except Unavailable as error:
            return ProjectLimits(dict.fromkeys(names_of(types), 0), error)

    def window_of(
        self, limits: ProjectLimits, start: datetime, end: datetime, now: datetime
    ) -> tuple[datetime, datetime]:
        """Return the time in which what a project has booked decides whether a lease of this period reaches a limit.

        If a limit is reached, what was booked at all times decides how much of it was in use before.
        """
        if limits.count_hours:
            return now, max(end, now + self.horizon)
        return max(start, now), end

    def usage(self, account: Account, types: ResourceTypes, now: datetime) -> dict[str, int]:
        """Return what an account uses by name: leases, the peak of each type, and hours."""
        booked: dict[str, list[Booked]] = defaultdict(list)
        for booking in account.booked:
            booked[name_of(types[booking.resource_type])].append(booking)
        used = {LEASES: account.leases}
        for name, bookings in booked.items():
            used[name] = _peak(bookings, now)
            used[HOURS + name] = _hours(bookings, now, now + self.horizon)
        return used


def account_of(
    tx: Transaction, project_id: str, now: datetime, *, until: datetime = ENDLESS, without: str = ""
) -> Account:
    """Return what a project has booked in the time from now until then; not the units of the lease ``without``."""
    booked = tx.projects.booked(project_id, after=now, before=until, without=without) if now < until else ()
    return Account(tx.projects.count_leases(project_id), booked)


def name_of(resource_type: ResourceType) -> str:
    """Return the name of a type's units in limits; types with the same noun count together."""
    return resource_type.noun.lower().replace(" ", "_")


def names_of(types: Iterable[ResourceType]) -> list[str]:
    """Return the names of all limits."""
    nouns = sorted({name_of(resource_type) for resource_type in types})
    return [LEASES, *nouns, *(HOURS + noun for noun in nouns)]


def _peak(booked: Collection[Booked], now: datetime) -> int:
    """Return the largest amount booked at any instant from now on; at equal times the release comes first."""
    steps: list[tuple[datetime, int]] = []
    for booking in booked:
        steps += [(max(booking.period.start, now), booking.units), (booking.period.end, -booking.units)]
    level = highest = 0
    for _, change in sorted(steps):
        level += change
        highest = max(highest, level)
    return highest


def _hours(booked: Collection[Booked], start: datetime, end: datetime) -> int:
    """Return the hours for which units are booked in total between start and end, rounded up."""
    total = sum(
        (
            booking.units * max(timedelta(0), min(booking.period.end, end) - max(booking.period.start, start))
            for booking in booked
        ),
        timedelta(0),
    )
    return -(-total // timedelta(hours=1))
