"""What a server of a flavor takes of its host, as Nova asks Placement for it.

The rules are those of Nova's documentation of extra specs, and of how it makes requests to Placement from a flavor:
``resources:<class>`` replaces what the flavor's own sizes ask for, ``resources<group>:<class>`` comes from one provider
and is asked for besides, ``trait:<trait>`` and ``trait<group>:<trait>`` are required or forbidden.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tenure.domain.capacity import Capacity

_RESOURCES: Final = re.compile(r"resources([a-zA-Z0-9_-]{0,64}):([A-Z0-9_]+)")
_TRAIT: Final = re.compile(r"trait([a-zA-Z0-9_-]{0,64}):([A-Z0-9_]+)")
_MIB_PER_GIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a server takes: of each class, and in which portions a provider must have it at once."""

    amounts: Capacity
    portions: tuple[Capacity, ...]
    required: frozenset[str]
    forbidden: frozenset[str]


def footprint_of(flavor: Mapping[str, Any]) -> Footprint:
    """The footprint of a flavor.

    That has ``vcpus``, ``ram`` and ``swap`` in MiB, ``disk`` and ``ephemeral`` in GiB, and ``extra_specs``. Traits of
    groups count for the whole host: a required one must be somewhere in it, a forbidden one nowhere, so that no more is
    promised than there is. Raises ``ValueError`` for extra specs that Nova would refuse.
    """
    specs = {str(name): str(value) for name, value in dict(flavor.get("extra_specs") or {}).items()}
    groups: dict[str, dict[str, int]] = {"": _sizes(flavor, specs)}
    required: set[str] = set()
    forbidden: set[str] = set()
    for name, value in specs.items():
        if found := _RESOURCES.fullmatch(name):
            groups.setdefault(found[1], {})[found[2]] = _amount(name, value)
        elif found := _TRAIT.fullmatch(name):
            if value not in {"required", "forbidden"}:
                raise ValueError(f"{name} must be required or forbidden, not {value!r}")
            (required if value == "required" else forbidden).add(found[2])
    portions = tuple(Capacity(group) for _, group in sorted(groups.items()))
    amounts = sum(portions, Capacity())
    if not amounts:
        raise ValueError("it asks for nothing")
    return Footprint(amounts, portions, frozenset(required), frozenset(forbidden))


def _sizes(flavor: Mapping[str, Any], specs: Mapping[str, str]) -> dict[str, int]:
    """What the flavor's own sizes ask for."""
    vcpus = int(flavor["vcpus"])
    dedicated = _dedicated(vcpus, specs)
    extra = 1 if specs.get("hw:emulator_threads_policy") == "isolate" and dedicated else 0
    swap = math.ceil(int(flavor.get("swap") or 0) / _MIB_PER_GIB)
    return {
        "VCPU": vcpus - dedicated,
        "PCPU": dedicated + extra,
        "MEMORY_MB": int(flavor["ram"]),
        "DISK_GB": int(flavor.get("disk") or 0) + int(flavor.get("ephemeral") or 0) + swap,
    }


def _dedicated(vcpus: int, specs: Mapping[str, str]) -> int:
    """How many of the virtual processors have one of the host for themselves."""
    policy = specs.get("hw:cpu_policy", "shared")
    if policy == "dedicated":
        return vcpus
    if policy == "mixed":
        return min(vcpus, len(_cpus(specs.get("hw:cpu_dedicated_mask", ""), vcpus)))
    return 0


def _cpus(mask: str, vcpus: int) -> set[int]:
    """The processors that a mask such as ``0-3,^2`` names."""
    named: set[int] = set()
    excluded: set[int] = set()
    for part in filter(None, (part.strip() for part in mask.split(","))):
        body = part.removeprefix("^")
        first, _, last = body.partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or int(last or first) >= max(vcpus, 1):
            raise ValueError(f"hw:cpu_dedicated_mask is no set of its processors: {mask!r}")
        (excluded if part.startswith("^") else named).update(range(int(first), int(last or first) + 1))
    return (named or set(range(vcpus))) - excluded if mask else set()


def _amount(name: str, value: str) -> int:
    if not value.isdigit():
        raise ValueError(f"{name} must be a number, not {value!r}")
    return int(value)
