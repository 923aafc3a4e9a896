"""Nova's server groups: how the servers of a reservation are spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tenure.drivers.contract import CloudNotFound
from tenure.drivers.openstack.compute import FLAVOR_PREFIX
from tenure.drivers.openstack.requests import Calls, Owner, Request

#: The first microversion with a single policy.
_VERSION: Final = "2.64"
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class ServerGroup:
    id: str
    name: str
    policy: str
    project_id: str

    @property
    def reservation_id(self) -> str:
        return self.name.removeprefix(FLAVOR_PREFIX)


def policy_of(parameters: Mapping[str, object]) -> str | None:
    """Return the policy of the reservation's server group, or None if it needs no group."""
    match parameters.get("affinity"):
        case True:
            return "affinity"
        case False:
            return "anti-affinity"
        case _:
            return None


class ServerGroups:
    """Nova's API for server groups, for one driver call."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def of_reservations(self) -> list[ServerGroup]:
        """Return the groups of all projects with the name of a reservation's group, ordered by id."""
        found: list[ServerGroup] = []
        offset = 0
        while True:
            params = {"all_projects": "true", "limit": str(_PAGE), "offset": str(offset)}
            page = self._send(Request("compute", "GET", "/os-server-groups", params=params, microversion=_VERSION))
            groups = page["server_groups"]
            found += [_group(group) for group in groups if group["name"].startswith(FLAVOR_PREFIX)]
            if not groups:
                return sorted(found, key=lambda group: group.id)
            offset += len(groups)

    def of(self, reservation_id: str, project_id: str) -> list[ServerGroup]:
        """Return the groups of the reservation in its owner's project, or in any if the project is not known."""
        return [
            group
            for group in self.of_reservations()
            if group.reservation_id == reservation_id and project_id in ("", group.project_id)
        ]

    def make(self, reservation_id: str, policy: str, owner: Owner) -> ServerGroup:
        """Create a group as the owner, to whom it then belongs."""
        body = {"server_group": {"name": f"{FLAVOR_PREFIX}{reservation_id}", "policy": policy}}
        request = Request("compute", "POST", "/os-server-groups", body, microversion=_VERSION, owner=owner)
        return _group(self._send(request)["server_group"])

    def delete(self, group_id: str) -> None:
        try:
            self._send(Request("compute", "DELETE", f"/os-server-groups/{group_id}", microversion=_VERSION))
        except CloudNotFound:
            return

    def _send(self, request: Request) -> Any:
        return self._calls.send(request)


def _group(found: Mapping[str, Any]) -> ServerGroup:
    return ServerGroup(found["id"], found["name"], found.get("policy") or "", found.get("project_id") or "")
