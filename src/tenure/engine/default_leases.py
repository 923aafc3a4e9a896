"""Leases for servers that were booted without one, so that forgotten servers come to an end."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tenure.clock import Clock
from tenure.domain.actor import Actor
from tenure.domain.errors import TenureError, Unavailable
from tenure.domain.request import LeaseRequest, Moment, ReservationRequest
from tenure.drivers.contract import BootedServer, CloudDriver, CloudError
from tenure.services.default_leases import default_lease_id
from tenure.services.leases import LeaseService

LOG = logging.getLogger(__name__)

#: How far back it is looked for servers: for so long managers may be away, and none is missed.
LOOK_BACK: Final = timedelta(days=1)
_LONGEST_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class DefaultTerms:
    """What the lease of a server is like that was booted without one.

    It is one reservation of ``resource_type``, which takes a ``server_id``, ``at_end`` and ``in_place``.
    """

    resource_type: str
    lasts: timedelta = timedelta(days=30)
    #: How long before the end others are told of it.
    notice: timedelta = timedelta(days=3)
    at_end: str = "shelve"


class DefaultLeases:
    """One look at what was booted lately. Any number of managers may look at the same time."""

    def __init__(self, leases: LeaseService, driver: CloudDriver, clock: Clock, terms: DefaultTerms) -> None:
        self._leases = leases
        self._driver = driver
        self._clock = clock
        self._terms = terms
        #: What was looked at already, or cannot have a lease.
        self._seen: set[str] = set()

    def run(self) -> int:
        """Give each server a lease that was booted without one; how many were given."""
        try:
            booted = list(self._driver.servers(self._clock.now() - LOOK_BACK))
        except CloudError as error:
            LOG.warning("servers that were booted lately will be looked for again: %s", error)
            return 0
        fresh = [one for one in booted if one.server_id not in self._seen]
        self._seen &= {one.server_id for one in booted}
        return sum(self._give(one) for one in fresh)

    def _give(self, server: BootedServer) -> bool:
        lease_id = default_lease_id(server.server_id)
        owner = Actor(server.user_id, server.project_id, frozenset({"member", "reader"}))
        ends_at = self._clock.now().replace(microsecond=0) + self._terms.lasts
        parameters = {"server_id": server.server_id, "at_end": self._terms.at_end, "in_place": True}
        request = LeaseRequest(
            name=f"server {server.name or server.server_id}"[:_LONGEST_NAME],
            starts_at=Moment.NOW,
            ends_at=ends_at,
            before_end_at=ends_at - min(self._terms.notice, self._terms.lasts / 2),
            reservations=(ReservationRequest(self._terms.resource_type, parameters, server.region),),
        )
        try:
            self._leases.create(owner, request, lease_id=lease_id)
        except Unavailable as error:
            LOG.warning("server %s will be given a lease later: %s", server.server_id, error)
            return False
        except TenureError as error:
            LOG.warning("server %s is given no lease: %s", server.server_id, error)
            self._seen.add(server.server_id)
            return False
        self._seen.add(server.server_id)
        return True
