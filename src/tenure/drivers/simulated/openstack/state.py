"""What is in the cloud: the objects of all services, and what more than one service must know of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from os import PathLike
from typing import Any, Final

from tenure.drivers.simulated.openstack.objects import IN_MEMORY, Objects, Table

#: What the names of Tenure's own providers begin with; the name of the host follows.
OWN_PROVIDER: Final = "blazar_"


def new_id() -> str:
    return str(uuid.uuid4())


@dataclass
class Host:
    """A compute host: ``name`` is the hypervisor's, ``service_host`` that of its compute service."""

    number: int
    name: str
    service_host: str
    state: str = "up"
    status: str = "enabled"
    reason: str | None = None
    vcpus: int = 8
    memory_mb: int = 16_384
    local_gb: int = 200

    @property
    def id(self) -> str:
        return str(self.number)

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


@dataclass
class Flavor:
    """Memory and swap in MiB, disks in GiB. ``projects`` may use it where it is not public."""

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
    #: What Nova tells flavors apart by, also those of one id that were there one after the other.
    key: str = field(default_factory=new_id)


@dataclass
class ServerGroup:
    name: str
    policy: str
    project_id: str
    id: str = field(default_factory=new_id)


@dataclass
class Server:
    """``host`` is that of the compute service, empty for a server that is on none."""

    name: str
    host: str
    project_id: str
    hints: dict[str, Any] = field(default_factory=dict)
    status: str = "ACTIVE"
    task: str | None = None
    id: str = field(default_factory=new_id)
    #: What it was booted with, as that was then.
    flavor: Flavor | None = None
    group_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    #: The status that it goes back to when a migration is confirmed.
    before: str = "ACTIVE"
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    updated: datetime = field(default_factory=lambda: datetime.now(UTC))
    #: What was ordered for it, the last first.
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
    total_gb: float | str = 1000.0
    state: str = "up"


@dataclass
class VolumeType:
    """``pools`` are those in which its volumes may lie, None for all; ``projects`` may use it, None for all."""

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
    #: How often it was looked at since its status began: Cinder takes its time.
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
    """What Nova writes of so much of something; ``more`` replaces what is usual."""
    usual = {"reserved": 0, "min_unit": 1, "max_unit": total, "step_size": 1, "allocation_ratio": 1.0}
    return {"total": total, **usual, **more}


#: What servers are booted with of which it does not matter.
SMALL: Final = Flavor("1", "m1.small", key="small")


class State:
    """The objects of a cloud, by what a service finds them by, and how its services behave."""

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
        self.aggregates: Table[int, Aggregate] = table("aggregate", Aggregate, int)
        self.servers: Table[str, Server] = table("server", Server, str)
        self.flavors: Table[str, Flavor] = table("flavor", Flavor, str)
        self.groups: Table[str, ServerGroup] = table("server_group", ServerGroup, str)
        self.images: Table[str, dict[str, Any]] = table("image", dict[str, Any], str)
        self.providers: Table[str, Provider] = table("provider", Provider, str)
        #: The custom resource classes.
        self.classes: Table[str, bool] = table("resource_class", bool, str)
        #: Whether each network is external.
        self.networks: Table[str, bool] = table("network", bool, str)
        self.subnets: Table[str, Subnet] = table("subnet", Subnet, str)
        self.floating_ips: Table[str, FloatingIP] = table("floating_ip", FloatingIP, str)
        #: By their names.
        self.volume_pools: Table[str, VolumePool] = table("volume_pool", VolumePool, str)
        self.volume_types: Table[str, VolumeType] = table("volume_type", VolumeType, str)
        self.volumes: Table[str, Volume] = table("volume", Volume, str)
        self.volume_snapshots: Table[str, VolumeSnapshot] = table("volume_snapshot", VolumeSnapshot, str)
        self.trusts: Table[str, dict[str, Any]] = table("trust", dict[str, Any], str)
        self._counters: Table[str, int] = table("counter", int, str)

        #: The newest microversion of Nova. From 2.100 on servers tell their hints and stay in their zone.
        self.nova = nova
        #: The most items of a page.
        self.page = 1000
        #: Whether what takes a while goes on: servers vanish, images are saved.
        self.held = False
        #: Whether shelved servers stay on their hosts until they are told to leave.
        self.keeps_shelved = False
        #: Whether there is room for servers that leave their hosts.
        self.has_room = True
        #: The hosts on which no server can be woken.
        self.closed_hosts: set[str] = set()
        #: Whether servers that are shelved and marked are shown as reserved.
        self.shows_reserved = False
        #: Whether Keystone lets no administrator delete what others made.
        self.only_trustors_delete = False
        #: The names of hosts without room for another virtual CPU.
        self.full: set[str] = set()
        #: The addresses that ports have which belong to no floating IP: network, address, owner.
        self.ports: list[tuple[str, str, str]] = []
        #: How many server groups, floating IPs and GiB of volumes a project may have.
        self.group_quota, self.address_quota, self.gigabytes = 10, 50, 1000
        #: The pool of the next volume, instead of that to which its type leads.
        self.stray_pool: str | None = None
        #: How many volumes cannot be made.
        self.volumes_that_fail = 0

    @property
    def tells_hints(self) -> bool:
        """Whether Nova tells with which hints a server was booted, and lets no host with servers change zones."""
        return int(self.nova.partition(".")[2]) >= 100

    def host(self, external_id: str) -> Host:
        """The host of the hypervisor with that id."""
        return next(host for host in self.hosts.values() if host.id == external_id)

    def aggregate(self, name: str) -> Aggregate | None:
        return next((aggregate for aggregate in self.aggregates.values() if aggregate.name == name), None)

    def aggregates_of(self, service_host: str) -> list[Aggregate]:
        return [aggregate for aggregate in self.aggregates.values() if service_host in aggregate.hosts]

    def provider(self, name: str) -> Provider:
        return next(provider for provider in self.providers.values() if provider.name == name)

    def add_aggregate(self, name: str, zone: str | None = None, hosts: Iterable[str] = ()) -> Aggregate:
        """A new aggregate with these hosts, whose number no other object has had."""
        aggregate = Aggregate(self.next_number(), name, {} if zone is None else {"availability_zone": zone}, [*hosts])
        self.aggregates[aggregate.number] = aggregate
        return aggregate

    def next_number(self) -> int:
        """A number for a host or an aggregate, higher than any before."""
        self._counters["number"] = number = self._counters.get("number", 0) + 1
        return number

    # What servers take of providers

    def allocated(self, server: Server) -> dict[str, dict[str, int]]:
        """What a server has of which provider, by the provider's uuid."""
        host, flavor = self.hosts.get(server.host), server.flavor or SMALL
        if host is None:
            return {}
        units = {
            name.removeprefix("resources:"): int(amount)
            for name, amount in flavor.extra_specs.items()
            if name.startswith("resources:CUSTOM_RESERVATION_")
        }
        sizes = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.ram, "DISK_GB": flavor.disk + flavor.ephemeral}
        parts = {host.name: sizes, f"{OWN_PROVIDER}{host.name}": units}
        return {
            provider.uuid: {name: amount for name, amount in parts[provider.name].items() if amount}
            for provider in self.providers.values()
            if parts.get(provider.name)
        }

    def used(self, provider: Provider, resource_class: str) -> int:
        """How much servers have of a class of a provider."""
        return sum(
            self.allocated(server).get(provider.uuid, {}).get(resource_class, 0) for server in self.servers.values()
        )

    def left(self, provider: Provider, resource_class: str) -> int:
        """How much of it further servers can have."""
        offered = provider.inventories.get(resource_class)
        if offered is None:
            return 0
        return int(offered["total"] - offered["reserved"] - self.used(provider, resource_class))
