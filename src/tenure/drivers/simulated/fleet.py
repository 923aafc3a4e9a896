"""What the hosts of a simulated cloud are like: always the same ones for the same number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tenure.domain.capacity import Capacity

#: Sizes as they are bought: virtual CPUs, memory, local disk; sockets, cores and threads behind them.
_SIZES: Final = (
    (32, 131_072, 960, (1, 16, 2)),
    (64, 262_144, 1_920, (2, 16, 2)),
    (64, 524_288, 3_840, (2, 16, 2)),
    (128, 1_048_576, 7_680, (2, 32, 2)),
)
_ZONES: Final = ("az-1", "az-2", "az-3")
_TRAITS: Final = frozenset({"HW_CPU_X86_AVX2", "COMPUTE_NODE"})


@dataclass(frozen=True, slots=True)
class HostModel:
    """A host as its cloud describes it."""

    name: str
    facts: Mapping[str, object]
    traits: frozenset[str]


def host_model(number: int) -> HostModel:
    """The host of that number, from 1: four sizes and three zones in turn.

    Every fourth has a GPU (``CUSTOM_GPU_A100``), every tenth fast local disks (``CUSTOM_NVME``).
    """
    vcpus, memory_mb, local_gb, (sockets, cores, threads) = _SIZES[(number - 1) // 2 % len(_SIZES)]
    name = f"sim-host-{number:03d}"
    cpu_info = {
        "arch": "x86_64",
        "model": "EPYC-Milan",
        "vendor": "AMD",
        "topology": {"cells": sockets, "sockets": sockets, "cores": cores, "threads": threads},
        "features": ["avx2", "sse4.2", "svm"],
    }
    facts: dict[str, object] = {
        "vcpus": vcpus,
        "cpu_info": json.dumps(cpu_info),
        "hypervisor_type": "QEMU",
        "hypervisor_version": 8_002_002,
        "hypervisor_hostname": name,
        # Nova names the service and the hypervisor apart, and they differ wherever one has a domain name.
        "service_name": f"sim-compute-{number:03d}",
        "memory_mb": memory_mb,
        "local_gb": local_gb,
        "availability_zone": _ZONES[(number - 1) % len(_ZONES)],
    }
    traits = set(_TRAITS)
    if number % 4 == 0:
        traits.add("CUSTOM_GPU_A100")
    if number % 10 == 0:
        traits.add("CUSTOM_NVME")
    return HostModel(name, facts, frozenset(traits))


def capacity_of(facts: Mapping[str, object]) -> Capacity:
    """The inventory of a host with such facts."""
    classes = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "local_gb"}
    return Capacity({name: amount for name, fact in classes.items() if isinstance(amount := facts[fact], int)})
