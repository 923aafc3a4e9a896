"""A small OpenStack on loopback, for tests of its driver."""

from tests.support.openstack.answers import Refused, Seen
from tests.support.openstack.cloud import (
    NEIGHBOUR,
    OWNER,
    OWNER_KEY,
    PASSWORD,
    POOL,
    PREFIX,
    SERVICE_PROJECT,
    SERVICE_USER,
    Aggregate,
    FakeOpenStack,
    Host,
    Server,
    paths,
)
from tests.support.openstack.flavors import Flavor
from tests.support.openstack.network import FloatingIP
from tests.support.openstack.placement import Provider

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
    "paths",
]
