"""Making the only region there was one of several."""

from __future__ import annotations

from collections.abc import Collection

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

    def wrong_with(self, regions: Collection[str]) -> str | None:
        """Why the ledger is not one of these regions, in a sentence that says what to do; None where it is."""
        with self._db.read() as tx:
            strange = sorted(tx.resources.regions() - set(regions or ("",)))
        if not strange:
            return None
        if strange[0] == "":
            return "there are resources from before there were regions: run tenure-manage region name-home"
        return f"there are resources in region {strange[0]}, which is not in the list of regions"
