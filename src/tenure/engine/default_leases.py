"""Default leases: servers that were booted without a lease get one, so that forgotten servers come to an end."""

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
from tenure.services.leases.default_leases import DefaultLeaseBook, default_lease_id
from tenure.services.requests.leases import LeaseService

LOG = logging.getLogger(__name__)

#: How far back to look for new servers: managers may be away this long without missing one.
LOOK_BACK: Final = timedelta(days=1)
#: How long to wait after a refusal before a server is tried again: quota may have become free.
AGAIN: Final = timedelta(minutes=10)
_LONGEST_NAME: Final = 80
_ROLES: Final = frozenset({"member", "reader"})


@dataclass(frozen=True, slots=True)
class DefaultTerms:
    """The terms of the leases for servers that were booted without one.

    Such a lease has one reservation of ``resource_type``, which takes a ``server_id``, ``at_end`` and ``in_place``.
    """

    resource_type: str
    lasts: timedelta = timedelta(days=30)
    #: How long before the end the notification is sent.
    notice: timedelta = timedelta(days=3)
    at_end: str = "shelve"
    #: Projects whose servers get no lease: those of other services, whose servers belong to no user.
    exempt: frozenset[str] = frozenset()


class DefaultLeases:
    """One pass over new and deleted servers. Any number of managers may run it at the same time."""

    def __init__(
        self, leases: LeaseService, book: DefaultLeaseBook, driver: CloudDriver, clock: Clock, terms: DefaultTerms
    ) -> None:
        self._leases = leases
        self._book = book
        self._driver = driver
        self._clock = clock
        self._terms = terms
        #: The servers that are done, and the deleted servers whose leases are ended.
        self._seen: set[str] = set()
        self._ended: set[str] = set()
        #: The servers that were refused a lease, with the time of the next attempt.
        self._refused: dict[str, tuple[BootedServer, datetime]] = {}

    def run(self) -> int:
        """Give a lease to each server that was booted without one, and end the leases of deleted servers.

        Return how many leases were created.
        """
        now = self._clock.now()
        try:
            servers = list(self._driver.servers(now - LOOK_BACK))
        except CloudError as error:
            LOG.warning("new servers could not be listed; they will be looked for again: %s", error)
            return 0
        gone = {server.server_id: server for server in servers if server.is_gone}
        booted = {server.server_id: server for server in servers if not server.is_gone}
        self._seen &= booted.keys()
        self._ended &= gone.keys()
        self._end_leases_of({server_id: server for server_id, server in gone.items() if server_id not in self._ended})
        due = [server for server, again_at in self._refused.values() if again_at <= now]
        fresh = [server for server_id, server in booted.items() if server_id not in self._seen | self._refused.keys()]
        return sum(self._create_lease(server) for server in self._needing_a_lease([*due, *fresh]))

    def _needing_a_lease(self, servers: Iterable[BootedServer]) -> list[BootedServer]:
        """Return the servers that need a lease. A server's own mark counts only if the ledger confirms it."""
        ours = [server for server in servers if server.project_id not in self._terms.exempt]
        marks = {
            server.server_id: (server.project_id, server.reservation_id) for server in ours if server.reservation_id
        }
        reserved = self._book.reserved(marks)
        return [server for server in ours if server.server_id not in reserved]

    def _end_leases_of(self, gone: Mapping[str, BootedServer]) -> None:
        """End the default leases of these deleted servers."""
        failed: set[str] = set()
        regions = {default_lease_id(server_id): server.region for server_id, server in gone.items()}
        for lease in self._book.running(gone):
            if any(reservation.region != regions[lease.id] for reservation in lease.reservations):
                continue  # the lease of another server, with the same id in another region
            owner = Actor(lease.user_id, lease.project_id, _ROLES)
            try:
                self._leases.delete(owner, lease.id, reason="The server is gone.")
            except TenureError as error:
                LOG.warning("lease %s of a server that is gone will be ended later: %s", lease.id, error)
                failed.add(lease.id)
        for server_id in gone:
            self._refused.pop(server_id, None)
        self._ended |= {server_id for server_id in gone if default_lease_id(server_id) not in failed}

    def _create_lease(self, server: BootedServer) -> bool:
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
        except (Conflict, InvalidParameter) as error:  # it has a lease already, or cannot have one
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
