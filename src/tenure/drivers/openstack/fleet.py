"""The compute hosts of a cloud as resources, whole or in parts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from tenure.domain.capacity import Capacity
from tenure.domain.extra_specs import values_in_aggregates
from tenure.domain.footprint import FOREIGN_TRAITS
from tenure.domain.requirement import AGGREGATE_METADATA
from tenure.domain.resource import DiscoveredResource
from tenure.drivers.contract import (
    UNKNOWN,
    CloudBusy,
    CloudRefused,
    Command,
    Drift,
    Health,
    Preempted,
    Progress,
    ResourceRef,
)
from tenure.drivers.openstack import servers
from tenure.drivers.openstack.compute import Hypervisor, Server, is_node
from tenure.drivers.openstack.devices import Devices
from tenure.drivers.openstack.hosts import HOST, Hosts
from tenure.drivers.openstack.instance_drift import InstanceDrift
from tenure.drivers.openstack.layout import Layout
from tenure.drivers.openstack.placement import PREFIX, HostInventory, Placement
from tenure.drivers.openstack.type_driver import DriverCall, OpenStackTypeDriver
from tenure.drivers.reserved_servers import SERVER

LOG = logging.getLogger(__name__)

#: The fact that names the class of a node of Ironic in Placement, of which it has one unit and nothing else.
RESOURCE_CLASS: Final = "resource_class"
#: Nova's default zone, used if no host is in it that would show its name.
_DEFAULT_ZONE: Final = "nova"


class Fleet(OpenStackTypeDriver):
    """The hosts and their reservations, for one driver call."""

    def __init__(self, call: DriverCall) -> None:
        super().__init__(call)
        self._placement = Placement(call.calls)
        self._hosts = Hosts(call.compute, self._placement, call.options, call.now)
        self._instances = InstanceDrift(call.calls, call.compute, call.options, call.now)
        self._devices = Devices(call.calls, call.options.pci_aliases)

    # Resources

    def discover(self) -> list[DiscoveredResource]:
        found = self._compute.hypervisors()
        layout = self._layout()
        zones = self._zones(layout)
        inventories = self._placement.inventories()
        described = (
            self._to_resource(hypervisor, layout, zones, inventories.get(hypervisor.name, HostInventory()))
            for hypervisor in found
        )
        return sorted(described, key=lambda resource: resource.external_id)

    def look_up(self, reference: str) -> DiscoveredResource:
        found = self._compute.hypervisor(reference)
        layout = self._layout()
        return self._to_resource(found, layout, self._zones(layout), self._placement.inventory(found.name))

    def ensure_registered(self, resource: ResourceRef) -> None:
        """Add the host to the pool, and create a provider for reservations under the host's provider."""
        host = self._compute.hypervisors_of([resource.external_id])[0]
        fresh = self._hosts.pool(host)
        try:
            self._placement.ensure_provider(host.name)
        except CloudRefused:
            if fresh:
                self._hosts.unpool(host)
            raise

    def ensure_unregistered(self, resource: ResourceRef) -> None:
        """Remove the host from the pool.

        The provider for reservations stays, empty: Nova's compute services cache their provider trees for some minutes,
        and builds fail on a host if a provider is missing. Nova deletes it with the host.
        """
        for host in self._compute.hypervisors_known([resource.external_id]).values():
            self._hosts.unpool(host)

    def held(self) -> list[str]:
        return sorted({*self._layout().reservations(), *self._instances.held(), *servers.held(self._compute)})

    def check(self, registered: Iterable[ResourceRef] = ()) -> dict[str, Health]:
        """Return the health of all hosts that Nova lists; unknown for registered hosts on missing pages."""
        ids: list[str] = []

        def registered_ids() -> list[str]:
            if not ids:
                ids.extend(resource.external_id for resource in registered)
            return ids

        arrived, missing = self._compute.hypervisors_arrived(registered_ids)
        healths = {hypervisor.external_id: _health(hypervisor) for hypervisor in arrived}
        if missing is None:
            return healths
        LOG.warning("hosts that did not arrive keep their health: %s", missing)
        return dict.fromkeys(registered_ids(), UNKNOWN) | healths

    def drift(self, commands: Iterable[Command], pooled: Iterable[ResourceRef]) -> list[Drift]:
        return list(self._drift(list(commands), list(pooled)))

    def _drift(self, commands: Sequence[Command], pooled: Sequence[ResourceRef]) -> Iterator[Drift]:
        layout = self._layout()
        hypervisors = {hypervisor.external_id: hypervisor for hypervisor in self._compute.hypervisors()}
        try:
            providers = self._placement.providers()
        except CloudBusy as error:
            LOG.warning("what is in Placement is not looked at: %s", error)
            providers = None
        without = frozenset(
            hypervisor.name
            for hypervisor in hypervisors.values()
            if providers is not None and PREFIX + hypervisor.name not in providers
        )
        whole = [command for command in commands if command.resource_type == HOST]
        shared = [command for command in commands if command.resource_type != HOST]
        # Hosts that reservations share are in the pool, as free hosts are.
        by_id = {resource.external_id: resource for command in shared for resource in command.resources}
        for resource in pooled:
            by_id.pop(resource.external_id, None)
        yield from layout.drift(whole, [*pooled, *by_id.values()], hypervisors, without)
        reserved = [command for command in shared if command.resource_type == SERVER]
        yield from servers.drift(reserved, layout, hypervisors)
        tagged = servers.tagged_servers(self._compute, reserved)
        yield from servers.late(reserved, layout, tagged)
        yield from servers.oversized(self._devices, reserved, tagged, hypervisors)
        shared = [command for command in shared if command.resource_type != SERVER]
        yield from self._instances.drift(shared, layout, hypervisors, providers)

    # Reservations of whole hosts

    def ensure_started(self, command: Command) -> Progress:
        return self._hosts.hand_over(command)

    def make_way(self, command: Command, *, deadline: datetime, ahead: Iterable[Command] = ()) -> Sequence[Preempted]:
        return self._cleared(command, deadline, ahead, whole=True)

    def servers_of(self, command: Command) -> list[Server]:
        return self._hosts.servers_of(command)

    def ensure_ended(self, command: Command) -> Progress:
        return self._hosts.take_back(command)

    def _layout(self) -> Layout:
        return Layout(self._compute.aggregates(), self._options)

    def _zones(self, layout: Layout) -> dict[str, str]:
        """Return the zone of each host by service host; for a reserved host, the zone to which it will return."""
        if not self._options.az_aware:
            return {}
        zones = self._compute.zones()
        made = layout.own_zones()
        default = next((zone for zone in sorted(set(zones.values())) if zone not in made), _DEFAULT_ZONE)
        ours = self._options.zone_prefix
        return {
            host: layout.home_zone(host)
            or (default if layout.is_reserved_whole(host) or zone.startswith(ours) else zone)
            for host, zone in zones.items()
        }

    def _to_resource(
        self, host: Hypervisor, layout: Layout, zones: Mapping[str, str], inventory: HostInventory
    ) -> DiscoveredResource:
        facts = {**host.facts, "availability_zone": zones.get(host.service_host, "")}
        metadata = values_in_aggregates(layout.metadata_of(host.service_host))
        if metadata:
            facts[AGGREGATE_METADATA] = json.dumps(metadata)
        if is_node(host.name) and len(inventory.amounts) == 1:
            [facts[RESOURCE_CLASS]] = inventory.amounts
        if foreign := inventory.foreign_traits:
            facts[FOREIGN_TRAITS] = json.dumps({name: dict.fromkeys(traits, 1) for name, traits in foreign.items()})
        return DiscoveredResource(
            resource_type=HOST,
            external_id=host.external_id,
            name=host.name,
            capacity=Capacity(inventory.amounts or _sizes(host)),
            facts=facts,
            traits=frozenset(inventory.traits),
            limits=inventory.limits,
        )


def _sizes(host: Hypervisor) -> dict[str, int]:
    """Return the sizes that Nova shows, for a host that Placement does not know."""
    sizes = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "local_gb"}
    amounts = {name: amount for name, fact in sizes.items() if isinstance(amount := host.facts[fact], int)}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _health(host: Hypervisor) -> Health:
    if not host.up:
        return Health(False, "The hypervisor is down.")
    if not host.enabled:
        why = f": {host.disabled_reason}" if host.disabled_reason else "."
        return Health(False, f"The compute service is disabled{why}", works=True)
    return Health(True)
