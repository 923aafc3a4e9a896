"""What is in a simulated cloud, and what people other than Tenure do to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tenure.drivers.openstack.compute import is_node, node_key
from tenure.drivers.simulated import fleet
from tenure.drivers.simulated.openstack import state as objects
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.effects import Effect
from tenure.drivers.simulated.openstack.nova import POOL, is_set_aside
from tenure.drivers.simulated.openstack.scheduler import NoValidHost as NoHost
from tests.support.simulated.addresses import AddressWorld
from tests.support.simulated.instances import InstanceWorld, NoValidHost
from tests.support.simulated.volumes import VolumeWorld

_OWNER: Final = "blazar:owner"
#: What servers are booted with of which it does not matter.
_TINY: Final = objects.Flavor("0", "m0.nothing", vcpus=0, ram=1, disk=0)


class HostHealth(StrEnum):
    UP = "up"
    DOWN = "down"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Host:
    """A host, with where it belongs: to general use (None), to the pool, or to the reservation of that id."""

    id: str
    name: str
    facts: Mapping[str, object]
    traits: frozenset[str]
    health: HostHealth
    belongs_to: str | None


@dataclass(frozen=True, slots=True)
class Group:
    """The hosts that a project has for a reservation."""

    reservation_id: str
    project_id: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Server:
    """A server; ``host`` is the id of the hypervisor, empty for one that is shelved."""

    id: str
    name: str
    host: str
    project_id: str
    reservation_id: str | None
    vanishing: bool
    flavor_id: str | None = None
    group_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    stopped: bool = False

    @property
    def shelved(self) -> bool:
        """Whether it is on no host."""
        return not self.host


class ImageStatus(StrEnum):
    SAVING = "saving"
    ACTIVE = "active"
    LOST = "lost"  # its server was deleted before it was saved


_IMAGE_STATUSES: Final = {"queued": ImageStatus.SAVING, "active": ImageStatus.ACTIVE, "killed": ImageStatus.LOST}


@dataclass(frozen=True, slots=True)
class Image:
    id: str
    name: str
    project_id: str
    reservation_id: str
    server_id: str
    status: ImageStatus


class World:
    """The cloud behind the driver. A host is named by its id or its name.

    What there is for instances, addresses and volumes is in ``instances``, ``addresses`` and ``volumes``.
    """

    def __init__(self, cloud: OpenStack) -> None:
        self._cloud = cloud
        self.instances = InstanceWorld(cloud)
        self.addresses = AddressWorld(cloud)
        self.volumes = VolumeWorld(cloud)

    # Hosts

    def ensure_hosts(self, count: int, *, pooled: bool = False) -> None:
        """Let the fleet have ``count`` hosts or more: the same each time, and none again that was removed.

        New ones are in general use, or else in the pool, as if they had been registered.
        """
        fleet.add_fleet(self._cloud, count, pooled=pooled)

    def add_host(
        self,
        name: str | None = None,
        *,
        facts: Mapping[str, Any] | None = None,
        traits: Iterable[str] | None = None,
        inventory: Mapping[str, Mapping[str, float]] | None = None,
    ) -> str:
        """Add a host beside the fleet. Returns its id."""
        return fleet.add_single_host(self._cloud, name, facts=facts, traits=traits, inventory=inventory)

    def change_host(
        self,
        host: str,
        *,
        facts: Mapping[str, Any] | None = None,
        traits: Iterable[str] | None = None,
        inventory: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Change what the cloud says of a host: facts that are not given stay, traits and inventory are replaced."""
        with self._cloud.objects.change():
            known = self._cloud.find_host(host)
            provider = self._cloud.provider(known.name)
            if traits is not None:
                provider.traits = sorted(traits)
            if inventory is None:  # what it has beyond its size stays
                kept = provider.inventories.items()
                inventory = {
                    name: {key: value for key, value in record.items() if name not in fleet.SIZES or key in _KEPT}
                    for name, record in kept
                }
            said = dict(facts or {})
            if (zone := said.pop("availability_zone", None)) is not None:
                self._leave_zone(known)
                fleet.place_in_zone(self._cloud, known, str(zone))
            fleet.describe(self._cloud, known, said, inventory)

    def add_provider(
        self,
        host: str,
        name: str,
        inventory: Mapping[str, Mapping[str, Any]],
        traits: Iterable[str] = (),
    ) -> None:
        """Add a provider below the host's, such as of a device. ``inventory`` has ``total``, and more if it matters."""
        with self._cloud.objects.change():
            root = self._cloud.provider(self._cloud.find_host(host).name)
            records = {resource_class: objects.inventory(**record) for resource_class, record in inventory.items()}
            made = objects.Provider(name, root.uuid, records, sorted(traits))
            self._cloud.providers[made.uuid] = made
            for resource_class in records:
                self._cloud.classes[resource_class] = True

    def remove_host(self, host: str) -> None:
        """The host is gone for good, and its servers with it."""
        cloud = self._cloud
        with cloud.objects.change():
            known = cloud.find_host(host)
            for server in [server for server in cloud.servers.values() if server.host == known.key]:
                del cloud.servers[server.id]
            for aggregate in cloud.aggregates_of(known.key):
                self._leave(aggregate, known)
            del cloud.hosts[known.key]
            for provider in cloud.providers_of(known):
                del cloud.providers[provider.uuid]

    def mark_host(self, host: str, health: HostHealth) -> None:
        with self._cloud.objects.change():
            known = self._cloud.find_host(host)
            known.state = "down" if health is HostHealth.DOWN else "up"
            known.status = "disabled" if health is HostHealth.DISABLED else "enabled"
            self._cloud.hosts.save(known.key)

    def hosts(self) -> list[Host]:
        with self._cloud.objects.look():
            return [self._host(host) for host in sorted(self._cloud.hosts.values(), key=lambda host: host.number)]

    def host(self, host: str) -> Host:
        with self._cloud.objects.look():
            return self._host(self._cloud.find_host(host))

    # The pool, and what reservations have

    def take_out(self, host: str) -> None:
        """Take the host out of the pool or group it is in: it is in general use then."""
        with self._cloud.objects.change():
            self._leave_all(self._cloud.find_host(host))

    def drop_group(self, reservation_id: str) -> None:
        """Delete a reservation's group: its hosts are in general use then."""
        with self._cloud.objects.change():
            group = self._cloud.aggregate(reservation_id)
            if group is not None:
                del self._cloud.aggregates[group.number]

    def put_in(self, host: str, reservation_id: str) -> None:
        """Put the host into the group of a reservation, wherever it was."""
        with self._cloud.objects.change():
            known, group = self._cloud.find_host(host), self._cloud.aggregate(reservation_id)
            self._leave_all(known)
            if group is not None:
                if is_node(known.key):
                    group.metadata[node_key(known.key)] = "true"
                else:
                    group.hosts.append(known.key)
                self._cloud.aggregates.save(group.number)

    def change_owner(self, reservation_id: str, project_id: str) -> None:
        """Give a reservation's group to another project."""
        with self._cloud.objects.change():
            group = self._cloud.aggregate(reservation_id)
            if group is not None:
                group.metadata[_OWNER] = project_id
                self._cloud.aggregates.save(group.number)

    def pool(self) -> frozenset[str]:
        """The ids of the hosts that are set aside and free."""
        return fleet.pooled_hosts(self._cloud)

    def groups(self) -> dict[str, Group]:
        """The groups by reservation."""
        with self._cloud.objects.look():
            hosts = self._cloud.hosts
            return {
                aggregate.name: Group(
                    aggregate.name,
                    aggregate.metadata.get(_OWNER, ""),
                    tuple(sorted((hosts[name].id for name in aggregate.members if name in hosts), key=int)),
                )
                for aggregate in self._cloud.aggregates.values()
                if is_set_aside(aggregate) and aggregate.name != POOL
            }

    # Servers

    def boot_server(
        self,
        project_id: str,
        *,
        name: str = "server",
        reservation_id: str | None = None,
        host: str | None = None,
        flavor_id: str | None = None,
    ) -> str:
        """Boot a server as a user does, with ``reservation_id`` as the scheduler hint. Returns its id.

        Without a flavor it takes next to nothing of a host.

        Goes to the first host that is up and that the user may use, or to ``host`` if it is such a one. With the hint
        that is a host of that reservation, for the project that owns it; without, one in general use. Raises
        ``NoValidHost``.
        """
        hints: dict[str, Any] = {} if reservation_id is None else {"reservation": reservation_id}
        with self._cloud.objects.change():
            only = None if host is None else self._cloud.find_host(host).id
            try:
                flavor = _TINY if flavor_id is None else self._cloud.flavors[flavor_id]
                return self._cloud.scheduler.place(objects.Server(name, "", project_id, hints, flavor=flavor), only).id
            except NoHost:
                raise NoValidHost(
                    "No valid host was found: none is up, and open to this project and this hint."
                ) from None

    def force_server(self, project_id: str, host: str, *, name: str = "server") -> str:
        """Boot a server on that host, whichever project may use the host, as an administrator can. Returns its id."""
        with self._cloud.objects.change():
            server = objects.Server(name, "", project_id, flavor=_TINY)
            server.created = server.updated = self._cloud.now()
            return self._cloud.scheduler.put(server, self._cloud.find_host(host)).id

    def move_server(self, server: str, host: str) -> None:
        """Move the server to that host, whichever project may use it."""
        with self._cloud.objects.change():
            self._cloud.scheduler.move(self._cloud.servers[server], self._cloud.find_host(host).key)
            self._cloud.servers.save(server)

    def delete_server(self, server_id: str) -> None:
        """Delete a server as its user does. One that is gone is no error."""
        with self._cloud.objects.change():
            if server_id in self._cloud.servers:
                self._cloud.forget_server(server_id)

    def servers(self, host: str | None = None) -> list[Server]:
        """All servers, or those of one host, oldest first; those that are vanishing are still there."""
        self._cloud.settle()
        with self._cloud.objects.look():
            on = None if host is None else self._cloud.find_host(host).key
            found = [server for server in self._cloud.servers.values() if on in (None, server.host)]
            return [self._server(server) for server in sorted(found, key=lambda server: server.created)]

    def images(self, reservation_id: str | None = None) -> list[Image]:
        self._cloud.settle()
        with self._cloud.objects.look():
            found = [
                Image(
                    image["id"],
                    image["name"],
                    image["owner"],
                    image.get("tenure_reservation_id", ""),
                    image.get("tenure_server_id", ""),
                    _IMAGE_STATUSES[image["status"]],
                )
                for image in self._cloud.images.values()
            ]
        return [image for image in found if reservation_id in (None, image.reservation_id)]

    def trusts(self) -> frozenset[str]:
        """The ids of the trusts that were made and not revoked."""
        with self._cloud.objects.look():
            return frozenset(self._cloud.trusts)

    def journal(self, reservation_id: str | None = None) -> list[Effect]:
        """Everything that Tenure and users changed, or what was changed for one reservation, oldest first."""
        return [effect for effect in self._cloud.journal() if reservation_id in (None, effect.reservation_id)]

    def _leave_all(self, host: objects.Host) -> None:
        for aggregate in self._cloud.aggregates_of(host.key):
            if is_set_aside(aggregate):
                self._leave(aggregate, host)

    def _leave_zone(self, host: objects.Host) -> None:
        for aggregate in self._cloud.aggregates_of(host.key):
            if aggregate.zone is not None and aggregate.name != POOL:
                self._leave(aggregate, host)

    def _leave(self, aggregate: objects.Aggregate, host: objects.Host) -> None:
        """Take the host out of the aggregate; the service of a node of Ironic stays while it has other nodes."""
        aggregate.metadata.pop(node_key(host.key), None)
        others = [other for other in self._cloud.hosts.values() if other.service_host == host.service_host]
        if others == [host] and host.service_host in aggregate.hosts:
            aggregate.hosts.remove(host.service_host)
        self._cloud.aggregates.save(aggregate.number)

    def _host(self, host: objects.Host) -> Host:
        provider = self._cloud.provider_named(host.name)
        aggregates = self._cloud.aggregates_of(host.key)
        belongs_to = [aggregate.name for aggregate in aggregates if is_set_aside(aggregate)]
        health = HostHealth.UP if host.status == "enabled" else HostHealth.DISABLED
        facts = {name: getattr(host, name) for name in ("vcpus", "memory_mb", "local_gb", "hypervisor_type")}
        zones = [aggregate.zone for aggregate in aggregates if aggregate.zone and not is_set_aside(aggregate)]
        return Host(
            host.id,
            host.name,
            {**facts, "service_name": host.service_host, "availability_zone": zones[0] if zones else ""},
            frozenset(provider.traits if provider is not None else ()),
            HostHealth.DOWN if host.state == "down" else health,
            next((name for name in belongs_to if name != POOL), POOL if belongs_to else None),
        )

    def _server(self, server: objects.Server) -> Server:
        host = self._cloud.hosts.get(server.host)
        return Server(
            server.id,
            server.name,
            host.id if host is not None else "",
            server.project_id,
            self._cloud.reservation_of(server),
            server.task == "deleting",
            server.flavor.id if server.flavor is not None else None,
            server.group_id,
            dict(server.metadata),
            server.status == "SHUTOFF",
        )


#: What stays of a host's inventory of its own size when its facts change.
_KEPT: Final = frozenset({"reserved", "allocation_ratio", "min_unit", "step_size"})
