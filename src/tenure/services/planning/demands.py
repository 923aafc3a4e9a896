"""The demands of reservations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tenure.domain.allocation import Demand
from tenure.domain.lease import Reservation
from tenure.domain.request import ReservationRequest
from tenure.resources.contract import ResourceTypes
from tenure.store.database import Database


def demand_of(types: ResourceTypes, reservation: Reservation | ReservationRequest) -> Demand:
    """Return the demand of a reservation, as its type defines it, in its region. Raises ``InvalidParameter``."""
    demand = types[reservation.resource_type].demand(reservation.parameters)
    return replace(demand, resource_type=reservation.resource_type, region=reservation.region)


class Demands:
    """The demands of reservations, which are read from the ledger when a search first asks for them."""

    def __init__(self, db: Database, types: ResourceTypes, known: Mapping[str, Demand]) -> None:
        """``known`` are demands that differ from the ledger, by reservation."""
        self._db = db
        self._types = types
        self._known = dict(known)

    def of(self, reservation_ids: Collection[str]) -> Mapping[str, Demand]:
        """Return the demands of these reservations by their ids, and of others. Raises ``Unavailable``."""
        unknown = set(reservation_ids) - self._known.keys()
        if unknown:
            with self._db.read() as tx:
                found = tx.leases.reservations_by_ids(unknown)
            self._known |= {
                reservation_id: demand_of(self._types, reservation) for reservation_id, reservation in found.items()
            }
        return self._known
