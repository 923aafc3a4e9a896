"""Nova's scheduler: to which host a server may go, by Tenure's filter, the flavor, the server group and Placement."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tenure.domain.extra_specs import conditions_of_flavor, values_in_aggregates
from tenure.domain.requirement import AGGREGATE_METADATA
from tenure.drivers.openstack.compute import SCOPED_KEY, is_preemptible
from tenure.drivers.reserved_servers import BOOT_KEY, OPEN_TO, is_live
from tenure.drivers.simulated.openstack.allotment import allotted
from tenure.drivers.simulated.openstack.effects import EffectKind
from tenure.drivers.simulated.openstack.nova import OWNER, POOL, is_set_aside
from tenure.drivers.simulated.openstack.service import Refused
from tenure.drivers.simulated.openstack.state import (
    SMALL,
    Aggregate,
    Flavor,
    Host,
    Server,
    ServerGroup,
    State,
)

#: The metadata of a reservation's aggregate: the project that Nova keeps it for.
_ONLY_FOR: Final = "filter_tenant_id"


class NoValidHost(Refused):
    """No host accepts the server."""

    def __init__(self) -> None:
        super().__init__(500, "No valid host was found. There are not enough hosts available.")


class Scheduler:
    def __init__(self, state: State) -> None:
        self._state = state

    def place(self, server: Server, host: str | None = None) -> Server:
        """Boot a new server on the first host that may have it, or on ``host``, a hypervisor's id, if that may.

        Raises ``NoValidHost``.
        """
        server.created = server.updated = self._state.now()
        may_have_it = self.filter_for(server, self._state.groups.get(server.group_id or ""))
        for candidate in sorted(self._state.hosts.values(), key=_number):
            if host in (None, candidate.id) and candidate.takes_servers and may_have_it(candidate):
                return self.put(server, candidate)
        raise NoValidHost

    def place_alike(self, servers: Sequence[Server]) -> list[Server]:
        """Boot new servers that differ only in their names and ids; return those for which there was no host."""
        group, aggregates = self._state.groups.get(servers[0].group_id or ""), self._aggregates_by_host()
        may_have_it = self.filter_for(servers[0], group, aggregates)
        candidates = [host for host in sorted(self._state.hosts.values(), key=_number) if host.takes_servers]
        failed: list[Server] = []
        begin = 0
        for server in servers:
            server.created = server.updated = self._state.now()
            # Without a group, a host that does not admit a server does not admit the next server either.
            found = next((n for n in range(begin, len(candidates)) if may_have_it(candidates[n])), len(candidates))
            begin = found if group is None else 0
            if found == len(candidates):
                failed.append(server)
                continue
            self.put(server, candidates[found])
            if group is not None:
                may_have_it = self.filter_for(server, group, aggregates)
        return failed

    def put(self, server: Server, host: Host) -> Server:
        """Run the server on the host, whether or not the filter admits it."""
        self.move(server, host.key)
        self._state.servers[server.id] = server
        reservation = (server.flavor or SMALL).extra_specs.get(SCOPED_KEY) or server.hints.get("reservation")
        self._state.verb = "boot"
        self._state.record(EffectKind.SERVER_BOOTED, reservation, host=server.host, subject=server.id)
        return server

    def move(self, server: Server, key: str) -> None:
        """Let a server be on this host, and take of the providers below it what Placement allocates."""
        server.host, server.nested = "", {}  # it makes way for itself
        host = self._state.hosts.get(key)
        if host is not None and (below := self._state.providers_below(host)):
            footprint = self._state.footprint(server)
            found = allotted(footprint, self._state.providers_of(host), self._state.left) or {}
            server.nested = {provider.uuid: found[provider.uuid] for provider in below if provider.uuid in found}
        server.host = key

    def admits(self, server: Server, key: str) -> bool:
        """Whether an existing server may move to a host."""
        host = self._state.hosts.get(key)
        return host is not None and host.takes_servers and self.filter_for(server, None)(host)

    def filter_for(
        self,
        server: Server,
        group: ServerGroup | None,
        aggregates: Mapping[str, Sequence[Aggregate]] | None = None,
    ) -> Callable[[Host], bool]:
        """Whether a host may have the server. ``aggregates`` are those of each host, if they are known."""
        flavor = server.flavor or SMALL
        footprint = self._state.footprint_of_flavor(flavor)
        try:
            conditions = conditions_of_flavor(flavor.extra_specs)
        except ValueError:  # Nova's filters fail for all hosts
            raise NoValidHost from None
        members = {other.host for other in self._state.members_of(group.id)} if group is not None else set()

        def may_have_it(host: Host) -> bool:
            if group is not None and members and not _lies_well(group, members, host):
                return False
            of_host = aggregates.get(host.key, ()) if aggregates else self._state.aggregates_of(host.key)
            if not self._is_open(of_host, server, flavor):
                return False
            if allotted(footprint, self._state.providers_of(host), self._state.left) is None:
                return False
            return not conditions.terms or conditions.matches(_described(host, of_host))

        return may_have_it

    def _aggregates_by_host(self) -> Mapping[str, Sequence[Aggregate]]:
        found: dict[str, list[Aggregate]] = defaultdict(list)
        nodes = defaultdict(list)
        for host in self._state.hosts.values():
            nodes[host.service_host].append(host.key)
        for aggregate in self._state.aggregates.values():
            members = set(aggregate.members)
            for key in members.union(*(nodes[member] for member in members)):
                found[key].append(aggregate)
        return found

    def _is_open(self, aggregates: Sequence[Aggregate], server: Server, flavor: Flavor) -> bool:
        """Whether the filter lets the server into a host of these aggregates.

        A host that is set aside is only for servers of its reservation.
        """
        key = str(server.hints.get(BOOT_KEY, ""))
        is_booted = is_live(key, self._state.now())
        for aggregate in aggregates:
            open_to = aggregate.metadata.get(OPEN_TO)
            if open_to == server.id or (not open_to and is_booted and aggregate.metadata.get(BOOT_KEY) == key):
                return True
        if is_booted:
            return False
        reserved = flavor.extra_specs.get(SCOPED_KEY)
        if reserved is not None:
            return any(
                aggregate.metadata.get("reservation") == reserved
                and aggregate.metadata.get(_ONLY_FOR) in (None, server.project_id)
                for aggregate in aggregates
            )
        closed = [aggregate for aggregate in aggregates if is_set_aside(aggregate)]
        hint = server.hints.get("reservation")
        if hint is not None:
            return any(
                aggregate.name == hint and aggregate.metadata.get(OWNER) == server.project_id for aggregate in closed
            )
        if is_preemptible(flavor.extra_specs):
            return [aggregate.name for aggregate in closed] == [POOL]
        return not closed


def _described(host: Host, aggregates: Sequence[Aggregate]) -> dict[str, str]:
    """Return what extra specs can ask of a host, as conditions name it."""
    return {
        "service_name": host.service_host,
        "hypervisor_hostname": host.name,
        "hypervisor_type": host.hypervisor_type,
        "hypervisor_version": str(host.hypervisor_version),
        "vcpus": str(host.vcpus),
        "memory_mb": str(host.memory_mb),
        "local_gb": str(host.local_gb),
        "cpu_info": json.dumps(host.cpu_info, sort_keys=True),
        AGGREGATE_METADATA: json.dumps(values_in_aggregates(aggregate.metadata for aggregate in aggregates)),
    }


def _number(host: Host) -> int:
    return host.number


def _lies_well(group: ServerGroup, members: set[str], host: Host) -> bool:
    """Whether the policy of the group permits a further server on the host."""
    if group.policy == "affinity":
        return members == {host.key}
    return group.policy != "anti-affinity" or host.key not in members
