"""Making the only region there was one of several."""

from __future__ import annotations

from tenure.store.database import Database, Transaction


class RegionService:
    """What there is of regions in the ledger."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def name_home(self, name: str) -> tuple[int, int]:
        """Have all that was there before there were regions be in this one; how many resources and reservations.

        Doing it again changes nothing.
        """

        def change(tx: Transaction) -> tuple[int, int]:
            return tx.resources.name_region(name), tx.leases.name_region(name)

        return self._db.write(change)
