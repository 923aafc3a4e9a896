"""Hosts on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tenure.api.schemas import answers
from tenure.api.schemas.moments import show_maybe_rfc3339, show_rfc3339, show_with_blank
from tenure.api.schemas.queries import HostListQuery
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import (
    Document,
    ModelsOfRequest,
    Registration,
    WireInventory,
    WireProperties,
    show_part,
    show_standing,
)
from tenure.api.schemas.texts import (
    MAX_PROPERTIES,
    MAX_PROPERTY_NAME,
    ExternalId,
    LenientProperty,
    LenientReference,
    PropertyName,
    PropertyValue,
)
from tenure.api.versions import OLDEST, Version
from tenure.domain.errors import InvalidHost, InvalidParameter
from tenure.domain.request import LeasedResource
from tenure.domain.resource import Resource

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
_NAMES: dict[str, Any] = {
    "propertyNames": {**_NAMES_OF_PROPERTIES, "not": {"anyOf": _UNREACHABLE}},
    "maxProperties": MAX_PROPERTIES,
}
#: In JSON Schema: what a property may be called.
_FREE_NAMES: dict[str, Any] = {
    "propertyNames": {**_NAMES_OF_PROPERTIES, "not": {"anyOf": [{"enum": sorted(_FIELDS)}, *_UNREACHABLE]}},
    "maxProperties": MAX_PROPERTIES,
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


def show_host(host: Resource, version: Version) -> Document:
    """A host: at 1.0 with its properties beside its fields, as Blazar shows it; a field is never hidden by one."""
    if version is OLDEST:
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
    return {
        "id": host.external_id,
        **_facts(host),
        "traits": sorted(host.traits),
        "reservable": host.reservable,
        "properties": dict(host.properties),
        "created_at": show_rfc3339(host.created_at),
        "updated_at": show_maybe_rfc3339(host.updated_at),
        **show_standing(host, version),
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


def show_leased_host(leased: LeasedResource) -> Document:
    """A host as the owner of a lease on it sees it."""
    facts = leased.resource.facts
    return {
        "id": leased.resource.external_id,
        "hypervisor_hostname": leased.resource.name,
        "availability_zone": facts.get("availability_zone") or "",
        "vcpus": facts.get("vcpus"),
        "memory_mb": facts.get("memory_mb"),
        "local_gb": facts.get("local_gb"),
        "properties": dict(leased.resource.properties),
        **show_part(leased),
    }


def _answer(version: Version) -> type[BaseModel]:
    if version is OLDEST:
        return answers.HostOf10
    return answers.Host if version < Version.V1_2 else answers.HostOf12


HOSTS = WireInventory(
    resource_type="physical:host",
    path="/v1/os-hosts",
    part="host_id",
    one="host",
    many="hosts",
    links="hosts_links",
    noun="host",
    nouns="hosts",
    query=HostListQuery,
    registration=ModelsOfRequest(LenientHostCreate, HostCreate),
    read_registration=read_registration,
    show=show_host,
    show_new=show_host,
    show_leased=show_leased_host,
    answer=_answer,
    answer_new=_answer,
    leased_answer=answers.LeasedHost,
    properties=WireProperties(ModelsOfRequest(LenientHostUpdate, HostUpdate), read_properties),
)
