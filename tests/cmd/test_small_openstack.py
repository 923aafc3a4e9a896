"""The services of the simulated cloud that ``tenure-standalone`` serves over HTTP, beside the API for leases."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import pytest

from tenure import factory
from tenure.cmd import standalone as tenure_standalone
from tenure.drivers.simulated.catalogue import PUBLIC_NETWORK
from tenure.drivers.simulated.openstack.state import FloatingIP, Volume, VolumeSnapshot
from tests.support.simulated import SimulatedCloud
from tests.support.standalone import Standalone, standalone, start
from tests.support.waiting import patience, wait_for

FLAVOR, IMAGE = "1", "5f1d9a52-0c0e-4c55-9d0b-6a8f5a1c0301"
COMPUTE = "/cloud/RegionOne/compute/v2.1"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("small") / "data", hosts=2) as service:
        yield service


def ask(
    service: Standalone,
    method: str,
    path: str,
    body: object = None,
    *,
    user: str | None = "demo",
    content: bytes | None = None,
    named: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, Any]:
    """Send a request as a user, or without a token; return the status and the document."""
    data = content if content is not None else None if body is None else json.dumps(body).encode()
    token = {} if user is None else {"X-Auth-Token": service.token(user)}
    url = f"{service.url.removesuffix('/v1')}{path}"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **token, **named}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=patience()) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if content else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def boot(service: Standalone, name: str, *, user: str = "demo", flavor: str = FLAVOR, **hints: str) -> dict[str, Any]:
    """Boot a server, and return it as its owner sees it."""
    body = {"server": {"name": name, "flavorRef": flavor, "imageRef": IMAGE}, "os:scheduler_hints": hints}
    status, answer = ask(service, "POST", f"{COMPUTE}/servers", body, user=user)
    assert status == 202, answer
    shown: dict[str, Any] = ask(service, "GET", f"{COMPUTE}/servers/{answer['server']['id']}", user=user)[1]["server"]
    return shown


def log_in(service: Standalone, token: str) -> tuple[int, Any]:
    identity = {"methods": ["token"], "token": {"id": token}}
    return ask(service, "POST", "/identity/v3/auth/tokens", {"auth": {"identity": identity}}, user=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b'{"server": {"name": "a\\u0000b"}}', "server.name holds a NUL character"),
        (b'{"server": {"name": "\\ud800"}}', "half of a character"),
        (b'{"server": {"name": "a", "name": "b"}}', "the field name more than once"),
        (b'{"server": {"name": NaN}}', "NaN is no number"),
        (b"[" * 40 + b"]" * 40, "nested deeper than 32 levels"),
        (b'{"server": [' + b"0," * 20_000 + b"0]}", "more than 20000 values"),
    ],
    ids=["NUL", "half", "twice", "NaN", "deep", "many"],
)
def test_bodies_are_checked_like_those_of_reservations(service: Standalone, content: bytes, fault: str):
    status, answer = ask(service, "POST", f"{COMPUTE}/servers", content=content)
    assert status == 400
    assert fault in json.dumps(answer)


@pytest.mark.slow
def test_a_token_of_the_file_is_good_for_all_services(service: Standalone):
    status, answer = log_in(service, service.token("demo"))
    assert status == 201
    assert answer["token"]["project"]["id"] == "demo-project"
    names = {entry["type"]: entry["name"] for entry in answer["token"]["catalog"]}
    assert names["reservation"] == "blazar"  # Apache Libcloud looks for the name
    catalogue = {entry["type"]: entry["endpoints"] for entry in answer["token"]["catalog"]}
    assert catalogue.keys() == {"identity", "reservation", "compute", "image", "network", "block-storage"}
    base = service.url.removesuffix("/v1")
    for service_type, path in (("image", "/v2/images"), ("network", "/v2.0/networks"), ("block-storage", "/volumes")):
        url = catalogue[service_type][0]["url"]
        assert url.startswith(base)
        assert ask(service, "GET", f"{url.removeprefix(base)}{path}")[0] == 200, service_type
    assert catalogue["reservation"][0]["url"] == service.url


def test_requests_without_a_token_are_refused_everywhere(service: Standalone):
    assert log_in(service, "x" * 64)[0] == 401
    password = {"auth": {"identity": {"methods": ["password"], "password": {"user": {"name": "demo"}}}}}
    status, answer = ask(service, "POST", "/identity/v3/auth/tokens", password, user=None)
    assert (status, "v3token" in answer["error"]["message"]) == (401, True)
    for path in (f"{COMPUTE}/servers", "/cloud/RegionOne/image/v2/images", "/cloud/RegionOne/volume/v3/volumes"):
        assert ask(service, "GET", path, user=None)[0] == 401, path


def test_members_see_the_servers_of_their_project_only(service: Standalone):
    own = boot(service, "own")
    assert (own["status"], own["fault"]["message"].split(".")[0]) == ("ERROR", "No valid host was found")
    others = boot(service, "others", user="admin")
    assert [server["id"] for server in ask(service, "GET", f"{COMPUTE}/servers/detail")[1]["servers"]] == [own["id"]]
    assert ask(service, "GET", f"{COMPUTE}/servers/{others['id']}")[0] == 404
    assert ask(service, "DELETE", f"{COMPUTE}/servers/{others['id']}")[0] == 404
    assert ask(service, "GET", f"{COMPUTE}/servers?all_tenants=1")[0] == 403
    assert len(ask(service, "GET", f"{COMPUTE}/servers?all_tenants=1", user="admin")[1]["servers"]) == 2
    assert "OS-EXT-SRV-ATTR:host" not in own
    assert ask(service, "GET", f"{COMPUTE}/os-hypervisors/detail")[0] == 403
    assert len(ask(service, "GET", f"{COMPUTE}/os-hypervisors/detail", user="admin")[1]["hypervisors"]) == 2
    for server, user in ((own, "demo"), (others, "admin")):
        assert ask(service, "DELETE", f"{COMPUTE}/servers/{server['id']}", user=user)[0] == 204
    assert ask(service, "GET", f"{COMPUTE}/servers")[1] == {"servers": []}


@pytest.mark.slow
def test_members_see_the_images_volumes_and_addresses_of_their_project_only(tmp_path: Path):
    with standalone(tmp_path / "data", hosts=1) as service:
        with closing(SimulatedCloud(tmp_path / "data" / "cloud.db")) as cloud, cloud.openstack.objects.change():
            state = cloud.openstack
            for project in ("demo-project", "admin-project"):
                image = {"id": f"image-of-{project}", "name": "saved", "status": "active", "owner": project}
                state.images[image["id"]] = image
                volume = Volume("data", 1, "fast", project, "u", status="available", id=f"volume-of-{project}")
                state.volumes[volume.id] = volume
                state.volume_snapshots[f"of-{project}"] = VolumeSnapshot(volume.id, f"of-{project}", project, {})
                state.floating_ips[project] = FloatingIP(PUBLIC_NETWORK, "203.0.113.7", project, id=project)
        images, volumes = "/cloud/RegionOne/image/v2/images", "/cloud/RegionOne/volume/v3/volumes"
        shown = ask(service, "GET", f"{images}?visibility=private")[1]["images"]
        assert [found["id"] for found in shown] == ["image-of-demo-project"]
        shown = ask(service, "GET", f"{volumes}/detail?all_tenants=1")[1]["volumes"]
        assert [found["id"] for found in shown] == ["volume-of-demo-project"]
        shown = ask(service, "GET", "/cloud/RegionOne/volume/v3/demo-project/snapshots/detail")[1]["snapshots"]
        assert [found["name"] for found in shown] == ["of-demo-project"]
        shown = ask(service, "GET", "/cloud/RegionOne/network/v2.0/floatingips")[1]["floatingips"]
        assert [found["id"] for found in shown] == ["demo-project"]
        for method, path in (("GET", images), ("DELETE", images), ("GET", volumes)):
            kind = path.rpartition("/")[2].removesuffix("s")
            assert ask(service, method, f"{path}/{kind}-of-admin-project")[0] == 404, (method, path)
        assert len(ask(service, "GET", f"{volumes}/detail?all_tenants=1", user="admin")[1]["volumes"]) == 2
        assert ask(service, "DELETE", f"{images}/image-of-demo-project")[0] == 204


def exchange(service: Standalone, request: str) -> bytes:
    """Send requests on one connection, byte for byte; return all that comes back until it is closed."""
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port), patience()) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("path", ["/identity/v3", "/identity/v3/auth/tokens", f"{COMPUTE}/servers", "/v1/leases", "/x"])
def test_the_next_answer_follows_the_head_of_an_answer(service: Standalone, path: str):
    token = service.token("demo")
    head = f"HEAD {path} HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {token}\r\nX-Subject-Token: {token}\r\n\r\n"
    answers = exchange(service, f"{head}GET /healthcheck HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    first, _, rest = answers.partition(b"\r\n\r\n")
    assert b"Content-Length: " in first
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("header", ["Host", "X-Forwarded-Host", "Forwarded", "X-Service-Catalog"])
def test_the_service_calls_no_address_of_a_request(service: Standalone, header: str):
    """A server is booted for a lease that the service books at its own address."""
    calls = []
    with socket.create_server(("127.0.0.1", 0)) as trap:
        there = f"127.0.0.1:{trap.getsockname()[1]}"
        endpoint = {"region": "RegionOne", "publicURL": f"http://{there}/v1"}
        catalogue = json.dumps([{"type": "reservation", "endpoints": [endpoint]}])
        value = {"Forwarded": f"host={there}", "X-Service-Catalog": catalogue}.get(header, there)
        end = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%d %H:%M")
        hints = {"reserved": "true", "lease_params": {"start": "now", "end": end}}
        body = {"server": {"name": "n", "flavorRef": FLAVOR}, "os:scheduler_hints": hints}
        url, named = f"{COMPUTE}/servers", {header: value}
        assert ask(service, "POST", url, body, user=None, named=named)[0] == 401
        status, answer = ask(service, "POST", url, body, named=named)
        assert status in (202, 409), answer
        trap.setblocking(False)
        with suppress(BlockingIOError):
            calls.append(trap.accept())
    assert not calls

    def servers() -> list[dict[str, Any]]:
        return list(ask(service, "GET", f"{COMPUTE}/servers/detail")[1]["servers"])

    wait_for("the servers to be made", lambda: {found["status"] for found in servers()} <= {"ACTIVE", "ERROR"})
    assert all(found["status"] == "ACTIVE" for found in servers())

    def are_gone() -> bool:
        for found in servers():
            assert ask(service, "DELETE", f"{COMPUTE}/servers/{found['id']}")[0] in {204, 404}
        return ask(service, "GET", f"{COMPUTE}/servers")[1] == {"servers": []}

    wait_for("the end of the servers", are_gone)


def main() -> int:
    """Run ``tenure-standalone`` with passes for default leases once a day."""
    factory.DEFAULT_LEASES_INTERVAL = timedelta(days=1)
    return tenure_standalone.main()


@pytest.mark.slow
def test_servers_get_default_leases_at_once_if_requested(tmp_path: Path):
    """A boot and a deletion are noticed as by Nova's notifications, long before the next pass."""
    program = (f"{__name__}:main", "--default-leases", "7")
    service = start(tmp_path / "data", hosts=1, program=program)
    try:
        booted = boot(service, "forgotten", flavor="7")
        wait_for("its lease", partial(_has_leases, service, "server forgotten"))
        [lease] = ask(service, "GET", "/v1/leases")[1]["leases"]
        length = datetime.fromisoformat(lease["end_date"]) - datetime.fromisoformat(lease["start_date"])
        assert timedelta(days=7) <= length < timedelta(days=8)
        assert ask(service, "DELETE", f"{COMPUTE}/servers/{booted['id']}")[0] == 204
        wait_for("the end of its lease", partial(_has_leases, service))
    finally:
        service.kill()


def _has_leases(service: Standalone, *names: str) -> bool:
    return [lease["name"] for lease in ask(service, "GET", "/v1/leases")[1]["leases"]] == [*names]


def _is_in_log(service: Standalone, words: str) -> bool:
    return words in service.log


def test_the_log_has_each_request_and_no_line_of_a_caller(service: Standalone):
    forged = "x\n2026-01-01 00:00:00,000 ERROR tenure.engine FORGED \x1b[2J\u202e"
    for reservation in (
        {"resource_type": "flavor:instance", "amount": 1, "flavor_id": forged},
        {"resource_type": "virtual:volume", "amount": 1, "size_gb": 1, "volume_type": forged},
    ):
        lease = {"name": forged, "start_date": "now", "end_date": "2999-01-01 00:00", "reservations": [reservation]}
        assert ask(service, "POST", "/v1/leases", lease, named={"OpenStack-API-Version": "reservation 1.1"})[0] == 400
    assert ask(service, "GET", f"{COMPUTE}/servers/%0A2026-01-01%20ERROR%1B%5B2J")[0] == 404
    assert ask(service, "GET", f"{COMPUTE}/servers", user=None)[0] == 401
    assert log_in(service, f"{'x' * 20}{forged}")[0] == 401
    for words in ("GET '/cloud/RegionOne/compute/v2.1/servers' -> 401", "POST '/identity/v3/auth/tokens' -> 401"):
        wait_for(f"{words} in the log", partial(_is_in_log, service, words))
    lines = service.log.split("\n")
    assert not [line for line in lines if not line.isprintable()]
    assert not [line for line in lines if line.startswith("2026-01-01")]


def test_a_request_has_limits(service: Standalone):
    body = {"server": {"name": "many", "flavorRef": FLAVOR, "min_count": 101}}
    assert ask(service, "POST", f"{COMPUTE}/servers", body)[0] == 403
    assert ask(service, "POST", f"{COMPUTE}/servers", content=b" " * (1024 * 1024 + 1))[0] == 413
    assert ask(service, "GET", f"{COMPUTE}/servers")[1] == {"servers": []}


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"server": []},
        {"server": {"name": "", "flavorRef": FLAVOR}},
        {"server": {"name": "x", "flavorRef": FLAVOR}, "os:scheduler_hints": ["reservation"]},
        {"server": {"name": "x", "flavorRef": FLAVOR, "min_count": "many"}},
        {"server": {"name": "x", "flavorRef": FLAVOR, "metadata": {"key": 1}}},
        {"server": {"name": "x", "flavorRef": FLAVOR, "imageRef": "none"}},
        {"server": {"name": "x", "flavorRef": FLAVOR}, "os:scheduler_hints": {"group": "none"}},
    ],
    ids=str,
)
def test_an_invalid_boot_is_refused_and_leaves_no_server(service: Standalone, body: object):
    status, answer = ask(service, "POST", f"{COMPUTE}/servers", body)
    assert status == 400, answer
    assert ask(service, "GET", f"{COMPUTE}/servers")[1] == {"servers": []}


def test_invalid_json_and_unknown_paths_are_refused(service: Standalone):
    assert ask(service, "POST", f"{COMPUTE}/servers", content=b"{")[0] == 400
    assert ask(service, "POST", f"{COMPUTE}/servers", {"server": {"name": "x", "flavorRef": "none"}})[0] == 404
    for path in (f"{COMPUTE}/no-such-thing", "/cloud/Nowhere/compute/v2.1/servers", "/cloud/RegionOne/dns/v2/zones"):
        assert ask(service, "GET", path)[0] == 404, path


@pytest.mark.slow
def test_each_region_has_a_cloud_of_its_own(tmp_path: Path):
    with standalone(tmp_path / "data", hosts=1, regions=("north", "south")) as service:
        endpoints = {
            endpoint["region"]: endpoint["url"]
            for entry in log_in(service, service.token("admin"))[1]["token"]["catalog"]
            for endpoint in entry["endpoints"]
            if entry["type"] == "compute"
        }
        assert endpoints.keys() == {"north", "south"}
        body = {"server": {"name": "here", "flavorRef": FLAVOR}}
        assert ask(service, "POST", "/cloud/south/compute/v2.1/servers", body)[0] == 202
        found = [ask(service, "GET", f"/cloud/{region}/compute/v2.1/servers")[1]["servers"] for region in endpoints]
        assert [len(servers) for servers in found] == [0, 1]
