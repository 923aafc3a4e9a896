"""The types of resources: a module of this package for each, with all that belongs to that type only."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from tenureclient.inventory import Inventory
from tenureclient.reservation_type import ReservationType

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

#: The inventories by the short names of their types, in the order in which users see them.
INVENTORIES: Mapping[str, type[Inventory[Any, Any]]] = {
    inventory.resource_type.short: inventory
    for inventory in sorted(Inventory.__subclasses__(), key=lambda inventory: inventory.resource_type.position)
}
#: The types of reservations by their names, in the order in which users see them.
RESERVATION_TYPES: Mapping[str, ReservationType] = {
    made.name: made()
    for made in sorted(ReservationType.__subclasses__(), key=lambda reservation_type: reservation_type.position)
}
