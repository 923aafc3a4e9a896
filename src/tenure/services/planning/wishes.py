"""What is asked of the exact search."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.domain.allocation import Demand
from tenure.domain.period import Period


@dataclass(frozen=True, slots=True)
class Wish:
    """What a new or changed reservation is to have in a period.

    Its plans do not count, because it is planned anew. The allocations that it holds stay.
    """

    reservation_id: str
    demand: Demand
    period: Period
    #: Whether the allocations that it holds last until the end of the period.
    prolongs: bool = False
    #: Whether it gets the units that are missing beside those that it holds.
    grows: bool = True
    #: Whether it may keep resources that would not be chosen for a new reservation.
    keeps: bool = False

    @property
    def span(self) -> Period:
        """How long its resources are taken."""
        return self.demand.span(self.period)
