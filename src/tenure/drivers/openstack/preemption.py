"""Preemptible servers: they use reserved hosts before the start, and are removed in time."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from tenure.drivers.contract import Command, Preempted, ResourceRef
from tenure.drivers.notice import Step, next_step
from tenure.drivers.openstack.compute import Compute, Hypervisor, Server, instant
from tenure.drivers.openstack.devices import Devices
from tenure.drivers.openstack.flavors import Flavors, flavor_for, taken_by
from tenure.drivers.openstack.layout import Layout
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.placement import Placement
from tenure.drivers.openstack.requests import Calls, Forbidden
from tenure.drivers.openstack.units import class_of

LOG = logging.getLogger(__name__)

#: The metadata keys for the time at which a server is deleted, and for the time of that notification.
LEAVES_AT: Final = "tenure:leaves_at"
NOTIFIED_AT: Final = "tenure:told_at"


class Preemption:
    """Notifies, stops and deletes the preemptible servers in the way of a command, and no others.

    ``ahead`` are earlier commands of instances that have not started: they need room as well.
    """

    def __init__(
        self, calls: Calls, compute: Compute, options: OpenStackOptions, now: datetime, ahead: Iterable[Command] = ()
    ) -> None:
        self._ahead = tuple(ahead)
        self._compute = compute
        self._options = options
        self._now = now
        self._placement = Placement(calls)
        self._flavors = Flavors(calls)
        self._devices = Devices(calls, options.pci_aliases)

    def make_way(self, command: Command, deadline: datetime, *, whole: bool) -> list[Preempted]:
        """Behaves as the driver's method; ``whole`` for a command of whole hosts."""
        found = self._in_the_way(command, whole)
        since = {server.id: self._notified_at(server, deadline) for server, _ in found}
        fresh = [server for server, _ in found if since[server.id] is None and not server.vanishing]
        notice = {LEAVES_AT: deadline.isoformat(), NOTIFIED_AT: self._now.isoformat()}
        errors = self._compute.set_metadata_of_servers([(server, notice) for server in fresh])
        stopped, deleted = [], []
        left = deadline - self._now
        for server, _ in found:
            step = next_step(left, deadline - (since[server.id] or self._now))
            if step is Step.DELETE:
                deleted += [] if server.vanishing else [server]
            elif step is Step.STOP and server.status == "ACTIVE" and server.task is None:
                stopped.append(server)
        errors += self._compute.stop_servers(stopped)
        self._compute.delete_servers(deleted)
        for error in errors:  # a server that cannot be notified or stopped is deleted all the same
            if not isinstance(error, Forbidden):
                raise error
            LOG.warning("a server in the way of reservation %s is not notified: %s", command.reservation_id, error)
        return [Preempted(server.id, server.project_id, resource) for server, resource in found]

    def clear(self, command: Command) -> int:
        """Delete the preemptible servers in the way of an instance command now; return how many are still there."""
        found = [server for server, _ in self._in_the_way(command, whole=False)]
        self._compute.delete_servers([server for server in found if not server.vanishing])
        return len(found)

    def preemptible(self) -> dict[str, list[Server]]:
        """Return the preemptible servers by the members that they are on; those of deleted flavors are not found."""
        found: dict[str, list[Server]] = {}
        for flavor_id in self._flavors.preemptible():
            for server in self._compute.servers_of_flavor(flavor_id):
                found.setdefault(server.member, []).append(server)
        return found

    def taking_room(
        self, command: Command, host: Hypervisor, resource: ResourceRef, servers: Sequence[Server]
    ) -> list[Server]:
        """Return the host's preemptible servers that use the command's room and are not being deleted yet."""
        return [server for server in self._servers_to_delete(command, host, resource, servers) if not server.vanishing]

    def _in_the_way(self, command: Command, whole: bool) -> list[tuple[Server, ResourceRef]]:
        known = self._compute.hypervisors_known([resource.external_id for resource in command.resources])
        layout = Layout(self._compute.aggregates(), self._options)
        hosts = {
            known[resource.external_id].member: (known[resource.external_id], resource)
            for resource in command.resources
            # Preemptible servers cannot be on hosts that are reserved as a whole.
            if resource.external_id in known and not layout.is_reserved_whole(known[resource.external_id].member)
        }
        by_host: dict[str, list[Server]] = {host: [] for host in hosts}
        for server in self._compute.servers_on(hosts):
            if server.preemptible and server.member in by_host:
                by_host[server.member].append(server)
        found: list[tuple[Server, ResourceRef]] = []
        for name, servers in by_host.items():
            host, resource = hosts[name]
            chosen = servers if whole or not servers else self._servers_to_delete(command, host, resource, servers)
            found += [(server, resource) for server in chosen]
        return found

    def _notified_at(self, server: Server, deadline: datetime) -> datetime | None:
        """Return since when the server is notified that it is deleted by then, or earlier; None if it is not."""
        try:
            leaves_at = instant(server.metadata.get(LEAVES_AT))
            notified_at = instant(server.metadata.get(NOTIFIED_AT))
        except ValueError:  # the owner can write there, too
            return None
        if leaves_at is None or notified_at is None or not self._now < leaves_at <= deadline:
            return None
        return min(notified_at, self._now)

    def _servers_to_delete(
        self, command: Command, host: Hypervisor, resource: ResourceRef, servers: Sequence[Server]
    ) -> list[Server]:
        """Return the servers to delete so that the command and the reservations on the host have room.

        First those that are notified, then the youngest. Includes servers that are being deleted already and still use
        room.
        """
        if not _lacking(self._missing_room(command, host), (), {}):
            return []
        takes = self._placement.allocations([server.id for server in servers])
        # Read the usage after the allocations: a server whose deletion ends in between then counts in neither way.
        missing = self._missing_room(command, host)
        lacking = _lacking(missing, (), {})
        going = [server for server in servers if server.vanishing and any(takes[server.id][name] for name in lacking)]
        staying = [server for server in servers if not server.vanishing]
        missing.subtract(sum((takes[server.id] for server in going), Counter()))
        chosen: list[Server] = []
        for server in sorted(staying, key=_notified_then_youngest):
            lacking = _lacking(missing, chosen, takes)
            if any(takes[server.id][name] for name in lacking):
                chosen.append(server)
        for server in [server for server in chosen if LEAVES_AT not in server.metadata]:
            others = [other for other in chosen if other is not server]
            if not _lacking(missing, others, takes):
                chosen = others
        return going + chosen

    def _missing_room(self, command: Command, host: Hypervisor) -> Counter[str]:
        """Return how much room must become free for the command and for the other reservations on the host, by class.

        A server with a unit has its room already: only the remaining units need room.
        """
        usage = self._placement.usage(host.name)
        demands = {
            class_of(needed.reservation_id): (flavor_for(needed, None), needed.units.get(host.external_id, 0))
            for needed in (command, *(other for other in self._ahead if host.external_id in other.units))
        }
        for reservation_id, flavor in self._flavors.of_reservations().items():
            name = class_of(reservation_id)
            if name in usage.offered and name not in demands:
                demands[name] = (flavor, usage.offered[name])
        missing = Counter(usage.used)
        for name, (flavor, count) in demands.items():
            for taken, amount in taken_by(flavor, self._devices).items():
                missing[taken] += max(0, count - usage.used[name]) * amount
        missing.subtract(usage.offered)
        return missing


def _lacking(
    missing: Mapping[str, int], gone: Iterable[Server], takes: Mapping[str, Mapping[str, int]]
) -> dict[str, int]:
    """Return what is still missing after these servers are deleted."""
    left = Counter(missing)
    for server in gone:
        left.subtract(takes[server.id])
    return {name: amount for name, amount in left.items() if amount > 0}


def _notified_then_youngest(server: Server) -> tuple[bool, float, str]:
    created = server.created_at.timestamp() if server.created_at is not None else 0.0
    return LEAVES_AT not in server.metadata, -created, server.id
