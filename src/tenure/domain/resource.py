"""Resources that can be booked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from tenure.domain.capacity import WHOLE, Capacity

#: The prefix of the type of resources that are unregistered and have history, and the fact that keeps the external id.
RETIRED = "retired:"
RETIRED_ID = "tenure:retired_id"


class Registration(StrEnum):
    """The progress of a resource into the cloud's pool, or out of it."""

    REGISTERING = "registering"  # being moved into the pool, possibly interrupted
    REGISTERED = "registered"
    UNREGISTERING = "unregistering"  # being given back to the cloud, possibly interrupted


class ResourceHealth(StrEnum):
    """The health of a resource, as the cloud reports it."""

    WELL = "well"
    DISABLED = "disabled"  # closed by the cloud's operator: takes nothing new, and works for its present users
    DOWN = "down"  # does not work
    GONE = "gone"  # the cloud no longer has it

    @property
    def works(self) -> bool:
        """Whether the resource works for its present users."""
        return self in {ResourceHealth.WELL, ResourceHealth.DISABLED}


@dataclass(frozen=True, slots=True)
class DiscoveredResource:
    """A resource as its cloud describes it.

    ``facts`` are the cloud's data about it as JSON values, under the names that its type defines. ``limits`` give, by
    resource class, the least (``min``) and the most (``max``) that one request can take, and the ``step``.
    """

    resource_type: str
    external_id: str
    name: str
    capacity: Capacity
    facts: Mapping[str, object] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    region: str = ""
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownHealth:
    """The last known health of a resource, and since when; None if it never changed."""

    health: ResourceHealth
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that Tenure may promise.

    The operator sets its ``properties``; its ``facts`` are the cloud's. ``version`` changes with every change of what
    the resource can promise. The resource is ``reservable`` while it is registered, enabled by the operator and well.
    Each of the three keeps its own reason, and none hides another.
    """

    id: int
    resource_type: str
    region: str
    external_id: str
    name: str
    capacity: Capacity
    facts: Mapping[str, object]
    properties: Mapping[str, str]
    traits: frozenset[str]
    reservable: bool
    version: int
    created_at: datetime
    updated_at: datetime | None = None
    registration: Registration = Registration.REGISTERED
    enabled: bool = True
    disabled_reason: str | None = None
    health: ResourceHealth = ResourceHealth.WELL
    health_reason: str | None = None
    #: Since when it has this health; None if it never changed.
    health_since: datetime | None = None
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def before_retirement(self) -> Resource:
        """The resource with the type and the external id that it had while it was registered."""
        if not self.resource_type.startswith(RETIRED):
            return self
        facts = {name: value for name, value in self.facts.items() if name != RETIRED_ID}
        external_id = str(self.facts.get(RETIRED_ID, self.external_id))
        resource_type = self.resource_type.removeprefix(RETIRED)
        return replace(self, resource_type=resource_type, external_id=external_id, facts=facts)


@dataclass(frozen=True, slots=True)
class PropertyValues:
    """A property's name, whether it is hidden from ordinary users, and the values that resources have."""

    name: str
    private: bool
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PropertySetting:
    """The stored setting of a property of a resource type."""

    id: int
    resource_type: str
    name: str
    private: bool
    created_at: datetime
    updated_at: datetime | None


#: Values that mean that the property is absent; such a property does not make a resource scarcer.
_ABSENT = frozenset({"", "0", "false", "no", "none", "off"})


#: The resource classes of every host, and of resources that are taken as a whole.
_ORDINARY = frozenset({WHOLE, "VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})


def scarcity(properties: Mapping[str, str], traits: frozenset[str], capacity: Capacity) -> int:
    """Return how special a resource is: the number of its set properties, custom traits and unusual resource classes.

    Requests are served from the least special resources that match, so that a host with a GPU is left for requests
    that ask for one. Facts that every resource has, such as its size, do not count, nor does the amount of a class.
    """
    special = sum(1 for value in properties.values() if value.strip().lower() not in _ABSENT)
    custom = sum(1 for trait in traits if trait.startswith("CUSTOM_"))
    return special + custom + len(capacity.keys() - _ORDINARY)
