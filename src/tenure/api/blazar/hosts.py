"""Hosts at 1.0, where their properties are fields among others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tenure.api.blazar.moments import WithBlank
from tenure.api.blazar.texts import PropertyValue, Reference
from tenure.api.schemas.answers import Document, From
from tenure.api.schemas.hosts import (
    FIELDS,
    FREE_NAMES,
    HOSTS,
    REACHABLE_NAMES,
    Hypervisor,
    check_names,
    check_reachable,
)
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import Registration, WireProperties
from tenure.api.schemas.texts import MAX_PROPERTY_NAME
from tenure.api.versions import Version, by_version
from tenure.domain.errors import InvalidHost, InvalidParameter
from tenure.domain.resource import Resource


class HostOf10(Hypervisor):
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


class LenientHostCreate(BaseModel):
    """A host to be made reservable, as in Blazar: all fields except its name and id are properties."""

    model_config = ConfigDict(extra="allow", json_schema_extra=REACHABLE_NAMES)
    __pydantic_extra__: dict[str, PropertyValue] = Field(init=False)

    name: Reference = None
    id: Reference = None


class LenientHostUpdate(BaseModel):
    """The changed properties of a host, as in Blazar; null removes a property."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"minProperties": 1, **FREE_NAMES})
    __pydantic_extra__: dict[str, PropertyValue] = Field(init=False)


def read_registration(body: Mapping[str, Any], version: Version) -> Registration:
    given = check(LenientHostCreate, body, version)
    reference = given.id or given.name
    if not reference:
        raise InvalidHost(f"Invalid values for host {dict(body)!r}"[:400], field="name")
    extra: Mapping[str, str | None] = given.model_extra or {}
    check_reachable(extra.keys() - FIELDS, "")
    properties = {name: value for name, value in extra.items() if value is not None and name not in FIELDS}
    _check_lengths(properties)
    return Registration(reference, properties)


def read_properties(body: Mapping[str, Any], version: Version) -> Mapping[str, str | None]:
    """Return the changed properties."""
    changed = check(LenientHostUpdate, body, version).model_extra or {}
    if not changed:
        raise InvalidParameter("No data to update", field="body")
    _check_lengths(changed)
    check_names(changed, "")
    return changed


def _check_lengths(properties: Mapping[str, object]) -> None:
    for name in properties:
        if len(name) > MAX_PROPERTY_NAME:
            raise InvalidParameter("Extra capability key too long", field=name[:MAX_PROPERTY_NAME])
        if not name:
            raise InvalidParameter("A property needs a name.", field="")


#: The inventory of hosts.
BLAZAR_HOSTS = replace(
    HOSTS,
    registration=by_version(LenientHostCreate),
    read_registration=read_registration,
    answer=by_version(HostOf10),
    properties=WireProperties(by_version(LenientHostUpdate), read_properties),
)
