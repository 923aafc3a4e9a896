"""A small OpenStack on loopback: the one that simulates clouds in process, served over HTTP, and strict about tokens.

It answers as Nova 2025.2 does, or, with ``nova="2.96"``, as an older Nova, which does not show the hints of a server,
and lets hosts with servers change zones.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from os import PathLike
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from tenure.drivers.simulated.openstack.cloud import OpenStack
from tenure.drivers.simulated.openstack.objects import IN_MEMORY
from tenure.drivers.simulated.openstack.service import ApiRequest, Caller, Refused, error_body
from tenure.drivers.simulated.openstack.state import (
    OWN_PROVIDER,
    Aggregate,
    Flavor,
    FloatingIP,
    Host,
    Provider,
    Server,
    ServerGroup,
    Subnet,
    VolumePool,
    VolumeType,
    inventory,
)
from tenure.drivers.simulated.openstack.transport import SERVICE
from tests.support.openstack.answers import Seen
from tests.support.openstack.limits import FakeLimits
from tests.support.waiting import HANG_SECONDS, patience

PASSWORD: Final = "secret"
SERVICE_USER: Final = SERVICE.user_id
SERVICE_PROJECT: Final = SERVICE.project_id
#: The projects of owners, and the user that each has.
OWNER: Final = "b0a6f3a1c2de4c9d9a3a1f3f5f6f7a01"
NEIGHBOUR: Final = "c1b7f4b2d3ef4dae8b4b2a4a6a7a8b02"
POOL: Final = "freepool"
PREFIX: Final = "blazar_"
OWNER_KEY: Final = "blazar:owner"
#: The bytes by which an answer is longer than need be: sent in intervals, they take ``HANG_SECONDS``.
_BLANKS: Final = 10_000
#: How the addresses of a service begin: what is before its paths, and what the driver calls it.
_ENDPOINTS: Final = {
    "identity": (re.compile("/v3"), "identity"),
    "compute": (re.compile("/v2.1"), "compute"),
    "placement": (re.compile(""), "placement"),
    "image": (re.compile("/v2"), "image"),
    "network": (re.compile("/v2.0"), "network"),
    "volume": (re.compile("/v3/[^/]+"), "block-storage"),
}


class FakeOpenStack(OpenStack):
    """The cloud. Everything that a test does to it by its methods is done by others than Tenure."""

    def __init__(
        self, hosts: int = 6, *, nova: str = "2.103", pool: bool = True, path: str | PathLike[str] = IN_MEMORY
    ) -> None:
        super().__init__(path, nova=nova)
        self.unified_limits = FakeLimits(self)
        self.add_routes(self.unified_limits.routes)
        self.tokens: dict[str, Caller] = {}
        #: Whether what takes a while goes on: servers vanish, images are saved.
        self.held = False
        self.slowed_by = lambda: 0 if self.held else None
        self.is_over = lambda _fault: not self.held
        self.volume_looks = 2
        self.group_quota, self.address_quota, self.gigabytes = 10, 50, 1000
        #: Whether there is room for servers that leave their hosts.
        self.has_room = True
        #: The hosts on which no server can be woken.
        self.closed_hosts: set[str] = set()
        self.seen: list[Seen] = []
        #: Requests that no OpenStack would understand, and answers that took too long for any client.
        self.surprises: list[str] = []
        #: The types of services that the cloud does not have.
        self.absent: set[str] = set()
        #: How long each answer takes, in seconds.
        self.latency = 0.0
        self._answers, self._completes = threading.Event(), threading.Event()
        self._answers.set()
        self._completes.set()
        #: Answers, given instead of what would be, until it says None.
        self.instead: Callable[[Seen], tuple[int, Any] | None] = lambda _seen: None
        #: Sees each request when it comes, before anything is done about it; several at once.
        self.observe: Callable[[Seen], None] = lambda _seen: None
        for pool_name, size in (("storage@fast#nvme", 1000.0), ("storage@slow#disk", "infinite")):
            self.volume_pools[pool_name] = VolumePool(pool_name, size)
        for volume_type in (VolumeType("fast", ["storage@fast#nvme"]), VolumeType("any")):
            self.volume_types[volume_type.id] = volume_type
        for number in range(1, hosts + 1):
            self.add_host(f"node-{number}.lab")
        if pool:
            self.add_aggregate(POOL)
        self._server = _Listener(self)
        self.port: int = self._server.server_address[1]
        self.name_address(f"http://127.0.0.1:{self.port}")

    def __enter__(self) -> FakeOpenStack:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.set()
        self._completes.set()
        self._server.stop()

    # Changes by others

    def name_address(self, url: str) -> None:
        """Have the catalogue say that all services are there, such as behind a proxy."""
        self.url = url
        #: Nova's endpoint, as the catalogue has it.
        self.compute_url = f"{url}/compute/v2.1"
        #: Neutron's.
        self.network_url = f"{url}/network"

    @property
    def service_types(self) -> frozenset[str]:
        return super().service_types - self.absent

    def add_host(self, name: str, service_host: str | None = None, **more: Any) -> Host:
        number = self.next_number("host")
        host = Host(number, name, service_host or f"compute-{number}", **more)
        self.hosts[host.key] = host
        if name not in {provider.name for provider in self.providers.values()}:
            self.provide(
                Provider(
                    name,
                    inventories={
                        "VCPU": inventory(host.vcpus, allocation_ratio=4.0),
                        "MEMORY_MB": inventory(16384, reserved=512),
                        "DISK_GB": inventory(200),
                    },
                    traits=["COMPUTE_NODE", "HW_CPU_X86_AVX2"],
                )
            )
        return host

    def remove_host(self, external_id: str) -> None:
        """Remove a host, as by deleting its compute service."""
        with self.objects.lock:
            host = self.host(external_id)
            del self.hosts[host.key]
            for server in [server for server in self.servers.values() if server.host == host.key]:
                del self.servers[server.id]
            for aggregate in self.aggregates_of(host.service_host):
                aggregate.hosts.remove(host.service_host)
            roots = {provider.uuid for provider in self.providers.values() if provider.name == host.name}
            for provider in list(self.providers.values()):
                if provider.uuid in roots or provider.parent in roots:
                    del self.providers[provider.uuid]

    def provide(self, provider: Provider) -> Provider:
        self.providers[provider.uuid] = provider
        return provider

    def add_flavor(self, flavor: Flavor) -> Flavor:
        self.flavors[flavor.id] = flavor
        return flavor

    def add_network(self, *subnets: tuple[str, list[tuple[str, str]], str | None], external: bool = True) -> str:
        """A network with these subnets: ranges, pools and gateways."""
        network_id = str(uuid.uuid4())
        self.networks[network_id] = external
        for cidr, pools, gateway in subnets:
            made = Subnet(network_id, cidr, pools, gateway)
            self.subnets[made.id] = made
        return network_id

    def add_floating_ip(self, network_id: str, address: str, project_id: str, **more: Any) -> FloatingIP:
        made = FloatingIP(network_id, address, project_id, **more)
        self.floating_ips[made.id] = made
        return made

    def floating_ip(self, address: str) -> FloatingIP | None:
        return next((ip for ip in self.floating_ips.values() if ip.address == address), None)

    def units(self, reservation_id: str) -> dict[str, int]:
        """How many units of a reservation are open, by the hosts' names."""
        name = "CUSTOM_RESERVATION_" + reservation_id.upper().replace("-", "_")
        return {
            provider.name.removeprefix(OWN_PROVIDER): record["total"] - record["reserved"]
            for provider in self.providers.values()
            if (record := provider.inventories.get(name)) is not None
        }

    def boot(self, service_host: str, project_id: str, reservation_id: str | None = None) -> str | None:
        """As Nova schedules it with Blazar's filter."""
        with self.objects.lock:
            pools = list(filter(_is_pool, self.aggregates_of(service_host)))
            if reservation_id is None:
                open_to_it = not pools
            else:
                named = [pool for pool in pools if pool.name == reservation_id]
                open_to_it = bool(named) and named[0].metadata.get(OWNER_KEY) == project_id
            host = self.hosts.get(service_host)
            if not open_to_it or host is None or not host.takes_servers:
                return None
            hints = {} if reservation_id is None else {"reservation": reservation_id}
            return self.force(service_host, project_id, **hints)

    def force(self, service_host: str, project_id: str, **hints: Any) -> str:
        server = Server("web", service_host, project_id, hints)
        self.servers[server.id] = server
        return server.id

    def boot_with(self, service_host: str, project_id: str, flavor_id: str, group_id: str | None = None) -> str | None:
        """As Nova schedules a server with a flavor, with Blazar's filter and Placement; its id."""
        with self.objects.lock:
            flavor, host = self.flavors.get(flavor_id), self.hosts.get(service_host)
            if flavor is None or not (flavor.is_public or project_id in flavor.projects):
                return None
            if host is None or not host.takes_servers:
                return None
            around = self.aggregates_of(service_host)
            asked = flavor.extra_specs.get("aggregate_instance_extra_specs:reservation")
            if asked is not None:
                if asked not in {aggregate.metadata.get("reservation") for aggregate in around}:
                    return None
            elif flavor.extra_specs.get("blazar:preemptible") == "true":
                if [aggregate.name for aggregate in around if _is_pool(aggregate)] != [POOL]:
                    return None
            elif any(map(_is_pool, around)):
                return None
            for name, amount in flavor.extra_specs.items():
                found = re.fullmatch("resources:(CUSTOM_RESERVATION_.*)", name)
                if found and int(amount) > sum(
                    self.left(provider, found[1])
                    for provider in self.providers.values()
                    if provider.name == f"{OWN_PROVIDER}{host.name}"
                ):
                    return None
            if group_id is not None and not self._lies_well(self.groups[group_id], service_host):
                return None
            # Nova's clock has seconds: tests that ask which server is newer need not wait for the next one.
            created = datetime.now(UTC) + timedelta(seconds=len(self.servers))
            booted = replace(flavor, projects=set())
            server = Server("web", service_host, project_id, flavor=booted, group_id=group_id, created=created)
            self.servers[server.id] = server
            return server.id

    def _lies_well(self, group: ServerGroup, service_host: str) -> bool:
        others = {server.host for server in self.servers.values() if server.group_id == group.id}
        return others <= {service_host} if group.policy == "affinity" else service_host not in others

    def let_go(self) -> None:
        with self.objects.lock:
            self.held = False
            self.settle()
            for server in list(self.servers.values()):
                server.task = None

    def lose_pending(self) -> None:
        """Complete nothing of what was requested so far, as on a host that died."""
        with self.objects.lock:
            self.held = False
            for key in list(self.pending):
                del self.pending[key]

    @property
    def completes(self) -> bool:
        return self._completes.is_set()

    def trickle(self) -> Iterator[bytes]:
        """Blanks, which mean nothing at the end of a JSON document, in intervals until the answer may be complete."""
        for _ in range(_BLANKS):
            if self._completes.wait(HANG_SECONDS / _BLANKS):
                return
            yield b" "
        self.surprises.append("a client waits for the end of an answer without a limit")

    def issue(self, user: str, project: str, roles: tuple[str, ...], trust: str | None = None) -> str:
        """A token."""
        token = f"token-{uuid.uuid4().hex}"
        self.tokens[token] = Caller(user, project, frozenset(roles), trust)
        return token

    def hang(self) -> None:
        """Take requests and answer none, until the end of the test."""
        self._answers.clear()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Answer no request before the end of the block."""
        self.hang()
        try:
            yield
        finally:
            self._answers.set()

    @contextmanager
    def trickling(self) -> Iterator[None]:
        """Send a byte of each answer now and then, and complete none before the end of the block."""
        self._completes.clear()
        try:
            yield
        finally:
            self._completes.set()

    # Answering

    def serve(self, seen: Seen) -> tuple[int, Any, dict[str, str]]:
        """The answer to a request that came over HTTP: status, body and headers."""
        if not self._answers.wait(HANG_SECONDS):
            self.surprises.append(f"a client waits for {seen.path} without a limit")
        time.sleep(self.latency)
        self.observe(seen)
        with self.objects.lock:
            self.seen.append(seen)
            instead = self.instead(seen)
            if instead is not None:
                return *instead, {}
            try:
                return self._answer(seen)
            except Refused as refused:
                return refused.status, error_body(_ENDPOINTS[seen.service][1], refused), {}

    def admits(self, server: Server, service_host: str) -> bool:
        return self.has_room and service_host not in self.closed_hosts and super().admits(server, service_host)

    def unknown(self, asked: ApiRequest) -> Refused:
        self.surprises.append(f"{asked.method} {asked.service} {asked.path}")
        return super().unknown(asked)

    def _answer(self, seen: Seen) -> tuple[int, Any, dict[str, str]]:
        if (seen.service, seen.method, seen.path) == ("identity", "POST", "/v3/auth/tokens"):
            caller = self._log_in(seen.body["auth"])
            token = self.issue(caller.user_id, caller.project_id, tuple(caller.roles), caller.trust_id)
            return 201, self._show_token(caller), {"X-Subject-Token": token}
        if (seen.service, seen.method) == ("identity", "GET") and seen.path.rstrip("/") in {"", "/v3"}:
            return *self.unified_limits.discovery(seen.path), {}
        known = self.tokens.get(seen.headers.get("x-auth-token", ""))
        if known is None:
            raise Refused(401, "The request you have made requires authentication.")
        if (seen.service, seen.method, seen.path) == ("identity", "GET", "/v3/auth/tokens"):
            return *self._check_token(seen.headers.get("x-subject-token", "")), {}
        prefix, service = _ENDPOINTS[seen.service]
        begins = prefix.match(seen.path)
        path = seen.path[begins.end() :] if begins else seen.path
        version = seen.headers.get("openstack-api-version", "").partition(" ")[2] or None
        return *self.answer(ApiRequest(service, seen.method, path, seen.query, seen.body, version), known), {}

    def _log_in(self, auth: dict[str, Any]) -> Caller:
        user = auth["identity"]["password"]["user"]
        if (user["name"], user["password"], user["domain"]["name"]) != ("tenure", PASSWORD, "Default"):
            raise Refused(401, "The request you have made requires authentication.")
        scope = auth["scope"]
        if "OS-TRUST:trust" in scope:
            return self.keystone.acting_as(scope["OS-TRUST:trust"]["id"])
        assert scope["project"] == {"name": "service", "domain": {"name": "Default"}}
        return replace(SERVICE, roles=frozenset({"admin", "service"}))

    def _check_token(self, token: str) -> tuple[int, Any]:
        found = self.tokens.get(token)
        if found is None:
            raise Refused(404, "Could not find token.")
        return 200, self._show_token(found)

    def _show_token(self, caller: Caller) -> Any:
        return {
            "token": {
                "methods": ["password"],
                "user": {"id": caller.user_id, "name": "u", "domain": {"id": "default", "name": "Default"}},
                "project": {"id": caller.project_id, "name": "p", "domain": {"id": "default", "name": "Default"}},
                "roles": [{"id": role, "name": role} for role in sorted(caller.roles)],
                "issued_at": "2026-01-01T00:00:00.000000Z",
                "expires_at": "2099-01-01T00:00:00.000000Z",
                "catalog": [
                    _catalogue_entry(service, url)
                    for service, url in (
                        ("identity", f"{self.url}/identity"),
                        ("compute", self.compute_url),
                        ("placement", f"{self.url}/placement"),
                        ("image", f"{self.url}/image"),
                        ("network", self.network_url),
                        ("block-storage", f"{self.url}/volume/v3/{caller.project_id}"),
                    )
                    if service not in self.absent
                ],
            }
        }


class _Handling(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for an answer: in two, the second would wait for an acknowledgement
    disable_nagle_algorithm = True
    server: _Listener

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        _, service, *rest = split.path.split("/", 2)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        seen = Seen(
            service,
            self.command,
            "/" + "".join(rest),
            dict(parse_qsl(split.query)),
            json.loads(body) if body else None,
            {key.lower(): value for key, value in self.headers.items()},
            tuple(parse_qsl(split.query)),
        )
        status, answer, headers = self.server.cloud.serve(seen)
        if not isinstance(answer, bytes):
            answer = b"" if answer is None else (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        data: bytes = answer
        blanks = 0 if self.server.cloud.completes else _BLANKS
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(data) + blanks))
        self.end_headers()
        if status == 204:
            return
        self.wfile.write(data)
        if blanks:
            sent = 0
            for blank in self.server.cloud.trickle():
                self.wfile.write(blank)
                self.wfile.flush()
                sent += 1
            self.wfile.write(b" " * (blanks - sent))

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test that fails says what was asked by itself."""


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, cloud: FakeOpenStack) -> None:
        super().__init__(("127.0.0.1", 0), _Handling)
        self.cloud = cloud
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join(patience())
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: clients hang up as they like."""


def _is_pool(aggregate: Aggregate) -> bool:
    return aggregate.name == POOL or (aggregate.zone or "").startswith(PREFIX)


def _catalogue_entry(kind: str, url: str) -> dict[str, Any]:
    endpoints = [
        {"id": f"{kind}-{name}", "interface": name, "region": "r1", "region_id": "r1", "url": address}
        for name, address in (("internal", url), ("public", "http://127.0.0.1:1/not-for-services"))
    ]
    return {"type": kind, "name": kind, "id": kind, "endpoints": endpoints}


def paths(cloud: FakeOpenStack, method: str = "GET") -> Iterator[str]:
    """What was asked for so."""
    return (seen.path for seen in cloud.seen if seen.method == method)
