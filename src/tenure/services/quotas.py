"""Quotas: how much a project may have booked, counted in the transaction that books."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from tenure.domain.errors import OverQuota, Unavailable
from tenure.resources.contract import ResourceType, ResourceTypes
from tenure.store.database import Transaction
from tenure.store.projects import Booked

LOG = logging.getLogger(__name__)
R = TypeVar("R")

LEASES = "leases"
#: Before the name of what is counted in hours.
HOURS = "hours_of_"
#: What a limit is that is none.
UNLIMITED = -1
#: How long a request waits for others to be told what projects may have.
QUEUE_SECONDS = 1.0
#: Of how many projects limits are remembered.
_REMEMBERED = 1000


class Limits(Protocol):
    """Who knows how much a project may have."""

    def of_project(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
        """The limits by name; what is not named, or -1, is unlimited.

        Called outside any transaction. Raises ``Unavailable`` where nobody knows right now.
        """


@dataclass(frozen=True, slots=True)
class FixedLimits:
    """The same limits for every project, but for those that are exempt."""

    limits: Mapping[str, int]
    exempt: Collection[str] = ()

    def of_project(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
        if project_id in self.exempt:
            return {}
        return {name: limit for name, limit in self.limits.items() if name in names}


class RememberedLimits:
    """The limits that another tells, which are true for a while, so that not each request has to wait for it.

    ``lenient``: while it does not tell, those hold that it told last, and a project that it never told of has none.
    ``places`` is how many may ask it at a time: one that hangs never takes every thread.
    """

    def __init__(
        self,
        limits: Limits,
        keep: timedelta,
        *,
        lenient: bool = False,
        places: int = 4,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._places = threading.Semaphore(places)
        self._keep = keep.total_seconds()
        self._lenient = lenient
        self._seconds = seconds
        #: Of each project, when it was told what; who was told of last stands last.
        self._told: dict[str, tuple[float, Mapping[str, int]]] = {}
        self._lock = threading.Lock()

    def of_project(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
        known, is_fresh = self._remembered(project_id, names)
        if known is not None and is_fresh:
            return known
        if not self._places.acquire(timeout=QUEUE_SECONDS):
            if self._lenient and known is not None:
                return known
            # Not even where it may be away: that many ask at once does away with nobody's limits.
            raise Unavailable("Too many requests wait to be told what projects may have; try again later.")
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
            self._places.release()

    def _ask(self, project_id: str, names: Collection[str]) -> Mapping[str, int]:
        known, is_fresh = self._remembered(project_id, names)
        if known is not None and is_fresh:  # others have asked meanwhile
            return known
        found = self._limits.of_project(project_id, names)
        with self._lock:
            self._told.pop(project_id, None)
            self._told[project_id] = self._seconds(), found
            while len(self._told) > _REMEMBERED:
                del self._told[next(iter(self._told))]
        return found

    def _remembered(self, project_id: str, names: Collection[str]) -> tuple[Mapping[str, int] | None, bool]:
        """What was told last of a project, and whether that is still true."""
        with self._lock:
            since, known = self._told.get(project_id, (-math.inf, None))
        is_fresh = known is not None and self._seconds() - since < self._keep and known.keys() >= set(names)
        return known, is_fresh


@dataclass(frozen=True, slots=True)
class Quotas:
    """What is limited, and by whom."""

    #: None where nothing is limited.
    limits: Limits | None = None
    #: How far ahead hours are counted.
    horizon: timedelta = timedelta(days=30)

    def of_project(self, project_id: str, types: ResourceTypes) -> dict[str, int]:
        """What is limited for a project, and to how much. Raises ``Unavailable``."""
        found = {} if self.limits is None else self.limits.of_project(project_id, names_of(types))
        return {name: limit for name, limit in found.items() if limit != UNLIMITED}

    def within(
        self, project_id: str, types: ResourceTypes, now: datetime, work: Callable[[Transaction], R]
    ) -> Callable[[Transaction], R]:
        """The same work; ``OverQuota`` where a project has more of something after it than before, and than it may.

        ``Unavailable`` where it has more of something, and nobody knows right now what it may have. To be called
        outside any transaction. Bookings of one project take turns, so that two that fit one by one do not pass
        together.
        """
        unknown = None
        try:
            limits = self.of_project(project_id, types)
        except Unavailable as error:
            limits, unknown = dict.fromkeys(names_of(types), 0), error
        if not limits:
            return work

        def counted(tx: Transaction) -> R:
            tx.projects.take_turn(project_id)
            before = self.usage(tx, project_id, types, now)
            result = work(tx)
            tx.session.flush()
            after = self.usage(tx, project_id, types, now)
            for name, limit in sorted(limits.items()):
                used, wanted = before.get(name, 0), after.get(name, 0)
                if wanted > max(limit, used):
                    raise unknown or OverQuota(name, limit=limit, used=used, requested=wanted - used)
            return result

        return counted

    def usage(self, tx: Transaction, project_id: str, types: ResourceTypes, now: datetime) -> dict[str, int]:
        """What a project has booked, by what is limited: leases, the most at any one time, and hours."""
        booked: dict[str, list[Booked]] = defaultdict(list)
        for one in tx.projects.booked(project_id, after=now):
            booked[name_of(types[one.resource_type])].append(one)
        used = {LEASES: tx.projects.count_leases(project_id)}
        for name, all_of_it in booked.items():
            used[name] = _peak(all_of_it, now)
            used[HOURS + name] = _hours(all_of_it, now, now + self.horizon)
        return used


def name_of(kind: ResourceType) -> str:
    """What units of a type are called in limits; types that are spoken of alike count together."""
    return kind.noun.lower().replace(" ", "_")


def names_of(types: ResourceTypes) -> list[str]:
    """Everything that can be limited."""
    nouns = sorted({name_of(kind) for kind in types})
    return [LEASES, *nouns, *(HOURS + noun for noun in nouns)]


def _peak(booked: Collection[Booked], now: datetime) -> int:
    """The most that is booked at any one time from now on; what ends makes room for what begins."""
    steps: list[tuple[datetime, int]] = []
    for one in booked:
        steps += [(max(one.period.start, now), one.units), (one.period.end, -one.units)]
    level = highest = 0
    for _, change in sorted(steps):
        level += change
        highest = max(highest, level)
    return highest


def _hours(booked: Collection[Booked], start: datetime, end: datetime) -> int:
    """For how many hours units are booked in a stretch of time, all together; what has begun counts as an hour."""
    seconds = sum(
        one.units * max(0.0, (min(one.period.end, end) - max(one.period.start, start)).total_seconds())
        for one in booked
    )
    return -int(-seconds // 3600)
