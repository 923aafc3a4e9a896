"""A small OpenStack on loopback, for tests of its driver."""

from tenure.drivers.simulated.openstack.service import Refused
from tenure.drivers.simulated.openstack.state import (
    Aggregate,
    Flavor,
    FloatingIP,
    Host,
    Provider,
    Server,
    ServerGroup,
    VolumeType,
    inventory,
)
from tests.support.openstack.answers import Seen
from tests.support.openstack.cloud import (
    NEIGHBOUR,
    OWNER,
    OWNER_KEY,
    PASSWORD,
    POOL,
    PREFIX,
    SERVICE_PROJECT,
    SERVICE_USER,
    FakeOpenStack,
    paths,
)

__all__ = [
    "NEIGHBOUR",
    "OWNER",
    "OWNER_KEY",
    "PASSWORD",
    "POOL",
    "PREFIX",
    "SERVICE_PROJECT",
    "SERVICE_USER",
    "Aggregate",
    "FakeOpenStack",
    "Flavor",
    "FloatingIP",
    "Host",
    "Provider",
    "Refused",
    "Seen",
    "Server",
    "ServerGroup",
    "VolumeType",
    "inventory",
    "paths",
]
