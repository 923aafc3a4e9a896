"""The demands of reservations."""

from __future__ import annotations

from dataclasses import replace

from tenure.domain.allocation import Demand
from tenure.domain.lease import Reservation
from tenure.domain.request import ReservationRequest
from tenure.resources.contract import ResourceTypes


def demand_of(types: ResourceTypes, reservation: Reservation | ReservationRequest) -> Demand:
    """Return the demand of a reservation, as its type defines it, in its region. Raises ``InvalidParameter``."""
    demand = types[reservation.resource_type].demand(reservation.parameters)
    return replace(demand, resource_type=reservation.resource_type, region=reservation.region)
