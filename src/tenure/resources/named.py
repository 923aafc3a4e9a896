"""The resource types that an operator names, by their own names or by those of Blazar's plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenure.resources.contract import ResourceTypes

#: The resource types that Blazar's plugins mean, by their names in ``[manager] plugins``.
TYPES_OF_PLUGINS: Mapping[str, str] = {
    "physical.host.plugin": "physical:host",
    "virtual.instance.plugin": "virtual:instance",
    "flavor.instance.plugin": "flavor:instance",
    "virtual.floatingip.plugin": "virtual:floatingip",
}


def only_named(installed: ResourceTypes, names: Sequence[str]) -> ResourceTypes:
    """Return the installed types, of which only the named ones can be booked; all if there are no names.

    Raises ``ValueError`` with all unknown names.
    """
    if not names:
        return installed
    enabled = [TYPES_OF_PLUGINS.get(name, name) for name in names]
    known = {resource_type.name for resource_type in installed}
    if unknown := sorted(set(enabled) - known):
        raise ValueError(f"there is no {' and no '.join(map(repr, unknown))}, only {', '.join(sorted(known))}")
    return installed.only(enabled)
