"""Introducing regions into a ledger that had none."""

from __future__ import annotations

from collections.abc import Collection

from tenure.store.database import Database, Transaction


class RegionService:
    """The use cases of regions."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def name_home(self, name: str) -> tuple[int, int]:
        """Move everything without a region to this one; return the number of resources and of reservations.

        A repetition changes nothing.
        """
        return self._db.write(_name_region, name)

    def wrong_with(self, regions: Collection[str]) -> str | None:
        """Return a text that says why the ledger does not fit these regions and what to do, or None if it does."""
        with self._db.read() as tx:
            strange = sorted(tx.resources.regions() - set(regions or ("",)))
        if not strange:
            return None
        if strange[0] == "":
            return "there are resources from before there were regions: run tenure-manage region name-home"
        return f"there are resources in region {strange[0]}, which is not in the list of regions"


def _name_region(tx: Transaction, name: str) -> tuple[int, int]:
    tx.waiting.name_region(name)
    return tx.resources.name_region(name), tx.leases.name_region(name)
