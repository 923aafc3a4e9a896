"""What a server of a flavor takes of its host, as Nova asks Placement for it.

The rules are those of Nova's documentation of extra specs, and of how it makes requests to Placement from a flavor:
``resources:<class>`` and ``resources<group>:<class>`` ask for what they name, that of a group from one provider;
``trait:<trait>`` and ``trait<group>:<trait>`` are required or forbidden. The flavor's own sizes stand for what no extra
spec names; its processors only where neither shared nor dedicated ones are named.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tenure.domain.capacity import Capacity

_RESOURCES: Final = re.compile(r"resources([a-zA-Z0-9_-]{0,64}):([A-Z0-9_]+)")
_TRAIT: Final = re.compile(r"trait([a-zA-Z0-9_-]{0,64}):([A-Z0-9_]+)")
_MIB_PER_GIB: Final = 1024
_TRUE: Final = frozenset({"1", "t", "true", "on", "y", "yes"})
#: What the way of sharing a processor's threads means for a host.
_THREADS: Final = {"require": "required", "isolate": "forbidden"}
_HYPERTHREADING: Final = "HW_CPU_HYPERTHREADING"


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
    groups: dict[str, dict[str, int]] = {"": {}}
    traits: dict[str, set[str]] = {"required": set(), "forbidden": set()}
    for name, value in specs.items():
        if found := _RESOURCES.fullmatch(name):
            groups.setdefault(found[1], {})[found[2]] = _amount(name, value)
        elif found := _TRAIT.fullmatch(name):
            if value not in traits:
                raise ValueError(f"{name} must be required or forbidden, not {value!r}")
            traits[value].add(found[2])
    if (threads := specs.get("hw:cpu_thread_policy")) in _THREADS:
        traits[_THREADS[threads]].add(_HYPERTHREADING)
    groups[""] |= _pinned(int(flavor["vcpus"]), specs)
    named = {name for group in groups.values() for name in group}
    groups[""] |= {name: amount for name, amount in _sizes(flavor, named).items() if name not in named}
    groups[""] |= _implied(specs)
    portions = tuple(Capacity(group) for _, group in sorted(groups.items()))
    amounts = sum(portions, Capacity())
    if not amounts:
        raise ValueError("it asks for nothing")
    return Footprint(amounts, portions, frozenset(traits["required"]), frozenset(traits["forbidden"]))


def _sizes(flavor: Mapping[str, Any], named: Collection[str]) -> dict[str, int]:
    """What the flavor's own sizes ask for, where these classes are named already."""
    swap = math.ceil(int(flavor.get("swap") or 0) / _MIB_PER_GIB)
    sizes = {
        "MEMORY_MB": int(flavor["ram"]),
        "DISK_GB": int(flavor.get("disk") or 0) + int(flavor.get("ephemeral") or 0) + swap,
    }
    return sizes if "PCPU" in named else {"VCPU": int(flavor["vcpus"]), **sizes}


def _pinned(vcpus: int, specs: Mapping[str, str]) -> dict[str, int]:
    """What its processors ask for where some of them have one of the host for themselves; nothing where none has."""
    extra = 1 if specs.get("hw:emulator_threads_policy") == "isolate" else 0
    match specs.get("hw:cpu_policy"):
        case "dedicated":
            return {"PCPU": vcpus + extra}
        case "mixed":
            dedicated = min(vcpus, len(_cpus(specs.get("hw:cpu_dedicated_mask", ""), vcpus)))
            return {"VCPU": vcpus - dedicated, "PCPU": dedicated + extra}
        case _:
            return {}


def _implied(specs: Mapping[str, str]) -> dict[str, int]:
    """What other extra specs ask for: encrypted memory, and namespaces of persistent memory."""
    spaces = filter(None, (label.strip() for label in specs.get("hw:pmem", "").split(",")))
    implied = Counter(f"CUSTOM_PMEM_NAMESPACE_{re.sub('[^A-Z0-9]+', '_', label.upper())}" for label in spaces)
    if specs.get("hw:mem_encryption", "").strip().lower() in _TRUE:
        implied["MEM_ENCRYPTION_CONTEXT"] = 1
    return dict(implied)


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
    if not (value.isascii() and value.isdigit()):
        raise ValueError(f"{name} must be a number, not {value!r}")
    return int(value)
