"""The manager: the one interface between the API and the services.

In one process the API calls the services directly. Between processes the same operations travel by RPC: the name of one
of ``OPERATIONS``, the actor and the arguments; the answer is a domain value or an error of the domain.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from tenure.domain.errors import NotEnoughResources, TenureError
from tenure.domain.request import PartHealth
from tenure.metrics import REFUSALS, UNPROVEN, timed
from tenure.services.availability.alternatives import AlternativeService
from tenure.services.availability.offers import OfferService
from tenure.services.availability.service import AvailabilityService
from tenure.services.leases.rehearsals import RehearsalService
from tenure.services.leases.service import LeaseService
from tenure.services.limits.service import LimitService
from tenure.services.resources.service import ResourceService
from tenure.services.usage.service import UsageService

P = ParamSpec("P")
R = TypeVar("R")

#: The services whose public methods are operations, by the first part of the operations' names.
SERVICES: Mapping[str, type] = {
    "leases": LeaseService,
    "rehearsals": RehearsalService,
    "resources": ResourceService,
    "limits": LimitService,
    "usage": UsageService,
    "availability": AvailabilityService,
    "offers": OfferService,
    "alternatives": AlternativeService,
}
#: The operations that the API may call.
OPERATIONS = frozenset(
    {
        "health",
        *(
            f"{name}.{verb}"
            for name, service in SERVICES.items()
            for verb, method in vars(service).items()
            if inspect.isfunction(method) and not verb.startswith("_")
        ),
    }
)

#: The operations whose refusals are counted: those that promise resources.
_DECIDING = frozenset({"leases.create", "leases.update", "leases.confirm", "leases.add_reservation"})


@dataclass(frozen=True, slots=True)
class Manager:
    """The use cases that the API may call."""

    leases: LeaseService
    rehearsals: RehearsalService
    resources: ResourceService
    limits: LimitService
    usage: UsageService
    availability: AvailabilityService
    offers: OfferService
    alternatives: AlternativeService
    health: Callable[[], tuple[PartHealth, ...]]

    @classmethod
    def of(cls, service_of: Callable[[str], Any], health: Callable[[], tuple[PartHealth, ...]]) -> Manager:
        """Return a manager with what ``service_of`` returns for the name of each service."""
        return cls(**{name: service_of(name) for name in SERVICES}, health=health)


def metered(manager: Manager) -> Manager:
    """Return the same manager with metrics: the duration of each operation, and the refusals of leases."""
    return Manager.of(lambda name: _Metered(getattr(manager, name), name), manager.health)


class _Metered:
    """A service with metrics of its operations."""

    def __init__(self, service: object, name: str) -> None:
        for operation in OPERATIONS:
            owner, _, verb = operation.rpartition(".")
            if owner == name:
                setattr(self, verb, _measured(operation, getattr(service, verb)))


def _measured(operation: str, use_case: Callable[P, R]) -> Callable[P, R]:
    def measured(*positional: P.args, **named: P.kwargs) -> R:
        with timed(operation):
            try:
                return use_case(*positional, **named)
            except TenureError as error:
                if operation in _DECIDING:
                    REFUSALS.labels(type(error).__name__, _stage(error)).inc()
                    if isinstance(error, NotEnoughResources) and error.is_undecided:
                        UNPROVEN.inc()
                raise

    return measured


def _stage(error: TenureError) -> str:
    """Return the first stage of the choice that too few resources passed; empty for other errors."""
    if not isinstance(error, NotEnoughResources):
        return ""
    wanted = error.shortfall.requested
    return next((stage.stage for stage in error.shortfall.stages if stage.count < wanted), "")
