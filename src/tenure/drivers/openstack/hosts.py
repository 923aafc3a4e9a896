"""Moving hosts between general use, the pool and reservations.

Nova's aggregates name a host by its compute service; the nodes of Ironic, of which many share a service, are named in
the metadata. The scheduler's filter closes every host in the pool or in a reservation's aggregate to servers of others.
So a host is always added to one of them before it is removed from the other, and is never open to everybody. In the
pool a host is in its own availability zone, in a reservation's aggregate in the reservation's zone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from tenure.drivers.contract import (
    DONE,
    CloudBusy,
    CloudNotFound,
    CloudRefused,
    Command,
    Progress,
    ResourceMissing,
    ResourceOccupied,
)
from tenure.drivers.openstack.aggregates import Aggregates
from tenure.drivers.openstack.compute import Aggregate, Compute, Hypervisor, Server, is_node
from tenure.drivers.openstack.deletions import progress_of, request_deletion
from tenure.drivers.openstack.homes import Homes
from tenure.drivers.openstack.layout import FORMER_OWNER, Layout, recorded_homes
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.placement import PREFIX, Placement
from tenure.drivers.openstack.requests import BadRequest, Conflict

#: The resource type of whole hosts.
HOST: Final = "physical:host"
#: The interval of checking for quick operations of the cloud.
_SOON: Final = timedelta(seconds=2)
#: The interval of checking for actions of others.
_OTHERS: Final = timedelta(seconds=30)


class Hosts:
    """The hosts of a cloud, for one driver call."""

    def __init__(self, compute: Compute, placement: Placement, options: OpenStackOptions, now: datetime) -> None:
        self._compute = compute
        self._aggregates = Aggregates(compute, options)
        self._homes = Homes(compute, self._aggregates, now)
        self._placement = placement
        self._options = options
        self._now = now

    # Registering

    def pool(self, host: Hypervisor) -> bool:
        """Add the host to the pool if it is neither there nor in a reservation; return whether it was added.

        It stays in its availability zone. A pooled host that is not back in its zone yet is returned to it.
        """
        layout = self._aggregates.read_layout()
        if layout.is_reserved_whole(host.member):
            return False
        if host.member in layout.pool.hosts:
            self._bring_home(layout, host.member)
            return False
        if layout.pool.zone is not None:
            raise CloudRefused(
                f"The aggregate {layout.pool.name} of the free hosts must not have an availability zone."
            )
        zone = layout.stranger_zone(host.member)
        if zone is not None:
            raise CloudRefused(f"{host.name} is in the availability zone {zone} of what looks like a reservation.")
        sharing = frozenset(layout.sharers(host.member))
        self._refuse_occupied(host, sharing)
        self._aggregates.add(layout.pool, [host.member])
        try:
            # Servers may have been booted until the host was in the pool.
            self._refuse_occupied(host, sharing)
        except ResourceOccupied:
            self._aggregates.remove(layout.pool, [host.member])
            raise
        return True

    def unpool(self, host: Hypervisor) -> None:
        """Return the host to general use; raise ``CloudBusy`` while a reservation or a server uses it."""
        layout = self._aggregates.read_layout()
        if self._bring_home(layout, host.member):
            layout = self._aggregates.read_layout()
        holders = layout.reservations_on(host.member, but="")
        if holders:
            raise CloudBusy(f"{host.name} is still held by reservation {holders[0]}.")
        if host.member in layout.pool.hosts:
            self._refuse([host], self._compute.servers_on([host.member]), frozenset())
            self._aggregates.remove(layout.pool, [host.member])

    def _bring_home(self, layout: Layout, host: str) -> bool:
        """Return a free host to its zone if an interrupted call has not; return whether it had to be."""
        keepers = layout.not_returned_by(host)
        for group in keepers:
            unfinished = self._homes.restore(layout, group, [host])
            if unfinished is not None:
                raise CloudBusy(unfinished.reason or "")
            self._compute.set_metadata(group, self._homes.forget(group, [host]))
        return bool(keepers)

    # Starting

    def hand_over(self, command: Command) -> Progress:
        """Move the hosts of the command to the reservation; behaves as ``ensure_started``."""
        known = self._compute.hypervisors_known(
            [resource.external_id for resource in (*command.resources, *command.returning)]
        )
        requested = [known[resource.external_id] for resource in command.resources if resource.external_id in known]
        missing = {
            resource.external_id: f"Nova has no host {resource.name or resource.external_id} any more."
            for resource in command.resources
            if resource.external_id not in known
        }
        returned = [known[resource.external_id] for resource in command.returning if resource.external_id in known]
        returning = frozenset(hypervisor.member for hypervisor in returned)
        layout = self._aggregates.read_layout()
        pool = layout.pool
        group = layout.group(command.reservation_id)
        had = group.hosts if group is not None else frozenset()
        hosts = {hypervisor.member: hypervisor for hypervisor in requested}
        fresh = hosts.keys() - had
        free = [hosts[host] for host in sorted(fresh) if not layout.reservations_on(host, but=command.reservation_id)]
        self._clear(free, command.reservation_id)
        surplus = (had | recorded_homes(group).keys() if group is not None else had) - hosts.keys()
        if missing:
            surplus &= returning  # one of the others may now have another id in Nova
        # Surplus hosts are returned first: otherwise two reservations that swap hosts would wait for each other.
        lingering = self._return(layout, command, group, surplus, returning) if group is not None else None
        self._refuse_reserved(layout, command, [hosts[host] for host in sorted(fresh)])
        group = self._ensure_group(layout, command, group)
        # A host that a user has removed from all aggregates is closed first.
        self._aggregates.add(pool, [host for host in fresh if host not in pool.hosts])
        self._homes.leave(layout, group, fresh)
        if fresh:
            self._aggregates.add(group, fresh, announce=False)
        changes = layout.expected_metadata(command, group)
        if fresh or changes:  # opens the aggregate to the owner, and notifies schedulers of its hosts
            self._compute.set_metadata(group, changes)
        self._aggregates.remove(pool, [host for host in hosts if host in pool.hosts or host in fresh])
        if missing:
            raise ResourceMissing(missing)
        return lingering or DONE

    def _ensure_group(self, layout: Layout, command: Command, group: Aggregate | None) -> Aggregate:
        """Return the command's aggregate. A new one has no owner until its hosts are in it."""
        if group is None:
            try:
                group = self._compute.make_aggregate(command.reservation_id, layout.zone_of(command.reservation_id))
            except Conflict:  # another worker has just created it
                group = self._aggregates.read_layout().group(command.reservation_id)
                if group is None:
                    raise
        changes = layout.expected_metadata(command, group)
        if "availability_zone" in changes or layout.owner_of(group) not in ("", command.project_id):
            # An aggregate with another owner or zone gets no hosts.
            self._compute.set_metadata(group, changes)
            group = self._aggregates.read_layout().group(command.reservation_id) or group
        return group

    def _refuse_reserved(self, layout: Layout, command: Command, hosts: Iterable[Hypervisor]) -> None:
        """Refuse hosts of other reservations, to be retried: their end may be in progress."""
        for host in hosts:
            for holder in layout.reservations_on(host.member, but=command.reservation_id):
                raise CloudBusy(f"{host.name} is not released yet by reservation {holder}.")
            zone = layout.stranger_zone(host.member)
            if zone is not None:
                raise CloudBusy(f"{host.name} is in the availability zone {zone} of the pool, or of a reservation.")

    def _clear(self, hosts: Sequence[Hypervisor], reservation_id: str) -> None:
        """Delete preemptible servers on these hosts, and refuse hosts with servers of others.

        Raises ``CloudBusy`` while servers are being deleted: Nova moves no host with servers into another zone.
        """
        servers = self._compute.servers_on(host.member for host in hosts)
        preemptible = [server for server in servers if server.preemptible]
        self._refuse(hosts, [server for server in servers if not server.preemptible], frozenset([reservation_id]))
        if preemptible:
            self._compute.delete_servers([server for server in preemptible if not server.vanishing])
            where = ", ".join(sorted({server.member for server in preemptible}))
            raise CloudBusy(f"{len(preemptible)} preemptible servers are still being deleted on {where}.")

    def _refuse_occupied(self, host: Hypervisor, reservations: frozenset[str]) -> None:
        """Refuse a host with servers that belong to none of these reservations and are not preemptible."""
        servers = self._compute.servers_on([host.member])
        self._refuse([host], [server for server in servers if not server.preemptible], reservations)

    def _refuse(self, hosts: Sequence[Hypervisor], servers: Iterable[Server], reservations: frozenset[str]) -> None:
        foreign = Counter(
            server.member
            for server in servers
            if server.flavor_of not in reservations and reservations.isdisjoint(server.reservations or ())
        )
        if foreign:
            raise ResourceOccupied(
                {
                    host.external_id: f"{foreign[host.member]} servers of others run on {host.name}"
                    for host in hosts
                    if foreign[host.member]
                }
            )

    # Ending

    def take_back(self, command: Command) -> Progress:
        """Delete the reservation's servers, and return its hosts to the pool."""
        layout = self._aggregates.read_layout()
        group = layout.group(command.reservation_id)
        if group is None and not self._compute.shows_hints:
            return DONE  # without hints, the reservation's servers are unknown
        own = self._hosts_of(command)
        elsewhere = frozenset(host for host in own if not layout.is_reserved_whole(host))
        if group is None:
            servers = self._delete_servers(command, elsewhere, frozenset(), "")
            return progress_of(servers, now=self._now) or DONE
        if group.hosts:
            self._close(layout, group)
        unfinished = self._return(layout, command, group, group.hosts | recorded_homes(group).keys(), own, elsewhere)
        if unfinished is not None:
            return unfinished
        if any(map(is_node, own)):  # Nova deletes an aggregate that contains nodes only
            left = self._aggregates.read_layout().group(command.reservation_id)
            if left is not None and left.hosts:
                return self._why_not_empty(command, group, "it has nodes")
        try:
            self._compute.delete_aggregate(group)
        except CloudNotFound:
            pass
        except BadRequest as error:  # it is not empty
            return self._why_not_empty(command, group, str(error))
        return DONE

    def _why_not_empty(self, command: Command, group: Aggregate, error: str) -> Progress:
        """Return why the aggregate cannot be deleted: Nova has refused to remove hosts, or hosts were added."""
        left = self._aggregates.read_layout().group(command.reservation_id)
        stuck = sorted(group.hosts & left.hosts) if left is not None else []
        if not stuck:
            return Progress(False, _SOON, f"The aggregate of the reservation cannot be deleted: {error}")
        return Progress(False, _OTHERS, f"Nova does not let {', '.join(stuck)} leave the aggregate of the reservation.")

    def servers_of(self, command: Command) -> list[Server]:
        """Return the reservation's servers on its hosts."""
        layout = self._aggregates.read_layout()
        group = layout.group(command.reservation_id)
        own = self._hosts_of(command)
        members = group.hosts if group is not None else frozenset()
        owner = layout.owner_of(group) if group is not None else ""
        return [
            server
            for server in self._compute.servers_on(
                members | {host for host in own if not layout.is_reserved_whole(host)}
            )
            if self._is_of(server, command, own & members, owner) and not server.vanishing
        ]

    def _hosts_of(self, command: Command) -> frozenset[str]:
        """Return the current and former hosts of the reservation; a user may have removed them from its aggregate."""
        known = self._compute.hypervisors_known(
            [resource.external_id for resource in (*command.resources, *command.returning)]
        )
        return frozenset(hypervisor.member for hypervisor in known.values())

    def _close(self, layout: Layout, group: Aggregate) -> None:
        """Close the aggregate to new servers: servers booted during the end would never be deleted."""
        owner = group.metadata.get(self._options.owner_key)
        if owner:
            self._compute.set_metadata(group, {self._options.owner_key: "", FORMER_OWNER: owner})

    def _return(
        self,
        layout: Layout,
        command: Command,
        group: Aggregate,
        hosts: frozenset[str],
        own: frozenset[str],
        elsewhere: frozenset[str] = frozenset(),
    ) -> Progress | None:
        """Return these hosts to the pool and their zones after deleting the group's servers.

        Returns what remains to be done, or None. A host stays in the group while its servers are vanishing. Hosts that
        have left the group already are returned to their zones.
        ``own`` are the current and former hosts of the reservation, as the ledger knows them.
        """
        if not hosts | elsewhere:
            return None
        pool = layout.pool
        owner = layout.owner_of(group)
        leaving = hosts & group.hosts
        vanishing = self._delete_servers(command, leaving | elsewhere, own & group.hosts, owner)
        occupied = leaving & {server.member for server in vanishing}
        hosts -= occupied
        leaving -= occupied
        if not hosts:
            return progress_of(vanishing, now=self._now)
        self._aggregates.add(pool, self._bookable(leaving, own) - pool.hosts, missing_ok=True)
        errors = self._compute.remove_hosts(group, leaving)
        gone = hosts - errors.keys()
        unfinished = self._homes.restore(layout, group, gone)
        if not group.hosts <= gone:  # otherwise the next change of the group notifies schedulers
            self._compute.set_metadata(group, {} if unfinished is not None else self._homes.forget(group, gone))
        for _, error in sorted(errors.items()):
            if not isinstance(error, Conflict):
                raise error
        if vanishing:
            return progress_of(vanishing, now=self._now)
        return self._obstacle(command, sorted(errors), own & group.hosts, owner) if errors else unfinished

    def _bookable(self, hosts: frozenset[str], own: frozenset[str]) -> frozenset[str]:
        """Return the registered ones of these hosts; a host that a user has added to the aggregate may not be."""
        strange = hosts - own
        if not strange:
            return hosts
        providers = self._placement.providers()
        return (hosts & own) | {
            hypervisor.member
            for hypervisor in self._compute.hypervisors()
            if hypervisor.member in strange and PREFIX + hypervisor.name in providers
        }

    def _obstacle(self, command: Command, hosts: Sequence[str], own: frozenset[str], owner: str) -> Progress:
        """Return why Nova refuses to remove hosts from the reservation's zone: because of other servers."""
        others = self._compute.servers_on(hosts)
        if any(self._is_of(server, command, own, owner) for server in others) or not others:
            return Progress(False, _SOON, "The reservation got more servers while it was taken back.")
        named = ", ".join(f"{server.id} of project {server.project_id} on {server.member}" for server in others[:5])
        return Progress(False, _OTHERS, f"Servers of others are in the way, and are not deleted: {named}.")

    def _delete_servers(
        self, command: Command, hosts: frozenset[str], own: frozenset[str], owner: str
    ) -> Collection[Server]:
        """Delete the reservation's servers on these hosts; return those that are still vanishing."""
        if not hosts:
            return []
        servers = [server for server in self._compute.servers_on(hosts) if self._is_of(server, command, own, owner)]
        return request_deletion(self._compute, servers, now=self._now)

    def _is_of(self, server: Server, command: Command, own: frozenset[str], owner: str) -> bool:
        """Whether the server was booted for the reservation.

        If Nova does not show hints, these are the servers of the aggregate's owner on the reservation's ``own`` hosts
        in it.
        """
        if server.reservations is not None:
            return command.reservation_id in server.reservations
        return bool(owner) and server.project_id == owner and server.member in own
