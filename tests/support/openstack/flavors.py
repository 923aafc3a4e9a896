"""The small OpenStack's flavors and server groups."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from tests.support.openstack.answers import Refused, Route, Seen, expect, only_admins, page_of, text, version_is, whole

_VERSION: Final = "compute 2.61"
_GROUPS: Final = "compute 2.64"
_ID: Final = re.compile(r"(?! )[a-zA-Z0-9. _-]+(?<! )")
_SPEC: Final = re.compile(r"[a-zA-Z0-9-_:. ]{1,255}")
_SIZES: Final = {"ram": 1, "vcpus": 1, "disk": 0, "OS-FLV-EXT-DATA:ephemeral": 0, "swap": 0}


@dataclass
class Flavor:
    id: str
    name: str
    vcpus: int = 1
    ram: int = 512
    disk: int = 1
    ephemeral: int = 0
    swap: int = 0
    is_public: bool = True
    extra_specs: dict[str, str] = field(default_factory=dict)
    projects: set[str] = field(default_factory=set)
    #: What Nova tells flavors apart by, also those of one id that were there one after the other.
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass
class ServerGroup:
    name: str
    policy: str
    project_id: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


class FakeFlavors:
    """Flavors with extra specs and access, and server groups."""

    page: int

    def __init__(self) -> None:
        self.flavors: dict[str, Flavor] = {}
        self.groups: dict[str, ServerGroup] = {}
        #: How many server groups a project may have.
        self.group_quota = 10

    def add_flavor(self, flavor: Flavor) -> Flavor:
        self.flavors[flavor.id] = flavor
        return flavor

    # Answering: flavors

    def _list_flavors(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        asks_for_all = seen.params.get("is_public", "").lower() == "none" and "admin" in token["roles"]
        found = [one for one in self.flavors.values() if asks_for_all or one.is_public]
        page, more = page_of(found, seen, lambda one: str(one.id), self.page)
        links = {"flavors_links": [{"rel": "next", "href": "next"}]} if more else {}
        return 200, {"flavors": [_shown(one) for one in page], **links}

    def _show_flavor(self, seen: Seen, token: dict[str, Any], flavor_id: str) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        return 200, {"flavor": _shown(self._flavor(flavor_id, token))}

    def _make_flavor(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        only_admins(token)
        expect(set(seen.body), {"flavor"})
        body = seen.body["flavor"]
        allowed = {*_SIZES, "id", "name", "os-flavor-access:is_public", "rxtx_factor", "description"}
        if not {"name", "ram", "vcpus", "disk"} <= body.keys() <= allowed:
            raise Refused(400, f"Invalid input for field/attribute flavor: {sorted(body)}")
        for name in _SIZES.keys() & body.keys():
            whole(body[name], _SIZES[name])
        text(body["name"])
        if not _ID.fullmatch(body["id"]):
            raise Refused(400, f"Invalid input for field/attribute id: {body['id']}")
        if body["id"] in self.flavors or body["name"] in {one.name for one in self.flavors.values()}:
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
        return 200, {"flavor": _shown(self.add_flavor(made))}

    def _delete_flavor(self, seen: Seen, token: dict[str, Any], flavor_id: str) -> tuple[int, Any]:
        only_admins(token)
        del self.flavors[self._flavor(flavor_id, token).id]
        return 202, None

    def _list_access(self, seen: Seen, token: dict[str, Any], flavor_id: str) -> tuple[int, Any]:
        only_admins(token)
        flavor = self._flavor(flavor_id, token)
        if flavor.is_public:
            raise Refused(404, "Access list not available for public flavors.")
        return 200, _access(flavor)

    def _act_on_flavor(self, seen: Seen, token: dict[str, Any], flavor_id: str) -> tuple[int, Any]:
        version_is(seen, _VERSION)
        only_admins(token)
        ((action, values),) = seen.body.items()
        expect(set(values), {"tenant"})
        text(values["tenant"])
        flavor, project = self._flavor(flavor_id, token), values["tenant"]
        if action == "addTenantAccess":
            if flavor.is_public:
                raise Refused(409, "Can not add access to a public flavor.")
            if project in flavor.projects:
                raise Refused(409, f"Flavor access already exists for flavor {flavor_id} and project {project}.")
            flavor.projects.add(project)
        else:
            expect(action, "removeTenantAccess")
            if project not in flavor.projects:
                raise Refused(404, f"Flavor access not found for {flavor_id} / {project} combination.")
            flavor.projects.remove(project)
        return 200, _access(flavor)

    def _list_specs(self, seen: Seen, token: dict[str, Any], flavor_id: str) -> tuple[int, Any]:
        return 200, {"extra_specs": dict(self._flavor(flavor_id, token).extra_specs)}

    def _add_specs(self, seen: Seen, token: dict[str, Any], flavor_id: str) -> tuple[int, Any]:
        only_admins(token)
        expect(set(seen.body), {"extra_specs"})
        for name, value in seen.body["extra_specs"].items():
            if not _SPEC.fullmatch(name) or not isinstance(value, str) or len(value) > 255:
                raise Refused(400, f"Invalid input for field/attribute extra_specs: {name}")
        self._flavor(flavor_id, token).extra_specs.update(seen.body["extra_specs"])
        return 200, {"extra_specs": seen.body["extra_specs"]}

    def _drop_spec(self, seen: Seen, token: dict[str, Any], flavor_id: str, name: str) -> tuple[int, Any]:
        only_admins(token)
        flavor = self._flavor(flavor_id, token)
        if name not in flavor.extra_specs:
            raise Refused(404, f"Flavor {flavor_id} has no extra specs with key {name}.")
        del flavor.extra_specs[name]
        return 200, None

    def _flavor(self, flavor_id: str, token: dict[str, Any]) -> Flavor:
        """As far as the caller may know of it."""
        found = self.flavors.get(flavor_id)
        may_see = found is not None and (
            found.is_public or token["project"] in found.projects or "admin" in token["roles"]
        )
        if found is None or not may_see:
            raise Refused(404, f"Flavor {flavor_id} could not be found.")
        return found

    # Answering: server groups

    def _list_groups(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        version_is(seen, _GROUPS)
        everybodys = "all_projects" in seen.params and "admin" in token["roles"]
        found = [one for one in self.groups.values() if everybodys or one.project_id == token["project"]]
        offset, limit = int(seen.params.get("offset", 0)), int(seen.params.get("limit", self.page))
        return 200, {"server_groups": [_shown_group(one) for one in found[offset:][: min(limit, self.page)]]}

    def _make_group(self, seen: Seen, token: dict[str, Any]) -> tuple[int, Any]:
        version_is(seen, _GROUPS)
        expect(set(seen.body), {"server_group"})
        body = seen.body["server_group"]
        if not {"name", "policy"} <= body.keys() <= {"name", "policy", "rules"}:
            raise Refused(400, f"Invalid input for field/attribute server_group: {sorted(body)}")
        text(body["name"])
        if body["policy"] not in {"affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"}:
            raise Refused(400, f"Invalid input for field/attribute policy: {body['policy']}")
        if sum(one.project_id == token["project"] for one in self.groups.values()) >= self.group_quota:
            raise Refused(403, "Quota exceeded, too many server groups.")
        made = ServerGroup(body["name"], body["policy"], token["project"])
        self.groups[made.id] = made
        return 200, {"server_group": _shown_group(made)}

    def _delete_group(self, seen: Seen, token: dict[str, Any], group_id: str) -> tuple[int, Any]:
        found = self.groups.get(group_id)
        if found is None:
            raise Refused(404, f"Instance group {group_id} could not be found.")
        if found.project_id != token["project"]:
            only_admins(token)
        del self.groups[group_id]
        return 204, None

    FLAVORS: ClassVar[tuple[Route, ...]] = (
        ("compute", "GET", "/v2.1/flavors/detail", _list_flavors),
        ("compute", "POST", "/v2.1/flavors", _make_flavor),
        ("compute", "GET", "/v2.1/flavors/([^/]+)", _show_flavor),
        ("compute", "DELETE", "/v2.1/flavors/([^/]+)", _delete_flavor),
        ("compute", "GET", "/v2.1/flavors/([^/]+)/os-flavor-access", _list_access),
        ("compute", "POST", "/v2.1/flavors/([^/]+)/action", _act_on_flavor),
        ("compute", "GET", "/v2.1/flavors/([^/]+)/os-extra_specs", _list_specs),
        ("compute", "POST", "/v2.1/flavors/([^/]+)/os-extra_specs", _add_specs),
        ("compute", "DELETE", "/v2.1/flavors/([^/]+)/os-extra_specs/([^/]+)", _drop_spec),
        ("compute", "GET", "/v2.1/os-server-groups", _list_groups),
        ("compute", "POST", "/v2.1/os-server-groups", _make_group),
        ("compute", "DELETE", "/v2.1/os-server-groups/([^/]+)", _delete_group),
    )


def _access(flavor: Flavor) -> dict[str, Any]:
    return {"flavor_access": [{"flavor_id": flavor.id, "tenant_id": one} for one in sorted(flavor.projects)]}


def _shown(one: Flavor) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "vcpus": one.vcpus,
        "ram": one.ram,
        "disk": one.disk,
        "OS-FLV-EXT-DATA:ephemeral": one.ephemeral,
        "swap": one.swap or "",  # before 2.75
        "os-flavor-access:is_public": one.is_public,
        "rxtx_factor": 1.0,
        "OS-FLV-DISABLED:disabled": False,
        "description": None,
        "links": [],
        "extra_specs": dict(one.extra_specs),
    }


def _shown_group(one: ServerGroup) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "policy": one.policy,
        "rules": {},
        "members": [],
        "project_id": one.project_id,
        "user_id": "somebody",
    }
