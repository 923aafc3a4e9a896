"""Which resource serves which reservation, and when; and the choice of resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from tenure.domain.capacity import Capacity, idle_time, peak, units_free
from tenure.domain.lease import AllocationState
from tenure.domain.period import ENDLESS, Period
from tenure.domain.requirement import Expression


class Spread(StrEnum):
    """How the units of a reservation lie on resources."""

    APART = "apart"  # no two on one
    ANY = "any"
    TOGETHER = "together"  # all on one


@dataclass(frozen=True, slots=True)
class Demand:
    """What a reservation asks of the ledger, said by its resource type.

    Between ``minimum`` and ``maximum`` units, on resources of type ``inventory`` that match ``expression``, have all
    of ``required`` traits and none of the ``forbidden`` ones. A unit takes ``amounts`` of its resource, or all of it
    where it is ``exclusive``; then ``spread`` is APART. The resources whose external ids are ``named`` must be among
    them.
    """

    inventory: str
    noun: str
    minimum: int
    maximum: int
    expression: Expression
    amounts: Capacity
    exclusive: bool
    spread: Spread = Spread.APART
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    named: tuple[str, ...] = ()
    #: The parameter that says how many.
    parameter: str = "amount"
    #: The parameter that names those which must be among them.
    naming: str = ""
    #: What a unit takes at once of one provider, where that is not all of it; what the cloud's limits are about.
    portions: tuple[Capacity, ...] = ()
    #: The type of reservation that asks, for the refusal.
    resource_type: str = ""
    #: Where all of them are.
    region: str = ""
    #: Whether the expression has names that the request has, not such as the type has of its own.
    names_are_asked: bool = True
    #: Whether something is kept when the lease ends, and goes on taking as much.
    lasting: bool = False
    #: A thing that is in the cloud already and that the reservation is about; it has one live reservation at most.
    subject: str | None = None

    @property
    def units_together(self) -> int:
        """How many units a resource must have room for to be of any use."""
        return self.minimum if self.spread is Spread.TOGETHER else 1

    @property
    def at_once(self) -> tuple[Capacity, ...]:
        """What a unit takes at once of one provider: what the cloud's limits are held against."""
        return self.portions or (self.amounts,)

    def span(self, period: Period) -> Period:
        """For how long it takes what it takes of a lease with that period: what lasts is promised without an end."""
        return Period(period.start, ENDLESS) if self.lasting else period

    def part(self, units: int) -> Demand:
        """The same demand for so many units on one resource."""
        together = Spread.APART if self.exclusive else Spread.TOGETHER
        return replace(self, minimum=units, maximum=units, spread=together, named=())

    def is_within(self, other: Demand) -> bool:
        """Whether whatever serves ``other`` serves this as well, but for how many units there are.

        That is so where it asks for no more of a unit, of no other kind, and no more strictly.
        """
        return (
            (self.inventory, self.region, self.exclusive) == (other.inventory, other.region, other.exclusive)
            and self.spread in {other.spread, Spread.ANY}
            and other.amounts.fits(self.amounts)
            and set(self.expression.terms) <= set(other.expression.terms)
            and self.required <= other.required
            and self.forbidden <= other.forbidden
            and set(self.named) <= set(other.named)
            and self.lasting <= other.lasting
        )


def hardest_first(demands: Sequence[Demand]) -> list[int]:
    """In which order several demands of one lease are placed: their places in the sequence.

    What takes as many as it can get comes last, so that the others get what they need. Before it whole resources, then
    what needs the most resources at once, and then what needs most in one place: the small fits beside the large more
    often than the other way round, as in first fit decreasing (Johnson, Near-optimal bin packing algorithms, 1973).
    """

    def key(position: int) -> tuple[object, ...]:
        demand = demands[position]
        resources = demand.minimum if demand.spread is Spread.APART else 1
        together = [-demand.units_together * demand.amounts.get(name, 0) for name in ("VCPU", "MEMORY_MB", "DISK_GB")]
        return demand.maximum > demand.minimum, not demand.exclusive, -resources, together

    return sorted(range(len(demands)), key=key)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A resource that has room for the whole period, for so many ``units``.

    ``free_since`` is the end of what is booked before, ``free_until`` the start of what is booked after, None where
    nothing is. ``idle`` is for how long of the period nothing at all is booked there.
    """

    resource_id: int
    version: int
    scarcity: int
    free_since: datetime | None = None
    free_until: datetime | None = None
    units: int = 1
    idle: timedelta = timedelta(0)
    is_named: bool = False


@dataclass(frozen=True, slots=True)
class Allocation:
    """A resource, or so many ``units`` of it, assigned to a reservation for a period; ``amounts`` are those of all."""

    id: int
    resource_id: int
    reservation_id: str
    period: Period
    state: AllocationState
    amounts: Capacity
    exclusive: bool
    units: int = 1


@dataclass(frozen=True, slots=True)
class Use:
    """What an allocation has of a resource, and for how long."""

    allocation_id: int
    amounts: Capacity
    exclusive: bool
    period: Period


@dataclass(frozen=True, slots=True)
class Room:
    """What a resource has, and what is had of it in some period, within which all questions are."""

    capacity: Capacity
    uses: tuple[Use, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether an allocation has all of the resource."""
        return any(use.exclusive for use in self.uses)

    def used(self, period: Period) -> Capacity:
        """The most that is had at any instant of the period, class by class, of what is had in parts."""
        return peak(self._parts(), period)

    def units(self, amounts: Capacity, period: Period) -> int:
        """For how many units of these amounts there is room throughout the period."""
        return 0 if self.is_whole else units_free(self.capacity, self._parts(), amounts, period)

    def idle(self, period: Period) -> timedelta:
        """For how long of the period nothing at all is had."""
        return idle_time((use.period for use in self.uses), period)

    def without(self, allocation: Allocation) -> Room:
        """The room where the allocation has gone."""
        return replace(self, uses=tuple(use for use in self.uses if use.allocation_id != allocation.id))

    def beside(self, allocation: Allocation) -> Room:
        """The room where the allocation has come."""
        use = Use(allocation.id, allocation.amounts, allocation.exclusive, allocation.period)
        return replace(self, uses=(*self.uses, use))

    def _parts(self) -> Iterator[tuple[Period, Capacity]]:
        return ((use.period, use.amounts) for use in self.uses)


@dataclass(frozen=True, slots=True)
class HostOfLease:
    """A resource that a lease has, had or will have."""

    resource_id: int
    reservation_id: str
    period: Period
    state: AllocationState


@dataclass(frozen=True, slots=True)
class Booking:
    """A reservation's part in a resource, as the allocation lists show it: with the dates of the lease."""

    resource_id: int
    reservation_id: str
    lease_id: str
    starts_at: datetime
    ends_at: datetime


#: A gap without an end counts as this long.
_ENDLESS = timedelta(days=365_000)
#: More units than any resource has room for.
_ALL = 2**31


@dataclass(frozen=True, slots=True)
class Place:
    """So many units on a resource, whose version was this one when it was chosen."""

    resource_id: int
    version: int
    units: int = 1


def choose(candidates: Iterable[Candidate], demand: Demand, period: Period, *, turn: int) -> list[Place]:
    """The best places for up to ``demand.maximum`` units, fewer where there is no room for so many.

    The order of preference, each deciding where the one before is equal:

    1. what the request names;
    2. the least special resources, so that a scarce one is left for those who ask for it;
    3. where the least time begins in which a resource that was wholly free is not any more: requests that take parts
       gather on resources that are in use all the while, and whole ones stay free for long;
    4. the tightest gap: the least time left idle on the nearer side of the period, in the free stretch around it, and
       then on the other: what is left is in one piece where there is a choice, and long gaps stay whole;
    5. the tightest fit: the fewest units that could still be had there afterwards, so that large rooms stay large;
    6. the id, turned by ``turn`` (made from the request's id), so that requests made at the same time do not all
       reach for the same resource.
    """

    def preference(candidate: Candidate) -> tuple[bool, int, timedelta, timedelta, timedelta, int, bool, int]:
        before = period.start - candidate.free_since if candidate.free_since else _ENDLESS
        behind = candidate.free_until - period.end if candidate.free_until else _ENDLESS
        return (
            not candidate.is_named,
            candidate.scarcity,
            candidate.idle,
            min(before, behind),
            max(before, behind),
            max(0, candidate.units - demand.maximum),
            candidate.resource_id < turn,
            candidate.resource_id,
        )

    ordered = sorted(candidates, key=preference)
    if demand.spread is Spread.TOGETHER:
        roomy = [one for one in ordered if one.units >= demand.maximum] or sorted(ordered, key=lambda one: -one.units)
        return [Place(one.resource_id, one.version, min(one.units, demand.maximum)) for one in roomy[:1]]
    places: list[Place] = []
    wanted = demand.maximum
    for one in ordered:
        if not wanted:
            break
        units = 1 if demand.spread is Spread.APART else min(one.units, wanted)
        places.append(Place(one.resource_id, one.version, units))
        wanted -= units
    return places


@dataclass(frozen=True, slots=True)
class Choice:
    """What a booking has chosen: so many units of a demand, by resource, throughout a period."""

    demand: Demand
    period: Period
    units: Mapping[int, int]

    def again(self, found: Iterable[Candidate], demand: Demand) -> list[Place]:
        """The same once more, where the same is asked for and all of it is among what was found; else nothing."""
        if demand != self.demand:
            return []
        candidates = {one.resource_id: one for one in found}
        if any(number not in candidates or candidates[number].units < count for number, count in self.units.items()):
            return []
        return [Place(number, candidates[number].version, count) for number, count in self.units.items()]


def beside(found: Iterable[Candidate], others: Collection[Choice], demand: Demand, period: Period) -> list[Candidate]:
    """What is left of candidates when others get what they have chosen."""
    met = [one for one in others if one.period.overlaps(period)]
    left = (
        replace(one, units=one.units - sum(_instead(other, one.resource_id, demand) for other in met)) for one in found
    )
    return [one for one in left if one.units >= demand.units_together]


def _instead(other: Choice, resource_id: int, demand: Demand) -> int:
    """How many units of a demand there could be where another choice has a resource; more than there are, for all."""
    count = other.units.get(resource_id, 0)
    if count and (demand.exclusive or other.demand.exclusive):
        return _ALL
    amounts = other.demand.amounts.times(count)
    return max(
        (-(-amount // demand.amounts[name]) for name, amount in amounts.items() if name in demand.amounts), default=0
    )


def units_by_resource(allocations: Iterable[Allocation]) -> Counter[int]:
    """How many units the allocations have of each resource, by its id."""
    units: Counter[int] = Counter()
    for allocation in allocations:
        units[allocation.resource_id] += allocation.units
    return units
