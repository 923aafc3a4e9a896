"""The manager: the one interface between the API and the services.

In one process the API calls the services directly. Between processes the same operations travel by RPC: the name of one
of ``OPERATIONS``, the actor and the arguments; the answer is a domain value or an error of the domain.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from tenure.domain.actor import Actor
from tenure.domain.errors import NotEnoughResources, TenureError
from tenure.domain.lanes import Lane
from tenure.domain.request import ComponentHealth, FlexibleRequest
from tenure.metrics import REFUSALS, UNPROVEN, timed
from tenure.services.lanes import Lanes
from tenure.services.limits.service import LimitService
from tenure.services.requests.dry_runs import DryRunService
from tenure.services.requests.leases import LeaseService
from tenure.services.resources.service import ResourceService
from tenure.services.search.alternatives import AlternativeService
from tenure.services.search.offers import OfferService
from tenure.services.search.service import AvailabilityService
from tenure.services.usage.service import UsageService

P = ParamSpec("P")
R = TypeVar("R")

#: The services whose public methods are operations, by the first part of the operations' names.
SERVICES: Mapping[str, type] = {
    "leases": LeaseService,
    "dry_runs": DryRunService,
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

#: The lane of each operation: that of reading, unless it searches or changes something. Health has none: it is for
#: those who watch the service.
LANES: Mapping[str, Lane] = {
    **dict.fromkeys(OPERATIONS - {"health"}, Lane.READING),
    **dict.fromkeys(
        (
            "alternatives.to_change",
            "alternatives.to_confirmation",
            "alternatives.to_lease",
            "alternatives.to_reservation",
            "availability.show",
            "offers.first",
            "offers.largest",
            "offers.longest",
            "dry_runs.add_reservation",
            "dry_runs.create",
            "dry_runs.drop_reservation",
            "dry_runs.update",
            "usage.show",
        ),
        Lane.SEARCHING,
    ),
    **dict.fromkeys(
        (
            "leases.add_reservation",
            "leases.confirm",
            "leases.create",
            "leases.delete",
            "leases.drop_reservation",
            "leases.update",
            "resources.disable",
            "resources.enable",
            "resources.lend",
            "resources.reallocate",
            "resources.register",
            "resources.set_property",
            "resources.unregister",
            "resources.update",
        ),
        Lane.BOOKING,
    ),
}


def lane_of(operation: str, arguments: Iterable[object]) -> Lane:
    """Return the lane of an operation with these arguments.

    To make a lease of a flexible request is a search; each booking in it enters the lane of bookings.
    """
    if operation == "leases.create" and any(isinstance(argument, FlexibleRequest) for argument in arguments):
        return Lane.SEARCHING
    return LANES[operation]


#: The operations whose refusals are counted: those that promise resources.
_DECIDING = frozenset({"leases.create", "leases.update", "leases.confirm", "leases.add_reservation"})


@dataclass(frozen=True, slots=True)
class Manager:
    """The use cases that the API may call."""

    leases: LeaseService
    dry_runs: DryRunService
    resources: ResourceService
    limits: LimitService
    usage: UsageService
    availability: AvailabilityService
    offers: OfferService
    alternatives: AlternativeService
    health: Callable[[], tuple[ComponentHealth, ...]]

    @classmethod
    def of(cls, service_of: Callable[[str], Any], health: Callable[[], tuple[ComponentHealth, ...]]) -> Manager:
        """Return a manager with what ``service_of`` returns for the name of each service."""
        return cls(**{name: service_of(name) for name in SERVICES}, health=health)


def metered(manager: Manager) -> Manager:
    """Return the same manager with metrics: the duration of each operation, and the refusals of leases."""
    return Manager.of(lambda name: _Wrapped(getattr(manager, name), name, _measured), manager.health)


def in_lanes(manager: Manager, lanes: Lanes) -> Manager:
    """Return the same manager, each of whose operations is carried out in its lane.

    Each operation also raises the errors of ``Lanes.enter``.
    """
    return Manager.of(lambda name: _Wrapped(getattr(manager, name), name, partial(_in_its_lane, lanes)), manager.health)


class _Wrapped:
    """A service whose operations are wrapped."""

    def __init__(
        self, service: object, name: str, wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        for operation in OPERATIONS:
            owner, _, verb = operation.rpartition(".")
            if owner == name:
                setattr(self, verb, wrap(operation, getattr(service, verb)))


def _in_its_lane(lanes: Lanes, operation: str, use_case: Callable[..., R]) -> Callable[..., R]:
    def carried_out(actor: Actor, *positional: Any, **named: Any) -> R:
        with lanes.enter(lane_of(operation, (*positional, *named.values())), actor.project_id):
            return use_case(actor, *positional, **named)

    return carried_out


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
    requested = error.shortfall.requested
    return next((stage.stage for stage in error.shortfall.stages if stage.count < requested), "")
