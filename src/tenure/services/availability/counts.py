"""How many resources pass each stage of a search for room, from the index: for the text of a refusal."""

from __future__ import annotations

from tenure.domain.allocation import Demand
from tenure.domain.period import ENDLESS, Period
from tenure.domain.shortfall import Stage
from tenure.services.availability.index import AvailabilityIndex
from tenure.services.availability.room import fitting, units
from tenure.services.availability.steps import FOREVER, ticks


class RoomCounts:
    """Counts the resources that could serve a demand. ``AllocationStore.stages`` is the same in SQL."""

    def __init__(self, index: AvailabilityIndex) -> None:
        self._index = index

    def stages(self, demand: Demand, period: Period) -> tuple[tuple[Stage, ...], int]:
        """Return the stages of the choice, and how many units would have room if there were no plans.

        If the demand is for parts of resources, the last stage counts units. Raises ``Unavailable`` if the database
        does not work.
        """
        view = self._index.view()
        catalogue = view.catalogue
        single = demand if demand.exclusive else demand.part(1)
        reservable = catalogue.of_type(demand.inventory, demand.region) & catalogue.reservable
        matching = catalogue.matching(single)
        start, end = ticks(period.start), FOREVER if period.end >= ENDLESS else ticks(period.end)
        rows, counts = units(view, single, matching, start, end)
        _, loose = units(view, single, matching, start, end, planned=False)
        found = [Stage("reservable", int(reservable.sum())), Stage("matching", int(matching.sum()))]
        if demand.exclusive:
            return (*found, Stage("free", len(rows))), len(loose)
        return (*found, Stage("roomy", len(rows)), Stage("fitting", fitting(demand, counts))), fitting(demand, loose)
