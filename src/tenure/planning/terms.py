"""The terms of a search for room, beside the snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from tenure.domain.allocation import Allocation, Demand
from tenure.domain.lease import AllocationState


def _go_on() -> None:
    """Go on without a limit."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for all steps of a search.

    ``demands_of`` returns the demands of reservations by their ids: it is asked for those whose plans are in the way.
    ``check`` is called at each step; it raises if the time of the search is over.
    """

    now: datetime
    #: The id at which walks through the resources begin.
    seed: int
    demands_of: Callable[[Collection[str]], Mapping[str, Demand]]
    #: Plans that start until then do not move: servers in their way have been notified. None if all may move.
    fixed_until: datetime | None = None
    check: Callable[[], None] = _go_on

    def may_move(self, allocation: Allocation) -> bool:
        """Whether an allocation is a plan that may move."""
        return allocation.state is AllocationState.PLANNED and (
            self.fixed_until is None or allocation.period.start > self.fixed_until
        )

    def is_open(self, plan: Allocation) -> bool:
        """Whether an allocation is a plan of which some time is still to come."""
        return plan.state is AllocationState.PLANNED and plan.period.end > self.now
