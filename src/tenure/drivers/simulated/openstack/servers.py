"""Nova's servers: lists, metadata, tags and actions; and Glance's images of servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote

from tenure.drivers.simulated.openstack.effects import EffectKind
from tenure.drivers.simulated.openstack.service import (
    Answer,
    ApiRequest,
    Caller,
    Refused,
    Route,
    expect,
    next_link,
    page_of,
    text,
    version_is,
)
from tenure.drivers.simulated.openstack.state import IMAGE_OF, SMALL, Flavor, Host, Server, State, new_id

#: The microversions of lists of servers, with scheduler hints and without.
_HINTS, _FLAVORS = "2.100", "2.47"
#: The parameters that accompany a filter of servers.
_PAGING: Final = frozenset({"all_tenants", "limit", "soft_deleted", "marker"})
#: The statuses in which a server's metadata and tags can change.
_WRITABLE: Final = frozenset({"ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"})
#: The status in which each of these actions is possible.
_IN: Final = {
    "confirmResize": "VERIFY_RESIZE",
    "unrescue": "RESCUE",
    "unpause": "PAUSED",
    "resume": "SUSPENDED",
    "os-start": "SHUTOFF",
}
#: How many metadata and tags a server can have, and how long a tag can be.
_MOST_METADATA, _MOST_TAGS, _LONGEST_TAG = 128, 50, 60
#: The metadata that tell a preemptible server when it will be deleted.
_LEAVES_AT: Final = "tenure:leaves_at"
#: The properties of an image that name its reservation and its server.
_IMAGE_OF_RESERVATION: Final = "tenure_reservation_id"
#: Whether a server may move to the host of a compute service.
Admits = Callable[[Server, str], bool]
#: Moves a server to such a host.
Move = Callable[[Server, str], None]
_INSTANT: Final = "%Y-%m-%dT%H:%M:%SZ"


class Servers:
    def __init__(self, state: State, admits: Admits, move: Move) -> None:
        """``admits`` says whether a server may move to the host of a compute service, ``move`` does it."""
        self._state = state
        self._admits = admits
        self._move = move
        state.complete_with("delete server", self._vanish)
        state.complete_with("save image", self._have_image)
        state.complete_with("shelve server", self._have_shelved)
        state.complete_with("wake server", self._have_woken)

    def list_servers(self, request: ApiRequest, caller: Caller) -> Answer:
        expect({"all_tenants", "limit"} <= request.params.keys(), True)
        with_hints = self._with_hints(request)
        if with_hints and not self._state.tells_hints:
            raise Refused(406, f"Version {_HINTS} is not supported by the API.")
        filters = {key: value for key, value in request.params.items() if key not in _PAGING}
        found = [
            server
            for server in self._listed(request)
            if all(self._passes(server, name, value) for name, value in filters.items())
            and (server.status != "SOFT_DELETED" or "soft_deleted" in request.params)
            and (server.status != "DELETED" or "changes-since" in request.params)
        ]
        page, has_more = page_of(found, request, lambda server: server.id, self._state.page)
        return 200, {
            "servers": [shown_server(server, self._host(server), with_hints=with_hints) for server in page],
            **next_link("servers", has_more),
        }

    def _listed(self, request: ApiRequest) -> Sequence[Server]:
        """Return the servers by age, with deleted servers if the request asks for changes."""
        gone = self._state.deleted_servers.values() if "changes-since" in request.params else ()
        return sorted((*self._state.servers.values(), *gone), key=lambda server: server.created)

    def show_server(self, request: ApiRequest, caller: Caller, server_id: str) -> Answer:
        server = self._server(server_id)
        shown = shown_server(server, self._host(server), with_hints=self._with_hints(request))
        reserved = self._state.shows_reserved and shown["status"].startswith("SHELVED")
        return 200, {"server": {**shown, **({"status": "RESERVED"} if reserved else {})}}

    def list_actions(self, request: ApiRequest, caller: Caller, server_id: str) -> Answer:
        return 200, {"instanceActions": [{"action": action} for action in self._server(server_id).actions]}

    def set_metadata(self, request: ApiRequest, caller: Caller, server_id: str) -> Answer:
        expect(set(request.body), {"metadata"})
        added = request.body["metadata"]
        server = self._state.servers.get(server_id)
        if server is None:
            raise Refused(404, f"Instance {server_id} could not be found.")
        for key, value in added.items():
            text(key)
            text(value)
        _refuse_busy(server, "update metadata")
        if len(server.metadata | added) > _MOST_METADATA:
            raise Refused(403, "Maximum number of metadata items exceeds 128.")
        server.metadata |= added
        self._state.servers.save(server.id)
        self._record(EffectKind.SERVER_TOLD if _LEAVES_AT in added else EffectKind.SERVER_MARKED, server)
        return 200, {"metadata": dict(server.metadata)}

    def delete_metadata(self, request: ApiRequest, caller: Caller, server_id: str, key: str) -> Answer:
        server = self._server(server_id)
        _refuse_busy(server, "delete metadata")
        if server.metadata.pop(unquote(key), None) is None:
            raise Refused(404, "Metadata item was not found")
        self._state.servers.save(server.id)
        self._record(EffectKind.SERVER_MARKED, server)
        return 204, None

    def change_tags(self, request: ApiRequest, caller: Caller, server_id: str, quoted: str) -> Answer:
        version_is(request, "2.26")
        server, tag = self._server(server_id), unquote(quoted)
        _refuse_busy(server, "change tags")
        expect(len(tag) <= _LONGEST_TAG and not set(tag) & {"/", ","}, True)
        if request.method == "DELETE":
            if tag not in server.tags:
                raise Refused(404, f"Server {server_id} has no tag '{tag}'")
            server.tags.remove(tag)
        elif tag not in server.tags:
            if len(server.tags) >= _MOST_TAGS:
                raise Refused(400, f"The number of tags exceeded the per-server limit {_MOST_TAGS}")
            server.tags.append(tag)
        self._state.servers.save(server.id)
        return 204, None

    def list_images(self, request: ApiRequest, caller: Caller) -> Answer:
        filters = {key: value for key, value in request.params.items() if key not in ("limit", "marker")}
        images = self._state.images_of(caller.project_id)
        found = [image for image in images if filters.items() <= {**image}.items()]
        page, has_more = page_of(found, request, lambda image: str(image["id"]), self._state.page)
        more = {"next": "/v2/images?marker=x"} if has_more else {}
        return 200, {"images": [dict(image) for image in page], **more}

    # Actions

    def act_on_server(self, request: ApiRequest, caller: Caller, server_id: str) -> Answer:
        server = self._state.servers.get(server_id)
        if server is None or (server.project_id != caller.project_id and not caller.is_admin):
            raise Refused(404, f"Instance {server_id} could not be found.")
        ((action, values),) = request.body.items()
        expect(action in self._actions, True)
        # Saved first, so that a refusal in the middle of the action undoes all of it.
        self._state.servers.save(server_id)
        answer = self._actions[action](request, caller, server, values)
        if server_id in self._state.servers:
            self._state.servers.save(server_id)
        return answer

    @property
    def _actions(self) -> Mapping[str, Callable[[ApiRequest, Caller, Server, Any], Answer]]:
        return {
            "forceDelete": self._delete,
            "os-stop": self._stop,
            "createImage": self._save_image,
            "shelve": self._shelve,
            "shelveOffload": self._offload,
            "unshelve": self._unshelve,
            "migrate": self._migrate,
            "evacuate": self._evacuate,
            "os-resetState": self._reset,
            **dict.fromkeys(_IN, self._leave_state),
        }

    def _delete(self, request: ApiRequest, caller: Caller, server: Server, values: Any) -> Answer:
        expect(values, None)
        if server.task != "deleting":
            self._record(EffectKind.SERVER_DELETED, server)
        server.task, server.updated = "deleting", self._state.now()
        self._state.finish("delete server", server.id)
        return 204, None

    def _vanish(self, server_id: str) -> None:
        if server_id in self._state.servers:
            self._state.forget_server(server_id)

    def _stop(self, request: ApiRequest, caller: Caller, server: Server, values: Any) -> Answer:
        expect(values, None)
        _refuse_unless(server, {"ACTIVE"}, "stop")
        server.status = "SHUTOFF"
        self._record(EffectKind.SERVER_STOPPED, server)
        return 202, None

    def _save_image(self, request: ApiRequest, caller: Caller, server: Server, values: Any) -> Answer:
        if server.task is not None:
            raise Refused(409, f"Cannot 'createImage' instance {server.id} while it is in task_state {server.task}")
        image = {
            **values["metadata"],
            "id": new_id(),
            "name": values["name"],
            "owner": caller.project_id,
            "created_at": self._state.now().strftime(_INSTANT),
            "status": "queued",
            IMAGE_OF: server.id,
        }
        self._state.images[image["id"]] = image
        server.task = "image_snapshot"
        self._record(EffectKind.IMAGE_MADE, server, values["metadata"].get(_IMAGE_OF_RESERVATION))
        self._state.finish("save image", image["id"])
        return 202, None

    def _have_image(self, image_id: str) -> None:
        image = self._state.images[image_id]
        server = self._state.servers.get(image[IMAGE_OF])
        if server is not None and server.task == "image_snapshot":
            server.task = None
            self._state.servers.save(server.id)
        if image["status"] == "queued":
            image["status"] = "active"
            self._state.images.save(image_id)

    def _shelve(self, request: ApiRequest, caller: Caller, server: Server, values: Any) -> Answer:
        expect(values, None)
        _refuse_busy(server, "shelve")
        server.actions.insert(0, "shelve")
        server.task = "shelving"
        self._record(EffectKind.SERVER_SHELVED, server)
        self._state.finish("shelve server", server.id)
        return 202, None

    def _have_shelved(self, server_id: str) -> None:
        server = self._state.servers.get(server_id)
        if server is None or server.task != "shelving":
            return
        server.task = None
        if self._state.keeps_shelved:
            server.status = "SHELVED"
        else:
            server.status, server.host = "SHELVED_OFFLOADED", ""
        self._state.servers.save(server_id)

    def _offload(self, request: ApiRequest, caller: Caller, server: Server, values: Any) -> Answer:
        expect(values, None)
        _refuse_unless(server, {"SHELVED"}, "shelveOffload")
        server.status, server.host = "SHELVED_OFFLOADED", ""
        return 202, None

    def _unshelve(self, request: ApiRequest, caller: Caller, server: Server, values: Any) -> Answer:
        if values is not None:
            version_is(request, "2.91")
            expect(set(values), {"host", "availability_zone"})
        _refuse_unless(server, {"SHELVED_OFFLOADED"}, "unshelve")
        server.actions.insert(0, "unshelve")
        place = self._place(server, list(self._state.hosts) if values is None else [values["host"]])
        if place is not None:
            server.task, server.place = "spawning", place
            self._record(EffectKind.SERVER_WOKEN, server)
            self._state.finish("wake server", server.id)
        return 202, None

    def _have_woken(self, server_id: str) -> None:
        server = self._state.servers.get(server_id)
        if server is not None and server.task == "spawning":
            server.task, server.status = None, "ACTIVE"
            self._move(server, server.place)
            self._state.servers.save(server_id)

    def _migrate(self, request: ApiRequest, caller: Caller, server: Server, values: Any) -> Answer:
        expect(values, None)
        _refuse_unless(server, {"ACTIVE", "SHUTOFF"}, "migrate")
        server.actions.insert(0, "migrate")
        place = self._place(server, [host for host in self._state.hosts if host != server.host])
        if place is not None:  # otherwise Nova tries, and fails
            self._move(server, place)
            server.status, server.before = "VERIFY_RESIZE", server.status
            self._record(EffectKind.SERVER_MOVED, server)
        return 202, None

    def _evacuate(self, request: ApiRequest, caller: Caller, server: Server, values: Any) -> Answer:
        version_is(request, "2.68")
        expect(set(values), {"host"})
        if self._state.hosts[server.host].state == "up":
            raise Refused(400, f"Compute service of {server.host} is still in use.")
        if server.status not in {"ACTIVE", "SHUTOFF", "ERROR"}:
            raise Refused(409, f"Cannot 'evacuate' instance {server.id} while it is in {server.status}")
        server.actions.insert(0, "evacuate")
        if self._admits(server, values["host"]):
            self._move(server, values["host"])
        return 202, None

    def _reset(self, request: ApiRequest, caller: Caller, server: Server, values: Any) -> Answer:
        expect(values, {"state": "active"})
        server.status = "ACTIVE"
        return 202, None

    def _leave_state(self, request: ApiRequest, caller: Caller, server: Server, values: Any) -> Answer:
        (action,) = request.body
        expect(values, None)
        _refuse_unless(server, {_IN[action]}, action)
        server.status = server.before if action == "confirmResize" else "ACTIVE"
        return 202, None

    # Target hosts and filters

    def _place(self, server: Server, hosts: Sequence[str]) -> str | None:
        """Return the first host that admits the server, None if there is none."""
        return next((host for host in hosts if self._admits(server, host)), None)

    def _record(self, kind: EffectKind, server: Server, reservation_id: str | None = None) -> None:
        known = reservation_id or self._state.reservation_of(server)
        self._state.record(kind, known, host=server.host or server.place, subject=server.id)

    def _with_hints(self, request: ApiRequest) -> bool:
        if request.microversion == _HINTS:
            return True
        version_is(request, _FLAVORS)
        return False

    def _passes(self, server: Server, name: str, value: str) -> bool:
        """Whether the server passes a filter of a list."""
        match name:
            case "host":
                host = self._host(server)
                return value == (host.service_host if host is not None else server.host)
            case "node":
                host = self._host(server)
                return host is not None and host.name == value
            case "project_id":
                return server.project_id == value
            case "tags":
                return set(value.split(",")) <= set(server.tags)
            case "changes-since":
                return server.updated >= datetime.fromisoformat(value)
            case "status":
                return server.status == value
            case "metadata":
                raise Refused(400, "Invalid filter field: metadata.")
            case "flavor":  # of a flavor that was created again, only servers since then
                flavor = self._state.flavors.get(value)
                return flavor is not None and server.flavor is not None and server.flavor.key == flavor.key
            case _:
                raise Refused(400, f"Additional properties are not allowed ('{name}' was unexpected)")

    def _host(self, server: Server) -> Host | None:
        return self._state.hosts.get(server.host)

    def _server(self, server_id: str) -> Server:
        server = self._state.servers.get(server_id)
        if server is None or server.status == "DELETED":
            raise Refused(404, f"Instance {server_id} could not be found.")
        return server

    @property
    def routes(self) -> Sequence[Route]:
        server = "/servers/([^/]+)"
        return (
            ("compute", "GET", "/servers/detail", self.list_servers),
            ("compute", "GET", server, self.show_server),
            ("compute", "GET", f"{server}/os-instance-actions", self.list_actions),
            ("compute", "DELETE", f"{server}/metadata/([^/]+)", self.delete_metadata),
            ("compute", "PUT", f"{server}/tags/([^/]+)", self.change_tags),
            ("compute", "DELETE", f"{server}/tags/([^/]+)", self.change_tags),
            ("compute", "POST", f"{server}/action", self.act_on_server),
            ("compute", "POST", f"{server}/metadata", self.set_metadata),
            ("image", "GET", "/images", self.list_images),
        )


def _refuse_busy(server: Server, action: str) -> None:
    """Refuse to change metadata of a server that is shelved or being changed."""
    if server.status not in _WRITABLE or server.task is not None:
        state = f"task_state {server.task}" if server.task else f"vm_state {server.status}"
        raise Refused(409, f"Cannot '{action}' instance {server.id} while it is in {state}")


def _refuse_unless(server: Server, statuses: set[str], action: str) -> None:
    """Refuse an action that is possible in these statuses only."""
    if server.status not in statuses or server.task is not None:
        raise Refused(409, f"Cannot '{action}' instance {server.id} while it is in vm_state {server.status}")


def shown_server(server: Server, host: Host | None, *, with_hints: bool = False) -> dict[str, Any]:
    """Return the server as Nova shows it; ``host`` is its host, if that is there."""
    return {
        "id": server.id,
        "name": server.name,
        "tenant_id": server.project_id,
        "user_id": server.user_id or f"user-of-{server.project_id}",
        "status": server.status,
        "OS-EXT-STS:task_state": server.task,
        "OS-EXT-STS:vm_state": "stopped" if server.status == "SHUTOFF" else server.status.lower(),
        "OS-EXT-SRV-ATTR:host": host.service_host if host is not None else server.host,
        "OS-EXT-SRV-ATTR:hypervisor_hostname": host.name if host is not None else None,
        "updated": server.updated.strftime(_INSTANT),
        "created": server.created.strftime(_INSTANT),
        "flavor": _shown_flavor(server.flavor or SMALL),
        "metadata": dict(server.metadata),
        "tags": list(server.tags),
    } | ({"scheduler_hints": dict(server.hints)} if with_hints else {})


def _shown_flavor(flavor: Flavor) -> dict[str, Any]:
    return {
        "original_name": flavor.name,
        "vcpus": flavor.vcpus,
        "ram": flavor.ram,
        "disk": flavor.disk,
        "ephemeral": flavor.ephemeral,
        "swap": flavor.swap,
        "extra_specs": dict(flavor.extra_specs),
    }
