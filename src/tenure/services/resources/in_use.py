"""Which inventories the engine compares with the cloud."""

from __future__ import annotations

from tenure.resources.contract import ResourceTypes
from tenure.store.database import Database


class InventoriesInUse:
    """The inventories of the types that can be booked, and those that still have registered resources."""

    def __init__(self, db: Database, types: ResourceTypes) -> None:
        self._db = db
        self._bookable = types.inventories
        self._others = {resource_type.inventory for resource_type in types} - types.inventories

    def names(self) -> list[str]:
        """Return their names, sorted. The ledger is only read if some inventory belongs to no type that can be booked.

        The services of other inventories may be missing in the cloud, so they are not asked.
        """
        if not self._others:
            return sorted(self._bookable)
        with self._db.read() as tx:
            return sorted(self._bookable | (self._others & tx.resources.inventories()))
