"""Trusts: Keystone's permission to act as a lease's owner, for actions that only the owner may do."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tenure import deadlines
from tenure.domain.actor import Actor
from tenure.domain.errors import InvalidParameter, TenureError, Unavailable
from tenure.domain.lease import Lease, Reservation
from tenure.domain.regions import trusts_in
from tenure.domain.request import LeaseChange, ReservationRequest
from tenure.drivers.contract import CloudBusy, CloudError
from tenure.resources.contract import ResourceTypes
from tenure.services.cloud import CloudCalls
from tenure.store.database import Database, OutcomeUnknown

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrustDemand:
    """The regions in which a trust is needed, and the first parameter that needs it."""

    field: str
    regions: frozenset[str]


class Trusts:
    """Creates a trust if a reservation needs something that is done as the owner."""

    def __init__(self, db: Database, types: ResourceTypes, cloud: CloudCalls, regions: Collection[str] = ()) -> None:
        self._db = db
        self._types = types
        self._cloud = cloud
        self._home = next(iter(regions), "")

    def demand_of(self, reservations: Iterable[Reservation | ReservationRequest]) -> TrustDemand | None:
        """Return the trust that these reservations need, or None if nothing is done as their owner."""
        fields = [
            (reservation.region, self._types[reservation.resource_type].trusted_for(reservation.parameters))
            for reservation in reservations
        ]
        needed = [(region, field) for region, field in fields if field is not None]
        return TrustDemand(needed[0][1], frozenset(region for region, _ in needed)) if needed else None

    def demand_of_change(self, lease: Lease, change: LeaseChange, actor: Actor) -> TrustDemand | None:
        """Return the trust that the lease needs after the change and does not have yet.

        Raises ``InvalidParameter`` if the caller belongs to another project: his trust cannot act for the owner's.
        """
        current = {reservation.id: reservation for reservation in lease.reservations}
        requests = [
            ReservationRequest(known.resource_type, {**known.parameters, **reservation_change.parameters}, known.region)
            for reservation_change in change.reservations
            if (known := current.get(reservation_change.reservation_id))
            is not None  # the changer reports all other errors
        ]
        return self._missing(lease, requests, actor)

    def demand_with(self, lease: Lease, request: ReservationRequest, actor: Actor) -> TrustDemand | None:
        """Return the trust that the lease needs with this additional reservation and does not have yet."""
        return self._missing(lease, [request], actor)

    def _missing(self, lease: Lease, reservations: Iterable[ReservationRequest], actor: Actor) -> TrustDemand | None:
        trusted = {region or self._home for region in trusts_in(lease.trust_id or "")}
        trust_demand = self.demand_of(
            reservation for reservation in reservations if (reservation.region or self._home) not in trusted
        )
        if trust_demand is not None and actor.project_id != lease.project_id:
            raise InvalidParameter(
                "Only a member of the lease's project can ask for what is done in the project's name.",
                field=trust_demand.field,
            )
        return trust_demand

    @contextmanager
    def given_by(self, actor: Actor, trust_demand: TrustDemand | None) -> Iterator[str | None]:
        """Yield a trust of the caller if there is a ``trust_demand``; revoke it if the block fails.

        It is not revoked if the outcome of the block is unknown. Raises ``InvalidParameter`` if the cloud refuses the
        trust, ``Unavailable`` if it does not answer.
        """
        if trust_demand is None:
            yield None
            return
        try:
            trust_id = self._cloud.delegate(actor, trust_demand.regions)
        except CloudBusy as error:
            LOG.warning("no trust can be had of user %s: %s", actor.user_id, error)
            raise Unavailable(f"The cloud does not answer as it should: {error.reason.text}") from None
        except CloudError as error:
            LOG.info("no trust can be had of user %s: %s", actor.user_id, error)
            message = f"What is done in your name needs a trust: {error.reason.text}"
            raise InvalidParameter(message, field=trust_demand.field) from None
        try:
            yield trust_id
        except OutcomeUnknown:
            # The lease may have been written all the same; the trust can only be used in its name.
            LOG.warning("it is not known whether a lease has trust %s", trust_id)
            raise
        except BaseException:
            self.revoke(trust_id)
            raise

    def revoke(self, trust_id: str) -> None:
        """Revoke a surplus trust; if the cloud refuses, the reconciler deletes it later."""
        try:
            self._cloud.revoke(trust_id)
        except CloudError as error:
            LOG.warning("trust %s is of no use and will be deleted later: %s", trust_id, error)
            try:
                with deadlines.within(None):
                    self._db.write(lambda tx: tx.leases.keep_surplus_trust(trust_id, now=tx.now()))
            except TenureError as lost:
                LOG.warning("trust %s stays in Keystone and is not recorded for deletion: %s", trust_id, lost)


class IdleTrusts:
    """The trusts of owners whose leases have all ended: nothing needs them any more."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def find(self, limit: int) -> list[str]:
        """Return the ids of idle trusts."""
        with self._db.read() as tx:
            return tx.leases.idle_trusts(limit)

    def forget(self, trust_id: str) -> None:
        """Record that a trust was deleted."""
        self._db.write(lambda tx: tx.leases.forget_trust(trust_id))
