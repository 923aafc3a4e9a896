"""Volumes: the contract of types, and samples of volumes for the suites that run over all types."""

from __future__ import annotations

from types import MappingProxyType

from tenure.api.versions import Version, by_version
from tenure.resources.volume import VolumeType
from tenure.testing.types import TypeContract
from tests.support.samples import Bad, Body, InventorySamples, ParameterSamples, TypeSamples, Unfit


class TestVolumes(TypeContract):
    resource_type = VolumeType()
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


POOL = {"name": "sim-storage@slow#disk", "capacity_gb": 100}
TOO_MUCH = "The volume pool (.|\n)* has (.|\n)*; no more can be lent"
SAMPLES = TypeSamples(
    reservation={
        "resource_type": "virtual:volume",
        "amount": 1,
        "size_gb": 10,
        "volume_type": "fast",
        "at_end": "delete",
    },
    since=Version.V1_2,
    parameters=ParameterSamples(
        kinds=by_version(
            {
                "amount": "size",
                "size_gb": "size",
                "volume_type": (True, 5, "x" * 256, "a\0b", [], {}),
                "at_end": (True, 5, "", "burn", [], {}),
                "before_end": "before_end of an address",
            }
        ),
        required=by_version(("amount", "size_gb")),
        unfit=(
            Unfit("volumes", {"amount": 50}),
            Unfit("volumes", {"size_gb": 101}),
            Unfit("nope", {"volume_type": "nope"}, "volume_type", 400),
            Unfit("any", {"volume_type": "any"}, "volume_type", 400),
        ),
    ),
    inventory=InventorySamples(
        registered=({"name": "sim-storage@fast#nvme", "capacity_gb": 100},),
        registration=by_version(
            Body(
                good=POOL,
                fields={("name",): "reference", ("capacity_gb",): "size"},
                required=(("name",), ("capacity_gb",)),
                also=(
                    Bad("elsewhere", {**POOL, "name": "elsewhere@lvm#lvm"}, status=404),
                    Bad("sim-storage@fast#nvme", {**POOL, "name": "sim-storage@fast#nvme"}, status=409),
                    Bad("capacity_gb", {**POOL, "capacity_gb": 1_000_000}),
                ),
            )
        ),
        change=by_version(
            Body(
                good={"capacity_gb": 20},
                fields={("capacity_gb",): "size"},
                required=(("capacity_gb",),),
                also=(Bad("capacity_gb", {"capacity_gb": 1_000_000}),),
            )
        ),
        bad_ids=("1",),
        missing="Volume pool",
        unsorted="capacity_gb",
        refusals=(TOO_MUCH,),
        change_refusals=(TOO_MUCH,),
    ),
    refusals=(r"There is no volume type (.|\n)*", "Volumes of the type any lie in any of"),
)
