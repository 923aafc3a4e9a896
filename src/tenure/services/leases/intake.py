"""Reading what a request asks for: its regions, the facts that the cloud must give, and its demands."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tenure import deadlines
from tenure.domain.actor import Actor
from tenure.domain.allocation import Demand
from tenure.domain.errors import InvalidParameter, TenureError, Unavailable
from tenure.domain.lease import Lease, Reservation
from tenure.domain.regions import qualified, region_of
from tenure.domain.request import LeaseChange, ReservationRequest
from tenure.drivers.contract import CloudBusy, CloudError
from tenure.resources.contract import FactReference, ResourceTypes
from tenure.services.cloud import CloudCalls
from tenure.services.context import Rules
from tenure.services.leases.bounds import check_sizes
from tenure.services.leases.parameters import Facts, changed_parameters, complete, errors_at_position, placed_demand
from tenure.services.leases.properties import check_identifying, check_private, check_values
from tenure.store.database import Database

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Completed:
    """The reservations of a lease, completed, and their demands."""

    reservations: Sequence[ReservationRequest]
    demands: Sequence[Demand]


class Intake:
    """Reads the reservations of requests, before any transaction."""

    def __init__(self, db: Database, types: ResourceTypes, rules: Rules, cloud: CloudCalls) -> None:
        self._db = db
        self._types = types
        self._rules = rules
        self._cloud = cloud

    def completed(self, actor: Actor, requests: Sequence[ReservationRequest]) -> Completed:
        """Return the reservations of a new lease in their regions, with the facts of the cloud, and their demands.

        Raises the errors of ``facts``, ``InvalidParameter`` for parameters that contradict each other, and the errors
        of ``Deadline.check``.
        """
        completed = []
        for position, request in enumerate(requests):
            deadlines.check()
            completed.append(self.completed_one(actor, request, position))
        check_sizes([request.parameters for request in completed])
        demands = []
        for position, request in enumerate(completed):
            deadlines.check()
            demands.append(placed_demand(self._types, request, position))
        return Completed(completed, demands)

    def completed_one(self, actor: Actor, request: ReservationRequest, position: int) -> ReservationRequest:
        """Return the reservation in the region that it names, or in the home region, with the facts of the cloud.

        ``position`` is its position in the lease. Raises the errors of ``completed``.
        """
        region = region_of(request.region, self._rules.regions, field=f"reservations[{position}].region")
        request = replace(request, region=region)
        with errors_at_position(position):
            resource_type = self._types.bookable(request.resource_type)
        facts = self.facts(actor, request, position)
        with errors_at_position(position):
            parameters = complete(resource_type, request.parameters, facts)
        return replace(request, parameters=parameters)

    def facts_of_change(self, actor: Actor, lease: Lease, change: LeaseChange) -> Facts:
        """Return the facts of the cloud that a change of a lease needs. Raises the errors of ``facts``."""
        facts: dict[FactReference, Mapping[str, object]] = {}
        known = {reservation.id: reservation for reservation in lease.reservations}
        for position, reservation_change in enumerate(change.reservations):
            reservation = known.get(reservation_change.reservation_id)
            if reservation is None:
                continue
            try:
                after = self._types[reservation.resource_type].merge(
                    reservation.parameters, changed_parameters(reservation, reservation_change), running=False
                )
            except TenureError:
                continue  # the changer reports this error
            owner = replace(actor, project_id=lease.project_id)
            facts.update(self.facts(owner, replace(reservation, parameters=after), position))
        return facts

    def facts(self, actor: Actor, reservation: Reservation | ReservationRequest, position: int) -> Facts:
        """Return the facts of the cloud that the type needs to check these parameters.

        Raises ``InvalidParameter`` if the cloud does not know what they name, ``Unavailable`` if it does not answer.
        """
        named = self._types[reservation.resource_type].required_fact(reservation.parameters)
        if named is None:
            return {}
        if isinstance(reservation, ReservationRequest) and reservation.fact is not None:
            return {named: reservation.fact}
        try:
            return {named: self._cloud.fetch(named.kind, qualified(reservation.region, named.reference), actor)}
        except CloudBusy as error:
            LOG.warning("the cloud does not tell of %s %s: %s", named.kind, named.reference, error)
            raise Unavailable(f"The cloud does not answer as it should: {error.reason.text}") from None
        except CloudError as error:
            LOG.info("the cloud does not tell of %s %s: %s", named.kind, named.reference, error)
            raise InvalidParameter(error.reason.text, field=f"reservations[{position}].{named.field}") from None

    def check_conditions(self, completed: Completed, *, seen: bool) -> None:
        """Raise ``InvalidParameter`` for conditions that the actor may not use, or whose values can never match.

        This comes before any search: the duration of a search could reveal private properties.
        """
        if not any(demand.expression.comparisons for demand in completed.demands):
            return
        known: set[tuple[str, str]] = set()
        with self._db.read() as tx:
            for position, (request, demand) in enumerate(zip(completed.reservations, completed.demands, strict=True)):
                check_private(tx, self._rules, demand.inventory, demand.expression.names, position, seen=seen)
                check_identifying(self._types, demand.inventory, demand.expression.comparisons, position, seen=seen)
                if request.checks_values:
                    check_values(tx, demand, demand.expression.comparisons, position, known=known)
