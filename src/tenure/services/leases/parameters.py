"""The parameters of reservations: after a change, with the facts of the cloud, and as demands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from tenure.domain.allocation import Demand
from tenure.domain.errors import InvalidParameter, InvalidState
from tenure.domain.lease import Reservation
from tenure.domain.request import ReservationChange, ReservationRequest
from tenure.resources.contract import FactReference, ResourceType, ResourceTypes
from tenure.services.planning.demands import demand_of

#: The facts that the cloud has given for a request.
Facts = Mapping[FactReference, Mapping[str, object]]
NO_FACTS: Facts = MappingProxyType({})


def placed_demand(types: ResourceTypes, reservation: Reservation | ReservationRequest, position: int) -> Demand:
    """Return the demand of a reservation; errors name its field by its position in the request."""
    with errors_at_position(position):
        return demand_of(types, reservation)


@contextmanager
def errors_at_position(position: int) -> Iterator[None]:
    """Add the position of a reservation in the request to the field of errors."""
    try:
        yield
    except (InvalidParameter, InvalidState) as error:
        path = f"reservations[{position}]"
        error.field = f"{path}.{error.field}" if error.field else path
        raise


def complete(resource_type: ResourceType, parameters: Mapping[str, object], facts: Facts) -> Mapping[str, object]:
    """Return the parameters with the fact that their type needs of the cloud."""
    named = resource_type.required_fact(parameters)
    if named is None:
        return parameters
    if named not in facts:
        raise InvalidState(f"The reservation was changed by another request: what {named.field} names is not known.")
    return resource_type.complete(parameters, facts[named])


def changed_parameters(reservation: Reservation, change: ReservationChange | None) -> dict[str, object]:
    """Return the changed parameters, without values that clients send back as they were shown them."""
    given = {} if change is None else change.parameters
    shown = reservation.effects
    return {name: value for name, value in given.items() if name not in shown or shown[name] != value}


def parameters_after(
    types: ResourceTypes, reservation: Reservation, change: ReservationChange | None, facts: Facts, *, running: bool
) -> Mapping[str, object]:
    """Return the parameters of a reservation after a change, with the facts of the cloud.

    Raises ``InvalidParameter``, and ``InvalidState`` if a ``running`` reservation cannot be changed so.
    """
    given = changed_parameters(reservation, change)
    if not given:
        return reservation.parameters
    resource_type = types[reservation.resource_type]
    return complete(resource_type, resource_type.merge(reservation.parameters, given, running=running), facts)
