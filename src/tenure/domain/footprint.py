"""The resources that a server of a flavor takes from its host, as Nova requests them from Placement.

The rules follow Nova's documentation of extra specs, and its conversion of flavors into requests to Placement.
``resources:<class>`` and ``resources<group>:<class>`` request the named amounts. All of a group comes from one provider
of the host, which has the group's traits; without a group, each class comes from one provider, and these have the
traits together. ``trait:<trait>`` and ``trait<group>:<trait>`` are required or forbidden. The flavor's own sizes apply
to the classes that no extra spec names. Its number of processors applies only if neither shared nor dedicated ones are
named.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from tenure.domain.capacity import Capacity
from tenure.domain.extra_specs import DEVICE_SPECS, HYPERTHREADING, THREAD_POLICIES, is_undecided
from tenure.domain.requirement import AnyOf, Comparison, Expression, Not, Term

_RESOURCES: Final = re.compile(r"resources([a-zA-Z0-9_-]{0,64}):([A-Z0-9_]+)")
_TRAIT: Final = re.compile(r"trait([a-zA-Z0-9_-]{0,64}):([A-Z0-9_]+)")
_MIB_PER_GIB: Final = 1024
#: The fields of a flavor's description for its devices: the groups that Nova requests for them, written as extra specs,
#: and why those of an extra spec are not counted, by its name.
DEVICE_GROUPS: Final = "device_groups"
UNCOUNTED: Final = "uncounted"
#: The property of hosts with several providers: the JSON text of the traits that not all providers of a class have.
FOREIGN_TRAITS: Final = "foreign_traits"
_TRUE: Final = frozenset({"1", "t", "true", "on", "y", "yes"})
_Amounts = dict[str, dict[str, int]]
_Traits = dict[str, dict[str, set[str]]]
#: The groups of classes and traits, and what is said of all groups.
_GROUPED: Final = re.compile(r"(resources|trait)([a-zA-Z0-9_-]{1,64}):.*")
#: Extra specs that take devices or memory of a kind, or choose among hosts, by means that no amount or trait shows.
#: Those that choose hosts by what is known of them are conditions: ``extra_specs``.
_UNCOUNTED: Final = re.compile(
    r"""
    pci_passthrough:.* | accel:.*
    | hw:(numa_cpus\.\d+ | numa_mem\.\d+ | mem_page_size | pci_numa_affinity_policy)
    | hw:(tpm_version | tpm_model | viommu_model | maxphysaddr_mode | sound_model | usb_model)
    | resources[a-zA-Z0-9_-]{0,64}:(SRIOV_NET_VF | NUMA_.* | NET_.*)
    | same_subtree[a-zA-Z0-9_-]*
    """,
    re.VERBOSE,
)
#: Extra specs that choose among hosts if they have a value that means yes.
_UNCOUNTED_IF_TRUE: Final = frozenset({"hw:virtio_packed_ring", "hw:ephemeral_encryption"})
#: Extra specs that are counted for one value only.
_COUNTED_AS: Final[Mapping[str, str]] = MappingProxyType({"hw:numa_nodes": "1", "group_policy": "none"})
#: Names without a scope, which Nova compares with capabilities of hosts, but for this one.
_NO_CAPABILITY: Final = frozenset({"hide_hypervisor_id"})


@dataclass(frozen=True, slots=True)
class Group:
    """Amounts that are requested together, with the traits that providers of them must have, or not have."""

    amounts: Capacity
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Footprint:
    """The amounts that a server takes: each class of ``common`` from one provider, each of the groups from one."""

    common: Group
    groups: tuple[Group, ...] = ()

    @property
    def amounts(self) -> Capacity:
        return sum(self.portions, Capacity())

    @property
    def portions(self) -> tuple[Capacity, ...]:
        """The amounts of each group; the cloud limits each of them."""
        return tuple(group.amounts for group in self._all)

    @property
    def required(self) -> frozenset[str]:
        return frozenset(trait for group in self._all for trait in group.required)

    @property
    def forbidden(self) -> frozenset[str]:
        return frozenset(trait for group in self._all for trait in group.forbidden)

    @property
    def conditions(self) -> Expression:
        """The conditions on hosts with several providers, beside ``required`` and ``forbidden`` traits of the host.

        A group is counted on a host if all providers of its class have the traits that it requires; otherwise the sum
        over the providers would count those without. The traits of ``common`` must be where one of its classes is.
        """
        terms: list[Term] = [
            _is_with(resource_class, trait)
            for group in self.groups
            for trait in sorted(group.required)
            for resource_class in group.amounts
        ]
        terms += [
            AnyOf(tuple(Expression((_is_with(resource_class, trait),)) for resource_class in self.common.amounts))
            for trait in sorted(self.common.required)
        ]
        return Expression(tuple(terms))

    @property
    def _all(self) -> tuple[Group, ...]:
        return (self.common, *self.groups)


def footprint_of(flavor: Mapping[str, Any]) -> Footprint:
    """Return the footprint of a flavor.

    The flavor has ``vcpus``, ``ram`` and ``swap`` in MiB, ``disk`` and ``ephemeral`` in GiB, and ``extra_specs``; if
    these name devices, ``device_groups`` are the groups of the devices. Raises ``ValueError`` for extra specs that Nova
    would refuse.
    """
    specs = {str(name): str(value) for name, value in dict(flavor.get("extra_specs") or {}).items()}
    amounts, traits = _grouped(specs)
    if (threads := specs.get("hw:cpu_thread_policy", "")) in THREAD_POLICIES:
        traits[THREAD_POLICIES[threads]][""].add(HYPERTHREADING)
    amounts[""] |= _pinned_cpus(int(flavor["vcpus"]), specs)
    named = {name for group in amounts.values() for name in group}
    amounts[""] |= {name: amount for name, amount in _own_sizes(flavor, named).items() if name not in named}
    amounts[""] |= _implied_amounts(specs)
    common, *groups = _groups(amounts, traits)
    groups += _groups(*_grouped(dict(flavor.get(DEVICE_GROUPS) or {})))[1:]  # all of them have suffixes
    found = Footprint(common, tuple(groups))
    if not found.amounts:
        raise ValueError("it asks for nothing")
    return found


def _grouped(specs: Mapping[str, str]) -> tuple[_Amounts, _Traits]:
    """Return the amounts of each group by its suffix, and the traits by what is said of them."""
    amounts: _Amounts = {"": {}}
    traits: _Traits = {"required": defaultdict(set), "forbidden": defaultdict(set)}
    for name, value in specs.items():
        if match := _RESOURCES.fullmatch(name):
            amounts.setdefault(match[1], {})[match[2]] = _amount(name, value)
        elif match := _TRAIT.fullmatch(name):
            if value not in traits:
                raise ValueError(f"{name} must be required or forbidden, not {value!r}")
            traits[value][match[1]].add(match[2])
    return amounts, traits


def _groups(amounts: _Amounts, traits: _Traits) -> list[Group]:
    """Return the groups, first the one without a suffix."""
    required, forbidden = traits["required"], traits["forbidden"]
    return [
        Group(Capacity(amounts.get(suffix, {})), frozenset(required[suffix]), frozenset(forbidden[suffix]))
        for suffix in sorted(amounts.keys() | required.keys() | forbidden.keys())
    ]


def specs_of_size(resources: Mapping[str, int], extra_specs: Mapping[str, str]) -> dict[str, str]:
    """Return the extra specs of a flavor of a given size whose servers take these amounts, too.

    Of the extra specs of a request it has the traits: they are about what gives these amounts.
    """
    traits = {name: value for name, value in extra_specs.items() if _TRAIT.fullmatch(name)}
    return {**{f"resources:{name}": str(amount) for name, amount in resources.items()}, **traits}


def uncounted_specs(flavor: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a flavor's extra specs whose demands neither a footprint nor its conditions have, sorted.

    More could be promised of such a flavor than there is: devices whose groups are not known, pages of memory, NUMA
    nodes, groups of other than one class, groups from different providers, and hosts that only Nova's filters can tell.
    """
    specs = {str(name): str(value).strip().lower() for name, value in dict(flavor.get("extra_specs") or {}).items()}
    known: frozenset[str] = frozenset()
    if DEVICE_GROUPS in flavor:
        known = frozenset(DEVICE_SPECS) - dict(flavor.get(UNCOUNTED) or {}).keys()
    grouped = {name: match for name in specs if (match := _GROUPED.fullmatch(name))}
    classes = Counter(match[2] for name, match in grouped.items() if match[1] == "resources" and specs[name] != "0")
    mixed = {name for name, match in grouped.items() if classes[match[2]] != 1}
    return tuple(sorted((mixed | {name for name, value in specs.items() if _is_uncounted(name, value)}) - known))


def _is_uncounted(name: str, value: str) -> bool:
    if name in _UNCOUNTED_IF_TRUE:
        return value in _TRUE
    if name in _COUNTED_AS:
        return value != _COUNTED_AS[name]
    if name == "os:secure_boot":
        return value == "required"
    if _UNCOUNTED.fullmatch(name):
        return True
    return is_undecided(name) and name not in _NO_CAPABILITY


def _is_with(resource_class: str, trait: str) -> Term:
    """Return the condition that all of a host's providers of the class have the trait, if one of them has it."""
    return Not(Expression((Comparison("s==", f"{FOREIGN_TRAITS}:{resource_class}:{trait}", "1"),)))


def _own_sizes(flavor: Mapping[str, Any], named: Collection[str]) -> dict[str, int]:
    """Return the amounts of the flavor's own sizes; ``named`` are the classes that extra specs name."""
    swap = math.ceil(int(flavor.get("swap") or 0) / _MIB_PER_GIB)
    sizes = {
        "MEMORY_MB": int(flavor["ram"]),
        "DISK_GB": int(flavor.get("disk") or 0) + int(flavor.get("ephemeral") or 0) + swap,
    }
    return sizes if "PCPU" in named else {"VCPU": int(flavor["vcpus"]), **sizes}


def _pinned_cpus(vcpus: int, specs: Mapping[str, str]) -> dict[str, int]:
    """Return the amounts of processors if some of them are pinned (``hw:cpu_policy``); else an empty dict."""
    extra = 1 if specs.get("hw:emulator_threads_policy") == "isolate" else 0
    match specs.get("hw:cpu_policy"):
        case "dedicated":
            return {"PCPU": vcpus + extra}
        case "mixed":
            dedicated = min(vcpus, len(_cpus(specs.get("hw:cpu_dedicated_mask", ""), vcpus)))
            return {"VCPU": vcpus - dedicated, "PCPU": dedicated + extra}
        case _:
            return {}


def _implied_amounts(specs: Mapping[str, str]) -> dict[str, int]:
    """Return the amounts that other extra specs imply: encrypted memory, and persistent memory namespaces."""
    spaces = filter(None, (label.strip() for label in specs.get("hw:pmem", "").split(",")))
    implied = Counter(f"CUSTOM_PMEM_NAMESPACE_{re.sub('[^A-Z0-9]+', '_', label.upper())}" for label in spaces)
    if specs.get("hw:mem_encryption", "").strip().lower() in _TRUE:
        implied["MEM_ENCRYPTION_CONTEXT"] = 1
    return dict(implied)


def _cpus(mask: str, vcpus: int) -> set[int]:
    """Return the processors in a mask such as ``0-3,^2``."""
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
