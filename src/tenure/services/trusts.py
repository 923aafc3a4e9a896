"""Trusts: what lets us act as a lease's owner, for what can be done in his name only."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from tenure.domain.actor import Actor
from tenure.domain.errors import InvalidParameter, Unavailable
from tenure.domain.lease import Lease
from tenure.domain.request import LeaseChange, ReservationRequest
from tenure.drivers.contract import CloudBusy, CloudError
from tenure.resources.contract import ResourceTypes
from tenure.services.context import Effects
from tenure.store.database import OutcomeUnknown

LOG = logging.getLogger(__name__)


class Trusts:
    """Makes a trust where a reservation asks for something that is done as the owner."""

    def __init__(self, types: ResourceTypes, effects: Effects) -> None:
        self._types = types
        self._effects = effects

    def asked_for(self, resource_type: str, parameters: Mapping[str, object]) -> str | None:
        """The parameter for which something is to be done as the owner of such a reservation; None where nothing is."""
        return self._types[resource_type].trusted_for(parameters)

    def asked_for_by(self, lease: Lease, change: LeaseChange, actor: Actor) -> str | None:
        """The parameter for which the lease needs a trust after the change; None where it needs none, or has one.

        Raises ``InvalidParameter`` where the caller is of another project, which no trust of his can act for.
        """
        current = {one.id: one for one in lease.reservations}
        asked = [
            (known.resource_type, {**known.parameters, **one.parameters})
            for one in change.reservations
            if (known := current.get(one.reservation_id)) is not None  # what is wrong else is found where it is applied
        ]
        return self._missing(lease, asked, actor)

    def asked_for_with(self, lease: Lease, request: ReservationRequest, actor: Actor) -> str | None:
        """The same for one more reservation."""
        return self._missing(lease, [(request.resource_type, request.parameters)], actor)

    def _missing(self, lease: Lease, asked: Iterable[tuple[str, Mapping[str, object]]], actor: Actor) -> str | None:
        """The first parameter that needs a trust, by types and parameters of reservations; None where there is one."""
        if lease.trust_id is not None:
            return None
        field = next(filter(None, (self.asked_for(name, parameters) for name, parameters in asked)), None)
        if field is not None and actor.project_id != lease.project_id:
            raise InvalidParameter(
                "Only a member of the lease's project can ask for what is done in the project's name.", field=field
            )
        return field

    @contextmanager
    def given_by(self, actor: Actor, *, field: str | None) -> Iterator[str | None]:
        """A trust of the caller where a ``field`` asks for one; revoked where the block fails.

        Unless what the block wrote may be there. Raises ``InvalidParameter`` where the cloud does not let him trust us,
        ``Unavailable`` while it does not work.
        """
        if field is None:
            yield None
            return
        try:
            trust_id = self._effects.delegate(actor)
        except CloudBusy as error:
            raise Unavailable(f"The cloud does not answer as it should: {error}") from None
        except CloudError as error:
            raise InvalidParameter(f"What is done in your name needs a trust: {error}", field=field) from None
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
        """Forget a trust that nobody needs; what the cloud does not forget is harmless, and is told in the log."""
        try:
            self._effects.revoke(trust_id)
        except CloudError as error:
            LOG.warning("trust %s is of no use and could not be deleted: %s", trust_id, error)
