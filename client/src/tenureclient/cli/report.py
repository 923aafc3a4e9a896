"""Errors as text for people."""

from __future__ import annotations

from tenureclient.cli.printable import printable
from tenureclient.errors import ConnectionFailed, NotEnoughResources, Shortfall, TenureError, Unauthorized

_STAGES = {
    "reservable": "can be reserved at all",
    "matching": "of those, match the properties",
    "free": "of those, free for the whole period",
    "roomy": "of those, with room for the whole period",
    "fitting": "instances that fit there",
}

#: What people call some properties that each host has.
_MEANT = {
    **dict.fromkeys(("memory", "ram", "mem", "memory_gb"), "memory_mb"),
    **dict.fromkeys(("disk", "disk_gb", "local"), "local_gb"),
    **dict.fromkeys(("cpu", "cpus", "cores", "vcpu"), "vcpus"),
}


def describe(error: TenureError) -> str:
    """Return the message of an error and, on further lines, its details."""
    lines = error.message.split("\n")
    if error.field is not None:
        lines.append(f"  field: {error.field}")
    if isinstance(error, NotEnoughResources) and error.shortfall is not None:
        # A reservation that is added to a lease is the only one of its request, whatever its index.
        several = error.field is None or error.field.startswith("reservations")
        lines.extend(_describe_shortfall(error.shortfall, numbered=several))
    if isinstance(error, ConnectionFailed | Unauthorized):
        lines.append("  Is the cloud, its address and its token right? See 'tenure --help' and clouds.yaml.")
    if error.request_id is not None:
        lines.append(f"  error: {error.code} {error.name}, request: {error.request_id}")
    return "\n".join(printable(line) for line in lines)


def _describe_shortfall(shortfall: Shortfall, *, numbered: bool) -> list[str]:
    index = shortfall.reservation if numbered else None
    which = "" if index is None else f" (number {index + 1})"
    lines = [f"  asked: {shortfall.requested} of {shortfall.resource_type}{which}"]
    named = [(_STAGES.get(stage.stage, stage.stage), stage.count) for stage in shortfall.stages]
    width = max((len(name) for name, _ in named), default=0)
    lines += [f"    {name:<{width}}  {count}" for name, count in named]
    if shortfall.unknown_properties:
        lines.append(f"  no resource has the property: {', '.join(shortfall.unknown_properties)}")
        meant = {name: _MEANT[name] for name in shortfall.unknown_properties if name in _MEANT}
        lines += [f"    is {known} meant by {name}?" for name, known in meant.items()]
    return lines
