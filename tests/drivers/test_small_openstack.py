"""The services of the simulated cloud as users reach them: each route, with the requests that it must refuse.

The routes are read from the cloud, so that a new one is tried, too.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.http import IDENTITY_ROUTES, CloudEndpoints
from tenure.drivers.simulated.openstack.service import ApiRequest, Caller
from tenure.drivers.simulated.openstack.state import (
    CloudQuotas,
    Flavor,
    FloatingIP,
    Server,
    ServerGroup,
    Volume,
    VolumeSnapshot,
)
from tenure.drivers.simulated.openstack.user_servers import ACTIONS
from tenure.drivers.simulated.openstack.users import FOR_USERS
from tests.support.simulated import SimulatedCloud

#: The part of the path for each service.
PATHS = {"compute": "compute/v2.1", "image": "image/v2", "network": "network/v2.0", "block-storage": "volume/v3"}
SERVERS = "/cloud/RegionOne/compute/v2.1/servers"
BOOT = {"server": {"name": "new", "flavorRef": "1"}}


@dataclass(frozen=True)
class Account:
    user_id: str
    user_name: str
    project_id: str
    project_name: str
    roles: tuple[str, ...]


USERS = {
    name: Account(f"{name}-id", name, project, project, roles)
    for name, project, roles in (
        ("admin", "admin-project", ("admin", "member", "reader")),
        ("alice", "pa", ("member", "reader")),
        ("rita", "pa", ("reader",)),
        ("guest", "pa", ("guest",)),
        ("bob", "pb", ("member", "reader")),
    )
}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body) if self.body else None


class Door:
    """The services over WSGI, and what is in the cloud behind them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cloud = SimulatedCloud(path)
        self.cloud.world.ensure_hosts(3)
        self.state: OpenStack = self.cloud.openstack
        self._app = CloudEndpoints({"": self.state}, _unknown, USERS.get)
        for name, project in (("alices", "pa"), ("bobs", "pb")):
            self._fill(name, project)

    def _fill(self, name: str, project: str) -> None:
        """Give a project one of everything, whose ids and names begin with this name."""
        state = self.state
        with state.objects.change():
            group = ServerGroup(f"{name}-group", "affinity", project, id=f"{name}-group")
            state.groups[group.id] = group
            flavor = Flavor(f"{name}-flavor", f"{name}-flavor", is_public=False, projects={project})
            state.flavors[flavor.id] = flavor
            server = Server(f"{name}-server", "", project, flavor=flavor, id=f"{name}-server")
            state.scheduler.place(server)
            image = {"id": f"{name}-image", "name": f"{name}-image", "status": "active", "owner": project}
            state.images[image["id"]] = image
            volume = Volume(f"{name}-volume", 1, "fast", project, "u", status="available", id=f"{name}-volume")
            state.volumes[volume.id] = volume
            snapshot = VolumeSnapshot(volume.id, f"{name}-snapshot", project, {}, id=f"{name}-snapshot")
            state.volume_snapshots[snapshot.id] = snapshot
            address = FloatingIP(PUBLIC_NETWORK, f"203.0.113.{len(name)}", project, f"{name}-address", id=f"{name}-ip")
            state.floating_ips[address.id] = address
            host = list(state.hosts)[-1 if name == "bobs" else -2]
            for known in state.aggregates_of(host):
                known.hosts.remove(host)
                state.aggregates.save(known.number)
            aggregate = state.add_aggregate(f"{name}-zone", f"blazar_{name}-zone", [host])
            aggregate.metadata["blazar:owner"] = project
            state.aggregates.save(aggregate.number)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        user: str | None = "alice",
        content: bytes | None = None,
        query: str = "",
        environ: Mapping[str, Any] = MappingProxyType({}),
    ) -> Reply:
        """Send a request as a server does; return the answer."""
        data = content if content is not None else b"" if body is None else json.dumps(body).encode()
        sent: dict[str, Any] = {"wsgi.input": io.BytesIO(data), "CONTENT_LENGTH": str(len(data)), **environ}
        if data and "CONTENT_TYPE" not in sent:
            sent["CONTENT_TYPE"] = "application/json"
        if user is not None:
            sent["HTTP_X_AUTH_TOKEN"] = user
        sent |= {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}
        setup_testing_defaults(sent)
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            started.append((status, headers))

        answer = b"".join(self._app(sent, start_response))
        ((status, headers),) = started
        return Reply(int(status.split()[0]), {name.lower(): value for name, value in headers}, answer)

    def contents(self) -> tuple[object, object]:
        """Return what is in the cloud, in memory and in the file."""
        state = self.state
        memory = {
            "servers": {key: asdict(server) for key, server in state.servers.items()},
            "images": {key: dict(image) for key, image in state.images.items()},
            "volumes": {key: asdict(volume) for key, volume in state.volumes.items()},
            "gone": sorted(state.deleted_servers),
        }
        with closing(sqlite3.connect(self.path)) as file:
            rows = file.execute("SELECT kind, key, document FROM object ORDER BY kind, key").fetchall()
        return memory, rows


def _unknown(_environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("418 elsewhere", [])
    return [b""]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    door = Door(tmp_path / "cloud.db")
    yield door
    door.cloud.close()


def _paths(pattern: str, thing: str) -> Iterator[str]:
    """Return paths that match a route; ``thing`` is the id of what it names."""
    alternatives = [
        [*group.split("|"), ""] if optional else group.split("|")
        for group, optional in re.findall(r"\(\?:([^()]*)\)(\??)", pattern)
    ]
    template = re.sub(r"\(\?:[^()]*\)\??", "{}", pattern.replace("([^/]+)", thing))
    for chosen in itertools.product(*alternatives):
        yield template.format(*chosen)


def _things(owner: str) -> Mapping[str, str]:
    """Return ids of a project's things, by the part of a path before them."""
    return {
        "servers": f"{owner}-server",
        "flavors": f"{owner}-flavor",
        "images": f"{owner}-image",
        "volumes": f"{owner}-volume",
        "networks": PUBLIC_NETWORK,
        "os-hypervisors": "1",
    }


def _requests(owner: str = "alices") -> list[tuple[str, str]]:
    """Return each route with its method, and a path for each way to write it."""
    with closing(SimulatedCloud()) as cloud:
        routes = list(cloud.openstack.routes)
    found = []
    for service, method, pattern, _ in routes:
        if not service.startswith(FOR_USERS):
            continue
        kind = pattern.split("/")[1].split("(")[0]
        path_prefix = PATHS[service.removeprefix(FOR_USERS)]
        found += [
            (method, f"/cloud/RegionOne/{path_prefix}{path}") for path in _paths(pattern, _things(owner).get(kind, "x"))
        ]
    return found


ROUTES = _requests()
OTHERS = _requests("bobs")
READING = [path for method, path in ROUTES if method == "GET"]
WRITING = [(method, path) for method, path in ROUTES if method != "GET"]


def test_the_table_of_routes_is_complete():
    assert len(ROUTES) > 30
    assert len(WRITING) == 5
    assert IDENTITY_ROUTES.keys() == {"", "/v3", "/v3/auth/tokens"}


@pytest.mark.parametrize("path", sorted(set(READING)))
def test_readers_can_read(door: Door, path: str):
    user = "admin" if re.search("hypervisors|aggregates", path) else "rita"
    reply = door.ask("GET", path, user=user)
    assert (reply.status, reply.headers["content-length"]) == (200, str(len(reply.body))), reply.document


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_request_without_a_good_token_is_refused_and_changes_nothing(door: Door, method: str, path: str):
    before = door.contents()
    for user in (None, "", "nobody", "\udcff"):
        assert door.ask(method, path, BOOT if method == "POST" else None, user=user).status == 401
    assert door.ask(method, path, content=b"{" * 10, user=None).status == 401
    assert door.contents() == before


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_user_without_a_role_is_refused(door: Door, method: str, path: str):
    before = door.contents()
    assert door.ask(method, path, BOOT if method == "POST" else None, user="guest").status == 403
    assert door.contents() == before


@pytest.mark.parametrize(("method", "path"), WRITING)
def test_readers_change_nothing(door: Door, method: str, path: str):
    before = door.contents()
    body: object = {"forceDelete": None} if path.endswith("/action") else BOOT if method == "POST" else None
    assert door.ask(method, path, body, user="rita").status == 403
    assert door.contents() == before


@pytest.mark.parametrize(("method", "path"), OTHERS)
@pytest.mark.parametrize("user", ["alice", "rita"])
def test_members_neither_see_nor_change_the_things_of_other_projects(door: Door, method: str, path: str, user: str):
    before = door.contents()
    body: object = {"forceDelete": None} if path.endswith("/action") else BOOT if method == "POST" else None
    reply = door.ask(method, path, body, user=user, query="all_tenants=1&all_projects=1&project_id=pb")
    if "bobs" in path:
        empty = re.search("volume_attachments|os-interface|os-security-groups", path)
        assert reply.status in ((404, 200) if empty else (403, 404)), reply.document
    answered = reply.body.decode()
    assert "bobs" not in answered.replace("bobs-server could", "").replace("bobs-", "", "bobs" in path)
    if not (method == "POST" and path.endswith("/servers")):
        assert door.contents() == before


@pytest.mark.parametrize("path", READING)
@pytest.mark.parametrize("user", ["alice", "rita"])
def test_members_are_told_no_names_of_hosts(door: Door, path: str, user: str):
    names = {name for host in door.state.hosts.values() for name in (host.name, host.service_host)}
    answered = door.ask("GET", path, user=user).body.decode()
    assert not [name for name in names if name in answered]


def test_servers_are_not_found_by_their_host_by_members(door: Door):
    host = door.state.servers["alices-server"].host
    assert host
    assert door.ask("GET", SERVERS, query=f"host={host}").status == 403
    assert len(door.ask("GET", SERVERS, query=f"host={host}&all_tenants=1", user="admin").document["servers"]) >= 1


def test_zones_of_reservations_are_told_to_their_projects_only(door: Door):
    path = "/cloud/RegionOne/compute/v2.1/os-availability-zone"
    zones = {
        user: {zone["zoneName"] for zone in door.ask("GET", path, user=user).document["availabilityZoneInfo"]}
        for user in ("alice", "bob", "admin")
    }
    assert {user: {zone for zone in found if "zone" in zone} for user, found in zones.items()} == {
        "alice": {"blazar_alices-zone"},
        "bob": {"blazar_bobs-zone"},
        "admin": {"blazar_alices-zone", "blazar_bobs-zone"},
    }


_DEEP = b'{"server":' + b"[" * 400 + b"]" * 400 + b"}"
#: Documents that no route takes from a member.
_REFUSED: list[object] = [
    {"server": {"name": 5, "flavorRef": "1"}},
    {"server": {"name": "a\nb", "flavorRef": "1"}},
    {"server": {"name": "\x1b[2J", "flavorRef": "1"}},
    {"server": {"name": "n" * 256, "flavorRef": "1"}},
    {"server": {"name": "n", "flavorRef": {"a": 1}}},
    {"server": {"name": "n", "flavorRef": "none"}},
    {"server": {"name": "n", "flavorRef": "bobs-flavor"}},
    {"server": {"name": "n", "flavorRef": "1", "imageRef": "bobs-image"}},
    {"server": {"name": "n", "flavorRef": "1", "imageRef": [1]}},
    {"server": {"name": "n", "flavorRef": "1", "tags": 5}},
    {"server": {"name": "n", "flavorRef": "1", "tags": ["a,b"]}},
    {"server": {"name": "n", "flavorRef": "1", "tags": [["a"]]}},
    {"server": {"name": "n", "flavorRef": "1", "tags": [str(number) for number in range(51)]}},
    {"server": {"name": "n", "flavorRef": "1", "min_count": 0}},
    {"server": {"name": "n", "flavorRef": "1", "min_count": True}},
    {"server": {"name": "n", "flavorRef": "1", "min_count": -1}},
    {"server": {"name": "n", "flavorRef": "1", "min_count": "²"}},
    {"server": {"name": "n", "flavorRef": "1", "metadata": []}, "os:scheduler_hints": 1},
    {"server": {"name": "n", "flavorRef": "1", "metadata": {"k": None}}},
    {"server": {"name": "n", "flavorRef": "1", "metadata": {str(number): "" for number in range(129)}}},
    {"server": {"name": "n", "flavorRef": "1"}, "os:scheduler_hints": {"group": []}},
    {"server": {"name": "n", "flavorRef": "1"}, "os:scheduler_hints": {"group": "bobs-group"}},
    {"server": {"name": "n", "flavorRef": "1"}, "os:scheduler_hints": {"reservation": {"a": 1}}},
    {"server": {"name": "n", "flavorRef": "1"}, "OS-SCH-HNT:scheduler_hints": {"reservation": [[]]}},
    {"forceDelete": None, "os-stop": None},
    {"reboot": {"type": "HARD"}},
    {"forceDelete": {"a": 1}},
    {"os-stop": []},
    {"unshelve": 5},
    {"unshelve": {"host": "sim-001"}},
    {"createImage": None},
    {"createImage": {}},
    {"createImage": {"name": "x", "metadata": []}},
    {"createImage": {"name": "x", "metadata": {"a": 1}}},
    {"createImage": {"name": "x", "metadata": {"id": "bobs-image"}}},
    {"createImage": {"name": "x", "metadata": {"owner": "pb"}}},
    {"createImage": {"name": "x", "metadata": {"created_at": "now"}}},
    {"createImage": {"name": "x", "metadata": {"tenure_reservation_id": "r"}}},
    {"createImage": {"name": "x\x1b[2J"}},
]
HOSTILE: list[bytes] = [
    b"{",
    b"null",
    b"[]",
    b"5",
    b"\xff\xfe",
    b'{"server": null}',
    b'{"server": {"name": "n", "flavorRef": "1"}, "server": {"name": "n", "flavorRef": "1"}}',
    b'{"server": {"name": "a\\u0000b", "flavorRef": "1"}}',
    b'{"server": {"name": "\\ud800x", "flavorRef": "1"}}',
    b'{"server": {"name": "n", "flavorRef": "1", "metadata": {"\\udfff": "x"}}}',
    b'{"server": {"name": "n", "flavorRef": "1", "min_count": NaN}}',
    b'{"server": {"name": "n", "flavorRef": "1", "min_count": ' + b"9" * 5000 + b"}}",
    b'{"server": {"name": "n", "flavorRef": "1"}, "os:scheduler_hints": {"z":' + b"[" * 400 + b"]" * 400 + b"}}",
    b'{"server": {"name": "n", "flavorRef": "1"}, "os:scheduler_hints": {"z": "' + b"z" * 5000 + b'"}}',
    _DEEP,
    b'{"x": [' + b"0," * 30_000 + b"0]}",
    b" " * (1024 * 1024 + 1),
    *(json.dumps(document).encode() for document in _REFUSED),
]


@pytest.mark.parametrize("content", HOSTILE, ids=lambda content: repr(content[:70]))
def test_a_hostile_body_is_refused_and_changes_nothing(door: Door, content: bytes):
    before = door.contents()
    for method, path in WRITING:
        if method == "POST":
            reply = door.ask(method, path, content=content)
            assert 400 <= reply.status < 500, (path, reply.document)
            assert reply.body.decode()
            assert len(reply.body) < 2000
    assert door.ask("POST", "/identity/v3/auth/tokens", content=content).status in (400, 401, 413)
    assert door.contents() == before


QUERIES = ["limit=abc", "limit=%C2%B2", f"limit={'9' * 5000}", "limit=-1", "offset=abc", "marker=x", "%FF=%00&limit"]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query[:20])
def test_no_query_fails(door: Door, query: str):
    for path in READING:
        for user in ("rita", "admin"):
            assert door.ask("GET", path, user=user, query=query).status < 500, path


def test_a_limit_is_a_number(door: Door):
    for query in ("limit=abc", "limit=%C2%B2", "limit=-1"):
        assert door.ask("GET", SERVERS, query=query).status == 400
    assert door.ask("GET", SERVERS, query=f"limit={'9' * 5000}").status == 200
    assert door.ask("GET", SERVERS, query="limit=0").document == {"servers": []}


@pytest.mark.parametrize("version", ["2.x", "2", "2.1.1", "²", "9.1", "2.9999", "2.1 ", "x" * 5000, "2.\udcff"])
def test_an_impossible_microversion_is_refused(door: Door, version: str):
    for header in (
        {"HTTP_OPENSTACK_API_VERSION": f"compute {version}"},
        {"HTTP_X_OPENSTACK_NOVA_API_VERSION": version},
    ):
        before = door.contents()
        expected = {200} if version == "2.1 " else {400, 406}
        assert door.ask("GET", SERVERS, environ=header).status in expected
        if expected != {200}:
            assert door.ask("POST", SERVERS, BOOT, environ=header).status in expected
            assert door.contents() == before


@pytest.mark.parametrize("path", ["/identity", "/identity/v3", "/identity/v3/auth/tokens", *READING])
def test_the_answer_to_head_has_the_headers_of_get_and_no_body(door: Door, path: str):
    get = door.ask("GET", path, environ={"HTTP_X_SUBJECT_TOKEN": "alice"})
    head = door.ask("HEAD", path, environ={"HTTP_X_SUBJECT_TOKEN": "alice"})
    assert (head.status, head.body) == (get.status, b"")
    assert head.headers.keys() == get.headers.keys()
    assert abs(int(head.headers["content-length"]) - int(get.headers["content-length"])) < 20  # the times in it differ


@pytest.mark.parametrize("method", ["OPTIONS", "PATCH", "PUT", "TRACE", "BREW", "DELETE", "POST"])
def test_other_methods_are_refused_and_change_nothing(door: Door, method: str):
    before = door.contents()
    paths = {path for _, path in ROUTES if (method, path) not in ROUTES}
    for path in sorted(paths | {"/identity/v3", "/cloud/RegionOne/compute", "/cloud/RegionOne/volume/v3"}):
        reply = door.ask(method, path)
        if method in {"DELETE", "PUT"} and path == f"{SERVERS}/detail":  # as for a server of that name
            assert reply.status == 404
            continue
        assert reply.status == 405, path
        assert method not in reply.headers["allow"].split(", ")
    assert door.contents() == before


def test_legal_but_unusual_requests_are_served(door: Door):
    boot = json.dumps(BOOT).encode()
    assert door.ask("POST", SERVERS, content=boot, environ={"CONTENT_TYPE": ""}).status == 202
    assert (
        door.ask("POST", SERVERS, content=boot, environ={"CONTENT_TYPE": "application/json; charset=utf-8"}).status
        == 202
    )
    chunked: dict[str, Any] = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    assert door.ask("POST", SERVERS, content=boot, environ=chunked).status == 202
    assert door.ask("POST", f"{SERVERS}/", content=boot).status == 202
    before = door.contents()
    assert door.ask("POST", SERVERS).status == 400
    assert door.ask("POST", SERVERS, content=boot, environ={"CONTENT_TYPE": "text/plain"}).status == 415
    assert door.ask("POST", SERVERS, content=boot, environ={"CONTENT_LENGTH": "9" * 400}).status == 413
    assert door.ask("GET", SERVERS, content=b"{").status == 200
    assert door.contents() == before


@pytest.mark.parametrize(
    "path", ["/cloud", "/cloud/", "/cloud//", "/cloud/RegionOne", "/cloud/x/compute", "/identity/x"]
)
def test_unknown_paths_are_not_found(door: Door, path: str):
    assert door.ask("GET", path).status == 404
    assert door.ask("GET", f"{path}/\x1b\n\xff%2e").status == 404


@pytest.mark.parametrize("action", sorted(action for action, for_admins in ACTIONS.items() if for_admins))
def test_actions_of_administrators_are_refused_to_members(door: Door, action: str):
    before = door.contents()
    values = {"evacuate": {"host": "x"}, "os-resetState": {"state": "active"}}.get(action)
    version = {"HTTP_OPENSTACK_API_VERSION": "compute 2.68"}
    reply = door.ask("POST", f"{SERVERS}/alices-server/action", {action: values}, environ=version)
    assert reply.status == 403
    assert door.state.servers["alices-server"].host not in reply.body.decode()
    assert door.contents() == before


def test_members_unshelve_onto_no_host_of_their_choice(door: Door):
    server, version = f"{SERVERS}/alices-server/action", {"HTTP_OPENSTACK_API_VERSION": "compute 2.91"}
    assert door.ask("POST", server, {"shelve": None}).status == 202
    before = door.contents()
    chosen = {"host": list(door.state.hosts)[1], "availability_zone": None}
    assert door.ask("POST", server, {"unshelve": chosen}, environ=version).status == 403
    assert door.contents() == before
    assert door.ask("POST", server, {"unshelve": None}).status == 202
    assert door.ask("POST", server, {"migrate": None}, user="admin").status == 202


def test_an_image_belongs_to_the_project_that_saves_it(door: Door):
    reply = door.ask(
        "POST", f"{SERVERS}/alices-server/action", {"createImage": {"name": "saved", "metadata": {"a": "b"}}}
    )
    assert reply.status == 202
    (image,) = [image for image in door.state.images.values() if image["name"] == "saved"]
    assert (image["owner"], image["a"], image["status"]) == ("pa", "b", "active")
    assert door.state.images["bobs-image"]["owner"] == "pb"


def test_an_image_keeps_its_identity_whatever_its_properties_are(door: Door):
    """The driver, too, gives Nova the properties of an image."""
    metadata = {"id": "bobs-image", "owner": "pb", "created_at": 5, "status": "killed"}
    action = {"createImage": {"name": "saved", "metadata": metadata}}
    asked = ApiRequest("compute", "POST", "/servers/alices-server/action", body=action)
    assert door.state.answer(asked, Caller("alice-id", "pa", frozenset({"member"})))[0] == 202
    (image,) = [image for image in door.state.images.values() if image["name"] == "saved"]
    assert (image["owner"], image["status"], image["created_at"] == 5) == ("pa", "active", False)
    assert door.state.images["bobs-image"]["name"] == "bobs-image"


@pytest.mark.parametrize(
    ("quotas", "body", "name"),
    [
        (CloudQuotas(servers=3), {"server": {**BOOT["server"], "min_count": 3}}, "instances"),
        (CloudQuotas(cores=2), {"server": {**BOOT["server"], "min_count": 2}}, "cores"),
    ],
)
def test_a_project_has_a_quota_of_servers_and_cores(door: Door, quotas: CloudQuotas, body: object, name: str):
    door.state.quotas = quotas
    before = door.contents()
    reply = door.ask("POST", SERVERS, body)
    assert (reply.status, f"Quota exceeded for {name}" in reply.body.decode()) == (403, True)
    assert door.contents() == before
    assert door.ask("POST", SERVERS, BOOT).status == 202
    assert door.ask("DELETE", f"{SERVERS}/alices-server").status == 204
    assert door.ask("POST", SERVERS, BOOT).status == 202
    assert door.ask("POST", SERVERS, BOOT, user="bob").status == 202


def test_a_project_has_a_quota_of_images(door: Door):
    door.state.quotas = CloudQuotas(images=2)
    answers = [
        door.ask("POST", f"{SERVERS}/alices-server/action", {"createImage": {"name": name}}).status for name in "ab"
    ]
    assert answers == [202, 403]
    assert len(door.state.images_of("pa")) == 2


def test_a_boot_does_not_go_through_all_servers(door: Door, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise AssertionError("all servers were gone through")

    monkeypatch.setattr(door.state.servers, "values", refuse, raising=False)
    monkeypatch.setattr(door.state.servers, "items", refuse, raising=False)
    for flavor in ("1", "7"):
        body = {"server": {"name": "many", "flavorRef": flavor, "min_count": 50}}
        assert door.ask("POST", SERVERS, body).status == 202
    assert door.ask("DELETE", f"{SERVERS}/alices-server").status == 204


def test_what_servers_take_is_the_same_after_any_change(door: Door):
    """The sums that boots go by, compared with counting."""
    path = f"{SERVERS}/alices-server/action"
    door.ask("POST", SERVERS, {"server": {"name": "many", "flavorRef": "3", "min_count": 9}})
    for user, action in (("alice", "shelve"), ("alice", "unshelve"), ("admin", "migrate"), ("alice", "forceDelete")):
        assert door.ask("POST", path, {action: None}, user=user).status in (202, 204)
        _compare_with_counting(door.state)
    with door.state.objects.change():  # servers without cores
        nothing = [
            door.state.scheduler.place(Server("nothing", "", "pa", flavor=Flavor("0", "nothing", vcpus=0, disk=0)))
            for _ in range(2)
        ]
        door.state.forget_server(nothing[0].id)
    assert door.ask("POST", f"{SERVERS}/{nothing[1].id}/action", {"shelve": None}).status == 202
    with closing(SimulatedCloud(door.path)) as other:
        _compare_with_counting(other.openstack)


def _compare_with_counting(state: OpenStack) -> None:
    with state.objects.look():
        for provider in state.providers.values():
            for name in provider.inventories:
                counted = sum(
                    state.allocated(server).get(provider.uuid, {}).get(name, 0) for server in state.servers.values()
                )
                assert state.used(provider, name) == counted
        for project in ("pa", "pb"):
            servers = [server for server in state.servers.values() if server.project_id == project]
            assert state.cores_of(project) == sum(server.flavor.vcpus for server in servers if server.flavor)
            assert len(state.servers_of(project)) == len(servers)


def test_servers_that_went_do_not_pile_up(door: Door, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tenure.drivers.simulated.openstack.state._MOST_REMEMBERED", 3)
    for _ in range(5):
        server_id = door.ask("POST", SERVERS, BOOT).document["server"]["id"]
        assert door.ask("DELETE", f"{SERVERS}/{server_id}").status == 204
    assert door.ask("DELETE", f"{SERVERS}/bobs-server", user="bob").status == 204
    assert sorted(server.project_id for server in door.state.deleted_servers.values()) == ["pa", "pa", "pa", "pb"]


def test_each_request_is_a_line_of_the_log(door: Door, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "tenure.drivers.simulated.openstack.http")
    request_id = door.ask("POST", SERVERS, BOOT).headers["x-openstack-request-id"]
    door.ask("GET", SERVERS, user=None)
    door.ask("POST", "/identity/v3/auth/tokens", {"auth": {}}, user=None)
    door.ask("HEAD", f"{SERVERS}/\n\x1b[2J")
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == f"{request_id} POST {SERVERS!r} -> 202"
    assert [message.split(" ", 1)[1] for message in messages[1:]] == [
        f"GET {SERVERS!r} -> 401",
        "POST '/identity/v3/auth/tokens' -> 401",
        f"HEAD '{SERVERS}/\\n\\x1b[2J' -> 404",
    ]


def test_a_failure_is_answered_without_its_details(door: Door, caplog: pytest.LogCaptureFixture):
    def fail(*_: object) -> None:
        raise RuntimeError("secret")

    door.state.add_routes([(f"{FOR_USERS}compute", "GET", "/broken", fail)])  # type: ignore[list-item]
    reply = door.ask("GET", "/cloud/RegionOne/compute/v2.1/broken")
    assert (reply.status, "secret" in reply.body.decode()) == (500, False)
    assert "secret" in caplog.text


def test_paths_of_others_are_not_served_here(door: Door):
    for path in ("/", "/v1/leases", "/cloudy/x", "/identityx"):
        assert door.ask("GET", path).status == 418
