"""Demand played through: by the planner on a real ledger, and by the simplest that could be done instead."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from zlib import crc32

from sqlalchemy import select

from bench.demand import HOUR, ORIGIN, Host, Mix, Request
from tenure.domain.allocation import Candidate, Demand, Place, Spread, choose
from tenure.domain.capacity import WHOLE, Capacity, idle_time, units_free
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import AllocationState, Lease, LeaseStatus, Reservation, ReservationStatus
from tenure.domain.period import Period
from tenure.domain.resource import DiscoveredResource, scarcity
from tenure.resources.contract import load_types
from tenure.services.context import Rules
from tenure.services.planning.arrangements import Arrangement
from tenure.services.planning.planner import Planner
from tenure.store import schema
from tenure.store.database import Database, Transaction
from tenure.store.tables import AllocationRow


@dataclass(frozen=True, slots=True)
class Placed:
    """So much of a host, for a while; all of it where it is ``whole``."""

    host: int
    period: Period
    amounts: Capacity
    whole: bool


@dataclass(slots=True)
class Outcome:
    """Who was accepted, and where they were in the end."""

    accepted: list[Request] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)


#: A way to choose: how many units go to which hosts, of those that have room; where it begins, if that is any matter.
Pick = Callable[[Sequence[Candidate], Demand, Period, int], dict[int, int]]


class FirstFitPlanner(Planner):
    """The planner, but that it takes the first hosts that have room, in their order."""

    def pick(self, found: Iterable[Candidate], demand: Demand, period: Period) -> list[Place]:
        rooms = {one.resource_id: one for one in found}
        units = first_fit({number: one.units for number, one in sorted(rooms.items())}, demand)
        return [Place(number, rooms[number].version, count) for number, count in units.items()]


def first_fit(rooms: dict[int, int], demand: Demand) -> dict[int, int]:
    """How many units go where: to the first that have room, in the order in which they are given."""
    if demand.spread is Spread.TOGETHER:
        return next(({number: demand.minimum} for number, room in rooms.items() if room >= demand.minimum), {})
    units: dict[int, int] = {}
    for number, room in rooms.items():
        wanted = demand.minimum - sum(units.values())
        if wanted and room:
            units[number] = 1 if demand.spread is Spread.APART else min(room, wanted)
    return units


def play(mix: Mix, requests: Sequence[Request], url: str, planner: type[Planner] = Planner) -> Outcome:
    """Ask for everything in turn, on an empty database; what has started does not move any more."""
    with ledger_of(mix, url) as db:
        return Replay(db, planner).run(requests)


@contextmanager
def ledger_of(mix: Mix, url: str) -> Iterator[Database]:
    """Open a database that has the hosts of a demand, and nothing else."""
    db = Database(url)
    try:
        schema.upgrade(db)
        hosts = [_discovered(one) for one in mix.hosts]
        db.write(lambda tx: tx.resources.add_many(hosts, [one.properties for one in mix.hosts], now=ORIGIN))
        yield db
    finally:
        db.close()


class Replay:
    """One replay on one database."""

    def __init__(self, db: Database, planner: type[Planner]) -> None:
        self._db = db
        self._planner = planner
        self._types = load_types()
        self._rng = random.Random(1)  # ids of leases decide between hosts that are alike: the same ones each time
        self._notice = Rules().preemption_notice

    def run(self, requests: Sequence[Request]) -> Outcome:
        outcome = Outcome()
        coming: dict[str, Period] = {}
        running: dict[str, Period] = {}
        for request in requests:
            self._db.write(partial(_pass_time, now=request.asked_at, coming=coming, running=running))
            for number, period in list(coming.items()):
                if period.start <= request.asked_at:
                    running[number] = coming.pop(number)
            for number, period in list(running.items()):
                if period.end <= request.asked_at:
                    del running[number]
            lease = self._lease(request)
            try:
                self._admit(lease, request)
            except NotEnoughResources as refusal:
                self._note_refusal(
                    request, refusal, [known for known in outcome.accepted if not known.has_begun(request)]
                )
                continue
            coming[lease.reservations[0].id] = request.period
            outcome.accepted.append(request)
        outcome.placed = self._placed()
        return outcome

    def _admit(self, lease: Lease, request: Request) -> None:
        self._db.write(partial(self._book, lease=lease, request=request))

    def _note_refusal(self, request: Request, refusal: NotEnoughResources, coming: Sequence[Request]) -> None:
        """Note a refused request, and which accepted ones have not begun then."""

    def _book(self, tx: Transaction, *, lease: Lease, request: Request, arrangement: Arrangement | None = None) -> None:
        tx.leases.add(lease)
        planner = self._planner(
            tx, self._types, now=request.asked_at, turn=crc32(lease.id.encode()), notice=self._notice
        )
        if arrangement is not None:
            planner.arrange(arrangement)
        planner.book(lease.reservations[0].id, request.demand, request.period, position=0)

    def _lease(self, request: Request) -> Lease:
        lease_id, reservation_id = (str(uuid.UUID(int=self._rng.getrandbits(128), version=4)) for _ in range(2))
        reservation = Reservation(
            id=reservation_id,
            lease_id=lease_id,
            resource_type=request.resource_type,
            status=ReservationStatus.PENDING,
            parameters=request.parameters,
            missing_resources=False,
            resources_changed=False,
            created_at=request.asked_at,
        )
        return Lease(
            id=lease_id,
            name=f"request {request.number}",
            project_id="bench",
            user_id="bench",
            starts_at=request.period.start,
            ends_at=request.period.end,
            status=LeaseStatus.PENDING,
            status_reason=None,
            degraded=False,
            version=1,
            reservations=(reservation,),
            events=(),
            created_at=request.asked_at,
        )

    def _placed(self, *states: AllocationState) -> list[Placed]:
        """Return the allocations, or those in some states."""
        found = select(AllocationRow)
        if states:
            found = found.where(AllocationRow.state.in_([state.value for state in states]))
        with self._db.read() as tx:
            rows = tx.session.execute(found).scalars()
            return [
                Placed(row.resource_id, Period(row.starts_at, row.ends_at), Capacity(row.amounts), row.exclusive)
                for row in rows
            ]


def _pass_time(tx: Transaction, *, now: datetime, coming: dict[str, Period], running: dict[str, Period]) -> None:
    """Do to the ledger what the engine does when leases start and end."""
    tx.allocations.pin([number for number, period in coming.items() if period.start <= now])
    over = {number: period.end for number, period in {**coming, **running}.items() if period.end <= now}
    for end in sorted(set(over.values())):
        tx.allocations.release([number for number in over if over[number] == end], until=end)


def _discovered(host: Host) -> DiscoveredResource:
    name = f"host-{host.number}"
    return DiscoveredResource("physical:host", str(host.number), name, host.capacity, traits=host.traits)


def play_unmoved(mix: Mix, requests: Sequence[Request], pick: Pick) -> Outcome:
    """What comes of a way to choose where nothing moves that was placed: without the ledger, and all hosts seen."""
    outcome = Outcome()
    rng = random.Random(1)
    booked: dict[int, list[Placed]] = {host.number: [] for host in mix.hosts}
    for request in requests:
        demand, period = request.demand, request.period
        found = [_candidate(host, booked[host.number], demand, period) for host in mix.hosts]
        units = pick([one for one in found if one.units], demand, period, rng.randrange(1, len(mix.hosts) + 1))
        if sum(units.values()) < demand.minimum:
            continue
        outcome.accepted.append(request)
        for number, count in units.items():
            booked[number].append(Placed(number, period, demand.amounts.times(count), demand.exclusive))
    outcome.placed = [one for placed in booked.values() for one in placed]
    return outcome


def by_order(found: Sequence[Candidate], demand: Demand, period: Period, turn: int) -> dict[int, int]:
    """First fit: the first hosts that have room."""
    return first_fit({one.resource_id: one.units for one in found}, demand)


def by_choice(found: Sequence[Candidate], demand: Demand, period: Period, turn: int) -> dict[int, int]:
    """Our order of preference."""
    return {place.resource_id: place.units for place in choose(found, demand, period, turn=turn)}


def _candidate(host: Host, placed: Sequence[Placed], demand: Demand, period: Period) -> Candidate:
    periods = [one.period for one in placed]
    return Candidate(
        host.number,
        1,
        scarcity(host.properties, host.traits, host.capacity),
        max((one.end for one in periods if one.end <= period.start), default=None),
        min((one.start for one in periods if one.start >= period.end), default=None),
        room_on(host, placed, demand, period),
        timedelta(0) if demand.exclusive else idle_time((one for one in periods if one.overlaps(period)), period),
    )


def room_on(host: Host, placed: Sequence[Placed], demand: Demand, period: Period) -> int:
    """For how many units of a demand a host has room throughout."""
    if not serves(host, demand):
        return 0
    there = [one for one in placed if one.period.overlaps(period)]
    if demand.exclusive:
        return 0 if there else 1
    if any(one.whole for one in there):
        return 0
    return units_free(host.capacity, ((one.period, one.amounts) for one in there), demand.amounts, period)


def serves(host: Host, demand: Demand) -> bool:
    """Whether a host is of the kind that is asked for."""
    return (
        demand.expression.matches(host.properties)
        and demand.required <= host.traits
        and not demand.forbidden & host.traits
    )


def crowded(hosts: Sequence[Host], placed: Sequence[Placed]) -> Iterator[str]:
    """Where more is promised than there is: looked for at every start, without the help of what decided."""
    capacities = {host.number: host.capacity for host in hosts}
    for number, capacity in capacities.items():
        mine = [one for one in placed if one.host == number]
        for instant in {one.period.start for one in mine}:
            there = [one for one in mine if one.period.start <= instant < one.period.end]
            used = sum((one.amounts for one in there), Capacity())
            shared = {name: amount for name, amount in used.items() if name != WHOLE}
            if (any(one.whole for one in there) and len(there) > 1) or not capacity.fits(Capacity(shared)):
                yield f"host {number} at {instant:%Y-%m-%d %H:%M}"


def free_share(hosts: Sequence[Host], placed: Sequence[Placed], window: Period, *, at_least: timedelta) -> float:
    """Which part of the hosts' time they are wholly free, in stretches that are ``at_least`` so long."""
    free = 0.0
    for host in hosts:
        until = window.start
        busy = sorted(one.period for one in placed if one.host == host.number and one.period.overlaps(window))
        for start, end in [*((one.start, one.end) for one in busy), (window.end, window.end)]:
            if start - until >= at_least:
                free += (start - until) / HOUR
            until = max(until, end)
    return free / (len(hosts) * ((window.end - window.start) / HOUR))
