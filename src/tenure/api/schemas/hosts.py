"""Hosts on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tenure.api.schemas.answers import (
    Answer,
    Document,
    From,
    LeasedAnswer,
    Rfc3339Text,
    Standing,
    WithBlank,
    Written,
    fact,
)
from tenure.api.schemas.queries import ResourceListQuery
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import Registration, WireInventory, WireProperties
from tenure.api.schemas.texts import (
    MAX_PROPERTIES,
    MAX_PROPERTY_NAME,
    ExternalId,
    LenientProperty,
    LenientReference,
    PropertyName,
    PropertyValue,
)
from tenure.api.versions import OLDEST, Version, by_version
from tenure.domain.errors import InvalidHost, InvalidParameter
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


class _Hypervisor(Answer):
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


class HostOf10(_Hypervisor):
    """A host, with its properties as texts beside its fields."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str] = Field(init=False)

    status: Annotated[None, From(lambda _: None)]
    trust_id: Annotated[Literal[""], From(lambda _: "")]
    reservable: bool
    created_at: WithBlank
    updated_at: WithBlank | None

    @classmethod
    def show(cls, value: Resource) -> Document:
        return {**value.properties, **super().show(value)}  # a field is never hidden by a property


class Host(_Hypervisor):
    traits: Annotated[list[str], Written(sorted)]
    reservable: bool
    properties: dict[str, str]
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class HostOf12(Standing, Host):
    """A host from 1.2 on, with its region, its health, and whether the operator has enabled it."""


#: The fields of a host, which cannot be names of properties: a registration ignores such a property, as in Blazar, and
#: a change with it is refused.
_FIELDS = frozenset({*HostOf10.model_fields, *Host.model_fields})
#: Every URL is also served with this suffix.
_SUFFIX = ".json"
#: Path segments that clients and proxies remove from URLs.
_DOTS = frozenset({".", ".."})
_NAMES_OF_PROPERTIES: dict[str, Any] = {"minLength": 1, "maxLength": MAX_PROPERTY_NAME, "pattern": r"^[^\x00/]*$"}
_UNREACHABLE: list[dict[str, Any]] = [{"enum": sorted(_DOTS)}, {"pattern": r"\.json$"}]
#: In JSON Schema: the names of properties in a registration, where the fields of a host are ignored.
_NAMES: dict[str, Any] = {
    "propertyNames": {**_NAMES_OF_PROPERTIES, "not": {"anyOf": _UNREACHABLE}},
    "maxProperties": MAX_PROPERTIES,
}
#: In JSON Schema: the names of properties.
_FREE_NAMES: dict[str, Any] = {
    "propertyNames": {**_NAMES_OF_PROPERTIES, "not": {"anyOf": [{"enum": sorted(_FIELDS)}, *_UNREACHABLE]}},
    "maxProperties": MAX_PROPERTIES,
}


class LenientHostCreate(BaseModel):
    """A host to be made reservable, as in Blazar: all fields except its name and id are properties."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_NAMES)
    __pydantic_extra__: dict[str, LenientProperty] = Field(init=False)

    name: LenientReference = None
    id: LenientReference = None


class LenientHostUpdate(BaseModel):
    """The changed properties of a host, as in Blazar; null removes a property."""

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
    """The changed properties of a host; null removes a property."""

    model_config = ConfigDict(extra="forbid")

    properties: dict[PropertyName, PropertyValue | None] = Field(min_length=1, json_schema_extra=_FREE_NAMES)


class HostListQuery(ResourceListQuery):
    NAME = "hypervisor_hostname"

    sort_key: Literal["id", "hypervisor_hostname"] = "id"
    hypervisor_hostname: ExternalId | None = None


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
        raise InvalidParameter(error.message, field="name") from None  # both references are given, or neither


def read_properties(body: Mapping[str, Any], version: Version) -> Mapping[str, str | None]:
    """Return the changed properties."""
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
    """Refuse names that cannot be the end of a URL: such a property could never be made private."""
    for name in sorted(names):
        if "/" in name or name.endswith(_SUFFIX) or name in _DOTS:
            raise InvalidParameter(
                f"{name} cannot be the name of a property: no URL could name it. "
                "It must not have a / in it, nor end with .json, nor be . or .. itself.",
                field=place + name,
            )


HOSTS = WireInventory(
    resource_type="physical:host",
    path="/v1/os-hosts",
    one="host",
    many="hosts",
    noun="host",
    nouns="hosts",
    query=HostListQuery,
    registration=by_version(LenientHostCreate, HostCreate),
    read_registration=read_registration,
    answer=by_version(HostOf10, Host, HostOf12),
    leased_answer=LeasedHost,
    properties=WireProperties(by_version(LenientHostUpdate, HostUpdate), read_properties),
)
