"""Differences between the ledger and the cloud for instance reservations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from tenure.drivers.contract import Command, Drift, ResourceRef
from tenure.drivers.openstack.compute import Compute, Hypervisor
from tenure.drivers.openstack.flavors import AFFINITY_KEY, Flavors, flavor_for
from tenure.drivers.openstack.groups import ServerGroup, ServerGroups, policy_of
from tenure.drivers.openstack.instances import metadata_changes
from tenure.drivers.openstack.layout import Layout
from tenure.drivers.openstack.options import OpenStackOptions
from tenure.drivers.openstack.placement import PREFIX
from tenure.drivers.openstack.preemption import Preemption
from tenure.drivers.openstack.requests import Calls
from tenure.drivers.openstack.units import class_of, inventories, inventory_of

#: How many calls a drift pass spends on each kind of object that needs a call each; the others are checked in later
#: passes.
_CALLS: Final = 200
#: The same for hosts with preemptible servers beside reservations: Placement needs six calls for each.
_CROWDED: Final = 50
_TURN: Final = timedelta(minutes=1)

_T = TypeVar("_T")


class InstanceDrift:
    """Finds differences of instance reservations, for one driver call. Reads only."""

    def __init__(self, calls: Calls, compute: Compute, options: OpenStackOptions, now: datetime) -> None:
        self._calls = calls
        self._compute = compute
        self._options = options
        self._now = now
        self._flavors = Flavors(calls)
        self._groups = ServerGroups(calls)

    def held(self) -> set[str]:
        """Return the reservations that have a flavor or a server group."""
        return {*self._flavors.of_reservations(), *(group.reservation_id for group in self._groups.of_reservations())}

    def drift(
        self,
        commands: Sequence[Command],
        layout: Layout,
        hypervisors: Mapping[str, Hypervisor],
        providers: Mapping[str, Mapping[str, Any]] | None,
    ) -> Iterator[Drift]:
        """Yield the differences from these commands. ``providers`` are Placement's by name; None if they are unknown.

        The access to a flavor and the inventory of a provider need a call each: if there are too many, a pass checks a
        part of them, and later passes the others.
        """
        if not commands:
            return
        flavors = self._flavors.of_reservations()
        groups: dict[str, list[ServerGroup]] = defaultdict(list)
        if any(policy_of(command.parameters) is not None for command in commands):
            for group in self._groups.of_reservations():
                groups[group.reservation_id].append(group)
        for command in commands:
            policy = policy_of(command.parameters)
            found = [group for group in groups[command.reservation_id] if group.project_id == command.project_id]
            fitting = [group.id for group in found if group.policy == policy]
            if policy is not None and not fitting and command.trust_id is not None:
                yield _difference(command, None, "has no server group")
            yield from self._drift_of_aggregate(command, layout, hypervisors, fitting)
            flavor = flavors.get(command.reservation_id)
            if flavor is None:
                yield _difference(command, None, "has no flavor")
            elif flavor != flavor_for(command, _group_id(command, flavor.extra_specs, fitting)):
                yield _difference(command, None, "has another flavor")
        yield from self._drift_of_access([command for command in commands if command.reservation_id in flavors])
        if providers is not None:
            yield from self._drift_of_units(commands, hypervisors, providers)
            yield from self._drift_of_room(commands, hypervisors)

    def _drift_of_aggregate(
        self, command: Command, layout: Layout, hypervisors: Mapping[str, Hypervisor], group_ids: Sequence[str]
    ) -> Iterator[Drift]:
        aggregate = layout.shared(command.reservation_id)
        if aggregate is None:
            yield _difference(command, None, "has no aggregate")
            return
        group_id = _group_id(command, aggregate.metadata, group_ids)
        if changes := metadata_changes(command, aggregate, group_id, self._options.owner_key):
            yield _difference(command, None, f"has another {', '.join(sorted(changes))} in its aggregate")
        found = {resource.external_id: hypervisors.get(resource.external_id) for resource in command.resources}
        expected = {host.member for host in found.values() if host is not None}
        for resource in command.resources:
            host = found[resource.external_id]
            if host is not None and host.member not in aggregate.hosts:
                yield _difference(command, resource, f"lacks {resource.name} in its aggregate")
        if None in found.values():
            return  # a host with a new id in Nova would look like an unknown one
        names = {hypervisor.member: hypervisor.ref for hypervisor in hypervisors.values()}
        for host_name in sorted(aggregate.hosts - expected):
            yield _difference(command, names.get(host_name), f"has {host_name} in its aggregate, which is not its")

    def _drift_of_access(self, commands: Sequence[Command]) -> Iterator[Drift]:
        checked = self._in_turn(commands)
        accesses = self._flavors.accesses([command.reservation_id for command in checked])
        for command in checked:
            if accesses.get(command.reservation_id) != frozenset([command.project_id]):
                yield _difference(command, None, "is not open to its owner alone")

    def _drift_of_units(
        self,
        commands: Sequence[Command],
        hypervisors: Mapping[str, Hypervisor],
        providers: Mapping[str, Mapping[str, Any]],
    ) -> Iterator[Drift]:
        hosts = {
            provider["uuid"]: host
            for host in hypervisors.values()
            if (provider := providers.get(PREFIX + host.name)) is not None
        }
        classes = {class_of(command.reservation_id): command for command in commands}
        whole = {
            command.reservation_id
            for command in commands
            if all(resource.external_id in hypervisors for resource in command.resources)
        }
        expected: dict[str, dict[str, int]] = defaultdict(dict)
        for name, command in classes.items():
            for external_id, units in command.units.items():
                expected[external_id][name] = units
        for uuid, seen in inventories(self._calls, self._in_turn(sorted(hosts))).items():
            host = hosts[uuid]
            for name in sorted(classes.keys() & {*expected[host.external_id], *seen["inventories"]}):
                command, units = classes[name], expected[host.external_id].get(name, 0)
                found = seen["inventories"].get(name, {})
                if units == 0 and (not found or command.reservation_id not in whole):
                    continue  # the host may have a new id in Nova
                if not found or any(found.get(key) != value for key, value in inventory_of(units).items()):
                    text = f"has {found.get('total', 0)} units on {host.name}, not {units}"
                    yield _difference(command, _resource(command, host), text)

    def _drift_of_room(self, commands: Sequence[Command], hypervisors: Mapping[str, Hypervisor]) -> Iterator[Drift]:
        """Yield reservations without room: preemptible servers may take it before the instances are booted."""
        preemption = Preemption(self._calls, self._compute, self._options, self._now)
        preemptible = preemption.preemptible()
        crowded = {
            resource.external_id: (command, host, resource)
            for command in commands
            for resource in command.resources
            if (host := hypervisors.get(resource.external_id)) is not None and host.member in preemptible
        }
        for external_id in self._in_turn(sorted(crowded), _CROWDED):
            command, host, resource = crowded[external_id]
            for server in preemption.taking_room(command, host, resource, preemptible[host.member]):
                yield _difference(
                    command, resource, f"has no room for its instances beside preemptible server {server.id}"
                )

    def _in_turn(self, things: Sequence[_T], calls: int = _CALLS) -> Sequence[_T]:
        """Return as many as fit into one pass, others with each pass."""
        if len(things) <= calls:
            return things
        first = int((self._now - datetime(1970, 1, 1, tzinfo=UTC)) / _TURN) * calls
        return [things[(first + offset) % len(things)] for offset in range(calls)]


def _group_id(command: Command, metadata: Mapping[str, str], fitting: Sequence[str]) -> str | None:
    """Return the server group that should be recorded there.

    A deleted group stays there: its absence is a difference of its own.
    """
    if policy_of(command.parameters) is None:
        return None
    group_id = metadata.get(AFFINITY_KEY)
    return group_id if group_id in fitting or not fitting else fitting[0]


def _resource(command: Command, host: Hypervisor) -> ResourceRef:
    """Return the host as the command names it, if it does."""
    return next((resource for resource in command.resources if resource.external_id == host.external_id), host.ref)


def _difference(command: Command, resource: ResourceRef | None, text: str) -> Drift:
    return Drift(command.reservation_id, resource, f"reservation {command.reservation_id} {text}")
