"""The simulated cloud."""

from tenure.drivers.simulated.address_world import FloatingIP
from tenure.drivers.simulated.driver import SimulatedCloud
from tenure.drivers.simulated.faults import Fault, FaultKind
from tenure.drivers.simulated.instance_world import Aggregate, Flavor, NoValidHost, ServerGroup
from tenure.drivers.simulated.openstack.effects import Effect, EffectKind
from tenure.drivers.simulated.openstack.nova import POOL
from tenure.drivers.simulated.openstack.objects import IN_MEMORY
from tenure.drivers.simulated.volume_world import Volume
from tenure.drivers.simulated.world import (
    Group,
    Host,
    HostHealth,
    Image,
    ImageStatus,
    Server,
    World,
)

__all__ = [
    "IN_MEMORY",
    "POOL",
    "Aggregate",
    "Effect",
    "EffectKind",
    "Fault",
    "FaultKind",
    "Flavor",
    "FloatingIP",
    "Group",
    "Host",
    "HostHealth",
    "Image",
    "ImageStatus",
    "NoValidHost",
    "Server",
    "ServerGroup",
    "SimulatedCloud",
    "Volume",
    "World",
]
