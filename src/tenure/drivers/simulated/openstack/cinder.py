"""Cinder: pools, volume types, volumes and snapshots; and how Nova detaches volumes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from tenure.drivers.simulated.openstack.service import (
    Answer,
    ApiRequest,
    Caller,
    Refused,
    Route,
    error_body,
    expect,
    only_admins,
    page_of,
    text,
    version_is,
    whole,
)
from tenure.drivers.simulated.openstack.state import State, Volume, VolumeSnapshot, VolumeType

#: The metadata that names the reservation of a volume.
_RESERVATION: Final = "tenure:reservation"
#: The statuses that are followed by another status.
_BUSY: Final = ("creating", "deleting")


class VolumeEffect(StrEnum):
    """The kinds of changes of volumes."""

    MADE = "volume made"
    DETACHED = "volume detached"
    KEPT = "volume kept"
    REMOVED = "volume removed"
    SNAPSHOT_MADE = "volume snapshot made"


class Cinder:
    def __init__(self, state: State) -> None:
        self._state = state
        state.complete_with("volume", self._have_worked)
        state.complete_with("volume snapshot", self._have_snapshot)

    def list_pools(self, request: ApiRequest, caller: Caller) -> Answer:
        only_admins(caller)
        version_is(request, "3.35")
        expect(request.params.get("detail"), "true")
        names: list[str] | None = None
        if (volume_type := request.params.get("volume_type")) is not None:
            names = self._type(volume_type).pools
        return 200, {
            "pools": [
                {
                    "name": pool.name,
                    "capabilities": {"total_capacity_gb": pool.total_gb, "backend_state": pool.state, "pool_name": "x"},
                }
                for pool in self._state.volume_pools.values()
                if names is None or pool.name in names
            ]
        }

    def list_types(self, request: ApiRequest, caller: Caller) -> Answer:
        only_admins(caller)
        expect(request.params.get("is_public"), "None")
        types = list(self._state.volume_types.values())
        page, _ = page_of(types, request, lambda volume_type: volume_type.id, self._state.page)
        return 200, {"volume_types": [shown_type(volume_type) for volume_type in page]}

    def show_default_type(self, request: ApiRequest, caller: Caller) -> Answer:
        return 200, {"volume_type": shown_type(next(iter(self._state.volume_types.values())))}

    def list_access(self, request: ApiRequest, caller: Caller, type_id: str) -> Answer:
        only_admins(caller)
        volume_type = self._type(type_id)
        if volume_type.projects is None:
            raise Refused(404, "Access list not available for public volume types.")
        access = [{"volume_type_id": volume_type.id, "project_id": project} for project in volume_type.projects]
        return 200, {"volume_type_access": access}

    def make_volume(self, request: ApiRequest, caller: Caller) -> Answer:
        body = request.body["volume"]
        expect(set(body), {"size", "name", "volume_type", "metadata"})
        whole(body["size"], 1)
        text(body["name"])
        state, volume_type = self._state, self._type(body["volume_type"])
        had = state.volumes_of(caller.project_id)
        if len(had) >= state.quotas.volumes:
            raise Refused(413, "VolumeLimitExceeded: Maximum number of volumes allowed exceeded for quota 'volumes'.")
        if sum(volume.size for volume in had) + body["size"] > state.gigabytes:
            raise Refused(413, "VolumeSizeExceedsAvailableQuota: Requested volume exceeds allowed gigabytes quota.")
        pool = state.stray_pool or (volume_type.pools or [next(iter(state.volume_pools))])[0]
        metadata = {str(name): str(value) for name, value in body["metadata"].items()}
        made = Volume(
            body["name"], body["size"], volume_type.name, caller.project_id, caller.user_id, pool, metadata=metadata
        )
        if state.volumes_that_fail or pool not in state.volume_pools:
            state.volumes_that_fail = max(0, state.volumes_that_fail - 1)
            made.status = "error"
        state.volumes[made.id] = made
        self._record(VolumeEffect.MADE, made)
        shown = shown_volume(made, for_admin=False)
        if state.volume_looks == 0:
            state.finish("volume", made.id)
            shown["status"] = made.status
        return 202, {"volume": shown}

    def list_volumes(self, request: ApiRequest, caller: Caller) -> Answer:
        only_admins(caller)
        expect(request.params.get("all_tenants"), "1")
        filters = ast.literal_eval(request.params["metadata"])
        found = [volume for volume in self._state.volumes.values() if filters.items() <= volume.metadata.items()]
        for volume in found:
            self._pass_time(volume)
        there = [volume for volume in found if volume.id in self._state.volumes]
        page, _ = page_of(there, request, lambda volume: volume.id, self._state.page)
        return 200, {"volumes": [shown_volume(volume, for_admin=True) for volume in page]}

    def show_volume(self, request: ApiRequest, caller: Caller, volume_id: str) -> Answer:
        volume = self._volume(volume_id)
        self._pass_time(volume)
        # This request has completed the deletion; raising the refusal would undo it.
        if volume_id not in self._state.volumes:
            return 404, error_body("block-storage", Refused(404, f"Volume {volume_id} could not be found."))
        return 200, {"volume": shown_volume(volume, for_admin=caller.is_admin)}

    def mark_volume(self, request: ApiRequest, caller: Caller, volume_id: str) -> Answer:
        volume = self._volume(volume_id)
        changed = request.body["metadata"].items() - volume.metadata.items()
        volume.metadata |= request.body["metadata"]
        self._state.volumes.save(volume.id)
        if changed:
            self._record(VolumeEffect.KEPT, volume)
        return 200, {"metadata": dict(volume.metadata)}

    def delete_volume(self, request: ApiRequest, caller: Caller, volume_id: str) -> Answer:
        volume = self._volume(volume_id)
        if volume.servers or volume.status in {"creating", "in-use"}:
            raise Refused(400, "Invalid volume: Volume status must be available or error, and must not be attached.")
        if request.params.get("cascade") != "true" and self._snapshots_of(volume):
            raise Refused(400, "Invalid volume: it has snapshots.")
        if volume.status != "deleting":
            self._record(VolumeEffect.REMOVED, volume)
        volume.status, volume.looks = "deleting", 0
        self._state.volumes.save(volume.id)
        if self._state.volume_looks == 0:
            self._state.finish("volume", volume.id)
        return 202, None

    def list_snapshots(self, request: ApiRequest, caller: Caller) -> Answer:
        only_admins(caller)
        expect(request.params.get("all_tenants"), "1")
        filters = ast.literal_eval(request.params["metadata"])
        snapshots = self._state.volume_snapshots.values()
        found = [snapshot for snapshot in snapshots if filters.items() <= snapshot.metadata.items()]
        shown = [{"id": snapshot.id, "volume_id": snapshot.volume_id, "status": snapshot.status} for snapshot in found]
        if self._state.volume_looks:
            for snapshot in found:
                self._have_snapshot(snapshot.id)
        return 200, {"snapshots": shown}

    def make_snapshot(self, request: ApiRequest, caller: Caller) -> Answer:
        body = request.body["snapshot"]
        expect(set(body), {"volume_id", "name", "metadata", "force"})
        volume = self._volume(body["volume_id"])
        if volume.project_id != caller.project_id:
            raise Refused(404, f"Volume {volume.id} could not be found.")
        made = VolumeSnapshot(volume.id, body["name"], caller.project_id, dict(body["metadata"]))
        self._state.volume_snapshots[made.id] = made
        self._record(VolumeEffect.SNAPSHOT_MADE, volume)
        if self._state.volume_looks == 0:
            self._state.finish("volume snapshot", made.id)
        return 202, {"snapshot": {"id": made.id, "volume_id": volume.id, "status": made.status}}

    def delete_snapshot(self, request: ApiRequest, caller: Caller, snapshot_id: str) -> Answer:
        if snapshot_id not in self._state.volume_snapshots:
            raise Refused(404, f"Snapshot {snapshot_id} could not be found.")
        del self._state.volume_snapshots[snapshot_id]
        return 202, None

    def detach_volume(self, request: ApiRequest, caller: Caller, server_id: str, volume_id: str) -> Answer:
        volume = self._volume(volume_id)
        if server_id not in volume.servers:
            raise Refused(404, f"volume_id not found: {volume_id}")
        volume.servers.remove(server_id)
        volume.status = "available"
        self._state.volumes.save(volume.id)
        self._record(VolumeEffect.DETACHED, volume)
        return 202, None

    def _pass_time(self, volume: Volume) -> None:
        """Count a request for the volume; after enough requests the requested operation is done."""
        if volume.status not in _BUSY or self._state.volume_looks == 0:
            return
        volume.looks += 1
        self._state.volumes.save(volume.id)
        if volume.looks >= self._state.volume_looks:
            self._have_worked(volume.id)

    def _have_worked(self, volume_id: str) -> None:
        """Complete the requested creation or deletion of the volume."""
        volume = self._state.volumes.get(volume_id)
        if volume is None:
            return
        if volume.status == "creating":
            volume.status, volume.looks = "available", 0
            self._state.volumes.save(volume.id)
        elif volume.status == "deleting":
            for snapshot in self._snapshots_of(volume):
                del self._state.volume_snapshots[snapshot.id]
            del self._state.volumes[volume.id]

    def _have_snapshot(self, snapshot_id: str) -> None:
        snapshot = self._state.volume_snapshots.get(snapshot_id)
        if snapshot is not None and snapshot.status == "creating":
            snapshot.status = "available"
            self._state.volume_snapshots.save(snapshot_id)

    def _record(self, kind: VolumeEffect, volume: Volume) -> None:
        self._state.record(kind, volume.metadata.get(_RESERVATION), subject=volume.id)

    def _snapshots_of(self, volume: Volume) -> list[VolumeSnapshot]:
        return [snapshot for snapshot in self._state.volume_snapshots.values() if snapshot.volume_id == volume.id]

    def _type(self, reference: str) -> VolumeType:
        for volume_type in self._state.volume_types.values():
            if reference in {volume_type.id, volume_type.name}:
                return volume_type
        raise Refused(404, f"Volume type {reference} could not be found.")

    def _volume(self, volume_id: str) -> Volume:
        if volume_id not in self._state.volumes:
            raise Refused(404, f"Volume {volume_id} could not be found.")
        return self._state.volumes[volume_id]

    @property
    def routes(self) -> Sequence[Route]:
        volume = "/volumes/([^/]+)"
        return (
            ("block-storage", "GET", "/scheduler-stats/get_pools", self.list_pools),
            ("block-storage", "GET", "/types", self.list_types),
            ("block-storage", "GET", "/types/default", self.show_default_type),
            ("block-storage", "GET", "/types/([^/]+)/os-volume-type-access", self.list_access),
            ("block-storage", "POST", "/volumes", self.make_volume),
            ("block-storage", "GET", "/volumes/detail", self.list_volumes),
            ("block-storage", "GET", volume, self.show_volume),
            ("block-storage", "POST", f"{volume}/metadata", self.mark_volume),
            ("block-storage", "DELETE", volume, self.delete_volume),
            ("block-storage", "GET", "/snapshots/detail", self.list_snapshots),
            ("block-storage", "POST", "/snapshots", self.make_snapshot),
            ("block-storage", "DELETE", "/snapshots/([^/]+)", self.delete_snapshot),
            ("compute", "DELETE", "/servers/([^/]+)/os-volume_attachments/([^/]+)", self.detach_volume),
        )


def shown_type(volume_type: VolumeType) -> dict[str, Any]:
    return {"id": volume_type.id, "name": volume_type.name, "is_public": volume_type.projects is None}


def shown_volume(volume: Volume, *, for_admin: bool) -> dict[str, Any]:
    of_admins = {"os-vol-tenant-attr:tenant_id": volume.project_id, "os-vol-host-attr:host": volume.pool or None}
    return {
        "id": volume.id,
        "name": volume.name,
        "size": volume.size,
        "status": volume.status,
        "metadata": dict(volume.metadata),
        "attachments": [
            {"server_id": server_id, "attachment_id": "a", "volume_id": volume.id} for server_id in volume.servers
        ],
        **(of_admins if for_admin else {}),
    }
