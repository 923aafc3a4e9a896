"""Pools from which volumes can be reserved; for administrators."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tenureclient.documents import Document, LooseText, SetFlag, document
from tenureclient.inventory import Inventory, Kind
from tenureclient.models import Standing
from tenureclient.transport import Transport
from tenureclient.wire import JsonObject, Version

SORT_KEYS = ("id", "name")


@document("a volume pool", kw_only=True)
class VolumePool(Standing):
    """A volume pool. ``capacity_gb`` is the part of it that is lent to reservations, in GiB."""

    id: str
    name: str
    capacity_gb: int
    reservable: SetFlag
    health: str


@document("a volume pool of a lease", kw_only=True)
class LeaseVolumePool(Document):
    """A pool with volumes of a lease, as the lease's owner sees it.

    ``status`` is ``planned``, ``held``, ``released``, or ``kept`` while volumes remain after the lease.
    """

    id: str
    name: str
    status: LooseText
    reservation_id: str
    start_date: datetime
    end_date: datetime


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
