"""What the limits of a project leave for a new lease, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import numpy as np

from tenure.clock import Clock
from tenure.domain.allocation import Demand
from tenure.domain.lease import Reservation
from tenure.domain.period import ENDLESS, Period
from tenure.domain.request import ReservationRequest
from tenure.planning.steps import (
    FOREVER,
    NEVER,
    SECOND,
    Loads,
    Stretch,
    complement,
    intersect,
    ticks,
    ticks_of,
)
from tenure.resources.contract import ResourceTypes
from tenure.services.limits.quotas import HOURS, LEASES, ProjectLimits, Quotas, name_of
from tenure.store.database import Database
from tenure.store.projects import Booked

_ALWAYS: Sequence[Stretch] = ((NEVER, FOREVER),)
_MINUTE = 60 * SECOND
_HOUR = ticks_of(timedelta(hours=1))


@dataclass(frozen=True, slots=True)
class _Room:
    """What the limits of a noun leave for a number of units. Times and lengths are in microseconds."""

    #: The least number of units that the lease takes.
    units: int
    #: What the project has booked, over time, and how much that may be at most; None if it is not limited.
    booked: Loads
    most: int | None
    #: How long units may still be booked in total, from ``now`` to the ``horizon``; None if that is not limited.
    left: int | None
    now: int
    horizon: int

    def starts(self, length: int) -> Sequence[Stretch]:
        """Return when a lease of this length may start."""
        allowed: Sequence[Stretch] = _ALWAYS
        if self.most is not None:
            allowed = complement([(begin - length + 1, end) for begin, end in self._crowded(self.units)])
        if self.left is not None and self.units * length > self.left:
            # It may last beyond the horizon, or have begun before now, for so long that the rest is not too much.
            within = self.left // self.units
            first = -(-(self.horizon - within) // _MINUTE) * _MINUTE
            allowed = intersect(allowed, [(NEVER, self.now + within - length + 1), (max(first, self.now), FOREVER)])
        return allowed

    def latest_end(self, start: int) -> int:
        """Return until when a lease from this start on may last; the start itself if it may not."""
        latest = FOREVER
        if self.most is not None:
            latest = min((max(begin, start) for begin, end in self._crowded(self.units) if end > start), default=latest)
        if self.left is not None:
            end = max(start, self.now) + self.left // self.units
            latest = min(latest, end if end < self.horizon else FOREVER)
        return latest

    def most_units(self, start: int, end: int) -> int:
        """Return how many units a lease of this period may take."""
        start = max(start, self.now)
        found = FOREVER
        if self.most is not None:
            found = self.most - int(self.booked.steps(start, max(end, start + 1)).values.max())
        counted = min(end, self.horizon) - start
        if self.left is not None and counted > 0:
            found = min(found, self.left // counted)
        return found

    def _crowded(self, units: int) -> list[Stretch]:
        """Return the times from now on at which so many units are too many."""
        assert self.most is not None
        return self.booked.steps(self.now, FOREVER).where(partial(np.less, self.most - units))


@dataclass(frozen=True, slots=True)
class Headroom:
    """What the limits of a project leave for a lease with certain reservations.

    A lease is within it if its least units are: a booking takes no more than the limits leave.
    """

    rooms: Mapping[str, _Room] = field(default_factory=dict)
    #: Whether the project may have another lease at all.
    has_lease: bool = True

    def starts(self, length: timedelta, allowed: Sequence[Stretch]) -> list[Stretch]:
        """Return at which of the allowed times a lease of this length may start."""
        found = list(allowed) if self.has_lease else []
        for room in self.rooms.values():
            found = intersect(found, room.starts(ticks_of(length)))
        return found

    def latest_end(self, start: datetime) -> int:
        """Return until when a lease may last, in full seconds and as microseconds since 1970; ``FOREVER`` for no limit.

        It is not after the start if no lease may begin then.
        """
        if not self.has_lease:
            return ticks(start)
        latest = min((room.latest_end(ticks(start)) for room in self.rooms.values()), default=FOREVER)
        return latest if latest == FOREVER else latest // SECOND * SECOND


class Headrooms:
    """Reads what the limits of projects leave."""

    def __init__(self, db: Database, clock: Clock, types: ResourceTypes, quotas: Quotas) -> None:
        self._db = db
        self._clock = clock
        self._types = types
        self._quotas = quotas

    def of(
        self,
        project_id: str,
        reservations: Sequence[Reservation | ReservationRequest],
        demands: Sequence[Demand],
        *,
        without: str = "",
        is_alone: bool = False,
        during: Period | None = None,
    ) -> Headroom:
        """Return what the limits leave for a lease of these reservations, which have these demands.

        ``without`` is a lease of the project that does not count, since it is to be changed; if the lease ``is_alone``,
        no other one counts. With ``during``, others count as far as they matter to a lease in this period that does not
        bring the project to a limit. Raises ``Unavailable`` if the limits cannot be read now, or if the database does
        not work.
        """
        limits = self._quotas.of_project(project_id, self._types)
        units: Counter[str] = Counter()
        for name, demand in self._named(reservations, demands):
            units[name] += demand.minimum
        counts_units = not limits.keys().isdisjoint({*units, *(HOURS + name for name in units)})
        if not counts_units and LEASES not in limits:
            return Headroom()
        now = self._clock.now()
        leases, booked, others = 0, list[Booked](), list[Booked]()
        if not is_alone:
            with self._db.read() as tx:
                leases = tx.projects.count_leases(project_id)
                if counts_units:
                    start, end = now, ENDLESS
                    if during is not None:
                        start, end = self._quotas.window_of(ProjectLimits(limits), during.start, during.end, now)
                    others = tx.projects.booked(project_id, after=start, before=end, without=without)
                    booked = tx.projects.booked(project_id, after=start, before=end) if without else others
        return Headroom(
            {name: self._room(name, needed, limits, booked, others, now) for name, needed in units.items()},
            has_lease=bool(without) or leases < limits.get(LEASES, leases + 1),
        )

    def reduced(
        self,
        project_id: str,
        reservations: Sequence[Reservation],
        demands: Sequence[Demand],
        starts_at: datetime,
        ends_at: datetime,
    ) -> Sequence[Demand] | None:
        """Return the demands of a new lease for as many units as the limits leave; None if that changes nothing.

        None also if the limits do not leave the least units. Raises the errors of ``of``.
        """
        if all(demand.maximum == demand.minimum for demand in demands) or starts_at >= ends_at:
            return None
        headroom = self.of(project_id, reservations, demands, during=Period(starts_at, ends_at))
        if self._reduced(headroom, reservations, demands, starts_at, ends_at) is None:
            return None
        headroom = self.of(project_id, reservations, demands)
        return self._reduced(headroom, reservations, demands, starts_at, ends_at)

    def _reduced(
        self,
        headroom: Headroom,
        reservations: Sequence[Reservation],
        demands: Sequence[Demand],
        starts_at: datetime,
        ends_at: datetime,
    ) -> Sequence[Demand] | None:
        if not headroom.has_lease:
            return None
        spare = {
            name: room.most_units(ticks(starts_at), ticks(ends_at)) - room.units
            for name, room in headroom.rooms.items()
        }
        found = []
        for name, demand in self._named(reservations, demands):
            more = min(spare.get(name, FOREVER), demand.maximum - demand.minimum)
            if more < 0:
                return None
            found.append(replace(demand, maximum=demand.minimum + more))
            if name in spare:
                spare[name] -= more
        return None if found == list(demands) else found

    def _named(
        self, reservations: Sequence[Reservation | ReservationRequest], demands: Sequence[Demand]
    ) -> Iterator[tuple[str, Demand]]:
        """Yield the demands, each with the name of its units in limits."""
        for reservation, demand in zip(reservations, demands, strict=True):
            yield name_of(self._types[reservation.resource_type]), demand

    def _room(
        self,
        name: str,
        units: int,
        limits: Mapping[str, int],
        booked: Sequence[Booked],
        booked_by_others: Sequence[Booked],
        now: datetime,
    ) -> _Room:
        counted, others = (
            [booking for booking in bookings if name_of(self._types[booking.resource_type]) == name]
            for bookings in (booked, booked_by_others)
        )
        begin, horizon = ticks(now), ticks(now + self._quotas.horizon)
        most, hours = limits.get(name), limits.get(HOURS + name)
        left = None
        if most is not None:  # what is above a newer limit stays booked
            most = max(most, int(_loads_of(counted).steps(begin, FOREVER).values.max()))
        if hours is not None:
            used = _length_of(counted, begin, horizon)
            left = max(hours, -(-used // _HOUR)) * _HOUR - _length_of(others, begin, horizon)
        return _Room(units, _loads_of(others), most, left, begin, horizon)


def _loads_of(booked: Sequence[Booked]) -> Loads:
    starts, ends, units = (
        np.array(values, dtype=np.int64)
        for values in (
            [ticks(booking.period.start) for booking in booked],
            [ticks(booking.period.end) for booking in booked],
            [booking.units for booking in booked],
        )
    )
    return Loads.of(starts, ends, units)


def _length_of(booked: Sequence[Booked], start: int, end: int) -> int:
    """Return for how long units are booked in total between start and end."""
    return sum(
        booking.units * max(0, min(ticks(booking.period.end), end) - max(ticks(booking.period.start), start))
        for booking in booked
    )
