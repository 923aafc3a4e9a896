"""The state of the cloud: the objects of all services, and functions that several services need."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from os import PathLike
from typing import Any, Final, Protocol

from pydantic import TypeAdapter

from tenure.domain.extra_specs import PCI_ALIAS
from tenure.domain.footprint import DEVICE_GROUPS, Footprint, footprint_of
from tenure.drivers.contract import CloudAmbiguous, CloudNotFound
from tenure.drivers.openstack.compute import member_name, node_key, nodes_in
from tenure.drivers.openstack.devices import groups_of_aliases, numbered
from tenure.drivers.openstack.pci_aliases import PciAlias
from tenure.drivers.simulated.openstack.effects import Effect
from tenure.drivers.simulated.openstack.objects import IN_MEMORY, Objects, Table

#: The prefix of the names of Tenure's own providers; the name of the host follows.
OWN_PROVIDER: Final = "blazar_"


def new_id() -> str:
    return str(uuid.uuid4())


@dataclass
class Host:
    """A compute host: ``name`` is the hypervisor's, ``service_host`` that of its compute service.

    A node of Ironic is named by its UUID, and shares its compute service with other nodes.
    """

    number: int
    name: str
    service_host: str
    state: str = "up"
    status: str = "enabled"
    reason: str | None = None
    vcpus: int = 8
    memory_mb: int = 16_384
    local_gb: int = 200
    cpu_info: dict[str, Any] = field(default_factory=lambda: {"arch": "x86_64", "topology": {"cores": 4}})
    hypervisor_type: str = "QEMU"
    hypervisor_version: int = 8_002_002

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def key(self) -> str:
        """Its key among the hosts, which servers have as ``host``: the compute service, or the node of Ironic."""
        return member_name(self.service_host, self.name)

    @property
    def takes_servers(self) -> bool:
        return (self.state, self.status) == ("up", "enabled")


@dataclass
class Aggregate:
    number: int
    name: str
    metadata: dict[str, str]
    #: The hosts of compute services.
    hosts: list[str] = field(default_factory=list)

    @property
    def zone(self) -> str | None:
        return self.metadata.get("availability_zone")

    @property
    def members(self) -> Sequence[str]:
        """The keys of its hosts: of compute services, and of nodes of Ironic that its metadata name."""
        return (*self.hosts, *sorted(nodes_in(self.metadata)))


@dataclass
class Flavor:
    """Memory and swap in MiB, disks in GiB. If it is not public, ``projects`` may use it."""

    id: str
    name: str
    vcpus: int = 1
    ram: int = 512
    disk: int = 1
    ephemeral: int = 0
    swap: int = 0
    is_public: bool = True
    extra_specs: dict[str, str] = field(default_factory=dict)
    projects: set[str] = field(default_factory=set)
    #: Nova's internal id; it differs between a deleted flavor and a new flavor with the same id.
    key: str = field(default_factory=new_id)


@dataclass
class ServerGroup:
    name: str
    policy: str
    project_id: str
    id: str = field(default_factory=new_id)


@dataclass
class Server:
    """``host`` is the key of its host, empty for a server that is on no host."""

    name: str
    host: str
    project_id: str
    hints: dict[str, Any] = field(default_factory=dict)
    status: str = "ACTIVE"
    task: str | None = None
    id: str = field(default_factory=new_id)
    #: Its flavor, as it was when the server was booted.
    flavor: Flavor | None = None
    group_id: str | None = None
    user_id: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    #: What it takes of providers below its host's, by their uuids.
    nested: dict[str, dict[str, int]] = field(default_factory=dict)
    #: The host on which it is being unshelved.
    place: str = ""
    #: The id of the image that it was booted from; empty if the request named none.
    image_id: str = ""
    #: Why its boot failed.
    fault: str = ""
    #: The status after a confirmed migration.
    before: str = "ACTIVE"
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    updated: datetime = field(default_factory=lambda: datetime.now(UTC))
    #: The requested actions, the latest first.
    actions: list[str] = field(default_factory=list)


@dataclass
class Provider:
    name: str
    parent: str | None = None
    inventories: dict[str, dict[str, Any]] = field(default_factory=dict)
    traits: list[str] = field(default_factory=list)
    uuid: str = field(default_factory=new_id)
    generation: int = 0


@dataclass
class Subnet:
    network_id: str
    cidr: str
    pools: list[tuple[str, str]]
    gateway: str | None
    id: str = field(default_factory=new_id)

    @property
    def network(self) -> IPv4Network | IPv6Network:
        return ip_network(self.cidr)


@dataclass
class FloatingIP:
    network_id: str
    address: str
    project_id: str
    description: str = ""
    port_id: str | None = None
    tags: list[str] = field(default_factory=list)
    id: str = field(default_factory=new_id)


@dataclass
class VolumePool:
    name: str
    total_gb: int | float | str = 1000
    state: str = "up"


@dataclass
class VolumeType:
    """``pools`` can have its volumes, None for all; ``projects`` may use it, None for all."""

    name: str
    pools: list[str] | None = None
    projects: list[str] | None = None
    id: str = field(default_factory=new_id)


@dataclass
class Volume:
    name: str
    size: int
    volume_type: str
    project_id: str
    user_id: str
    pool: str = ""
    status: str = "creating"
    metadata: dict[str, str] = field(default_factory=dict)
    servers: list[str] = field(default_factory=list)
    id: str = field(default_factory=new_id)
    #: How often it was requested since its last change of status; see ``volume_looks``.
    looks: int = 0


@dataclass
class VolumeSnapshot:
    volume_id: str
    name: str
    project_id: str
    metadata: dict[str, str]
    status: str = "creating"
    id: str = field(default_factory=new_id)


def inventory(total: int, **more: Any) -> dict[str, Any]:
    """Return an inventory as Nova writes it; ``more`` replaces the defaults."""
    usual = {"reserved": 0, "min_unit": 1, "max_unit": total, "step_size": 1, "allocation_ratio": 1.0}
    return {"total": total, **usual, **more}


@dataclass(frozen=True)
class Pending:
    """A requested operation that the fault with this number slows."""

    action: str
    object_id: str
    fault: int


class Account(Protocol):
    """A user in a project, as named by a token."""

    @property
    def user_id(self) -> str: ...
    @property
    def user_name(self) -> str: ...
    @property
    def project_id(self) -> str: ...
    @property
    def project_name(self) -> str: ...
    @property
    def roles(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class CloudQuotas:
    """How much a project may have: servers and their cores, images and volumes."""

    servers: int = 200
    cores: int = 1_000
    images: int = 500
    volumes: int = 10_000


#: The prefix of the names of reservations' flavors; the id follows.
_FLAVOR: Final = "reservation:"
#: The property of an image that names its server.
IMAGE_OF: Final = "instance_uuid"
#: How long deleted servers are listed, and how many of a project.
_REMEMBERED, _MOST_REMEMBERED = timedelta(days=1), 1_000
_EFFECT: Final = TypeAdapter(Effect)
#: The flavor of servers whose size does not matter.
SMALL: Final = Flavor("1", "m1.small", key="small")


class State:
    """The objects of a cloud by their keys, and settings of its services."""

    def __init__(
        self,
        path: str | PathLike[str] = IN_MEMORY,
        *,
        nova: str = "2.103",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.now = now
        self.objects = Objects(path)
        table = self.objects.table
        #: By the host of the compute service.
        self.hosts: Table[str, Host] = table("host", Host, str)
        self._hosts_by_id = self.hosts.index(lambda host: host.id)
        self._hosts_by_name = self.hosts.index(lambda host: host.name)
        self.aggregates: Table[int, Aggregate] = table("aggregate", Aggregate, int)
        self._aggregates_by_name = self.aggregates.index(lambda aggregate: aggregate.name)
        self.servers: Table[str, Server] = table("server", Server, str)
        self._servers_by_project = self.servers.index(lambda server: server.project_id)
        self._servers_by_group = self.servers.index(lambda server: server.group_id)
        self._servers_by_host = self.servers.index(lambda server: server.host)
        self._taken_of_hosts = self.servers.tally(lambda server: (server.host, self.amounts_above(server)))
        self._cores_of_projects = self.servers.tally(lambda server: (server.project_id, {"cores": cores_of(server)}))
        #: The servers that were deleted recently; Nova still lists them in requests for changes.
        self.deleted_servers: Table[str, Server] = table("deleted_server", Server, str)
        self._deleted_by_project = self.deleted_servers.index(lambda server: server.project_id)
        self.flavors: Table[str, Flavor] = table("flavor", Flavor, str)
        self.groups: Table[str, ServerGroup] = table("server_group", ServerGroup, str)
        self.images: Table[str, dict[str, Any]] = table("image", dict[str, Any], str)
        self._images_by_owner = self.images.index(lambda image: image.get("owner"))
        self._images_by_server = self.images.index(lambda image: image.get(IMAGE_OF))
        self.providers: Table[str, Provider] = table("provider", Provider, str)
        self._providers_by_name = self.providers.index(lambda provider: provider.name)
        self._providers_by_parent = self.providers.index(lambda provider: provider.parent)
        #: The custom resource classes.
        self.classes: Table[str, bool] = table("resource_class", bool, str)
        #: Whether each network is external.
        self.networks: Table[str, bool] = table("network", bool, str)
        self.subnets: Table[str, Subnet] = table("subnet", Subnet, str)
        self.floating_ips: Table[str, FloatingIP] = table("floating_ip", FloatingIP, str)
        #: By name.
        self.volume_pools: Table[str, VolumePool] = table("volume_pool", VolumePool, str)
        self.volume_types: Table[str, VolumeType] = table("volume_type", VolumeType, str)
        self.volumes: Table[str, Volume] = table("volume", Volume, str)
        self._volumes_by_project = self.volumes.index(lambda volume: volume.project_id)
        self.volume_snapshots: Table[str, VolumeSnapshot] = table("volume_snapshot", VolumeSnapshot, str)
        self.trusts: Table[str, dict[str, Any]] = table("trust", dict[str, Any], str)
        self.pending: Table[str, Pending] = table("pending", Pending, str)
        self._counters: Table[str, int] = table("counter", int, str)
        self._completions: dict[str, Callable[[str], None]] = {}
        self._calling = threading.local()

        #: Nova's aliases of PCI devices, by name.
        self.pci_aliases: Mapping[str, PciAlias] = {}
        #: The newest microversion of Nova. From 2.100 on servers show their hints and stay in their zone.
        self.nova = nova
        #: The maximum number of items of a page.
        self.page = 1000
        #: Returns the fault that slows new operations, or None; and whether a fault is over.
        self.slowed_by: Callable[[], int | None] = lambda: None
        self.is_over: Callable[[int], bool] = lambda _fault: True
        #: How many requests for a volume it takes until a requested operation is done.
        self.volume_looks = 0
        #: Whether shelved servers stay on their hosts until they are offloaded by a request.
        self.keeps_shelved = False
        #: Whether shelved servers with the mark of a reservation are shown as reserved.
        self.shows_reserved = False
        #: Whether Keystone forbids administrators to delete the trusts of others.
        self.only_trustors_delete = False
        #: The names of hosts without room for another virtual CPU.
        self.full: set[str] = set()
        #: The addresses of ports that belong to no floating IP: network, address, owner.
        self.ports: list[tuple[str, str, str]] = []
        #: How many server groups, floating IPs and GiB of volumes a project may have.
        self.group_quota, self.address_quota, self.gigabytes = 10_000, 10_000, 1_000_000
        #: Further quotas of a project.
        self.quotas = CloudQuotas()
        #: The users that Keystone knows, and their projects.
        self.accounts: Iterable[Account] = ()
        #: The pool of the next volume, instead of a pool of its type.
        self.stray_pool: str | None = None
        #: How many creations of volumes fail.
        self.volumes_that_fail = 0

    @property
    def tells_hints(self) -> bool:
        """Whether Nova shows the hints of servers, and keeps hosts with servers in their zones."""
        return int(self.nova.partition(".")[2]) >= 100

    def host(self, external_id: str) -> Host:
        """Return the host of the hypervisor with this id; raise ``CloudNotFound``."""
        for host in self._hosts_by_id(external_id):
            return host
        raise CloudNotFound(f"Compute host {external_id} could not be found.")

    def find_host(self, reference: str) -> Host:
        """Return the host whose hypervisor has this id or name; raise ``CloudNotFound`` and ``CloudAmbiguous``."""
        found = self._hosts_by_id(reference) or self._hosts_by_name(reference)
        if not found:
            raise CloudNotFound(f"There is no host {reference}.")
        if len(found) > 1:
            raise CloudAmbiguous(f"Several hosts are named {reference}.")
        return found[0]

    def aggregate(self, name: str) -> Aggregate | None:
        return next(iter(self._aggregates_by_name(name)), None)

    def aggregates_of(self, key: str) -> list[Aggregate]:
        """Return the aggregates of a host; a node of Ironic is in those of its service as well."""
        host = self.hosts.get(key)
        service_host, node = host.service_host if host is not None else key, node_key(key)
        return [
            aggregate
            for aggregate in self.aggregates.values()
            if service_host in aggregate.hosts or node in aggregate.metadata
        ]

    def provider(self, name: str) -> Provider:
        return self._providers_by_name(name)[0]

    def add_aggregate(self, name: str, zone: str | None = None, hosts: Iterable[str] = ()) -> Aggregate:
        """Add an aggregate with these hosts and a number that was never used."""
        metadata = {} if zone is None else {"availability_zone": zone}
        aggregate = Aggregate(self.next_number("aggregate"), name, metadata, list(hosts))
        self.aggregates[aggregate.number] = aggregate
        return aggregate

    def next_number(self, kind: str) -> int:
        """Return a number for an object of this kind, higher than all before."""
        self._counters[kind] = number = self._counters.get(kind, 0) + 1
        return number

    @property
    def fleet_size(self) -> int:
        """How many hosts of the fleet exist or existed."""
        return self._counters.get("fleet", 0)

    @fleet_size.setter
    def fleet_size(self, size: int) -> None:
        self._counters["fleet"] = size

    # Slow operations, and the journal

    def complete_with(self, action: str, completion: Callable[[str], None]) -> None:
        """Register the completion of an action; it is called with the id of the object."""
        self._completions[action] = completion

    def finish(self, action: str, object_id: str) -> None:
        """Complete an operation: at once, or when the fault that slows it is over."""
        fault = self.slowed_by()
        if fault is None:
            self._completions[action](object_id)
        else:
            self.pending[f"{action} {object_id}"] = Pending(action, object_id, fault)

    def settle(self) -> None:
        """Complete the operations that no fault slows any more."""
        with self.objects.look():
            over = [key for key, pending in self.pending.items() if self.is_over(pending.fault)]
        if over:
            with self.objects.change():
                for key in over:
                    if (pending := self.pending.get(key)) is not None:
                        del self.pending[key]
                        self._completions[pending.action](pending.object_id)

    @property
    def verb(self) -> str:
        """The driver's verb whose request is being answered, or the action of a user."""
        return str(getattr(self._calling, "verb", ""))

    @verb.setter
    def verb(self, verb: str) -> None:
        self._calling.verb = verb

    def record(
        self,
        kind: str,
        reservation_id: str | None = None,
        *,
        host: str | None = None,
        subject: str | None = None,
    ) -> None:
        """Record an effect of the current change; ``host`` is the key of a host."""
        known = self.hosts.get(host or "")
        external_id = known.id if known is not None else None
        effect = Effect(0, self.now(), self.verb, kind, reservation_id, external_id, subject)
        self.objects.append(_EFFECT.dump_json(effect))
        self._calling.recorded = self.recorded + 1

    @property
    def recorded(self) -> int:
        """How many effects this thread has recorded."""
        return int(getattr(self._calling, "recorded", 0))

    def journal(self) -> list[Effect]:
        """All recorded effects, oldest first."""
        entries = self.objects.journal()
        return [replace(_EFFECT.validate_json(entry), sequence=sequence) for sequence, entry in entries]

    # Servers

    def forget_server(self, server_id: str) -> None:
        """Remove a server; its images that are not saved yet fail."""
        server = self.servers[server_id]
        del self.servers[server_id]
        server.status, server.task, server.host, server.updated = "DELETED", None, "", self.now()
        self.deleted_servers[server_id] = server
        self._forget_deleted(server.project_id)
        for image in self._images_by_server(server_id):
            if image["status"] == "queued":
                image["status"] = "killed"
                self.images.save(image["id"])

    def _forget_deleted(self, project_id: str) -> None:
        """Forget servers that were deleted long ago, and the oldest of a project with many deleted servers."""
        oldest = next(iter(self.deleted_servers.values()))
        while self.now() - oldest.updated > _REMEMBERED:
            del self.deleted_servers[oldest.id]
            oldest = next(iter(self.deleted_servers.values()))
        of_project = self._deleted_by_project(project_id)
        for server in of_project[: max(0, len(of_project) - _MOST_REMEMBERED)]:
            del self.deleted_servers[server.id]

    def servers_of(self, project_id: str) -> list[Server]:
        """The servers of a project."""
        return self._servers_by_project(project_id)

    def members_of(self, group_id: str) -> list[Server]:
        """The servers of a server group."""
        return self._servers_by_group(group_id)

    def images_of(self, project_id: str) -> list[dict[str, Any]]:
        """The images that a project owns."""
        return self._images_by_owner(project_id)

    def volumes_of(self, project_id: str) -> list[Volume]:
        """The volumes of a project."""
        return self._volumes_by_project(project_id)

    def cores_of(self, project_id: str) -> int:
        """How many cores the servers of a project have in total."""
        return self._cores_of_projects.sum(project_id, "cores")

    def reservation_of(self, server: Server) -> str | None:
        """The reservation of a server, by its metadata, or by the hint or the flavor that it was booted with."""
        flavor = server.flavor.name if server.flavor is not None else ""
        booted = flavor.removeprefix(_FLAVOR) if flavor.startswith(_FLAVOR) else None
        hinted = server.hints.get("reservation")
        if isinstance(hinted, list):  # a hint that was given several times
            hinted = next(iter(hinted), None)
        return server.metadata.get("tenure:reservation") or hinted or booted

    # Usage of providers

    def provider_named(self, name: str) -> Provider | None:
        return next(iter(self._providers_by_name(name)), None)

    def tree_of(self, root: str) -> list[Provider]:
        """The provider with this UUID, and the providers below it."""
        return [*([self.providers[root]] if root in self.providers else []), *self._providers_by_parent(root)]

    def providers_of(self, host: Host) -> list[Provider]:
        """The provider of a host, that for reservations, and the others below it."""
        named = (self.provider_named(name) for name in (host.name, f"{OWN_PROVIDER}{host.name}"))
        return [*(provider for provider in named if provider is not None), *self.providers_below(host)]

    def providers_below(self, host: Host) -> list[Provider]:
        """The providers below a host's, such as of its devices, without the one for reservations."""
        root = self.provider_named(host.name)
        below = self._providers_by_parent(root.uuid) if root is not None else []
        return list(filter(_is_below, below))

    def host_of(self, provider: Provider) -> Host | None:
        """The host of a provider, which may be below its host's provider."""
        root = self.providers.get(provider.parent or "", provider)
        return next(iter(self._hosts_by_name(root.name.removeprefix(OWN_PROVIDER))), None)

    def allocated(self, server: Server) -> dict[str, dict[str, int]]:
        """What a server has of which provider, by the provider's uuid: of its host, and of reservations' units there.

        Providers that do not exist or lack the class are left out.
        """
        host = self.hosts.get(server.host)
        if host is None:
            return {}
        above = self.amounts_above(server)
        found: dict[str, dict[str, int]] = {}
        for provider in self.providers_of(host):
            amounts = server.nested.get(provider.uuid, {}) if _is_below(provider) else above
            taken = {cls: amount for cls, amount in amounts.items() if amount and cls in provider.inventories}
            if taken:
                found[provider.uuid] = taken
        return found

    def footprint(self, server: Server) -> Footprint:
        """What a server takes; raises ``ValueError`` for a flavor that Nova would refuse."""
        return self.footprint_of_flavor(server.flavor or SMALL)

    def footprint_of_flavor(self, flavor: Flavor) -> Footprint:
        """What a server of the flavor takes; raises ``ValueError`` for a flavor that Nova would refuse."""
        described = vars(flavor)
        if PCI_ALIAS in flavor.extra_specs:
            groups = groups_of_aliases(flavor.extra_specs[PCI_ALIAS], self.pci_aliases)
            described = {**described, DEVICE_GROUPS: numbered(groups)}
        return footprint_of(described)

    def amounts_above(self, server: Server) -> Mapping[str, int]:
        """What a server uses of its host's provider and of that for reservations; the rest is from providers below.

        Nothing for a flavor that Nova would refuse.
        """
        try:
            above = Counter(self.footprint(server).amounts)
        except ValueError:
            return {}
        for amounts in server.nested.values():
            above.subtract(amounts)
        return above

    def used(self, provider: Provider, resource_class: str) -> int:
        """How much of a provider's class servers use."""
        host = self.host_of(provider)
        if host is None or resource_class not in provider.inventories:
            return 0
        if not _is_below(provider):
            return self._taken_of_hosts.sum(host.key, resource_class)
        servers = self._servers_by_host(host.key)
        return sum(server.nested.get(provider.uuid, {}).get(resource_class, 0) for server in servers)

    def left(self, provider: Provider, resource_class: str) -> int:
        """How much of a provider's class is left."""
        offered = provider.inventories.get(resource_class)
        if offered is None:
            return 0
        capacity = int((offered["total"] - offered["reserved"]) * offered["allocation_ratio"])
        return capacity - self.used(provider, resource_class)


def _is_below(provider: Provider) -> bool:
    """Whether a provider is below a host's, and not the one for reservations."""
    return provider.parent is not None and not provider.name.startswith(OWN_PROVIDER)


def cores_of(server: Server) -> int:
    """How many cores a server counts for in the quota."""
    return (server.flavor or SMALL).vcpus
