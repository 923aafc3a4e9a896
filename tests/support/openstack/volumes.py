"""The small OpenStack's Cinder, and what Nova does with volumes."""

from __future__ import annotations

import ast
import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from tests.support.openstack.answers import Refused, Route, Seen, expect, only_admins, page_of, text, version_is, whole

_BUSY: Final = ("creating", "deleting")
#: What is before every path: the version, and the project of the token.
_ROOT: Final = "/v3/[^/]+"


@dataclass
class VolumePool:
    name: str
    total_gb: float | str = 1000.0
    state: str = "up"


@dataclass
class VolumeType:
    name: str
    #: None for all of them.
    pools: list[str] | None = None
    projects: list[str] | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass
class Volume:
    name: str
    size: int
    volume_type: str
    project_id: str
    user_id: str
    pool: str = ""
    status: str = "creating"
    metadata: dict[str, str] = field(default_factory=dict)
    servers: list[str] = field(default_factory=list)
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    #: How often it was looked at since its status began: Cinder takes its time.
    looks: int = 0


@dataclass
class VolumeSnapshot:
    volume_id: str
    name: str
    project_id: str
    metadata: dict[str, str]
    status: str = "creating"
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


class FakeCinder:
    """Pools, types, volumes and snapshots. What is asked for is done by the second look at it."""

    page: int

    def __init__(self) -> None:
        self.volume_pools = [VolumePool("storage@fast#nvme"), VolumePool("storage@slow#disk", "infinite")]
        self.volume_types = [VolumeType("fast", ["storage@fast#nvme"]), VolumeType("any")]
        self.volumes: dict[str, Volume] = {}
        self.volume_snapshots: dict[str, VolumeSnapshot] = {}
        #: How many GiB a project may have.
        self.gigabytes = 1000
        #: Where the next volume goes, instead of where its type leads.
        self.stray_pool: str | None = None
        #: How many volumes cannot be made.
        self.volumes_that_fail = 0

    # Answering

    def _list_pools(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        only_admins(token)
        version_is(seen, "volume 3.35")
        expect(seen.params.get("detail"), "true")
        names: list[str] | None = None
        if (wanted := seen.params.get("volume_type")) is not None:
            names = self._type(wanted).pools
        return 200, {
            "pools": [
                {
                    "name": one.name,
                    "capabilities": {"total_capacity_gb": one.total_gb, "backend_state": one.state, "pool_name": "x"},
                }
                for one in self.volume_pools
                if names is None or one.name in names
            ]
        }

    def _list_types(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        only_admins(token)
        expect(seen.params.get("is_public"), "None")
        found, _ = page_of(self.volume_types, seen, lambda one: one.id, self.page)
        return 200, {"volume_types": [_shown_type(one) for one in found]}

    def _default_type(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"volume_type": _shown_type(self.volume_types[0])}

    def _list_access(self, seen: Seen, token: dict[str, Any], type_id: str) -> tuple[int, Any]:
        only_admins(token)
        kind = self._type(type_id)
        if kind.projects is None:
            raise Refused(404, "Access list not available for public volume types.")
        return 200, {"volume_type_access": [{"volume_type_id": kind.id, "project_id": one} for one in kind.projects]}

    def _make_volume(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        body = dict(seen.body["volume"])
        expect(set(body), {"size", "name", "volume_type", "metadata"})
        whole(body["size"], 1)
        text(body["name"])
        kind = self._type(body["volume_type"])
        used = sum(one.size for one in self.volumes.values() if one.project_id == token["project"])
        if used + body["size"] > self.gigabytes:
            raise Refused(413, "VolumeSizeExceedsAvailableQuota: Requested volume exceeds allowed gigabytes quota.")
        pool = self.stray_pool or (kind.pools or [self.volume_pools[0].name])[0]
        made = Volume(body["name"], body["size"], kind.name, token["project"], token["user"], pool)
        made.metadata = {str(name): str(value) for name, value in body["metadata"].items()}
        self.volumes[made.id] = made
        if self.volumes_that_fail:
            self.volumes_that_fail -= 1
            made.status = "error"
        shown = _shown_volume(made, admin=False)
        return 202, {"volume": {**shown, "status": "creating"}}

    def _list_volumes(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        only_admins(token)
        expect(seen.params.get("all_tenants"), "1")
        wanted = ast.literal_eval(seen.params["metadata"])
        found = [one for one in self.volumes.values() if wanted.items() <= one.metadata.items()]
        for one in found:
            self._pass_time(one)
        page, _ = page_of([one for one in found if one.id in self.volumes], seen, lambda one: one.id, self.page)
        return 200, {"volumes": [_shown_volume(one, admin=True) for one in page]}

    def _show_volume(self, seen: Seen, token: dict[str, Any], volume_id: str) -> tuple[int, Any]:
        self._pass_time(self._volume(volume_id))
        return 200, {"volume": _shown_volume(self._volume(volume_id), admin="admin" in token["roles"])}

    def _mark_volume(self, seen: Seen, token: dict[str, Any], volume_id: str) -> tuple[int, Any]:
        volume = self._volume(volume_id)
        volume.metadata |= seen.body["metadata"]
        return 200, {"metadata": volume.metadata}

    def _delete_volume(self, seen: Seen, token: dict[str, Any], volume_id: str) -> tuple[int, Any]:
        volume = self._volume(volume_id)
        if volume.servers or volume.status in {"creating", "in-use"}:
            raise Refused(400, "Invalid volume: Volume status must be available or error, and must not be attached.")
        if seen.params.get("cascade") != "true" and any(self._snapshots_of(volume)):
            raise Refused(400, "Invalid volume: it has snapshots.")
        volume.status, volume.looks = "deleting", 0
        return 202, None

    def _list_snapshots(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        only_admins(token)
        expect(seen.params.get("all_tenants"), "1")
        wanted = ast.literal_eval(seen.params["metadata"])
        found = [one for one in self.volume_snapshots.values() if wanted.items() <= one.metadata.items()]
        shown = [{"id": one.id, "volume_id": one.volume_id, "status": one.status} for one in found]
        for one in found:
            one.status = "available" if one.status == "creating" else one.status
        return 200, {"snapshots": shown}

    def _make_snapshot(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        body = dict(seen.body["snapshot"])
        expect(set(body), {"volume_id", "name", "metadata", "force"})
        volume = self._volume(body["volume_id"])
        if volume.project_id != token["project"]:
            raise Refused(404, f"Volume {volume.id} could not be found.")
        made = VolumeSnapshot(volume.id, body["name"], token["project"], dict(body["metadata"]))
        self.volume_snapshots[made.id] = made
        return 202, {"snapshot": {"id": made.id, "volume_id": volume.id, "status": made.status}}

    def _delete_snapshot(self, seen: Seen, token: dict[str, Any], snapshot_id: str) -> tuple[int, Any]:
        if self.volume_snapshots.pop(snapshot_id, None) is None:
            raise Refused(404, f"Snapshot {snapshot_id} could not be found.")
        return 202, None

    def _detach_volume(self, seen: Seen, token: dict[str, Any], server_id: str, volume_id: str) -> tuple[int, Any]:
        volume = self._volume(volume_id)
        if server_id not in volume.servers:
            raise Refused(404, f"volume_id not found: {volume_id}")
        volume.servers.remove(server_id)
        volume.status = "available"
        return 202, None

    def _pass_time(self, volume: Volume) -> None:
        if volume.status not in _BUSY:
            return
        volume.looks += 1
        if volume.looks < 2:
            return
        if volume.status == "creating":
            volume.status, volume.looks = "available", 0
        else:
            del self.volumes[volume.id]
            for one in self._snapshots_of(volume):
                del self.volume_snapshots[one.id]

    def _snapshots_of(self, volume: Volume) -> list[VolumeSnapshot]:
        return [one for one in self.volume_snapshots.values() if one.volume_id == volume.id]

    def _type(self, reference: str) -> VolumeType:
        for one in self.volume_types:
            if reference in {one.id, one.name}:
                return one
        raise Refused(404, f"Volume type {reference} could not be found.")

    def _volume(self, volume_id: str) -> Volume:
        try:
            return self.volumes[volume_id]
        except KeyError:
            raise Refused(404, f"Volume {volume_id} could not be found.") from None

    VOLUMES: ClassVar[tuple[Route, ...]] = (
        ("volume", "GET", f"{_ROOT}/scheduler-stats/get_pools", _list_pools),
        ("volume", "GET", f"{_ROOT}/types", _list_types),
        ("volume", "GET", f"{_ROOT}/types/default", _default_type),
        ("volume", "GET", f"{_ROOT}/types/([^/]+)/os-volume-type-access", _list_access),
        ("volume", "POST", f"{_ROOT}/volumes", _make_volume),
        ("volume", "GET", f"{_ROOT}/volumes/detail", _list_volumes),
        ("volume", "GET", f"{_ROOT}/volumes/([^/]+)", _show_volume),
        ("volume", "POST", f"{_ROOT}/volumes/([^/]+)/metadata", _mark_volume),
        ("volume", "DELETE", f"{_ROOT}/volumes/([^/]+)", _delete_volume),
        ("volume", "GET", f"{_ROOT}/snapshots/detail", _list_snapshots),
        ("volume", "POST", f"{_ROOT}/snapshots", _make_snapshot),
        ("volume", "DELETE", f"{_ROOT}/snapshots/([^/]+)", _delete_snapshot),
        ("compute", "DELETE", "/v2.1/servers/([^/]+)/os-volume_attachments/([^/]+)", _detach_volume),
    )


def _shown_type(one: VolumeType) -> dict[str, Any]:
    return {"id": one.id, "name": one.name, "is_public": one.projects is None}


def _shown_volume(one: Volume, *, admin: bool) -> dict[str, Any]:
    inner = {"os-vol-tenant-attr:tenant_id": one.project_id, "os-vol-host-attr:host": one.pool or None}
    return {
        "id": one.id,
        "name": one.name,
        "size": one.size,
        "status": one.status,
        "metadata": dict(one.metadata),
        "attachments": [{"server_id": server, "attachment_id": "a", "volume_id": one.id} for server in one.servers],
        **(inner if admin else {}),
    }
