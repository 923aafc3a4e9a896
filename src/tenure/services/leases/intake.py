"""Reading what a request asks for: its regions, the facts that the cloud must give, and its demands."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from tenure.domain.actor import Actor
from tenure.domain.allocation import Demand
from tenure.domain.errors import InvalidParameter, Unavailable
from tenure.domain.lease import Reservation
from tenure.domain.regions import qualified, region_of
from tenure.domain.request import ReservationRequest
from tenure.drivers.contract import CloudBusy, CloudError
from tenure.resources.contract import ResourceTypes
from tenure.services.context import CloudActions, Rules
from tenure.services.leases.bounds import check_sizes
from tenure.services.leases.changes import (
    Facts,
    check_private,
    check_values,
    complete,
    errors_at_position,
    placed_demand,
)
from tenure.store.database import Database

LOG = logging.getLogger(__name__)


class Intake:
    """Reads the reservations of requests, before any transaction."""

    def __init__(self, db: Database, types: ResourceTypes, rules: Rules, cloud: CloudActions) -> None:
        self._db = db
        self._types = types
        self._rules = rules
        self._cloud = cloud

    def in_region(self, request: ReservationRequest, position: int) -> ReservationRequest:
        """Return the request in the region that it names, or in the home region."""
        region = region_of(request.region, self._rules.regions, field=f"reservations[{position}].region")
        return replace(request, region=region)

    def completed(
        self, actor: Actor, requests: Sequence[ReservationRequest]
    ) -> tuple[list[ReservationRequest], list[Demand]]:
        """Return the reservations of a new lease in their regions, with the facts of the cloud, and their demands.

        Raises the errors of ``facts``, and ``InvalidParameter`` for parameters that contradict each other.
        """
        completed, demands = [], []
        for position, request in enumerate(requests):
            placed = self.in_region(request, position)
            facts = self.facts(actor, placed, position)
            with errors_at_position(position):
                parameters = complete(self._types[placed.resource_type], placed.parameters, facts)
            completed.append(replace(placed, parameters=parameters))
        check_sizes([request.parameters for request in completed])
        for position, request in enumerate(completed):
            demands.append(placed_demand(self._types, request, position))
        return completed, demands

    def facts(self, actor: Actor, asked: Reservation | ReservationRequest, position: int) -> Facts:
        """Return the facts of the cloud that the type needs to check these parameters.

        Raises ``InvalidParameter`` if the cloud does not know what they name, ``Unavailable`` if it does not answer.
        """
        wanted = self._types[asked.resource_type].wanted(asked.parameters)
        if wanted is None:
            return {}
        try:
            return {wanted: self._cloud.fetch(wanted.kind, qualified(asked.region, wanted.reference), actor)}
        except CloudBusy as error:
            LOG.warning("the cloud does not tell of %s %s: %s", wanted.kind, wanted.reference, error)
            raise Unavailable(f"The cloud does not answer as it should: {error.reason.text}") from None
        except CloudError as error:
            LOG.info("the cloud does not tell of %s %s: %s", wanted.kind, wanted.reference, error)
            raise InvalidParameter(error.reason.text, field=f"reservations[{position}].{wanted.field}") from None

    def check_conditions(
        self, requests: Sequence[ReservationRequest], demands: Sequence[Demand], *, seen: bool
    ) -> None:
        """Raise ``InvalidParameter`` for conditions that the actor may not use, or whose values can never match.

        This comes before any search: the duration of a search could reveal private properties.
        """
        if not any(demand.expression.comparisons for demand in demands):
            return
        known: set[tuple[str, str]] = set()
        with self._db.read() as tx:
            for position, (request, demand) in enumerate(zip(requests, demands, strict=True)):
                check_private(tx, self._rules, demand.inventory, demand.expression.names, position, seen=seen)
                if request.checks_values:
                    check_values(tx, demand, demand.expression.comparisons, position, known=known)
