"""Hosts on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tenure.api.schemas.answers import Answer, From, LeasedAnswer, Rfc3339Text, Standing, Written, fact
from tenure.api.schemas.queries import ResourceListQuery
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import Registration, WireInventory, WireProperties
from tenure.api.schemas.texts import MAX_PROPERTIES, MAX_PROPERTY_NAME, ExternalId, PropertyName, PropertyValue
from tenure.api.versions import Version, by_version
from tenure.domain.errors import InvalidParameter
from tenure.domain.resource import Resource


def _service_name(host: Resource) -> object:
    return host.facts.get("service_name", host.name)


def _cpu_info(host: Resource) -> str:
    cpu_info = host.facts.get("cpu_info", "")
    return cpu_info if isinstance(cpu_info, str) else json.dumps(cpu_info)


#: Empty if the cloud has no zones.
_Zone = Annotated[str, From(lambda host: host.facts.get("availability_zone") or "")]


class LeasedHost(LeasedAnswer):
    id: Annotated[str, From("external_id")]
    hypervisor_hostname: Annotated[str, From("name")]
    availability_zone: _Zone
    vcpus: Annotated[int, fact("vcpus")]
    memory_mb: Annotated[int, fact("memory_mb")]
    local_gb: Annotated[int, fact("local_gb")]
    properties: dict[str, str]


class Hypervisor(Answer):
    """The facts that the cloud reports about a host."""

    id: Annotated[str, From("external_id")]
    hypervisor_hostname: Annotated[str, From("name")]
    service_name: Annotated[str, From(_service_name)]
    hypervisor_type: Annotated[str, fact("hypervisor_type", "")]
    hypervisor_version: Annotated[int, fact("hypervisor_version", 0)]
    vcpus: Annotated[int, fact("vcpus", 0)]
    memory_mb: Annotated[int, fact("memory_mb", 0)]
    local_gb: Annotated[int, fact("local_gb", 0)]
    cpu_info: Annotated[str, From(_cpu_info)]
    availability_zone: _Zone


class Host(Hypervisor):
    traits: Annotated[list[str], Written(sorted)]
    reservable: bool
    properties: dict[str, str]
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class HostOf12(Standing, Host):
    """A host from 1.2 on, with its region, its health, and whether the operator has enabled it."""


#: The fields of a host at all versions, which cannot be names of properties.
FIELDS = frozenset({*Host.model_fields, "status", "trust_id"})
#: Every URL is also served with this suffix.
_SUFFIX = ".json"
#: Path segments that clients and proxies remove from URLs.
_DOTS = frozenset({".", ".."})
_NAMES_OF_PROPERTIES: dict[str, Any] = {"minLength": 1, "maxLength": MAX_PROPERTY_NAME, "pattern": r"^[^\x00/]*$"}
_UNREACHABLE: list[dict[str, Any]] = [{"enum": sorted(_DOTS)}, {"pattern": r"\.json$"}]
#: In JSON Schema: names that the end of a URL can be.
REACHABLE_NAMES: dict[str, Any] = {
    "propertyNames": {**_NAMES_OF_PROPERTIES, "not": {"anyOf": _UNREACHABLE}},
    "maxProperties": MAX_PROPERTIES,
}
#: In JSON Schema: the names of properties.
FREE_NAMES: dict[str, Any] = {
    "propertyNames": {**_NAMES_OF_PROPERTIES, "not": {"anyOf": [{"enum": sorted(FIELDS)}, *_UNREACHABLE]}},
    "maxProperties": MAX_PROPERTIES,
}


class HostCreate(BaseModel):
    """A host to be made reservable, by its name or its id."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"oneOf": [{"required": ["name"]}, {"required": ["id"]}]}
    )

    name: ExternalId = Field(default_factory=str)
    id: ExternalId = Field(default_factory=str)
    properties: dict[PropertyName, PropertyValue] = Field(default_factory=dict, json_schema_extra=FREE_NAMES)

    @model_validator(mode="after")
    def _one_reference(self) -> HostCreate:
        if bool(self.name) == bool(self.id):
            raise PydanticCustomError("reference", "give the name of a host or its id, one of them")
        return self


class HostUpdate(BaseModel):
    """The changed properties of a host; null removes a property."""

    model_config = ConfigDict(extra="forbid")

    properties: dict[PropertyName, PropertyValue | None] = Field(min_length=1, json_schema_extra=FREE_NAMES)


class HostListQuery(ResourceListQuery):
    NAME = "hypervisor_hostname"

    sort_key: Literal["id", "hypervisor_hostname"] = "id"
    hypervisor_hostname: ExternalId | None = None


def read_registration(body: Mapping[str, Any], version: Version) -> Registration:
    given = _check_create(body, version)
    check_names(given.properties, "properties.")
    return Registration(given.id or given.name, given.properties)


def _check_create(body: Mapping[str, Any], version: Version) -> HostCreate:
    try:
        return check(HostCreate, body, version)
    except InvalidParameter as error:
        if error.field is not None:
            raise
        raise InvalidParameter(error.message, field="name") from None  # both references are given, or neither


def read_properties(body: Mapping[str, Any], version: Version) -> Mapping[str, str | None]:
    """Return the changed properties."""
    changed = check(HostUpdate, body, version).properties
    check_names(changed, "properties.")
    return changed


def check_names(properties: Mapping[str, object], path: str) -> None:
    """Refuse names that no property can have; ``path`` is the path to them in the body."""
    taken = sorted(FIELDS & properties.keys())
    if taken:
        raise InvalidParameter(f"{taken[0]} is a field of every host and cannot be a property.", field=path + taken[0])
    check_reachable(properties.keys(), path)


def check_reachable(names: Iterable[str], path: str) -> None:
    """Refuse names that cannot be the end of a URL: such a property could never be made private."""
    for name in sorted(names):
        if "/" in name or name.endswith(_SUFFIX) or name in _DOTS:
            raise InvalidParameter(
                f"{name} cannot be the name of a property: no URL could name it. "
                "It must not have a / in it, nor end with .json, nor be . or .. itself.",
                field=path + name,
            )


HOSTS = WireInventory(
    resource_type="physical:host",
    path="/v1/os-hosts",
    one="host",
    many="hosts",
    noun="host",
    nouns="hosts",
    query=HostListQuery,
    registration=by_version(HostCreate),
    read_registration=read_registration,
    answer=by_version(Host, Host, HostOf12),
    leased_answer=LeasedHost,
    properties=WireProperties(by_version(HostUpdate), read_properties),
)
