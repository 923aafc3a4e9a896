"""Inventories at 1.0: hosts, whose properties are fields among others, and floating IPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tenure.api.blazar.fields import PropertyValue, Reference, WithBlank, WithT
from tenure.api.blazar.lists import PAGE, BlazarQuery, WholeList
from tenure.api.inventories import InventoryOperations
from tenure.api.operations import Request
from tenure.api.schemas.answers import Allocation, Booking, Document, From, ModelAt, PropertySetting
from tenure.api.schemas.floatingips import FLOATING_IPS, FloatingIP, FloatingIPCreate
from tenure.api.schemas.hosts import (
    FIELDS,
    FREE_NAMES,
    HOSTS,
    REACHABLE_NAMES,
    Hypervisor,
    check_names,
    check_reachable,
)
from tenure.api.schemas.queries import AllocationQuery, QueryAt
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import PropertyUpdate, Registration, WireInventory, WireProperties
from tenure.api.schemas.texts import MAX_PROPERTY_NAME, PRINTABLE
from tenure.api.versions import Version, by_version
from tenure.domain.errors import InvalidHost, InvalidParameter
from tenure.domain.json_text import JsonObject
from tenure.domain.request import BookingQuery, ResourceQuery
from tenure.domain.resource import Resource
from tenure.resources.contract import Inventory

#: Any text that is not empty means true, even ``false``, as in Blazar.
Flag = Annotated[str, Field(max_length=255, pattern=PRINTABLE)]


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


def _read_host(body: Mapping[str, Any], version: Version) -> Registration:
    given = check(LenientHostCreate, body, version)
    reference = given.id or given.name
    if not reference:
        raise InvalidHost(f"Invalid values for host {dict(body)!r}"[:400], field="name")
    extra: Mapping[str, str | None] = given.model_extra or {}
    check_reachable(extra.keys() - FIELDS, "")
    properties = {name: value for name, value in extra.items() if value is not None and name not in FIELDS}
    _check_lengths(properties)
    return Registration(reference, properties)


def _read_properties(body: Mapping[str, Any], version: Version) -> Mapping[str, str | None]:
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


_HOSTS = replace(
    HOSTS,
    registration=by_version(LenientHostCreate),
    read_registration=_read_host,
    answer=by_version(HostOf10),
    properties=WireProperties(by_version(LenientHostUpdate), _read_properties),
)


class LenientFloatingIPCreate(FloatingIPCreate):
    """A floating IP to be made reservable, as in Blazar."""

    model_config = ConfigDict(extra="ignore", title="FloatingIPCreate")


class FloatingIPOf10(FloatingIP):
    created_at: WithBlank
    updated_at: WithBlank | None


class NewFloatingIPOf10(FloatingIP):
    """A floating IP in the answer to its registration, where dates have another form, as in Blazar."""

    created_at: WithT
    updated_at: WithT | None


def _read_address(body: Mapping[str, Any], version: Version) -> Registration:
    given = check(LenientFloatingIPCreate, body, version)
    return Registration(f"{given.floating_network_id}/{given.floating_ip_address}")


_FLOATING_IPS = replace(
    FLOATING_IPS,
    registration=by_version(LenientFloatingIPCreate),
    read_registration=_read_address,
    answer=by_version(FloatingIPOf10),
    answer_new=by_version(NewFloatingIPOf10),
)
#: The inventories that Blazar has, by resource type; all others are at 1.0 as from 1.1 on.
_KNOWN: Mapping[str, WireInventory] = {wire.resource_type: wire for wire in (_HOSTS, _FLOATING_IPS)}


class ResourceList(BlazarQuery):
    def to_domain(self, resource_type: str) -> ResourceQuery:
        return ResourceQuery(resource_type, PAGE)


class AllocationList(BlazarQuery, AllocationQuery):
    model_config = ConfigDict(extra="ignore")  # the last base class would forbid unknown parameters

    def to_domain(self, resource_type: str) -> BookingQuery:
        return BookingQuery(resource_type, PAGE, None, self.lease_id, self.reservation_id)


class PropertyList(BlazarQuery):
    detail: Flag = ""
    all: Flag = ""


class BookingOf10(Booking):
    start_date: Annotated[WithT, From("starts_at")]
    end_date: Annotated[WithT, From("ends_at")]


class AllocationOf10(Allocation):
    reservations: Annotated[list[BookingOf10], From("bookings")]  # type: ignore[assignment]  # it is only written


class PropertySettingOf10(PropertySetting):
    created_at: WithT  # unlike most such dates
    updated_at: WithT | None


class LenientPropertyUpdate(PropertyUpdate):
    """Whether a property is private, that is, hidden from ordinary users."""

    model_config = ConfigDict(extra="ignore", title="PropertyUpdate")


class BlazarInventoryOperations(InventoryOperations):
    """The operations of an inventory, in Blazar's forms."""

    listed = WholeList
    allocations_query = AllocationList
    properties_query = PropertyList
    allocation = AllocationOf10
    property_change = LenientPropertyUpdate
    property_setting = PropertySettingOf10

    def __init__(self, wire: WireInventory, inventory: Inventory) -> None:
        super().__init__(_KNOWN.get(wire.resource_type, wire), inventory)

    def list_query(self) -> QueryAt:
        return by_version(ResourceList)

    def accepts_as_shown(self, request: Request) -> bool:
        """Whether the body shows the resource; otherwise its fields are names of properties, refused one by one."""
        return request.body().get("id") == self.resource_id(request)

    def without_shown(self, request: Request, models: ModelAt, *, is_strict: bool = False) -> JsonObject | None:
        return super().without_shown(request, models, is_strict=is_strict)
