"""What a test puts into a simulated cloud, before any of it is registered with the service."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from tenure.drivers.simulated import SimulatedCloud
from tenure.drivers.simulated.catalogue import FAST_POOL, SLOW_POOL
from tenure.drivers.simulated.openstack.state import Flavor, Subnet, VolumePool, VolumeType


def add_hypervisor(
    cloud: SimulatedCloud, name: str, *, vcpus: int, memory_mb: int, local_gb: int, availability_zone: str
) -> None:
    facts = {
        "vcpus": vcpus,
        "memory_mb": memory_mb,
        "local_gb": local_gb,
        "availability_zone": availability_zone,
    }
    cloud.world.add_host(name, facts=facts, traits=())


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


def add_flavor(
    cloud: SimulatedCloud, flavor_id: str, *, name: str, vcpus: int, memory_mb: int, disk_gb: int
) -> None:
    state = cloud.openstack
    with state.objects.change():
        state.flavors[flavor_id] = Flavor(flavor_id, name, vcpus, memory_mb, disk_gb)
