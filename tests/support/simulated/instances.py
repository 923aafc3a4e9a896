"""Flavors, aggregates, inventories and server groups of a simulated cloud, and what people do with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudNotFound, CloudRefused
from tenure.drivers.simulated.openstack import state as objects
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.nova import POOL
from tenure.drivers.simulated.openstack.placement import class_of
from tenure.drivers.simulated.openstack.scheduler import NoValidHost as NoHost
from tenure.drivers.simulated.openstack.state import OWN_PROVIDER, inventory


class NoValidHost(CloudRefused):
    """No host would have the server: Nova's scheduler says the same."""


@dataclass(frozen=True, slots=True)
class Flavor:
    """Memory and swap are in MiB, disks in GiB. ``access`` are the projects that see it where it is not public."""

    id: str
    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int
    swap: int
    is_public: bool
    extra_specs: Mapping[str, str]
    access: frozenset[str]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The hosts, by id, of a reservation of instances, or of an operator."""

    id: int
    name: str
    metadata: Mapping[str, str]
    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class ServerGroup:
    id: str
    name: str
    project_id: str
    policy: str
    members: tuple[str, ...]


class InstanceWorld:
    """What there is for instances. A host is named by its id or its name, a reservation by its id."""

    def __init__(self, cloud: OpenStack) -> None:
        self._cloud = cloud

    # As a user

    def write(self, server: str, metadata: Mapping[str, str]) -> None:
        """Write in the metadata of a server, as its users can. Raises ``CloudNotFound``."""
        with self._server(server) as found:
            found.metadata.update(metadata)

    def shelve(self, server: str) -> None:
        """Put a server away, as its users can: it is on no host then."""
        with self._server(server) as found:
            found.status, found.host = "SHELVED_OFFLOADED", ""

    def resize(self, server: str, flavor_id: str) -> None:
        """Make a server one of another flavor, on the host that it is on, as its users can."""
        with self._server(server) as found:
            found.flavor = self._flavor(flavor_id, found.project_id)

    def boot(
        self,
        project_id: str,
        flavor_id: str,
        *,
        name: str = "server",
        group: str | None = None,
        host: str | None = None,
        metadata: Mapping[str, str] | None = None,
        user_id: str = "",
    ) -> str:
        """Boot a server of that flavor as a user does, with ``group`` as the scheduler hint. Returns its id.

        Goes to the first host that is up, that has room, that the flavor and the policy of the group allow, or to
        ``host`` if it is such a one. Raises ``CloudNotFound`` for a flavor that the project does not see and a group
        that is not its own, and ``NoValidHost``.
        """
        with self._cloud.objects.change():
            flavor = self._flavor(flavor_id, project_id)
            known = self._cloud.groups.get(group or "")
            if group is not None and (known is None or known.project_id != project_id):
                raise CloudNotFound(f"Instance group {group} could not be found.")
            try:
                booted = objects.Server(name, "", project_id, user_id=user_id, group_id=group)
                booted.flavor = replace(flavor, projects=set())
                booted.metadata.update(metadata or {})
                return self._cloud.scheduler.place(booted, None if host is None else self._cloud.find_host(host).id).id
            except NoHost:
                raise NoValidHost(
                    "No valid host was found: none is open to this flavor and this group, and has room."
                ) from None

    def make_group(self, project_id: str, name: str, policy: str) -> str:
        """Make a server group as a user does. Returns its id."""
        with self._cloud.objects.change():
            made = objects.ServerGroup(name, policy, project_id)
            self._cloud.groups[made.id] = made
        return made.id

    # To look

    def flavors(self) -> dict[str, Flavor]:
        """All flavors by id."""
        names = ("id", "name", "vcpus", "ram", "disk", "ephemeral", "swap", "is_public")
        with self._cloud.objects.look():
            return {
                flavor.id: Flavor(
                    **{name: getattr(flavor, name) for name in names},
                    extra_specs=dict(flavor.extra_specs),
                    access=frozenset(flavor.projects),
                )
                for flavor in sorted(self._cloud.flavors.values(), key=lambda flavor: flavor.id)
            }

    def aggregates(self) -> dict[str, Aggregate]:
        """The aggregates without a zone by name, but for the pool: those of parts of hosts."""
        with self._cloud.objects.look():
            hosts = self._cloud.hosts
            return {
                aggregate.name: Aggregate(
                    aggregate.number,
                    aggregate.name,
                    dict(aggregate.metadata),
                    frozenset(hosts[name].id for name in aggregate.hosts if name in hosts),
                )
                for aggregate in self._cloud.aggregates.values()
                if aggregate.zone is None and aggregate.name != POOL
            }

    def inventories(self) -> dict[str, dict[str, int]]:
        """The classes of reservations, and how many units which host has of each, by its id."""
        with self._cloud.objects.look():
            found: dict[str, dict[str, int]] = {
                name: {} for name in self._cloud.classes if name.startswith(class_of(""))
            }
            for host in sorted(self._cloud.hosts.values(), key=lambda host: host.number):
                provider = self._cloud.provider_named(f"{OWN_PROVIDER}{host.name}")
                for name, record in (provider.inventories if provider is not None else {}).items():
                    found[name][host.id] = record["total"] - record["reserved"]
        return found

    def units(self, reservation_id: str) -> dict[str, int]:
        """How many units a reservation has on which host, by its id."""
        return self.inventories().get(class_of(reservation_id), {})

    def server_groups(self) -> dict[str, ServerGroup]:
        """All server groups by id."""
        with self._cloud.objects.look():
            members: dict[str, list[str]] = {}
            for server in sorted(self._cloud.servers.values(), key=lambda server: server.created):
                if server.group_id is not None:
                    members.setdefault(server.group_id, []).append(server.id)
            return {
                group.id: ServerGroup(
                    group.id, group.name, group.project_id, group.policy, tuple(members.get(group.id, ()))
                )
                for group in sorted(self._cloud.groups.values(), key=lambda group: group.id)
            }

    def traces(self, reservation_id: str) -> frozenset[str]:
        """What there is of a reservation of instances, by the noun for it."""
        groups = {group.name for group in self.server_groups().values()}
        found = {
            "flavor": reservation_id in self.flavors(),
            "aggregate": reservation_id in self.aggregates(),
            "resource class": class_of(reservation_id) in self.inventories(),
            "inventory": bool(self.units(reservation_id)),
            "server group": f"reservation:{reservation_id}" in groups,
        }
        return frozenset(noun for noun, is_there in found.items() if is_there)

    # To meddle

    def add_flavor(
        self,
        flavor_id: str,
        *,
        vcpus: int = 1,
        ram: int = 512,
        disk: int = 1,
        ephemeral: int = 0,
        swap: int = 0,
        is_public: bool = True,
        extra_specs: Mapping[str, str] | None = None,
    ) -> None:
        """The operator makes a flavor, whose name is its id."""
        made = objects.Flavor(
            flavor_id, flavor_id, vcpus, ram, disk, ephemeral, swap, is_public, dict(extra_specs or {})
        )
        with self._cloud.objects.change():
            self._cloud.flavors[flavor_id] = made

    def change_extra_specs(self, flavor_id: str, **changes: str | None) -> None:
        """Set extra specs of a flavor, or remove those that are None."""
        with self._cloud.objects.change():
            _change(self._cloud.flavors[flavor_id].extra_specs, changes)
            self._cloud.flavors.save(flavor_id)

    def delete_flavor(self, flavor_id: str) -> None:
        """Delete a flavor; servers of it stay."""
        with self._cloud.objects.change():
            del self._cloud.flavors[flavor_id]

    def give_access(self, flavor_id: str, project_id: str) -> None:
        """Let a project see a flavor."""
        with self._cloud.objects.change():
            self._cloud.flavors[flavor_id].projects.add(project_id)
            self._cloud.flavors.save(flavor_id)

    def take_access(self, flavor_id: str, project_id: str) -> None:
        """Hide a flavor from a project."""
        with self._cloud.objects.change():
            self._cloud.flavors[flavor_id].projects.discard(project_id)
            self._cloud.flavors.save(flavor_id)

    def delete_aggregate(self, name: str) -> None:
        """Delete an aggregate; its hosts stay where they are."""
        with self._aggregate(name) as aggregate:
            del self._cloud.aggregates[aggregate.number]

    def add_aggregate(self, name: str, *hosts: str, **metadata: str) -> None:
        """Add an aggregate of the operator with these hosts and metadata."""
        with self._cloud.objects.change():
            services = [self._cloud.find_host(host).service_host for host in hosts]
            made = self._cloud.add_aggregate(name, hosts=services)
            made.metadata |= metadata
            self._cloud.aggregates.save(made.number)

    def change_metadata(self, name: str, **changes: str | None) -> None:
        """Set metadata of an aggregate, or remove those that are None."""
        with self._aggregate(name) as aggregate:
            _change(aggregate.metadata, changes)

    def add_to_aggregate(self, name: str, host: str) -> None:
        """Add a host to an aggregate."""
        with self._aggregate(name) as aggregate:
            service_host = self._cloud.find_host(host).service_host
            if service_host not in aggregate.hosts:
                aggregate.hosts.append(service_host)

    def take_from_aggregate(self, name: str, host: str) -> None:
        """Take a host out of an aggregate."""
        with self._aggregate(name) as aggregate:
            service_host = self._cloud.find_host(host).service_host
            aggregate.hosts[:] = [member for member in aggregate.hosts if member != service_host]

    def set_units(self, reservation_id: str, host: str, units: int | None) -> None:
        """Let a host have so many units of a reservation's class, or none at all."""
        with self._cloud.objects.change():
            provider = self._cloud.provider(f"{OWN_PROVIDER}{self._cloud.find_host(host).name}")
            if units is None:
                provider.inventories.pop(class_of(reservation_id), None)
            else:
                provider.inventories[class_of(reservation_id)] = inventory(units, max_unit=1)
            provider.generation += 1
            self._cloud.providers.save(provider.uuid)

    def delete_class(self, reservation_id: str) -> None:
        """Delete the resource class of a reservation, with every inventory of it."""
        with self._cloud.objects.change():
            for provider in self._cloud.providers.values():
                if provider.inventories.pop(class_of(reservation_id), None) is not None:
                    self._cloud.providers.save(provider.uuid)
            del self._cloud.classes[class_of(reservation_id)]

    def delete_group(self, group_id: str) -> None:
        """Delete a server group; its servers stay."""
        with self._cloud.objects.change():
            del self._cloud.groups[group_id]

    def _flavor(self, flavor_id: str, project_id: str) -> objects.Flavor:
        flavor = self._cloud.flavors.get(flavor_id)
        if flavor is None or not (flavor.is_public or project_id in flavor.projects):
            raise CloudNotFound(Reason(f"Flavor {flavor_id} could not be found."))
        return flavor

    @contextmanager
    def _server(self, server_id: str) -> Iterator[objects.Server]:
        """A server that is changed; raises ``CloudNotFound``."""
        with self._cloud.objects.change():
            if server_id not in self._cloud.servers:
                raise CloudNotFound(f"There is no server {server_id}.")
            server = self._cloud.servers[server_id]
            yield server
            server.updated = self._cloud.now()
            self._cloud.servers.save(server_id)

    @contextmanager
    def _aggregate(self, name: str) -> Iterator[objects.Aggregate]:
        """An aggregate that is changed."""
        with self._cloud.objects.change():
            aggregate = self._cloud.aggregate(name)
            if aggregate is None:
                raise CloudNotFound(f"There is no aggregate {name}.")
            yield aggregate
            if aggregate.number in self._cloud.aggregates:
                self._cloud.aggregates.save(aggregate.number)


def _change(values: dict[str, str], changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value
