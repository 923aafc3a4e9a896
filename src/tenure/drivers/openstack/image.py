"""Images of servers, made in the name of their owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from keystoneauth1 import plugin

from tenure.drivers.contract import CloudError, CloudNotFound
from tenure.drivers.openstack.compute import Server
from tenure.drivers.openstack.session import BadRequest, Calls, Conflict, Request

#: The properties of an image by which it is found again.
RESERVATION: Final = "tenure_reservation_id"
SERVER: Final = "tenure_server_id"

_READY: Final = frozenset({"active", "deactivated"})
_LOST: Final = frozenset({"killed", "deleted", "pending_delete", "error"})
_LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class Snapshots:
    """How far the images of a reservation's servers are."""

    waiting_for: tuple[str, ...]


class Images:
    """What is asked of Glance, and of Nova about images, in the name of an owner."""

    def __init__(self, calls: Calls, owner: plugin.BaseAuthPlugin) -> None:
        self._calls = calls
        self._owner = owner

    def ensure_of(self, servers: Sequence[Server], reservation_id: str, prefix: str) -> Snapshots:
        """Have an image of each of these servers; tells for which of them it is not ready yet."""
        statuses = self._statuses(reservation_id)
        missing = [server for server in servers if server.id not in statuses]
        answers = self._calls.send_all([self._creation(server, reservation_id, prefix) for server in missing])
        made: list[str] = []
        for server, answer in zip(missing, answers, strict=True):
            if isinstance(answer, CloudNotFound | BadRequest):
                continue  # deleted meanwhile, or of a kind that has no images
            if isinstance(answer, CloudError) and not isinstance(answer, Conflict):
                raise answer
            made.append(server.name)
        if made:  # a fast cloud has them by now
            statuses = self._statuses(reservation_id)
        waiting = [
            server.name
            for server in servers
            if (server.id in statuses and statuses[server.id] not in _READY)
            or (server.id not in statuses and server.name in made)
        ]
        return Snapshots(tuple(waiting))

    def _statuses(self, reservation_id: str) -> dict[str, str]:
        """The statuses of the images of the reservation, by server; those that came to nothing are not counted."""
        found: dict[str, str] = {}
        path = "/images"
        params = {RESERVATION: reservation_id, "limit": "100"}
        while True:
            page = self._calls.send(Request("image", "GET", path, params=params, auth=self._owner))
            for image in page["images"]:
                if image["status"] not in _LOST and image.get(SERVER):
                    found[image[SERVER]] = image["status"]
            if not page.get("next") or not page["images"]:
                return found
            params["marker"] = page["images"][-1]["id"]

    def _creation(self, server: Server, reservation_id: str, prefix: str) -> Request:
        body = {
            "createImage": {
                "name": f"{prefix}{server.name}"[:_LONGEST_NAME],
                "metadata": {RESERVATION: reservation_id, SERVER: server.id},
            }
        }
        return Request("compute", "POST", f"/servers/{server.id}/action", body, auth=self._owner)


def of_project(servers: Iterable[Server], project_id: str) -> list[Server]:
    """Those of which the project can have an image: its own, that run or did run."""
    return [
        server
        for server in servers
        if server.project_id == project_id and server.status in {"ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"}
    ]
