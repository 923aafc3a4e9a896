"""What a reservation of instances has in a simulated cloud while it runs: names and contents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tenure.drivers.contract import Order

#: The types of which the simulated cloud makes instances.
INSTANCE: Final = "virtual:instance"
FLAVOR: Final = "flavor:instance"
#: What a flavor says beside its extra specs.
SIZES: Final = ("name", "vcpus", "ram", "disk", "ephemeral", "swap", "is_public")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reservation of instances has in the cloud while it runs."""

    id: str
    resource_class: str
    sizes: tuple[object, ...]
    extra_specs: Mapping[str, str]
    metadata: Mapping[str, str]


def wanted_of(order: Order, group_id: str | None) -> Wanted:
    reservation_id, parameters = order.reservation_id, order.parameters
    source: Mapping[str, object] = {}
    if order.resource_type == FLAVOR:
        source = json.loads(str(parameters["resource_properties"]))
        source = {name.removeprefix("OS-FLV-EXT-DATA:"): value for name, value in source.items()}
        sizes = tuple(source.get(name) or 0 for name in ("vcpus", "ram", "disk", "ephemeral", "swap"))
    else:
        sizes = (parameters["vcpus"], parameters["memory_mb"], parameters["disk_gb"], 0, 0)
    specs = source.get("extra_specs") or {}
    grouped = {} if group_id is None else {"affinity_id": group_id}
    resource_class = class_of(reservation_id)
    return Wanted(
        reservation_id,
        resource_class,
        (group_name(reservation_id), *sizes, 0),
        {
            **(specs if isinstance(specs, dict) else {}),
            "aggregate_instance_extra_specs:reservation": reservation_id,
            f"resources:{resource_class}": "1",
            **grouped,
        },
        {
            "reservation": reservation_id,
            "filter_tenant_id": order.project_id,
            "blazar:owner": order.project_id,
            **grouped,
        },
    )


def class_of(reservation_id: str) -> str:
    """The resource class of a reservation."""
    return f"CUSTOM_RESERVATION_{reservation_id.upper().replace('-', '_')}"


def units_of(order: Order, external_id: str) -> int:
    return order.units.get(external_id, 1)


def group_name(reservation_id: str) -> str:
    """The name of its flavor, and of its server group."""
    return f"reservation:{reservation_id}"


def policy_of(order: Order) -> str | None:
    """That of the server group; None where there is to be none."""
    affinity = order.parameters.get("affinity")
    if affinity is None:
        return None
    return "affinity" if affinity else "anti-affinity"


def text_of(values: Mapping[str, str]) -> str:
    """The same text for the same values."""
    return json.dumps(values, sort_keys=True)
