"""The simulated cloud."""

from tenure.drivers.simulated.address_world import FloatingIP
from tenure.drivers.simulated.driver import SimulatedCloud
from tenure.drivers.simulated.faults import Fault, FaultKind
from tenure.drivers.simulated.instance_world import Aggregate, Flavor, ServerGroup
from tenure.drivers.simulated.places import NoValidHost
from tenure.drivers.simulated.state import IN_MEMORY, Effect, EffectKind
from tenure.drivers.simulated.volume_world import Volume
from tenure.drivers.simulated.world import (
    POOL,
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
