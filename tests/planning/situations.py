"""Random situations for planning without a database, and an independent judgement of what a plan makes of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from random import Random

from tenure.domain.allocation import Allocation, Demand, Spread
from tenure.domain.capacity import WHOLE, Capacity
from tenure.domain.lease import AllocationState
from tenure.domain.listing import ListedResource
from tenure.domain.period import OVERDUE_MATTERS, TICK, Period
from tenure.domain.requirement import Expression, parse_expression
from tenure.planning.changes import changes_of
from tenure.planning.snapshot import Snapshot
from tenure.planning.tasks import Extension, NewUnits, Revision, Task
from tenure.planning.terms import Terms
from tests.support.plain_ledger import PlainLedger

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOST = "host"
ANYWHERE = Expression()
RACKS = {rack: parse_expression(f'["==", "$rack", "{rack}"]', field="") for rack in "ab"}
PLANNED, HELD, KEPT = AllocationState.PLANNED, AllocationState.HELD, AllocationState.KEPT


def hours(start: float, end: float) -> Period:
    """Return the period that begins and ends so many hours from now."""
    return Period(NOW + start * HOUR, NOW + end * HOUR)


def host(number: int, vcpus: int = 4, *, rack: str = "a", reservable: bool = True, scarcity: int = 0) -> ListedResource:
    """Return a host of this number, in a rack."""
    attributes = {"id": str(number), "rack": rack}
    capacity = Capacity({"VCPU": vcpus})
    return ListedResource(
        number, HOST, "", str(number), f"h{number}", capacity, {}, frozenset(), attributes, reservable, 1, scarcity
    )


def whole(minimum: int = 1, maximum: int | None = None, *, rack: str = "", named: Iterable[int] = ()) -> Demand:
    """Return the demand for whole hosts."""
    names = tuple(map(str, named))
    expression = RACKS.get(rack, ANYWHERE)
    return Demand(HOST, "hosts", minimum, maximum or minimum, expression, Capacity({WHOLE: 1}), True, named=names)


def parts(
    minimum: int = 1, vcpus: int = 1, spread: Spread = Spread.ANY, *, maximum: int | None = None, rack: str = ""
) -> Demand:
    """Return the demand for parts of hosts."""
    expression, amounts = RACKS.get(rack, ANYWHERE), Capacity({"VCPU": vcpus})
    return Demand(HOST, "instances", minimum, maximum or minimum, expression, amounts, False, spread)


def terms_of(ledger: PlainLedger, *, seed: int = 0, fixed_until: datetime | None = None) -> Terms:
    """Return the terms of a search in a ledger."""
    return Terms(ledger.now, seed, ledger.demands_of, fixed_until)


def book(
    ledger: PlainLedger,
    name: str,
    demand: Demand,
    period: Period,
    units: Mapping[int, int],
    state: AllocationState = PLANNED,
) -> tuple[Allocation, ...]:
    """Add a reservation with so many units by host; return its allocations."""
    ledger.demands[name] = demand
    return tuple(
        ledger.add(Allocation(0, number, name, period, state, demand.amounts.times(count), demand.exclusive, count))
        for number, count in units.items()
    )


# --- what is possible, by brute force


def serves(resource: ListedResource, demand: Demand, *, reservable: bool = True) -> bool:
    """Whether a resource has what a demand asks for, if nothing else takes it."""
    return (resource.reservable or not reservable) and demand.expression.matches(resource.attributes)


def fits(ledger: PlainLedger, number: int, there: Iterable[Allocation]) -> bool:
    """Whether these allocations have room on a host together."""
    there = list(there)
    for instant in {allocation.period.start for allocation in there}:
        present = [allocation for allocation in there if allocation.period.contains(instant)]
        if any(allocation.exclusive for allocation in present):
            if len(present) > 1:
                return False
        elif sum(allocation.amounts["VCPU"] for allocation in present) > ledger.resources[number].capacity["VCPU"]:
            return False
    return True


def distributions(demand: Demand, units: int, numbers: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield the ways in which so many units of a demand can lie on these hosts."""
    if demand.spread is Spread.AFFINITY:
        yield from ({number: units} for number in numbers)
    elif demand.exclusive or demand.spread is Spread.ANTI_AFFINITY:
        yield from (dict.fromkeys(chosen, 1) for chosen in combinations(numbers, units))
    else:
        yield from _compositions(units, numbers)


def _compositions(units: int, numbers: Sequence[int]) -> Iterator[dict[int, int]]:
    if not numbers:
        if not units:
            yield {}
        return
    first, *others = numbers
    for count in range(units, -1, -1):
        for rest in _compositions(units - count, others):
            yield {first: count, **rest} if count else rest


# --- random situations


@dataclass(slots=True)
class Situation:
    """A ledger without faults, the tasks that are asked for, and the terms."""

    ledger: PlainLedger
    tasks: Sequence[Task]
    terms: Terms

    @property
    def names(self) -> frozenset[str]:
        """The reservations of the tasks."""
        return frozenset(task.reservation_id for task in self.tasks)


def situation(dice: Random, tasks: Callable[[Random, PlainLedger], Sequence[Task]]) -> Situation:
    """Draw a site with bookings that have room, and tasks."""
    ledger = site(dice)
    asked = tasks(dice, ledger)
    fixed_until = dice.choice((None, None, NOW + 3 * HOUR))
    for task in asked:
        ledger.demands[task.reservation_id] = task.demand
    return Situation(ledger, asked, terms_of(ledger, seed=dice.randint(0, 6), fixed_until=fixed_until))


def site(dice: Random, *, most_hosts: int = 6, most_bookings: int = 8) -> PlainLedger:
    """Draw hosts, and bookings that have room on them: running ones, plans, and what is kept or overdue."""
    hosts = [_host(dice, number) for number in range(1, dice.randint(2, most_hosts) + 1)]
    ledger = PlainLedger.of(hosts, NOW)
    for number in range(dice.randint(0, most_bookings)):
        _book_somewhere(dice, ledger, f"booked-{number}", demand(dice, hosts))
    return ledger


def _host(dice: Random, number: int) -> ListedResource:
    rack, is_reservable, scarcity = dice.choice("ab"), dice.random() < 0.9, dice.choice((0, 0, 1))
    return host(number, dice.randint(2, 8), rack=rack, reservable=is_reservable, scarcity=scarcity)


def demand(dice: Random, hosts: Sequence[ListedResource]) -> Demand:
    """Draw a demand."""
    rack, count = dice.choice(("", "", "", "a", "b")), dice.randint(1, 3)
    if dice.random() < 0.4:
        named = [dice.choice(hosts).id] if dice.random() < 0.2 else []
        return whole(count, count + dice.choice((0, 0, 1)), rack="" if named else rack, named=named)
    spread = dice.choice(list(Spread))
    return parts(count, dice.randint(1, 4), spread, maximum=count + dice.choice((0, 0, 1)), rack=rack)


def period(dice: Random) -> Period:
    """Draw a period that begins later."""
    start = dice.randint(1, 8)
    return hours(start, start + dice.randint(1, 6))


def _book_somewhere(dice: Random, ledger: PlainLedger, name: str, asked: Demand) -> None:
    """Book a reservation on random hosts, unless there is no room."""
    state = dice.choice((PLANNED, PLANNED, PLANNED, HELD, KEPT))
    span = period(dice)
    if state is not PLANNED:
        span = hours(-dice.randint(1, 3), dice.choice((0, 1, 2, 4, 9) if state is HELD else (4, 9)))
        if span.end <= NOW and any(allocation.period.end <= NOW for allocation in ledger.allocations.values()):
            return  # a single overdue one is enough
    numbers = [resource.id for resource in ledger.resources.values() if serves(resource, asked, reservable=False)]
    dice.shuffle(numbers)
    named = [int(number) for number in asked.named]
    for units in distributions(asked, asked.minimum, numbers):
        if not set(named) <= units.keys():
            continue
        if _has_room(ledger, asked, _lasting(span), units):
            several = {number: count for number, count in units.items() if count > 1}
            if several and dice.random() < 0.3:  # as after an addition: two allocations on the same host
                book(ledger, name, asked, span, dict.fromkeys(several, 1), state)
                units = {number: count - (number in several) for number, count in units.items()}
            book(ledger, name, asked, span, units, state)
            return


def _has_room(ledger: PlainLedger, asked: Demand, span: Period, units: Mapping[int, int]) -> bool:
    """Whether so many units by host have room beside all else."""
    there: dict[int, list[Allocation]] = defaultdict(list)
    for allocation in ledger.allocations.values():
        there[allocation.resource_id].append(replace(allocation, period=_lasting(allocation.period)))
    for number, count in units.items():
        amounts = asked.amounts.times(count)
        there[number].append(Allocation(0, number, "", span, PLANNED, amounts, asked.exclusive, count))
    return all(fits(ledger, number, there[number]) for number in units)


def _lasting(span: Period) -> Period:
    """Return how long an allocation is in the way: longer than it should be if it is overdue."""
    return Period(span.start, NOW + OVERDUE_MATTERS + TICK) if span.end <= NOW else span


def new_units(dice: Random, ledger: PlainLedger) -> Sequence[Task]:
    """Draw reservations that are new."""
    hosts = list(ledger.resources.values())
    span = period(dice)
    return [
        NewUnits(f"new-{number}", demand(dice, hosts), span if dice.random() < 0.7 else period(dice), position=number)
        for number in range(dice.randint(1, 3))
    ]


def growth(dice: Random, ledger: PlainLedger) -> Sequence[Task]:
    """Draw a running reservation that is to have more units, if there is one."""
    held = [
        allocation
        for allocation in ledger.allocations.values()
        if allocation.state is HELD and allocation.period.end > NOW
    ]
    if not held:
        return new_units(dice, ledger)
    chosen = dice.choice(held)
    name, before = chosen.reservation_id, ledger.demands[chosen.reservation_id]
    more = dice.randint(1, 2)
    here = frozenset(allocation.resource_id for allocation in held if allocation.reservation_id == name)
    return [
        NewUnits(
            name,
            replace(before, minimum=more, maximum=more),
            Period(NOW, chosen.period.end),
            without=here if before.exclusive or before.spread is Spread.ANTI_AFFINITY else frozenset(),
            only=here if before.spread is Spread.AFFINITY and not before.exclusive else None,
            state=HELD,
        )
    ]


def extensions(dice: Random, ledger: PlainLedger) -> Sequence[Task]:
    """Draw a running reservation that is to last longer, if there is one, and a new one."""
    held = [
        allocation
        for allocation in ledger.allocations.values()
        if allocation.state is HELD and allocation.period.end > NOW
    ]
    running = sorted({allocation.reservation_id for allocation in held})
    if not running:
        return new_units(dice, ledger)
    name = dice.choice(running)
    allocations = ledger.of_reservation(name)
    until = max(allocation.period.end for allocation in allocations) + dice.randint(1, 6) * HOUR
    extension = Extension(name, ledger.demands[name], allocations, until, NOW)
    return [extension, *(new_units(dice, ledger)[:1] if dice.random() < 0.4 else ())]


def revisions(dice: Random, ledger: PlainLedger) -> Sequence[Task]:
    """Draw changes of reservations that have not started: of their numbers, sizes or times."""
    planned = sorted(
        {allocation.reservation_id for allocation in ledger.allocations.values() if allocation.state is PLANNED}
    )
    if not planned:
        return new_units(dice, ledger)
    chosen = dice.sample(planned, min(len(planned), dice.randint(1, 2)))
    return [_revision(dice, ledger, name, position) for position, name in enumerate(chosen)]


def _revision(dice: Random, ledger: PlainLedger, name: str, position: int) -> Revision:
    before, plans = ledger.demands[name], ledger.of_reservation(name)
    span = plans[0].period
    after = span
    if dice.random() < 0.6:
        start = span.start + dice.choice((-1, 0, 0, 1)) * HOUR
        after = Period(max(start, NOW), max(start + HOUR, span.end + dice.choice((-1, 0, 1, 2)) * HOUR))
    asked = before
    if dice.random() < 0.6:
        count = max(1, before.minimum + dice.choice((-1, 0, 1)))
        asked = replace(asked, minimum=count, maximum=max(count, before.maximum))
    if not before.exclusive and dice.random() < 0.3:
        asked = replace(asked, amounts=Capacity({"VCPU": max(1, before.amounts["VCPU"] + dice.choice((-1, 1)))}))
    return Revision(
        name,
        before,
        asked,
        plans,
        after,
        keeps_start=after.start == span.start,
        adds_no_time=span.covers(after),
        position=position,
    )


# --- the judgement


def carry_out(
    found: Situation, before: Snapshot, after: Snapshot, *, moving: Allocation | None = None, growing: str = ""
) -> list[str]:
    """Apply what a plan changes to the ledger; return what is wrong with it, as texts.

    ``moving`` is an allocation that moves in any case, ``growing`` a reservation that gets more than it had.
    """
    ledger = found.ledger
    was = dict(ledger.allocations)
    changes = changes_of(before, after)
    ledger.apply(changes)
    faults = list(_differences(ledger, after))
    faults += _faults_of_tasks(found, was)
    faults += _faults_of_others(found, was, moving, found.names | {growing})
    faults += faults_of_hosts(ledger, was)
    taken_on = {allocation.resource_id for allocation in changes.added} | {
        now.resource_id for before, now in changes.changed if now.resource_id != before.resource_id
    }
    faults += [f"the version of host {number} is not told" for number in taken_on - changes.versions.keys()]
    return faults


def _content(allocations: Iterable[Allocation]) -> Counter[Allocation]:
    return Counter(replace(allocation, id=0) for allocation in allocations)


def _differences(ledger: PlainLedger, after: Snapshot) -> Iterator[str]:
    """Yield where the ledger is not as the snapshot says."""
    for number in ledger.resources:
        row = after.row_of(number)
        expected = [allocation for allocation in after.on(row) if allocation.id not in after.overdue]
        there = [allocation for allocation in ledger.allocations.values() if allocation.resource_id == number]
        if _content(expected) != _content(allocation for allocation in there if allocation.id not in after.overdue):
            yield f"host {number} has {there}, not {expected}"


def faults_of_hosts(ledger: PlainLedger, was: Mapping[int, Allocation]) -> Iterator[str]:
    """Yield where something that is new, or elsewhere, or at another time, has no room."""
    new = {allocation.id for allocation in ledger.allocations.values() if was.get(allocation.id) != allocation}
    for number in ledger.resources:
        there = [allocation for allocation in ledger.allocations.values() if allocation.resource_id == number]
        if any(allocation.id in new for allocation in there) and not fits(ledger, number, there):
            yield f"host {number} has no room for {there}"


def _faults_of_tasks(found: Situation, was: Mapping[int, Allocation]) -> Iterator[str]:
    for task in found.tasks:
        mine = found.ledger.of_reservation(task.reservation_id)
        if isinstance(task, NewUnits):
            yield from _faults_of_new_units(found.ledger, task, mine, was)
            continue
        if isinstance(task, Extension):
            if {allocation.resource_id for allocation in mine} != {
                allocation.resource_id for allocation in task.allocations
            }:
                yield f"{task} has left its hosts: {mine}"
            if any(allocation.period.end < task.until for allocation in mine):
                yield f"{task} does not last: {mine}"
            continue
        yield from _faults_of_units(task.reservation_id, task.demand, mine)
        span = task.span
        if not task.demand.minimum <= sum(allocation.units for allocation in mine) <= task.demand.maximum:
            yield f"{task} has {mine}"
        is_delayed = task.keeps_start
        if any(allocation.period != span and not is_delayed for allocation in mine):
            yield f"{task} has another time: {mine}"
        numbers = {str(allocation.resource_id) for allocation in mine}
        if not set(task.demand.named) <= numbers:
            yield f"{task} lacks a host that it names: {mine}"


def _faults_of_new_units(
    ledger: PlainLedger, task: NewUnits, mine: Sequence[Allocation], was: Mapping[int, Allocation]
) -> Iterator[str]:
    """Yield what is wrong with the units that a reservation has got besides those that it had."""
    yield from _faults_of_units(task.reservation_id, task.demand, mine)
    new = [allocation for allocation in mine if allocation.id not in was]
    had = [allocation for allocation in was.values() if allocation.reservation_id == task.reservation_id]
    if not set(had) <= set(mine):
        yield f"{task} has lost some of {had}"
    if not task.demand.minimum <= sum(allocation.units for allocation in new) <= task.demand.maximum:
        yield f"{task} has {new}"
    for allocation in new:
        if allocation.period != task.span or allocation.state is not task.state:
            yield f"{task} has {allocation}"
        is_open = allocation.resource_id not in task.without and (
            task.only is None or allocation.resource_id in task.only
        )
        if not is_open or not serves(ledger.resources[allocation.resource_id], task.demand):
            yield f"{task} is on a host that it cannot have: {allocation}"
    if not set(task.demand.named) <= {str(allocation.resource_id) for allocation in mine}:
        yield f"{task} lacks a host that it names: {mine}"


def _faults_of_units(name: str, asked: Demand, mine: Sequence[Allocation]) -> Iterator[str]:
    """Yield how the units of a reservation lie otherwise than they may."""
    units: Counter[int] = Counter()
    for allocation in mine:
        units[allocation.resource_id] += allocation.units
        if allocation.amounts != asked.amounts.times(allocation.units) or allocation.exclusive != asked.exclusive:
            yield f"{name} has {allocation}"
    if asked.spread is Spread.AFFINITY and len(units) > 1:
        yield f"{name} is not together: {units}"
    if asked.spread is Spread.ANTI_AFFINITY and any(count > 1 for count in units.values()):
        yield f"{name} is not apart: {units}"


def _faults_of_others(
    found: Situation, was: Mapping[int, Allocation], moving: Allocation | None, names: Collection[str]
) -> Iterator[str]:
    """Yield what others have lost, and what has moved that must not."""
    ledger, terms = found.ledger, found.terms
    after = ledger.allocations
    for allocation in was.values():
        if allocation.reservation_id in names or after.get(allocation.id) == allocation:
            continue
        is_fixed = terms.fixed_until is not None and allocation.period.start <= terms.fixed_until
        if (allocation.state is not PLANNED or is_fixed) and not _goes_along(allocation, moving):
            yield f"{allocation} has changed though it must not"
        if str(allocation.resource_id) in ledger.demands[allocation.reservation_id].named:
            yield f"{allocation} has left a host that it names"
    for name in {allocation.reservation_id for allocation in was.values()} - set(names):
        mine, before = (
            ledger.of_reservation(name),
            [allocation for allocation in was.values() if allocation.reservation_id == name],
        )
        if _units_by_period(mine) != _units_by_period(before):
            yield f"{name} had {before} and has {mine}"
        yield from _faults_of_units(name, ledger.demands[name], mine)
        for allocation in mine:
            resource = ledger.resources[allocation.resource_id]
            is_new = allocation.resource_id not in {other.resource_id for other in before}
            if is_new and not serves(resource, ledger.demands[name]):
                yield f"{allocation} has moved to a host that it cannot have"


def _goes_along(allocation: Allocation, moving: Allocation | None) -> bool:
    """Whether an allocation is that which moves in any case, or is on its host together with it."""
    if moving is None:
        return False
    return (allocation.reservation_id, allocation.resource_id) == (moving.reservation_id, moving.resource_id)


def _units_by_period(allocations: Iterable[Allocation]) -> Mapping[Period, int]:
    units: dict[Period, int] = defaultdict(int)
    for allocation in allocations:
        units[allocation.period] += allocation.units
    return dict(units)
