"""Bookable things."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tenure.domain.capacity import WHOLE, Capacity


class Registration(StrEnum):
    """How far a resource has come on its way into the cloud's pool, or out of it."""

    REGISTERING = "registering"  # is being set aside in the cloud, or was when that was interrupted
    REGISTERED = "registered"
    UNREGISTERING = "unregistering"  # is being given back to the cloud, or was when that was interrupted


class ResourceHealth(StrEnum):
    """What the cloud says of a resource."""

    WELL = "well"
    DISABLED = "disabled"  # closed by the cloud's operator: takes nothing new, and works for who has it
    DOWN = "down"  # does not work
    GONE = "gone"  # the cloud does not know it any more

    @property
    def works(self) -> bool:
        """Whether it serves who has it."""
        return self in {ResourceHealth.WELL, ResourceHealth.DISABLED}


@dataclass(frozen=True, slots=True)
class DiscoveredResource:
    """A thing as its cloud describes it.

    ``facts`` are what the cloud says of it, under the names that its type gives them, as JSON values. ``limits`` say of
    a resource class how much at least (``min``) and at most (``max``) is handed out at a time, and in which ``step``.
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
    """What is known of the health of a resource, and since when it has been so; None where it always was."""

    health: ResourceHealth
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Resource:
    """A thing that Tenure may promise.

    ``properties`` are its own, given by the operator; ``facts`` are the cloud's. ``version`` changes with everything
    that changes what the resource can promise. It is ``reservable`` while it is registered, enabled by the operator and
    well; each of the three has its own reason to say no, and none hides another.
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
    #: Since when it has been as it is, None where it has always been.
    health_since: datetime | None = None
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PropertyValues:
    """A property's name, whether it is kept from ordinary users, and the values that resources have."""

    name: str
    private: bool
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PropertySetting:
    """What is set for a property of a resource type."""

    id: int
    resource_type: str
    name: str
    private: bool
    created_at: datetime
    updated_at: datetime | None


#: Values that say that a property is absent; such a property makes a resource no rarer.
_ABSENT = frozenset({"", "0", "false", "no", "none", "off"})


#: What every host has, and what everything has that is taken as a whole.
_ORDINARY = frozenset({WHOLE, "VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})


def scarcity(properties: Mapping[str, str], traits: frozenset[str], capacity: Capacity) -> int:
    """How special a resource is: its own properties that say yes, its custom traits, its unusual resource classes.

    Requests are served from the least special resources that match, so that a host with a GPU is left for those
    who ask for one. Facts that every resource has, such as its size, do not count, nor how much it has of a class.
    """
    special = sum(1 for value in properties.values() if value.strip().lower() not in _ABSENT)
    custom = sum(1 for trait in traits if trait.startswith("CUSTOM_"))
    return special + custom + len(capacity.keys() - _ORDINARY)
