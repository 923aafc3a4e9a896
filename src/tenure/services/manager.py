"""The manager as the API knows it: the one interface between the ways in and the logic.

In one process the API calls the services directly. Between processes the same operations travel by RPC, whole: the
name of one of ``OPERATIONS``, the actor, the arguments; plain domain values or one of our errors come back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tenure.domain.request import PartHealth
from tenure.services.leases import LeaseService
from tenure.services.resources import ResourceService

#: Everything that the API may ask of the manager.
OPERATIONS = frozenset(
    {
        "leases.create",
        "leases.get",
        "leases.list",
        "leases.update",
        "leases.delete",
        "leases.drop_reservation",
        "leases.history",
        "leases.resources",
        "resources.list",
        "resources.get",
        "resources.register",
        "resources.update",
        "resources.unregister",
        "resources.bookings",
        "resources.bookings_of",
        "resources.properties",
        "resources.set_property",
        "health",
    }
)


@dataclass(frozen=True, slots=True)
class Manager:
    """The use cases that the API may call, and nothing else."""

    leases: LeaseService
    resources: ResourceService
    health: Callable[[], tuple[PartHealth, ...]]
