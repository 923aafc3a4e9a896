"""Volume pools on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from tenure.api.schemas.answers import Answer, From, LeasedAnswer, Rfc3339Text, Standing
from tenure.api.schemas.queries import ResourceListQuery
from tenure.api.schemas.refusals import check
from tenure.api.schemas.resources import Registration, WireInventory, WireLending
from tenure.api.schemas.texts import MAX_EXTERNAL_ID, PRINTABLE
from tenure.api.versions import Version, by_version
from tenure.domain.capacity import Capacity

#: The resource class of the room in a pool, in GiB.
ROOM = "DISK_GB"

_PoolName = Annotated[
    StrictStr,
    Field(
        min_length=1,
        max_length=MAX_EXTERNAL_ID,
        pattern=PRINTABLE,
        description="The name of the pool in the cloud, such as `storage-1@lvm#lvm`.",
    ),
]


_Lent = Annotated[StrictInt, Field(ge=1, le=2**31 - 1, description="The GiB of the pool that reservations can use.")]


class VolumePoolCreate(BaseModel):
    """A volume pool to be made reservable."""

    model_config = ConfigDict(extra="forbid")

    name: _PoolName
    capacity_gb: _Lent


class VolumePoolChange(BaseModel):
    """A new lent capacity of a volume pool: at most its size, and at least the capacity that is booked or kept."""

    model_config = ConfigDict(extra="forbid")

    capacity_gb: _Lent


class VolumePoolListQuery(ResourceListQuery):
    NAME = "name"

    sort_key: Literal["id", "name"] = "id"
    name: _PoolName | None = None


class LeasedVolumePool(LeasedAnswer):
    id: Annotated[str, From("external_id")]
    name: str


class _Lendable(Answer):
    id: Annotated[str, From("external_id")]
    name: str
    capacity_gb: Annotated[int, From(lambda pool: pool.capacity[ROOM])]
    reservable: bool
    created_at: Rfc3339Text
    updated_at: Rfc3339Text | None


class VolumePool(Standing, _Lendable):
    """A volume pool, and its capacity that is lent to reservations."""


def read_registration(body: Mapping[str, Any], version: Version) -> Registration:
    given = check(VolumePoolCreate, body, version)
    return Registration(given.name, capacity=Capacity({ROOM: given.capacity_gb}))


def read_lent(given: VolumePoolChange) -> Capacity:
    return Capacity({ROOM: given.capacity_gb})


VOLUME_POOLS = WireInventory(
    resource_type="virtual:volume",
    path="/v1/volume-pools",
    one="volume_pool",
    many="volume_pools",
    noun="volume pool",
    nouns="volume pools",
    query=VolumePoolListQuery,
    registration=by_version(VolumePoolCreate),
    read_registration=read_registration,
    answer=by_version(VolumePool),
    leased_answer=LeasedVolumePool,
    lending=WireLending(VolumePoolChange, read_lent),
    allocations_since=Version.V1_2,
    since=Version.V1_2,
)
