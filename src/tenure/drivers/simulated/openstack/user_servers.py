"""Servers as users boot them, list them, and act on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tenure.drivers.simulated.openstack.flavors import Flavors
from tenure.drivers.simulated.openstack.scheduler import NoValidHost, Scheduler
from tenure.drivers.simulated.openstack.servers import Servers, shown_server
from tenure.drivers.simulated.openstack.service import (
    Answer,
    ApiRequest,
    Caller,
    Refused,
    Route,
    only_admins,
    page_from,
    printable,
    text,
    whole,
)
from tenure.drivers.simulated.openstack.state import IMAGE_OF, Flavor, Server, State

#: The public images, by name.
PUBLIC_IMAGES: Final = {
    "cirros": "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0301",
    "debian-12": "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0302",
}
#: How many servers one request can boot.
_MOST_AT_ONCE: Final = 100
#: How many metadata and tags a server can have, how long a tag can be, and how long all hints together, in JSON.
_MOST_METADATA, _MOST_TAGS, _LONGEST_TAG, _LONGEST_HINTS = 128, 50, 60, 4096
#: The microversion from which a server has its flavor's sizes in place of its id.
_EMBEDDED: Final = (2, 47)
_INSTANT: Final = "%Y-%m-%dT%H:%M:%SZ"
#: The actions on a server, and whether they are for administrators only, as in Nova's default policy.
ACTIONS: Final[Mapping[str, bool]] = {
    "forceDelete": False,
    "os-stop": False,
    "os-start": False,
    "createImage": False,
    "shelve": False,
    "unshelve": False,
    "confirmResize": False,
    "unrescue": False,
    "unpause": False,
    "resume": False,
    "shelveOffload": True,
    "migrate": True,
    "evacuate": True,
    "os-resetState": True,
}
#: The properties of an image that Glance sets, and the prefix of those that Tenure sets.
_OF_GLANCE: Final = frozenset({
    "id", "name", "owner", "status", "visibility", "created_at", "updated_at", "file", "schema", "self", "size",
    "virtual_size", "checksum", "disk_format", "container_format", "min_disk", "min_ram", "protected", "tags",
    "locations", "direct_url", "os_hash_algo", "os_hash_value", "os_hidden", IMAGE_OF,
})  # fmt: skip
_OF_TENURE: Final = "tenure_"


@dataclass(frozen=True, slots=True)
class _Boot:
    """A valid request to boot servers."""

    name: str
    count: int
    flavor: Flavor
    image_id: str
    hints: Mapping[str, Any]
    metadata: Mapping[str, str]
    tags: Sequence[str]

    def servers(self, caller: Caller) -> list[Server]:
        """Return the servers, which are on no host yet."""
        names = [self.name] if self.count == 1 else [f"{self.name}-{number}" for number in range(1, self.count + 1)]
        flavor = replace(self.flavor, projects=set(), extra_specs=dict(self.flavor.extra_specs))
        return [
            Server(
                name,
                "",
                caller.project_id,
                dict(self.hints),
                flavor=flavor,
                group_id=self.hints.get("group"),
                user_id=caller.user_id,
                metadata=dict(self.metadata),
                tags=list(self.tags),
                image_id=self.image_id,
            )
            for name in names
        ]


class UserServers:
    """Nova's servers for users. A user sees the servers of the project, an administrator sees all."""

    def __init__(self, state: State, scheduler: Scheduler, flavors: Flavors, servers: Servers) -> None:
        self._state = state
        self._scheduler = scheduler
        self._flavors = flavors
        self._servers = servers

    def list_servers(self, request: ApiRequest, caller: Caller) -> Answer:
        everyone = request.params.get("all_tenants", "").lower() in {"1", "true"}
        if everyone or "host" in request.params:
            only_admins(caller)
        filters = {
            name: request.params[name] for name in ("name", "status", "host", "project_id") if name in request.params
        }
        servers = self._state.servers.values() if everyone else self._state.servers_of(caller.project_id)
        found = sorted(
            (server for server in servers if _passes(server, filters)), key=lambda server: server.created, reverse=True
        )
        shown = [self._shown(server, request, caller) for server in page_from(found, request)]
        if not request.path.endswith("/detail"):
            shown = [{name: server[name] for name in ("id", "name", "links")} for server in shown]
        return 200, {"servers": shown}

    def show_server(self, request: ApiRequest, caller: Caller, server_id: str) -> Answer:
        return 200, {"server": self._shown(self._server(server_id, caller), request, caller)}

    def boot_servers(self, request: ApiRequest, caller: Caller) -> Answer:
        """Boot servers; those without a host are created with the status ERROR, as in Nova."""
        boot = self._read_boot(request.body, caller)
        self._check_quota(boot, caller)
        servers = boot.servers(caller)
        for server in self._scheduler.place_alike(servers):
            server.status, server.fault = "ERROR", str(NoValidHost())
            self._state.servers[server.id] = server
        answer = {
            "id": servers[0].id,
            "links": [],
            "OS-DCF:diskConfig": "MANUAL",
            "adminPass": "",
            "security_groups": [],
        }
        return 202, {"server": answer}

    def rename_server(self, request: ApiRequest, caller: Caller, server_id: str) -> Answer:
        """Change the name of a server, which is all that can be changed here."""
        server, changes = self._server(server_id, caller), _component(request.body, "server")
        if set(changes) != {"name"}:
            raise Refused(400, "Invalid input for field/attribute server: only the name can be changed")
        printable(changes["name"])
        server.name = changes["name"]
        self._state.servers.save(server.id)
        return 200, {"server": self._shown(server, request, caller)}

    def delete_server(self, request: ApiRequest, caller: Caller, server_id: str) -> Answer:
        self._server(server_id, caller)
        return self._servers.act_on_server(replace(request, body={"forceDelete": None}), caller, server_id)

    def act_on_server(self, request: ApiRequest, caller: Caller, server_id: str) -> Answer:
        server = self._server(server_id, caller)
        if not isinstance(request.body, dict) or len(request.body) != 1:
            raise Refused(400, "There is no such action")
        ((action, values),) = request.body.items()
        if action not in ACTIONS:
            raise Refused(400, f"There is no such action: {str(action)[:80]}")
        if ACTIONS[action] or (action == "unshelve" and values is not None):
            only_admins(caller)
        if action == "createImage":
            request = replace(request, body={action: self._read_image(values, server)})
        try:
            return self._servers.act_on_server(request, caller, server_id)
        except (AttributeError, KeyError, TypeError) as error:
            raise Refused(400, f"Invalid input for {action}") from error

    def _read_boot(self, document: Any, caller: Caller) -> _Boot:
        """Return the request in a body, if it is valid and the caller may use all that it names."""
        body = _component(document, "server")
        hints = _mapping(document, "os:scheduler_hints") or _mapping(document, "OS-SCH-HNT:scheduler_hints")
        _check_hints(hints)
        metadata = _mapping(body, "metadata")
        _check_metadata(metadata)
        printable(body.get("name"))
        count = _count(body.get("min_count"))
        return _Boot(
            name=body["name"],
            count=count,
            flavor=self._flavor(str(body.get("flavorRef", "")).rpartition("/")[2], caller),
            image_id=self._image(body.get("imageRef"), caller),
            hints={**hints, **({"group": self._group(hints["group"], caller)} if "group" in hints else {})},
            metadata=metadata,
            tags=_tags(body.get("tags")),
        )

    def _flavor(self, flavor_id: str, caller: Caller) -> Flavor:
        flavor = self._flavors.find(flavor_id, caller)
        try:
            self._state.footprint_of_flavor(flavor)
        except ValueError as error:
            raise Refused(400, f"Flavor {flavor.name} cannot be booted: {error}") from None
        return flavor

    def _image(self, image_id: Any, caller: Caller) -> str:
        """Return the id of an image that the caller may boot; empty if none is named."""
        if not image_id:
            return ""
        text(image_id)
        image = self._state.images.get(image_id)
        if image_id not in PUBLIC_IMAGES.values() and (image is None or image["owner"] != caller.project_id):
            raise Refused(400, f"Can not find requested image {image_id}")
        return str(image_id)

    def _group(self, group_id: Any, caller: Caller) -> str | None:
        if group_id is None:
            return None
        text(group_id)
        group = self._state.groups.get(group_id)
        if group is None or group.project_id != caller.project_id:
            raise Refused(400, f"Instance group {group_id} could not be found.")
        return group.id

    def _check_quota(self, boot: _Boot, caller: Caller) -> None:
        quotas = self._state.quotas
        for name, request, had, most in (
            ("instances", boot.count, len(self._state.servers_of(caller.project_id)), quotas.servers),
            ("cores", boot.count * boot.flavor.vcpus, self._state.cores_of(caller.project_id), quotas.cores),
        ):
            if had + request > most:
                used = f"but already used {had} of {most} {name}"
                raise Refused(403, f"Quota exceeded for {name}: Requested {request}, {used}")

    def _read_image(self, values: Any, server: Server) -> dict[str, Any]:
        """Return the requested properties of an image.

        Refuses properties that only Glance or Tenure sets, and an image above the quota.
        """
        if not isinstance(values, dict) or not values.keys() <= {"name", "metadata"}:
            raise Refused(400, "Invalid input for createImage")
        printable(values.get("name"))
        metadata = _mapping(values, "metadata")
        _check_metadata(metadata)
        for name in metadata:
            if name.lower() in _OF_GLANCE or name.lower().startswith(_OF_TENURE):
                raise Refused(400, f"Invalid input for metadata: {name} cannot be set by users")
        if len(self._state.images_of(server.project_id)) >= self._state.quotas.images:
            raise Refused(403, f"Quota exceeded for images: a project has at most {self._state.quotas.images}")
        return {"name": values["name"], "metadata": metadata}

    def _server(self, server_id: str, caller: Caller) -> Server:
        server = self._state.servers.get(server_id)
        if server is None or not (server.project_id == caller.project_id or caller.is_admin):
            raise Refused(404, f"Instance {server_id} could not be found.")
        return server

    def _shown(self, server: Server, request: ApiRequest, caller: Caller) -> dict[str, Any]:
        """Return a server as Nova shows it: administrators see its host."""
        host = self._state.hosts.get(server.host)
        shown = shown_server(server, host)
        shown |= {
            "links": [],
            "image": {"id": server.image_id, "links": []} if server.image_id else "",
            "addresses": {},
            "key_name": None,
            "accessIPv4": "",
            "accessIPv6": "",
            "config_drive": "",
            "hostId": "",
            "progress": 0,
            "OS-DCF:diskConfig": "MANUAL",
            "OS-EXT-STS:power_state": 1 if server.status == "ACTIVE" else 4,
            "OS-EXT-AZ:availability_zone": "nova" if server.host else "",
            "os-extended-volumes:volumes_attached": [],
        }
        if _version(request) < _EMBEDDED:
            shown["flavor"] = {"id": server.flavor.id if server.flavor else "1", "links": []}
        service_host, name = shown.pop("OS-EXT-SRV-ATTR:host"), shown.pop("OS-EXT-SRV-ATTR:hypervisor_hostname")
        if caller.is_admin:
            shown |= {
                "OS-EXT-SRV-ATTR:host": service_host or None,
                "OS-EXT-SRV-ATTR:hypervisor_hostname": name,
                "OS-EXT-SRV-ATTR:instance_name": f"instance-{server.id[:8]}",
            }
        if server.fault:
            fault = {"code": 500, "message": server.fault, "created": server.created.strftime(_INSTANT)}
            shown["fault"] = fault
        return shown

    @property
    def routes(self) -> Sequence[Route]:
        server = "/servers/([^/]+)"
        return (
            ("compute", "GET", "/servers(?:/detail)?", self.list_servers),
            ("compute", "POST", "/servers", self.boot_servers),
            ("compute", "GET", server, self.show_server),
            ("compute", "PUT", server, self.rename_server),
            ("compute", "DELETE", server, self.delete_server),
            ("compute", "POST", f"{server}/action", self.act_on_server),
        )


def _component(body: Any, name: str) -> dict[str, Any]:
    """Return a required object of a body."""
    if not isinstance(body, dict) or not isinstance(body.get(name), dict):
        raise Refused(400, f"Invalid input: the body has no {name}")
    component: dict[str, Any] = body[name]
    return component


def _mapping(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an optional object of a body, empty if it is missing."""
    found = {} if body.get(name) is None else body[name]
    if not isinstance(found, dict):
        raise Refused(400, f"Invalid input for field/attribute {name}: it is no object")
    return found


def _count(value: Any) -> int:
    """Return the requested number of servers, which may be a text."""
    if value is None:
        return 1
    count = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 6 else value
    whole(count, 1)
    if count > _MOST_AT_ONCE:
        raise Refused(403, f"Quota exceeded for instances: Requested {count}")
    return int(count)


def _check_hints(hints: Mapping[str, Any]) -> None:
    if len(json.dumps(hints)) > _LONGEST_HINTS:
        raise Refused(400, f"Invalid input for scheduler hints: they have more than {_LONGEST_HINTS} characters")
    reservations = hints.get("reservation", [])
    for reservation_id in reservations if isinstance(reservations, list) else [reservations]:
        text(reservation_id)


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    if len(metadata) > _MOST_METADATA:
        raise Refused(403, f"Maximum number of metadata items exceeds {_MOST_METADATA}.")
    for name, value in metadata.items():
        text(name)
        if value != "":
            text(value)


def _tags(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > _MOST_TAGS:
        raise Refused(400, f"Invalid input for field/attribute tags: it is no list of at most {_MOST_TAGS} tags")
    for tag in value:
        printable(tag, _LONGEST_TAG)
        if set(tag) & {"/", ","}:
            raise Refused(400, f"Invalid input for field/attribute tags: {tag}")
    return list(dict.fromkeys(value))


def _passes(server: Server, filters: Mapping[str, str]) -> bool:
    found = {"host": server.host, "project_id": server.project_id, "status": server.status}
    return all(
        value in server.name if name == "name" else found[name].upper() == value.upper()
        for name, value in filters.items()
    )


def _version(request: ApiRequest) -> tuple[int, ...]:
    """Return the microversion of a request to Nova, 2.1 by default."""
    version = request.microversion or "2.1"
    return (2, 103) if version == "latest" else tuple(map(int, version.split(".")))
