"""Default leases: servers without a lease get one, so that forgotten servers come to an end.

The servers of a region are listed page by page, again and again: those that were changed lately, and at longer
intervals all that exist. The ledger knows which servers had their lease: after a restart they cost only the pages of
the list. No server is asked for by itself.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from tenure.clock import Clock
from tenure.domain.actor import Actor
from tenure.domain.errors import Conflict, InvalidParameter, TenureError, TooManyConflicts, Unavailable
from tenure.domain.request import LeaseRequest, Moment, ReservationRequest
from tenure.drivers.contract import (
    BootedServer,
    CloudDriver,
    CloudError,
    CloudRefused,
    ServerPage,
    drivers_by_region,
)
from tenure.services.leases.default_leases import DefaultLeaseBook, default_lease_id
from tenure.services.requests.leases import LeaseService

LOG = logging.getLogger(__name__)

#: How far back to look for new and deleted servers at first.
LOOK_BACK: Final = timedelta(days=1)
#: How much of the time before is looked through again: the clock of the cloud may be another one.
OVERLAP: Final = timedelta(minutes=10)
#: How often all servers that exist are looked through.
ROUND: Final = timedelta(hours=1)
#: How many pages of servers a pass reads at most in each region.
PAGES: Final = 10
#: How long to wait after a refusal before a server is tried again: quota may have become free.
AGAIN: Final = timedelta(minutes=30)
#: How long to wait after a refusal that will probably not change.
MUCH_LATER: Final = timedelta(days=1)
_LONGEST_NAME: Final = 80
_ROLES: Final = frozenset({"member", "reader"})


@dataclass(frozen=True, slots=True)
class DefaultTerms:
    """The terms of the leases for servers that were booted without one.

    Such a lease has one reservation of ``resource_type``, which takes a ``server_id``, ``at_end`` and ``in_place``.
    """

    resource_type: str
    lasts: timedelta = timedelta(days=30)
    #: How much longer leases last at most, so that those that began together do not end together.
    spread: timedelta = timedelta(hours=24)
    #: How long before the end the notification is sent.
    notice: timedelta = timedelta(days=3)
    at_end: str = "shelve"
    #: Projects whose servers get no lease: those of other services, whose servers belong to no user.
    exempt: frozenset[str] = frozenset()
    #: How many leases a pass requests at most.
    per_pass: int = 100

    def end_of(self, server_id: str, begin: datetime) -> datetime:
        """Return when the lease of the server ends. The share of the spread is derived from the server's id."""
        seconds = int(self.spread.total_seconds())
        share = uuid.UUID(default_lease_id(server_id)).int % seconds if seconds else 0
        return begin + self.lasts + timedelta(seconds=share)


@dataclass(slots=True)
class PassReport:
    """What a pass has done."""

    #: How many servers without a lease were found, and how many got one.
    missing: int = 0
    given: int = 0
    #: Why the other servers got none, by id.
    refused: dict[str, str] = field(default_factory=dict)
    #: Why a region was not looked through.
    failures: list[str] = field(default_factory=list)
    #: Whether all servers were looked through.
    is_complete: bool = True


@dataclass(slots=True)
class _Walk:
    """A walk over the servers of a region, which is begun again at intervals.

    ``since`` is when they were changed; None for all that exist. The next page is that ``after`` a marker.
    """

    since: datetime | None
    interval: timedelta
    begun_at: datetime | None = None
    after: str | None = None
    is_under_way: bool = False
    #: The servers for which a lease was requested in this walk: failures do not keep it from the others.
    tried: set[str] = field(default_factory=set)
    #: Whether something must be tried again soon, in the next walk.
    is_missed: bool = False

    def begin(self, now: datetime) -> bool:
        """Begin if it is time; return whether the walk is under way."""
        is_due = self.begun_at is None or self.is_missed or abs(now - self.begun_at) >= self.interval
        if not self.is_under_way and is_due:
            self.begun_at, self.after, self.is_under_way, self.is_missed = now, None, True, False
            self.tried.clear()
        return self.is_under_way

    def end(self) -> None:
        """End, and go on later with what is changed from then on, unless something was missed."""
        self.is_under_way = False
        if self.since is not None and self.begun_at is not None and not self.is_missed:
            self.since = self.begun_at - OVERLAP


class DefaultLeases:
    """Gives a lease to each server without one, and ends the leases of deleted servers, in passes.

    It looks at the servers that were changed since the last time, or, if it looks at ``existing`` ones, at all. A pass
    requests ``terms.per_pass`` leases at most, and reads ``PAGES`` pages of a region at most; the next pass goes on.
    Any number of managers may run passes at the same time.
    """

    def __init__(
        self,
        leases: LeaseService,
        book: DefaultLeaseBook,
        driver: CloudDriver,
        clock: Clock,
        terms: DefaultTerms,
        *,
        existing: bool = False,
    ) -> None:
        self._leases = leases
        self._book = book
        self._driver = driver
        self._clock = clock
        self._terms = terms
        self._existing = existing
        self._walks: dict[str | None, _Walk] = {}
        #: The servers that were refused a lease, with the time of the next attempt.
        self._refused: dict[str, datetime] = {}

    def run(self) -> PassReport:
        """Run a pass over all regions."""
        now = self._clock.now()
        self._refused = {server_id: again_at for server_id, again_at in self._refused.items() if again_at > now}
        report = PassReport()
        for region, cloud in drivers_by_region(self._driver, self._terms.resource_type).items():
            walk = self._walks.setdefault(region, self._new_walk(now))
            if walk.begin(now):
                self._go_on(cloud, walk, report)
        if report.missing:
            LOG.info("%d of %d servers without a lease were given one", report.given, report.missing)
        return report

    def missing(self) -> Iterator[BootedServer]:
        """Yield all servers that exist and need a lease. Raises ``CloudError``."""
        for cloud in drivers_by_region(self._driver, self._terms.resource_type).values():
            page = ServerPage(after="")
            while page.after is not None:
                page = cloud.servers(None, page.after or None)
                yield from self._without_lease(page.servers)

    def _new_walk(self, now: datetime) -> _Walk:
        return _Walk(None, ROUND) if self._existing else _Walk(now - LOOK_BACK, timedelta(0))

    def _go_on(self, cloud: CloudDriver, walk: _Walk, report: PassReport) -> None:
        """Go on with a walk for the length of a pass."""
        report.is_complete = False
        for _ in range(PAGES):
            try:
                page = cloud.servers(walk.since, walk.after)
            except CloudError as error:
                LOG.warning("servers could not be listed; they will be looked for again: %s", error)
                report.failures.append(str(error))
                if isinstance(error, CloudRefused):
                    walk.after = None  # the server of the marker may be forgotten
                return
            walk.is_missed |= not self._end_leases_of([server for server in page.servers if server.is_gone])
            servers = self._without_lease([server for server in page.servers if server.server_id not in walk.tried])
            room = self._terms.per_pass - report.missing
            for server in servers[:room]:
                walk.tried.add(server.server_id)
                walk.is_missed |= not self._give(server, report)
            if len(servers) > room:
                return  # the next pass reads the page again
            walk.after = page.after
            if page.after is None:
                walk.end()
                report.is_complete = not any(walk.is_under_way for walk in self._walks.values())
                return

    def _without_lease(self, servers: Sequence[BootedServer]) -> list[BootedServer]:
        """Return the servers that need a lease. A server's own mark counts only if the ledger confirms it."""
        ours = [
            server
            for server in servers
            if not (server.is_gone or server.project_id in self._terms.exempt or server.server_id in self._refused)
        ]
        given = self._book.given([server.server_id for server in ours])
        ours = [server for server in ours if server.server_id not in given]
        marks = {
            server.server_id: (server.project_id, server.reservation_id) for server in ours if server.reservation_id
        }
        reserved = self._book.reserved(marks)
        return [server for server in ours if server.server_id not in reserved]

    def _end_leases_of(self, gone: Sequence[BootedServer]) -> bool:
        """End the default leases of these deleted servers; return False if one must be ended later."""
        is_done = True
        regions = {default_lease_id(server.server_id): server.region for server in gone}
        for lease in self._book.running([server.server_id for server in gone]):
            if any(reservation.region != regions[lease.id] for reservation in lease.reservations):
                continue  # the lease of another server, with the same id in another region
            owner = Actor(lease.user_id, lease.project_id, _ROLES)
            try:
                self._leases.delete(owner, lease.id, reason="The server is gone.")
            except TenureError as error:
                LOG.warning("lease %s of a server that is gone will be ended later: %s", lease.id, error)
                is_done = False
        return is_done

    def _give(self, server: BootedServer, report: PassReport) -> bool:
        """Give the server its lease, or note in the report why not; return False if it must be tried again soon."""
        report.missing += 1
        try:
            self._create_lease(server)
        except (Unavailable, TooManyConflicts) as error:
            LOG.warning("server %s will be given a lease soon: %s", server.server_id, error)
            report.refused[server.server_id] = str(error)
            return False
        except TenureError as error:
            is_lasting = isinstance(error, Conflict | InvalidParameter)  # it has a lease already, or cannot have one
            will = "is given no lease" if is_lasting else "will be given a lease later"
            LOG.warning("server %s %s: %s", server.server_id, will, error)
            self._refused[server.server_id] = self._clock.now() + (MUCH_LATER if is_lasting else AGAIN)
            report.refused[server.server_id] = str(error)
        else:
            report.given += 1
        return True

    def _create_lease(self, server: BootedServer) -> None:
        owner = Actor(server.user_id, server.project_id, _ROLES)
        ends_at = self._terms.end_of(server.server_id, self._clock.now().replace(microsecond=0))
        parameters = {"server_id": server.server_id, "at_end": self._terms.at_end, "in_place": True}
        request = LeaseRequest(
            name=f"server {server.name or server.server_id}"[:_LONGEST_NAME],
            starts_at=Moment.NOW,
            ends_at=ends_at,
            before_end_at=ends_at - min(self._terms.notice, self._terms.lasts / 2),
            reservations=(
                ReservationRequest(self._terms.resource_type, parameters, server.region, fact=dict(server.fact)),
            ),
        )
        self._leases.create(owner, request, lease_id=default_lease_id(server.server_id))
