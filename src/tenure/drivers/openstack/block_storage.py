"""Cinder: pools, volume types, volumes and their snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tenure.domain.reason import Reason
from tenure.drivers.contract import CloudError, CloudNotFound
from tenure.drivers.openstack.requests import Calls, Owner, Request

SERVICE: Final = "block-storage"
#: The first microversion that lists pools by volume type.
_VERSION: Final = "3.35"
_PAGE: Final = "1000"
#: The size of a pool without a limit.
UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Pool:
    name: str
    total_gb: int
    is_up: bool


@dataclass(frozen=True, slots=True)
class VolumeType:
    id: str
    name: str
    is_public: bool


@dataclass(frozen=True, slots=True)
class Attachment:
    server_id: str


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume; ``pool`` is empty until Cinder has chosen one."""

    id: str
    name: str
    project_id: str
    status: str
    pool: str
    metadata: Mapping[str, str]
    attachments: tuple[Attachment, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: str
    status: str


class BlockStorage:
    """Cinder's API, for one driver call."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def pools(self, type_id: str | None = None) -> list[Pool]:
        """Return all pools, or those for volumes of that type, ordered by name."""
        params = {"detail": "true", **({} if type_id is None else {"volume_type": type_id})}
        found = self._send(Request(SERVICE, "GET", "/scheduler-stats/get_pools", params=params, microversion=_VERSION))
        return sorted(map(_pool, found["pools"]), key=lambda pool: pool.name)

    def volume_type(self, reference: str) -> VolumeType:
        """Return the type with that id or name, the default type for an empty text; raise ``CloudNotFound``."""
        if not reference:
            return _type(self._send(Request(SERVICE, "GET", "/types/default"))["volume_type"])
        params = {"is_public": "None", "limit": _PAGE}
        while True:
            page = self._send(Request(SERVICE, "GET", "/types", params=params))["volume_types"]
            types = [_type(volume_type) for volume_type in page]
            for found in sorted(types, key=lambda volume_type: volume_type.id != reference):
                if reference in {found.id, found.name}:
                    return found
            if len(page) < int(_PAGE):
                raise CloudNotFound(Reason(f"There is no volume type {reference}."))
            params["marker"] = types[-1].id

    def projects_of(self, volume_type: VolumeType) -> set[str]:
        """Return the projects that may use a private type."""
        path = f"/types/{quote(volume_type.id)}/os-volume-type-access"
        return {access["project_id"] for access in self._send(Request(SERVICE, "GET", path))["volume_type_access"]}

    def with_metadata(self, **expected: str) -> list[Volume]:
        """Return the volumes of all projects with these metadata."""
        found: list[Volume] = []
        params = {"all_tenants": "1", "limit": _PAGE, "metadata": str(expected)}
        while True:
            page = self._send(Request(SERVICE, "GET", "/volumes/detail", params=params))["volumes"]
            found += map(_volume, page)
            if len(page) < int(_PAGE):
                return found
            params["marker"] = page[-1]["id"]

    def existing(self, ids: Iterable[str]) -> list[Volume]:
        """Return those of these volumes that exist."""
        requests = [Request(SERVICE, "GET", f"/volumes/{quote(volume_id)}") for volume_id in ids]
        return [_volume(answer["volume"]) for answer in self._send_all(requests) if answer is not None]

    def make_all(self, bodies: Sequence[Mapping[str, object]], owner: Owner) -> list[Volume]:
        """Create volumes concurrently, as their owner. Raises Cinder's errors after all requests were sent."""
        requests = [Request(SERVICE, "POST", "/volumes", {"volume": dict(body)}, owner=owner) for body in bodies]
        answers = self._calls.send_all(requests)
        for answer in answers:
            if isinstance(answer, CloudError):
                raise answer
        return [_volume(answer["volume"]) for answer in answers]

    def mark(self, volumes: Iterable[Volume], metadata: Mapping[str, str]) -> None:
        """Add these metadata to each volume. Missing volumes are ignored."""
        self._send_all(
            [
                Request(SERVICE, "POST", f"/volumes/{volume.id}/metadata", {"metadata": dict(metadata)})
                for volume in volumes
            ]
        )

    def detach(self, volumes: Iterable[Volume]) -> None:
        """Ask Nova to detach volumes from their servers; does not wait for it. Missing ones are ignored."""
        self._send_all(
            [
                Request("compute", "DELETE", f"/servers/{attachment.server_id}/os-volume_attachments/{volume.id}")
                for volume in volumes
                for attachment in volume.attachments
            ]
        )

    def delete_all(self, volumes: Iterable[Volume]) -> None:
        """Delete volumes with their snapshots; does not wait for it. Missing volumes are ignored."""
        params = {"cascade": "true"}
        self._send_all([Request(SERVICE, "DELETE", f"/volumes/{volume.id}", params=params) for volume in volumes])

    def snapshots(self, metadata: Mapping[str, str]) -> dict[str, Snapshot]:
        """Return the snapshots of all projects with these metadata, by volume id."""
        params = {"all_tenants": "1", "limit": _PAGE, "metadata": str(dict(metadata))}
        found = self._send(Request(SERVICE, "GET", "/snapshots/detail", params=params))["snapshots"]
        return {snapshot["volume_id"]: Snapshot(snapshot["id"], snapshot["status"]) for snapshot in found}

    def take_snapshots(self, volumes: Iterable[Volume], metadata: Mapping[str, str], prefix: str, owner: Owner) -> None:
        """Create a snapshot of each volume as the owner; does not wait for it."""
        bodies = [
            {"volume_id": volume.id, "name": f"{prefix}{volume.name}"[:255], "metadata": dict(metadata), "force": True}
            for volume in volumes
        ]
        self._send_all([Request(SERVICE, "POST", "/snapshots", {"snapshot": body}, owner=owner) for body in bodies])

    def delete_snapshots(self, snapshots: Iterable[Snapshot]) -> None:
        self._send_all([Request(SERVICE, "DELETE", f"/snapshots/{snapshot.id}") for snapshot in snapshots])

    def _send_all(self, requests: Sequence[Request]) -> list[Any]:
        """Return the answer to each request, or None if its object is missing.

        Other errors are raised after all requests were sent.
        """
        answers = self._calls.send_all(requests)
        for answer in answers:
            if isinstance(answer, CloudError) and not isinstance(answer, CloudNotFound):
                raise answer
        return [None if isinstance(answer, CloudNotFound) else answer for answer in answers]

    def _send(self, request: Request) -> Any:
        return self._calls.send(request)


def _pool(found: Mapping[str, Any]) -> Pool:
    capabilities = found.get("capabilities") or {}
    total = capabilities.get("total_capacity_gb")
    total_gb = UNLIMITED if total == "infinite" else 0
    if isinstance(total, int | float):
        total_gb = min(int(total), UNLIMITED)
    return Pool(found["name"], total_gb, capabilities.get("backend_state", "up") == "up")


def _type(found: Mapping[str, Any]) -> VolumeType:
    return VolumeType(found["id"], found["name"], bool(found.get("is_public", True)))


def _volume(found: Mapping[str, Any]) -> Volume:
    return Volume(
        id=found["id"],
        name=found.get("name") or "",
        project_id=found.get("os-vol-tenant-attr:tenant_id") or "",
        status=found["status"],
        pool=found.get("os-vol-host-attr:host") or "",
        metadata=dict(found.get("metadata") or {}),
        attachments=tuple(
            Attachment(attachment["server_id"])
            for attachment in found.get("attachments") or ()
            if attachment["server_id"]
        ),
    )
