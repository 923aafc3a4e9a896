"""Images of servers, created as their owner."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tenure.domain.reason import Reason
from tenure.drivers.contract import DONE, CloudError, CloudNotFound, CloudRefused, Command, Progress
from tenure.drivers.openstack.compute import Server, instant
from tenure.drivers.openstack.identity import owner_of
from tenure.drivers.openstack.requests import BadRequest, Calls, Conflict, Owner, Request

LOG = logging.getLogger(__name__)

#: The image properties that identify the reservation and the server.
RESERVATION: Final = "tenure_reservation_id"
SERVER: Final = "tenure_server_id"
#: The image property that tells for which repetition of the action it was created; absent for the first time.
REPETITION: Final = "tenure_repetition"

_READY: Final = frozenset({"active", "deactivated"})
_LOST: Final = frozenset({"killed", "deleted", "pending_delete", "error"})
_LONGEST_NAME: Final = 255
#: How long after its creation an image is waited for if Nova is no longer creating it.
_IDLE: Final = timedelta(seconds=30)
#: The interval of checking whether images are ready.
_LOOK_AGAIN: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The state of the images of a reservation's servers, by server name."""

    waiting_for: tuple[str, ...]
    #: Servers without a usable image, now or later.
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Image:
    status: str
    created_at: datetime | None


class Images:
    """Glance's API, and Nova's for images, as an owner."""

    def __init__(self, calls: Calls, owner: Owner, now: datetime, command: Command) -> None:
        """The images of a command, for its repetition of the action."""
        self._calls = calls
        self._owner = owner
        self._now = now
        self._marks = {RESERVATION: command.reservation_id}
        if command.repetition:
            self._marks[REPETITION] = str(command.repetition)

    def ensure_of(self, servers: Sequence[Server], prefix: str) -> Snapshots:
        """Create an image of each of these servers; return for which of them it is not ready."""
        images = self._images()
        missing = [server for server in servers if server.id not in images]
        answers = self._calls.send_all([self._creation(server, prefix) for server in missing])
        made: set[str] = set()
        for server, answer in zip(missing, answers, strict=True):
            if isinstance(answer, CloudNotFound | BadRequest):
                continue  # deleted meanwhile, or a kind of server that has no images
            if isinstance(answer, CloudError) and not isinstance(answer, Conflict):
                raise answer
            made.add(server.id)
        if made:  # a fast cloud has created them already
            images = self._images()
        waiting_for = [server for server in servers if self._is_awaited(server, images, made)]
        ready = {server_id for server_id, image in images.items() if image.status in _READY}
        without = [server for server in servers if server.id not in ready and server not in waiting_for]
        return Snapshots(tuple(server.name for server in waiting_for), tuple(server.name for server in without))

    def _is_awaited(self, server: Server, images: Mapping[str, _Image], made: set[str]) -> bool:
        image = images.get(server.id)
        if image is None:
            return server.id in made
        if image.status in _READY:
            return False
        is_old = image.created_at is not None and self._now - image.created_at > _IDLE
        if is_old and server.task is None:
            LOG.warning(
                "the image of server %s failed: its status is %s, and Nova has finished", server.id, image.status
            )
            return False
        return True

    def _images(self) -> dict[str, _Image]:
        """Return the images of this repetition by server id, without failed ones."""
        found: dict[str, _Image] = {}
        params = {RESERVATION: self._marks[RESERVATION], "limit": "100"}
        while True:
            page = self._calls.send(Request("image", "GET", "/images", params=params, owner=self._owner))
            for image in page["images"]:
                is_mine = image.get(REPETITION) == self._marks.get(REPETITION)
                if is_mine and image["status"] not in _LOST and image.get(SERVER):
                    found[image[SERVER]] = _Image(image["status"], instant(image.get("created_at")))
            if not page.get("next") or not page["images"]:
                return found
            params["marker"] = page["images"][-1]["id"]

    def _creation(self, server: Server, prefix: str) -> Request:
        body = {
            "createImage": {
                "name": f"{prefix}{server.name}"[:_LONGEST_NAME],
                "metadata": {**self._marks, SERVER: server.id},
            }
        }
        return Request("compute", "POST", f"/servers/{server.id}/action", body, owner=self._owner)


def saved(
    calls: Calls, command: Command, servers: Sequence[Server], *, prefix: str, now: datetime, all_of_them: bool
) -> Progress:
    """Create an image of each of a reservation's servers, and report whether all are ready.

    Raises ``CloudRefused`` if one of them has none, and ``all_of_them`` must have one.
    """
    found = of_project(servers, command.project_id)
    if all_of_them and len(found) < len(servers):
        states = ", ".join(sorted({server.status for server in servers}))
        raise CloudRefused(Reason(f"No image can be made of a server in {states}; it is kept."))
    if not found:
        return DONE
    owner = owner_of(calls, command, purpose="Images")
    images = Images(calls, owner, now, command).ensure_of(found, prefix)
    if images.waiting_for:
        return Progress(False, _LOOK_AGAIN, Reason(f"Images are being saved of {', '.join(images.waiting_for[:10])}."))
    if all_of_them and images.without:
        raise CloudRefused(Reason(f"No image was created of {', '.join(images.without)}; it is kept."))
    return DONE


def of_project(servers: Iterable[Server], project_id: str) -> list[Server]:
    """Return the servers of which the project can have an image: its own, that run or have run."""
    return [
        server
        for server in servers
        if server.project_id == project_id and server.status in {"ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"}
    ]
