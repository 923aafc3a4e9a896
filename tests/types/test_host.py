"""Hosts: the contract of types, and samples of hosts for the suites that run over all types."""

from __future__ import annotations

from tenure.api.versions import by_version
from tenure.resources.host import HostType
from tenure.testing.types import TypeContract
from tests.api.rig import HOSTS
from tests.support.samples import Bad, Body, InventorySamples, ParameterSamples, TypeSamples, Unfit

GPU = '["==", "$gpu", "a100"]'


class TestHosts(TypeContract):
    resource_type = HostType()
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


SAMPLES = TypeSamples(
    reservation=HOSTS,
    parameters=ParameterSamples(
        kinds=by_version(
            {
                "min": "count",
                "max": "count",
                "hypervisor_properties": "expression",
                "resource_properties": "expression",
                "before_end": "before_end",
            }
        ),
        required=by_version(("min", "max", "hypervisor_properties", "resource_properties"), ("min", "max")),
        unfit=(
            Unfit("hosts", {"min": 5, "max": 5}),
            Unfit("min/max", {"min": 2, "max": 1}, "", 400),
        ),
    ),
    inventory=InventorySamples(
        prepare=lambda world: world.add_host("extra-1"),
        registration=by_version(
            Body(
                good={"name": "extra-1", "gpu": "a100"},
                fields={("name",): "reference", ("id",): "reference", ("gpu",): "property"},
                closed=(),
                also=(
                    Bad("host", {}, status=403),
                    Bad("host", {"name": None, "id": ""}, status=403),
                    Bad("nope", {"name": "nope"}, status=404),
                    Bad("sim-host-001", {"name": "sim-host-001"}, status=409),
                    Bad("key too long", {"name": "extra-1", "k" * 65: "v"}),
                    Bad("name", {"name": "extra-1", "": "v"}),
                ),
            ),
            Body(
                good={"name": "extra-1", "properties": {"gpu": "a100"}},
                fields={("name",): "reference", ("properties",): "properties", ("properties", "gpu"): "property"},
                required=(("name",),),
                also=(
                    Bad("name", {"name": "extra-1", "id": "9"}),
                    Bad("id", {"id": 9}),
                    Bad("id", {"id": ""}),
                    Bad("nope", {"name": "nope"}, status=404),
                    Bad("sim-host-001", {"name": "sim-host-001"}, status=409),
                    Bad("properties.gpu", {"name": "extra-1", "properties": {"gpu": None}}),
                    Bad(f"properties.{'k' * 65}", {"name": "extra-1", "properties": {"k" * 65: "v"}}),
                    Bad("properties.", {"name": "extra-1", "properties": {"": "v"}}),
                    Bad("properties.vcpus", {"name": "extra-1", "properties": {"vcpus": "v"}}),
                ),
            ),
        ),
        change=by_version(
            Body(
                good={"gpu": "a100"},
                fields={("gpu",): "property"},
                closed=(),
                also=(
                    Bad("update", {}),
                    Bad("key too long", {"k" * 65: "v"}),
                    *(
                        Bad(name, {name: "4"})
                        for name in ("id", "vcpus", "reservable", "created_at", "trust_id", "properties")
                    ),
                ),
            ),
            Body(
                good={"properties": {"gpu": "a100"}},
                fields={("properties",): "properties", ("properties", "gpu"): "property"},
                required=(("properties",),),
                also=(
                    Bad("properties", {"properties": {}}),
                    Bad(f"properties.{'k' * 65}", {"properties": {"k" * 65: None}}),
                    Bad("properties.", {"properties": {"": "v"}}),
                    Bad("properties.trust_id", {"properties": {"trust_id": "v"}}),
                ),
            ),
        ),
        property_name="rack",
        bad_ids=("999", "-1", "1" + "0" * 30, "sim-host-001", "9" * 256),
        missing="host_id",
        unsorted="vcpus",
    ),
    refusals=(
        "Invalid values for min/max of hosts",
        r"(.|\n)*: it is no condition on hosts: these are properties, ",
        r"(.|\n)* is an operator without a value",
        r"(.|\n)* is no number",
        r"(.|\n)*: a trait is required or forbidden, and not ",
        r"(.|\n)* is no trait: the names of traits have ",
    ),
)
