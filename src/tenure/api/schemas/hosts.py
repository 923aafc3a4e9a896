"""Hosts, their allocations and their properties on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from tenure.api.schemas.moments import show_maybe_rfc3339, show_rfc3339, show_with_blank, show_with_t
from tenure.api.schemas.refusals import check
from tenure.api.schemas.texts import (
    MAX_PROPERTY_NAME,
    ExternalId,
    Identifier,
    LenientProperty,
    LenientReference,
    PropertyName,
    PropertyValue,
    Reason,
)
from tenure.api.versions import OLDEST, Version
from tenure.domain.errors import InvalidHost, InvalidParameter
from tenure.domain.request import ResourceBookings, ResourceChange
from tenure.domain.resource import PropertySetting, PropertyValues, Resource

Document = dict[str, object]

#: What Nova says of a host. A host that is registered with such keys has them dropped, as Blazar does.
_NOVA_FIELDS = frozenset(
    {
        "id",
        "availability_zone",
        "hypervisor_hostname",
        "service_name",
        "vcpus",
        "cpu_info",
        "hypervisor_type",
        "hypervisor_version",
        "memory_mb",
        "local_gb",
    }
)
#: What a host has of its own; a property of that name could not be shown beside it.
_FIELDS = _NOVA_FIELDS | {"status", "trust_id", "reservable", "created_at", "updated_at", "properties", "traits"}
#: Every URL exists a second time with this at its end.
_SUFFIX = ".json"
#: What clients and proxies take out of a URL.
_DOTS = frozenset({".", ".."})
_NAMES_OF_PROPERTIES: dict[str, Any] = {"minLength": 1, "maxLength": MAX_PROPERTY_NAME, "pattern": r"^[^\x00/]*$"}
_UNREACHABLE: list[dict[str, Any]] = [{"enum": sorted(_DOTS)}, {"pattern": r"\.json$"}]
#: In JSON Schema: what a property may be called that is sent beside the fields of a host, which are ignored.
_NAMES: dict[str, Any] = {"propertyNames": {**_NAMES_OF_PROPERTIES, "not": {"anyOf": _UNREACHABLE}}}
#: In JSON Schema: what a property may be called.
_FREE_NAMES: dict[str, Any] = {
    "propertyNames": {**_NAMES_OF_PROPERTIES, "not": {"anyOf": [{"enum": sorted(_FIELDS)}, *_UNREACHABLE]}}
}


class LenientHostCreate(BaseModel):
    """A host to be made reservable, as Blazar takes it: what is not its name or id is a property."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_NAMES)
    __pydantic_extra__: dict[str, LenientProperty] = Field(init=False)

    name: LenientReference = None
    id: LenientReference = None


class LenientHostUpdate(BaseModel):
    """The properties of a host that change, as Blazar takes them; null removes one."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"minProperties": 1, **_FREE_NAMES})
    __pydantic_extra__: dict[str, LenientProperty] = Field(init=False)


class HostCreate(BaseModel):
    """A host to be made reservable, by its name or its id."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"oneOf": [{"required": ["name"]}, {"required": ["id"]}]},
    )

    name: ExternalId = Field(default_factory=str)
    id: ExternalId = Field(default_factory=str)
    properties: dict[PropertyName, PropertyValue] = Field(default_factory=dict, json_schema_extra=_FREE_NAMES)

    @model_validator(mode="after")
    def _one_reference(self) -> HostCreate:
        if bool(self.name) == bool(self.id):
            raise PydanticCustomError("reference", "give the name of a host or its id, one of them")
        return self


class HostUpdate(BaseModel):
    """The properties of a host that change; null removes one."""

    model_config = ConfigDict(extra="forbid")

    properties: dict[PropertyName, PropertyValue | None] = Field(min_length=1, json_schema_extra=_FREE_NAMES)


class HostDisable(BaseModel):
    """A host that is to take no new reservations, and why; with ``dry_run`` nothing is done, and all is told."""

    model_config = ConfigDict(extra="forbid")

    reason: Reason = ""
    dry_run: StrictBool = False


class HostEnable(BaseModel):
    """A host that is to take reservations again."""

    model_config = ConfigDict(extra="forbid")

    dry_run: StrictBool = False


class HostReallocate(BaseModel):
    """What is booked on a host, and is to move to others: of one lease or of all, also what runs or not."""

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


@dataclass(frozen=True, slots=True)
class Registration:
    """A host to be registered."""

    reference: str
    properties: Mapping[str, str]


def read_registration(body: Mapping[str, Any], version: Version) -> Registration:
    if version is not OLDEST:
        given = _check_create(body, version)
        _check_names(given.properties, "properties.")
        return Registration(given.id or given.name, given.properties)
    lenient = check(LenientHostCreate, body, version)
    reference = lenient.id or lenient.name
    if not reference:
        raise InvalidHost(f"Invalid values for host {dict(body)!r}"[:400], field="name")
    extra: Mapping[str, str | None] = lenient.model_extra or {}
    _check_reachable(extra.keys() - _FIELDS, "")
    properties = {name: value for name, value in extra.items() if value is not None and name not in _FIELDS}
    _check_lengths(properties)
    return Registration(reference, properties)


def _check_create(body: Mapping[str, Any], version: Version) -> HostCreate:
    try:
        return check(HostCreate, body, version)
    except InvalidParameter as error:
        if error.field is not None:
            raise
        raise InvalidParameter(error.message, field="name") from None  # both references are there, or none


def read_properties(body: Mapping[str, Any], version: Version) -> Mapping[str, str | None]:
    """The properties that are to change."""
    if version is not OLDEST:
        changed: Mapping[str, str | None] = check(HostUpdate, body, version).properties
    else:
        changed = check(LenientHostUpdate, body, version).model_extra or {}
        if not changed:
            raise InvalidParameter("No data to update", field="body")
        _check_lengths(changed)
    _check_names(changed, "" if version is OLDEST else "properties.")
    return changed


def read_private(body: Mapping[str, Any], version: Version) -> bool:
    if version is OLDEST:
        return check(LenientPropertyUpdate, body, version).private
    return check(PropertyUpdate, body, version).private


def _check_lengths(properties: Mapping[str, object]) -> None:
    for name in properties:
        if len(name) > MAX_PROPERTY_NAME:
            raise InvalidParameter("Extra capability key too long", field=name[:MAX_PROPERTY_NAME])
        if not name:
            raise InvalidParameter("A property needs a name.", field="")


def _check_names(properties: Mapping[str, object], place: str) -> None:
    taken = sorted(_FIELDS & properties.keys())
    if taken:
        raise InvalidParameter(f"{taken[0]} is a field of every host and cannot be a property.", field=place + taken[0])
    _check_reachable(properties.keys(), place)


def _check_reachable(names: Iterable[str], place: str) -> None:
    """Refuse names that a URL cannot end with, so that such a property could never be made private."""
    for name in sorted(names):
        if "/" in name or name.endswith(_SUFFIX) or name in _DOTS:
            raise InvalidParameter(
                f"{name} cannot be the name of a property: no URL could name it. "
                "It must not have a / in it, nor end with .json, nor be . or .. itself.",
                field=place + name,
            )


def show_host_1_0(host: Resource) -> Document:
    """A host as Blazar shows it, with its properties beside its fields; a field is never hidden by one."""
    return {
        **host.properties,
        "id": host.external_id,
        **_facts(host),
        "status": None,
        "trust_id": "",
        "reservable": host.reservable,
        "created_at": show_with_blank(host.created_at),
        "updated_at": show_with_blank(host.updated_at),
    }


def show_host(host: Resource, version: Version) -> Document:
    """A host, from 1.1 on; from 1.2 on with what makes it reservable, or not."""
    if not version < Version.V1_2:
        return {**show_host(host, Version.V1_1), **_standing(host)}
    return {
        "id": host.external_id,
        **_facts(host),
        "traits": sorted(host.traits),
        "reservable": host.reservable,
        "properties": dict(host.properties),
        "created_at": show_rfc3339(host.created_at),
        "updated_at": show_maybe_rfc3339(host.updated_at),
    }


def _standing(host: Resource) -> Document:
    return {
        "enabled": host.enabled,
        "disabled_reason": host.disabled_reason,
        "health": host.health.value,
        "health_reason": host.health_reason,
        "health_since": show_maybe_rfc3339(host.health_since),
    }


def show_host_change(change: ResourceChange, version: Version, *, dry_run: bool) -> Document:
    """What was done to a host, or would be, and what becomes of those who have a part in it."""
    return {
        "host": show_host(change.resource, version),
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


def _facts(host: Resource) -> Document:
    facts = host.facts
    cpu_info = facts.get("cpu_info", "")
    return {
        "hypervisor_hostname": host.name,
        "service_name": facts.get("service_name", host.name),
        "hypervisor_type": facts.get("hypervisor_type", ""),
        "hypervisor_version": facts.get("hypervisor_version", 0),
        "vcpus": facts.get("vcpus", 0),
        "memory_mb": facts.get("memory_mb", 0),
        "local_gb": facts.get("local_gb", 0),
        "cpu_info": cpu_info if isinstance(cpu_info, str) else json.dumps(cpu_info),
        "availability_zone": facts.get("availability_zone") or "",
    }


def show_allocation_1_0(allocation: ResourceBookings) -> Document:
    return _allocation(allocation, show_with_t)


def show_allocation(allocation: ResourceBookings) -> Document:
    return _allocation(allocation, show_rfc3339)


def _allocation(allocation: ResourceBookings, show: Any) -> Document:
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
    """A property's setting; 1.0 has its dates with ``T``, other than everything else of 1.0."""
    old = version is OLDEST
    changed = setting.updated_at
    return {
        "id": str(setting.id),
        "resource_type": setting.resource_type,
        "property_name": setting.name,
        "private": setting.private,
        "created_at": show_with_t(setting.created_at) if old else show_rfc3339(setting.created_at),
        "updated_at": (show_with_t(changed) if old else show_rfc3339(changed)) if changed else None,
    }
