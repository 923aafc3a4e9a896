"""Allocations: which resource serves which reservation, and when; and the choice of resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from tenure.domain.capacity import Capacity, peak, units_free
from tenure.domain.lease import AllocationState
from tenure.domain.period import ENDLESS, Period
from tenure.domain.requirement import Expression

#: The limit of a resource class that has none.
_NO_LIMIT: Mapping[str, int] = MappingProxyType({})


class Spread(StrEnum):
    """How the units of a reservation are spread over resources."""

    ANTI_AFFINITY = "anti-affinity"  # each on a resource of its own
    ANY = "any"
    AFFINITY = "affinity"  # all on one resource


@dataclass(frozen=True, slots=True)
class Demand:
    """What a reservation asks for, in the terms of the ledger. Its resource type computes it.

    It asks for ``minimum`` to ``maximum`` units, on resources of type ``inventory`` that match ``expression``, have
    all ``required`` traits and no ``forbidden`` trait. A unit takes ``amounts`` of its resource. An ``exclusive`` unit
    takes the whole resource; then ``spread`` is APART. The resources whose external ids are in ``named`` must be
    among those chosen.
    """

    inventory: str
    noun: str
    minimum: int
    maximum: int
    expression: Expression
    amounts: Capacity
    exclusive: bool
    spread: Spread = Spread.ANTI_AFFINITY
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    named: tuple[str, ...] = ()
    #: The request parameter for the number of units.
    parameter: str = "amount"
    #: The request parameter for ``named``.
    naming: str = ""
    #: The portions of a unit that come from a single provider each, if it has several. The cloud limits each portion.
    portions: tuple[Capacity, ...] = ()
    #: The resource type of the reservation, for the text of a refusal.
    resource_type: str = ""
    #: The region of all its resources.
    region: str = ""
    #: Whether the names in the expression come from the request, and not from the resource type.
    names_are_asked: bool = True
    #: Whether something is kept after the lease has ended, and goes on taking as much.
    lasting: bool = False
    #: A thing that already exists in the cloud and that is reserved; it has at most one live reservation.
    subject: str | None = None

    @property
    def units_together(self) -> int:
        """How many units a resource must have room for to be useful."""
        return self.minimum if self.spread is Spread.AFFINITY else 1

    @property
    def at_once(self) -> tuple[Capacity, ...]:
        """The portions of a unit that come from a single provider each; the cloud limits each portion."""
        return self.portions or (self.amounts,)

    @property
    def kind(self) -> Demand:
        """The same demand without what does not matter for which resources serve it."""
        together = self.units_together if not self.exclusive else 0
        return replace(
            self,
            noun="",
            minimum=together,
            maximum=together,
            spread=Spread.AFFINITY,
            named=(),
            parameter="",
            naming="",
            resource_type="",
            names_are_asked=True,
            lasting=False,
            subject=None,
        )

    def has_size(self, capacity: Capacity) -> bool:
        """Whether a resource of this capacity, if nothing uses it, has room for what must come from a single one."""
        return self.exclusive or capacity.fits(self.amounts.times(self.units_together))

    def is_admitted_by(self, limits: Mapping[str, Mapping[str, int]]) -> bool:
        """Whether a resource with these limits of single requests admits a unit."""
        return self.exclusive or all(
            limit.get("min", 1) <= amount <= limit.get("max", amount) and amount % limit.get("step", 1) == 0
            for portion in self.at_once
            for name, amount in portion.items()
            for limit in [limits.get(name, _NO_LIMIT)]
        )

    def span(self, period: Period) -> Period:
        """Return how long the resources are taken, for a lease with this period. What lasts is taken without an end."""
        return Period(period.start, ENDLESS) if self.lasting else period

    def of_units(self, units: int) -> Demand:
        """Return the same demand for this many units on a single resource."""
        together = Spread.ANTI_AFFINITY if self.exclusive else Spread.AFFINITY
        return replace(self, minimum=units, maximum=units, spread=together, named=())

    def is_within(self, other: Demand) -> bool:
        """Whether all resources that serve ``other`` serve this demand too; the number of units is ignored.

        That is so if a unit asks for no more, for the same kind, and for nothing stricter.
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
    """Return the order in which to place the demands of one lease, as indexes.

    Demands that take as many units as they can get come last, so that the others get what they need. Before them come
    demands for whole resources, then those for the most resources at once, then those for the most in one place.
    Small demands fit beside large ones more often than the reverse, as in first fit decreasing (Johnson, Near-optimal
    bin packing algorithms, 1973).
    """

    def key(position: int) -> tuple[object, ...]:
        demand = demands[position]
        resources = demand.minimum if demand.spread is Spread.ANTI_AFFINITY else 1
        together = [-demand.units_together * demand.amounts.get(name, 0) for name in ("VCPU", "MEMORY_MB", "DISK_GB")]
        return demand.maximum > demand.minimum, not demand.exclusive, -resources, together

    return sorted(range(len(demands)), key=key)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A resource that has room for ``units`` units during the whole period.

    ``free_since`` is the end of the booking before the period, ``free_until`` the start of the booking after it; None
    if there is no booking. ``idle`` is how much of the period the resource has no booking at all.
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
    """``units`` units of a resource, assigned to a reservation for a period. ``amounts`` are the sum over all units."""

    id: int
    resource_id: int
    reservation_id: str
    period: Period
    state: AllocationState
    amounts: Capacity
    exclusive: bool
    units: int = 1
    #: Since when it is booked for accounts, if its start was delayed until the resource is clean.
    booked_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """The amounts of a resource that an allocation uses, and for how long."""

    allocation_id: int
    amounts: Capacity
    exclusive: bool
    period: Period


@dataclass(frozen=True, slots=True)
class Room:
    """The capacity of a resource, and its uses in some period. Ask only about times within that period."""

    capacity: Capacity
    uses: tuple[Use, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether an allocation takes the whole resource."""
        return any(use.exclusive for use in self.uses)

    def used(self, period: Period) -> Capacity:
        """Return the peak of the shared uses in the period, separately for each resource class."""
        return peak(self._shared_uses(), period)

    def units(self, amounts: Capacity, period: Period) -> int:
        """Return how many units of these amounts fit during the whole period."""
        return 0 if self.is_whole else units_free(self.capacity, self._shared_uses(), amounts, period)

    def without(self, allocation: Allocation) -> Room:
        """Return the room as it is without the allocation."""
        return replace(self, uses=tuple(use for use in self.uses if use.allocation_id != allocation.id))

    def _shared_uses(self) -> Iterator[tuple[Period, Capacity]]:
        return ((use.period, use.amounts) for use in self.uses)


@dataclass(frozen=True, slots=True)
class Booking:
    """A reservation's part in a resource, as the allocation lists show it, with the dates of the lease."""

    resource_id: int
    reservation_id: str
    lease_id: str
    starts_at: datetime
    ends_at: datetime


#: The length of a gap that has no end.
_ENDLESS = timedelta(days=365_000)
#: More units than fit into any resource.
_ALL = 2**31


@dataclass(frozen=True, slots=True)
class Selection:
    """A number of units on a resource, and the resource's version at the time of the choice."""

    resource_id: int
    version: int
    units: int = 1


def order_of(candidates: Iterable[Candidate], demand: Demand, period: Period, *, seed: int) -> list[Candidate]:
    """Return the candidates, the best first.

    The order of preference; each rule decides among candidates that are equal under the rules before it:

    1. resources that the request names;
    2. the least special resources, so that scarce ones are left for requests that ask for them;
    3. the least idle time: shared requests gather on resources that are in use all the time, and whole resources stay
       free for long;
    4. the tightest gap: the least idle time on the nearer side of the period within the free stretch around it, and
       then on the other side. So the remaining free time stays in one piece if possible, and long gaps stay whole;
    5. the tightest fit: the fewest units for which there is still room afterwards, so that large rooms stay large;
    6. the id, rotated by ``seed`` (made from the request's id), so that simultaneous requests do not all choose the
       same resource.
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
            candidate.resource_id < seed,
            candidate.resource_id,
        )

    return sorted(candidates, key=preference)


def choose(candidates: Iterable[Candidate], demand: Demand, period: Period, *, seed: int) -> list[Selection]:
    """Return the best selections for up to ``demand.maximum`` units; for fewer if there is not enough room."""

    ordered = order_of(candidates, demand, period, seed=seed)
    if demand.spread is Spread.AFFINITY:
        roomy = [candidate for candidate in ordered if candidate.units >= demand.maximum] or sorted(
            ordered, key=lambda candidate: -candidate.units
        )
        return [
            Selection(candidate.resource_id, candidate.version, min(candidate.units, demand.maximum))
            for candidate in roomy[:1]
        ]
    selections: list[Selection] = []
    units_left = demand.maximum
    for candidate in ordered:
        if not units_left:
            break
        units = 1 if demand.spread is Spread.ANTI_AFFINITY else min(candidate.units, units_left)
        selections.append(Selection(candidate.resource_id, candidate.version, units))
        units_left -= units
    return selections


def units_by_resource(allocations: Iterable[Allocation]) -> Counter[int]:
    """Return how many units of each resource the allocations have, by resource id."""
    units: Counter[int] = Counter()
    for allocation in allocations:
        units[allocation.resource_id] += allocation.units
    return units
