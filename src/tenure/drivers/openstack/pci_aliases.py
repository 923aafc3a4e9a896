"""Nova's PCI aliases: the names by which flavors ask for devices, and what Nova asks Placement for.

The rules are those of Nova with ``[filter_scheduler] pci_in_placement``: each device is a group of its own, with one
unit of one class and the traits of the alias.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tenure.domain.errors import InvalidParameter
from tenure.domain.json_text import read_json

#: The keys of an alias that decide nothing, or that Placement decides; of ``numa_policy`` only these values do.
_COUNTED: Final = frozenset({"name", "vendor_id", "product_id", "device_type", "resource_class", "traits"})
_NUMA_POLICIES: Final = frozenset({"preferred", "legacy"})
#: The standard classes that devices can have, and the beginnings of the names of standard traits.
_STANDARD_CLASSES: Final = frozenset({"PCI_DEVICE", "SRIOV_NET_VF", "VGPU", "PGPU", "FPGA"})
_STANDARD_TRAITS: Final = re.compile(r"(COMPUTE|CUSTOM|HW|MISC|OWNER|STORAGE)_.*")
_CUSTOM: Final = "CUSTOM_"


@dataclass(frozen=True, slots=True)
class PciAlias:
    """The devices of an alias: their class and their traits, or else why they are ``uncounted``."""

    name: str
    resource_class: str = ""
    traits: frozenset[str] = frozenset()
    uncounted: str = ""


def read_aliases(lines: Iterable[str]) -> tuple[PciAlias, ...]:
    """Read aliases as Nova's option ``[pci] alias`` has them, one JSON object in each line.

    An alias in several lines stands for any of several kinds of devices, which Placement cannot be asked for. Raises
    ``ValueError`` for a text that is no alias.
    """
    found: dict[str, PciAlias] = {}
    for line in lines:
        alias = _read(line)
        several = PciAlias(alias.name, uncounted="it stands for several kinds of devices")
        found[alias.name] = several if alias.name in found else alias
    return tuple(found.values())


def _read(line: str) -> PciAlias:
    try:
        read = read_json(line, subject="a PCI alias")
    except InvalidParameter as error:
        raise ValueError(error.message) from None
    if not isinstance(read, dict) or not read.get("name") or not all(isinstance(value, str) for value in read.values()):
        raise ValueError(f"a PCI alias is a JSON object of texts with a name, and {line[:100]} is not")
    alias: dict[str, str] = read
    unknown = {name for name in alias.keys() - _COUNTED if name != "numa_policy"}
    if alias.get("numa_policy", "legacy") not in _NUMA_POLICIES:
        unknown.add("numa_policy")
    if unknown:
        return PciAlias(alias["name"], uncounted=f"Placement does not know its {', '.join(sorted(unknown))}")
    if alias.get("resource_class"):
        named = _normalized(alias["resource_class"])
        resource_class = named if named in _STANDARD_CLASSES or named.startswith(_CUSTOM) else _CUSTOM + named
    elif alias.get("vendor_id") and alias.get("product_id"):
        resource_class = f"{_CUSTOM}PCI_{_normalized(alias['vendor_id'])}_{_normalized(alias['product_id'])}"
    else:
        return PciAlias(alias["name"], uncounted="it has no resource_class, and not both ids")
    traits = (_normalized(trait.strip()) for trait in alias.get("traits", "").split(",") if trait.strip())
    standard = (trait if _STANDARD_TRAITS.fullmatch(trait) else _CUSTOM + trait for trait in traits)
    return PciAlias(alias["name"], resource_class, frozenset(standard))


def _normalized(name: str) -> str:
    return re.sub("[^A-Z0-9]+", "_", name.upper())
