"""Requests to boot servers that are kept until the start of a lease, and the servers that they will make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Boot:
    """A request to boot one server: the ``body`` as Nova takes it, and its compute microversion.

    Without a ``microversion`` it is one of the first version, 2.1. The body is the owner's secret: it may have
    passwords.
    """

    body: Mapping[str, Any] = field(repr=False)
    microversion: str | None = None
    #: The flavor as Nova has shown it to the caller; None if the cloud is to be asked.
    flavor: Mapping[str, object] | None = None

    @property
    def flavor_id(self) -> str:
        """The id of the flavor. Like Nova, accept an id or a link whose path ends with it; empty if there is none."""
        try:
            return urlsplit(str(self.body["server"].get("flavorRef") or "")).path.rpartition("/")[2]
        except ValueError:
            return ""

    def named(self, name: str) -> Boot:
        """Return the request for a server with this name."""
        return replace(self, body={**self.body, "server": {**self.body["server"], "name": name}})


@dataclass(frozen=True, slots=True)
class PlannedServer:
    """A server that is made at the start of its lease; ``reservation_id`` stands for it until then."""

    reservation_id: str
    name: str
    flavor_id: str
    #: The flavor as it was booked: its name, its sizes and its extra specs.
    flavor: Mapping[str, Any]
    #: The id that Nova has given it; None until it is made.
    server_id: str | None
    lease_id: str
    lease_name: str
    project_id: str
    user_id: str
    region: str
    starts_at: datetime
    ends_at: datetime
    created_at: datetime
    #: The status of the lease, and its reason for the owner.
    lease_status: str
    status_reason: str | None


@dataclass(frozen=True, slots=True)
class PlannedServerQuery:
    """A filter for servers that are still to be made, and a page of the list, the newest first.

    ``marker`` is the reservation of the last server of the page before.
    """

    limit: int
    marker: str | None = None
    project_id: str | None = None
