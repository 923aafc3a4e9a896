"""Trusts: what lets us act as a lease's owner, for what can be done in his name only."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tenure.domain.actor import Actor
from tenure.domain.errors import InvalidParameter, TenureError, Unavailable
from tenure.domain.lease import Lease
from tenure.domain.regions import trusts_in
from tenure.domain.request import LeaseChange, ReservationRequest
from tenure.drivers.contract import CloudBusy, CloudError
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Effects
from tenure.store.database import Database, OutcomeUnknown

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Need:
    """Where a trust is needed, and the first parameter for which it is."""

    field: str
    regions: frozenset[str]


class Trusts:
    """Makes a trust where a reservation asks for something that is done as the owner."""

    def __init__(self, db: Database, types: ResourceTypes, effects: Effects, regions: Collection[str] = ()) -> None:
        self._db = db
        self._types = types
        self._effects = effects
        self._home = next(iter(regions), "")

    def needed_for(self, asked: Iterable[ReservationRequest]) -> Need | None:
        """The trust that is needed for reservations; None where nothing is to be done as their owner."""
        fields = [(one.region, self._types[one.resource_type].trusted_for(one.parameters)) for one in asked]
        needed = [(region, field) for region, field in fields if field is not None]
        return Need(needed[0][1], frozenset(region for region, _ in needed)) if needed else None

    def needed_by(self, lease: Lease, change: LeaseChange, actor: Actor) -> Need | None:
        """The trust that the lease needs after the change, and does not have.

        Raises ``InvalidParameter`` where the caller is of another project, which no trust of his can act for.
        """
        current = {one.id: one for one in lease.reservations}
        asked = [
            ReservationRequest(known.resource_type, {**known.parameters, **one.parameters}, known.region)
            for one in change.reservations
            if (known := current.get(one.reservation_id)) is not None  # what is wrong else is found where it is applied
        ]
        return self._missing(lease, asked, actor)

    def needed_with(self, lease: Lease, request: ReservationRequest, actor: Actor) -> Need | None:
        """The same for one more reservation."""
        return self._missing(lease, [request], actor)

    def _missing(self, lease: Lease, asked: Iterable[ReservationRequest], actor: Actor) -> Need | None:
        trusted = {region or self._home for region in trusts_in(lease.trust_id or "")}
        need = self.needed_for(one for one in asked if (one.region or self._home) not in trusted)
        if need is not None and actor.project_id != lease.project_id:
            raise InvalidParameter(
                "Only a member of the lease's project can ask for what is done in the project's name.", field=need.field
            )
        return need

    @contextmanager
    def given_by(self, actor: Actor, need: Need | None) -> Iterator[str | None]:
        """A trust of the caller where there is ``need`` of one; revoked where the block fails.

        Unless what the block wrote may be there. Raises ``InvalidParameter`` where the cloud does not let him trust us,
        ``Unavailable`` while it does not work.
        """
        if need is None:
            yield None
            return
        try:
            trust_id = self._effects.delegate(actor, need.regions)
        except CloudBusy as error:
            LOG.warning("no trust can be had of user %s: %s", actor.user_id, error)
            raise Unavailable(f"The cloud does not answer as it should: {error.reason.text}") from None
        except CloudError as error:
            LOG.info("no trust can be had of user %s: %s", actor.user_id, error)
            said = f"What is done in your name needs a trust: {error.reason.text}"
            raise InvalidParameter(said, field=need.field) from None
        try:
            yield trust_id
        except OutcomeUnknown:
            # The lease may have been written all the same; nothing can be done with the trust but in its name.
            LOG.warning("it is not known whether a lease has trust %s", trust_id)
            raise
        except BaseException:
            self.revoke(trust_id)
            raise

    def revoke(self, trust_id: str) -> None:
        """Revoke a trust that is not needed any more; what the cloud refuses now is left to the repair."""
        try:
            self._effects.revoke(trust_id)
        except CloudError as error:
            LOG.warning("trust %s is of no use and will be deleted later: %s", trust_id, error)
            try:
                self._db.write(lambda tx: tx.leases.keep_surplus_trust(trust_id, now=tx.now()))
            except TenureError as lost:
                LOG.warning("trust %s stays in Keystone and is not recorded for deletion: %s", trust_id, lost)
