"""How much is reserved and in use at present, for the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from tenure.clock import Clock
from tenure.domain.capacity import WHOLE
from tenure.metrics import PresentAmounts
from tenure.planning.room import in_use, taken
from tenure.planning.snapshot import Snapshot
from tenure.planning.steps import ticks
from tenure.services.planning.index import AvailabilityIndex

#: How old the index may be. The engine has it follow the ledger every few seconds, as long as the database works.
FRESH = timedelta(minutes=1)


class PresentService:
    """Reads the index as it is: it never asks the database, so that it neither waits nor fails."""

    def __init__(self, clock: Clock, index: AvailabilityIndex, inventories: Iterable[str]) -> None:
        self._clock = clock
        self._index = index
        self._inventories = sorted(inventories)

    def amounts(self) -> list[PresentAmounts]:
        """Return the amounts by inventory, region and resource class; nothing if the index is not up to date."""
        now = self._clock.now()
        view = self._index.latest(since=now - FRESH)
        return [] if view is None else list(self._of(view, ticks(now)))

    def _of(self, view: Snapshot, now: int) -> Iterator[PresentAmounts]:
        catalogue, uses = view.catalogue, in_use(view, now)
        for inventory in self._inventories:
            for region in catalogue.regions(catalogue.of_type(inventory)):
                chosen = catalogue.of_type(inventory, region)
                on_them = uses.select(chosen[uses.rows])
                held = on_them.select(~on_them.planned)
                for resource_class in dict.fromkeys((WHOLE, *catalogue.classes(chosen))):
                    amounts = catalogue.amounts(resource_class)
                    reserved, allocated = (taken(view, these, resource_class) for these in (on_them, held))
                    yield PresentAmounts(
                        resource_type=inventory,
                        region=region,
                        resource_class=resource_class,
                        total=int(amounts[chosen].sum()),
                        reserved=reserved,
                        allocated=allocated,
                        idle_reserved=reserved - allocated,
                        out_of_order=int(amounts[chosen & ~catalogue.reservable].sum()),
                    )
