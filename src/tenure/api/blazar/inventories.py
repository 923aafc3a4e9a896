"""The operations of inventories at 1.0."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, StrictBool

from tenure.api.blazar.answers import AllocationOf10, PropertySettingOf10, WholeList
from tenure.api.blazar.floatingips import BLAZAR_FLOATING_IPS
from tenure.api.blazar.hosts import BLAZAR_HOSTS
from tenure.api.blazar.queries import AllocationList, PropertyList, ResourceList
from tenure.api.inventories import InventoryOperations
from tenure.api.operations import Request
from tenure.api.schemas.answers import ModelAt
from tenure.api.schemas.queries import QueryAt
from tenure.api.schemas.resources import WireInventory
from tenure.api.versions import by_version
from tenure.domain.json_text import JsonObject
from tenure.resources.contract import Inventory

#: The inventories that Blazar has, by resource type; all others are at 1.0 as from 1.1 on.
_KNOWN: Mapping[str, WireInventory] = {wire.resource_type: wire for wire in (BLAZAR_HOSTS, BLAZAR_FLOATING_IPS)}


class LenientPropertyUpdate(BaseModel):
    """Whether a property is private, that is, hidden from ordinary users."""

    model_config = ConfigDict(extra="ignore", title="PropertyUpdate")

    private: StrictBool


class BlazarInventoryOperations(InventoryOperations):
    """The operations of an inventory, in Blazar's forms."""

    listed = WholeList
    allocations_query = AllocationList
    properties_query = PropertyList
    allocation = AllocationOf10
    property_change = LenientPropertyUpdate
    property_setting = PropertySettingOf10

    def __init__(self, wire: WireInventory, stock: Inventory) -> None:
        super().__init__(_KNOWN.get(wire.resource_type, wire), stock)

    def list_query(self) -> QueryAt:
        return by_version(ResourceList)

    def accepts_as_shown(self, request: Request) -> bool:
        """Whether the body shows the resource; otherwise its fields are names of properties, refused one by one."""
        return request.body().get("id") == self.resource_id(request)

    def without_shown(self, request: Request, models: ModelAt, *, is_strict: bool = False) -> JsonObject | None:
        return super().without_shown(request, models, is_strict=is_strict)
