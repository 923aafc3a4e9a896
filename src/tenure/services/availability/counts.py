"""How many resources pass each stage of a search for room, from the index: for the text of a refusal."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from tenure.domain.allocation import Demand
from tenure.domain.period import ENDLESS, Period
from tenure.domain.shortfall import Stage
from tenure.services.availability.index import AvailabilityIndex, View
from tenure.services.availability.room import fitting, taken_as_whole, units
from tenure.services.availability.steps import FOREVER, ticks
from tenure.services.availability.timeline import Rows


class RoomCounts:
    """Counts the resources that could serve a demand. ``AllocationStore.stages`` is the same in SQL."""

    def __init__(self, index: AvailabilityIndex) -> None:
        self._index = index

    @property
    def is_ready(self) -> bool:
        """Whether it can count at once."""
        return self._index.is_at_hand

    def stages(self, demand: Demand, period: Period) -> tuple[tuple[Stage, ...], int]:
        """Return the stages of the choice, and how many units have room at most, wherever plans move.

        If the demand is for parts of resources, the last stage counts units. Raises ``Unavailable`` if the database
        does not work.
        """
        view = self._index.view()
        catalogue = view.catalogue
        single = demand if demand.exclusive else demand.part(1)
        reservable = catalogue.of_type(demand.inventory, demand.region) & catalogue.reservable
        matching = catalogue.matching(single)
        bounds = _bounds(period)
        rows, counts = units(view, single, matching, *bounds)
        found = [Stage("reservable", int(reservable.sum())), Stage("matching", int(matching.sum()))]
        if demand.exclusive:
            return (*found, Stage("free", len(rows))), _loose(view, demand, bounds)
        fitting_units = Stage("fitting", fitting(demand, counts))
        return (*found, Stage("roomy", len(rows)), fitting_units), _loose(view, demand, bounds)

    def any_hopeless(self, demands: Collection[Demand], period: Period) -> bool:
        """Whether there is too little room for one of the demands, wherever plans move.

        Demands that differ in their numbers only are counted once, with the largest least number. False while it is
        not ready.
        """
        if not self.is_ready:
            return False
        view = self._index.view()
        most: dict[Demand, int] = {}
        for demand in demands:
            kind = replace(demand, minimum=1, maximum=1)
            most[kind] = max(demand.minimum, most.get(kind, 0))
        return any(
            _loose(view, replace(kind, minimum=minimum, maximum=minimum), _bounds(kind.span(period))) < minimum
            for kind, minimum in most.items()
        )


def _bounds(period: Period) -> tuple[int, int]:
    return ticks(period.start), FOREVER if period.end >= ENDLESS else ticks(period.end)


def _loose(view: View, demand: Demand, bounds: tuple[int, int]) -> int:
    """Return how many units of the demand have room at most, wherever plans move."""
    single = demand if demand.exclusive else demand.part(1)
    rows, counts = units(view, single, view.catalogue.matching(single), *bounds, planned=False)
    loose = fitting(demand, counts)
    return loose - _taken_by_plans(view, demand, rows, bounds) if demand.exclusive else loose


def _taken_by_plans(view: View, demand: Demand, rows: Rows, bounds: tuple[int, int]) -> int:
    """Return how many of these resources plans take at least, at the time at which they take the most.

    A plan that takes a whole resource moves to another one of the same type and region only.
    """
    chosen = np.zeros(len(view.changed), dtype=np.bool_)
    chosen[rows] = True
    others = int(np.count_nonzero(view.catalogue.of_type(demand.inventory, demand.region) & ~chosen))
    planned = int(taken_as_whole(view, chosen).steps(*bounds).values.max())
    return max(0, planned - others)
