"""How the owner of a lease reads about its resources."""

from __future__ import annotations

from tenure.domain.errors import NotFound
from tenure.domain.lease import Reservation
from tenure.domain.reason import Reason
from tenure.domain.resource import Resource
from tenure.resources.contract import ResourceTypes


def reason_about(
    types: ResourceTypes, reservation: Reservation, resource: Resource, text: str, more: str = ""
) -> Reason:
    """Return a reason about a resource of the reservation: the text for the owner, and with ``more`` for operators.

    Both begin with a name. The owner reads the name of a resource that is reserved as a whole, as the API shows it. He
    only reads the noun of resources of which the reservation has parts, such as the hosts of instances, and of types
    that have no names.
    """
    name = name_for_owner(types, reservation, resource)
    owner_text, full_text = f"{name} {text}", f"{resource.name} {text}"
    if more:
        return Reason(f"{owner_text}.", f"{full_text}: {more}")
    return Reason(owner_text, None if owner_text == full_text else full_text)


def name_for_owner(types: ResourceTypes, reservation: Reservation, resource: Resource) -> str:
    """Return the text for the owner in place of the resource's name, at the beginning of a sentence."""
    try:
        inventory = types.inventory(resource.resource_type)
    except NotFound:  # its type is not installed any more
        return "A resource of the reservation"
    if inventory.is_named and reservation.resource_type == resource.resource_type:
        return resource.name
    article = "An" if inventory.noun[:1].lower() in "aeiou" else "A"
    return f"{article} {inventory.noun} of the reservation"
