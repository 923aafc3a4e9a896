"""What the hosts of a simulated cloud are like: always the same ones for the same number."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tenure.domain.capacity import Capacity
from tenure.drivers.simulated.catalogue import GPUS

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
    """A host as its cloud describes it.

    ``inventory`` is what its provider has beyond what the facts say, by resource class, under Placement's names.
    """

    name: str
    facts: Mapping[str, object]
    traits: frozenset[str]
    inventory: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def host_model(number: int) -> HostModel:
    """The host of that number, from 1: four sizes and three zones in turn.

    Every fourth has GPUs (``CUSTOM_GPU_A100``, and four of ``CUSTOM_GPU``), every tenth fast local disks
    (``CUSTOM_NVME``).
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
    return HostModel(name, facts, frozenset(traits), json.loads(GPUS) if "CUSTOM_GPU_A100" in traits else {})


#: Of which classes the facts tell the total.
_TOLD: Final = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "local_gb"}


#: What a provider has of each class, under Placement's names; what is not said is as Placement has it then.
Inventory = Mapping[str, Mapping[str, float]]
_NOTHING_MORE: Final[Inventory] = MappingProxyType({})


def capacity_of(facts: Mapping[str, object], inventory: Inventory = _NOTHING_MORE) -> Capacity:
    """How much a host offers of each class: what is there, less what is reserved, times the allocation ratio."""
    offered = {
        name: math.floor((one["total"] - one.get("reserved", 0)) * one.get("allocation_ratio", 1))
        for name, one in _complete(facts, inventory).items()
    }
    return Capacity({name: max(0, amount) for name, amount in offered.items()})


def limits_of(facts: Mapping[str, object], inventory: Inventory) -> dict[str, dict[str, int]]:
    """How much of a class is handed out at a time, where that is not any number up to all that is offered.

    As in Nova, no more than there really is, unless the inventory says so.
    """
    offered = capacity_of(facts, inventory)
    limits: dict[str, dict[str, int]] = {}
    for name, one in _complete(facts, inventory).items():
        least, most, step = one.get("min_unit", 1), one.get("max_unit", one["total"]), one.get("step_size", 1)
        if (least, step) != (1, 1) or most < offered[name]:
            limits[name] = {"min": int(least), "max": int(most), "step": int(step)}
    return limits


def _complete(facts: Mapping[str, object], inventory: Inventory) -> dict[str, dict[str, float]]:
    told: dict[str, dict[str, float]] = {
        name: {"total": amount} for name, fact in _TOLD.items() if isinstance(amount := facts.get(fact), int)
    }
    found = {name: {**told.get(name, {}), **inventory.get(name, {})} for name in sorted({*told, *inventory})}
    return {name: one for name, one in found.items() if one.get("total")}
