"""What a test puts into a simulated cloud, before any of it is registered with the service."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Literal, TypedDict, Unpack

from tenure.drivers.simulated import SimulatedCloud, fleet
from tenure.drivers.simulated.catalogue import FAST_POOL, SLOW_POOL
from tenure.drivers.simulated.openstack.state import Flavor, Server, Subnet, VolumePool, VolumeType


class HostFacts(TypedDict, total=False):
    """What the cloud tells of a host (default: 8 processors, 16 GB of memory, 100 GB of disk, the zone nova)."""

    vcpus: int
    memory_mb: int
    local_gb: int
    availability_zone: str


_USUAL: HostFacts = {"vcpus": 8, "memory_mb": 16384, "local_gb": 100, "availability_zone": "nova"}


def add_hypervisor(cloud: SimulatedCloud, name: str, **facts: Unpack[HostFacts]) -> None:
    if unknown := facts.keys() - _USUAL.keys():
        raise TypeError(f"A host has no {', '.join(sorted(unknown))} here.")
    fleet.add_single_host(cloud.openstack, name, facts={**_USUAL, **facts}, traits=())


def mark_host(cloud: SimulatedCloud, name: str, health: Literal["up", "down", "disabled"]) -> None:
    state = cloud.openstack
    with state.objects.change():
        host = state.find_host(name)
        host.state = "down" if health == "down" else "up"
        host.status = "disabled" if health == "disabled" else "enabled"
        state.hosts.save(host.service_host)


def boot_server(cloud: SimulatedCloud, name: str, flavor_id: str, *, project_id: str, user_id: str) -> str:
    state = cloud.openstack
    with state.objects.change():
        if (flavor := state.flavors.get(flavor_id)) is None:
            raise LookupError(f"there is no flavor {flavor_id}")
        return state.scheduler.place(Server(name, "", project_id, user_id=user_id, flavor=flavor)).id


def add_network(cloud: SimulatedCloud, network_id: str, cidr: str) -> None:
    """Add a subnet to an external network, which is created if needed. Its addresses are not in use."""
    state = cloud.openstack
    subnet = Subnet(network_id, cidr, [], None)
    with state.objects.change():
        state.networks[network_id] = True
        state.subnets[subnet.id] = subnet


def ensure_address(cloud: SimulatedCloud, network_id: str, address: str) -> None:
    """Add a subnet with the address to the network, unless there is one."""
    state = cloud.openstack
    with state.objects.look():
        networks = [subnet.network for subnet in state.subnets.values() if subnet.network_id == network_id]
    if not any(ip_address(address) in network for network in networks):
        add_network(cloud, network_id, str(ip_network(f"{address}/24", strict=False)))


def add_storage_pool(cloud: SimulatedCloud, name: str, *, volume_type: str, total_gb: int) -> None:
    """Add a pool to which the volume type leads, together with the other pools that were added for it."""
    state = cloud.openstack
    with state.objects.change():
        state.volume_pools[name] = VolumePool(name, total_gb)
        known = next((known for known in state.volume_types.values() if known.name == volume_type), None)
        chosen = known or VolumeType(volume_type)
        chosen.pools = [pool for pool in chosen.pools or () if pool not in (FAST_POOL, SLOW_POOL)] + [name]
        state.volume_types[chosen.id] = chosen


def add_flavor(cloud: SimulatedCloud, flavor_id: str, *, name: str, vcpus: int, memory_mb: int, disk_gb: int) -> None:
    state = cloud.openstack
    with state.objects.change():
        state.flavors[flavor_id] = Flavor(flavor_id, name, vcpus, memory_mb, disk_gb)
