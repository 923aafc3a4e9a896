"""The availability zones of reserved hosts, before and after their reservation.

Nova allows a host in one zone only, and a reservation of whole hosts has its own zone. A host's homes are the
operator's aggregates that give it a zone. A host is removed from its homes before it joins the reservation's aggregate,
and added to them again afterwards. The reservation's aggregate records the homes of each host from before the removal
until it is back, so that nothing is lost if the process dies. All the time the host is in the pool or in the
reservation's aggregate, and so closed to other servers.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from tenure.drivers.contract import CloudError, CloudNotFound, Progress
from tenure.drivers.openstack.aggregates import Aggregates
from tenure.drivers.openstack.compute import Aggregate, Compute
from tenure.drivers.openstack.deletions import delete_servers
from tenure.drivers.openstack.layout import Layout, home_key, homes_text, recorded_homes
from tenure.drivers.openstack.requests import Conflict

LOG = logging.getLogger(__name__)

#: The interval of checking for quick operations of the cloud.
_SOON: Final = timedelta(seconds=2)
#: The interval of checking for actions of others.
_OTHERS: Final = timedelta(seconds=30)


class Homes:
    """Removing hosts from their zones and returning them, for one driver call."""

    def __init__(self, compute: Compute, aggregates: Aggregates, now: datetime) -> None:
        self._compute = compute
        self._aggregates = aggregates
        self._now = now

    def leave(self, layout: Layout, group: Aggregate, hosts: Collection[str]) -> None:
        """Remove these hosts from their homes; the group records the homes first.

        The hosts must be in the pool. Raises ``CloudBusy`` if Nova refuses because of servers on a host.
        """
        recorded = recorded_homes(group)
        homes = {
            host: found for host in hosts if (found := layout.homes_to_keep(host, recorded.get(host, frozenset())))
        }
        changes = {home_key(host): homes_text(found) for host, found in homes.items() if found != recorded.get(host)}
        if changes:
            self._compute.set_metadata(group, changes)
        for home in layout.aggregates_of({aggregate_id for found in homes.values() for aggregate_id in found}):
            leaving = {host for host, found in homes.items() if home.id in found}
            errors = self._compute.remove_hosts(home, leaving & home.hosts)
            # Also for hosts that were removed before: the worker that removed them may have died before schedulers were
            # notified.
            self._compute.announce(home)
            for _, error in sorted(errors.items()):
                raise error

    def restore(self, layout: Layout, group: Aggregate, hosts: Collection[str]) -> Progress | None:
        """Return these hosts, which have left the group, to their homes; return why some cannot return, or None.

        Homes that were deleted are ignored: the hosts are released all the same.
        """
        recorded = recorded_homes(group)
        returning = {
            host: recorded[host]
            for host in hosts
            # the other group has recorded its homes
            if host in recorded and not layout.exclusive_reservations(host, but=group.name)
        }
        if not returning:
            return None
        self._log_lost_homes(layout, returning)
        stuck: set[str] = set()
        for home in layout.aggregates_of({aggregate_id for found in returning.values() for aggregate_id in found}):
            members = {host for host, found in returning.items() if home.id in found}
            errors = self._compute.add_hosts(home, members - home.hosts)
            self._compute.announce(home)
            stuck |= self._stuck(home, errors)
        return self._obstacle(stuck) if stuck else None

    def forget(self, group: Aggregate, hosts: Iterable[str]) -> dict[str, str | None]:
        """Return the changes of the group's metadata after these hosts are in their homes."""
        return {home_key(host): None for host in sorted(recorded_homes(group).keys() & set(hosts))}

    def _log_lost_homes(self, layout: Layout, returning: dict[str, frozenset[int]]) -> None:
        for host, found in sorted(returning.items()):
            homes = {home.id: home for home in layout.aggregates_of(found)}
            for aggregate_id in sorted(found - homes.keys()):
                LOG.warning("%s was in aggregate %d for its availability zone, which is gone", host, aggregate_id)
            for home in homes.values():
                if home.zone is None:
                    LOG.warning("%s returns into aggregate %s, which has lost its availability zone", host, home.name)

    def _stuck(self, home: Aggregate, errors: dict[str, CloudError]) -> set[str]:
        """Return the hosts that Nova does not add to their home for now; raise unexpected errors."""
        conflicts = set()
        for host, error in sorted(errors.items()):
            if isinstance(error, CloudNotFound):
                LOG.warning("%s cannot be put back into aggregate %s: %s", host, home.name, error)
            elif isinstance(error, Conflict):
                conflicts.add(host)
            else:
                raise error
        if not conflicts:
            return set()
        layout = self._aggregates.read_layout()
        stuck = set()
        for host in sorted(conflicts):
            other = layout.foreign_zone(host)
            if layout.is_reserved_whole(host) or any(host in found.hosts for found in layout.aggregates_of([home.id])):
                continue
            if other is not None:
                LOG.warning("%s is not put back into aggregate %s: it is in zone %s now", host, home.name, other)
                continue
            stuck.add(host)
        return stuck

    def _obstacle(self, hosts: Collection[str]) -> Progress:
        """Return why Nova refuses to return these hosts to their zones; preemptible servers are deleted.

        While a host was between zones, the pool may have been open to preemptible servers.
        """
        servers = self._compute.servers_on(hosts)
        unfinished = delete_servers(self._compute, [server for server in servers if server.preemptible], now=self._now)
        if unfinished is not None:
            return unfinished
        if not servers:
            return Progress(False, _SOON, f"Nova does not put {', '.join(sorted(hosts))} back into their zones.")
        named = ", ".join(f"{server.id} of project {server.project_id} on {server.member}" for server in servers[:5])
        return Progress(False, _OTHERS, f"Servers keep hosts from their availability zones: {named}.")
