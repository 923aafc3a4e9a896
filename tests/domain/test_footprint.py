"""The footprint of a flavor: the amounts that Nova requests from Placement."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenure.domain.capacity import Capacity
from tenure.domain.footprint import footprint_of, uncounted_specs


def flavor(vcpus: int = 4, ram: int = 2048, **more: Any) -> dict[str, Any]:
    specs = more.pop("specs", {})
    return {"id": "f", "vcpus": vcpus, "ram": ram, "disk": 10, "ephemeral": 0, "swap": 0, "extra_specs": specs, **more}


@pytest.mark.parametrize(
    ("given", "amounts"),
    [
        (flavor(), {"VCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 10}),
        (flavor(ephemeral=5, swap=1025), {"VCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 17}),
        (flavor(disk=0), {"VCPU": 4, "MEMORY_MB": 2048}),
        (flavor(swap="", extra_specs=None), {"VCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 10}),
        (flavor(specs={"hw:cpu_policy": "dedicated"}), {"PCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 10}),
        (
            flavor(specs={"hw:cpu_policy": "dedicated", "hw:emulator_threads_policy": "isolate"}),
            {"PCPU": 5, "MEMORY_MB": 2048, "DISK_GB": 10},
        ),
        (
            flavor(specs={"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-2,^1"}),
            {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 10},
        ),
        (
            flavor(specs={"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "^0"}),
            {"VCPU": 1, "PCPU": 3, "MEMORY_MB": 2048, "DISK_GB": 10},
        ),
        # Bare metal: the class of the node in place of sizes.
        (
            flavor(
                specs={
                    "resources:VCPU": "0",
                    "resources:MEMORY_MB": "0",
                    "resources:DISK_GB": "0",
                    "resources:CUSTOM_BAREMETAL_GOLD": "1",
                }
            ),
            {"CUSTOM_BAREMETAL_GOLD": 1},
        ),
        (
            flavor(specs={"resources:VGPU": "1", "resources1:VGPU": "2", "resources_NET:CUSTOM_BW": "100"}),
            {"VCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 10, "VGPU": 3, "CUSTOM_BW": 100},
        ),
        # What is asked for by extra specs, wherever, stands for the flavor's own size.
        (flavor(specs={"resources:PCPU": "4"}), {"PCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 10}),
        (
            flavor(specs={"resources:PCPU": "2", "resources:VCPU": "2"}),
            {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 10},
        ),
        (
            flavor(specs={"resources1:VCPU": "2", "resources2:VCPU": "2", "resources1:MEMORY_MB": "512"}),
            {"VCPU": 4, "MEMORY_MB": 512, "DISK_GB": 10},
        ),
        (flavor(specs={"resources1:DISK_GB": "0"}), {"VCPU": 4, "MEMORY_MB": 2048}),
        (
            flavor(specs={"hw:mem_encryption": "True", "hw:pmem": "6GB,6GB,SMALL"}),
            {
                "VCPU": 4,
                "MEMORY_MB": 2048,
                "DISK_GB": 10,
                "MEM_ENCRYPTION_CONTEXT": 1,
                "CUSTOM_PMEM_NAMESPACE_6GB": 2,
                "CUSTOM_PMEM_NAMESPACE_SMALL": 1,
            },
        ),
        (
            flavor(specs={"hw:mem_page_size": "large", "hw_rng:allowed": "true"}),
            {"VCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 10},
        ),
    ],
)
def test_amounts_are_summed_over_groups(given: dict[str, Any], amounts: dict[str, int]):
    assert footprint_of(given).amounts == Capacity(amounts)


def test_portions_of_one_provider_are_kept_apart():
    found = footprint_of(flavor(specs={"resources1:VGPU": "2", "resources2:VGPU": "1"}))
    assert set(found.portions) == {
        Capacity({"VCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 10}),
        Capacity({"VGPU": 2}),
        Capacity({"VGPU": 1}),
    }


def test_traits_are_required_or_forbidden():
    specs = {"trait:HW_AVX": "required", "trait1:CUSTOM_FAST": "required", "trait:CUSTOM_WET": "forbidden"}
    found = footprint_of(flavor(specs=specs))
    assert found.required == {"HW_AVX", "CUSTOM_FAST"}
    assert found.forbidden == {"CUSTOM_WET"}


def test_a_group_is_counted_where_all_providers_of_its_class_have_its_traits():
    specs = {"resources1:VGPU": "1", "trait1:CUSTOM_FAST": "required", "trait1:CUSTOM_SLOW": "forbidden"}
    conditions = footprint_of(flavor(specs=specs)).conditions

    def holds(**foreign: list[str]) -> bool:
        said = {name: dict.fromkeys(traits, 1) for name, traits in foreign.items()}
        return conditions.matches({"foreign_traits": json.dumps(said)})

    assert conditions.matches({})  # a host with a single provider
    assert holds(VCPU=["CUSTOM_FAST"], VGPU=["HW_AVX"])
    assert not holds(VGPU=["CUSTOM_FAST"])


def test_a_trait_without_a_group_is_one_of_a_provider_that_gives_something():
    conditions = footprint_of(flavor(specs={"trait:HW_AVX": "required"})).conditions
    everywhere = {name: {"HW_AVX": 1} for name in ("VCPU", "MEMORY_MB", "DISK_GB")}
    assert not conditions.matches({"foreign_traits": json.dumps(everywhere)})
    assert conditions.matches({"foreign_traits": json.dumps({**everywhere, "DISK_GB": {}})})


@pytest.mark.parametrize(
    ("policy", "required", "forbidden"),
    [
        ("require", {"HW_CPU_HYPERTHREADING"}, set()),
        ("isolate", set(), {"HW_CPU_HYPERTHREADING"}),
        ("prefer", set(), set()),
    ],
)
def test_thread_policy_becomes_a_trait(policy: str, required: set[str], forbidden: set[str]):
    found = footprint_of(flavor(specs={"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": policy}))
    assert (found.required, found.forbidden) == (required, forbidden)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"trait:HW_AVX": "maybe"}, "trait:HW_AVX must be required or forbidden, not 'maybe'"),
        ({"resources:VGPU": "some"}, "resources:VGPU must be a number, not 'some'"),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-9"}, "hw:cpu_dedicated_mask"),
        ({f"resources:{name}": "0" for name in ("VCPU", "MEMORY_MB", "DISK_GB")}, "it asks for nothing"),
    ],
)
def test_extra_specs_that_nova_refuses_are_refused(specs: dict[str, str], words: str):
    with pytest.raises(ValueError, match=words):
        footprint_of(flavor(specs=specs))


@pytest.mark.parametrize(
    "specs",
    [
        {"pci_passthrough:alias": "a1:2"},
        {"accel:device_profile": "fpga"},
        {"hw:numa_nodes": "2"},
        {"hw:numa_cpus.0": "0,1"},
        {"hw:numa_mem.1": "512"},
        {"hw:mem_page_size": "large"},
        {"hw:pci_numa_affinity_policy": "required"},
        {"hw:tpm_version": "2.0"},
        {"hw:viommu_model": "intel"},
        {"hw:maxphysaddr_mode": "emulate"},
        {"hw:virtio_packed_ring": "true"},
        {"os:secure_boot": "required"},
        {"capabilities:free_ram_mb": ">= 1024"},
        {"capabilities:boot_mode": "uefi"},
        {"aggregate_instance_extra_specs:reservation": "r-1"},
        {"gpu_model": "a100"},  # as capabilities:gpu_model
        {"resources:SRIOV_NET_VF": "1"},
        {"resources:NET_BW_EGR_KILOBIT_PER_SEC": "1"},
        {"resources1:PGPU": "1", "resources1:VCPU": "1", "trait1:CUSTOM_FAST": "required"},
        {"trait2:CUSTOM_FAST": "required"},
        {"resources3:VGPU": "0"},
        {"group_policy": "isolate"},
        {"same_subtree": "_A,_B"},
    ],
    ids=lambda specs: next(iter(specs)),
)
def test_extra_specs_that_are_not_counted_are_named(specs: dict[str, str]):
    assert uncounted_specs(flavor(specs={**specs, "hw:cpu_policy": "dedicated"})) == tuple(specs)


def test_all_other_extra_specs_are_counted_or_choose_no_host():
    specs = {
        "hw:cpu_policy": "dedicated",
        "hw:cpu_thread_policy": "require",
        "hw:emulator_threads_policy": "isolate",
        "hw:mem_encryption": "true",
        "hw:pmem": "6GB",
        "hw:cpu_sockets": "2",
        "hw:watchdog_action": "reset",
        "hw:maxphysaddr_bits": "42",
        "capabilities:cpu_info:features": "<in> aes",
        "aggregate_instance_extra_specs:ssd": "true",
        "hypervisor_type": "QEMU",
        "hw:virtio_packed_ring": "false",
        "hw_rng:allowed": "true",
        "os:secure_boot": "optional",
        "quota:disk_read_iops_sec": "100",
        "resources:CUSTOM_GPU": "1",
        "resources:VCPU": "0",
        "resources:VGPU": "1",
        "resources1:PGPU": "1",
        "trait1:CUSTOM_GPU_A100": "required",
        "resources_NET:CUSTOM_BW": "100",
        "group_policy": "none",
        "hw:numa_nodes": "1",
        "trait:CUSTOM_GPU_A100": "required",
        "blazar:preemptible": "false",
        "hide_hypervisor_id": "true",
    }
    assert uncounted_specs(flavor(specs=specs)) == ()
    assert uncounted_specs(flavor(extra_specs=None)) == ()
