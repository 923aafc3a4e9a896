"""Instances: the contract of types, and samples of instances for the suites that run over all types."""

from __future__ import annotations

from tenure.api.versions import by_version
from tenure.resources.instance import InstanceType
from tenure.testing.types import TypeContract
from tests.api.rig import INSTANCES
from tests.support.samples import ParameterSamples, TypeSamples, Unfit

GPU = '["==", "$gpu", "a100"]'


class TestInstances(TypeContract):
    resource_type = InstanceType()
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


SAMPLES = TypeSamples(
    reservation=INSTANCES,
    parameters=ParameterSamples(
        kinds=by_version(
            {
                "amount": "size",
                "vcpus": "size",
                "memory_mb": "size",
                "disk_gb": "disk",
                "affinity": "affinity",
                "resource_properties": "expression",
                "before_end": "before_end",
            }
        ),
        required=by_version(
            ("amount", "vcpus", "memory_mb", "disk_gb", "affinity", "resource_properties"),
            ("amount", "vcpus", "memory_mb", "disk_gb"),
        ),
        unfit=(
            Unfit("instances", {"amount": 5000}),
            Unfit("instances", {"vcpus": 4096}),
            Unfit("nothing", {"resource_properties": '["==", "$nothing", "1"]'}),
        ),
    ),
)
