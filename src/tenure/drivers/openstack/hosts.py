"""Moving hosts between general use, the pool and reservations.

A host is in Nova's aggregates by the name of its compute service. The scheduler's filter closes every host that is in
the pool or in a reservation's aggregate to servers that do not name that reservation, so a host is always put into the
one before it is taken out of the other: there is no moment at which it is open to everybody. In the pool a host is in
its own availability zone, in a reservation's aggregate in that one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Order,
    Progress,
    ResourceMissing,
    ResourceOccupied,
)
from tenure.drivers.openstack.aggregates import Aggregates
from tenure.drivers.openstack.compute import Aggregate, Compute, Hypervisor, Server
from tenure.drivers.openstack.deletions import delete_servers
from tenure.drivers.openstack.homes import Homes
from tenure.drivers.openstack.layout import FORMER_OWNER, Layout, homes_kept
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.placement import PREFIX, Placement
from tenure.drivers.openstack.requests import BadRequest, Conflict

#: How long to wait before looking again at what is done in a moment.
_SOON: Final = timedelta(seconds=2)
#: How long to wait for what others must do.
_OTHERS: Final = timedelta(seconds=30)


class Hosts:
    """The hosts of a cloud, with the calls of one verb."""

    def __init__(self, compute: Compute, placement: Placement, options: OpenStackOptions, now: datetime) -> None:
        self._compute = compute
        self._aggregates = Aggregates(compute, options)
        self._homes = Homes(compute, self._aggregates, now)
        self._placement = placement
        self._options = options
        self._now = now

    # Registering

    def pool(self, host: Hypervisor) -> bool:
        """Set the host aside, if it is neither in the pool nor in a reservation; whether that was to be done.

        It stays in its availability zone. One of the pool that is yet to come back into that is put there.
        """
        layout = self._aggregates.look()
        if layout.is_held(host.service_host):
            return False
        if host.service_host in layout.pool.hosts:
            self._bring_home(layout, host.service_host)
            return False
        if layout.pool.zone is not None:
            raise CloudRefused(
                f"The aggregate {layout.pool.name} of the free hosts must not have an availability zone."
            )
        zone = layout.stranger_zone(host.service_host)
        if zone is not None:
            raise CloudRefused(f"{host.name} is in the availability zone {zone} of what looks like a reservation.")
        sharing = frozenset(layout.sharers(host.service_host))
        self._refuse_lasting(host, sharing)
        self._aggregates.add(layout.pool, [host.service_host])
        try:
            # Until the host was in the pool, servers could come.
            self._refuse_lasting(host, sharing)
        except ResourceOccupied:
            self._aggregates.remove(layout.pool, [host.service_host])
            raise
        return True

    def unpool(self, host: Hypervisor) -> None:
        """Give the host back to general use; raises ``CloudBusy`` while a reservation or anybody's server has it."""
        layout = self._aggregates.look()
        if self._bring_home(layout, host.service_host):
            layout = self._aggregates.look()
        holders = layout.holders(host.service_host, but="")
        if holders:
            raise CloudBusy(f"{host.name} is still held by reservation {holders[0]}.")
        if host.service_host in layout.pool.hosts:
            self._refuse([host], self._compute.servers_on([host.service_host]), frozenset())
            self._aggregates.remove(layout.pool, [host.service_host])

    def _bring_home(self, layout: Layout, host: str) -> bool:
        """Have a free host in its zone that was left on the way there; whether there was any."""
        keepers = layout.keepers(host)
        for group in keepers:
            unfinished = self._homes.restore(layout, group, [host])
            if unfinished is not None:
                raise CloudBusy(unfinished.reason or "")
            self._compute.set_metadata(group, self._homes.forget(group, [host]))
        return bool(keepers)

    # Starting

    def prepare(self, order: Order) -> Progress:
        """Nothing of a host reservation is seen before its start."""
        return DONE

    def hand_over(self, order: Order) -> Progress:
        """Let the reservation have the hosts of the order; answers and raises as ``ensure_started`` does."""
        known = self._compute.hypervisors_known(
            [resource.external_id for resource in (*order.resources, *order.returning)]
        )
        wanted = [known[resource.external_id] for resource in order.resources if resource.external_id in known]
        missing = {
            resource.external_id: f"Nova has no host {resource.name or resource.external_id} any more."
            for resource in order.resources
            if resource.external_id not in known
        }
        returned = [known[resource.external_id] for resource in order.returning if resource.external_id in known]
        returning = frozenset(hypervisor.service_host for hypervisor in returned)
        layout = self._aggregates.look()
        pool = layout.pool
        group = layout.group(order.reservation_id)
        had = group.hosts if group is not None else frozenset()
        hosts = {hypervisor.service_host: hypervisor for hypervisor in wanted}
        fresh = hosts.keys() - had
        free = [hosts[host] for host in sorted(fresh) if not layout.holders(host, but=order.reservation_id)]
        self._clear(free, order.reservation_id)
        surplus = (had | homes_kept(group).keys() if group is not None else had) - hosts.keys()
        if missing:
            surplus &= returning  # among the others may be one that Nova lists by another id now
        # What the reservation gives up goes first: of two that trade hosts, neither then waits for the other.
        lingering = self._return(layout, order, group, surplus, returning) if group is not None else None
        self._refuse_held(layout, order, [hosts[host] for host in sorted(fresh)])
        group = self._ensure_group(layout, order, group)
        # One that somebody took out of everything is closed first.
        self._aggregates.add(pool, [host for host in fresh if host not in pool.hosts])
        self._homes.leave(layout, group, fresh)
        if fresh:
            self._aggregates.add(group, fresh, announce=False)
        changes = layout.wanted_metadata(order, group)
        if fresh or changes:  # which opens it to the owner, and tells schedulers of the hosts in it
            self._compute.set_metadata(group, changes)
        self._aggregates.remove(pool, [host for host in hosts if host in pool.hosts or host in fresh])
        if missing:
            raise ResourceMissing(missing)
        return lingering or DONE

    def _ensure_group(self, layout: Layout, order: Order, group: Aggregate | None) -> Aggregate:
        """The order's aggregate. A new one is nobody's until its hosts are in it."""
        if group is None:
            try:
                group = self._compute.make_aggregate(order.reservation_id, layout.zone_of(order.reservation_id))
            except Conflict:  # somebody else made it since we looked
                group = self._aggregates.look().group(order.reservation_id)
                if group is None:
                    raise
        changes = layout.wanted_metadata(order, group)
        if "availability_zone" in changes or layout.owner_of(group) not in ("", order.project_id):
            # What is somebody else's, or in another zone, gets no hosts.
            self._compute.set_metadata(group, changes)
            group = self._aggregates.look().group(order.reservation_id) or group
        return group

    def _refuse_held(self, layout: Layout, order: Order, hosts: Iterable[Hypervisor]) -> None:
        """Refuse hosts of other reservations. Their end may be under way, so this is worth another try."""
        for host in hosts:
            for holder in layout.holders(host.service_host, but=order.reservation_id):
                raise CloudBusy(f"{host.name} is not released yet by reservation {holder}.")
            zone = layout.stranger_zone(host.service_host)
            if zone is not None:
                raise CloudBusy(f"{host.name} is in the availability zone {zone} of the pool, or of a reservation.")

    def _clear(self, hosts: Sequence[Hypervisor], reservation_id: str) -> None:
        """Delete preemptible servers there, and refuse hosts with others that were not booted for the reservation.

        Raises ``CloudBusy`` while they vanish: Nova moves no host with servers into another zone.
        """
        servers = self._compute.servers_on(host.service_host for host in hosts)
        preemptible = [server for server in servers if server.preemptible]
        self._refuse(hosts, [server for server in servers if not server.preemptible], frozenset([reservation_id]))
        if preemptible:
            self._compute.delete_servers([server for server in preemptible if not server.vanishing])
            where = ", ".join(sorted({server.service_host for server in preemptible}))
            raise CloudBusy(f"{len(preemptible)} preemptible servers are still vanishing on {where}.")

    def _refuse_lasting(self, host: Hypervisor, reservations: frozenset[str]) -> None:
        """Refuse a host with servers that were booted for none of these reservations, but for preemptible ones."""
        servers = self._compute.servers_on([host.service_host])
        self._refuse([host], [server for server in servers if not server.preemptible], reservations)

    def _refuse(self, hosts: Sequence[Hypervisor], servers: Iterable[Server], reservations: frozenset[str]) -> None:
        foreign = Counter(
            server.service_host
            for server in servers
            if server.flavor_of not in reservations and reservations.isdisjoint(server.reservations or ())
        )
        if foreign:
            raise ResourceOccupied(
                {
                    host.external_id: f"{foreign[host.service_host]} servers of others run on {host.name}"
                    for host in hosts
                    if foreign[host.service_host]
                }
            )

    # Ending

    def take_back(self, order: Order) -> Progress:
        """Delete the reservation's servers, and return its hosts to the pool."""
        layout = self._aggregates.look()
        group = layout.group(order.reservation_id)
        if group is None and not self._compute.tells_hints:
            return DONE  # nothing tells which servers would be the reservation's
        own = self._hosts_of(order)
        elsewhere = frozenset(host for host in own if not layout.is_held(host))
        if group is None:
            return self._delete_servers(order, elsewhere, frozenset(), "") or DONE
        if group.hosts:
            self._close(layout, group)
        unfinished = self._return(layout, order, group, group.hosts | homes_kept(group).keys(), own, elsewhere)
        if unfinished is not None:
            return unfinished
        try:
            self._compute.delete_aggregate(group)
        except CloudNotFound:
            pass
        except BadRequest as error:  # it is not empty
            return self._what_stays(order, group, error)
        return DONE

    def _what_stays(self, order: Order, group: Aggregate, error: BadRequest) -> Progress:
        """Why the aggregate cannot be deleted: Nova knew nothing of hosts that were to leave it, or got new ones."""
        left = self._aggregates.look().group(order.reservation_id)
        stuck = sorted(group.hosts & left.hosts) if left is not None else []
        if not stuck:
            return Progress(False, _SOON, f"The aggregate of the reservation cannot be deleted: {error}")
        return Progress(False, _OTHERS, f"Nova does not let {', '.join(stuck)} leave the aggregate of the reservation.")

    def servers_of(self, order: Order) -> list[Server]:
        """The reservation's servers on the hosts that it has."""
        layout = self._aggregates.look()
        group = layout.group(order.reservation_id)
        own = self._hosts_of(order)
        members = group.hosts if group is not None else frozenset()
        owner = layout.owner_of(group) if group is not None else ""
        return [
            server
            for server in self._compute.servers_on(members | {host for host in own if not layout.is_held(host)})
            if self._is_of(server, order, own & members, owner) and not server.vanishing
        ]

    def _hosts_of(self, order: Order) -> frozenset[str]:
        """What the reservation has and had, wherever it is: somebody may have taken it out, with its servers."""
        known = self._compute.hypervisors_known(
            [resource.external_id for resource in (*order.resources, *order.returning)]
        )
        return frozenset(hypervisor.service_host for hypervisor in known.values())

    def _close(self, layout: Layout, group: Aggregate) -> None:
        """Let nobody boot there any more: what comes while the end is under way would never be deleted."""
        owner = group.metadata.get(self._options.owner_key)
        if owner:
            self._compute.set_metadata(group, {self._options.owner_key: "", FORMER_OWNER: owner})

    def _return(
        self,
        layout: Layout,
        order: Order,
        group: Aggregate,
        hosts: frozenset[str],
        own: frozenset[str],
        elsewhere: frozenset[str] = frozenset(),
    ) -> Progress | None:
        """Give these hosts to the pool and their zones, when the group's servers are gone; what keeps them, if any.

        Those that have left the group already are put into their zones. ``own`` are the hosts that the ledger knows to
        be the reservation's, or to have been.
        """
        if not hosts | elsewhere:
            return None
        pool = layout.pool
        owner = layout.owner_of(group)
        leaving = hosts & group.hosts
        unfinished = self._delete_servers(order, leaving | elsewhere, own & group.hosts, owner)
        if unfinished is not None:
            return unfinished
        self._aggregates.add(pool, self._bookable(leaving, own) - pool.hosts, missing_ok=True)
        errors = self._compute.remove_hosts(group, leaving)
        gone = hosts - errors.keys()
        unfinished = self._homes.restore(layout, group, gone)
        if not group.hosts <= gone:  # else the next change of the group, or its end, says so
            self._compute.set_metadata(group, {} if unfinished is not None else self._homes.forget(group, gone))
        for _, error in sorted(errors.items()):
            if not isinstance(error, Conflict):
                raise error
        return self._what_keeps(order, sorted(errors), own & group.hosts, owner) if errors else unfinished

    def _bookable(self, hosts: frozenset[str], own: frozenset[str]) -> frozenset[str]:
        """Those of the hosts that were registered: what somebody else has put into a reservation need not be."""
        strange = hosts - own
        if not strange:
            return hosts
        providers = self._placement.providers()
        return (hosts & own) | {
            hypervisor.service_host
            for hypervisor in self._compute.hypervisors()
            if hypervisor.service_host in strange and PREFIX + hypervisor.name in providers
        }

    def _what_keeps(self, order: Order, hosts: Sequence[str], own: frozenset[str], owner: str) -> Progress:
        """Why Nova does not let hosts leave the zone of the reservation: there are servers that we did not delete."""
        others = self._compute.servers_on(hosts)
        if any(self._is_of(server, order, own, owner) for server in others) or not others:
            return Progress(False, _SOON, "The reservation got more servers while it was taken back.")
        named = ", ".join(
            f"{server.id} of project {server.project_id} on {server.service_host}" for server in others[:5]
        )
        return Progress(False, _OTHERS, f"Servers of others are in the way, and are not deleted: {named}.")

    def _delete_servers(self, order: Order, hosts: frozenset[str], own: frozenset[str], owner: str) -> Progress | None:
        """Delete the reservation's servers there; says so while they are still vanishing."""
        if not hosts:
            return None
        servers = [server for server in self._compute.servers_on(hosts) if self._is_of(server, order, own, owner)]
        return delete_servers(self._compute, servers, now=self._now)

    def _is_of(self, server: Server, order: Order, own: frozenset[str], owner: str) -> bool:
        """Whether the server was booted for the reservation.

        A Nova that does not tell the hints of servers leaves only this: what its owner has on its ``own`` hosts, while
        they are in its group.
        """
        if server.reservations is not None:
            return order.reservation_id in server.reservations
        return bool(owner) and server.project_id == owner and server.service_host in own
