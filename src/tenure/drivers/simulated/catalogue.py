"""The initial content of a simulated cloud besides its hosts: flavors, networks, volume pools."""

from __future__ import annotations

from typing import Any, Final

from tenure.drivers.simulated.openstack.nova import POOL
from tenure.drivers.simulated.openstack.state import Flavor, State, Subnet, VolumePool, VolumeType

#: The external network of a simulated cloud, and an internal network.
PUBLIC_NETWORK: Final = "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0001"
PRIVATE_NETWORK: Final = "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0002"
#: The resource class of GPUs, and how many each host with ``CUSTOM_GPU_A100`` has.
GPU_CLASS: Final = "CUSTOM_GPU"
GPUS: Final = 4
#: A fast and a slow volume pool.
FAST_POOL: Final = "sim-storage@fast#nvme"
SLOW_POOL: Final = "sim-storage@slow#disk"

_GPU_SPECS: Final = {f"resources:{GPU_CLASS}": "1", "trait:CUSTOM_GPU_A100": "required"}
_FLAVORS: Final[tuple[dict[str, Any], ...]] = (
    {"id": "1", "name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1},
    {"id": "2", "name": "m1.small", "vcpus": 1, "ram": 2_048, "disk": 20},
    {"id": "3", "name": "m1.medium", "vcpus": 2, "ram": 4_096, "disk": 40},
    {"id": "4", "name": "m1.large", "vcpus": 4, "ram": 8_192, "disk": 80, "ephemeral": 20, "swap": 1_024},
    {"id": "5", "name": "g1.a100", "vcpus": 8, "ram": 65_536, "disk": 100, "extra_specs": _GPU_SPECS},
    {"id": "7", "name": "p1.small", "ram": 2_048, "disk": 20, "extra_specs": {"blazar:preemptible": "true"}},
    {"id": "6", "name": "x1.private", "vcpus": 2, "ram": 4_096, "disk": 40, "is_public": False},
)
_SUBNETS: Final = (
    Subnet(
        PUBLIC_NETWORK,
        "203.0.113.0/24",
        [("203.0.113.100", "203.0.113.199")],
        "203.0.113.1",
        "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0101",
    ),
    Subnet(
        PUBLIC_NETWORK,
        "2001:db8::/64",
        [("2001:db8::1:0", "2001:db8::ffff:ffff")],
        "2001:db8::1",
        "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0102",
    ),
    Subnet(PRIVATE_NETWORK, "10.0.0.0/24", [], None, "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0103"),
)
#: A volume type for each pool, the default first, and a type for both pools.
_VOLUME_TYPES: Final = (
    VolumeType("slow", [SLOW_POOL], id="5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0202"),
    VolumeType("fast", [FAST_POOL], id="5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0201"),
    VolumeType("any", id="5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0203"),
)


def populate(state: State) -> None:
    """Fill a new cloud with the initial content."""
    with state.objects.change():
        if state.networks:
            return
        state.add_aggregate(POOL)
        for described in _FLAVORS:
            flavor = Flavor(**{**described, "extra_specs": dict(described.get("extra_specs", {}))})
            state.flavors[flavor.id] = flavor
        state.networks[PUBLIC_NETWORK], state.networks[PRIVATE_NETWORK] = True, False
        for subnet in _SUBNETS:
            state.subnets[subnet.id] = subnet
        for pool in (VolumePool(FAST_POOL, 2_000), VolumePool(SLOW_POOL, 20_000)):
            state.volume_pools[pool.name] = pool
        for volume_type in _VOLUME_TYPES:
            state.volume_types[volume_type.id] = volume_type
