"""The resource types that are installed with Tenure keep the contract of types."""

from __future__ import annotations

from types import MappingProxyType

from tenure.resources.contract import Wanted, load_types
from tenure.resources.flavor import FlavorType
from tenure.resources.floatingip import FloatingIPType
from tenure.resources.host import HostType
from tenure.resources.instance import InstanceType
from tenure.resources.server import ServerType
from tenure.resources.volume import VolumeType
from tenure.testing.types import TypeContract

M1_SMALL = {
    "id": "m1.small",
    "name": "m1.small",
    "vcpus": 2,
    "ram": 1024,
    "swap": 0,
    "disk": 10,
    "ephemeral": 0,
    "extra_specs": {},
}
GPU = '["==", "$gpu", "a100"]'


class TestHosts(TypeContract):
    kind = HostType()
    requests = (
        {"min": 2, "max": 4},
        {"min": 1, "max": 1, "hypervisor_properties": '[">=", "$vcpus", "64"]', "resource_properties": GPU},
        {"min": 1, "max": 1, "before_end": "snapshot"},
    )
    refused = (
        ({"min": 0, "max": 1}, "min"),
        ({"min": 3, "max": 2}, "min/max"),
        ({"min": 1, "max": 2**31}, "max"),
        ({"min": "1", "max": 1}, "min"),
        ({"min": 1}, "max"),
        ({"min": 1, "max": 1, "before_end": "dance"}, "before_end"),
        ({"min": 1, "max": 1, "resource_properties": "["}, "resource_properties"),
    )
    changes = ({"max": 5}, {"min": 1}, {"resource_properties": GPU}, {"before_end": "notify"})
    refused_changes = (({"min": 5}, "min/max"), ({"max": 0}, "max"), ({"resource_properties": "gpu"}, "properties"))
    additional = ({"availability_zone": "az1"}, {"extra_specs": {"capabilities:gpu": "a100"}}, {"memory_mb": 4096})


class TestInstances(TypeContract):
    kind = InstanceType()
    requests = (
        {"amount": 3, "vcpus": 2, "memory_mb": 4096, "disk_gb": 20},
        {"amount": 1, "vcpus": 1, "memory_mb": 1, "disk_gb": 0, "affinity": True, "resource_properties": GPU},
        {"amount": 2, "vcpus": 1, "memory_mb": 1, "disk_gb": 1, "affinity": False, "before_end": "snapshot"},
    )
    refused = (
        ({"amount": 0, "vcpus": 1, "memory_mb": 1, "disk_gb": 1}, "amount"),
        ({"amount": 1, "vcpus": 0, "memory_mb": 1, "disk_gb": 1}, "vcpus"),
        ({"amount": 1, "vcpus": 1, "memory_mb": 2**31, "disk_gb": 1}, "memory_mb"),
        ({"amount": 1, "vcpus": 1, "memory_mb": 1, "disk_gb": -1}, "disk_gb"),
        ({"amount": 1, "vcpus": 1, "memory_mb": 1, "disk_gb": 1, "affinity": "yes"}, "affinity"),
    )
    changes = ({"amount": 4}, {"vcpus": 8, "memory_mb": 1024}, {"affinity": True}, {"resource_properties": GPU})
    refused_changes = (({"amount": 0}, "amount"), ({"resource_properties": "gpu"}, "properties"))
    additional = ({"availability_zone": "az1"}, {"extra_specs": {"gpu": "<or> a100 <or> h100"}})


class TestFlavors(TypeContract):
    kind = FlavorType()
    requests = (
        {"flavor_id": "m1.small", "amount": 3},
        {"flavor_id": "m1.small", "amount": 1, "affinity": True, "before_end": "notify"},
    )
    refused = (
        ({"flavor_id": "", "amount": 1}, "flavor_id"),
        ({"flavor_id": 3, "amount": 1}, "flavor_id"),
        ({"flavor_id": "m1.small", "amount": 0}, "amount"),
        ({"amount": 1}, "flavor_id"),
    )
    changes = ({"amount": 4}, {"affinity": False}, {"flavor_id": "m1.large"})
    additional = ({"availability_zone": "az1"},)
    refused_changes = (({"amount": 0}, "amount"), ({"flavor_id": ""}, "flavor_id"))
    fact = M1_SMALL

    def test_only_another_flavor_is_looked_up_again(self):
        current = self.parameters(self.requests[0])
        grown = self.kind.merge(current, self.change({"amount": 4}), running=False)
        assert self.kind.wanted(grown) is None
        other = self.kind.merge(current, self.change({"flavor_id": "m1.large"}), running=False)
        assert self.kind.wanted(other) == Wanted("flavor", "m1.large", "flavor_id")


class TestServers(TypeContract):
    kind = ServerType()
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


class TestFloatingIPs(TypeContract):
    kind = FloatingIPType()
    requests = (
        {"network_id": "public", "amount": 3},
        {"network_id": "public", "amount": 2, "required_floatingips": ["203.0.113.10", "2001:db8::10"]},
        {"network_id": "public", "amount": 1, "before_end": "notify"},
    )
    refused = (
        ({"network_id": "", "amount": 1}, "network_id"),
        ({"network_id": "public", "amount": 0}, "amount"),
        ({"network_id": "public", "amount": 1, "required_floatingips": ["203.0.113.300"]}, "required_floatingips"),
        ({"network_id": "public", "amount": 1, "required_floatingips": ["203.0.113.1"] * 2}, "required_floatingips"),
        (
            {"network_id": "public", "amount": 1, "required_floatingips": ["203.0.113.1", "203.0.113.2"]},
            "required_floatingips",
        ),
        ({"network_id": "public", "amount": 1, "before_end": "snapshot"}, "before_end"),
    )
    changes = ({"amount": 4}, {"before_end": "notify"})
    refused_changes = (({"network_id": "private"}, "network_id"), ({"amount": 0}, "amount"))


class TestVolumes(TypeContract):
    kind = VolumeType()
    requests = (
        {"amount": 2, "size_gb": 100, "volume_type": "fast"},
        {"amount": 1, "size_gb": 1, "at_end": "keep", "before_end": "notify"},
        {"amount": 3, "size_gb": 20, "at_end": "snapshot"},
    )
    refused = (
        ({"amount": 0, "size_gb": 1}, "amount"),
        ({"amount": 1, "size_gb": 2**31}, "size_gb"),
        ({"amount": 1}, "size_gb"),
        ({"amount": 1, "size_gb": 1, "volume_type": 7}, "volume_type"),
        ({"amount": 1, "size_gb": 1, "at_end": "burn"}, "at_end"),
        ({"amount": 1, "size_gb": 1, "before_end": "snapshot"}, "before_end"),
    )
    changes = ({"amount": 4}, {"size_gb": 5}, {"volume_type": "slow"}, {"at_end": "snapshot"}, {"before_end": "none"})
    refused_changes = (({"amount": 0}, "amount"), ({"at_end": "burn"}, "at_end"))
    fact = MappingProxyType({"id": "1", "name": "fast", "pools": ["storage-1@lvm#lvm"]})


def test_every_resource_type_is_tested():
    held_here = {kind.kind.name for kind in TypeContract.__subclasses__() if kind.__module__ == __name__}
    assert {kind.name for kind in load_types()} == held_here
