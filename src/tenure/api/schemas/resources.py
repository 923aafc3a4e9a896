"""What all inventories have in common on the wire: closing, opening and emptying, allocations and properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, create_model

from tenure.api.schemas.moments import show_maybe_rfc3339, show_rfc3339, show_with_t
from tenure.api.schemas.queries import ResourceListQuery
from tenure.api.schemas.refusals import check
from tenure.api.schemas.texts import Identifier, Reason, RegionName
from tenure.api.versions import OLDEST, Version
from tenure.domain.capacity import Capacity
from tenure.domain.request import LeasedResource, ResourceBookings, ResourceChange
from tenure.domain.resource import PropertySetting, PropertyValues, Resource

Document = dict[str, object]


@dataclass(frozen=True, slots=True)
class Registration:
    """A resource to be registered: what it is called in the cloud, its own properties, how much of it is lent."""

    reference: str
    properties: Mapping[str, str] = field(default_factory=dict)
    #: How much of it is lent to reservations, where its operator says so.
    capacity: Capacity | None = None


@dataclass(frozen=True, slots=True)
class ModelsOfRequest:
    """How a body is read: at 1.0, and from 1.1 on."""

    lenient: type[BaseModel]
    strict: type[BaseModel]

    def at(self, version: Version) -> type[BaseModel]:
        return self.lenient if version is OLDEST else self.strict


@dataclass(frozen=True, slots=True)
class WireProperties:
    """How the properties that an operator gives to resources of an inventory are read."""

    models: ModelsOfRequest
    read: Callable[[Mapping[str, Any], Version], Mapping[str, str | None]]


@dataclass(frozen=True, slots=True)
class WireLending:
    """How it is read how much of a resource is lent to reservations."""

    model: type[BaseModel]
    read: Callable[[Mapping[str, Any], Version], Capacity]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireInventory:
    """An inventory on the wire: where it is, what things are called there, how a resource is read and shown.

    The rest is the same for all inventories, see ``tenure.api.inventories``.
    """

    #: The type of its resources, such as ``physical:host``.
    resource_type: str
    #: Its URL, such as ``/v1/os-hosts``, and what an id is called in URLs below it.
    path: str
    part: str
    #: The keys under which documents have one resource, many, and the links to more.
    one: str
    many: str
    links: str
    #: What one and many are called in a sentence.
    noun: str
    nouns: str
    query: type[ResourceListQuery]
    registration: ModelsOfRequest
    read_registration: Callable[[Mapping[str, Any], Version], Registration]
    #: A resource, as it is shown at a version; and as it is shown in the answer to its registration.
    show: Callable[[Resource, Version], Document]
    show_new: Callable[[Resource, Version], Document]
    #: A resource as the owner of a lease with a part in it sees it.
    show_leased: Callable[[LeasedResource], Document]
    #: The models of what is shown.
    answer: Callable[[Version], type[BaseModel]]
    answer_new: Callable[[Version], type[BaseModel]]
    leased_answer: type[BaseModel]
    #: None where its resources have no properties of their own.
    properties: WireProperties | None = None
    #: None where how much is lent of its resources is not for their operator to say, or has ``properties``.
    lending: WireLending | None = None
    #: From when on it is shown who has a part in which of its resources.
    allocations_since: Version = OLDEST
    #: From when on there is anything of it.
    since: Version = OLDEST


class Disable(BaseModel):
    """What is to take no new reservations, and why; with ``dry_run`` nothing is done, and all is told."""

    model_config = ConfigDict(extra="forbid")

    reason: Reason = ""
    dry_run: StrictBool = False


class Enable(BaseModel):
    """What is to take reservations again."""

    model_config = ConfigDict(extra="forbid")

    dry_run: StrictBool = False


class Reallocate(BaseModel):
    """What is booked there, and is to move to others: of one lease or of all, also what runs or not."""

    model_config = ConfigDict(extra="forbid")

    lease_id: Identifier | None = None
    running: StrictBool = False
    dry_run: StrictBool = False


class LenientPropertyUpdate(BaseModel):
    """Whether ordinary users are kept from a property."""

    model_config = ConfigDict(extra="ignore", title="PropertyUpdate")

    private: StrictBool


class PropertyUpdate(BaseModel):
    """Whether ordinary users are kept from a property."""

    model_config = ConfigDict(extra="forbid")

    private: StrictBool


SETTING = ModelsOfRequest(LenientPropertyUpdate, PropertyUpdate)


class InRegion(BaseModel):
    """Where something is to be made reservable."""

    region: Annotated[
        RegionName | None, Field(description="The region it is in; the home region of the service unless it is named.")
    ] = None


def read_region(body: Mapping[str, Any], version: Version) -> tuple[Mapping[str, Any], str]:
    """A registration without the region that it names from 1.2 on, and that region; empty where it names none."""
    if version < Version.V1_2:
        return body, ""
    given = {name: value for name, value in body.items() if name == "region"}
    rest = {name: value for name, value in body.items() if name != "region"}
    return rest, check(InRegion, given, version).region or ""


def registration_model(wire: WireInventory, version: Version) -> type[BaseModel]:
    """The model of a registration, with the region from 1.2 on."""
    model = wire.registration.at(version)
    if version < Version.V1_2:
        return model
    return create_model(model.__name__, __base__=(InRegion, model), __doc__=model.__doc__)


def read_private(body: Mapping[str, Any], version: Version) -> bool:
    if version is OLDEST:
        return check(LenientPropertyUpdate, body, version).private
    return check(PropertyUpdate, body, version).private


def show_standing(resource: Resource, version: Version) -> Document:
    """From 1.2 on: what makes a resource reservable, or not."""
    if version < Version.V1_2:
        return {}
    return {
        "region": resource.region or None,
        "enabled": resource.enabled,
        "disabled_reason": resource.disabled_reason,
        "health": resource.health.value,
        "health_reason": resource.health_reason,
        "health_since": show_maybe_rfc3339(resource.health_since),
    }


def show_part(leased: LeasedResource) -> Document:
    """A lease's part in a resource: for which reservation, when, and how far it is."""
    return {
        "reservation_id": leased.reservation_id,
        "start_date": show_rfc3339(leased.period.start),
        "end_date": show_rfc3339(leased.period.end),
        "status": leased.state.value,
    }


def show_change(wire: WireInventory, change: ResourceChange, version: Version, *, dry_run: bool) -> Document:
    """What was done to a resource, or would be, and what becomes of those who have a part in it."""
    return {
        wire.one: wire.show(change.resource, version),
        "dry_run": dry_run,
        "reservations": [
            {
                "id": part.reservation_id,
                "lease_id": part.lease_id,
                "start_date": show_rfc3339(part.starts_at),
                "end_date": show_rfc3339(part.ends_at),
                "status": part.state.value,
                "moves_to": part.moves_to,
                "reason": part.reason,
            }
            for part in change.parts
        ],
    }


def show_allocation(allocation: ResourceBookings, version: Version) -> Document:
    show: Callable[[datetime], str] = show_with_t if version is OLDEST else show_rfc3339
    return {
        "resource_id": allocation.external_id,
        "reservations": [
            {
                "id": booking.reservation_id,
                "lease_id": booking.lease_id,
                "start_date": show(booking.starts_at),
                "end_date": show(booking.ends_at),
            }
            for booking in allocation.bookings
        ],
    }


def show_property(found: PropertyValues, *, detail: bool) -> Document:
    if not detail:
        return {"property": found.name}
    return {"property": found.name, "private": found.private, "values": list(found.values)}


def show_property_setting(setting: PropertySetting, version: Version) -> Document:
    """A property's setting; 1.0 has its dates with ``T``, other than most of 1.0."""
    show: Callable[[datetime], str] = show_with_t if version is OLDEST else show_rfc3339
    return {
        "id": str(setting.id),
        "resource_type": setting.resource_type,
        "property_name": setting.name,
        "private": setting.private,
        "created_at": show(setting.created_at),
        "updated_at": show(setting.updated_at) if setting.updated_at else None,
    }
