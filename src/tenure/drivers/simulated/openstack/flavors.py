"""Nova's flavors, with extra specs and access, and its server groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from tenure.drivers.simulated.openstack.effects import EffectKind
from tenure.drivers.simulated.openstack.service import (
    Answer,
    ApiRequest,
    Caller,
    Refused,
    Route,
    expect,
    next_link,
    number,
    only_admins,
    page_of,
    text,
    version_is,
    whole,
)
from tenure.drivers.simulated.openstack.state import Flavor, ServerGroup, State

_VERSION: Final = "2.61"
_GROUPS: Final = "2.64"
#: The prefix of the names of reservations' server groups; the id follows.
_OF_RESERVATION: Final = "reservation:"
_ID: Final = re.compile(r"(?! )[a-zA-Z0-9. _-]+(?<! )")
_SPEC: Final = re.compile(r"[a-zA-Z0-9-_:. ]{1,255}")
#: The least value of each size.
_LEAST: Final = {"ram": 1, "vcpus": 1, "disk": 0, "OS-FLV-EXT-DATA:ephemeral": 0, "swap": 0}


class Flavors:
    def __init__(self, state: State) -> None:
        self._state = state

    def list_flavors(self, request: ApiRequest, caller: Caller) -> Answer:
        version_is(request, _VERSION)
        wants_all = request.params.get("is_public", "").lower() == "none" and caller.is_admin
        found = [
            flavor
            for flavor in self._state.flavors.values()
            if wants_all or flavor.is_public or (not caller.is_admin and caller.project_id in flavor.projects)
        ]
        page, has_more = page_of(found, request, lambda flavor: str(flavor.id), self._state.page)
        return 200, {"flavors": [_shown(flavor) for flavor in page], **next_link("flavors", has_more)}

    def show_flavor(self, request: ApiRequest, caller: Caller, flavor_id: str) -> Answer:
        version_is(request, _VERSION)
        return 200, {"flavor": _shown(self.find(flavor_id, caller))}

    def make_flavor(self, request: ApiRequest, caller: Caller) -> Answer:
        version_is(request, _VERSION)
        only_admins(caller)
        expect(set(request.body), {"flavor"})
        body = request.body["flavor"]
        allowed = {*_LEAST, "id", "name", "os-flavor-access:is_public", "rxtx_factor", "description"}
        if not {"name", "ram", "vcpus", "disk"} <= body.keys() <= allowed:
            raise Refused(400, f"Invalid input for field/attribute flavor: {sorted(body)}")
        for name in _LEAST.keys() & body.keys():
            whole(body[name], _LEAST[name])
        text(body["name"])
        if not _ID.fullmatch(body["id"]):
            raise Refused(400, f"Invalid input for field/attribute id: {body['id']}")
        names = {flavor.name for flavor in self._state.flavors.values()}
        if body["id"] in self._state.flavors or body["name"] in names:
            raise Refused(409, f"Flavor with ID {body['id']} already exists.")
        made = Flavor(
            body["id"],
            body["name"],
            body["vcpus"],
            body["ram"],
            body["disk"],
            body.get("OS-FLV-EXT-DATA:ephemeral", 0),
            body.get("swap", 0),
            body.get("os-flavor-access:is_public", True),
        )
        self._state.flavors[made.id] = made
        self._state.record(EffectKind.FLAVOR_MADE, made.id)
        return 200, {"flavor": _shown(made)}

    def delete_flavor(self, request: ApiRequest, caller: Caller, flavor_id: str) -> Answer:
        only_admins(caller)
        del self._state.flavors[self.find(flavor_id, caller).id]
        self._state.record(EffectKind.FLAVOR_REMOVED, flavor_id)
        return 202, None

    def list_access(self, request: ApiRequest, caller: Caller, flavor_id: str) -> Answer:
        only_admins(caller)
        flavor = self.find(flavor_id, caller)
        if flavor.is_public:
            raise Refused(404, "Access list not available for public flavors.")
        return 200, _access(flavor)

    def act_on_flavor(self, request: ApiRequest, caller: Caller, flavor_id: str) -> Answer:
        version_is(request, _VERSION)
        only_admins(caller)
        ((action, values),) = request.body.items()
        expect(set(values), {"tenant"})
        text(values["tenant"])
        flavor, project = self.find(flavor_id, caller), values["tenant"]
        if action == "addTenantAccess":
            if flavor.is_public:
                raise Refused(409, "Can not add access to a public flavor.")
            if project in flavor.projects:
                raise Refused(409, f"Flavor access already exists for flavor {flavor_id} and project {project}.")
            flavor.projects.add(project)
            self._state.record(EffectKind.ACCESS_GIVEN, flavor_id, subject=project)
        else:
            expect(action, "removeTenantAccess")
            if project not in flavor.projects:
                raise Refused(404, f"Flavor access not found for {flavor_id} / {project} combination.")
            flavor.projects.remove(project)
            self._state.record(EffectKind.ACCESS_TAKEN, flavor_id, subject=project)
        self._state.flavors.save(flavor.id)
        return 200, _access(flavor)

    def list_specs(self, request: ApiRequest, caller: Caller, flavor_id: str) -> Answer:
        return 200, {"extra_specs": dict(self.find(flavor_id, caller).extra_specs)}

    def add_specs(self, request: ApiRequest, caller: Caller, flavor_id: str) -> Answer:
        only_admins(caller)
        expect(set(request.body), {"extra_specs"})
        added = request.body["extra_specs"]
        for name, value in added.items():
            if not _SPEC.fullmatch(name) or not isinstance(value, str) or len(value) > 255:
                raise Refused(400, f"Invalid input for field/attribute extra_specs: {name}")
        flavor = self.find(flavor_id, caller)
        flavor.extra_specs.update(added)
        self._state.flavors.save(flavor.id)
        self._state.record(EffectKind.FLAVOR_CHANGED, flavor_id)
        return 200, {"extra_specs": dict(added)}

    def delete_spec(self, request: ApiRequest, caller: Caller, flavor_id: str, name: str) -> Answer:
        only_admins(caller)
        flavor = self.find(flavor_id, caller)
        if name not in flavor.extra_specs:
            raise Refused(404, f"Flavor {flavor_id} has no extra specs with key {name}.")
        del flavor.extra_specs[name]
        self._state.flavors.save(flavor.id)
        self._state.record(EffectKind.FLAVOR_CHANGED, flavor_id)
        return 200, None

    def find(self, flavor_id: str, caller: Caller) -> Flavor:
        """Return the flavor if the caller may see it."""
        flavor = self._state.flavors.get(flavor_id)
        if flavor is None or not (flavor.is_public or caller.project_id in flavor.projects or caller.is_admin):
            raise Refused(404, f"Flavor {flavor_id} could not be found.")
        return flavor

    # Server groups

    def list_groups(self, request: ApiRequest, caller: Caller) -> Answer:
        version_is(request, _GROUPS)
        wants_all = "all_projects" in request.params and caller.is_admin
        found = [group for group in self._state.groups.values() if wants_all or group.project_id == caller.project_id]
        offset = number(request, "offset", 0)
        limit = min(number(request, "limit", self._state.page), self._state.page)
        return 200, {"server_groups": [_shown_group(group) for group in found[offset : offset + limit]]}

    def make_group(self, request: ApiRequest, caller: Caller) -> Answer:
        version_is(request, _GROUPS)
        expect(set(request.body), {"server_group"})
        body = request.body["server_group"]
        if not {"name", "policy"} <= body.keys() <= {"name", "policy", "rules"}:
            raise Refused(400, f"Invalid input for field/attribute server_group: {sorted(body)}")
        text(body["name"])
        if body["policy"] not in {"affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"}:
            raise Refused(400, f"Invalid input for field/attribute policy: {body['policy']}")
        had = [group for group in self._state.groups.values() if group.project_id == caller.project_id]
        if len(had) >= self._state.group_quota:
            raise Refused(403, "Quota exceeded, too many server groups.")
        made = ServerGroup(body["name"], body["policy"], caller.project_id)
        self._state.groups[made.id] = made
        self._record(EffectKind.SERVER_GROUP_MADE, made)
        return 200, {"server_group": _shown_group(made)}

    def delete_group(self, request: ApiRequest, caller: Caller, group_id: str) -> Answer:
        group = self._state.groups.get(group_id)
        if group is None:
            raise Refused(404, f"Instance group {group_id} could not be found.")
        if group.project_id != caller.project_id:
            only_admins(caller)
        del self._state.groups[group_id]
        self._record(EffectKind.SERVER_GROUP_REMOVED, group)
        return 204, None

    def _record(self, kind: EffectKind, group: ServerGroup) -> None:
        self._state.record(kind, group.name.removeprefix(_OF_RESERVATION), subject=group.id)

    @property
    def routes(self) -> Sequence[Route]:
        flavor = "/flavors/([^/]+)"
        return (
            ("compute", "GET", "/flavors/detail", self.list_flavors),
            ("compute", "POST", "/flavors", self.make_flavor),
            ("compute", "GET", flavor, self.show_flavor),
            ("compute", "DELETE", flavor, self.delete_flavor),
            ("compute", "GET", f"{flavor}/os-flavor-access", self.list_access),
            ("compute", "POST", f"{flavor}/action", self.act_on_flavor),
            ("compute", "GET", f"{flavor}/os-extra_specs", self.list_specs),
            ("compute", "POST", f"{flavor}/os-extra_specs", self.add_specs),
            ("compute", "DELETE", f"{flavor}/os-extra_specs/([^/]+)", self.delete_spec),
            ("compute", "GET", "/os-server-groups", self.list_groups),
            ("compute", "POST", "/os-server-groups", self.make_group),
            ("compute", "DELETE", "/os-server-groups/([^/]+)", self.delete_group),
        )


def _access(flavor: Flavor) -> dict[str, Any]:
    projects = sorted(flavor.projects)
    return {"flavor_access": [{"flavor_id": flavor.id, "tenant_id": project_id} for project_id in projects]}


def _shown(flavor: Flavor) -> dict[str, Any]:
    return {
        "id": flavor.id,
        "name": flavor.name,
        "vcpus": flavor.vcpus,
        "ram": flavor.ram,
        "disk": flavor.disk,
        "OS-FLV-EXT-DATA:ephemeral": flavor.ephemeral,
        "swap": flavor.swap or "",  # before 2.75
        "os-flavor-access:is_public": flavor.is_public,
        "rxtx_factor": 1.0,
        "OS-FLV-DISABLED:disabled": False,
        "description": None,
        "links": [],
        "extra_specs": dict(flavor.extra_specs),
    }


def _shown_group(group: ServerGroup) -> dict[str, Any]:
    return {
        "id": group.id,
        "name": group.name,
        "policy": group.policy,
        "rules": {},
        "members": [],
        "project_id": group.project_id,
        "user_id": f"user-of-{group.project_id}",
    }
