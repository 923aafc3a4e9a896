"""What the owner of a lease reads of the resources that serve it."""

from __future__ import annotations

from tenure.domain.errors import NotFound
from tenure.domain.lease import Reservation
from tenure.domain.reason import Reason
from tenure.domain.resource import Resource
from tenure.resources.contract import ResourceTypes


def said_of(types: ResourceTypes, reservation: Reservation, resource: Resource, text: str, more: str = "") -> Reason:
    """A sentence about a resource of the reservation, and ``more`` behind it for operators; both begin with its name.

    The owner is told the name of what the reservation has as a whole, as the API shows it. Of which resources parts
    serve it, such as the hosts of instances, he is told the kind only; so he is of kinds that are not named.
    """
    shown = name_for_owner(types, reservation, resource)
    told, whole = f"{shown} {text}", f"{resource.name} {text}"
    if more:
        return Reason(f"{told}.", f"{whole}: {more}")
    return Reason(told, None if told == whole else whole)


def name_for_owner(types: ResourceTypes, reservation: Reservation, resource: Resource) -> str:
    """What the owner of the reservation reads in the place of the resource's name, at the beginning of a sentence."""
    try:
        stock = types.stock(resource.resource_type)
    except NotFound:  # its type is not installed any more
        return "A resource of the reservation"
    if stock.is_named and reservation.resource_type == resource.resource_type:
        return resource.name
    article = "An" if stock.noun[:1].lower() in "aeiou" else "A"
    return f"{article} {stock.noun} of the reservation"
