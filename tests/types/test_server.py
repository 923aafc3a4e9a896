"""Servers: the contract of types, and samples of servers for the suites that run over all types."""

from __future__ import annotations

from tenure.api.versions import Version
from tenure.resources.server import ServerType
from tenure.testing.types import TypeContract
from tests.support.samples import M1_SMALL, TypeSamples

GPU = '["==", "$gpu", "a100"]'


class TestServers(TypeContract):
    resource_type = ServerType()
    requests = (
        {"server_id": "0b1c"},
        {"flavor_id": "m1.small", "at_end": "shelve"},
        {"vcpus": 1, "memory_mb": 512, "disk_gb": 0, "at_end": "snapshot", "resource_properties": GPU},
    )
    refused = (
        ({}, "server_id"),
        ({"server_id": "0b1c", "flavor_id": "m1.small"}, "server_id"),
        ({"server_id": "../0b1c"}, "server_id"),
        ({"vcpus": 1}, "server_id"),
        ({"vcpus": 0, "memory_mb": 1, "disk_gb": 1}, "vcpus"),
        ({"flavor_id": "m1.small", "in_place": True}, "server_id"),
        ({"flavor_id": "m1.small", "at_end": "burn"}, "at_end"),
    )
    changes = ({"at_end": "stop"},)
    additional = ({"availability_zone": "az1"},)
    refused_changes = (({"at_end": "burn"}, "at_end"), ({"resource_properties": "gpu"}, "properties"))
    fact = M1_SMALL | {"flavor": M1_SMALL}


SAMPLES = TypeSamples(
    reservation={"resource_type": "virtual:server", "vcpus": 1, "memory_mb": 512, "disk_gb": 1},
    since=Version.V1_2,
    refusals=(
        "Name one of these: server_id, flavor_id, or vcpus, memory_mb and disk_gb together",
        "Only a server that is there can stay in its place",
        r"Server (.|\n)* could not be found",
        r"There is no server (.|\n)*",
    ),
)
