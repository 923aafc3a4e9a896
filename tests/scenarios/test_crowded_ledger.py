"""The model of the ledger in crowded clouds, where the result of a step depends on a detail.

Random requests leave a cloud too empty to show most faults. Here the model checks many crowds and steps, which is
cheap, until the answer depends on a detail: a plan that must move, an instant, or a host. Only this step is then tried
on the service, with the rules and the invariants of ``LedgerMachine``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st
from sqlalchemy import TextClause, text

from tenure.domain.capacity import Capacity
from tenure.domain.errors import NotEnoughResources
from tenure.domain.request import LeaseRequest
from tenure.domain.resource import DiscoveredResource, Resource
from tenure.store.database import Transaction
from tests.scenarios.test_ledger_model import (
    ADDRESS,
    TICK,
    VCPUS,
    Asked,
    Known,
    LedgerMachine,
    ModelDemand,
    Room,
    Use,
)
from tests.support.lengths import times
from tests.support.simulated import HostHealth
from tests.support.world import HOST, OWNER

#: The length of a lane of a host, in ticks.
LENGTH = 4
#: The periods in which a lane is taken: always, with a change of lease, with a gap, or never.
FULL, FREE = ((0, LENGTH),), ()
PATTERNS: Sequence[Sequence[tuple[int, int]]] = (
    FULL,
    ((0, 2), (2, 4)),
    ((0, 1), (1, 4)),
    ((0, 1), (2, 4)),
    ((1, 3),),
    ((2, 4),),
    ((0, 2),),
    ((0, 3),),
    FREE,
)
#: The divisions of the virtual CPUs of a host into lanes.
LANES = ((4,), (2, 2), (2, 2), (3, 1), (2, 1, 1))
#: The number of crowds and steps that the model checks before it gives up the seed.
ATTEMPTS = 4000
#: The largest number of placements of some demands that are checked for room for another demand.
MOST_PLACEMENTS = 60


@dataclass(frozen=True)
class ModelAllocation:
    """A reservation, and the resource with all its units."""

    asked: Asked
    resource_id: int
    #: The units that the running reservation gets there later.
    grows: int = 0


@dataclass(frozen=True)
class Booking:
    """A lease of the crowd, with its start and end in ticks."""

    start: int
    end: int
    allocations: tuple[ModelAllocation, ...]

    @property
    def runs(self) -> bool:
        return self.start == 0


@dataclass
class Crowd:
    """The leases of the model, with their resources."""

    now: datetime
    resources: dict[int, Resource]
    bookings: list[Booking] = field(default_factory=list)

    def at(self, tick: int) -> datetime:
        return self.now + tick * TICK

    @property
    def hosts(self) -> list[int]:
        return [resource.id for resource in self.resources.values() if resource.resource_type == HOST]

    @property
    def addresses(self) -> list[int]:
        return [resource.id for resource in self.resources.values() if resource.resource_type == ADDRESS]

    @property
    def asked(self) -> dict[str, Asked]:
        return {
            f"{index}.{position}": allocation.asked
            for index, booking in enumerate(self.bookings)
            for position, allocation in enumerate(booking.allocations)
        }

    def uses(self, *, at: int = 0) -> list[Use]:
        """Return the present and planned uses after this tick."""
        return [
            Use(
                -1,
                allocation.resource_id,
                f"{index}.{position}",
                self.at(booking.start),
                self.at(booking.end),
                count,
                count * allocation.asked.vcpus,
                allocation.asked.kind != "instances",
                booking.start >= at and not booking.runs,
            )
            for index, booking in enumerate(self.bookings)
            for position, allocation in enumerate(booking.allocations)
            for count in (allocation.asked.amount, allocation.grows)
            if count and booking.end > at
        ]

    def room(self, uses: Sequence[Use] | None = None, *, late: Sequence[int] = ()) -> Room:
        return Room(self.resources, self.uses() if uses is None else uses, late)

    def could(self, room: Room, demands: Sequence[ModelDemand], *, mine: Sequence[str] = (), at: int = 0) -> bool:
        return room.could(demands, self.asked, mine, self.at(at))

    def running(self) -> Iterator[tuple[int, Booking]]:
        return ((index, booking) for index, booking in enumerate(self.bookings) if booking.runs)

    def waiting(self) -> Iterator[tuple[int, Booking]]:
        return ((index, booking) for index, booking in enumerate(self.bookings) if not booking.runs)


def _allocation(rng: Random, resource: Resource, width: int) -> ModelAllocation:
    """Return a reservation of instances with ``width`` virtual CPUs in total, or of the whole host."""
    rack = resource.properties.get("rack", "") if rng.random() < 0.2 else ""
    if width == VCPUS and rng.random() < 0.4:
        return ModelAllocation(Asked("hosts", 1, rack=rack), resource.id)
    amounts = [amount for amount in (1, 1, 2, 4) if width % amount == 0]
    amount = rng.choice(amounts)
    affinity = rng.choice([None, None, True, False] if amount == 1 else [None, True])
    return ModelAllocation(Asked("instances", amount, vcpus=width // amount, affinity=affinity, rack=rack), resource.id)


def fill(crowd: Crowd, rng: Random, *, most: int = 9) -> None:
    """Put leases on hosts, lane by lane; some leases have several reservations."""
    bookings: list[Booking] = []
    for resource_id in crowd.hosts:
        resource = crowd.resources[resource_id]
        lanes = [width for width in rng.choice(LANES) if width <= resource.capacity["VCPU"]]
        left = resource.capacity["VCPU"]
        for width in lanes:
            if width > left:
                continue
            left -= width
            for start, end in rng.choice(PATTERNS):
                allocation = _allocation(rng, resource, width)
                if crowd.room([]).takes(resource, allocation.asked, 1):
                    _add(bookings, rng, Booking(start, end, (allocation,)))
    crowd.bookings = bookings[:most]


def fill_addresses(crowd: Crowd, rng: Random) -> None:
    bookings: list[Booking] = []
    for resource_id in crowd.addresses:
        names = frozenset({crowd.resources[resource_id].name} if rng.random() < 0.2 else ())
        for start, end in rng.choice(PATTERNS):
            _add(
                bookings, rng, Booking(start, end, (ModelAllocation(Asked("addresses", 1, names=names), resource_id),))
            )
    crowd.bookings = bookings


def _add(bookings: list[Booking], rng: Random, booking: Booking) -> None:
    """Add the booking as a separate lease, or as a reservation of a lease with the same period."""
    for index, other in enumerate(bookings):
        allocations = other.allocations + booking.allocations
        same = (other.start, other.end) == (booking.start, booking.end) and len(allocations) <= 3
        # Instances without affinity could be booked on several hosts.
        if (
            same
            and all(allocation.asked.amount == 1 or allocation.asked.affinity for allocation in allocations)
            and rng.random() < 0.3
        ):
            bookings[index] = replace(other, allocations=allocations)
            return
    bookings.append(booking)


class CrowdedMachine(LedgerMachine):
    """The machine, filled with a crowd."""

    def fill(self, crowd: Crowd) -> None:
        note("\n".join(map(str, crowd.bookings)))
        placed = list(enumerate(crowd.bookings))
        # Leases on several hosts come first, as long as there is room for all their allocations.
        placed.sort(key=lambda pair: -len({allocation.resource_id for allocation in pair[1].allocations}))
        leases = {index: self.place(crowd, booking) for index, booking in placed}
        self.all = [leases[index] for index in range(len(placed))]
        self.reservable({resource.id for resource in crowd.resources.values() if resource.reservable})
        self.world.engine.settle()
        self.invariants_hold()
        # The allocations of a lease on several hosts may have been placed the other way round.
        assume(self.is_placed(crowd))

    def is_placed(self, crowd: Crowd) -> bool:
        """Whether all allocations are those of the crowd."""
        return sorted((use.resource_id, use.start, use.end, use.vcpus) for use in self.uses()) == sorted(
            (use.resource_id, use.start, use.end, use.vcpus)
            for use in replace(crowd, bookings=[_not_grown(booking) for booking in crowd.bookings]).uses()
        )

    def place(self, crowd: Crowd, booking: Booking) -> Known:
        """Book a lease on its resources in the crowd."""
        self.reservable({allocation.resource_id for allocation in booking.allocations})
        requested = [allocation.asked for allocation in booking.allocations]
        request = LeaseRequest(
            "lease",
            crowd.at(booking.start),
            crowd.at(booking.end),
            reservations=tuple(asked.request for asked in requested),
        )
        try:
            lease = self.world.leases.create(OWNER, request)
        except NotEnoughResources:
            assume(False)
        ids = [reservation.id for reservation in lease.reservations]
        if len({allocation.resource_id for allocation in booking.allocations}) > 1:
            move = text("UPDATE allocations SET resource_id = :resource WHERE reservation_id = :reservation")
            self.write(
                [
                    (move, {"resource": allocation.resource_id, "reservation": reservation_id})
                    for reservation_id, allocation in zip(ids, booking.allocations, strict=True)
                ]
            )
        return Known(lease, dict(zip(ids, requested, strict=True)))

    def reservable(self, resource_ids: set[int]) -> None:
        """Make only these resources reservable."""
        close, reopen = (
            text("UPDATE resources SET reservable = 0"),
            text("UPDATE resources SET reservable = 1 WHERE id = :id"),
        )
        self.write([(close, {}), *((reopen, {"id": resource_id}) for resource_id in resource_ids)])

    def write(self, statements: Sequence[tuple[TextClause, Mapping[str, object]]]) -> None:
        """Write to the tables by hand, and tell the indexes that follow the ledger."""

        def work(tx: Transaction) -> None:
            for statement, values in statements:
                tx.session.execute(statement, dict(values))
            tx.changed.add_resources(ids)

        ids = list(self.resources())
        self.world.db.write(work)

    def limit(self, number: int, *, vcpus: int = VCPUS, most: int | None = None) -> None:
        """Change the size of a host, or the most virtual CPUs of an instance there, before the first booking."""
        host = self.host(number)
        limits = {} if most is None else {"VCPU": {"min": 1, "max": most, "step": 1}}
        capacity = Capacity({"VCPU": vcpus, "MEMORY_MB": 2**20, "DISK_GB": 1000})
        found = DiscoveredResource(HOST, host.external_id, host.name, capacity, host.facts, limits=limits)
        self.world.db.write(lambda tx: tx.resources.describe(host, found, now=self.now))

    def number_of(self, resource_id: int) -> int:
        return int(self.resources()[resource_id].external_id)

    def invariants_hold(self) -> None:
        self.the_ledger_is_sound()
        self.no_start_waits_that_could_be_served()


def _not_grown(booking: Booking) -> Booking:
    return replace(booking, allocations=tuple(replace(allocation, grows=0) for allocation in booking.allocations))


#: A step whose result depends on a detail.
Step = Callable[[], None]


def seek(machine: CrowdedMachine, rng: Random, look: Callable[[Crowd], Step | None], **options: int) -> None:
    """Try crowds until ``look`` finds a step in a crowd; take the step, and check the invariants."""
    resources = machine.resources()
    for _ in range(ATTEMPTS):
        crowd = Crowd(machine.now, resources)
        fill(crowd, rng, **options)
        step = look(crowd)
        if step is not None:
            machine.fill(crowd)
            step()
            machine.invariants_hold()
            return
    assume(False)


def needs_a_move(crowd: Crowd, demand: ModelDemand, *, mine: Sequence[str] = ()) -> bool:
    room = crowd.room([use for use in crowd.uses() if use.reservation_id not in mine])
    return not room.fit([demand]) and crowd.could(room, [demand], mine=mine)


def is_fragile(room: Room, demands: Sequence[ModelDemand]) -> bool:
    """Whether all demands fit, and some placement of a demand leaves no room for the others."""
    return room.fit(demands) and any(
        not _with(room, demand, placement).fit(rest)
        for demand, rest in _each(demands)
        for placement in room.placements(demand)
    )


def depends_on_the_order(crowd: Crowd, demands: Sequence[ModelDemand]) -> bool:
    """Whether a demand does not fit after most placements of the others, and in another order all demands fit.

    In that order they must fit with every placement: the service tries a single placement in each order, and could miss
    the right one.
    """
    room = crowd.room()
    if not room.fit(demands):
        return False
    asked = crowd.asked | {demand.reservation_id: demand.asked for demand in demands}
    for demand, others in _each(demands):
        rooms = list(islice(_rooms_left(room, others), MOST_PLACEMENTS))
        too_small = [left for left in rooms if not left.could([demand], asked, (), crowd.now)]
        if len(too_small) * 2 > len(rooms):
            return _always_fit(room, demands)
    return False


def _always_fit(room: Room, demands: Sequence[ModelDemand]) -> bool:
    """Whether there is an order in which all demands fit with every placement."""
    return not demands or any(
        room.fit([demand])
        and all(_always_fit(_with(room, demand, placement), rest) for placement in room.placements(demand))
        for demand, rest in _each(demands)
    )


def _rooms_left(room: Room, demands: Sequence[ModelDemand]) -> Iterator[Room]:
    """Return the remaining room for each placement of all demands."""
    if not demands:
        yield room
        return
    demand, *rest = demands
    for placement in room.placements(demand):
        yield from _rooms_left(_with(room, demand, placement), rest)


def _each(demands: Sequence[ModelDemand]) -> Iterator[tuple[ModelDemand, Sequence[ModelDemand]]]:
    """Return each demand with the other demands."""
    return ((demand, [*demands[:index], *demands[index + 1 :]]) for index, demand in enumerate(demands))


def _with(room: Room, demand: ModelDemand, placement: Mapping[int, int]) -> Room:
    """Return the remaining room after a placement of a demand as a plan."""
    whole, size = demand.asked.kind != "instances", demand.asked.vcpus
    taken = [
        Use(-1, resource_id, demand.reservation_id, demand.start, demand.end, count, count * size, whole, True)
        for resource_id, count in placement.items()
    ]
    return Room(room.resources, [*room.uses, *taken], room.late)


def _requested(rng: Random) -> Asked:
    kind = rng.choice(["hosts", "instances", "instances", "instances"])
    rack = rng.choice(["", "", "", "r1", "r2"])
    if kind == "hosts":
        return Asked("hosts", rng.choice([1, 1, 2]), rack=rack)
    affinity = rng.choice([None, None, True, False])
    return Asked("instances", rng.choice([1, 1, 2, 3]), vcpus=rng.randint(1, VCPUS), affinity=affinity, rack=rack)


def _times(rng: Random) -> tuple[int, int]:
    start = rng.randrange(LENGTH)
    return start, rng.randint(1, LENGTH - start)


# --- the steps


def a_request_that_needs_a_move(machine: CrowdedMachine, rng: Random) -> None:
    def look(crowd: Crowd) -> Step | None:
        start, length = _times(rng)
        requested = _requested(rng)
        demand = ModelDemand(requested, requested.amount, crowd.at(start), crowd.at(start + length))
        return (lambda: machine.create(start, length, [requested])) if needs_a_move(crowd, demand) else None

    seek(machine, rng, look)


def a_request_that_needs_a_move_to_a_host_with_limits(machine: CrowdedMachine, rng: Random) -> None:
    """A host has a limit on the virtual CPUs of an instance, which the request exceeds, but not every plan."""
    limited = rng.randint(1, machine.HOSTS)
    most = rng.randint(1, 2)
    machine.limit(limited, most=most)

    def look(crowd: Crowd) -> Step | None:
        start, length = _times(rng)
        requested = Asked("instances", 1, vcpus=rng.randint(most + 1, VCPUS))
        demand = ModelDemand(requested, 1, crowd.at(start), crowd.at(start + length))
        if not needs_a_move(crowd, demand):
            return None
        resources = {resource.id: resource for resource in crowd.resources.values() if resource.id != host.id}
        others = replace(crowd, resources=resources)
        others.bookings = [
            booking
            for booking in crowd.bookings
            if all(allocation.resource_id != host.id for allocation in booking.allocations)
        ]
        return None if others.could(others.room(), [demand]) else lambda: machine.create(start, length, [requested])

    host = machine.host(limited)
    seek(machine, rng, look)


def a_request_for_addresses_by_name(machine: CrowdedMachine, rng: Random) -> None:
    resources = machine.resources()
    for _ in range(ATTEMPTS):
        crowd = Crowd(machine.now, resources)
        fill_addresses(crowd, rng)
        start, length = _times(rng)
        known = [resources[resource_id].name for resource_id in crowd.addresses]
        names = frozenset(rng.sample(known, rng.randint(0, 2)))
        requested = Asked("addresses", rng.randint(max(1, len(names)), 2), names=names)
        if needs_a_move(crowd, ModelDemand(requested, requested.amount, crowd.at(start), crowd.at(start + length))):
            machine.fill(crowd)
            machine.create(start, length, [requested])
            machine.invariants_hold()
            return
    assume(False)


def a_request_for_several_that_just_fit(machine: CrowdedMachine, rng: Random) -> None:
    def look(crowd: Crowd) -> Step | None:
        start, length = _times(rng)
        requested = [_requested(rng) for _ in range(rng.randint(2, 3))]
        demands = [
            ModelDemand(asked, asked.amount, crowd.at(start), crowd.at(start + length), f"new.{position}")
            for position, asked in enumerate(requested)
        ]
        return (lambda: machine.create(start, length, requested)) if depends_on_the_order(crowd, demands) else None

    seek(machine, rng, look, most=6)


def a_change_of_a_waiting_lease(machine: CrowdedMachine, rng: Random) -> None:
    def look(crowd: Crowd) -> Step | None:
        waiting = list(crowd.waiting())
        if not waiting:
            return None
        index, booking = rng.choice(waiting)
        start, end = rng.randint(0, 2), rng.randint(3, LENGTH)
        amounts = [rng.randint(1, 3) for _ in booking.allocations]
        demands = [
            ModelDemand(
                allocation.asked.with_amount(amount), amount, crowd.at(start), crowd.at(end), f"{index}.{position}"
            )
            for position, (allocation, amount) in enumerate(zip(booking.allocations, amounts, strict=True))
        ]
        mine = [demand.reservation_id for demand in demands]
        beside = crowd.room([use for use in crowd.uses() if use.reservation_id not in mine])
        if not (len(demands) == 1 and needs_a_move(crowd, demands[0], mine=mine)) and not is_fragile(beside, demands):
            return None
        by_end, by_start = end - booking.end, start - booking.start
        return lambda: machine.change(index, by_end or None, by_start or None, list(amounts), False)

    seek(machine, rng, look)


def a_running_lease_that_grows(machine: CrowdedMachine, rng: Random) -> None:
    """If the lease also ends earlier at once, the time that it gives up must not count as room for its growth."""
    ends_earlier = rng.random() < 0.7

    def look(crowd: Crowd) -> Step | None:
        running = list(crowd.running())
        if not running:
            return None
        index, booking = rng.choice(running)
        grown = rng.randrange(len(booking.allocations))
        allocation = booking.allocations[grown]
        more, end = rng.randint(1, 2), rng.randint(1, booking.end)
        here = frozenset({allocation.resource_id})
        apart = here if allocation.asked.kind != "instances" or allocation.asked.affinity is False else frozenset()
        only = here if allocation.asked.affinity else None
        demand = ModelDemand(allocation.asked, more, crowd.at(0), crowd.at(end), f"{index}.{grown}", only, apart)
        mine = [f"{index}.{position}" for position in range(len(booking.allocations))]
        room = crowd.room()
        if ends_earlier:
            shorter = [replace(use, end=crowd.at(end)) if use.reservation_id in mine else use for use in room.uses]
            if crowd.could(room, [demand], mine=mine) or not crowd.could(crowd.room(shorter), [demand], mine=mine):
                return None
        elif room.fit([demand]) or not crowd.could(room, [demand], mine=mine):
            return None
        amounts: list[int | None] = [None] * len(booking.allocations)
        amounts[grown] = allocation.asked.amount + more
        by_end = end - booking.end
        return lambda: machine.change(index, by_end or None, None, amounts, rng.random() < 0.7)

    seek(machine, rng, look)


def a_host_that_fails_below_a_lease_that_has_grown(machine: CrowdedMachine, rng: Random) -> None:
    """The instances of a lease that has grown stay together: all of them move, or none."""

    def look(crowd: Crowd) -> Step | None:
        failing = rng.choice(crowd.hosts)
        amount, more = rng.randint(1, 2), rng.randint(1, 2)
        grown = ModelAllocation(Asked("instances", amount, vcpus=1, affinity=True), failing, grows=more)
        crowd.bookings = [
            Booking(0, LENGTH, (grown,)),
            *(
                booking
                for booking in crowd.bookings
                if all(allocation.resource_id != failing for allocation in booking.allocations)
            ),
        ]
        room = crowd.room([use for use in crowd.uses() if use.reservation_id != "0.0"])
        whole = ModelDemand(grown.asked, amount + more, crowd.at(0), crowd.at(LENGTH), without=frozenset({failing}))
        if room.fit([whole]) or not any(
            needs_a_move(crowd, replace(whole, amount=count), mine=["0.0"]) for count in (amount, more)
        ):
            return None

        def step() -> None:
            machine.change(0, None, None, [amount + more], False)
            machine.invariants_hold()
            number = machine.number_of(failing)
            for health in (HostHealth.DOWN, HostHealth.UP):
                machine.a_host_fails_or_comes_back(number, health)
                machine.invariants_hold()

        return step

    seek(machine, rng, look)


def a_host_that_fails(machine: CrowdedMachine, rng: Random) -> None:
    def look(crowd: Crowd) -> Step | None:
        failing = rng.choice(crowd.hosts)
        lost = {use.reservation_id for use in crowd.uses() if use.resource_id == failing}

        def step() -> None:
            number = machine.number_of(failing)
            for health in (rng.choice([HostHealth.DOWN, HostHealth.DISABLED]), HostHealth.UP):
                machine.a_host_fails_or_comes_back(number, health)
                machine.invariants_hold()

        return step if len(lost) > 1 else None

    seek(machine, rng, look)


def a_host_that_shrinks_below_leases_that_give_up_time(machine: CrowdedMachine, rng: Random) -> None:
    def look(crowd: Crowd) -> Step | None:
        shrinking = rng.choice(crowd.hosts)
        there = [
            (index, booking)
            for index, booking in enumerate(crowd.bookings)
            if any(allocation.resource_id == shrinking for allocation in booking.allocations)
            and booking.end - booking.start > 1
        ]
        if len(there) < 2:
            return None

        def step() -> None:
            vcpus, limit = rng.choice([(1, None), (2, None), (3, None), (VCPUS, 1)])
            machine.a_host_changes(machine.number_of(shrinking), vcpus, limit)
            machine.invariants_hold()
            for index, booking in there:
                fewer: list[int | None] = [
                    None if booking.runs else max(1, allocation.asked.amount - 1) for allocation in booking.allocations
                ]
                later = rng.choice([None, 1]) if not booking.runs and booking.end - booking.start > 2 else None
                machine.change(index, -1, later, rng.choice([fewer, [None] * len(fewer)]), False)
                machine.invariants_hold()

        return step

    seek(machine, rng, look)


def a_start_behind_a_hanging_teardown(machine: CrowdedMachine, rng: Random) -> None:
    def look(crowd: Crowd) -> Step | None:
        pairs = [
            (slow, before, waiting, after)
            for slow, before in crowd.running()
            for waiting, after in crowd.waiting()
            if before.end == after.start and len(after.allocations) == 1 and after.allocations[0].asked.affinity is None
            if any(allocation.resource_id == after.allocations[0].resource_id for allocation in before.allocations)
        ]
        if not pairs:
            return None
        slow, before, waiting, after = rng.choice(pairs)
        allocation, begin = after.allocations[0], after.start
        mine = [f"{waiting}.0"]
        late = {other.resource_id for other in before.allocations}
        room = crowd.room([use for use in crowd.uses(at=begin) if use.reservation_id not in mine], late=sorted(late))
        demand = ModelDemand(
            allocation.asked,
            allocation.asked.amount,
            crowd.at(begin),
            crowd.at(after.end),
            mine[0],
            without=frozenset(late),
        )
        if room.fit([demand]) or not crowd.could(room, [demand], mine=mine, at=begin):
            return None

        def step() -> None:
            machine.teardown_of_a_lease_will_hang(slow)
            machine.world.pass_until(crowd.at(begin))
            machine.invariants_hold()
            machine.pass_time(timedelta(minutes=2))
            machine.invariants_hold()
            machine.every_teardown_ends()

        return step

    seek(machine, rng, look)


def a_reservation_given_back_after_the_cleaning_time_was_raised(machine: CrowdedMachine, rng: Random) -> None:
    def look(crowd: Crowd) -> Step | None:
        several = [(index, booking) for index, booking in crowd.running() if len(booking.allocations) > 1]
        if not several:
            return None
        index, booking = rng.choice(several)
        dropped = rng.randrange(len(booking.allocations))
        followed = any(
            use.resource_id == allocation.resource_id and use.start == crowd.at(booking.end)
            for position, allocation in enumerate(booking.allocations)
            for use in crowd.uses()
            if position != dropped and allocation.asked.amount * allocation.asked.vcpus in (0, VCPUS // 2, VCPUS)
        )
        if not followed or len(crowd.bookings) < 4:
            return None

        def step() -> None:
            machine.the_operator_sets_another_cleaning_time(rng.choice([5, 15]))
            machine.drop(index, dropped)

        return step

    seek(machine, rng, look)


class ManyHosts(CrowdedMachine):
    """A cloud of many hosts."""

    HOSTS = 13

    def rack(self, number: int) -> str:
        return "r1" if number < self.HOSTS else "r2"


def a_plan_that_can_move_behind_many_that_cannot(machine: CrowdedMachine, rng: Random) -> None:
    """All plans but one name their hosts; only the other one can move to the host of another rack."""
    crowd = Crowd(machine.now, machine.resources())
    *others, _last = crowd.hosts
    free = rng.choice(others[-3:])
    requested = rng.choice([Asked("hosts", 1, rack="r1"), Asked("instances", 1, vcpus=VCPUS, rack="r1")])
    asked = replace(requested, rack="")
    named = tuple(
        ModelAllocation(replace(asked, host=crowd.resources[resource_id].name), resource_id)
        for resource_id in others
        if resource_id != free
    )
    crowd.bookings = [Booking(1, 2, named), Booking(1, 2, (ModelAllocation(asked, free),))]
    assert needs_a_move(crowd, ModelDemand(requested, 1, crowd.at(1), crowd.at(2)))
    machine.fill(crowd)
    machine.create(1, 1, [requested])
    machine.invariants_hold()


STEPS = (
    a_request_that_needs_a_move,
    a_request_that_needs_a_move_to_a_host_with_limits,
    a_request_for_addresses_by_name,
    a_request_for_several_that_just_fit,
    pytest.param(a_change_of_a_waiting_lease, marks=pytest.mark.slow),
    pytest.param(a_running_lease_that_grows, marks=pytest.mark.slow),
    pytest.param(a_host_that_fails_below_a_lease_that_has_grown, marks=pytest.mark.slow),
    pytest.param(a_host_that_fails, marks=pytest.mark.slow),
    a_host_that_shrinks_below_leases_that_give_up_time,
    pytest.param(a_start_behind_a_hanging_teardown, marks=pytest.mark.slow),
    a_reservation_given_back_after_the_cleaning_time_was_raised,
    a_plan_that_can_move_behind_many_that_cannot,
)

#: An example takes one or two seconds.
EXAMPLES = 1 if settings().max_examples <= 100 else times(3, 50)
#: The tests of each step with so many examples each: none of them takes longer than a few minutes.
BATCHES = times(1, 4)


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@settings(
    max_examples=EXAMPLES,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking the seed does not shrink the crowd
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(seed=st.integers(0, 2**32 - 1), alike=st.booleans())
def test_step_whose_result_depends_on_a_detail(
    step: Callable[[CrowdedMachine, Random], None], batch: int, seed: int, alike: bool
) -> None:
    machine = ManyHosts() if step is a_plan_that_can_move_behind_many_that_cannot else CrowdedMachine()
    machine.begin(alike=alike)
    try:
        step(machine, Random(seed))
    finally:
        machine.stack.close()
