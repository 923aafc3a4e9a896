"""Pools and volumes of a simulated cloud, and what people do with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tenure.drivers.contract import CloudNotFound, CloudRefused
from tenure.drivers.simulated.catalogue import FAST_POOL, SLOW_POOL
from tenure.drivers.simulated.openstack import state as objects
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.state import VolumePool, VolumeType


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume that a project has; ``snapshots`` is how many there are of it."""

    id: str
    name: str
    project_id: str
    size_gb: int
    volume_type: str
    pool: str
    status: str
    server_id: str | None
    metadata: Mapping[str, str]
    snapshots: int


class VolumeWorld:
    """What there is of volumes."""

    #: The pools that every simulated cloud has.
    fast = FAST_POOL
    slow = SLOW_POOL

    def __init__(self, cloud: OpenStack) -> None:
        self._cloud = cloud

    def all(self) -> dict[str, Volume]:
        """All volumes by id."""
        self._cloud.settle()
        with self._cloud.objects.look():
            return {
                volume.id: Volume(
                    volume.id,
                    volume.name,
                    volume.project_id,
                    volume.size,
                    volume.volume_type,
                    volume.pool,
                    volume.status,
                    next(iter(volume.servers), None),
                    dict(volume.metadata),
                    len(self._snapshots_of(volume.id)),
                )
                for volume in self._cloud.volumes.values()
            }

    def delete(self, volume: str) -> None:
        """Delete a volume. Raises ``CloudRefused`` while there is a snapshot of it."""
        with self._cloud.objects.change():
            if self._snapshots_of(volume):
                raise CloudRefused(f"There is a snapshot of {volume}.")
            if volume not in self._cloud.volumes:
                raise CloudNotFound(f"There is no volume {volume}.")
            del self._cloud.volumes[volume]

    def delete_snapshot(self, volume: str) -> None:
        """Delete the snapshots of a volume."""
        with self._cloud.objects.change():
            for snapshot_id in self._snapshots_of(volume):
                del self._cloud.volume_snapshots[snapshot_id]

    def attach(self, volume: str, server_id: str) -> None:
        """Attach a volume to a server."""
        with self._changed(volume) as found:
            found.servers.append(server_id)
            found.status = "in-use"

    def change_metadata(self, volume: str, metadata: Mapping[str, str]) -> None:
        """Replace the metadata of a volume."""
        with self._changed(volume) as found:
            found.metadata = dict(metadata)

    def add_pool(self, name: str, total_gb: int, *, volume_type: str) -> None:
        """A pool, and a type that leads to it."""
        made = VolumeType(volume_type, [name])
        with self._cloud.objects.change():
            self._cloud.volume_pools[name] = VolumePool(name, total_gb)
            self._cloud.volume_types[made.id] = made

    def remove_pool(self, name: str) -> None:
        """A pool is gone, with all that lies in it."""
        with self._cloud.objects.change():
            for volume in [volume for volume in self._cloud.volumes.values() if volume.pool == name]:
                del self._cloud.volumes[volume.id]
            del self._cloud.volume_pools[name]

    def mark_pool(self, name: str, *, up: bool) -> None:
        """A pool fails, or works again."""
        with self._cloud.objects.change():
            self._cloud.volume_pools[name].state = "up" if up else "down"
            self._cloud.volume_pools.save(name)

    def _snapshots_of(self, volume: str) -> list[str]:
        snapshots = self._cloud.volume_snapshots.values()
        return [snapshot.id for snapshot in snapshots if snapshot.volume_id == volume]

    @contextmanager
    def _changed(self, volume: str) -> Iterator[objects.Volume]:
        with self._cloud.objects.change():
            if volume not in self._cloud.volumes:
                raise CloudNotFound(f"There is no volume {volume}.")
            yield self._cloud.volumes[volume]
            self._cloud.volumes.save(volume)
