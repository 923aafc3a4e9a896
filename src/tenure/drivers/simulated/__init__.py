"""The simulated cloud."""

from tenure.drivers.simulated.driver import SimulatedCloud
from tenure.drivers.simulated.faults import Fault, FaultKind
from tenure.drivers.simulated.state import IN_MEMORY, Effect, EffectKind
from tenure.drivers.simulated.world import (
    POOL,
    Group,
    Host,
    HostHealth,
    Image,
    ImageStatus,
    NoValidHost,
    Server,
    World,
)

__all__ = [
    "IN_MEMORY",
    "POOL",
    "Effect",
    "EffectKind",
    "Fault",
    "FaultKind",
    "Group",
    "Host",
    "HostHealth",
    "Image",
    "ImageStatus",
    "NoValidHost",
    "Server",
    "SimulatedCloud",
    "World",
]
