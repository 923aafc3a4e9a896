"""Pools of volumes on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from tenure.api.schemas import answers
from tenure.api.schemas.moments import show_maybe_rfc3339
from tenure.api.schemas.queries import ResourceListQuery
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import (
    Document,
    ModelsOfRequest,
    Registration,
    WireInventory,
    WireLending,
    show_part,
    show_standing,
)
from tenure.api.schemas.texts import MAX_EXTERNAL_ID, PRINTABLE
from tenure.api.versions import Version
from tenure.domain.capacity import Capacity
from tenure.domain.request import LeasedResource, ResourceOrder
from tenure.domain.resource import Resource

#: The resource class of a pool's room, in GiB.
ROOM = "DISK_GB"

_PoolName = Annotated[
    StrictStr,
    Field(
        min_length=1,
        max_length=MAX_EXTERNAL_ID,
        pattern=PRINTABLE,
        description="The pool as the cloud calls it, such as `storage-1@lvm#lvm`.",
    ),
]


_Lent = Annotated[StrictInt, Field(ge=1, le=2**31 - 1, description="How many GiB of it are lent to reservations.")]


class VolumePoolCreate(BaseModel):
    """A pool of volumes, of which so many GiB are lent to reservations."""

    model_config = ConfigDict(extra="forbid")

    name: _PoolName
    capacity_gb: _Lent


class VolumePoolChange(BaseModel):
    """How much of a pool is lent from now on: no more than there is, and no less than is promised or kept."""

    model_config = ConfigDict(extra="forbid")

    capacity_gb: _Lent


class VolumePoolSortKey(StrEnum):
    ID = "id"
    NAME = "name"


class VolumePoolListQuery(ResourceListQuery):
    sort_key: VolumePoolSortKey = VolumePoolSortKey.ID
    name: _PoolName | None = None

    @property
    def order(self) -> ResourceOrder:
        return ResourceOrder.ID if self.sort_key is VolumePoolSortKey.ID else ResourceOrder.NAME

    @property
    def named(self) -> str | None:
        return self.name


class LeasedVolumePool(answers.Answer):
    id: str
    name: str
    reservation_id: str
    start_date: answers.Rfc3339Text
    end_date: answers.Rfc3339Text
    status: answers.ALLOCATION_STATES


class VolumePool(answers.Answer):
    """A pool of volumes, and how much of it is lent to reservations."""

    id: str
    name: str
    capacity_gb: int
    reservable: bool
    created_at: answers.Rfc3339Text
    updated_at: answers.Rfc3339Text | None
    region: str | None
    enabled: bool
    disabled_reason: str | None
    health: answers.HEALTHS
    health_reason: str | None
    health_since: answers.Rfc3339Text | None


def read_registration(body: Mapping[str, Any], version: Version) -> Registration:
    given = check(VolumePoolCreate, body, version)
    return Registration(given.name, capacity=Capacity({ROOM: given.capacity_gb}))


def read_lent(body: Mapping[str, Any], version: Version) -> Capacity:
    return Capacity({ROOM: check(VolumePoolChange, body, version).capacity_gb})


def show_pool(pool: Resource, version: Version) -> Document:
    return {
        "id": pool.external_id,
        "name": pool.name,
        "capacity_gb": pool.capacity[ROOM],
        "reservable": pool.reservable,
        "created_at": show_maybe_rfc3339(pool.created_at),
        "updated_at": show_maybe_rfc3339(pool.updated_at),
        **show_standing(pool, version),
    }


def show_leased_pool(leased: LeasedResource) -> Document:
    """A pool as the owner of a lease of volumes in it sees it."""
    return {"id": leased.resource.external_id, "name": leased.resource.name, **show_part(leased)}


VOLUME_POOLS = WireInventory(
    resource_type="virtual:volume",
    path="/v1/volume-pools",
    part="volume_pool_id",
    one="volume_pool",
    many="volume_pools",
    links="volume_pools_links",
    noun="volume pool",
    nouns="volume pools",
    query=VolumePoolListQuery,
    registration=ModelsOfRequest(VolumePoolCreate, VolumePoolCreate),
    read_registration=read_registration,
    show=show_pool,
    show_new=show_pool,
    show_leased=show_leased_pool,
    answer=lambda _version: VolumePool,
    answer_new=lambda _version: VolumePool,
    leased_answer=LeasedVolumePool,
    lending=WireLending(VolumePoolChange, read_lent),
    allocations_since=Version.V1_2,
    since=Version.V1_2,
)
