"""Demand played through: by the planning of the service, and by the simplest that could be done instead."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from unittest import mock
from zlib import crc32

from bench.demand import HOUR, ORIGIN, Host, Mix, Request
from tenure.domain import allocation
from tenure.domain.allocation import Allocation, Candidate, Demand, Spread, choose
from tenure.domain.capacity import WHOLE, Capacity, units_free
from tenure.domain.errors import NotEnoughResources
from tenure.domain.lease import AllocationState
from tenure.domain.listing import ListedResource
from tenure.domain.period import Period
from tenure.domain.resource import scarcity
from tenure.planning import greedy
from tenure.planning.changes import changes_of
from tenure.planning.exact import Solver
from tenure.planning.tasks import NewUnits
from tenure.resources.contract import load_types
from tests.support.plain_ledger import PlainLedger, PlainPlanning


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


@contextmanager
def first_hosts_first() -> Iterator[None]:
    """Let planning take the first hosts that have room, in their order, in place of the best ones."""

    def in_order(candidates: Iterable[Candidate], demand: Demand, period: Period, *, seed: int) -> list[Candidate]:
        return sorted(candidates, key=lambda candidate: candidate.resource_id)

    with ExitStack() as stack:
        for module in (allocation, greedy):
            stack.enter_context(mock.patch.object(module, "order_of", in_order))
        yield


def first_fit(rooms: dict[int, int], demand: Demand) -> dict[int, int]:
    """How many units go where: to the first that have room, in the order in which they are given."""
    if demand.spread is Spread.AFFINITY:
        return next(({number: demand.minimum} for number, room in rooms.items() if room >= demand.minimum), {})
    units: dict[int, int] = {}
    for number, room in rooms.items():
        short = demand.minimum - sum(units.values())
        if short and room:
            units[number] = 1 if demand.spread is Spread.ANTI_AFFINITY else min(room, short)
    return units


def play(mix: Mix, requests: Sequence[Request]) -> Outcome:
    """Ask for everything in turn, on an empty ledger; what has started does not move any more."""
    return Replay(mix).run(requests)


class Replay:
    """One replay on one ledger. Without a ``solver`` there is no exact search."""

    def __init__(self, mix: Mix, solver: Solver | None = None) -> None:
        self._ledger = PlainLedger.of(map(_listed, mix.hosts), ORIGIN)
        self._planning = PlainPlanning(self._ledger, load_types(), solver=solver)
        self._rng = random.Random(1)  # ids of leases decide between hosts that are alike: the same ones each time

    def run(self, requests: Sequence[Request]) -> Outcome:
        outcome = Outcome()
        for request in requests:
            self._ledger.pass_time(request.asked_at)
            try:
                self._admit(request)
            except NotEnoughResources as refusal:
                self._note_refusal(
                    request, refusal, [known for known in outcome.accepted if not known.has_begun(request)]
                )
                continue
            outcome.accepted.append(request)
        outcome.placed = [_placed(each) for each in (*self._ledger.over, *self._ledger.allocations.values())]
        return outcome

    def _admit(self, request: Request) -> None:
        """Give a request what it asks for, or raise ``NotEnoughResources``."""
        lease_id, reservation_id = (str(uuid.UUID(int=self._rng.getrandbits(128), version=4)) for _ in range(2))
        snapshot = self._ledger.snapshot()
        tasks = [NewUnits(reservation_id, request.demand, request.period)]
        plan = self._planning.plan(snapshot, tasks, now=request.asked_at, seed=crc32(lease_id.encode()))
        self._ledger.demands[reservation_id] = request.demand
        self._ledger.apply(changes_of(snapshot, plan.snapshot))

    def _note_refusal(self, request: Request, refusal: NotEnoughResources, coming: Sequence[Request]) -> None:
        """Note a refused request, and which accepted ones have not begun then."""

    def _held(self) -> list[Placed]:
        """Return what has begun, and does not move."""
        return [_placed(each) for each in self._ledger.allocations.values() if each.state is AllocationState.HELD]


def _placed(each: Allocation) -> Placed:
    return Placed(each.resource_id, each.period, each.amounts, each.exclusive)


def _listed(host: Host) -> ListedResource:
    return ListedResource(
        id=host.number,
        resource_type="physical:host",
        region="",
        external_id=str(host.number),
        name=f"host-{host.number}",
        capacity=host.capacity,
        limits={},
        traits=host.traits,
        attributes={"id": str(host.number), **host.properties},
        reservable=True,
        version=1,
        scarcity=scarcity(host.properties, host.traits, host.capacity),
    )


def play_unmoved(mix: Mix, requests: Sequence[Request], pick: Pick) -> Outcome:
    """What comes of a way to choose where nothing moves that was placed: without the ledger, and all hosts seen."""
    outcome = Outcome()
    rng = random.Random(1)
    booked: dict[int, list[Placed]] = {host.number: [] for host in mix.hosts}
    for request in requests:
        demand, period = request.demand, request.period
        found = [_candidate(host, booked[host.number], demand, period) for host in mix.hosts]
        units = pick(
            [candidate for candidate in found if candidate.units], demand, period, rng.randrange(1, len(mix.hosts) + 1)
        )
        if sum(units.values()) < demand.minimum:
            continue
        outcome.accepted.append(request)
        for number, count in units.items():
            booked[number].append(Placed(number, period, demand.amounts.times(count), demand.exclusive))
    outcome.placed = [use for placed in booked.values() for use in placed]
    return outcome


def by_order(found: Sequence[Candidate], demand: Demand, period: Period, seed: int) -> dict[int, int]:
    """First fit: the first hosts that have room."""
    return first_fit({candidate.resource_id: candidate.units for candidate in found}, demand)


def by_choice(found: Sequence[Candidate], demand: Demand, period: Period, seed: int) -> dict[int, int]:
    """Our order of preference."""
    return {selection.resource_id: selection.units for selection in choose(found, demand, period, seed=seed)}


def _candidate(host: Host, placed: Sequence[Placed], demand: Demand, period: Period) -> Candidate:
    periods = [use.period for use in placed]
    return Candidate(
        host.number,
        1,
        scarcity(host.properties, host.traits, host.capacity),
        max((other.end for other in periods if other.end <= period.start), default=None),
        min((other.start for other in periods if other.start >= period.end), default=None),
        room_on(host, placed, demand, period),
        timedelta(0)
        if demand.exclusive
        else _idle_time((other for other in periods if other.overlaps(period)), period),
    )


def room_on(host: Host, placed: Sequence[Placed], demand: Demand, period: Period) -> int:
    """For how many units of a demand a host has room throughout."""
    if not serves(host, demand):
        return 0
    there = [use for use in placed if use.period.overlaps(period)]
    if demand.exclusive:
        return 0 if there else 1
    if any(use.whole for use in there):
        return 0
    return units_free(host.capacity, ((use.period, use.amounts) for use in there), demand.amounts, period)


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
        mine = [use for use in placed if use.host == number]
        for instant in {use.period.start for use in mine}:
            there = [use for use in mine if use.period.start <= instant < use.period.end]
            used = sum((use.amounts for use in there), Capacity())
            shared = {name: amount for name, amount in used.items() if name != WHOLE}
            if (any(use.whole for use in there) and len(there) > 1) or not capacity.fits(Capacity(shared)):
                yield f"host {number} at {instant:%Y-%m-%d %H:%M}"


def free_share(hosts: Sequence[Host], placed: Sequence[Placed], window: Period, *, at_least: timedelta) -> float:
    """Which part of the hosts' time they are wholly free, in stretches that are ``at_least`` so long."""
    free = 0.0
    for host in hosts:
        until = window.start
        busy = sorted(use.period for use in placed if use.host == host.number and use.period.overlaps(window))
        for start, end in [*((use.start, use.end) for use in busy), (window.end, window.end)]:
            if start - until >= at_least:
                free += (start - until) / HOUR
            until = max(until, end)
    return free / (len(hosts) * ((window.end - window.start) / HOUR))


def _idle_time(busy: Iterable[Period], within: Period) -> timedelta:
    """Return how much of ``within`` is covered by none of the busy periods."""
    idle, until = timedelta(0), within.start
    for period in sorted(busy):
        if until >= within.end:
            break
        if period.start > until:
            idle += min(period.start, within.end) - until
        until = max(until, period.end)
    return idle + max(timedelta(0), within.end - until)
