"""The availability zones of reserved hosts, before and after their reservation.

Nova has a host in one zone only, by the operator's aggregates, and a reservation of whole hosts has a zone of its own.
A host leaves its aggregates with a zone, its homes, before it joins the reservation's aggregate, and is put back into
them afterwards. The reservation's aggregate keeps the homes of each of its hosts from before the host leaves them until
it is back, so that nothing is lost with a process that dies in between. All the while the host is in the pool, or in
the reservation's aggregate, and thereby closed to others.
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
from tenure.drivers.openstack.layout import Layout, home_key, homes_kept, homes_text
from tenure.drivers.openstack.requests import Conflict

LOG = logging.getLogger(__name__)

#: How long to wait before looking again at what is done in a moment.
_SOON: Final = timedelta(seconds=2)
#: How long to wait for what others must do.
_OTHERS: Final = timedelta(seconds=30)


class Homes:
    """Taking hosts out of their zones and putting them back, with the calls of one verb."""

    def __init__(self, compute: Compute, aggregates: Aggregates, now: datetime) -> None:
        self._compute = compute
        self._aggregates = aggregates
        self._now = now

    def leave(self, layout: Layout, group: Aggregate, hosts: Collection[str]) -> None:
        """Have these hosts in no zone but the group's, which keeps where they were.

        They must be in the pool. Raises ``CloudBusy`` where Nova does not let a host with servers leave its zone.
        """
        kept = homes_kept(group)
        homes = {host: found for host in hosts if (found := layout.homes_to_keep(host, kept.get(host, frozenset())))}
        changes = {home_key(host): homes_text(found) for host, found in homes.items() if found != kept.get(host)}
        if changes:
            self._compute.set_metadata(group, changes)
        for home in layout.aggregates_of({number for found in homes.values() for number in found}):
            leaving = {host for host, found in homes.items() if home.id in found}
            errors = self._compute.remove_hosts(home, leaving & home.hosts)
            # Also of hosts that left before: the process that removed them may have died before schedulers were told.
            self._compute.announce(home)
            for _, error in sorted(errors.items()):
                raise error

    def restore(self, layout: Layout, group: Aggregate, hosts: Collection[str]) -> Progress | None:
        """Have these hosts, which left the group, in their homes again; what keeps them from there, if any.

        Homes that are gone are gone: hosts are given back all the same.
        """
        kept = homes_kept(group)
        returning = {
            host: kept[host]
            for host in hosts
            if host in kept and not layout.exclusive_holders(host, but=group.name)  # which has its homes then
        }
        if not returning:
            return None
        self._tell_lost(layout, returning)
        stuck: set[str] = set()
        for home in layout.aggregates_of({number for found in returning.values() for number in found}):
            members = {host for host, found in returning.items() if home.id in found}
            errors = self._compute.add_hosts(home, members - home.hosts)
            self._compute.announce(home)
            stuck |= self._stuck(home, errors)
        return self._what_keeps(stuck) if stuck else None

    def forget(self, group: Aggregate, hosts: Iterable[str]) -> dict[str, str | None]:
        """What is to be changed in the group's metadata once these hosts are in their homes."""
        return {home_key(host): None for host in sorted(homes_kept(group).keys() & set(hosts))}

    def _tell_lost(self, layout: Layout, returning: dict[str, frozenset[int]]) -> None:
        for host, found in sorted(returning.items()):
            homes = {home.id: home for home in layout.aggregates_of(found)}
            for number in sorted(found - homes.keys()):
                LOG.warning("%s was in aggregate %d for its availability zone, which is gone", host, number)
            for home in homes.values():
                if home.zone is None:
                    LOG.warning("%s returns into aggregate %s, which has lost its availability zone", host, home.name)

    def _stuck(self, home: Aggregate, errors: dict[str, CloudError]) -> set[str]:
        """The hosts that Nova does not put into their home for now, by what went wrong; raises what is unexpected."""
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
        layout = self._aggregates.look()
        stuck = set()
        for host in sorted(conflicts):
            other = layout.foreign_zone(host)
            if layout.is_held(host) or any(host in found.hosts for found in layout.aggregates_of([home.id])):
                continue
            if other is not None:
                LOG.warning("%s is not put back into aggregate %s: it is in zone %s now", host, home.name, other)
                continue
            stuck.add(host)
        return stuck

    def _what_keeps(self, hosts: Collection[str]) -> Progress:
        """Why Nova does not let these hosts into their zones: there are servers, of which preemptible ones are deleted.

        While a host was on its way, the pool may have been open to these.
        """
        servers = self._compute.servers_on(hosts)
        unfinished = delete_servers(self._compute, [server for server in servers if server.preemptible], now=self._now)
        if unfinished is not None:
            return unfinished
        if not servers:
            return Progress(False, _SOON, f"Nova does not put {', '.join(sorted(hosts))} back into their zones.")
        named = ", ".join(
            f"{server.id} of project {server.project_id} on {server.service_host}" for server in servers[:5]
        )
        return Progress(False, _OTHERS, f"Servers keep hosts from their availability zones: {named}.")
