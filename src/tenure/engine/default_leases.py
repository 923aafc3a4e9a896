"""Leases for servers that were booted without one, so that forgotten servers come to an end."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tenure.clock import Clock
from tenure.domain.actor import Actor
from tenure.domain.errors import Conflict, InvalidParameter, TenureError, TooManyConflicts, Unavailable
from tenure.domain.request import LeaseRequest, Moment, ReservationRequest
from tenure.drivers.contract import BootedServer, CloudDriver, CloudError
from tenure.services.default_leases import DefaultLeaseBook, default_lease_id
from tenure.services.leases import LeaseService

LOG = logging.getLogger(__name__)

#: How far back it is looked for servers: for so long managers may be away, and none is missed.
LOOK_BACK: Final = timedelta(days=1)
#: After how long a server that was refused its lease is tried again: a quota that is used up comes free.
AGAIN: Final = timedelta(minutes=10)
_LONGEST_NAME: Final = 80
_ROLES: Final = frozenset({"member", "reader"})


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
    #: The projects whose servers get none: those of other services, whose servers are not their users'.
    exempt: frozenset[str] = frozenset()


class DefaultLeases:
    """One look at what was booted lately, and what went. Any number of managers may look at the same time."""

    def __init__(
        self, leases: LeaseService, book: DefaultLeaseBook, driver: CloudDriver, clock: Clock, terms: DefaultTerms
    ) -> None:
        self._leases = leases
        self._book = book
        self._driver = driver
        self._clock = clock
        self._terms = terms
        #: The servers that were looked at already, and those of which it is known that they are gone.
        self._seen: set[str] = set()
        self._ended: set[str] = set()
        #: The servers that were refused a lease, with the time at which they are tried again.
        self._refused: dict[str, tuple[BootedServer, datetime]] = {}

    def run(self) -> int:
        """Give each server a lease that was booted without one, and end those of servers that are gone.

        How many were given.
        """
        now = self._clock.now()
        try:
            found = list(self._driver.servers(now - LOOK_BACK))
        except CloudError as error:
            LOG.warning("servers that were booted lately will be looked for again: %s", error)
            return 0
        gone = {one.server_id: one for one in found if one.is_gone}
        booted = {one.server_id: one for one in found if not one.is_gone}
        self._seen &= booted.keys()
        self._ended &= gone.keys()
        self._end_those_of({number: one for number, one in gone.items() if number not in self._ended})
        due = [server for server, again_at in self._refused.values() if again_at <= now]
        fresh = [one for number, one in booted.items() if number not in self._seen | self._refused.keys()]
        return sum(self._give(one) for one in self._without_a_lease([*due, *fresh]))

    def _without_a_lease(self, servers: Iterable[BootedServer]) -> list[BootedServer]:
        """Those that are to get one: what a server says of itself counts only as far as the ledger knows of it."""
        ours = [one for one in servers if one.project_id not in self._terms.exempt]
        marks = {one.server_id: (one.project_id, one.reservation_id) for one in ours if one.reservation_id}
        reserved = self._book.reserved(marks)
        return [one for one in ours if one.server_id not in reserved]

    def _end_those_of(self, gone: Mapping[str, BootedServer]) -> None:
        """End the leases that these servers had of themselves."""
        failed: set[str] = set()
        wheres = {default_lease_id(number): one.region for number, one in gone.items()}
        for lease in self._book.running(gone):
            if any(one.region != wheres[lease.id] for one in lease.reservations):
                continue  # that of another server, which is called the same elsewhere
            owner = Actor(lease.user_id, lease.project_id, _ROLES)
            try:
                self._leases.delete(owner, lease.id, reason="The server is gone.")
            except TenureError as error:
                LOG.warning("lease %s of a server that is gone will be ended later: %s", lease.id, error)
                failed.add(lease.id)
        for number in gone:
            self._refused.pop(number, None)
        self._ended |= {number for number in gone if default_lease_id(number) not in failed}

    def _give(self, server: BootedServer) -> bool:
        lease_id = default_lease_id(server.server_id)
        owner = Actor(server.user_id, server.project_id, _ROLES)
        ends_at = self._clock.now().replace(microsecond=0) + self._terms.lasts
        parameters = {"server_id": server.server_id, "at_end": self._terms.at_end, "in_place": True}
        request = LeaseRequest(
            name=f"server {server.name or server.server_id}"[:_LONGEST_NAME],
            starts_at=Moment.NOW,
            ends_at=ends_at,
            before_end_at=ends_at - min(self._terms.notice, self._terms.lasts / 2),
            reservations=(ReservationRequest(self._terms.resource_type, parameters, server.region),),
        )
        self._refused.pop(server.server_id, None)
        try:
            self._leases.create(owner, request, lease_id=lease_id)
        except (Conflict, InvalidParameter) as error:  # it has a lease, or cannot have one
            LOG.warning("server %s is given no lease: %s", server.server_id, error)
            self._seen.add(server.server_id)
            return False
        except (Unavailable, TooManyConflicts) as error:
            LOG.warning("server %s will be given a lease soon: %s", server.server_id, error)
            return False
        except TenureError as error:
            LOG.warning("server %s will be given a lease later: %s", server.server_id, error)
            self._refused[server.server_id] = (server, self._clock.now() + AGAIN)
            return False
        self._seen.add(server.server_id)
        return True
