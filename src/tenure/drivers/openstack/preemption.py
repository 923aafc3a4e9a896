"""Preemptible servers: they use what is reserved and has not started, and go before it does."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from tenure.drivers.contract import Order, Preempted, ResourceRef
from tenure.drivers.notice import Step, next_step
from tenure.drivers.openstack.compute import Compute, Hypervisor, Server, instant
from tenure.drivers.openstack.flavors import Flavors, flavor_for, taken_by
from tenure.drivers.openstack.layout import Layout
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.placement import Placement
from tenure.drivers.openstack.requests import Calls, Forbidden
from tenure.drivers.openstack.units import class_of

LOG = logging.getLogger(__name__)

#: By when a server goes, and since when it knows, in its metadata.
LEAVES_AT: Final = "tenure:leaves_at"
TOLD_AT: Final = "tenure:told_at"


class Preemption:
    """Tells, stops and deletes the preemptible servers that are in the way of an order, and no others.

    The orders of instances ``ahead`` of it have not started, and are to have room as well.
    """

    def __init__(
        self, calls: Calls, compute: Compute, options: OpenStackOptions, now: datetime, ahead: Iterable[Order] = ()
    ) -> None:
        self._ahead = tuple(ahead)
        self._compute = compute
        self._options = options
        self._now = now
        self._placement = Placement(calls)
        self._flavors = Flavors(calls)

    def make_way(self, order: Order, deadline: datetime, *, whole: bool) -> list[Preempted]:
        """Answers as the verb does; ``whole`` for an order that takes hosts as a whole."""
        found = self._in_the_way(order, whole)
        since = {server.id: self._told_at(server, deadline) for server, _ in found}
        fresh = [server for server, _ in found if since[server.id] is None and not server.vanishing]
        told = {LEAVES_AT: deadline.isoformat(), TOLD_AT: self._now.isoformat()}
        errors = self._compute.tell_servers([(server, told) for server in fresh])
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
        for error in errors:  # who cannot be told, or does not stop, keeps nobody from going
            if not isinstance(error, Forbidden):
                raise error
            LOG.warning("a server in the way of reservation %s is not told: %s", order.reservation_id, error)
        return [Preempted(server.id, server.project_id, resource) for server, resource in found]

    def clear(self, order: Order) -> int:
        """Delete at once what is in the way of an order of instances; how many are still vanishing."""
        found = [server for server, _ in self._in_the_way(order, whole=False)]
        self._compute.delete_servers([server for server in found if not server.vanishing])
        return len(found)

    def preemptible(self) -> dict[str, list[Server]]:
        """The preemptible servers by the host of their service; of flavors that are there no more, none."""
        found: dict[str, list[Server]] = {}
        for flavor_id in self._flavors.preemptible():
            for server in self._compute.servers_of_flavor(flavor_id):
                found.setdefault(server.service_host, []).append(server)
        return found

    def taking_room(
        self, order: Order, host: Hypervisor, resource: ResourceRef, servers: Sequence[Server]
    ) -> list[Server]:
        """Those of a host's preemptible servers that have the room of an instance of the order, and do not go yet."""
        return [server for server in self._fewest(order, host, resource, servers) if not server.vanishing]

    def _in_the_way(self, order: Order, whole: bool) -> list[tuple[Server, ResourceRef]]:
        known = self._compute.hypervisors_known([resource.external_id for resource in order.resources])
        layout = Layout(self._compute.aggregates(), self._options)
        hosts = {
            known[resource.external_id].service_host: (known[resource.external_id], resource)
            for resource in order.resources
            # Nothing preemptible gets to what a reservation has for itself.
            if resource.external_id in known and not layout.is_held(known[resource.external_id].service_host)
        }
        by_host: dict[str, list[Server]] = {host: [] for host in hosts}
        for server in self._compute.servers_on(hosts):
            if server.preemptible and server.service_host in by_host:
                by_host[server.service_host].append(server)
        found: list[tuple[Server, ResourceRef]] = []
        for name, servers in by_host.items():
            host, resource = hosts[name]
            chosen = servers if whole or not servers else self._fewest(order, host, resource, servers)
            found += [(server, resource) for server in chosen]
        return found

    def _told_at(self, server: Server, deadline: datetime) -> datetime | None:
        """Since when the server knows that it goes by then, or earlier; None where it does not know it."""
        try:
            leaves_at = instant(server.metadata.get(LEAVES_AT))
            told_at = instant(server.metadata.get(TOLD_AT))
        except ValueError:  # its owner writes there, too
            return None
        if leaves_at is None or told_at is None or not self._now < leaves_at <= deadline:
            return None
        return min(told_at, self._now)

    def _fewest(self, order: Order, host: Hypervisor, resource: ResourceRef, servers: Sequence[Server]) -> list[Server]:
        """Those that must go so that the order and who runs there have room: those told before, else the youngest.

        With those that go already, for whatever reason, and still have some of that room.
        """
        missing = self._missing_room(order, host)
        lacking = _lacking(missing, (), {})
        if not lacking:
            return []
        takes = self._placement.allocations([server.id for server in servers])
        going = [server for server in servers if server.vanishing and any(takes[server.id][name] for name in lacking)]
        staying = [server for server in servers if not server.vanishing]
        missing.subtract(sum((takes[server.id] for server in going), Counter()))
        chosen: list[Server] = []
        for server in sorted(staying, key=_told_and_youngest):
            lacking = _lacking(missing, chosen, takes)
            if any(takes[server.id][name] for name in lacking):
                chosen.append(server)
        for server in [server for server in chosen if LEAVES_AT not in server.metadata]:
            others = [other for other in chosen if other is not server]
            if not _lacking(missing, others, takes):
                chosen = others
        return going + chosen

    def _missing_room(self, order: Order, host: Hypervisor) -> Counter[str]:
        """How much more of competing class must get free on the host before the order, and who has units there, have theirs.

        A server that has a unit has its room as well: what is promised is the rest of the units.
        """
        usage = self._placement.usage(host.name)
        wanted = {
            class_of(competing.reservation_id): (flavor_for(competing, None), competing.units.get(host.external_id, 0))
            for competing in (order, *(other for other in self._ahead if host.external_id in other.units))
        }
        for reservation_id, flavor in self._flavors.of_reservations().items():
            name = class_of(reservation_id)
            if name in usage.offered and name not in wanted:
                wanted[name] = (flavor, usage.offered[name])
        missing = Counter(usage.used)
        for name, (flavor, count) in wanted.items():
            for taken, amount in taken_by(flavor).items():
                missing[taken] += max(0, count - usage.used[name]) * amount
        missing.subtract(usage.offered)
        return missing


def _lacking(
    missing: Mapping[str, int], gone: Iterable[Server], takes: Mapping[str, Mapping[str, int]]
) -> dict[str, int]:
    """What is still missing when these are gone."""
    left = Counter(missing)
    for server in gone:
        left.subtract(takes[server.id])
    return {name: amount for name, amount in left.items() if amount > 0}


def _told_and_youngest(server: Server) -> tuple[bool, float, str]:
    created = server.created_at.timestamp() if server.created_at is not None else 0.0
    return LEAVES_AT not in server.metadata, -created, server.id
