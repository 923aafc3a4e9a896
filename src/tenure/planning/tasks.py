"""What a plan is to achieve for a reservation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from tenure.domain.allocation import Allocation, Demand
from tenure.domain.lease import AllocationState
from tenure.domain.period import Period


@dataclass(frozen=True, slots=True)
class NewUnits:
    """A reservation gets between ``demand.minimum`` and ``demand.maximum`` units throughout a period.

    ``without`` are the resources that the reservation has already: no units are added there, and named resources among
    them are not required again. With ``only``, units are added on these resources only.
    """

    reservation_id: str
    demand: Demand
    period: Period
    without: frozenset[int] = frozenset()
    only: frozenset[int] | None = None
    state: AllocationState = AllocationState.PLANNED
    #: For a refusal: the position in the request, the number of units that is shown as asked for, if that is not the
    #: least one, and the number that the reservation has.
    position: int = 0
    requested: int | None = None
    retained: int | None = None

    @property
    def span(self) -> Period:
        """How long its resources are taken."""
        return self.demand.span(self.period)

    @property
    def least(self) -> NewUnits:
        """The same with the least number of units."""
        return replace(self, demand=replace(self.demand, maximum=self.demand.minimum))


@dataclass(frozen=True, slots=True)
class Extension:
    """Allocations of a reservation last until a later end, each on its own resource.

    All are of the ``demand`` of the reservation. From ``now`` on only: the past does not matter.
    """

    reservation_id: str
    demand: Demand
    allocations: tuple[Allocation, ...]
    until: datetime
    now: datetime
    #: For a refusal: the position in the request, how many units the reservation has, and the field.
    position: int = 0
    retained: int = 0
    field: str = "end_date"

    def gained(self, allocation: Allocation) -> Period | None:
        """Return the time that an allocation gains; None if it lasts so long already."""
        start = max(allocation.period.end, self.now)
        return Period(start, self.until) if start < self.until else None

    @property
    def least(self) -> Extension:
        """The same: there is no smaller one."""
        return self


@dataclass(frozen=True, slots=True)
class Revision:
    """A reservation of a lease that has not started gets what it asks for now; its plans stay where they still fit.

    ``before`` is the demand for which the ``plans`` were made. The resources are taken in ``period``, from now on.
    """

    reservation_id: str
    before: Demand
    demand: Demand
    plans: tuple[Allocation, ...]
    period: Period
    #: Whether the lease starts when it did before, and whether it gets no time that it did not have.
    keeps_start: bool
    adds_no_time: bool
    #: For a refusal: the position in the request.
    position: int = 0

    @property
    def span(self) -> Period:
        """How long its resources are taken."""
        return self.demand.span(self.period)

    @property
    def asks_for_no_more(self) -> bool:
        """Whether everything that serves the demand before serves this one."""
        return self.demand.is_within(self.before) and self.demand.maximum <= self.before.maximum

    @property
    def keeps(self) -> bool:
        """Whether its plans may stay on resources that would not be chosen for a new reservation."""
        return self.adds_no_time and self.asks_for_no_more

    @property
    def anew(self) -> NewUnits:
        """The same for a reservation without plans."""
        return NewUnits(self.reservation_id, self.demand, self.period, position=self.position)

    @property
    def least(self) -> Revision:
        """The same with the least number of units."""
        return replace(self, demand=replace(self.demand, maximum=self.demand.minimum))

    def span_of(self, plan: Allocation) -> Period:
        """Return how long a plan is to last on its resource.

        If it was delayed because its resource is given back late, it stays so, unless the start of the lease changes.
        """
        span = self.span
        if self.keeps_start and span.start < plan.period.start < span.end:
            return replace(span, start=plan.period.start)
        return span

    def revised(self, plan: Allocation, period: Period, units: int) -> Allocation:
        """Return a plan with this period and so many units. What was delayed is booked from now on."""
        return replace(
            plan,
            period=period,
            units=units,
            amounts=self.demand.amounts.times(units),
            booked_from=None if plan.booked_from is None else self.period.start,
        )


Task = NewUnits | Extension | Revision
