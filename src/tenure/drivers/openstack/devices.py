"""Devices that extra specs of flavors name, as the groups of resources that Nova requests for them.

``pci_passthrough:alias`` names aliases of Nova's configuration, ``accel:device_profile`` a device profile of Cyborg.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tenure.domain.extra_specs import DEVICE_PROFILE, DEVICE_SPECS, PCI_ALIAS
from tenure.domain.footprint import DEVICE_GROUPS, UNCOUNTED
from tenure.drivers.openstack.pci_aliases import PciAlias
from tenure.drivers.openstack.requests import Calls, Request

_ACCELERATOR: Final = "accelerator"
#: The number of devices of an alias.
_COUNT: Final = re.compile(r"[1-9][0-9]{0,2}")


class Devices:
    """The devices of flavors, for one driver call. A device profile is read once."""

    def __init__(self, calls: Calls, aliases: Iterable[PciAlias]) -> None:
        self._calls = calls
        self._aliases = {alias.name: alias for alias in aliases}
        self._profiles: dict[str, list[dict[str, str]]] = {}

    def described(self, specs: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        """Return what is to be added to the description of a flavor with these extra specs; nothing without devices.

        These are the groups of the devices, written as extra specs, and why those of an extra spec are not counted.
        Raises ``CloudBusy`` if Cyborg does not answer.
        """
        if specs.keys().isdisjoint(DEVICE_SPECS):
            return {}
        groups: list[Mapping[str, str]] = []
        uncounted: dict[str, str] = {}
        for name, groups_of in ((PCI_ALIAS, self._of_aliases), (DEVICE_PROFILE, self._of_profile)):
            try:
                groups += groups_of(specs[name]) if name in specs else ()
            except ValueError as error:
                uncounted[name] = str(error)
        return {DEVICE_GROUPS: numbered(groups), **({UNCOUNTED: uncounted} if uncounted else {})}

    def _of_aliases(self, value: str) -> Sequence[Mapping[str, str]]:
        return groups_of_aliases(value, self._aliases)

    def _of_profile(self, name: str) -> Sequence[Mapping[str, str]]:
        """Return the groups of a device profile; raise ``ValueError`` if they cannot be counted."""
        if name not in self._profiles:
            if not self._calls.has(_ACCELERATOR):
                raise ValueError("the cloud has no Cyborg that would show the device profile")
            request = Request(_ACCELERATOR, "GET", "/device_profiles", params={"name": name})
            listed = [profile for profile in self._calls.send(request)["device_profiles"] if profile["name"] == name]
            if not listed:
                raise ValueError(f"Cyborg has no device profile {name}")
            self._profiles[name] = [_requested(group) for group in listed[0]["groups"]]
        groups = self._profiles[name]
        if any(sum(key.startswith("resources:") for key in group) != 1 for group in groups):
            raise ValueError(f"the device profile {name} has a group that does not have exactly one class")
        return groups


def groups_of_aliases(value: str, aliases: Mapping[str, PciAlias]) -> Sequence[Mapping[str, str]]:
    """Return the group of each device that ``name:count,name:count`` asks for, written as extra specs.

    Raises ``ValueError`` if they cannot be counted.
    """
    found: list[Mapping[str, str]] = []
    for pair in value.split(","):
        name, _, count = (word.strip() for word in pair.partition(":"))
        alias = aliases.get(name)
        if alias is None:
            raise ValueError(f"[nova] pci_aliases of Tenure has no alias {name}")
        if alias.uncounted:
            raise ValueError(f"the alias {name} is not counted, as {alias.uncounted}")
        if not _COUNT.fullmatch(count):
            raise ValueError(f"{pair} is no alias with a number of devices")
        traits = {f"trait:{trait}": "required" for trait in sorted(alias.traits)}
        found += [{f"resources:{alias.resource_class}": "1", **traits}] * int(count)
    return found


def numbered(groups: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the extra specs of all groups together, each with a suffix of its own."""
    return {
        name.replace(":", f"_{number}:", 1): value
        for number, group in enumerate(groups)
        for name, value in group.items()
    }


def _requested(group: Mapping[str, Any]) -> dict[str, str]:
    """Return the amounts and traits of a group of a device profile; the rest of it is for Cyborg's drivers."""
    return {name: str(value) for name, value in group.items() if name.startswith(("resources:", "trait:"))}
