"""The simulated cloud."""

from tenure.drivers.simulated.driver import SimulatedCloud
from tenure.drivers.simulated.faults import Fault, FaultKind
from tenure.drivers.simulated.openstack.effects import Effect, EffectKind
from tenure.drivers.simulated.openstack.nova import POOL
from tenure.drivers.simulated.openstack.objects import IN_MEMORY

__all__ = ["IN_MEMORY", "POOL", "Effect", "EffectKind", "Fault", "FaultKind", "SimulatedCloud"]
