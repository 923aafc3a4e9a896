"""The simulated cloud as tests look at it and change it: what its users and operators do beside Tenure."""

from tests.support.simulated.addresses import AddressWorld, FloatingIP
from tests.support.simulated.cloud import SimulatedCloud
from tests.support.simulated.instances import Aggregate, Flavor, InstanceWorld, NoValidHost, ServerGroup
from tests.support.simulated.volumes import Volume, VolumeWorld
from tests.support.simulated.world import Group, Host, HostHealth, Image, ImageStatus, Server, World

__all__ = [
    "AddressWorld",
    "Aggregate",
    "Flavor",
    "FloatingIP",
    "Group",
    "Host",
    "HostHealth",
    "Image",
    "ImageStatus",
    "InstanceWorld",
    "NoValidHost",
    "Server",
    "ServerGroup",
    "SimulatedCloud",
    "Volume",
    "VolumeWorld",
    "World",
]
