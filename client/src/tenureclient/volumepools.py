"""Pools from which volumes can be reserved; for administrators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from tenureclient.inventory import Inventory, Kind
from tenureclient.models import standing
from tenureclient.transport import Transport
from tenureclient.wire import Fields, JsonObject, JsonValue, Version

SORT_KEYS = ("id", "name")


@dataclass(frozen=True, slots=True)
class VolumePool:
    """A volume pool. ``capacity_gb`` is the part of it that is lent to reservations, in GiB."""

    id: str
    name: str
    capacity_gb: int
    reservable: bool
    created_at: datetime | None
    updated_at: datetime | None
    enabled: bool | None
    disabled_reason: str | None
    health: str | None
    health_reason: str | None
    health_since: datetime | None
    #: The region of the pool; None if the service has no regions.
    region: str | None

    @classmethod
    def from_wire(cls, document: JsonValue) -> VolumePool:
        fields = Fields(document, "a volume pool")
        return cls(
            id=fields.text("id"),
            name=fields.text("name"),
            capacity_gb=fields.number("capacity_gb"),
            reservable=fields.flag("reservable", default=True),
            created_at=fields.maybe_moment("created_at"),
            updated_at=fields.maybe_moment("updated_at"),
            **standing(fields),
        )


@dataclass(frozen=True, slots=True)
class LeaseVolumePool:
    """A pool with volumes of a lease, as the lease's owner sees it.

    ``status`` is ``planned``, ``held``, ``released``, or ``kept`` while volumes remain after the lease.
    """

    id: str
    name: str
    reservation_id: str
    start_date: datetime
    end_date: datetime
    status: str

    @classmethod
    def from_wire(cls, document: JsonValue) -> LeaseVolumePool:
        fields = Fields(document, "a volume pool of a lease")
        return cls(
            id=fields.text("id"),
            name=fields.text("name"),
            reservation_id=fields.text("reservation_id"),
            start_date=fields.moment("start_date"),
            end_date=fields.moment("end_date"),
            status=fields.loose_text("status"),
        )


_KIND = Kind(
    path="volume-pools",
    document_key="volume_pool",
    list_key="volume_pools",
    noun="volume pool",
    name="name",
    read=VolumePool.from_wire,
)


class VolumePools(Inventory[VolumePool]):
    """The volume pools that are registered with the reservation service."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, _KIND)

    def create(self, name: str, capacity_gb: int, *, region: str | None = None) -> VolumePool:
        """Lend ``capacity_gb`` GiB of a Cinder pool with this name to reservations.

        Without a ``region``, the pool belongs to the home region.
        """
        placed: JsonObject = {} if region is None else {"region": region}
        answer = self._transport.call(
            "POST",
            _KIND.path,
            body=lambda _version: {"name": name, "capacity_gb": capacity_gb, **placed},
            feature="volumes",
            since=Version.V1_2,
            makes=True,
        )
        return self._read_resource(answer)

    def lend(self, pool_id: str, capacity_gb: int) -> VolumePool:
        """Change how many GiB are lent: at most the pool's size, at least what is promised or kept."""
        answer = self._transport.call(
            "PUT",
            _KIND.path,
            pool_id,
            body=lambda _version: {"capacity_gb": capacity_gb},
            feature="volumes",
            since=Version.V1_2,
        )
        return self._read_resource(answer)

    def list(
        self,
        *,
        name: str | None = None,
        region: str | None = None,
        reservable: bool | None = None,
        sort_key: str = "id",
        descending: bool = False,
    ) -> Iterator[VolumePool]:
        """Yield the matching pools; further pages are fetched as needed."""
        return self._list(
            {"name": name, "region": region},
            reservable=reservable,
            sort_key=sort_key,
            descending=descending,
        )
